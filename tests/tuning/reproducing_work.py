"""A worker in the tests: the real thing, but for some cells. Ray's processes import this by name."""

import os
from collections.abc import Iterator
from pathlib import Path

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs.job import Payload, SharedPaths
from pfl_ops.jobs.work import simulate


def work(payload: Payload, place: SharedPaths) -> Iterator[Record]:
    """`local` is refused on path; the process of `fliu` dies after its first round, once."""
    tree = payload.experiment
    Path(place.home, "worked").mkdir(exist_ok=True)
    with open(Path(place.home, "worked", payload.digest), "a") as file:
        file.write("x")
    if (tree["algorithm"]["name"], tree["partition"]["kind"]) == ("local", "path"):
        raise PflOpsError("refused by the test")
    killed = Path(place.home, "killed")
    for record in simulate(payload, place):
        yield record
        if tree["algorithm"]["name"] == "fliu" and record.round == 1 and not killed.exists():
            killed.touch()
            os._exit(1)


def dies(payload: Payload, place: SharedPaths) -> Iterator[Record]:
    os._exit(1)
    yield  # type: ignore[unreachable]


def dies_with_seed_one(payload: Payload, place: SharedPaths) -> Iterator[Record]:
    if payload.experiment["seed"] == 1:
        os._exit(1)
    yield from simulate(payload, place)
