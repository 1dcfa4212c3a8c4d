"""Comparisons of numbers as text: read into a tree, and worked out for a choice of labels."""

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, TypeAlias

from pfl_ops.errors import PflOpsError, echo, unknown

Labels: TypeAlias = Mapping[str, Sequence[str]]
"""Axis -> its labels, in the order of a cell's name."""

Bound: TypeAlias = Mapping[tuple[int, str], str]
"""(place in a cell's name, pattern there) -> label."""

Operation: TypeAlias = Literal["sum", "negative", "product", "max", "min", "mean", "abs"]

PART = r"(?:[\w.]+|\*|\{!?[\w.,]+\})"
TERM = re.compile(rf"{PART}(?:/{PART})*:[\w./]+(?:@[\d.]+|#(?:\d+|best))?")
OF_MANY: Mapping[str, Operation] = {"max": "max", "min": "min", "mean": "mean"}
COMPARISONS: Mapping[type[ast.cmpop], str] = {ast.LtE: "<=", ast.GtE: ">=", ast.Lt: "<", ast.Gt: ">"}


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
        if named.count(label) > 1:
            raise PflOpsError(f"'{echo(where)}' names label {echo(label)} twice in {echo(part)}")
    meant = [label for label in known if label not in named] if part.startswith("{!") else named
    if not meant:
        raise PflOpsError(f"{echo(part)} in '{echo(where)}' means no label: it leaves out all there are")
    return meant


@dataclass(frozen=True)
class Node:
    """A part of an expression: a number, a term, or an operation on others."""

    of: "tuple[Node, ...]" = ()
    operation: Operation = "sum"

    def terms(self) -> "Iterator[Term]":
        for node in self.of:
            yield from node.terms()


@dataclass(frozen=True)
class Number(Node):
    number: float = 0.0


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
        name = f"{'/'.join(self.parts)}:{self.key}"
        meant = [[bound[i, p]] if (i, p) in free else labels_of(p, known, name) for i, (p, known) in places]
        return ["/".join(chosen) for chosen in product(*meant)]


def sides(text: str) -> list[tuple[str, Node]]:
    """Return the sides of a claim: [("", side), (sign, side), ...].

    It is a Python expression, in which a term stands for a number: comparisons of sums and products, max, min, mean and
    abs.

    Raises:
        PflOpsError: it can't be read; at which place.

    >>> [(sign, [term.key for term in node.terms()]) for sign, node in sides("a/b:x - 2 * a/c:x > 0.5")]
    [('', ['x', 'x']), ('>', [])]
    """
    if foreign := re.search(r"#.*|term_\d+", TERM.sub("", text)):  # a comment to Python, and a name used below
        raise PflOpsError(f"claim '{text}' can't be read at '{foreign[0]}'")
    terms: list[str] = []

    def named(found: re.Match[str]) -> str:
        terms.append(found[0])
        return f"term_{len(terms) - 1}"

    code = TERM.sub(named, text).strip()
    reader = Reader(text, code, terms)
    try:
        tree = ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError) as error:
        at = (getattr(error, "offset", None) or len(code) + 1) - 1  # 0: the end
        raise reader.wrong(code[at:] or "the end") from None
    if not isinstance(tree, ast.Compare):
        raise reader.wrong("the end: a comparison is missing")
    signs = [COMPARISONS.get(type(sign), "") for sign in tree.ops]
    if "" in signs:
        raise reader.wrong(code)
    read = [reader.node(side) for side in (tree.left, *tree.comparators)]
    return list(zip(["", *signs], read, strict=True))


@dataclass(frozen=True)
class Reader:
    """A claim as Python's parser has made it, read as an expression of terms.

    Attributes:
        text: the claim. code: the same with term_0, term_1, ... in place of its terms. terms: these.
    """

    text: str
    code: str
    terms: Sequence[str]

    def node(self, tree: ast.expr, inside: bool = False) -> Node:
        """Return a part of the claim; `inside`: of max, min or mean."""
        match tree:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool) and value < math.inf:
                return Number(number=float(value))
            case ast.Name(id=name) if re.fullmatch(r"term_\d+", name):
                pattern, _, key = self.terms[int(name.removeprefix("term_"))].partition(":")
                return Term(parts=tuple(pattern.split("/")), key=key, inside=inside)
            case ast.UnaryOp(op=ast.USub(), operand=of):
                return Node((self.number(of, inside),), "negative")
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return Node((self.number(left, inside), self.number(right, inside)))
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return Node((self.number(left, inside), Node((self.number(right, inside),), "negative")))
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return Node((self.number(left, inside), self.number(right, inside)), "product")
            case ast.Call(func=ast.Name(id=name), args=[_, *_] as arguments, keywords=[]) if name in OF_MANY:
                operands = tuple(self.node(one, inside=True) for one in arguments)
                if len(operands) == 1 and not (isinstance(operands[0], Term) and operands[0].many):
                    raise PflOpsError(
                        f"claim '{self.text}': {name} has one argument, since * is one label in each instance; several "
                        f"labels of an instance stand in braces: {name}({{a,b}}:key)"
                    )
                return Node(operands, OF_MANY[name])
            case ast.Call(func=ast.Name(id="abs"), args=[argument], keywords=[]):
                return Node((self.number(argument, inside),), "abs")
        raise self.wrong(ast.get_source_segment(self.code, tree) or self.code)

    def number(self, tree: ast.expr, inside: bool) -> Node:
        """Return a part that must be one number: braces are arguments of max, min and mean and of nothing between."""
        node = self.node(tree, inside)
        if isinstance(node, Term) and node.many:
            raise self.wrong(f"{'/'.join(node.parts)}:{node.key}")
        return node

    def wrong(self, where: str) -> PflOpsError:
        """Return the error of a place, with its terms as they were written."""
        written = re.sub(r"term_(\d+)", lambda found: self.terms[int(found[1])], where)
        return PflOpsError(f"claim '{self.text}' can't be read at '{written}'")
