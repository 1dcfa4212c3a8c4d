"""Rounds of a cell of the FLIU paper's Table I at the paper's size: time, extrapolated, and memory."""

import math
import statistics
from collections.abc import Iterator
from typing import Any

from pfl_ops.bench.gpu_check.options import Options
from pfl_ops.bench.gpu_check.outcome import NO_TIME, CheckRow, passed_if
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.loop.estimate import LIBRARIES_MIB
from pfl_ops.federation.settings import StatePlace
from pfl_ops.papers import find
from pfl_ops.system.hosting import HostedProcess

SUITE, CELL = "fliu/table1", "lsqs/fliu"
GRACE = 30.0  # seconds that the process may take beyond the time that is left


def cell(o: Options) -> Iterator[CheckRow]:
    """Run rounds of the cell, on a GPU with clients' rows on the host and then with these on the GPU, too."""
    yield from _rounds(o, "auto")
    if o.is_gpu:
        yield from _rounds(o, "device", ", rows on the GPU")


def _rounds(o: Options, state: StatePlace, how: str = "") -> Iterator[CheckRow]:
    """Run rounds of the cell in a process of its own, and extrapolate to the whole run; `how`: for the rows' names."""
    suite, title = find(SUITE), f"{SUITE} {CELL}{how}"
    e = suite.experiment(suite.cell(CELL)).override(dict(o.sizes.changes))
    if o.left <= 0:
        yield CheckRow("cell", title, "skipped", NO_TIME)
        return
    o.say(f"cell: {title} is built, its execution chosen by timing")
    process = HostedProcess("pfl_ops.bench.gpu_check.inside.Rounds", e.resolved, o.device, o.data_dir, state)
    rounds: list[dict[str, float]] = []
    total = 0
    try:
        about = _asked(o, process, "about")
        total = about["rounds"]
        estimated = _asked(o, process, "estimate")
        yield CheckRow("cell", f"estimate{how}", "passed", about["execution"], {"seconds": estimated["seconds"]})
        _asked(o, process, "next")  # the start
        while len(rounds) < o.sizes.rounds and (o.left > 0 or not rounds):
            rounds.append(_asked(o, process, "next"))
            o.say(f"cell: round {len(rounds)} of {o.sizes.rounds}")
        yield extrapolated(title, rounds, o.sizes.rounds, total)
        yield _memory(o, _asked(o, process, "peaks"), estimated["mib"], how)
    except NoAnswer:
        cut = CheckRow("cell", title, "skipped", NO_TIME)
        yield extrapolated(title, rounds, o.sizes.rounds, total) if rounds else cut
        yield CheckRow("cell", f"memory{how}", "skipped", NO_TIME)
    finally:
        process.kill()


def extrapolated(title: str, rounds: list[dict[str, float]], wanted: int, total: int) -> CheckRow:
    """Return the row of a cell's rounds: seconds of each, and of the whole run if all are like those after the first.

    Args:
        rounds: metrics of each round, `cost/train_seconds` and others. wanted: rounds that were to be run.
        total: T. The last round's full evaluation is not in the extrapolation.
    """
    typical = rounds[1:] or rounds
    train, evaluation = (statistics.mean(r[f"cost/{part}_seconds"] for r in typical) for part in ("train", "eval"))
    losses = [r["train/loss"] for r in rounds]
    figures = {
        "train_seconds_per_round": train,
        "eval_seconds_per_round": evaluation,
        "train_samples_per_second": statistics.mean(r["cost/samples_per_second"] for r in typical),
        f"hours_of_{total}_rounds": total * (train + evaluation) / 3600,
        "last_loss": losses[-1],
    }
    if not all(map(math.isfinite, losses)):
        return CheckRow("cell", title, "failed", "a loss is not finite", figures)
    cut = f"{len(rounds)} of {wanted} rounds, {NO_TIME}" if len(rounds) < wanted else ""
    return CheckRow("cell", title, "passed", cut, figures)


def _memory(o: Options, peaks: dict[str, float], estimated: float, how: str = "") -> CheckRow:
    """The peak beside the estimate: of the GPU where there is one, else of the process without its libraries."""
    peak = peaks["device"] if o.is_gpu else peaks["process"] - LIBRARIES_MIB
    return passed_if(
        peak <= estimated, "cell", f"memory{how}", "the peak is above the estimate",
        peak_mib=peak, estimate_mib=estimated, process_peak_mib=peaks["process"],
    )  # fmt: skip


class NoAnswer(Exception):
    """The process is still at work when the time is out."""


def _asked(o: Options, process: HostedProcess, method: str) -> Any:
    """Call a method of the process, and wait for its answer as long as there is time.

    Raises:
        NoAnswer: there is none in time. PflOpsError: it failed.
    """
    process.begin(method)
    if not process.pipe.poll(max(o.left, 0.0) + GRACE):
        raise NoAnswer
    try:
        return process.answer()
    except PflOpsError as error:
        raise PflOpsError(f"{method}: {error}") from error
