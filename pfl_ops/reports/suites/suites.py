"""The reports of all suites in one folder, and the page that leads to them."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from pydantic import TypeAdapter

from pfl_ops.federation.loop.estimate import duration
from pfl_ops.files import alone_in, write_named
from pfl_ops.papers import SCALES, TITLES
from pfl_ops.papers.suite_run import SuiteRun
from pfl_ops.reports.pages.document import Document, Head, Mark, PageSection, Row, Table, TableCell, Text
from pfl_ops.reports.pages.write import write
from pfl_ops.reports.suites import verdicts
from pfl_ops.reports.suites.sensitivity import sensitivity
from pfl_ops.reports.suites.suite import replaced, suite_report

FILE = "summary.json"
LONGEST_FOLDER = 80  # characters of a report's folder that is named after changed settings
DECIDED = ("holds", "does not hold")
COLUMNS: Sequence[tuple[str, Mark]] = (("holds", "good"), ("does not hold", "bad"), ("undecided", "open"))


@dataclass(frozen=True)
class SuiteSummary:
    """A suite's report in a few numbers.

    Attributes:
        suite, title, scale: which. cells: finished. of: all that need a run. failed: could not be run.
        paper, ours: how many claims of the paper stand how, in the paper's numbers and in ours.
        stand_ins: data sets that took the place of others. seconds: that its runs took.
        written: when.
        derived: how many derived claims stand how in our numbers; a report of an earlier version counts them in `ours`.
        networks: those that scale medium put in place of the paper's.
        changes: what the user gave it: ("choices=kmnist.yaml", "training.lr=0.05"). Claims are judged under it.
        standings: each claim in a line; a report of an earlier version has none.
        warnings: texts of the warnings about claims.
    """

    suite: str
    title: str
    scale: str
    cells: int
    of: int
    failed: int
    paper: Mapping[str, int]
    ours: Mapping[str, int]
    stand_ins: Sequence[str]
    seconds: float
    written: str
    derived: Mapping[str, int] = field(default_factory=dict)
    networks: Sequence[str] = ()
    changes: Sequence[str] = ()
    standings: Sequence[verdicts.ClaimSummary] = ()
    warnings: Sequence[str] = ()

    @staticmethod
    def of_run(run: SuiteRun) -> "SuiteSummary":
        """Of what a report would show."""
        each = [outcome.seconds for found in run.outcomes.values() for outcome in found]
        return SuiteSummary(
            suite=run.suite.name,
            title=run.suite.title,
            scale=run.scale,
            cells=len(run.outcomes),
            of=len(run.suite.cells) if run.suite.measures else 0,
            failed=run.n_failed,
            paper=dict(Counter(verdicts.in_paper(run))),
            ours=dict(Counter(verdicts.in_ours(run))),
            stand_ins=sorted({data for cell, data in run.stand_ins.items() if cell in run.outcomes}),
            seconds=sum(seconds for seconds in each if not math.isnan(seconds)),
            written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            derived=dict(Counter(verdicts.in_ours(run, derived=True))),
            networks=replaced(run),
            changes=run.altered,
            standings=verdicts.standings(run),
            warnings=[warning.text for warning in verdicts.warnings(run)],
        )

    @property
    def run(self) -> str:
        """The number of cells that were run: 8 of 40; a picture of a partition needs no run."""
        return f"{self.cells} of {self.of}" if self.of else "–"

    @property
    def metrics(self) -> dict[str, float]:
        """Names and values for MLflow: suite/cells, suite/claims_holds, suite/derived_holds, …"""
        stand = {
            f"suite/{kind}_{name.replace(' ', '_')}": float(count)
            for kind, counts in (("claims", self.ours), ("derived", self.derived))
            for name, count in counts.items()
        }
        return {"suite/cells": float(self.cells), "suite/cells_failed": float(self.failed), **stand}


def keep(run: SuiteRun, folder: str | Path) -> Path:
    """Write a suite's report to `folder`/<suite>, and the page of all reports that are in `folder`.

    A report of a larger scale is not replaced: beside it, the smaller one goes to `folder`/<suite>/<scale>. One with
    settings that the user changed goes to a folder of its own there, named after them. Another process that keeps a
    report in `folder` is waited for: the page of all reports names both.

    Returns:
        the folder that the report is in.
    Raises:
        PflOpsError: it can't be written.
    """
    report = suite_report(run)
    with alone_in(folder):
        place = Path(folder, run.suite.name)
        before = _summary(place / FILE)
        if run.altered:
            place = place / changed_folder(run)
        elif before is not None and SCALES.index(before.scale) > SCALES.index(run.scale):
            place = place / run.scale
        write(report, place)
        write_named(place / FILE, json.dumps(asdict(SuiteSummary.of_run(run)), indent=1))
        write(overview(found(folder), smaller(folder), changed(folder)), folder)
    return place


def changed_folder(run: SuiteRun) -> str:
    """Return the name of the folder of a report with changed settings: "full-training.lr=0.05"."""
    text = f"{run.scale}-{','.join(run.altered)}"
    plain = re.sub(r"[^A-Za-z0-9._=,+-]", "_", text)
    if plain == text and len(text) <= LONGEST_FOLDER:
        return text
    return f"{plain[:LONGEST_FOLDER]}-{sha256(text.encode()).hexdigest()[:8]}"


def found(folder: str | Path) -> list[SuiteSummary]:
    """Of every report in a folder, in the papers' order; one that can't be read is passed over."""
    return list(_read(folder, "*/*").values())


def smaller(folder: str | Path) -> list[SuiteSummary]:
    """Return the summaries of the reports that stand beside those of a larger scale."""
    return [summary for summary in _read(folder, "*/*/*").values() if not summary.changes]


def changed(folder: str | Path) -> dict[str, SuiteSummary]:
    """Return the summaries of the reports with changed settings by their place below the folder."""
    return {place: summary for place, summary in _read(folder, "*/*/*").items() if summary.changes}


def _read(folder: str | Path, places: str) -> dict[str, SuiteSummary]:
    """The summaries that can be read, by their place below the folder, in the papers' order."""
    paths = {path.parent.relative_to(folder).as_posix(): path for path in Path(folder).glob(f"{places}/{FILE}")}
    read = {place: one for place, path in paths.items() if (one := _summary(path)) is not None}
    return dict(sorted(read.items(), key=lambda item: (_order(item[1]), item[0])))


def _summary(path: Path) -> SuiteSummary | None:
    try:
        summary = TypeAdapter(SuiteSummary).validate_python(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return summary if summary.scale in SCALES else None


def overview(
    summaries: Sequence[SuiteSummary],
    beside: Sequence[SuiteSummary] = (),
    changed: Mapping[str, SuiteSummary] | None = None,
) -> Document:
    """The page that leads to every suite's, as `<suite>/index.html` beside it.

    Args:
        summaries: of every suite, at the largest scale that was run. beside: of smaller scales, for the counts.
        changed: place below the folder -> summary of a report with changed settings, counted apart.
    """
    blocks: list[Table | Text] = []
    moved = [summary.suite for summary in summaries if summary.stand_ins]
    if moved:
        blocks.append(
            Text.warning(f"Substitute data in {', '.join(moved)}: their numbers say nothing about the papers.")
        )
    if summaries:
        blocks.append(_table(summaries))
        blocks.append(_by_scale([*summaries, *beside]))
    elif not changed:
        blocks.append(Text("No suite has been run yet: `pfl-ops reproduce --list` names them."))
    if changed:
        blocks.append(_of_changed(changed))
        blocks += _sensitivity([*summaries, *beside], changed)
    return Document(
        name="reports",
        title="Published experiments, run again",
        subtitle="Every suite that was run here, with the paper's claims about it",
        sections=(PageSection("", tuple(blocks)),),
        generated=max((summary.written for summary in summaries), default=""),
    )


def _table(summaries: Sequence[SuiteSummary]) -> Table:
    rows: list[Row] = []
    paper = ""
    for summary in summaries:
        name = summary.suite.partition("/")[0]
        if name != paper:
            rows.append(Row(title=TITLES.get(name, name), kind="block"))
            paper = name
        rows.append(Row(tuple(_entries(summary))))
    claims = tuple(Head(text) for text in ("hold", "do not", "open"))
    head = (
        (Head(""), Head(""), Head(""), Head(""), Head("claims: the paper's", 3),
         Head("claims: ours", 4), Head(""), Head("")),
        (Head("suite"), Head("shows"), Head("scale"), Head("cells run"), *claims, *claims, Head("not judged"),
         Head("derived"), Head("computing")),
    )  # fmt: skip
    note = (
        "Open: undecided; in the paper's numbers: not printed. Not judged: not run, on substitute data, or about "
        "networks that give one answer to all inputs. Derived: claims worked out from the paper's numbers or with a "
        "threshold of ours, as many as are decided in ours."
    )
    return Table(
        "suites", "Cells that were run, and claims: in the paper's own numbers, and in ours", head, tuple(rows), (note,)
    )


def _of_changed(changed: Mapping[str, SuiteSummary]) -> Table:
    """The reports with settings that the user changed: their claims, beside those with other changes."""
    rows = [
        Row.of(
            TableCell(one.suite, link=f"{place}/index.html"), ", ".join(one.changes), one.scale,
            TableCell(one.run, one.cells), *_counts(one.ours), *_counts(one.derived),
        )
        for place, one in changed.items()
    ]  # fmt: skip
    counts = tuple(Head(text) for text in ("hold", "do not", "open"))
    head = (
        (Head(""), Head(""), Head(""), Head(""), Head("claims: ours", 3), Head("derived: ours", 3)),
        (Head("suite"), Head("changed"), Head("scale"), Head("cells run"), *counts, *counts),
    )
    note = "Claims are judged under the changed settings, and count in no other table."
    return Table("changed", "Changed settings", head, tuple(rows), (note,))


def _sensitivity(unchanged: Sequence[SuiteSummary], changed: Mapping[str, SuiteSummary]) -> Iterator[Table | Text]:
    """A table for each suite and scale with changed settings: its claims, a column for each change; its warnings."""
    for suite, scale in dict.fromkeys((one.suite, one.scale) for one in changed.values() if one.standings):
        plain = [one for one in unchanged if (one.suite, one.scale) == (suite, scale)][:1]
        columns = [*plain, *(one for one in changed.values() if (one.suite, one.scale) == (suite, scale))]
        yield from (Text.warning(f"{suite} at {scale}: {warning}") for one in columns for warning in one.warnings)
        yield sensitivity(suite, scale, [(", ".join(one.changes), one.standings) for one in columns])


def _entries(summary: SuiteSummary) -> Iterator[TableCell]:
    yield TableCell(summary.suite, link=f"{summary.suite}/index.html")
    yield TableCell(summary.title)
    below = ("substitute data",) if summary.stand_ins else ()
    yield TableCell(summary.scale, below=(*below, *(("another network",) if summary.networks else ())))
    failed = (f"{summary.failed} failed",) if summary.failed else ()
    yield TableCell(summary.run, summary.cells, below=failed)
    yield from _counts(summary.paper, "not printed")
    yield from _counts(summary.ours)
    yield _absent(summary.ours)
    decided, derived = sum(summary.derived.get(name, 0) for name in DECIDED), sum(summary.derived.values())
    yield TableCell(f"{decided} of {derived}" if derived else "·", decided, mark="" if decided else "muted")
    yield TableCell(duration(summary.seconds), summary.seconds)


def _by_scale(summaries: Sequence[SuiteSummary]) -> Table:
    """The counts of claims in our numbers, apart by scale, by network and by origin."""
    kinds = (("claims of the papers", lambda one: one.ours), ("derived claims", lambda one: one.derived))
    rows = []
    for scale in reversed(SCALES):
        for network in (False, True):
            of = [one for one in summaries if one.scale == scale and bool(one.networks) == network]
            for title, standings in kinds:
                counts = sum((Counter(standings(one)) for one in of), Counter[str]())
                if counts:
                    where = f"{scale}, another network" if network else scale
                    rows.append(Row.of(where, title, *_counts(counts), _absent(counts)))
    columns = ("scale", "", "hold", "do not", "open", "not judged")
    note = "A suite that was run at several scales counts at each. Scale medium decides for other networks."
    return Table.of("decided", "Claims in our numbers, by scale", columns, rows, [note])


def _counts(standings: Mapping[str, int], more: str = "") -> Iterator[TableCell]:
    for standing, mark in COLUMNS:
        count = standings.get(standing, 0) + (standings.get(more, 0) if standing == "undecided" else 0)
        yield TableCell(str(count or "·"), count, mark=mark if count else "muted")


def _absent(standings: Mapping[str, int]) -> TableCell:
    """The number of claims that were not judged."""
    absent = standings.get("not run", 0) + standings.get("not judged", 0)
    return TableCell(str(absent or "·"), absent, mark="muted")


def _order(summary: SuiteSummary) -> tuple[tuple[int, str], bool, list[tuple[int, str]]]:
    """Papers in their order; of each the tables first, then by number."""
    paper, _, exhibit = summary.suite.partition("/")
    places = list(TITLES)
    parts = re.findall(r"(\d+)|(\D+)", exhibit)
    key = [(int(number or 0), text) for number, text in parts]
    place = (places.index(paper), "") if paper in places else (len(places), paper)
    return place, not exhibit.startswith("table"), key
