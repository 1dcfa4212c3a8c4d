"""The executions of one run, and the check of a chosen one against the first rounds.

A timing rests on a few steps of clients of average size. Rounds have more: unequal clients, a method's own terms,
processes that wait for one another. Where the first rounds are slower than promised by a fifth, although there was not
much other load, the next best execution is tried for as many rounds, and the fastest of those tried is kept. Each
change is part of the run's record: a resumed run computes round t with the execution that was recorded for t.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.execution.choose import Resolved, processor
from pfl_ops.federation.execution.decide import LONG
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.federation.training.kernels import library

PROCESSOR = "processor"
"""In a checkpoint: the processor, or the GPU, that computed its round."""
ROUNDS = 2  # of an execution, the faster of which counts: the first one also pays for what is made once
WRONG = 0.8  # of the promised rate: what is slower was chosen on a wrong figure
BETTER = 1.1  # times the rate of the execution in use, that another one must promise
ROUNDS_PER_TRIAL = 20  # of the run: an execution on trial may be slower, for `ROUNDS` of them
TRIALS = 3
CORES = 0.9  # of the cores that an execution uses, that must be free of other load in a round that counts
PATIENCE = 10  # rounds in which to wait for those that count


@dataclass
class Executions:
    """The executions of a run.

    Attributes:
        taken: (rounds finished before it, execution), in order; the first one from 0 on.
        promised: samples a second of each execution that was timed; {}: nothing is left to check.
        measured: samples a second of the rounds that each has computed undisturbed.
    """

    taken: list[tuple[int, Resolved]]
    promised: dict[Resolved, float] = field(default_factory=dict)
    measured: dict[Resolved, list[float]] = field(default_factory=dict)

    def at(self, t: int) -> Resolved:
        """The execution of round t, which has t rounds before it."""
        return next(resolved for first, resolved in reversed(self.taken) if first <= t)

    def review(self, record: Record, rounds: int, free: float) -> str | None:
        """Note the speed of a round, and choose again if the execution in use was chosen on a wrong figure.

        Args:
            record: of the round. rounds: of the whole run.
            free: cores that other processes left free meanwhile; a round that had too few says nothing.
        Returns:
            A line, if the next round has another execution.
        """
        (first, now), done = self.taken[-1], record.round
        if not self.promised:
            return None
        measured = self.measured.setdefault(now, [])
        if free >= CORES * max(now.threads if now.workers == 1 else 1, now.workers):
            measured.append(record.metrics["cost/samples_per_second"])
        elif done >= first + PATIENCE:
            self.settle()
            return None
        if len(measured) < ROUNDS:
            return None
        rates = {resolved: max(found) for resolved, found in self.measured.items()}
        enough = (rounds - done) * record.metrics["cost/train_seconds"] >= LONG
        more = enough and len(self.taken) <= min(rounds // ROUNDS_PER_TRIAL, TRIALS)
        wrong = len(rates) > 1 or rates[now] < WRONG * self.promised[now]
        known = {**self.promised, **rates} if more else rates
        best = max(known, key=lambda resolved: known[resolved])
        if not wrong or not rates[now] or known[best] < BETTER * rates[now]:
            self.settle()
            return None
        slower = rates[now] / self.promised[now]
        self.taken.append((done, best))
        if best in rates:
            self.settle()
            return f"from round {done + 1} on again: {best}"
        return f"from round {done + 1} on: {best}, since {now} trained {slower:.2f} times as fast as timed"

    def settle(self) -> None:
        """Keep the execution in use, and check it no more."""
        self.promised, self.measured = {}, {}

    # -- on disk ------------------------------------------------------------------------------------------------------

    def to_meta(self) -> dict[str, Any]:
        """As a checkpoint keeps it."""
        meta: dict[str, Any] = {"resolved": asdict(self.taken[-1][1])}
        if len(self.taken) > 1 or self.promised:
            meta["executions"] = [[first, asdict(resolved)] for first, resolved in self.taken]
            meta["promised"] = [[asdict(resolved), rate] for resolved, rate in self.promised.items()]
            meta["measured"] = [[asdict(resolved), rates] for resolved, rates in self.measured.items()]
        return meta

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> "Executions":
        """Read what `to_meta` gave, or an earlier version, which kept one execution.

        Raises:
            KeyError, TypeError, ValueError: another version wrote it.
        """
        last = Resolved(**meta["resolved"])
        taken = [(int(first), Resolved(**kept)) for first, kept in meta.get("executions", [])]
        promised = {Resolved(**kept): float(rate) for kept, rate in meta.get("promised", [])}
        measured = {Resolved(**kept): [float(rate) for rate in rates] for kept, rates in meta.get("measured", [])}
        return cls([*taken[:-1], (taken[-1][0], last)] if taken else [(0, last)], promised, measured)


def kept(
    meta: Mapping[str, Any], execution: Execution, on: torch.device, *, over: bool = False
) -> tuple[Executions, list[str]]:
    """The executions that a run has had so far, and a line for each wish that it does not meet.

    Args:
        over: whether the run has all its rounds: it may be read anywhere.
    Raises:
        PflOpsError: it was begun on a device that is not the one at hand, or with compiled kernels that are not built.
    """
    try:
        executions = Executions.from_meta(meta)
    except (KeyError, TypeError, ValueError):
        raise PflOpsError(
            "the checkpoint was written by another version of pfl-ops; --no-resume starts again"
        ) from None
    _, found = executions.taken[-1]
    if over:
        return executions, []
    if found.device != on.type:
        raise PflOpsError(
            f"this run was begun on {found.device}, here it would go on on {on.type}; "
            f"use --device {found.device}, or --no-resume to start again"
        )
    if any(resolved.kernels == "compiled" for _, resolved in executions.taken):
        library()
    asked = {
        "way": None if execution.way == "auto" else execution.way,
        "threads": execution.threads,
        "workers": execution.workers,
        "kernels": None if execution.kernels == "auto" else execution.kernels,
    }
    if found.way == "vmap":
        asked["chunk"] = execution.chunk
    lines = [
        f"keeps {name} {getattr(found, name)}, as it was begun, not {wish}; --no-resume starts again"
        for name, wish in asked.items()
        if wish not in (None, getattr(found, name))
    ]
    if found.torch != torch.__version__:
        lines.append(f"was begun with PyTorch {found.torch}, goes on with {torch.__version__}: last digits may differ")
    here = processor(on)
    if (before := meta.get(PROCESSOR, here)) != here:
        lines.append(f"was computed on {before} so far, goes on on {here}: last digits may differ")
    return executions, lines
