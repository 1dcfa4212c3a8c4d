"""The fields at the dotted paths of nested sections, and their allowed values.

Sections are told apart by a tag (`kind`, `name`) in two ways: pydantic's discriminated unions, and `Kinds` over a
registry. Both look the same here, so that `partition.kind` and `algorithm.gamma.kind` follow one set of rules.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

import annotated_types as at
from pydantic import GetCoreSchemaHandler, SerializationInfo, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, core_schema

from pfl_ops.errors import LONGEST_ECHO, PflOpsError, echo, nearest, unknown
from pfl_ops.registry import Registry
from pfl_ops.section import Section

T = TypeVar("T")
Tree: TypeAlias = dict[str, Any]
"""Sections as nested dicts of plain values, tags included."""


@dataclass(frozen=True)
class Kinds:
    """The sections that may stand in one place, told apart by a tag; as an annotation: those of a registry.

    Attributes:
        tag: the field that says which.
        table: value of the tag -> section; a registry imports the section when it is asked for.
        shared: fields that every kind has, which outlive a change of kind.
        default: the tag where none is given; None: it must be given.
    """

    tag: str
    table: Mapping[str, type[Section]] | Registry[Any]
    shared: frozenset[str] = frozenset()
    default: str | None = None

    def names(self) -> list[str]:
        """Every value of the tag."""
        return self.table.names() if isinstance(self.table, Registry) else list(self.table)

    def get(self, name: str, path: str = "") -> type[Section]:
        """The section of that name; an unknown one is an error with the nearest. `path`: the tag's, for the message."""
        if isinstance(self.table, Registry):
            section: type[Section] = self.table.get(name)
            return section
        if name not in self.table:
            raise unknown(path or self.tag, name, self.table)
        return self.table[name]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def validate(value: Any) -> Section:
            if isinstance(value, Section):
                return value
            if not isinstance(value, Mapping) or not isinstance(value.get(self.tag), str):
                raise ValueError(f"must be a section with '{self.tag}'")
            return self.get(value[self.tag]).model_validate(value)

        def dump(section: Section, info: SerializationInfo) -> Tree:
            return section.model_dump(mode=info.mode)

        return core_schema.no_info_plain_validator_function(
            validate, serialization=core_schema.plain_serializer_function_ser_schema(dump, info_arg=True)
        )


def kinds_with(kinds: Kinds | Registry[Any], name: str) -> list[str]:
    """Return the names of the kinds that have a field `name`, for a message; those that can't be imported are left out.

    >>> from pfl_ops.algorithms import ALGORITHMS
    >>> kinds_with(ALGORITHMS, "beta")
    ['pfedme', 'cd2_pfed', 'per_fedavg']
    """
    found = []
    for kind in kinds.names():
        with suppress(Exception):  # a broken plug-in is no reason to hide the error that the message is of
            if name in kinds.get(kind).model_fields:
                found.append(kind)
    return found


Node: TypeAlias = Kinds | type[Section] | None
"""The contents of a field: one of several sections, a section, or a value (None)."""


def _once_a_field(read: Callable[[FieldInfo], T]) -> Callable[[FieldInfo], T]:
    """Remember what is read from a field: there is one `FieldInfo` for each field of a class, and it stays as it is."""
    known: dict[int, tuple[FieldInfo, T]] = {}  # a field that is held here keeps its number

    @wraps(read)
    def again(info: FieldInfo) -> T:
        if id(info) not in known:
            known[id(info)] = info, read(info)
        return known[id(info)][1]

    return again


@_once_a_field
def node(info: FieldInfo) -> Node:
    """Return the contents of the field."""
    for mark in info.metadata:
        if isinstance(mark, Kinds):
            return mark
    if isinstance(info.discriminator, str):
        return _union(info)
    annotation = info.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def _union(info: FieldInfo) -> Kinds:
    tag = str(info.discriminator)
    members: dict[str, type[Section]] = {}
    for member in get_args(info.annotation):
        if isinstance(member, type) and issubclass(member, Section):
            members |= {str(value): member for value in get_args(member.model_fields[tag].annotation)}
    shared = frozenset.intersection(*(frozenset(m.model_fields) for m in members.values())) - {tag}
    return Kinds(tag, members, shared, getattr(info.get_default(call_default_factory=True), tag, None))


@dataclass(frozen=True)
class AllowedValues:
    """The values that a field takes, as its annotation says.

    Attributes:
        type: "int", "float", "bool", "str", "path", "choice", "list", or "value" (what the field's own check takes).
        low, high: bounds; low_open, high_open: the bound itself is not allowed.
        choices: the values of a choice.
        nullable: none is allowed.
        item: what each entry of a list may be. either: what may stand there instead of one another.
    """

    type: str = "value"
    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False
    choices: tuple[Any, ...] | None = None
    nullable: bool = False
    item: "AllowedValues | None" = None
    either: "tuple[AllowedValues, ...]" = ()

    @classmethod
    def of(cls, info: FieldInfo) -> "AllowedValues":
        """Return the values that `info` allows."""
        return _allowed_by(info)

    def __str__(self) -> str:
        """As in "must be ...": "a number in (0, 1]", "an integer >= 1 or none"."""
        if self.either:
            text = ", ".join(map(str, self.either[:-1])) + f" or {self.either[-1]}"
        elif self.type == "choice":
            text = one_of(self.choices or ())
        elif self.type == "list":
            text = f"a list, each {self.item}" if self.item else "a list"
        else:
            text = {
                "int": "an integer",
                "float": "a number",
                "bool": "true or false",
                "str": "a text",
                "path": "a file",
                "value": "a valid value",
            }[self.type]
        return text + self._bounds() + (" or none" if self.nullable else "")

    def near(self, value: Any) -> str:
        """Return "; did you mean 'sgd'?" for a text that is near one of the choices, to end a message; else ""."""
        close = nearest(value, [str(c) for c in self.choices or ()]) if isinstance(value, str) else None
        return f"; did you mean '{close}'?" if close else ""

    def _bounds(self) -> str:
        if self.low is not None and self.high is not None:
            low, high = _number(self.low), _number(self.high)
            return f" in {'(' if self.low_open else '['}{low}, {high}{')' if self.high_open else ']'}"
        if self.low is not None:
            return f" {'>' if self.low_open else '>='} {_number(self.low)}"
        return "" if self.high is None else f" {'<' if self.high_open else '<='} {_number(self.high)}"


@_once_a_field
def _allowed_by(info: FieldInfo) -> AllowedValues:
    return AllowedValues(**_allowed(info.annotation, info.metadata))


def _number(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


_NAMES = {bool: "bool", int: "int", float: "float", str: "str", Path: "path"}


def _allowed(annotation: Any, metadata: Iterable[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _allowed(arguments[0], [*arguments[1:], *metadata])
    if origin in (Union, UnionType):
        rest = [a for a in arguments if a is not NoneType]
        if len(rest) == 1:
            found = _allowed(rest[0], ())
        else:
            found["either"] = tuple(AllowedValues(**_allowed(a, ())) for a in rest)
        found["nullable"] = len(rest) < len(arguments)
    elif origin is Literal:
        found = {
            "type": "choice",
            "choices": tuple(a for a in arguments if a is not None),
            "nullable": None in arguments,
        }
    elif origin in (list, tuple, set, frozenset) or annotation in (list, tuple):
        found = {"type": "list", "item": AllowedValues(**_allowed(arguments[0], ())) if arguments else None}
    elif annotation in _NAMES:
        found = {"type": _NAMES[annotation]}
    for mark in metadata:
        for part in mark.metadata if isinstance(mark, FieldInfo) else [mark]:
            found |= _bound(part)
    return found


def _bound(mark: Any) -> dict[str, Any]:
    match mark:
        case at.Ge(ge=low):
            return {"low": low}
        case at.Gt(gt=low):
            return {"low": low, "low_open": True}
        case at.Le(le=high):
            return {"high": high}
        case at.Lt(lt=high):
            return {"high": high, "high_open": True}
        case at.Interval():
            return {k: v for part in mark for k, v in _bound(part).items()}
    return {}


@dataclass(frozen=True)
class Setting:
    """One path: what stands there, what may stand there, what it means.

    Attributes:
        path: dotted. value: now; default: its value unless it is set (None too where a value must be given).
        allowed: type, bounds and choices. symbol: as in the paper, or "". description: one line.
        is_tag: this path decides which others exist. info: pydantic's, of the field; None: of a tag.
    """

    path: str
    value: Any
    default: Any
    allowed: AllowedValues
    symbol: str = ""
    description: str = ""
    is_tag: bool = False
    info: FieldInfo | None = None

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.info.rebuild_annotation() if self.info else str)

    def check(self, value: Any) -> Any:
        """`value` as the experiment would hold it; one that is not admissible is an error."""
        name = f"{self.path} ({self.symbol})" if self.symbol else self.path
        if self.is_tag and value not in (self.allowed.choices or ()):
            raise PflOpsError(f"{name} must be {self.allowed}, got {show(value)}{self.allowed.near(str(value))}")
        if self.info is not None:
            value = plain(self.info, value, self.path)
        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            raise PflOpsError(f"{name} must be {self.allowed}, got {show(value)}") from error


def settings(section: Section | type[Section], prefix: str = "") -> Iterator[Setting]:
    """Every path in `section`: of an instance as its kinds are now, of a class as its defaults are.

    Args:
        section: an experiment, or any part of one.
        prefix: put before each path, with its dot.
    """
    of = section if isinstance(section, type) else type(section)
    for name, info in of.model_fields.items():
        default = info.get_default(call_default_factory=True)
        default = None if default is PydanticUndefined else default
        value = default if isinstance(section, type) else getattr(section, name)
        inside, path = node(info), f"{prefix}{name}"
        if inside is None:
            yield Setting(
                path, value, default, AllowedValues.of(info), info.title or "", info.description or "", info=info
            )
        elif isinstance(inside, Kinds):
            if value is None and inside.default:
                value = inside.get(inside.default)
            names = tuple(inside.names())
            now = inside.default if isinstance(value, type) else value and str(getattr(value, inside.tag))
            about = info.description or f"which {name}"
            yield Setting(
                f"{path}.{inside.tag}",
                now,
                inside.default,
                AllowedValues("choice", choices=names),
                info.title or "",
                about,
                is_tag=True,
            )
            if value is not None:
                yield from (s for s in settings(value, f"{path}.") if s.path != f"{path}.{inside.tag}")
        else:
            yield from settings(inside if value is None else value, f"{path}.")


def plain(info: FieldInfo, value: Any, path: str) -> Any:
    """`value` before pydantic sees it: "none" is None where allowed, true is no number, a number may be a text.

    Raises:
        PflOpsError: a value that pydantic would take for another: true for 1, "yes" or 1 for true, a number beyond 64
            bits for one that tensors can hold.
    """
    allowed = AllowedValues.of(info)
    if allowed.nullable and is_none(value):
        return None
    if _misread(allowed, value):
        printed = " without control characters" if allowed.type == "str" else ""
        raise PflOpsError(f"{path}{symbol(info)} must be {allowed}{printed}, got {show(value)}")
    if isinstance(value, (int, float)) and not isinstance(value, bool) and allowed.type in ("str", "path"):
        return str(value)  # a file called 2026
    return value


def _misread(allowed: AllowedValues, value: Any) -> bool:
    """True if pydantic would take the value for another one, or if no tensor and no terminal can hold it."""
    if allowed.either:
        return all(_misread(one, value) for one in allowed.either)
    if allowed.type == "list" and allowed.item:
        return any(_misread(allowed.item, one) for one in (value if isinstance(value, list | tuple) else [value]))
    if allowed.type in ("int", "float"):
        text = isinstance(value, str) and ("_" in value or not value.isascii())
        return text or isinstance(value, bool) or (isinstance(value, int) and abs(value) >= 2**63)
    if allowed.type == "choice":
        return isinstance(value, bool) and not any(value is one for one in allowed.choices or ())
    if allowed.type == "bool":
        return not isinstance(value, bool) and str(value).strip().lower() not in ("true", "false")
    return allowed.type == "str" and isinstance(value, str) and not value.isprintable()


def is_none(value: Any) -> bool:
    """None, or a text that means it."""
    return value is None or (isinstance(value, str) and value.strip().lower() in ("none", "null", "~"))


def symbol(info: FieldInfo | None) -> str:
    """The paper's symbol in brackets, to stand behind a path; "" where there is none."""
    return f" ({info.title})" if info and info.title else ""


def one_of(values: Iterable[Any]) -> str:
    """As in "must be one of sgd, adam"."""
    words = [str(v) for v in values]
    return words[0] if len(words) == 1 else f"one of {', '.join(words)}"


def show(value: Any) -> str:
    """A value in a message: text in quotes, none and booleans as YAML has them, control characters escaped, long ones
    cut."""
    if isinstance(value, int) and abs(value) >= 10**LONGEST_ECHO:  # Python refuses to print the longest
        return f"a number of {int(value.bit_length() * 0.30103) + 1:,} digits"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return echo(repr(value[: 2 * LONGEST_ECHO] if isinstance(value, str) else value))
