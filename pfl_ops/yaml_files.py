"""YAML as a person writes it: 1e-3 is a number, a key given twice is an error, and every error is one line."""

import re
from pathlib import Path
from typing import Any

import yaml

from pfl_ops.errors import PflOpsError


class _Loader(yaml.SafeLoader):
    """Safe YAML with 1e-3 as a number (YAML 1.1 reads it as text) and without silent duplicates."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"'{key.value}' is given twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def parse(text: str, source: str) -> Any:
    """What the text means, as plain Python values.

    Args:
        text: YAML.
        source: what to call it in an error, usually the file's name.
    Raises:
        PflOpsError: it is no YAML; the message names source, line and problem.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise PflOpsError(f"{source}{line} is not valid YAML: {problem}") from error
    except (ValueError, RecursionError) as error:  # a date such as 2026-13-45; a thousand brackets
        raise PflOpsError(f"{source} is not valid YAML: {error}") from error


def mapping(text: str, source: str) -> dict[str, Any]:
    """The same, where only a mapping makes sense; nothing at all is an empty one."""
    values = parse(text, source)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise PflOpsError(f"{source} must map names to values, got {str(values)[:60]!r}")
    return values


def read(path: Path) -> dict[str, Any]:
    """The mapping in a file.

    Raises:
        PflOpsError: the file is missing, is not text, or holds no mapping.
    """
    try:
        return mapping(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise PflOpsError(f"can't read {path}: {why}") from error


def scalar(text: str) -> Any:
    """The value behind `--set path=`: a number, true, null, a list, or the text itself."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError):
        return text
