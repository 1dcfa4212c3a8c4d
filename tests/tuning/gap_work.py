"""Jobs of two phases that say which process they had. Ray's processes import this by name."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs.job import Payload, SharedPaths


def in_phases(payload: Payload, place: SharedPaths) -> Iterator[Record]:
    """Seeds 0 and 1 begin together, and 1 goes on until "open" exists; seeds 2 and 3 are over when both have begun."""
    seed, folder = payload.experiment["seed"], Path(place.home)
    folder.joinpath(f"begun-{seed}").write_text(str(os.getpid()))
    _wait(folder / f"begun-{seed ^ 1}")
    if seed == 1:
        _wait(folder / "open")
    for t in range(payload.rounds + 1):
        yield Record(t, {"train/loss": 1.0}, 1_700_000_000_000 + t)


def _wait(file: Path) -> None:
    until = time.monotonic() + 120
    while not file.exists():
        assert time.monotonic() < until, f"no {file}"
        time.sleep(0.01)
