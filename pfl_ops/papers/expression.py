"""Comparisons of numbers as text: read into a tree, and worked out for a choice of labels."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean
from typing import TypeAlias

from pfl_ops.errors import PflOpsError, echo, unknown

Labels: TypeAlias = Mapping[str, Sequence[str]]
"""Axis -> its labels, in the order of a cell's name."""

Bound: TypeAlias = Mapping[tuple[int, str], str]
"""(place in a cell's name, pattern there) -> label."""

PART = r"(?:[\w.]+|\*|\{!?[\w.,]+\})"
TOKEN = re.compile(
    rf"\s*(?:(?P<term>{PART}(?:/{PART})*:[\w./]+(?:[@#][\d.]+)?)|(?P<number>\d+(?:\.\d+)?)|(?P<name>[a-z]+)(?=\()"
    r"|(?P<sign><=|>=|<|>|[-+*(),]))"
)
OF_MANY: Mapping[str, Callable[[Sequence[float]], float]] = {"max": max, "min": min, "mean": fmean}
FUNCTIONS: Mapping[str, Callable[[Sequence[float]], float]] = {**OF_MANY, "abs": lambda values: abs(values[0])}
COMPARISONS = ("<=", ">=", "<", ">")


def matching(pattern: str, labels: Labels) -> set[str]:
    """Names of the cells that a pattern means; "": all.

    Raises:
        PflOpsError: it has another number of parts than there are axes, or an unknown label.
    """
    parts = pattern.split("/") if pattern else ["*"] * len(labels)
    if len(parts) != len(labels):
        raise _uneven(pattern, parts, labels)
    meant = [labels_of(part, known, pattern) for part, known in zip(parts, labels.values(), strict=True)]
    return {"/".join(chosen) for chosen in product(*meant)}


def _uneven(pattern: str, parts: Sequence[str], labels: Labels) -> PflOpsError:
    count = "1 part" if len(parts) == 1 else f"{len(parts)} parts"
    return PflOpsError(f"'{echo(pattern)}' has {count}, and cells have {len(labels)}: {'/'.join(labels)}")


def labels_of(part: str, known: Sequence[str], where: str) -> list[str]:
    """The labels that a part of a pattern means."""
    if part == "*":
        return list(known)
    named = part.strip("{}").removeprefix("!").split(",")
    for label in named:
        if label not in known:
            raise unknown(f"label in '{echo(where)}'", label, known)
    return [label for label in known if label not in named] if part.startswith("{!") else named


@dataclass(frozen=True)
class Node:
    """A part of an expression: a number, a term, or an operation on others."""

    of: "tuple[Node, ...]" = ()
    operation: Callable[[Sequence[float]], float] = sum

    def terms(self) -> "Iterator[Term]":
        for node in self.of:
            yield from node.terms()

    def value(self, of: Callable[[str, str], float], labels: Labels, bound: Bound) -> float:
        return self.operation([v for node in self.of for v in node.values(of, labels, bound)])

    def values(self, of: Callable[[str, str], float], labels: Labels, bound: Bound) -> list[float]:
        return [self.value(of, labels, bound)]

    def arguments(self, of: Callable[[str, str], float], labels: Labels, bound: Bound) -> list[float]:
        """Those of a function."""
        return [v for node in self.of for v in node.values(of, labels, bound)]


@dataclass(frozen=True)
class Number(Node):
    number: float = 0.0

    def value(self, of: Callable[[str, str], float], labels: Labels, bound: Bound) -> float:
        return self.number


@dataclass(frozen=True)
class Term(Node):
    """`cell:key`; `inside`: of max, min or mean, whose arguments its braces become."""

    parts: tuple[str, ...] = ()
    key: str = ""
    inside: bool = False

    def terms(self) -> "Iterator[Term]":
        yield self

    @property
    def many(self) -> bool:
        """True if it stands for several cells in an instance."""
        return self.inside and any(part.startswith("{") for part in self.parts)

    def free(self, labels: Labels) -> list[tuple[int, str]]:
        """Parts that a binding fills."""
        if len(self.parts) != len(labels):
            raise _uneven("/".join(self.parts), self.parts, labels)
        return [(i, p) for i, p in enumerate(self.parts) if p == "*" or (p.startswith("{") and not self.inside)]

    def cells(self, labels: Labels, bound: Bound) -> list[str]:
        """The cells that it stands for in an instance: one, or the arguments of its function."""
        free = self.free(labels)
        places = enumerate(zip(self.parts, labels.values(), strict=True))
        meant = [[bound[i, p]] if (i, p) in free else labels_of(p, known, self.key) for i, (p, known) in places]
        return ["/".join(chosen) for chosen in product(*meant)]

    def values(self, of: Callable[[str, str], float], labels: Labels, bound: Bound) -> list[float]:
        return [of(cell, self.key) for cell in self.cells(labels, bound)]

    def value(self, of: Callable[[str, str], float], labels: Labels, bound: Bound) -> float:
        (one,) = self.values(of, labels, bound)
        return one


@dataclass
class Parser:
    """Recursive descent over a claim's text."""

    text: str
    tokens: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        at = 0
        while self.text[at:].strip():
            found = TOKEN.match(self.text, at)
            if not found or not found.lastgroup:
                raise self._wrong(self.text[at:].strip())
            self.tokens.append((found.lastgroup, found[found.lastgroup]))
            at = found.end()

    def comparison(self) -> list[tuple[str, Node]]:
        """[("", side), (sign, side), ...]."""
        sides = [("", self._sum())]
        while self._next() in COMPARISONS:
            sides.append((self._take(), self._sum()))
        if self.tokens or len(sides) < 2:
            raise self._wrong(self._next() or "the end: a comparison is missing")
        return sides

    def _sum(self, inside: bool = False) -> Node:
        node = self._product(inside)
        while self._next() in ("+", "-"):
            minus = self._take() == "-"
            right = self._one(self._product(inside))
            node = Node((self._one(node), Node((right,), _negative) if minus else right))
        return node

    def _product(self, inside: bool) -> Node:
        node = self._factor(inside)
        while self._next() == "*":
            self._take()
            node = Node((self._one(node), self._one(self._factor(inside))), math.prod)
        return node

    def _factor(self, inside: bool) -> Node:
        kind, text = self.tokens[0] if self.tokens else ("", "the end")
        if kind:
            self._take()
        if kind == "number":
            return Number(number=float(text))
        if kind == "term":
            pattern, _, key = text.partition(":")
            return Term(parts=tuple(pattern.split("/")), key=key, inside=inside)
        if kind == "name" and text in FUNCTIONS:
            return self._bracket(FUNCTIONS[text], inside=text in OF_MANY, many=text in OF_MANY)
        if text == "(":
            self.tokens.insert(0, ("sign", "("))
            return self._bracket(sum, inside, many=False)
        if text == "-":
            return Node((self._one(self._factor(inside)),), _negative)
        raise self._wrong(text)

    def _bracket(self, operation: Callable[[Sequence[float]], float], inside: bool, many: bool) -> Node:
        """`many`: it takes several arguments, those of braces too; else one."""
        self._expect("(")
        arguments = [self._sum(inside)]
        while many and self._next() == ",":
            self._take()
            arguments.append(self._sum(inside))
        self._expect(")")
        return Node(tuple(arguments if many else map(self._one, arguments)), operation)

    def _one(self, node: Node) -> Node:
        """The node, which must be one number: braces are arguments of max, min and mean and of nothing between."""
        if isinstance(node, Term) and node.many:
            raise self._wrong(f"{'/'.join(node.parts)}:{node.key}")
        return node

    def _expect(self, text: str) -> None:
        if self._next() != text:
            raise self._wrong(self._next() or "the end")
        self._take()

    def _next(self) -> str:
        return self.tokens[0][1] if self.tokens else ""

    def _take(self) -> str:
        return self.tokens.pop(0)[1]

    def _wrong(self, where: str) -> PflOpsError:
        return PflOpsError(f"claim '{self.text}' can't be read at '{where}'")


def _negative(values: Sequence[float]) -> float:
    return -values[0]
