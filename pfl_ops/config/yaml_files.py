"""YAML as a person writes it: the scalars of YAML 1.2's core schema, no silent duplicates, every error in one line.

Core schema (YAML 1.2.2, section 10.3): `1e-3` is a number, `1:30`, `yes`, `off` and dates are text, `017` is 17,
`0o17` is 15, `.inf` and `.nan` are numbers, and `<<` is a key like any other. Documents are bounded in size, depth and
number of values, those that aliases (`*name`) repeat included.
"""

import os
import re
import stat
from pathlib import Path
from typing import Any

import yaml

from pfl_ops.errors import LONGEST_PATH, PflOpsError, echo

LARGEST_FILE = 1 << 20  # bytes
MOST_NODES = 10_000
DEEPEST = 50  # levels of nesting
LONGEST_INTEGER = 100  # characters; a longer one stays text, which no number's field takes

_TAG = "tag:yaml.org,2002:"
_CORE = {
    "null": (r"~|null|Null|NULL|", "~nN"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
}
"""Tag -> the plain scalars that have it, and their first characters."""


class _Loader(yaml.SafeLoader):
    """The core schema's tags and no others, within the bounds of this module."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  (as PyYAML declares it)
    yaml_constructors = {}  # noqa: RUF012

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = self._depth = 0
        self._sizes: dict[str, int] = {}  # anchor -> nodes below it

    def compose_node(self, parent: Any, index: Any) -> Any:
        """The next node; a value behind an alias counts as often as it is repeated."""
        event = self.peek_event()
        before = self._nodes
        alias = event.anchor if isinstance(event, yaml.AliasEvent) else None
        if alias in self.anchors and alias not in self._sizes:
            raise yaml.composer.ComposerError(None, None, f"'*{echo(alias)}' stands in itself", event.start_mark)
        self._nodes += self._sizes.get(alias, 1) if alias else 1
        self._depth += 1
        if self._nodes > MOST_NODES or self._depth > DEEPEST:
            limit = f"{DEEPEST} levels of nesting" if self._depth > DEEPEST else f"{MOST_NODES:,} values"
            raise yaml.composer.ComposerError(None, None, f"more than {limit}", event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if not alias and event.anchor:
            self._sizes[event.anchor] = self._nodes - before
        return node

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        if not isinstance(node, yaml.MappingNode):
            raise yaml.constructor.ConstructorError(None, None, "this is no mapping", node.start_mark)
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a scalar", key_node.start_mark)
            key = self.construct_object(key_node)
            if key in values:
                raise yaml.constructor.ConstructorError(
                    None, None, f"'{echo(key_node.value)}' is given twice", key_node.start_mark
                )
            values[key] = self.construct_object(value_node, deep=True)
        return values

    def _plain(self, node: Any, kind: str) -> str:
        """The text of a scalar that an explicit tag may have given a kind that it is not."""
        text = str(self.construct_scalar(node))
        if not re.fullmatch(_CORE[kind][0], text):
            raise yaml.constructor.ConstructorError(None, None, f"'{echo(text)}' is not !!{kind}", node.start_mark)
        return text

    def _whole(self, node: Any) -> int | str:
        text = self._plain(node, "int")
        bases = {"0o": 8, "0x": 16}
        return text if len(text) > LONGEST_INTEGER else int(text, bases.get(text[:2], 10))

    def _real(self, node: Any) -> float:
        return float(self._plain(node, "float").lower().replace(".inf", "inf").replace(".nan", "nan"))

    def _truth(self, node: Any) -> bool:
        return self._plain(node, "bool").lower() == "true"


_Loader.yaml_constructors = {
    f"{_TAG}null": lambda loader, node: None,
    f"{_TAG}bool": _Loader._truth,
    f"{_TAG}int": _Loader._whole,
    f"{_TAG}float": _Loader._real,
    f"{_TAG}str": lambda loader, node: loader.construct_scalar(node),
    f"{_TAG}seq": lambda loader, node: loader.construct_sequence(node, deep=True),
    f"{_TAG}map": lambda loader, node: loader.construct_mapping(node, deep=True),
    None: yaml.SafeLoader.construct_undefined,
}


class _Dumper(yaml.SafeDumper):
    """Safe YAML that quotes a text which YAML 1.1 or the core schema would read as something else."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        key: list(value) for key, value in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }


for _name, (_pattern, _first) in _CORE.items():
    for _class in (_Loader, _Dumper):
        starts = [*_first, ""] if _name == "null" else list(_first)
        _class.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z"), starts)


def dump(values: Any) -> str:
    """The values as YAML, in the order that they have."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def parse(text: str, source: str) -> Any:
    """The text's meaning, as plain Python values.

    Args:
        text: YAML.
        source: what to call it in an error, usually the file's name.
    Raises:
        PflOpsError: it is no YAML, or exceeds a bound; the message names source, line and problem.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise PflOpsError(f"{echo(source, LONGEST_PATH)}{line} is not valid YAML: {echo(problem, 200)}") from error


def mapping(text: str, source: str) -> dict[str, Any]:
    """The same, where only a mapping makes sense; nothing at all is an empty one."""
    values = parse(text, source)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise PflOpsError(f"{echo(source, LONGEST_PATH)} must map names to values, got '{echo(values)}'")
    return values


def read(path: Path) -> dict[str, Any]:
    """The mapping in a file.

    Raises:
        PflOpsError: the file is missing, no regular file, larger than `LARGEST_FILE`, not text, or holds no mapping.
    """
    try:
        return mapping(_text(path), str(path))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise PflOpsError(f"can't read {echo(path, LONGEST_PATH)}: {why}") from error


def _text(path: Path) -> str:
    """A regular file's text; a pipe or a device, which may never end, is refused before anything is read."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise PflOpsError(f"can't read {echo(path, LONGEST_PATH)}: it is not a regular file")
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise PflOpsError(f"can't read {echo(path, LONGEST_PATH)}: it is larger than {LARGEST_FILE >> 20} MiB")
    return content.decode("utf-8")


def scalar(text: str) -> Any:
    """The value behind `--set path=`: a number, true, null, a list, or the text itself."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError:
        return text
