"""Dotted paths: setting many at once, and pydantic's errors in our words.

Everything that changes an experiment, a flag, a file, a search space, a suite, ends in `assign`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from os import PathLike, fspath
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from pfl_ops.config.fields import AllowedValues, Kinds, Tree, kinds_with, node, one_of, plain, show, symbol
from pfl_ops.errors import LONGEST_NAME, PflOpsError, echo, nearest
from pfl_ops.section import Section

ALIKE = 0.8
"""Likeness, 0 to 1, from which a name of another section is suggested."""
LIST_SETTINGS = "pfl-ops list settings"
"""The command that lists the settings that every experiment has."""


def nest(*changes: Mapping[str, Any]) -> Tree:
    """{"a.b": 1, "a": {"c": 2}} -> {"a": {"b": 1, "c": 2}}; a path given twice with two values is an error."""
    tree: Tree = {}
    for values in changes:
        _nest(tree, values, "")
    return tree


def _nest(tree: Tree, changes: Mapping[str, Any], prefix: str) -> None:
    for key, value in changes.items():
        if not isinstance(key, str) or not key.isprintable() or not 0 < len(key) <= LONGEST_NAME:
            raise PflOpsError(f"{prefix}{echo(repr(key))} is not the name of a setting")
        head, _, rest = key.partition(".")
        path = f"{prefix}{head}"
        if rest:
            value = {rest: value}
        elif isinstance(value, BaseModel):
            value = value.model_dump()
        elif isinstance(value, PathLike):
            value = fspath(value)
        there = tree.get(head)
        if isinstance(value, Mapping):
            if head in tree and not isinstance(there, dict):
                raise PflOpsError(f"{path} is given twice, as {show(there)} and as a section")
            _nest(tree.setdefault(head, {}), value, f"{path}.")
        elif head in tree and (isinstance(there, dict) or there != value):
            raise PflOpsError(
                f"{path} is given twice, as {'a section' if isinstance(there, dict) else show(there)} "
                f"and as {show(value)}"
            )
        else:
            tree[head] = value


def assign(root: type[Section], tree: Mapping[str, Any], changes: Mapping[str, Any], see: str = "") -> Tree:
    """A copy of `tree` with `changes` (nested) made. Tags first: a new kind drops the old one's fields but shared ones.

    Args:
        root: the section that `tree` describes.
        tree: nested values, complete or not.
        changes: nested values to set; "none" is None where a field allows it.
        see: a command that lists what there is, for messages.
    Raises:
        PflOpsError: a path that does not exist (with the nearest), or belongs to another kind (naming it).
    """
    return _assign(_Place(root, see, tree), root, tree, changes, "", None)


@dataclass(frozen=True)
class _Place:
    root: type[Section]
    see: str
    tree: Mapping[str, Any]


def _assign(
    place: _Place,
    here: Kinds | type[Section],
    tree: Mapping[str, Any],
    changes: Mapping[str, Any],
    prefix: str,
    kinds: Kinds | None,
) -> Tree:
    new = dict(tree)
    changes = dict(changes)
    if isinstance(here, Kinds):
        tag = changes.pop(here.tag, new.get(here.tag, here.default))
        path = f"{prefix}{here.tag}"
        if tag is None:
            raise PflOpsError(f"{path} is needed: {one_of(here.names())}")
        if not isinstance(tag, str):
            raise PflOpsError(f"{path} must be {one_of(here.names())}, got {show(tag)}")
        section = here.get(tag, path)
        if tag != new.get(here.tag):
            new = {here.tag: tag, **_stays(here, new, section)}
        return _assign(place, section, new, changes, prefix, here)
    for name, value in changes.items():
        info = here.model_fields.get(name)
        if info is None:
            raise _absent(place, here, new, f"{prefix}{name}", kinds, value)
        inside = node(info)
        if inside is None:
            new[name] = plain(info, value, f"{prefix}{name}")
        elif isinstance(value, Mapping):
            new[name] = _assign(place, inside, new.get(name) or {}, value, f"{prefix}{name}.", None)
        else:
            first = inside.tag if isinstance(inside, Kinds) else next(iter(inside.model_fields), "…")
            raise PflOpsError(
                f"{prefix}{name} is a section, set its fields (as {prefix}{name}.{first}); got {show(value)}"
            )
    return new


def _stays(kinds: Kinds, old: Mapping[str, Any], new: type[Section]) -> Tree:
    """The shared fields of the old kind: as they are where they were moved from its defaults, else as the new kind has
    them by default. These are stated too, or a weaker layer, as the method's recommendation, would fill them in."""
    before = kinds.get(old[kinds.tag]).model_fields if kinds.tag in old else {}

    def is_moved(name: str) -> bool:
        return name not in before or old[name] != before[name].get_default(call_default_factory=True)

    return {
        name: old[name] if is_moved(name) else new.model_fields[name].get_default(call_default_factory=True)
        for name in sorted(kinds.shared & old.keys())
        if is_moved(name) or not new.model_fields[name].is_required()
    }


def _absent(
    place: _Place, here: type[Section], tree: Mapping[str, Any], path: str, kinds: Kinds | None, value: Any
) -> PflOpsError:
    """The error for a field that does not exist here: it is another kind's, its path lacks the beginning (`gamma` is
    `algorithm.gamma`), or a slip of the pen."""
    prefix, _, name = path.rpartition(".")
    if kinds and (owners := kinds_with(kinds, name)):
        has = f"{prefix}.{kinds.tag} {', '.join(owners)} {'has' if len(owners) == 1 else 'have'} it"
        return PflOpsError(f"{prefix} '{tree.get(kinds.tag)}' has no {name}; {has}")
    paths = list(_paths(place.root, place.tree))
    ends = {other.rpartition(".")[2]: other for other in reversed(paths)}
    ends |= {field: f"{prefix}.{field}".lstrip(".") for field in here.model_fields}
    near = nearest(name, ends)
    if near and prefix and near not in here.model_fields and SequenceMatcher(None, name, near).ratio() < ALIKE:
        near = nearest(name, here.model_fields)  # in another section a name that is only a little like it is another
    close = ends[near] if near else None
    if isinstance(value, Mapping) and value and any(other.startswith(f"{close}.") for other in paths):
        close = f"{close}.{next(iter(value))}"
    hint = (
        f" Did you mean '{close}'?" if close else f" {prefix or 'An experiment'} has: {', '.join(here.model_fields)}."
    )
    see = _see(place, close or path)
    return PflOpsError(f"no setting named '{path}'.{hint}" + (f" ({see})" if see else ""))


def _see(place: _Place, path: str) -> str:
    """The command that lists a path: the method's `show`, that of a network or partition, or the list of the others."""
    section = path.partition(".")[0]
    if not place.see or section == "algorithm" or section not in place.root.model_fields:
        return place.see
    info = node(place.root.model_fields[section])
    if section in ("model", "partition") and isinstance(info, Kinds):
        tag = place.tree.get(section, {}).get(info.tag)
        return f"pfl-ops show {echo(tag)}" if tag else f"pfl-ops list {section}s"
    return LIST_SETTINGS


def _paths(here: Kinds | type[Section] | None, tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every path of a setting or a section, as the kinds of `tree` are."""
    if isinstance(here, Kinds):
        tag = tree.get(here.tag, here.default)
        here = here.get(tag) if tag in here.names() else None
    for name, info in here.model_fields.items() if here else ():
        inside, below = node(info), tree.get(name)
        yield f"{prefix}{name}"
        if inside is not None:
            yield from _paths(inside, below if isinstance(below, Mapping) else {}, f"{prefix}{name}.")


def explain(error: ValidationError, root: type[Section], tree: Mapping[str, Any], prefix: str = "") -> PflOpsError:
    """One line a problem: the path, its symbol, what is allowed, what was given.

    Args:
        error: what pydantic raised when `root` was built from `tree`.
        root: the section's class.
        tree: the nested values that it was built from.
        prefix: put before each path, with its dot; "--": paths are flags, with dashes.
    """
    lines: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        path, info = _find(root, tree, problem["loc"])
        path = (prefix + (path.replace("_", "-") if prefix == "--" else path)).rstrip(".")
        lines.setdefault(path, _line(path, info, problem))
    return PflOpsError("\n".join(lines.values()))


def _find(root: type[Section], tree: Any, loc: Sequence[int | str]) -> tuple[str, FieldInfo | None]:
    """The path that pydantic's `loc` means, and the field there (None: a section as a whole, or no field)."""
    here: Kinds | type[Section] = root
    path: list[str] = []
    info: FieldInfo | None = None
    for part in loc:
        if isinstance(here, Kinds):
            tag = tree.get(here.tag, here.default) if isinstance(tree, Mapping) else None
            if tag is None:
                break
            here = here.get(tag)
            if part == tag and part not in here.model_fields:  # a union's own step in `loc`
                continue
        path.append(str(part))
        info = here.model_fields.get(str(part))
        tree = tree.get(part, {}) if isinstance(tree, Mapping) else {}
        inside = node(info) if info else None
        if inside is None:
            return ".".join(path), info
        here, info = inside, None
    return ".".join(path), info


def _line(path: str, info: FieldInfo | None, problem: Mapping[str, Any]) -> str:
    kind = problem["type"]
    name = f"{path}{symbol(info)}"
    if kind == "missing":
        what = f": {AllowedValues.of(info)}" if info else ""
        return f"{name} is needed{what}"
    if kind == "extra_forbidden":
        return f"no setting named '{path}'"
    own = problem.get("ctx", {}).get("error")
    if isinstance(own, Exception):  # a section's own check, in its own words
        return f"{name}: {own}" if path else str(own)
    if info is None:
        return f"{name}: {problem['msg']}, got {show(problem['input'])}" if path else str(problem["msg"])
    allowed, given = AllowedValues.of(info), problem["input"]
    return f"{name} must be {allowed}, got {show(given)}{allowed.near(given)}"
