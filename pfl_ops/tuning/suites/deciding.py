"""Repetitions until claims are decided: the cells that get the next seed.

A seed helps an instance of a claim only if all cells of the instance get it. If the seeds to come are as those so far,
a decision is expected once some instances have so many seeds, while the others keep those that they have. Of a claim
with four instances, all of which must hold and three of which have evidence enough, the fourth alone gets seeds. The
choice of these instances depends on the evidence, which costs no error: the combinations hold for any numbers of seeds
(`papers.evidence`).

Of the undecided claims the one comes first whose decision is expected to cost least: the seeds that these instances
lack, times the time of one repetition of their cells. A claim that no number of seeds up to `evidence.FARTHEST` is
expected to decide comes after all others, and all of its cells get seeds.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import count

import numpy as np

from pfl_ops.papers import CellResults, Claim, Verdict
from pfl_ops.papers.evidence import FARTHEST, ClaimEvidence, at_least
from pfl_ops.papers.expression import Labels
from pfl_ops.results import Result

AHEAD = 3  # seeds that are begun beyond the last common one, so that no processor waits
MOST_SEEDS = 1000
LONGER = (1.0, 1.25, 1.5, 2.0)
"""Numbers of seeds that are tried for fewer instances, as multiples of the one at which all of them would decide."""


@dataclass(frozen=True)
class OpenClaim:
    """A claim that is not decided.

    Attributes:
        claim: it. cells: names of those that get seeds. n: seeds that all of them have.
        needed: seeds of these cells at which a decision is expected; None: none is.
        seconds: of one repetition of these cells.
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
    judged: Iterable[tuple[Claim, Verdict]],
    labels: Labels,
    there: Set[str],
    outcomes: CellResults,
    cells: Collection[str],
    first: int = 0,
) -> list[OpenClaim]:
    """Return the undecided claims, the one with the cheapest expected decision first.

    Args:
        judged: claims of a suite with the verdicts on them. labels: the suite's axes.
        there: names of its cells; instances about a hole of the grid count nowhere. outcomes: finished repetitions.
        cells: names of those that may be run; a claim about another one is left out. first: seed of each first run.
    """
    found = []
    for claim, verdict in judged:
        compared = claim.compared(labels, there)
        named = set().union(*compared)
        if verdict.status in ("holds", "does not hold") or not named.issubset(cells):
            continue
        of = {cell: outcomes.get(cell, ()) for cell in sorted(named)}
        had = {cell: prefix(done, first) for cell, done in of.items()}
        seconds = {cell: _seconds(done) for cell, done in of.items()}
        choices = [
            OpenClaim(claim, some, min(had[c] for c in some), needed, sum(seconds[c] for c in some))
            for instances, needed in _deciding(verdict)
            if (some := tuple(sorted(set().union(*(compared[i] for i in instances)))))
        ]
        found.append(min(choices, key=lambda one: one.cost))
    return sorted(found, key=lambda one: one.cost)


def _deciding(verdict: Verdict) -> Iterator[tuple[Sequence[int], int | None]]:
    """Yield places of instances, and the number of their seeds at which a decision is expected.

    First all instances; None: no number of seeds is expected to decide the claim. Then choices of fewer, the others
    staying as they are.
    """
    seeds = verdict.seeds
    yield range(len(verdict.instances)), seeds
    if seeds is not None:
        for later in (min(math.ceil(longer * seeds), FARTHEST) for longer in LONGER):
            yield from ((some, later) for some in _few(verdict, later))


def _few(verdict: Verdict, seeds: int) -> Iterator[Sequence[int]]:
    """Yield places of the instances that decide a claim if they get so many seeds, as few as each order allows.

    The orders: the weakest evidence so far comes first, or the strongest to come, each for and against the claim.
    """
    now = np.array([_after(one.evidence, max(1, one.evidence.n)) for one in verdict.instances])
    then = np.array([_after(one.continued, seeds) for one in verdict.instances])
    for order in (*np.argsort(now, axis=0, kind="stable").T, *np.argsort(-then, axis=0, kind="stable").T):
        gets_seeds = np.argsort(order)[:, None] < np.arange(1, len(order) + 1)  # [instance, how many get seeds]
        each = np.where(gets_seeds[:, None], then[:, :, None], now[:, :, None])
        enough = at_least(verdict.least, [ClaimEvidence(*one) for one in each]).first(verdict.needed)
        if enough is not None:
            yield order[:enough].tolist()


def _after(evidence: ClaimEvidence, n: int) -> tuple[float, float]:
    """The e-values for and against after `n` seeds."""
    there = evidence.before(n).until(n)
    return float(there.supporting[-1]), float(there.opposing[-1])


def prefix(outcomes: Sequence[Result], first: int = 0) -> int:
    """Return the number of seeds from `first` on without a gap."""
    seeds = {one.seed for one in outcomes}
    return next(i for i in count() if first + i not in seeds)


def _seconds(outcomes: Sequence[Result]) -> float:
    known = [one.seconds for one in outcomes if not math.isnan(one.seconds)]
    return sum(known) / len(known) if known else 1.0
