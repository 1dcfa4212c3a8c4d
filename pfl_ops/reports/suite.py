"""The report of a suite: its exhibits with our numbers beside the paper's, its claims, and what is behind them."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from pfl_ops.papers import PAPERS, Grid, Suite
from pfl_ops.reports import background, charts, layout, origins, verdicts
from pfl_ops.reports.document import Block, Document, Items, Section, Text
from pfl_ops.reports.ran import Ran


def suite_report(ran: Ran) -> Document:
    """A suite's page.

    ran = Ran(suite, "small", outcomes, chosen=names, stand_ins={}, problems={}, elsewhere={}, link=link)
    write(suite_report(ran), "reports/fliu/table1")
    """
    suite, found = ran.suite, origins.Origins(ran)
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    sections = (
        Section("", tuple(_first(ran))),
        *_exhibits(ran),
        Section("Claims", tuple(verdicts.blocks(ran))),
        Section("Departures from the paper", tuple(origins.departures(ran))),
        Section("Settings and their origins", tuple(origins.blocks(found))),
        Section("Settings as the paper states them", tuple(origins.settled(found)), folded=True),
        Section("Damaged or not measured", tuple(background.left_open(ran))),
        Section("Runs, machine and cost", tuple(background.cost(ran))),
        Section("Configurations", tuple(origins.configurations(ran)), folded=True),
    )
    return Document(
        name=f"{suite.name} · {ran.scale}",
        title=suite.title,
        subtitle=f"{PAPERS.get(suite.paper, suite.paper)}. {suite.source}",
        sections=tuple(section for section in sections if section.blocks),
        generated=f"{ran.command}, {now}",
        files=origins.files(ran),
    )


def _first(ran: Ran) -> Iterator[Block]:
    """What must be known before any number is read."""
    moved = {cell: data for cell, data in ran.stand_ins.items() if cell in ran.outcomes}
    if moved:
        data = ", ".join(sorted(set(moved.values())))
        count = "Every cell that was run" if len(moved) == len(ran.outcomes) else f"{cells(len(moved))} of these"
        yield Text(
            f"Stand-in data. {count} used {data} in place of the paper's data set, which is not here. Such numbers say "
            "that the experiment runs, and nothing about the paper: no difference is taken, no claim is judged.",
            "warning",
        )
    if ran.changes:
        every = len(ran.changed) == len(ran.suite.cells)
        where = "all cells" if every else f"{cells(len(ran.changed))}; the others lack the setting, or had this value"
        yield Text(
            f"Changed by --set: {ran.told}, in {where}. The numbers are those of the changed settings, and so are the "
            "verdicts on claims.",
            "warning",
        )
    if ran.scale == "smoke":
        yield Text(
            f"Scale smoke: a few rounds, clients and samples, n = {ran.n}. It shows that every experiment runs; its "
            "numbers are not those of the paper's setting: no difference is taken, no claim is judged.",
            "warning",
        )
    if networks := replaced(ran):
        rest = "All else but the changed settings" if ran.changes else "All else"
        yield Text(
            f"Scale {ran.scale} changes the network: {', '.join(networks)}. {rest} is as at full. Claims are "
            "decided for this network here, and count apart from those at full.",
            "warning",
        )
    yield Items(tuple(_items(ran)))


def replaced(ran: Ran) -> list[str]:
    """Return the networks that scale medium puts in place of those at full: "mlp in place of cnn"."""
    if ran.scale != "medium":
        return []
    changed = (of_cell.get("model.name") for of_cell in ran.differences.values())
    return sorted({f"{here} in place of {full}" for full, here in filter(None, changed)})


def _items(ran: Ran) -> Iterator[tuple[str, str]]:
    suite, size = ran.suite, ran.suite.scale(ran.scale)
    setting = {
        "full": "the paper's setting where it states one, else assumptions",
        "medium": "that of full, with another network where the paper's is too large for two CPU cores",
        "small": "reduced, see below",
        "smoke": "cut to seconds, see below",
    }
    theirs = f"the paper: {suite.papers_repetitions}" if suite.papers_repetitions else "the paper states none"
    yield "scale", f"{ran.scale}: {setting[ran.scale]}{f'. {size.note}' if size.note else ''}"
    yield "repetitions", f"{ran.n} ({theirs})"
    failed = sum(cell not in ran.outcomes for cell in ran.problems)
    parts = [f"{len(ran.outcomes)} of {len(suite.cells)} run"]
    parts += [f"{failed} failed"] if failed else []
    if ran.chosen is not None and len(ran.chosen) < len(suite.cells):
        parts.append(f"{len(ran.chosen)} chosen for this run")
    yield "cells", ", ".join(parts)
    if suite.claims:
        yield "claims in the paper's numbers", verdicts.count(verdicts.in_paper(ran)) or "none"
        yield (
            f"claims in ours{' under changed settings' * bool(ran.changes)}",
            verdicts.count(verdicts.in_ours(ran)) or "none",
        )
    if any(claim.derived for claim in suite.claims):
        papers, ours = (verdicts.count(of(ran, derived=True)) for of in (verdicts.in_paper, verdicts.in_ours))
        yield "derived claims, counted apart", f"in the paper's numbers {papers}; in ours {ours}"


def _exhibits(ran: Ran) -> Iterator[Section]:
    """Tables, then figures, in the suite's order; files are named after the suite."""
    tail = ran.suite.name.rpartition("/")[2]
    others = [exhibit for exhibit in ran.suite.exhibits if not isinstance(exhibit, Grid)]
    yield numbers(ran)
    drawn = [charts.pictures(ran, exhibit, _name(tail, i, others)) for i, exhibit in enumerate(others)]
    yield Section("Figures", tuple(block for blocks in drawn for block in blocks))


def numbers(ran: Ran) -> Section:
    """The tables of a suite, or that of its figures' numbers: ours, with the paper's and the difference."""
    tail = ran.suite.name.rpartition("/")[2]
    grids = [exhibit for exhibit in ran.suite.exhibits if isinstance(exhibit, Grid)] or _of_figure(ran.suite)
    return Section("Numbers", tuple(layout.table(ran, grid, _name(tail, i, grids)) for i, grid in enumerate(grids)))


def _of_figure(suite: Suite) -> list[Grid]:
    """Return the table of a suite that lists none: the numbers of its figures."""
    if not suite.measures:
        return []
    several = [axis for axis, levels in suite.axes.items() if len(levels) > 1] or [list(suite.axes)[-1]]
    return [Grid((several[-1],), (layout.MEASURE,), tuple(several[:-1]), caption=f"{suite.title}: numbers")]


def _name(tail: str, i: int, of: Sequence[object]) -> str:
    return f"{tail}-{i + 1}" if len(of) > 1 else tail


def cells(count: int) -> str:
    """1 cell, 2 cells."""
    return f"{count} cell{'s' * (count != 1)}"
