"""Markdown pages of the results that are kept in files: one of each suite, and one with all claims."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pfl_ops.errors import count
from pfl_ops.files import write_named
from pfl_ops.papers import PUBLIC, SCALES, TITLES, Suite
from pfl_ops.papers.results_files import COMMIT, TORCH, file_name
from pfl_ops.papers.suite_run import SuiteRun
from pfl_ops.reports.pages.document import Document, PageBlock, PageSection, Row, Table, TableCell, Text
from pfl_ops.reports.pages.markdown import to_markdown
from pfl_ops.reports.suites import order, verdicts
from pfl_ops.reports.suites.sensitivity import sensitivity
from pfl_ops.reports.suites.suite import diverged, numbers, replaced

OVERVIEW = "README.md"
DECIDED = ("holds", "does not hold")
COLUMNS = (
    "As claimed: comparisons whose means are as claimed, which is counted and not tested. e: anytime-valid evidence "
    "for and against the whole claim. n: seeds that all cells of a comparison have; 21 to 34: some have more. Seeds to "
    "decide: those that a decision took, or would take if the seeds to come were as those so far; none: differences "
    "that are the same in every seed decide nothing."
)
"""The tables of claims, in words."""
COLUMN_NOTE = (
    " Each column is a family of claims of its own, and counts nowhere else; cells that a change leaves as they are "
    "have the unchanged runs there."
)
REDUCED = ("smoke", "small")
"""Scales at which most suites are smaller than in the paper."""
AT_REDUCED = "a verdict is about that setting, and is no verdict on the paper."
FEWER, OTHERWISE = (
    "At small there are fewer clients, samples or rounds than in the paper",
    "At small some settings are not the paper's",
)
"""Of the package's suites, and of a user's own, which say themselves what small changes."""
ASSUMED = (
    "A value that a paper does not state is our assumption, at every scale. The page of a suite names these settings: "
    "its verdicts are about our values of them."
)
NOT_NAMED = ("evaluation.", "repetitions", "seed")
"""Starts of the paths of settings that are no part of what is trained: the scoring and the seeds."""
IN_PART = (
    "1 of 4 run: of a claim with four instances one was run, and n is of its cells. Such a claim may be decided: one "
    "instance refutes what is said of all."
)


def write(folder: str | Path, found: Sequence[SuiteRun], all_suites: Sequence[Suite]) -> Path:
    """Write the page of each suite in a folder and the page of all claims, FOLDER/README.md.

    Args:
        found: what the folder's files have. all_suites: those whose claims are counted.
    Returns:
        the page of all claims.
    Raises:
        PflOpsError: a page can't be written.
    """
    pages = []
    for suite, scale in {(one.suite.name, one.scale): (one.suite, one.scale) for one in found}.values():
        of = [one for one in found if (one.suite.name, one.scale) == (suite.name, scale)]
        as_it_is = next((one for one in of if not one.changes), SuiteRun(suite, scale, {}))
        page = suite_page(as_it_is, [one for one in of if one.changes])
        write_named(Path(folder, f"{file_name(suite, scale)}.md"), to_markdown(page))
        pages.append(as_it_is)
    return write_named(Path(folder, OVERVIEW), to_markdown(overview(pages, all_suites)))


def suite_page(run: SuiteRun, changed: Sequence[SuiteRun] = ()) -> Document:
    """The numbers and the claims of a suite, and its claims under changed settings."""
    suite = run.suite
    sections = (
        PageSection("", tuple(_first(run))),
        PageSection("Numbers", tuple(numbers(run).blocks)),
        PageSection("Order", tuple(order.blocks(run))),
        PageSection("Claims", tuple(verdicts.blocks(run))),
        PageSection("Changed settings", tuple(_changed(run, changed))),
    )
    return Document(
        name=file_name(suite, run.scale),
        title=f"{suite.title}: {suite.name} at {run.scale}",
        subtitle=f"{TITLES.get(suite.paper, suite.paper)}. {suite.source}",
        sections=tuple(section for section in sections if section.blocks),
    )


def overview(found: Sequence[SuiteRun], all_suites: Sequence[Suite]) -> Document:
    """All claims that were judged, a line each, and the number of those that were not."""
    return Document(
        name="results",
        title="Do the claims hold?" if all(one.file for one in all_suites) else "Do the five papers' claims hold?",
        subtitle=(
            "Suites whose results are kept in the files beside this page, which `pfl-ops reproduce SUITE --scale SCALE "
            "--results FOLDER` writes. Every number and verdict here is made from these files."
        ),
        sections=(
            PageSection("", tuple(_counts(found, all_suites))),
            *_main(found, all_suites),
            PageSection("Suites", (_suites([one for one in found if one.suite.paper not in PUBLIC]),)),
            *_public([one for one in found if one.suite.paper in PUBLIC]),
            *_claims([one for one in found if one.suite.claims and one.outcomes]),
        ),
    )


def _first(run: SuiteRun) -> Iterator[PageBlock]:
    """Notes on the data and networks of the numbers."""
    suite = run.suite
    if networks := replaced(run):
        yield Text.warning(
            f"Scale {run.scale} changes the network: {', '.join(networks)}. Claims are decided for this network here."
        )
    if _is_reduced(run):
        note = suite.scale(run.scale).note.removesuffix(".")
        what = f"changes the paper's setting{f': {note}' if note else ''}"
        yield Text.warning(f"Scale {run.scale} {what}. Claims are decided for this setting here.")
    yield from _outdated(run.outdated)
    yield from diverged(run)
    each = [outcome for of_cell in run.outcomes.values() for outcome in of_cell]
    if not each:
        return
    commits = sorted({one.tags[COMMIT] for one in each} - {""})
    torch = sorted({one.tags[TORCH] for one in each} - {""})
    by = f", computed by {' and '.join(f'`{one}`' for one in commits)}" if commits else ""
    under = f" with PyTorch {' and '.join(torch)}" if torch else ""
    of = f"{count(len(run.outcomes), 'cell')} (the suite has {len(run.suite.cells)})"
    yield Text(
        f"{count(len(each), 'run')} of {of}{by}{under}: `{file_name(run.suite, run.scale)}.csv`. Settings, "
        f"departures from the paper and figures are on the page that `{run.command}` writes."
    )
    if paths := _assumptions(run):
        yield Text(
            f"The paper states no value of {count(len(paths), 'setting')} of these cells. Their values are assumptions "
            f"of ours: {', '.join(f'`{path}`' for path in paths)}."
        )


def _assumptions(run: SuiteRun) -> list[str]:
    """Return the paths of the settings of a run's cells whose value at full the paper does not state."""
    found = {
        path
        for name in run.outcomes
        for path, source in run.suite.sources_of(run.suite.cell(name)).items()
        if source and source.kind == "assumption" and not path.startswith(NOT_NAMED)
    }
    return sorted(found)


def _outdated(runs: int) -> Iterator[PageBlock]:
    if runs:
        yield Text.warning(
            f"{count(runs, 'run')} of other settings, data or code than the suite has here, or of numbers in another "
            "unit or of another round: left out."
        )


def _changed(run: SuiteRun, changed: Sequence[SuiteRun]) -> Iterator[PageBlock]:
    """The claims under changed settings, a column each change; of a suite without claims its numbers."""
    if not changed:
        return
    runs = sum(len(each) for one in changed for cell, each in one.outcomes.items() if cell in one.changed)
    yield Text(
        f"{count(runs, 'run')} with settings changed by `--set` in all cells that have them: "
        f"`{file_name(run.suite, run.scale, changed=True)}.csv`.{COLUMN_NOTE * bool(run.suite.claims)}"
    )
    yield from _outdated(sum(one.outdated for one in changed))
    for one in changed:
        yield from diverged(one)
        yield from verdicts.warnings(one)
    if run.suite.claims:
        columns = [(one.changes_in_words, verdicts.standings(one)) for one in (run, *changed)]
        yield sensitivity(run.suite.name, run.scale, columns)
        return
    for i, one in enumerate(changed):
        yield Text(f"With {one.changes_in_words}:")
        tables = [block for block in numbers(one).blocks if isinstance(block, Table)]
        yield from (replace(table, name=f"{table.name}-changed-{i + 1}") for table in tables)


def _counts(found: Sequence[SuiteRun], all_suites: Sequence[Suite]) -> Iterator[PageBlock]:
    """The number of claims by verdict, scale and origin."""
    rows: list[Row] = []
    judged: set[tuple[str, str]] = set()
    unjudged: set[tuple[str, str]] = set()
    in_part: set[tuple[str, str]] = set()
    groups: dict[tuple[str, bool], Counter[str]] = {}
    for one in found:
        where = _scale(one)
        for claim in verdicts.standings(one):
            if claim.ours == "not judged":
                unjudged.add((one.suite.name, claim.text))
            if claim.ours in ("not run", "not judged"):
                continue
            if _in_part(claim):
                in_part.add((one.suite.name, claim.text))
                continue
            groups.setdefault((where, claim.derived), Counter())[claim.ours] += 1
            judged.add((one.suite.name, claim.text))
    for (where, derived), counts in groups.items():
        kind = "derived claims" if derived else "claims of the papers"
        rows.append(Row.of(where, kind, *(counts[status] for status in (*DECIDED, "undecided"))))
    total = sum(len(suite.claims) for suite in all_suites)
    only_run, parts = len(unjudged - judged), len(in_part - judged - unjudged)
    apart = f" {only_run} more were run and not judged, for the reasons given below;" if only_run else ""
    apart += f" of {parts} more a part of the cells was run, which decides nothing yet;" if parts else ""
    yield Text(
        f"The suites have {total} claims, derived ones among them. {len(judged)} were judged in runs that are kept "
        f"here;{apart} of the other {total - len(judged) - only_run - parts} nothing is known."
    )
    heads = ("scale", "", "hold", "do not hold", "undecided")
    notes: tuple[str, ...] = ("Derived: worked out from the paper's numbers, or with a threshold of ours.", ASSUMED)
    if reduced := [one for one in found if _is_reduced(one)]:
        notes += (f"{OTHERWISE if all(one.suite.file for one in reduced) else FEWER}: {AT_REDUCED}",)
    if rows:
        yield Table.of("counts", "Claims in our numbers", heads, rows, notes, titles=2)


def _scale(run: SuiteRun) -> str:
    return f"{run.scale}, another network" if replaced(run) else run.scale


def _is_reduced(run: SuiteRun) -> bool:
    """True if its claims are decided for a smaller setting than the paper's."""
    return run.scale in REDUCED and bool(run.suite.claims) and run.reduced


def _in_part(claim: verdicts.ClaimSummary) -> bool:
    """True if a part of its cells was run, which decides nothing yet."""
    return claim.not_run > 0 and claim.ours not in DECIDED


def _main(found: Sequence[SuiteRun], all_suites: Sequence[Suite]) -> Iterator[PageSection]:
    """The papers' main claims, a line each."""
    rows = []
    mixed: dict[str, str] = {}  # names of suites that compare cells under different optimisers
    for suite in all_suites:
        of_suite = [one for one in found if one.suite.name == suite.name]
        runs = [SuiteRun(suite, "full", {}), *sorted(of_suite, key=lambda one: SCALES.index(one.scale))]
        for each in zip(*map(verdicts.standings, runs), strict=True):
            if each[0].main:
                run, claim = max(zip(runs, each, strict=True), key=lambda pair: _known(*pair))
                rows.append(_main_claim(run, claim))
                if run.optimisers:
                    assumed = any(any(of.values()) for of in run.optimisers.values())
                    mixed[suite.name] = ", some of them our assumption" * assumed
    heads = ("suite", "shows", "claim", "in the paper's numbers", "in ours", "scale", "n", "e for", "e against")
    if rows:
        yield PageSection("Main claims", (
            Text(
                "Those that the abstract or the conclusion of a paper says of what it proposes, at the largest scale "
                "at which they were judged. e and n: as in the tables of all claims below."
            ),
            Table.of("main", "Main claims, a line each", heads, rows, (
                f"{name} compares cells under different optimisers{whose}, which may be what differs: see the warning "
                "at its claims below." for name, whose in mixed.items()
            )),
        ))  # fmt: skip


def _known(run: SuiteRun, claim: verdicts.ClaimSummary) -> tuple[int, int]:
    """Order of runs of a suite by what they say of a claim: judged, in part, not judged, not run; then by scale."""
    place = {"not run": 0, "not judged": 1}.get(claim.ours, 2 if _in_part(claim) else 3)
    return place, SCALES.index(run.scale)


def _main_claim(run: SuiteRun, claim: verdicts.ClaimSummary) -> Row:
    page = f"{file_name(run.suite, run.scale)}.md" if run.outcomes else ""
    return Row.of(
        TableCell(run.suite.name, link=page), run.suite.title, *_first_entries(claim),
        _scale(run) if run.outcomes else "–", *_evidence(claim),
    )  # fmt: skip


def _public(found: Sequence[SuiteRun]) -> Iterator[PageSection]:
    """The public tables of which there are results; they have no claims."""
    if found:
        said = (
            "Numbers that others have published of methods that are here: beside the five papers, and without claims."
        )
        yield PageSection("Public tables", (Text(said), replace(_suites(found), name="public")))


def _suites(found: Sequence[SuiteRun]) -> Table:
    """The suites of which there are results, each with a link to its page."""
    rows = []
    for one in found:
        counts = [len(each) for each in one.outcomes.values()]
        cells = f"{len(counts)} of {len(one.suite.cells)}"
        seeds = f"{min(counts)} to {max(counts)}" if len(set(counts)) > 1 else "".join(map(str, counts[:1]))
        page = f"{file_name(one.suite, one.scale)}.md"
        entries = (one.suite.title, one.scale, cells, f"{sum(counts):,}", seeds)
        rows.append(Row.of(TableCell(one.suite.name, link=page), *entries))
    return Table.of("suites", "Numbers, by suite", ("suite", "shows", "scale", "cells", "runs", "seeds a cell"), rows)


def _claims(found: Sequence[SuiteRun]) -> Iterator[PageSection]:
    """The claims of each suite, after what their tables' columns mean."""
    standings = [verdicts.standings(one) for one in found]
    if found:
        in_part = any(claim.n and claim.not_run for each in standings for claim in each)
        yield PageSection("Claims", tuple(map(Text, (COLUMNS, *[IN_PART] * in_part))))
    for run, each in zip(found, standings, strict=True):
        table = _claim_table(run, each)
        yield PageSection(f"{run.suite.title} ({run.suite.name})", (*verdicts.warnings(run), table))


def _claim_table(run: SuiteRun, standings: Sequence[verdicts.ClaimSummary]) -> Table:
    """The claims of a suite, a line each."""
    rows = []
    for claim in standings:
        seeds = TableCell(claim.seeds_in_words, claim.seeds)
        rows.append(Row.of(*_first_entries(claim), claim.agrees or "–", *_evidence(claim), seeds))
    heads = ("claim", "in the paper's numbers", "in ours", "as claimed", "n", "e for", "e against", "seeds to decide")
    return Table.of(f"claims-{file_name(run.suite, run.scale)}", f"{run.suite.name} at {run.scale}", heads, rows)


def _first_entries(claim: verdicts.ClaimSummary) -> tuple[TableCell, ...]:
    """A claim, and how it stands in the paper's numbers and in ours."""
    text, mark = verdicts.STANDINGS[claim.ours]
    said = f"{claim.text}{' (derived)' * claim.derived}"
    return TableCell(said), TableCell(claim.paper), TableCell(text, mark=mark)


def _evidence(claim: verdicts.ClaimSummary) -> tuple[TableCell, ...]:
    """The number of seeds, and the e-values for and against it."""
    if not claim.n:
        return (TableCell("–"),) * 3
    es = (TableCell(verdicts.number(e), e) for e in (claim.supporting, claim.opposing))
    return TableCell(claim.n_in_words, claim.n), *es
