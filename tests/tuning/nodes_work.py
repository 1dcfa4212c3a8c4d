"""A real job that takes its time and notes that it was begun. Ray's processes import this by name."""

import time
from collections.abc import Iterator
from pathlib import Path

from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs.job import Payload, SharedPaths
from pfl_ops.jobs.work import simulate

PAUSE = 0.7  # seconds a round: longer than a report waits in its process


def slowly(payload: Payload, place: SharedPaths) -> Iterator[Record]:
    folder = Path(place.home, "begun")
    folder.mkdir(exist_ok=True)
    with open(folder / payload.digest, "a") as file:
        file.write("x")
    for record in simulate(payload, place):
        time.sleep(PAUSE)
        yield record


def begun(home: Path) -> dict[str, int]:
    """Return how often each run was begun, by digest."""
    return {file.name: len(file.read_text()) for file in (home / "begun").iterdir()}
