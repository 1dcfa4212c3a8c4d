"""The report of a suite: its exhibits with our numbers beside the paper's, its claims, and what is behind them."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from pfl_ops.errors import count
from pfl_ops.papers import TITLES, Grid, Suite
from pfl_ops.papers.suite_run import SuiteRun
from pfl_ops.reports.pages.document import Document, ItemList, PageBlock, PageSection, Text
from pfl_ops.reports.suites import background, charts, layout, order, origins, verdicts


def suite_report(run: SuiteRun) -> Document:
    """A suite's page.

    run = SuiteRun(suite, "small", outcomes, chosen=names, stand_ins={}, problems={}, elsewhere={}, link=link)
    write(suite_report(run), "reports/fliu/table1")
    """
    suite, found = run.suite, origins.Origins(run)
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    sections = (
        PageSection("", tuple(_first(run))),
        *_exhibits(run),
        PageSection("Order", tuple(order.blocks(run))),
        PageSection("Claims", tuple(verdicts.blocks(run))),
        PageSection("Departures from the paper", tuple(origins.departures(run))),
        PageSection("Settings and their origins", tuple(origins.blocks(found))),
        PageSection("Settings as the paper states them", tuple(origins.settled(found)), folded=True),
        PageSection("Damaged or not measured", tuple(background.left_open(run))),
        PageSection("Runs, machine and cost", tuple(background.cost(run))),
        PageSection("Configurations", tuple(origins.configurations(run)), folded=True),
    )
    return Document(
        name=f"{suite.name} · {run.scale}",
        title=suite.title,
        subtitle=f"{TITLES.get(suite.paper, suite.paper)}. {suite.source}",
        sections=tuple(section for section in sections if section.blocks),
        generated=f"{run.command}, {now}",
        files=origins.files(run),
    )


def _first(run: SuiteRun) -> Iterator[PageBlock]:
    """Return what must be known before any number is read."""
    moved = {cell: data for cell, data in run.stand_ins.items() if cell in run.outcomes}
    if moved:
        data = ", ".join(sorted(set(moved.values())))
        which = (
            "Every cell that was run" if len(moved) == len(run.outcomes) else f"{count(len(moved), 'cell')} of these"
        )
        yield Text.warning(
            f"Substitute data. {which} used {data} in place of the paper's data set, which is not here. Such numbers "
            "say that the experiment runs, and nothing about the paper: no difference is taken, no claim is judged."
        )
    if run.suite.choices:
        yield Text.warning(
            f"Settings that the paper does not state are those of the file {run.suite.choices}; how they were chosen "
            "stands below. The numbers are those of these settings, and so are the verdicts on claims."
        )
    if run.changes:
        there = [cell in run.changed for cell in run.outcomes]
        some = f"{sum(there)} of {len(there)} cells that were run; the others lack the setting, or had this value"
        where = "all cells that were run" if all(there) else some
        yield Text.warning(
            f"Changed by --set: {run.changes_in_words}, in {where}. The numbers are those of the changed settings, and "
            "so are the verdicts on claims."
        )
    if run.scale == "smoke":
        yield Text.warning(
            f"Scale smoke: a few rounds, clients and samples, n = {run.n}. It shows that every experiment runs; its "
            "numbers are not those of the paper's setting: no difference is taken, no claim is judged."
        )
    if networks := replaced(run):
        rest = "All else but the changed settings" if run.changes else "All else"
        yield Text.warning(
            f"Scale {run.scale} changes the network: {', '.join(networks)}. {rest} is as at full. Claims are "
            "decided for this network here, and count apart from those at full."
        )
    yield from diverged(run)
    yield ItemList(tuple(_items(run)))


def diverged(run: SuiteRun) -> Iterator[PageBlock]:
    """Return a warning with the repetitions that diverged, a line a cell; nothing if none did."""
    told = tuple(
        f"{cell}: {run.lost(cell)}: {'; '.join(f'seed {seed} {how}' for seed, how in sorted(lost.items()))}"
        for cell, lost in run.diverged.items()
    )
    if told:
        changed = f", with {run.changes_in_words}" if run.changes else ""
        yield Text.warning(
            f"Training diverged in {count(len(told), 'cell')}{changed}. The mean of the other repetitions is too good: "
            "such a cell is not marked as the best, and has no place in an order of methods."
        )
        yield ItemList(tuple(("", line) for line in told))


def replaced(run: SuiteRun) -> list[str]:
    """Return the networks that scale medium puts in place of those at full: "mlp in place of cnn"."""
    if run.scale != "medium":
        return []
    names = (of_cell.get("model.name") for of_cell in run.differences.values())
    frozen = {name for name, of_cell in run.differences.items() if "model.pretrained" in of_cell}
    backbones = {run.suite.experiment(run.suite.cell(name)).model.name for name in frozen}
    return sorted(
        {f"{here} in place of {full}" for full, here in filter(None, names)}
        | {f"{name} with a backbone of random weights in place of a trained one" for name in backbones}
    )


def _items(run: SuiteRun) -> Iterator[tuple[str, str]]:
    suite, size = run.suite, run.suite.scale(run.scale)
    setting = {
        "full": "the paper's setting where it states one, else assumptions",
        "medium": "that of full, with another network where the paper's is too large for two CPU cores",
        "small": "reduced, see below" if run.reduced else "that of full",
        "smoke": "cut to seconds, see below",
    }
    theirs = f"the paper: {suite.papers_repetitions}" if suite.papers_repetitions else "the paper states none"
    yield "scale", f"{run.scale}: {setting[run.scale]}{f'. {size.note}' if size.note else ''}"
    yield "repetitions", f"{run.n} ({theirs}){f'; {run.uncounted_in_words}' if run.uncounted else ''}"
    partly = sum(bool(lost) and cell in run.outcomes for cell, lost in run.diverged.items())
    parts = [f"{len(run.outcomes)} of {len(suite.cells)} run"]
    parts += [f"{run.n_failed} failed"] if run.n_failed else []
    parts += [f"{partly} with diverged repetitions"] if partly else []
    if run.chosen is not None and len(run.chosen) < len(suite.cells):
        parts.append(f"{len(run.chosen)} chosen for this run")
    yield "cells", ", ".join(parts)
    if suite.claims:
        yield "claims in the paper's numbers", verdicts.count(verdicts.in_paper(run)) or "none"
        yield (
            f"claims in ours{' under changed settings' * bool(run.changes)}",
            verdicts.count(verdicts.in_ours(run)) or "none",
        )
    if any(claim.derived for claim in suite.claims):
        papers, ours = (verdicts.count(of(run, derived=True)) for of in (verdicts.in_paper, verdicts.in_ours))
        yield "derived claims, counted apart", f"in the paper's numbers {papers}; in ours {ours}"


def _exhibits(run: SuiteRun) -> Iterator[PageSection]:
    """Tables, then figures, in the suite's order; files are named after the suite."""
    tail = run.suite.name.rpartition("/")[2]
    others = [exhibit for exhibit in run.suite.exhibits if not isinstance(exhibit, Grid)]
    yield numbers(run)
    drawn = [charts.pictures(run, exhibit, _name(tail, i, others)) for i, exhibit in enumerate(others)]
    yield PageSection("Figures", tuple(block for blocks in drawn for block in blocks))


def numbers(run: SuiteRun) -> PageSection:
    """The tables of a suite, or that of its figures' numbers: ours, with the paper's and the difference."""
    tail = run.suite.name.rpartition("/")[2]
    grids = [exhibit for exhibit in run.suite.exhibits if isinstance(exhibit, Grid)] or _of_figure(run.suite)
    tables = (layout.TableLayout(run, grid).table(_name(tail, i, grids)) for i, grid in enumerate(grids))
    return PageSection("Numbers", tuple(tables))


def _of_figure(suite: Suite) -> list[Grid]:
    """Return the table of a suite that lists none: the numbers of its figures."""
    if not suite.measures:
        return []
    several = [axis for axis, levels in suite.axes.items() if len(levels) > 1] or [list(suite.axes)[-1]]
    return [Grid((several[-1],), (layout.MEASURE,), tuple(several[:-1]), caption=f"{suite.title}: numbers")]


def _name(tail: str, i: int, of: Sequence[object]) -> str:
    return f"{tail}-{i + 1}" if len(of) > 1 else tail
