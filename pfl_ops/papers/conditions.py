"""Comparisons of a claim as conditions on means: max, min and abs are taken apart into linear combinations.

The expectation of the largest of several noisy numbers is above the largest expectation, with any number of seeds. So
no max or min is taken of a seed's numbers. A side is brought into the form

    min over clauses k of max over i of x_ki,   x_ki: a linear combination of cells' numbers,

which is exact: max and min distribute over each other and over sums, −max(x) is min(−x), |x| is max(x, −x). Then
left − right > 0 says that every clause has at least one x_ki above 0, and each x_ki is tested by its mean over seeds:

    c > max(a, b)               c − a > 0, and c − b > 0
    max(a, b) > c               one of a − c > 0 and b − c > 0
    max(a, b) - min(a, b) < 1   1 − a + b > 0, and 1 + a − b > 0; the pair a, a says 1 > 0, which is always true
    max(a, b) > max(c, d)       one of a − c > 0 and b − c > 0, and one of a − d > 0 and b − d > 0
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pfl_ops.errors import PflOpsError
from pfl_ops.metric_keys import TARGET_MARK
from pfl_ops.papers.evidence import SeedDifferences
from pfl_ops.papers.expression import Node, Number, Term

MOST_COMBINATIONS = 2000
"""Linear combinations of a form; max of 40 less min of 40 has 1,600."""


@dataclass(frozen=True)
class CellNumber:
    """The number `key` of a cell."""

    cell: str
    key: str

    @property
    def infinite(self) -> bool:
        """True if the number can be infinite: the round in which a target is reached, "...@90"."""
        return TARGET_MARK in self.key


@dataclass(frozen=True)
class Product:
    """A product of linear combinations, which is taken in each seed."""

    factors: "tuple[LinearCombination, ...]"

    @property
    def infinite(self) -> bool:
        return any(factor.infinite for factor in self.factors)


Atom: TypeAlias = CellNumber | Product
BySeed: TypeAlias = Callable[[CellNumber], NDArray[np.float64]]
"""A cell's numbers, [n]."""


@dataclass(frozen=True)
class LinearCombination:
    """constant + Σ weight · atom; no weight is 0."""

    parts: tuple[tuple[Atom, float], ...] = ()
    constant: float = 0.0

    @property
    def key(self) -> tuple[frozenset[tuple[Atom, float]], float]:
        """The same for equal combinations, whatever the order of their parts."""
        return frozenset(self.parts), self.constant

    @property
    def infinite(self) -> bool:
        """True if one of its numbers can be infinite."""
        return any(atom.infinite for atom, _ in self.parts)

    def plus(self, other: "LinearCombination") -> "LinearCombination":
        weights = dict(self.parts)
        for atom, weight in other.parts:
            weights[atom] = weights.get(atom, 0.0) + weight
        parts = tuple((atom, weight) for atom, weight in weights.items() if weight)
        return LinearCombination(parts, self.constant + other.constant)

    def times(self, factor: float) -> "LinearCombination":
        parts = tuple((atom, factor * weight) for atom, weight in self.parts if factor * weight)
        return LinearCombination(parts, factor * self.constant)

    def mean(self, numbers: BySeed) -> float:
        """Its mean over seeds, from those of its atoms."""
        return sum(weight * _mean(_values(atom, numbers)) for atom, weight in self.parts) + self.constant

    def values(self, numbers: BySeed) -> NDArray[np.float64]:
        """Its values over seeds, [n]."""
        return np.asarray(sum(weight * _values(atom, numbers) for atom, weight in self.parts) + self.constant)

    def differences(self, numbers: BySeed, n: int) -> SeedDifferences:
        """Its values over n seeds, as differences of the positive and the negative parts."""
        above, below = np.full(n, max(self.constant, 0.0)), np.full(n, max(-self.constant, 0.0))
        for atom, weight in self.parts:
            if weight > 0:
                above = above + weight * _values(atom, numbers)
            else:
                below = below - weight * _values(atom, numbers)
        with np.errstate(invalid="ignore"):  # never reached by both: no difference
            difference = above - below
        scale = np.maximum.accumulate(np.maximum(np.abs(above), np.abs(below)))
        sides = {weight > 0 for _, weight in self.parts}
        if len(sides) < 2 or not self.constant:
            return SeedDifferences(difference, scale, self.infinite)
        new = np.isin(np.arange(n), np.unique(above, return_index=True)[1])
        return SeedDifferences(difference, scale, self.infinite, self.constant, new)


def _values(atom: Atom, numbers: BySeed) -> NDArray[np.float64]:
    if isinstance(atom, CellNumber):
        return numbers(atom)
    return np.prod([factor.values(numbers) for factor in atom.factors], axis=0)


def _mean(values: NDArray[np.float64]) -> float:
    """The mean, rounded once; that of infinite numbers too."""
    return math.fsum(values) / len(values) if np.isfinite(values).all() else float(np.mean(values))


Clause: TypeAlias = tuple[LinearCombination, ...]
"""Its largest counts, or: at least one is above 0."""

Form: TypeAlias = tuple[Clause, ...]
"""Its smallest clause counts, or: every clause is true."""


def mean(form: Form, numbers: BySeed) -> float:
    """The form of the means over seeds: of a max, the largest mean of its arguments."""
    return min(max(one.mean(numbers) for one in clause) for clause in form)


@dataclass(frozen=True)
class Expansion:
    """Sides of a claim, taken apart.

    Attributes:
        says: the claim. named: the cells that each of its terms stands for.
    """

    says: str
    named: Mapping[Term, Sequence[str]]

    def form(self, node: Node) -> Form:
        """Return a side's form.

        Raises:
            PflOpsError: max, min or abs times a term, whose sign is not known; too many combinations.
        """
        if isinstance(node, Number):
            return ((LinearCombination(constant=node.number),),)
        if isinstance(node, Term):
            (one,) = self._arguments(node)
            return one
        of = [form for part in node.of for form in self._arguments(part)]
        match node.operation:
            case "sum":
                return self._sum(of)
            case "mean":
                return _scaled(self._sum(of), 1 / len(of))
            case "negative":
                return self._negative(*of)
            case "product":
                return self._product(of)
            case "max":
                return self._largest(of)
            case "min":
                self._checked(sum(len(clause) for form in of for clause in form))
                return tuple(clause for form in of for clause in form)
            case "abs":
                return self._largest([*of, self._negative(*of)])

    def conditions(self, above: Form, below: Form, *, strict: bool) -> Form:
        """Return what "`above` is above `below`" says: every clause has a combination above 0, or 0 unless `strict`.

        What is true whatever the numbers are is left out, and what is false in a clause with others.
        """
        found: list[Clause] = []
        for clause in self._sum([above, self._negative(below)]):
            fixed = [one.constant for one in clause if not one.parts]
            if not any(number > 0 or (number == 0 and not strict) for number in fixed):
                found.append(tuple(one for one in clause if one.parts) or clause[:1])
        return _shortest(found)

    def _arguments(self, node: Node) -> list[Form]:
        if not isinstance(node, Term):
            return [self.form(node)]
        return [((LinearCombination(((CellNumber(cell, node.key), 1.0),)),),) for cell in self.named[node]]

    def _sum(self, forms: Iterable[Form]) -> Form:
        def two(a: Form, b: Form) -> Form:
            self._checked(sum(map(len, a)) * sum(map(len, b)))
            return tuple(tuple(x.plus(y) for x in one for y in other) for one in a for other in b)

        return reduce(two, forms)

    def _largest(self, forms: Iterable[Form]) -> Form:
        def two(a: Form, b: Form) -> Form:
            self._checked(len(b) * sum(map(len, a)) + len(a) * sum(map(len, b)))
            return tuple(one + other for one in a for other in b)

        return reduce(two, forms)

    def _negative(self, form: Form) -> Form:
        """−min over k of max over i of x_ki: the max over k of the min over i of −x_ki, which is the min over all
        choices of one i for each k of the max over k."""
        self._checked(len(form) * math.prod(map(len, form)))
        return _shortest(tuple(one.times(-1) for one in chosen) for chosen in product(*form))

    def _product(self, forms: Sequence[Form]) -> Form:
        varying = [form for form in forms if any(one.parts for clause in form for one in clause)]
        factor = math.prod(mean(form, _no_numbers) for form in forms if form not in varying)
        if not varying:
            return ((LinearCombination(constant=factor),),)
        if len(varying) == 1:
            return _scaled(varying[0] if factor >= 0 else self._negative(varying[0]), abs(factor))
        if any(len(form) > 1 or len(form[0]) > 1 for form in varying):
            raise PflOpsError(
                f"claim '{self.says}': max, min and abs can be multiplied by numbers only, since the sign of a term is "
                "not known"
            )
        one = Product(tuple(form[0][0] for form in varying))
        return ((LinearCombination(((one, 1.0),)),),)

    def _checked(self, count: int) -> None:
        if count > MOST_COMBINATIONS:
            raise PflOpsError(
                f"claim '{self.says}': its max, min and abs stand for more than {MOST_COMBINATIONS:,} comparisons; "
                "make several claims of it"
            )


def _shortest(clauses: Iterable[Clause]) -> Form:
    """Leave out what is there twice, and clauses that have all of another one: they are true if that is."""
    distinct = [{one.key: one for one in clause} for clause in clauses]
    each = {frozenset(clause): tuple(clause.values()) for clause in distinct}
    return tuple(clause for keys, clause in each.items() if not any(other < keys for other in each))


def _scaled(form: Form, factor: float) -> Form:
    """A form times a number that is not negative."""
    return tuple(tuple(one.times(factor) for one in clause) for clause in form)


def _no_numbers(_: CellNumber) -> NDArray[np.float64]:
    return np.zeros(0)
