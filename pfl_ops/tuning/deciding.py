"""Repetitions until claims are decided: the cells that get the next seed.

A seed helps a claim only if all of its cells get it. Of the undecided claims the one comes first whose decision is
expected to cost least: the seeds that it lacks, if those to come are as those so far, times the time of one repetition
of its cells. A claim that no number of seeds up to `evidence.FARTHEST` is expected to decide comes after all others.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from pfl_ops.papers import CellResults, Claim, Verdict
from pfl_ops.papers.expression import Labels
from pfl_ops.results import Result

AHEAD = 3  # seeds that are begun beyond the last common one, so that no processor waits
MOST_SEEDS = 1000


@dataclass(frozen=True)
class OpenClaim:
    """A claim that is not decided.

    Attributes:
        claim: it. cells: names of those that it is about. n: seeds that all of them have.
        needed: seeds at which a decision is expected; None: none is.
        seconds: of one repetition of all cells.
    """

    claim: Claim
    cells: tuple[str, ...]
    n: int
    needed: int | None
    seconds: float

    @property
    def cost(self) -> tuple[bool, float]:
        """The expected cost of a decision, for ordering: claims without an expectation last, few seeds first."""
        if self.needed is None:
            return True, self.seconds * (self.n + 1)
        return False, self.seconds * max(1, self.needed - self.n)

    def seeds(self) -> Iterator[tuple[str, int]]:
        """(cell, number of the repetition) that it wants next, the first missing one of all cells first."""
        last = self.n + AHEAD if self.needed is None else min(self.n + AHEAD, max(self.needed, self.n + 1))
        for number in range(self.n, min(last, MOST_SEEDS)):
            for cell in self.cells:
                yield cell, number


def open_claims(
    claims: Sequence[Claim],
    verdicts: Sequence[Verdict],
    labels: Labels,
    there: Collection[str],
    outcomes: CellResults,
    cells: Collection[str],
    first: int = 0,
) -> list[OpenClaim]:
    """Return the undecided claims, the one with the cheapest expected decision first.

    Args:
        claims, verdicts: of a suite, alike in order. labels: the suite's axes. there: names of its cells; instances
            about a hole of the grid count nowhere. outcomes: finished repetitions.
        cells: names of those that may be run; a claim about another one is left out. first: seed of each first run.
    """
    found = []
    for claim, verdict in zip(claims, verdicts, strict=True):
        named = sorted(set().union(*(each for each in claim.compared(labels) if each.issubset(there))))
        meant = tuple(cell for cell in named if cell in cells)
        if verdict.status in ("holds", "does not hold") or len(meant) < len(named):
            continue
        n = min(prefix(outcomes.get(cell, ()), first) for cell in meant)
        seconds = sum(_seconds(outcomes.get(cell, ())) for cell in meant)
        found.append(OpenClaim(claim, meant, n, verdict.seeds, seconds))
    return sorted(found, key=lambda one: one.cost)


def prefix(outcomes: Sequence[Result], first: int = 0) -> int:
    """Return the number of seeds from `first` on without a gap."""
    seeds = {one.seed for one in outcomes}
    return next(i for i in count() if first + i not in seeds)


def _seconds(outcomes: Sequence[Result]) -> float:
    known = [one.seconds for one in outcomes if not math.isnan(one.seconds)]
    return sum(known) / len(known) if known else 1.0
