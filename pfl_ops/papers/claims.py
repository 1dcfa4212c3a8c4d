"""Claims: sentences of a paper in a form that can be false, and their judgement on the paper's numbers and on ours.

A claim is one or more comparisons of terms, `cell:key`, in the unit of the paper:

    path/fliu:test/L1/acc > path/fedavg:test/L1/acc
    path/fliu50:test/L1/acc > path/fliu25:test/L1/acc > path/fliu10:test/L1/acc
    */drdm:test/L1/local/worst > */{!drdm}:test/L1/local/worst
    abs(lsqs/fliu:test/L1/acc - lsqs/fedavg:test/L1/acc) < 1
    lsqs/fedavg:test/L2/local/mean@90 < lsqs/apfl:test/L2/local/mean@90

`*` stands for every label of its axis, the same one in all terms: one instance of the claim for each. `{a,b}` stands
for each of these labels, `{!a}` for all but those: each is an instance of its own, but right inside max, min or mean
they are the arguments. There is no division, since "/" joins labels. A max, min or |x| is that of means over seeds
(`conditions`), and can be multiplied by a number only.
"""

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import chain, count, pairwise, product, takewhile
from typing import Literal, TypeAlias

import numpy as np

from pfl_ops.errors import PflOpsError, by_key, echo
from pfl_ops.papers.conditions import CellNumber, Expansion, Form, mean
from pfl_ops.papers.evidence import ClaimEvidence, TermComparison, all_of, at_least
from pfl_ops.papers.expression import PART, Bound, Labels, Node, Term, labels_of, sides
from pfl_ops.statistics import ALIKE

Status: TypeAlias = Literal["holds", "does not hold", "undecided", "not run"]
Values: TypeAlias = Callable[[str, str], Mapping[int, float]]
"""(cell, key) -> {seed: value}; empty: not known. A published number has the one seed 0."""

COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True)
class Instance:
    """A claim with a label in place of every `*` and brace.

    Attributes:
        where: those labels: "path", of two axes "path/fedavg", two of one axis "m0 with m2"; "": there were none.
        detail: the numbers compared.
        agrees: True if the numbers, ours as means over seeds, are as claimed; None: not known.
        comparisons: all of which have to be true, with their differences over seeds; none of the paper's numbers.
        most: seeds before the first one with which training diverged, the most that count; None: it did with none.
        unpaired: True if it was run and no seed counts: a cell lacks the first one, or training diverged with it.
    """

    where: str
    agrees: bool | None
    detail: str
    comparisons: tuple[TermComparison, ...] = ()
    most: int | None = None
    unpaired: bool = False

    @cached_property
    def evidence(self) -> ClaimEvidence:
        """Evidence of the seeds so far."""
        return all_of([one.evidence for one in self.comparisons])

    @property
    def equal(self) -> bool:
        """True if some of its differences are the same in all seeds, which decides nothing."""
        return any(one.equal for comparison in self.comparisons for one in comparison.differences)

    @cached_property
    def continued(self) -> ClaimEvidence:
        """Evidence after `evidence.FARTHEST` seeds, or `most`, if those to come are as those so far."""
        return all_of([one.continued for one in self.comparisons]).before(self.most)


@dataclass(frozen=True)
class Verdict:
    """The judgement of a claim.

    Attributes:
        instances: of the claim. least: number of instances in which it has to be true.
        exact: True if the numbers have no spread: the paper's.
        needed: e-values at which it is decided for, and against, see `decided`.
    """

    instances: tuple[Instance, ...]
    least: int
    exact: bool
    needed: tuple[float, float] = (math.inf, math.inf)

    @property
    def status(self) -> Status:
        """holds, does not hold, undecided, or not run: nothing is known of any instance."""
        if all(instance.agrees is None for instance in self.instances):
            return "not run"
        if not self.exact:
            supporting, opposing = self.evidence.largest
            if supporting >= self.needed[0]:
                return "holds"
            return "does not hold" if opposing >= self.needed[1] else "undecided"
        if self.agreeing >= self.least:
            return "holds"
        possible = sum(instance.agrees is not False for instance in self.instances)
        return "undecided" if possible >= self.least else "does not hold"

    @property
    def agreeing(self) -> int:
        """Number of instances whose numbers are as claimed."""
        return sum(instance.agrees is True for instance in self.instances)

    @cached_property
    def evidence(self) -> ClaimEvidence:
        """Evidence of repeated runs for the whole claim; an instance that was not run has none."""
        return at_least(self.least, [instance.evidence for instance in self.instances])

    @property
    def seeds(self) -> int | None:
        """Number of seeds that the decision took; of an undecided claim, that it would take if the seeds to come were
        as those so far; None: not within `evidence.FARTHEST`, or not known."""
        if self.status != "undecided":
            return self.evidence.first(self.needed)
        return at_least(self.least, [instance.continued for instance in self.instances]).first(self.needed)

    @property
    def count(self) -> str:
        """Number of several instances whose numbers are as claimed: "3 of 5; not at path", "2 of 2; 1 not run; 1
        without a common seed"; "": there is one."""
        if len(self.instances) < 2:
            return ""
        run = sum(instance.agrees is not None for instance in self.instances)
        fails = [instance.where for instance in self.instances if instance.agrees is False]
        parts = [f"{self.agreeing} of {run}"]
        unpaired = sum(instance.unpaired for instance in self.instances)
        if run + unpaired < len(self.instances):
            parts.append(f"{len(self.instances) - run - unpaired} not run")
        if unpaired:
            parts.append(f"{unpaired} without a common seed")
        if fails and self.agreeing:
            parts.append(f"not at {', '.join(fails)}")
        return "; ".join(parts)


def decided(verdicts: "Sequence[Verdict]", level: float = 0.05) -> "tuple[Verdict, ...]":
    """Return the verdicts on all claims of a suite, decided as one family.

    The family is both directions of every claim, run or not: it is fixed before the first look. p = 1/max e, corrected
    after Holm: if differences are normal, no decision is wrong with probability 1 − `level`, whenever it was decided to
    stop adding seeds.

    Args:
        verdicts: on ours, in any state.
    """
    es = [e for verdict in verdicts for e in verdict.evidence.largest]
    order = sorted(range(len(es)), key=lambda i: -es[i])
    passed = next((rank for rank, i in enumerate(order) if es[i] * level < len(es) - rank), len(es))
    needed = {i: (len(es) - min(rank, passed)) / level for rank, i in enumerate(order)}
    return tuple(replace(v, needed=(needed[2 * i], needed[2 * i + 1])) for i, v in enumerate(verdicts))


@dataclass(frozen=True)
class Claim:
    """A sentence, and what it says of numbers.

    Attributes:
        text: the sentence, as the paper has it or shortened.
        says: comparisons, see above.
        remark: where it stands, whether it is derived (ours), what is odd about it.
        share: of the instances in which it has to be true, each counted once: "all", "most" (more than half), or a
            fraction above 0 and up to 1, as "8/10".
        derived: True if the paper does not say it in these terms: it is worked out from the paper's numbers, or its
            threshold is ours. Such claims are counted apart.
        main: True if the paper's abstract or conclusion says it of what the paper proposes. The page of all claims
            begins with these.
        untrained: True if it says that training fails in some cells: it is judged where networks give one answer to all
            inputs (`SuiteRun.one_answer`), other claims are not.
    """

    text: str
    says: str
    remark: str = ""
    share: str = "all"
    derived: bool = False
    main: bool = False
    untrained: bool = False

    def least(self, instances: int) -> int:
        """Return the number of instances in which it has to be true.

        Raises:
            PflOpsError: the share is none.

        >>> [Claim("", "", share=share).least(20) for share in ("all", "most", "8/10")]
        [20, 11, 16]
        """
        if self.share == "all":
            return instances
        if self.share == "most":
            return instances // 2 + 1
        try:
            share = Fraction(str(self.share))
        except (ValueError, ZeroDivisionError):
            share = Fraction(0)
        if not 0 < share <= 1:
            raise PflOpsError(
                f"claim '{self.says}': share must be all, most, or a fraction above 0 and up to 1 as 8/10, got "
                f"{echo(repr(self.share))}"
            )
        return math.ceil(share * instances)

    def judge(
        self,
        values: Values,
        labels: Labels,
        cells: Iterable[str],
        *,
        exact: bool = False,
        first: int = 0,
        diverged: Mapping[str, Collection[int]] = {},
    ) -> Verdict:
        """Judge it by those values.

        Ours: by the evidence of a − b for each comparison of a and b, paired over seeds up to the first one that a term
        lacks (`evidence`). The verdict is decided with the others of its suite, by `decided`. The paper's: by the
        numbers as printed.

        Args:
            values: of each cell and key. labels: the suite's axes. cells: names of the cells that there are.
            exact: the values have no spread: the paper's. first: seed of the first repetition.
            diverged: seeds of each cell with which training diverged.
        """
        found = []
        for bound, named in self._instances(labels, set(cells)):
            by_seed = {CellNumber(cell, term.key): values(cell, term.key) for term, of in named.items() for cell in of}
            found.append(self._instance(_where(bound), Expansion(self.says, named), by_seed, exact, first, diverged))
        return Verdict(tuple(found), self.least(len(found)), exact)

    def check(self, labels: Labels, cells: Iterable[str], keys: Iterable[str]) -> None:
        """Refuse a claim about what the suite has not.

        Raises:
            PflOpsError: it can't be read, names an axis' label, a cell or a measure that does not exist, or can't be
                decided (`conditions`), since it compares a number with itself, say; its share is none.
        """
        known, there, held = set(keys), set(cells), False
        for term in self._terms:
            if term.key not in known:
                raise PflOpsError(
                    f"claim '{self.says}': no measure '{term.key}'; measures are {', '.join(sorted(known))}"
                )
        for bound, named in self._instances(labels):
            compared = set(chain(*named.values()))
            if not compared:
                break
            if not bound and not compared <= there:
                raise PflOpsError(f"claim '{self.says}': no cell {', '.join(sorted(compared - there))}")
            if compared <= there:
                self._check_open(bound, named)
                held = True
        self.least(1)
        if not held:
            raise PflOpsError(f"claim '{self.says}' is about no cell of the suite")

    def cells(self, labels: Labels, there: Set[str] | None = None) -> set[str]:
        """Every cell that it is about; `there`: names of the cells, see `compared`."""
        return set().union(*self.compared(labels, there))

    def numbers(self, labels: Labels, there: Set[str] | None = None) -> set[CellNumber]:
        """Every number that it is about; `there`: names of the cells, see `compared`."""
        return {
            CellNumber(cell, term.key)
            for _, named in self._instances(labels, there)
            for term, cells in named.items()
            for cell in cells
        }

    def compared(self, labels: Labels, there: Set[str] | None = None) -> list[set[str]]:
        """The cells of each of its instances, which are compared with one another.

        Args:
            there: names of the cells that there are: an instance about a hole of the grid is none; None: all are.
        """
        return [set(chain(*named.values())) for _, named in self._instances(labels, there)]

    @cached_property
    def _parsed(self) -> list[tuple[str, Node]]:
        return sides(self.says)

    @cached_property
    def _terms(self) -> list[Term]:
        return [term for _, node in self._parsed for term in node.terms()]

    def _bindings(self, labels: Labels) -> Iterator[Bound]:
        """Every choice of labels for the stars, and for the braces outside of max, min and mean."""
        free: dict[tuple[int, str], Sequence[str]] = {}
        for term in self._terms:
            for place, part in term.free(labels):
                free[place, part] = labels_of(part, list(labels.values())[place], self.says)
        for chosen in product(*free.values()):
            yield dict(zip(free, chosen, strict=True))

    def _instances(
        self, labels: Labels, there: Set[str] | None = None
    ) -> Iterator[tuple[Bound, dict[Term, list[str]]]]:
        """The labels of each instance, and the cells that each term stands for in it; see `compared`."""
        for bound in self._bindings(labels):
            named = {term: term.cells(labels, bound) for term in self._terms}
            if there is None or there >= set(chain(*named.values())):
                yield bound, named

    def _conditions(self, expansion: Expansion) -> tuple[list[Form], list[Form]]:
        """Each side, and what each comparison of two of them says."""
        forms = [expansion.form(node) for _, node in self._parsed]
        comparisons = [
            expansion.conditions(*((b, a) if sign in ("<", "<=") else (a, b)), strict=sign in ("<", ">"))
            for (a, b), (sign, _) in zip(pairwise(forms), self._parsed[1:], strict=True)
        ]
        return forms, comparisons

    def _check_open(self, bound: Bound, named: Mapping[Term, Sequence[str]]) -> None:
        """Refuse an instance with a comparison that is true, or false, whatever the numbers are: no run decides it."""
        for clauses in self._conditions(Expansion(self.says, named))[1]:
            if clauses and all(one.parts for clause in clauses for one in clause):
                continue
            at = f" at {_where(bound)}" if bound else ""
            raise PflOpsError(
                f"claim '{self.says}' is {'false' if clauses else 'true'}{at} whatever the numbers of the cells are; "
                "{!a} leaves label a out"
            )

    def _instance(
        self,
        where: str,
        expansion: Expansion,
        by_seed: Mapping[CellNumber, Mapping[int, float]],
        exact: bool,
        first: int,
        diverged: Mapping[str, Collection[int]],
    ) -> Instance:
        seeds = _prefix(list(by_seed.values()), 0 if exact else first) if by_seed else [0]
        lost = [seed - first for number in by_seed for seed in diverged.get(number.cell, ())]
        most = min((n for n in lost if n >= len(seeds)), default=None)
        if not seeds:
            return Instance(where, None, "", most=most, unpaired=most == 0 or all(by_seed.values()))
        numbers = {one: np.array([values[seed] for seed in seeds]) for one, values in by_seed.items()}.__getitem__
        forms, conditions = self._conditions(expansion)
        means = [mean(form, numbers) for form in forms]
        texts = _short(means)
        signs = [sign for sign, _ in self._parsed[1:]]
        detail = texts[0] + "".join(f" {sign} {text}" for sign, text in zip(signs, texts[1:], strict=True))
        seen = np.abs([*means, *chain(*(values.values() for values in by_seed.values()))])
        rounding = ALIKE * seen.max(initial=0.0, where=np.isfinite(seen))
        agrees = all(_are_so(sign, *pair, rounding) for sign, pair in zip(signs, pairwise(means), strict=True))
        if exact:
            return Instance(where, agrees, detail)
        comparisons = [
            TermComparison(tuple(one.differences(numbers, len(seeds)) for one in clause))
            for clause in chain(*conditions)
        ]
        return Instance(where, agrees, f"{detail} (n = {len(seeds)})", tuple(comparisons), most)


derived = partial(Claim, derived=True)
"""A claim that the paper does not make in these terms, see `Claim.derived`."""

CELLS = re.compile(rf"{PART}(?:/{PART})+")
"""Cells in a claim, of two axes or more."""


def about(key: str, *claims: Claim) -> tuple[Claim, ...]:
    """Return claims about one measure, in which cells stand without its key.

    >>> [claim.says for claim in about("test/L1/acc", Claim("", "*/fliu > max(*/{fedavg,local})"))]
    ['*/fliu:test/L1/acc > max(*/{fedavg,local}:test/L1/acc)']
    """
    return tuple(replace(claim, says=CELLS.sub(rf"\g<0>:{key}", claim.says)) for claim in claims)


def _where(bound: Bound) -> str:
    """Return the labels of an instance in the order of the axes; see `Instance`."""
    labels_by_place = sorted(bound.items(), key=lambda one: one[0][0])
    by_place = by_key((place, label) for (place, _), label in labels_by_place)
    return "/".join(" with ".join(labels) for labels in by_place.values())


def _prefix(values: Sequence[Mapping[int, float]], first: int) -> list[int]:
    """Return the seeds first, first + 1, ... up to one that a term lacks: a bad repetition is never left out."""
    there = (all(not math.isnan(one.get(seed, math.nan)) for one in values) for seed in count(first))
    return [first + i for i, _ in enumerate(takewhile(bool, there))]


def _are_so(sign: str, a: float, b: float, rounding: float) -> bool:
    """True if numbers compare so; those that differ by rounding alone are equal: 90.31 − 90.21 is not above 0.1."""
    return "=" in sign if abs(a - b) <= rounding else COMPARE[sign](a, b)


def _short(values: Sequence[float]) -> list[str]:
    """Numbers with four significant digits; with up to seven if two that differ would read the same."""
    four = [_digits(value, 4) for value in values]
    return four if len({*four}) == len({*values}) else [_digits(value, 7) for value in values]


def _digits(value: float, digits: int) -> str:
    if not math.isfinite(value):  # rounds of a target that was not reached, and their differences
        return "never − never" if math.isnan(value) else "never" if value > 0 else "−never"
    return f"{value:.{digits}g}" if abs(value) < 10 ** (digits - 1) else f"{value:.0f}"
