"""Claims: sentences of a paper in a form that can be false, and their judgement on the paper's numbers and on ours.

A claim is one or more comparisons of terms, `cell:key`, in the unit of the paper:

    path/fliu:test/L1/acc > path/fedavg:test/L1/acc
    path/fliu50:test/L1/acc > path/fliu25:test/L1/acc > path/fliu10:test/L1/acc
    */drdm:test/L1/local/worst > */{!drdm}:test/L1/local/worst
    abs(lsqs/fliu:test/L1/acc - lsqs/fedavg:test/L1/acc) < 1
    lsqs/fedavg:test/L2/local/mean@90 < lsqs/apfl:test/L2/local/mean@90

`*` stands for every label of its axis, the same one in all terms: one instance of the claim for each. `{a,b}` stands
for each of these labels, `{!a}` for all but those: each is an instance of its own, but right inside max, min or mean
they are the arguments. There is no division, since "/" joins labels.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from statistics import fmean
from typing import Literal, TypeAlias

from pfl_ops.errors import PflOpsError
from pfl_ops.papers.expression import Bound, Labels, Node, Parser, Term, labels_of
from pfl_ops.statistics import interval

Status: TypeAlias = Literal["holds", "does not hold", "undecided", "not run"]
Values: TypeAlias = Callable[[str, str], Mapping[int, float]]
"""(cell, key) -> {seed: value}; empty: not known. A published number has the one seed 0."""
Numbers: TypeAlias = Mapping[tuple[str, str], Mapping[int, float]]
"""The same as a mapping."""

COMPARE: Mapping[str, Callable[[float], bool]] = {
    "<": lambda d: d < 0,
    ">": lambda d: d > 0,
    "<=": lambda d: d <= 0,
    ">=": lambda d: d >= 0,
}


@dataclass(frozen=True)
class Instance:
    """A claim with a label in place of every `*` and brace.

    Attributes:
        where: those labels, joined; "": there were none. detail: the numbers compared.
    """

    where: str
    status: Status
    detail: str


@dataclass(frozen=True)
class Verdict:
    """How a claim was judged.

    Attributes:
        status: holds, where all its instances do; does not hold, where one does not; not run, where none was; else
            undecided.
    """

    instances: tuple[Instance, ...]

    @property
    def status(self) -> Status:
        found = {instance.status for instance in self.instances}
        if "does not hold" in found:
            return "does not hold"
        return found.pop() if len(found) == 1 else "undecided" if found else "not run"

    @property
    def count(self) -> str:
        """How many of several instances hold, and where it fails: "3 of 5; not at path"; "": there is one."""
        if len(self.instances) < 2:
            return ""
        holds = sum(instance.status == "holds" for instance in self.instances)
        run = sum(instance.status != "not run" for instance in self.instances)
        fails = [instance.where for instance in self.instances if instance.status == "does not hold"]
        parts = [f"{holds} of {run}"]
        if run < len(self.instances):
            parts.append(f"{len(self.instances) - run} not run")
        if fails and holds:
            parts.append(f"not at {', '.join(fails)}")
        return "; ".join(parts)


@dataclass(frozen=True)
class Claim:
    """A sentence, and what it says of numbers.

    Attributes:
        text: the sentence, as the paper has it or shortened.
        says: comparisons, see above.
        remark: where it stands, whether it is derived (ours), what is odd about it.
    """

    text: str
    says: str
    remark: str = ""

    def judge(self, values: Values, labels: Labels, cells: Iterable[str], *, exact: bool = False) -> Verdict:
        """Whether it is true of those values.

        Ours: a comparison of a and b is judged by the 95 % t interval of the mean of a − b, paired over the seeds that
        all terms have; undecided where it covers 0, and with a single seed. The paper's: by the numbers as printed.

        Args:
            values: of each cell and key. labels: the suite's axes. cells: names of the cells that there are.
            exact: the values have no spread: the paper's.
        """
        there = set(cells)
        found = []
        for bound in self._bindings(labels):
            terms = [(cell, term.key) for term in self._terms for cell in term.cells(labels, bound)]
            if any(cell not in there for cell, _ in terms):
                continue  # the paper's grid has a hole there
            where = ", ".join(dict.fromkeys(bound.values()))
            found.append(self._instance(where, bound, labels, {at: values(*at) for at in terms}, exact))
        return Verdict(tuple(found))

    def check(self, labels: Labels, cells: Iterable[str], keys: Iterable[str]) -> None:
        """Refuse a claim about what the suite has not.

        Raises:
            PflOpsError: it can't be read, or names an axis' label, a cell or a measure that does not exist.
        """
        known, there, held = set(keys), set(cells), 0
        for term in self._terms:
            if term.key not in known:
                raise PflOpsError(
                    f"claim '{self.says}': no measure '{term.key}'; measures are {', '.join(sorted(known))}"
                )
        for bound in self._bindings(labels):
            named = {cell for term in self._terms for cell in term.cells(labels, bound)}
            held += named <= there
            if not bound and not named <= there:
                raise PflOpsError(f"claim '{self.says}': no cell {', '.join(sorted(named - there))}")
        if not held:
            raise PflOpsError(f"claim '{self.says}' is about no cell of the suite")

    def cells(self, labels: Labels) -> set[str]:
        """Every cell that it is about."""
        return {c for bound in self._bindings(labels) for term in self._terms for c in term.cells(labels, bound)}

    @cached_property
    def _parsed(self) -> list[tuple[str, Node]]:
        return Parser(self.says).comparison()

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

    def _instance(
        self,
        where: str,
        bound: "Bound",
        labels: Labels,
        values: Mapping[tuple[str, str], Mapping[int, float]],
        exact: bool,
    ) -> Instance:
        seeds = sorted(set.intersection(*(set(of_seed) for of_seed in values.values()))) if values else [0]
        if not seeds:
            return Instance(where, "not run", "")
        signs = [sign for sign, _ in self._parsed[1:]]
        nodes = [node for _, node in self._parsed]
        judged = []
        for sign, (left, right) in zip(signs, pairwise(nodes), strict=True):
            above = sign in (">", ">=")
            lefts, rights = (
                [_each(node, every, _of(values, seed), labels, bound) for seed in seeds]
                for node, every in ((left, min if above else max), (right, max if above else min))
            )
            judged += [
                _compare(sign, [a[i] - b[j] for a, b in zip(lefts, rights, strict=True)], exact)
                for i, j in product(range(len(lefts[0])), range(len(rights[0])))
            ]
        status: Status = "holds"
        if "does not hold" in judged:
            status = "does not hold"
        elif "undecided" in judged:
            status = "undecided"
        numbers = [_short(_shown(node, [_of(values, seed) for seed in seeds], labels, bound)) for node in nodes]
        detail = numbers[0] + "".join(f" {sign} {number}" for sign, number in zip(signs, numbers[1:], strict=True))
        return Instance(where, status, detail if exact else f"{detail} (n = {len(seeds)})")


def _of(values: Numbers, seed: int) -> Callable[[str, str], float]:
    return lambda cell, key: values[cell, key][seed]


def _each(
    node: Node, every: Callable[..., float], of: Callable[[str, str], float], labels: Labels, bound: Bound
) -> list[float]:
    """What is compared: above a max is above each of its arguments, and every pair is judged by itself.

    The largest of several noisy values is too large on average; that of each seed would be held against a method.
    """
    return node.arguments(of, labels, bound) if node.operation is every else [node.value(of, labels, bound)]


def _shown(node: Node, seeds: Sequence[Callable[[str, str], float]], labels: Labels, bound: Bound) -> float:
    """A side's mean over seeds; of a max, the largest mean of its arguments."""
    if node.operation in (max, min):
        each = [node.arguments(of, labels, bound) for of in seeds]
        return node.operation([fmean(argument) for argument in zip(*each, strict=True)])
    return fmean(node.value(of, labels, bound) for of in seeds)


def _compare(sign: str, differences: Sequence[float], exact: bool) -> Status:
    met = [COMPARE[sign](d) for d in differences]
    if exact:
        return "holds" if all(met) else "does not hold"
    if len(differences) < 2 or any(math.isnan(d) for d in differences):
        return "undecided"
    if any(map(math.isinf, differences)):  # a target that was never reached has no mean
        return "holds" if all(met) else "undecided" if any(met) else "does not hold"
    between = interval(differences)
    assert between is not None  # two values at least
    low, high = between
    if COMPARE[sign](low) and COMPARE[sign](high):
        return "holds"
    outside = low > 0 or high < 0 or low == high
    return "does not hold" if outside else "undecided"


def _short(value: float) -> str:
    if math.isinf(value):
        return "never"
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
