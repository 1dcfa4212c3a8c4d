"""A comparison on the terminal: a table for each group, on a narrow terminal with fewer columns."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pfl_ops.cli.output import print_whole, say
from pfl_ops.comparison import Line
from pfl_ops.metric_keys import is_neutral
from pfl_ops.reports.comparison import compared
from pfl_ops.reports.comparison.compared import size_of
from pfl_ops.reports.comparison.compared_notes import best_notes, p_notes, scored_notes
from pfl_ops.reports.comparison.comparison_data import TEST_DESCRIPTIONS, ComparisonData, Group
from pfl_ops.reports.numbers import HEADINGS, order_text, title_of

WIDEST_NAME, NARROW_NAMES = 44, (24, 16, 10)  # columns of a line's name; a longer one is broken
LESS = ("train seconds", "received MiB", "sent MiB", "best round", "best", "last", "worst client %")
MORE = ("Acc(G) %", "Acc(L) %")
LAST = ("rounds to", "p", "n")
"""Columns, by the beginning of their names, in the order in which they go if there is no room.

Without `LESS` names become narrow, before a column of `MORE` goes, and as narrow as they can be before one of `LAST`
goes: p and n say how sure an order is.
"""
LONGER = ("best", "last", "rounds to")  # beginnings of names that end in a metric
FOLDED = 240  # characters of a group's notes, or of a remark; longer ones are cut, unless --notes is given
FEW_LINES = 12  # in a table with more lines, a line's other stages are left to the page


def show(comparison: ComparisonData, console: Console, remarks: Console | None = None, notes: bool = False) -> None:
    """Print a table for each group and the notes on it; on a narrow terminal with fewer columns, which are named.

    Args:
        remarks: where notes go; None: nowhere. notes: print them in full.
    """
    remarks = remarks or Console(quiet=True)
    there = list(dict.fromkeys(name for group in comparison.groups for name in _columns(comparison, group)))
    dropped, tables = _fitting(comparison, console, there)
    at = "last round" if comparison.at == "final" else "best round of each run"
    console.print(f"{size_of(comparison)}, {at}, {order_text(comparison.metric)}", style="bold", highlight=False)
    for group, table in zip(comparison.groups, tables, strict=True):
        print_whole(console, table, _width(console, table))
        say(remarks, *_group_remarks(comparison, group, notes))
    say(remarks, *(x if notes or len(x) <= FOLDED else f"{x[: FOLDED - 4]} ..." for x in comparison.remarks))
    foldable = (*comparison.remarks, *("".join(group.complaints) for group in comparison.groups))
    if not notes and any(len(text) > FOLDED for text in foldable):
        say(remarks, "--notes prints these notes in full")
    if dropped:
        say(console, f"no room for: {', '.join(dropped)}")
    say(console, *_footnotes(comparison, [name for name in there if name not in dropped]))


def _group_remarks(c: ComparisonData, group: Group, notes: bool) -> Iterator[str]:
    """The reservations about a group's comparison; long ones are folded, unless notes are printed in full."""
    several = len(c.groups) > 1
    whole = notes or len("".join(group.complaints)) <= FOLDED
    for line in group.complaints if whole else [compared.folded(group.complaints)]:
        yield f"not a fair comparison{f' ({group.title})' if several else ''}: {line}"
    for line in scored_notes(group):
        yield f"{group.title}: {line}" if several else line


def _footnotes(c: ComparisonData, columns: Sequence[str]) -> Iterator[str]:
    """Explanations of the columns that are shown."""
    if c.at == "best" or any(name.startswith(("best ", "best/", "last ")) for name in columns):
        yield from _by_group(c, best_notes)
    tested = any(line.difference and line.difference.p is not None for line in c.lines)
    if tested and "p" in columns:
        yield f"p: {TEST_DESCRIPTIONS[c.test]}, corrected for all pairs (Holm)"
    if is_neutral(c.metric):  # the same note for all groups
        yield from p_notes(c, c.groups[0])
    elif "p" in columns:
        for group in c.groups:
            yield from (f"{group.title}: {note}" if len(c.groups) > 1 else note for note in p_notes(c, group))


def _by_group(c: ComparisonData, notes: Callable[[ComparisonData, Group], Iterable[str]]) -> Iterator[str]:
    """Notes on the groups: one that all groups have once, another one with its group's title if there are several."""
    told = {group.title: tuple(notes(c, group)) for group in c.groups}
    common = [note for note in dict.fromkeys(sum(told.values(), ())) if all(note in some for some in told.values())]
    yield from common
    for title, some in told.items():
        yield from (f"{title}: {note}" for note in some if note not in common)


def _fitting(c: ComparisonData, console: Console, names: list[str]) -> tuple[list[str], list[Table]]:
    """Return the columns that are left out, as few as the terminal's width allows, and a table for each group.

    Args:
        names: headings of all groups.
    """
    deciding = {title_of(group.metric) for group in c.groups}
    less, more, last = (
        [
            name
            for start in starts
            for name in names
            if (name == start or (start in LONGER and name.startswith(f"{start} ") and name != "best round"))
            and name not in deciding
        ]
        for starts in (LESS, MORE, LAST)
    )
    tries = [(less[:n], WIDEST_NAME) for n in range(len(less) + 1)]
    tries += [(less + more[:n], NARROW_NAMES[0]) for n in range(len(more) + 1)]
    tries += [(less + more + last[:n], width) for n in range(len(last) + 1) for width in NARROW_NAMES[bool(n) :]]
    for dropped, name_width in tries:
        tables = [_table(c, group, dropped, name_width) for group in c.groups]
        if all(_width(console, table) <= console.width for table in tables):
            break
    return dropped, tables


def _width(console: Console, table: Table) -> int:
    """Return the number of columns that a table takes if there is room."""
    return console.measure(table, options=console.options.update(max_width=1000)).maximum


def _columns(c: ComparisonData, group: Group) -> list[str]:
    """Headings from the left."""
    results, costs = compared.headings(c, group)
    return ["setting", *results, *costs]


def _table(c: ComparisonData, group: Group, dropped: list[str], name_width: int = WIDEST_NAME) -> Table:
    """A row a line, and below it one for each other stage that was scored; settings stand under the name."""
    shown = [name for name in _columns(c, group) if name not in dropped]
    table = Table(title=escape(f"{group.title}: {group.size}"), title_justify="left", title_style="bold", box=None)
    table.pad_edge = False
    for name in shown:
        if name == "setting":
            table.add_column(name, min_width=10, max_width=name_width, overflow="fold")
        else:
            heading = escape(_in_two_lines(name))
            table.add_column(heading, justify="left" if name == "stage" else "right", no_wrap=True)
    for line in group.lines:
        for i, cells in enumerate(_rows(c, group, line, name_width)):
            table.add_row(*(cells.get(name, "") for name in shown), style="dim" if i else None)
    return table


def _in_two_lines(name: str) -> str:
    """A long heading with a line break at the space nearest to its middle."""
    spaces = [i for i, letter in enumerate(name) if letter == " " and name[i + 1 :] != "%"]
    if len(name) < 12 or not spaces:
        return name
    at = min(spaces, key=lambda i: abs(i - len(name) / 2))
    return f"{name[:at]}\n{name[at + 1 :]}"


def _broken(settings: str, width: int) -> str:
    """Settings with line breaks behind their commas, so that a name and its value stay in one line of that width."""
    lines = [""]
    for part in settings.split(", "):
        joined = f"{lines[-1]}, {part}" if lines[-1] else part
        if len(joined) < width or not lines[-1]:
            lines[-1] = joined
        else:
            lines[-1] += ","
            lines.append(part)
    return "\n".join(lines)


def _rows(c: ComparisonData, group: Group, line: Line, name_width: int) -> Iterator[dict[str, str]]:
    """The cells of a line by heading: first in its own stage, then in the others."""
    first = {name: cell.text for name, cell in compared.cells(c, group, line).items()}
    first |= {"setting": escape(line.label)} | ({} if line.difference else {"p": ""})
    yield first
    others = [stage for stage in line.stages if stage != line.stage] if len(group.lines) <= FEW_LINES else []
    for i, stage in enumerate(others or [""] * bool(line.settings)):
        cells = {name: compared.text_of(line, f"{stage}/{metric}", c.at) for name, metric in HEADINGS.items() if stage}
        yield cells | {"stage": stage, "setting": "" if i else escape(_broken(line.settings, name_width))}
