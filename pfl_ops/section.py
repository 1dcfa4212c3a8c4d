"""Sections of an experiment: frozen pydantic models, and how a plain function becomes one.

`Section` is the base of everything that stands in an experiment's YAML file. `options` turns a function's keyword-only
parameters into a section, so that a partition or a network states each option once, where it is used.
"""

import inspect
import json
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from pfl_ops.errors import PflOpsError

MOST_COUNT = 1_000_000  # of rounds, steps, clients, ...: more is a slip of the pen, and would run for ever
MOST_SEED = 2**32 - 1
SEED_OFFSET = 1000  # of the new seeds of a confirmation, from the experiment's; those of trials and tests are below


def check_last_seed(seed: int, number: int, of: str, offset: int = 0) -> None:
    """Refuse a seed from which the last of several is no seed.

    Args:
        number: of the seeds seed + offset, seed + offset + 1, ... of: what has them.

    Raises:
        PflOpsError: the last one is above `MOST_SEED`.
    """
    if number > 0 and seed + offset + number - 1 > MOST_SEED:
        highest = MOST_SEED - offset - number + 1
        raise PflOpsError(f"seed must be <= {highest} with {number} {of} (seeds are at most {MOST_SEED}), got {seed}")


class Section(BaseModel):
    """A frozen part of an experiment; unknown fields are errors, defaults are checked, NaN is refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False, protected_namespaces=()
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Refuse a field that `plain_values` would leave out; that does so if a field's class is defined later."""
        if cls.__pydantic_complete__:
            _check_whole(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        raise PflOpsError(
            f"'{name}' is not changed in place; experiment.override({{PATH: value}}) returns another experiment, as in "
            "override({'training.lr': 0.1})"
        )


@cache
def _check_whole(section: type[Section]) -> None:
    """Refuse a field that `plain_values` would leave out: runs with all its values would have one hash.

    Raises:
        PflOpsError: the section, or a model in a field of it, has such a field.
    """
    for name in _left_out(section.__pydantic_core_schema__, section.__name__, ""):
        raise PflOpsError(f"{name} must have neither exclude nor exclude_if: a run's hash has each setting")


def _left_out(schema: Any, owner: str, name: str) -> Iterator[str]:
    """Yield the fields of a section, and of the models in its fields, that have no place in their plain values.

    Args:
        schema: pydantic's, or a part of it. owner, name: the class and the field to which the part belongs.
    """
    if isinstance(schema, Mapping):
        owner = getattr(schema.get("cls"), "__name__", owner)
        if schema.get("serialization_exclude") or schema.get("serialization_exclude_if"):
            yield f"{owner}.{schema.get('name', name)}"
        for key, part in schema.items():
            if key not in ("metadata", "default"):
                yield from _left_out(part, owner, key)
    elif isinstance(schema, list):
        for part in schema:
            yield from _left_out(part, owner, name)


def plain_values(section: Section) -> dict[str, Any]:
    """Return every value of a section as JSON has them; those of a set in the order of their texts.

    Python's own order of a set of texts is another one in each process.

    >>> class Parts(Section):
    ...     of: frozenset[str]
    >>> plain_values(Parts(of=["b", "c", "a"]))
    {'of': ['a', 'b', 'c']}
    """
    for part in (section, *vars(section).values()):
        if isinstance(part, Section):
            _check_whole(type(part))
    tree: dict[str, Any] = _sorted_sets(section.model_dump(mode="json"), section.model_dump())
    return tree


def _sorted_sets(tree: Any, values: Any) -> Any:
    """The same JSON, with sorted lists where `values`, of which it was made, have sets."""
    if isinstance(values, set | frozenset) and isinstance(tree, list):
        return sorted(tree, key=json.dumps)
    if isinstance(values, Mapping) and isinstance(tree, dict) and len(values) == len(tree):
        return {name: _sorted_sets(tree[name], value) for name, value in zip(tree, values.values(), strict=True)}
    if isinstance(values, list | tuple) and isinstance(tree, list) and len(values) == len(tree):
        return [_sorted_sets(one, value) for one, value in zip(tree, values, strict=True)]
    return tree


def options(
    function: Callable[..., Any], name: str, base: type[Section] = Section, skip: Collection[str] = ()
) -> type[Section]:
    """A section whose fields are the keyword-only parameters of `function`.

    Args:
        function: a function or class; annotations may be `Annotated[type, Field(...)]` with bounds, title (the paper's
            symbol) and description.
        name: the section's class name.
        base: the section that it extends.
        skip: parameters that are not options (a generator, say).
    """
    call = function.__init__ if inspect.isclass(function) else function
    hints = typing.get_type_hints(call, include_extras=True)
    bare = [p.name for p in inspect.signature(call).parameters.values() if p.kind is p.KEYWORD_ONLY]
    bare = [option for option in bare if option not in skip and option not in hints]
    if bare:
        raise PflOpsError(f"{function.__name__}: option '{bare[0]}' needs a type, as in `{bare[0]}: float = 1.0`")
    fields: dict[str, Any] = {
        p.name: (hints[p.name], ... if p.default is p.empty else p.default)
        for p in inspect.signature(call).parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.name not in skip
    }
    return create_model(name, __base__=base, __doc__=inspect.getdoc(function), **fields)
