"""The choice among timed candidates, and its review: arithmetic on rates, the same answer for the same figures."""

from dataclasses import dataclass
from typing import NamedTuple

from pfl_ops.federation.execution.timing import Candidate, Lane, Timing
from pfl_ops.federation.settings import Precision, Way

CHUNKS = (2, 5, 10, 20, 50, 100)
GAIN = 1.15  # what several processes, or fewer threads, must promise: the promise rests on a few steps
NEARLY = 0.9  # what several processes must promise in place of one process of several threads
LONG = 30.0  # seconds of training in one process, below which no others are started; that takes about three
A_JOB = 0.005  # seconds that sharing out one round takes
FASTER = 1.5  # from here on, another number format is worth a line


class TrainingWork(NamedTuple):
    """The training work of a run.

    Attributes:
        cohort: clients a round. rounds: T. samples: that a round's clients see, all epochs together.
        batch: samples that a step shows to a client. walk: steps of a client a round.
    """

    cohort: int
    rounds: int
    samples: float
    batch: float
    walk: int


class Choice(NamedTuple):
    """Clients stacked at once (None: one after the other), CPU threads of this process, processes that train."""

    stack: int | None
    threads: int
    workers: int = 1


@dataclass(frozen=True)
class Scope:
    """The settings that an execution leaves open, and those that it fixes.

    Attributes:
        way, chunk: as asked for. cohort: clients a round, of which no more are stacked.
        threads: of this process. fewer: it may be one alone: others keep the cores busy, its own workers too.
        least, most: processes.
    """

    way: Way
    chunk: int | None
    cohort: int
    threads: int
    fewer: bool = False
    least: int = 1
    most: int = 1

    def stacks(self, limit: int) -> tuple[int | None, ...]:
        """Sizes to compare, smallest first, None for the loop way; none that was not asked for is above `limit`."""
        if self.way == "loop":
            return (None,)
        if self.chunk is not None:
            return (min(self.chunk, self.cohort),)
        sizes = [*(c for c in CHUNKS if c < limit), *([limit] if 1 < limit <= CHUNKS[-1] else [])]
        return (None, *sizes) if self.way == "auto" else tuple(sizes) or (1,)

    @property
    def settled(self) -> Choice | None:
        """The only choice, where there is one."""
        stacks = self.stacks(self.cohort)
        if len(stacks) > 1 or self.least < self.most:
            return None
        return Choice(stacks[0], self.threads_beside(self.most), self.most)

    def threads_beside(self, workers: int) -> int:
        """Threads of this process where so many train: it has little to do, and should leave them their cores."""
        return 1 if workers > 1 and self.fewer else self.threads

    @property
    def lanes(self) -> list[Lane]:
        """The candidates to time: a process on one thread, and one process on all threads."""
        alone, shared = self.stacks(self.cohort), self.stacks(-(-self.cohort // self.most))
        if self.least > 1 or self.threads == 1:
            return [Lane(1, shared)]
        return [*([Lane(1, shared)] if self.fewer or self.most > 1 else []), Lane(self.threads, alone)]


def decide(timing: Timing, work: TrainingWork, precision: Precision, scope: Scope) -> Choice:
    """The choice that trains fastest; several processes only where the run is long enough for them.

    Several of one thread are preferred to one of several threads, which stops where other load takes one of its cores.
    """
    rates = promises(timing, work, precision, scope)
    if scope.least > 1:
        return max(rates, key=lambda c: rates[c])
    shared = max((c for c in rates if c.workers > 1), key=lambda c: rates[c], default=None)
    alone = [c for c in rates if c.workers == 1]
    best = max(alone, key=lambda c: (c.threads == scope.threads, rates[c]))
    if scope.fewer:
        single = max((c for c in alone if c.threads == 1), key=lambda c: rates[c], default=best)
        best = single if rates[single] > GAIN * rates[best] else best
    timed = any(c.threads == best.threads > 1 for c in timing.rates)  # else the promise is one thread's
    needed = NEARLY if timed else GAIN
    long = work.rounds * work.samples / rates[best] >= LONG
    return shared if shared is not None and long and rates[shared] >= needed * rates[best] else best


def promises(timing: Timing, work: TrainingWork, precision: Precision, scope: Scope) -> dict[Choice, float]:
    """Samples a second of each choice in a round, as far as it was timed."""
    rates = {c: max(rate, 1e-9) for c, rate in timing.rates.items() if c.precision == precision}
    found: dict[Choice, float] = {}
    for c, rate in rates.items():
        if c.threads == 1 and scope.most > 1:
            promise = max(together(rate, c.stack, work, scope, timing.scaling), 1e-9)
            choice = _shared(c, work, scope)
            if choice.workers > 1 or scope.least > 1:
                shared = work.samples / (work.samples / promise + A_JOB)
                found[choice] = max(found.get(choice, 0.0), shared)
    timed = any(c.threads == scope.threads for c in rates)
    for c, rate in rates.items():
        if scope.least == 1 and (scope.fewer or c.threads == scope.threads or not timed):
            found[Choice(c.stack, c.threads if scope.fewer else scope.threads)] = rate
    return found


def together(rate: float, stack: int | None, work: TrainingWork, scope: Scope, scaling: float) -> float:
    """Samples a second of several processes, each at `rate` on a core of its own; the one with the most to do counts.

    Args:
        rate: of one process of one thread. scaling: see `Timing`.
    """
    size, processes = shares(stack, work.cohort, scope)
    chunks = -(-work.cohort // size)
    longest = min(-(-chunks // processes) * size, work.cohort)
    cores = min(processes, max(scaling, 1.0))
    return rate * cores / processes * work.cohort / longest


def shares(stack: int | None, cohort: int, scope: Scope) -> tuple[int, int]:
    """Clients in a chunk, and processes: as many as can start at once, and a stack that gives each the same."""
    size = stack or 1
    if stack is not None and scope.chunk is None:
        each = -(-cohort // scope.most)
        size = -(-each // -(-each // size))
    chunks = -(-cohort // size)
    return size, -(-chunks // -(-chunks // scope.most))


def _shared(candidate: Candidate, work: TrainingWork, scope: Scope) -> Choice:
    size, processes = shares(candidate.stack, work.cohort, scope)
    return Choice(None if candidate.stack is None else size, scope.threads_beside(processes), processes)


def hint(timing: Timing, precision: Precision) -> str | None:
    """One line where training in another number format would be much faster here."""
    best = timing.rates[timing.fastest(precision)]
    others = {c.precision: rate / best for c, rate in timing.rates.items() if c.precision != precision and best}
    other = max(others, key=lambda p: others[p], default=None)
    if other is None or others[other] < FASTER:
        return None
    return (
        f"precision {other} would train about {others[other]:.1f} times as fast here, and changes results; "
        f"to have it: --precision {other}"
    )
