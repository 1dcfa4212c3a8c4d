"""`pfl-ops list` and `pfl-ops show`: what there is, in the words of the code itself."""

import ast
import importlib.util
import inspect
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from pfl_ops.cli.names import KINDS, every_name, known, registry_of
from pfl_ops.cli.output import out, say
from pfl_ops.cli.settings_table import ShownRow, rows_of, settings_rows, value_text
from pfl_ops.config.presets import preset, preset_rules, presets
from pfl_ops.errors import unknown
from pfl_ops.registry import definition

if TYPE_CHECKING:
    from pfl_ops.spaces import Space

GAP = 2  # columns between two columns of a table
LEAST_WORDS = 40  # columns that allowed values and the meaning of a setting need together


def show_list(kind: str) -> None:
    """Print the names of one kind of thing, each with a line on what it is."""
    if kind not in KINDS:
        raise unknown("kind of thing", kind, KINDS)
    if kind == "settings":
        _show_settings()
        return
    names = known(kind)
    width = max((len(name) for name in names), default=0)
    for name in names:
        say(out(), f"{name:<{width}}  {summary(kind, name)}")


def summary(kind: str, name: str) -> str:
    """One line on a thing. The package's own methods and networks are read, not imported: listing needs no torch."""
    if kind == "datasets":
        return describe_dataset(name)
    if kind == "presets":
        return presets()[name]
    if kind == "spaces":
        from pfl_ops.spaces import find

        return str(find(None, name))
    registry = registry_of(kind)
    module = registry.builtin.get(name)
    if module is not None and kind in ("algorithms", "models"):
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:
            return first_line(_docstring(Path(spec.origin), name))
    return first_line(inspect.getdoc(definition(registry.get(name))))


def _docstring(file: Path, name: str) -> str | None:
    """A module's; where it registers several things, that of each but the first is its class's."""
    module = ast.parse(file.read_text(encoding="utf-8"))
    registered = {
        ast.literal_eval(call.args[0]): thing
        for thing in module.body
        if isinstance(thing, ast.ClassDef)
        for call in thing.decorator_list
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "register"
    }
    return ast.get_docstring(module if name == next(iter(registered), name) else registered[name])


def first_line(text: str | None) -> str:
    """The first paragraph's first line."""
    return (text or "").strip().partition("\n")[0]


def describe_dataset(name: str) -> str:
    """Describe a named data set: its shape, classes and recommended network."""
    from pfl_ops.data.datasets import DATASETS

    info = DATASETS[name]
    return f"{info.about}; {' x '.join(map(str, info.shape))}, {info.n_classes} classes, network {info.model}"


def show_name(name: str) -> None:
    """Print everything that has this name: docstring, settings with symbol, default and range, search space."""
    found = [kind for kind in KINDS if name in known(kind)]
    if not found:
        raise unknown("thing", name, every_name(), see="pfl-ops list " + "|".join(KINDS))
    for kind in found:
        if kind in ("algorithms", "models", "partitions"):
            _show_section(kind, name)
        elif kind == "losses":
            _heading(name, "loss")
            say(out(), "\n" + (inspect.getdoc(registry_of(kind).get(name)) or ""))
        elif kind == "datasets":
            _heading(name, "data set")
            say(out(), describe_dataset(name))
        elif kind == "spaces":
            _show_space(name)
        elif kind == "presets":
            _show_preset(name)
        elif kind == "settings":
            _heading(name, "settings")
            _show_settings(name)
    if "algorithms" in found and "spaces" not in found:
        _show_space(name)


def _heading(name: str, kind: str) -> None:
    out().print(f"\n[bold]{name}[/bold]  ({kind})", highlight=False)


def _show_section(kind: str, name: str) -> None:
    singular = kind.removesuffix("s")
    section = registry_of(kind).get(name)
    _heading(name, singular)
    say(out(), "\n" + (inspect.getdoc(definition(section)) or "") + "\n")
    if rows := list(rows_of(section, f"{singular}.")):
        _print_settings(rows)
    for title, name in (("Recommended", "recommended"), ("Required", "requires")):
        if values := getattr(section, name, {}):
            say(out(), f"{title}: " + ", ".join(f"{path}={value_text(value)}" for path, value in values.items()))
    if ignored := getattr(section, "ignores", ()):
        say(out(), f"Without effect: {', '.join(ignored)}")
    if ignored := getattr(section, "ignores_with_all", ()):
        say(out(), f"Without effect if every client takes part: {', '.join(ignored)}")


def _print_settings(rows: list[ShownRow]) -> None:
    """Print settings as a table, or where its words would have no room each in lines of its own."""
    console = out()
    taken = sum(max(map(len, column)) + GAP for column in zip(*(row[:3] for row in rows), strict=True))
    kinds = max((len(row.when) for row in rows), default=0)
    if taken + (kinds + GAP if kinds else 0) + LEAST_WORDS <= console.width:
        console.print(_settings_table(rows))
        return
    for row in rows:
        of_kind = f"(of kind {row.when})" if row.when else ""
        say(console, "  ".join(filter(None, (row.path, row.symbol, row.default, of_kind))))
        for text in (row.meaning, str(row.allowed)):
            say(console, fill(text, console.width, initial_indent="    ", subsequent_indent="    "))


def _settings_table(rows: list[ShownRow]) -> Table:
    kinds = any(row.when for row in rows)
    table = Table(box=None, pad_edge=False)
    for title in ("setting", "symbol", "default", "allowed", *(["of kind"] if kinds else []), "meaning"):
        table.add_column(title, overflow="fold", no_wrap=title in ("setting", "symbol", "default"))
    for row in rows:
        cells = [row.path, row.symbol, row.default, str(row.allowed), *([row.when] if kinds else []), row.meaning]
        table.add_row(*map(Text, cells))
    return table


def _show_settings(name: str = "") -> None:
    """Print the settings of every experiment, or those that `name` names."""
    _print_settings(settings_rows(name))
    if not name:
        say(out(), "To change one: --set PATH=VALUE, or a file (--config). Further settings of a method, network or")
        say(out(), "partition, and the defaults that a method recommends: pfl-ops show NAME")


def _show_space(name: str) -> None:
    from pfl_ops.spaces import read

    space = read(None, name)
    out().print(f"\n[bold]search space[/bold]  ({space.source})", highlight=False)
    out().print(space_table(space))


def space_table(space: "Space") -> Table:
    """A search space: setting, range, condition."""
    table = Table(box=None, pad_edge=False)
    for title in ("setting", "range", "when"):
        table.add_column(title, overflow="fold")
    for p in space.parameters:
        values = ", ".join(map(value_text, p.choices)) if p.kind == "choice" else str(replace(p, when=()))
        conditions = "; ".join(f"{key} is {' or '.join(map(value_text, allowed))}" for key, allowed in p.when)
        table.add_row(*map(Text, (p.key, values, conditions)))
    return table


def _show_preset(name: str) -> None:
    _heading(name, "preset")
    say(out(), presets()[name], *(f"  {path}={value_text(value)}" for path, value in preset(name, {}).items()))
    if rules := preset_rules(name):
        say(out(), "in their place, or beside them:")
    for given, added in rules:
        where, new = (
            ", ".join(f"{path}={value_text(value)}" for path, value in part.items()) for part in (given, added)
        )
        say(out(), f"  {where}: {new}")
