"""A suite's claims, judged in the paper's own numbers and in ours."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pfl_ops.papers import Claim, Instance, Verdict
from pfl_ops.papers.conditions import CellNumber
from pfl_ops.papers.evidence import FARTHEST
from pfl_ops.papers.suite_run import OPTIMISER, SuiteRun
from pfl_ops.reports.pages.document import Mark, PageBlock, Row, Table, TableCell, Text

STANDINGS: Mapping[str, tuple[str, Mark]] = {
    "holds": ("✓ holds", "good"),
    "does not hold": ("✗ does not hold", "bad"),
    "undecided": ("? undecided", "open"),
    "not run": ("– not run", "muted"),
    "not judged": ("– not judged", "muted"),
    "not printed": ("– not printed", "muted"),
}
"""The states of a claim, in words and with a sign that needs no colour."""

TITLES = {False: "Claims of the paper", True: "Derived from its numbers, or with a threshold of ours: counted apart"}
"""By `Claim.derived`."""

HOW = (
    "In the paper's numbers: as printed. In ours: by an anytime-valid test of paired differences, e, so that seeds may "
    "be added after a look; a seed that a cell lacks ends the test there. For and against all claims of the suite are "
    "one family (Holm): if differences are normal, none of its decisions is wrong with 95 % probability. A claim about "
    "several cells holds if "
    "that is shown of all of them, or of as many as it says; each counts once. The numbers are means over seeds; "
    "how many of several are as claimed is counted and not tested."
)


def blocks(run: SuiteRun) -> Iterator[PageBlock]:
    """The table of claims."""
    if not run.suite.claims:
        return
    if run.scale == "smoke":
        yield Text("At scale smoke no claim is judged.", "note")
    elif set(run.stand_ins) & set(run.outcomes):
        yield Text("Claims about cells that ran on substitute data are not judged.", "note")
    yield from warnings(run)
    rows: list[Row] = []
    for derived, title in TITLES.items():
        of = [one for one in run.judged if one[0].derived == derived]
        if of and any(claim.derived for claim in run.suite.claims):
            rows.append(Row(title=title, kind="block"))
        rows += [
            Row.of(
                TableCell(claim.text, below=(claim.remark,) if claim.remark else (), more=(f"`{claim.says}`",)),
                _entry(paper, "not printed"),
                _entry(ours, "not run", _without(run, claim)),
            )
            for claim, paper, ours in of
        ]
    heads = ("claim", "in the paper's numbers", "in ours, settings changed" if run.changes else "in ours")
    changed = f"; ours are judged under changed settings: {run.changes_in_words}" if run.changes else ""
    yield Table.of("claims", f"Sentences that can be true or false of numbers{changed}", heads, rows, [HOW])


def warnings(run: SuiteRun) -> Iterator[Text]:
    """Warnings beside every table of verdicts: dead networks, S-acc. of own data alone, optimisers that differ."""
    if run.scale == "smoke":
        return
    yield from _one_answer(run)
    for key, n_clients in sorted({(number.key, n_clients) for number, n_clients in run.own_alone.items()}):
        yield Text.warning(
            f"{run.suite.measure(key).title} joins no other client's test data to a client's own: of {n_clients} "
            "clients there are too few for so small a share. It is the accuracy on own data, and claims about it are "
            "not judged."
        )
    if run.optimisers:
        each = "; ".join(f"{name} ({_assumed(cells)})" for name, cells in run.optimisers.items())
        yield Text.warning(
            f"Some claims compare cells under different optimisers{_given(run)}: {each}. What differs between them may "
            f"be the optimiser's doing; `--set {OPTIMISER}=...` runs all under one, at the rates that they have."
        )


def _given(run: SuiteRun) -> str:
    return f", with {run.changes_in_words}" if run.changes else ""


def _assumed(cells: Mapping[str, bool]) -> str:
    """Names of cells, and of how many the optimiser is our assumption."""
    assumed = sum(cells.values())
    by = "" if not assumed else ", our assumption" if assumed == len(cells) else f", our assumption in {assumed}"
    return ", ".join(cells) + by


def _one_answer(run: SuiteRun) -> Iterator[Text]:
    """A warning about networks that give one answer to all inputs, if there are any; see `SuiteRun.one_answer`."""
    if run.one_answer:
        cells = ", ".join(f"{cell} ({one})" for cell, one in run.one_answer.items())
        whose = "in every seed" if all(one.seeds == one.of for one in run.one_answer.values()) else "in these seeds"
        yield Text.warning(
            f"Networks that give one answer to all inputs{_given(run)}: {cells}. Their accuracy on pooled data is "
            f"exactly the same {whose}, the share of one class. Training failed under these settings, so claims about "
            f"these cells are not judged{_but_untrained(run)}, and no mean of theirs is the best."
        )


def _but_untrained(run: SuiteRun) -> str:
    """The exception to that, if the suite has claims that training fails."""
    of = run.suite.labels, run.suite.names
    about = any(claim.untrained and claim.cells(*of) & set(run.one_answer) for claim in run.suite.claims)
    return " (but those that say that training fails there)" if about else ""


@dataclass(frozen=True)
class ClaimSummary:
    """A claim in a line.

    Attributes:
        text, derived, main: of the claim. paper, ours: its status in the paper's numbers and in ours.
        n: seeds that all cells of an instance have, the least of the instances that were run; 0: none was. most: the
            largest of these.
        supporting, opposing: the largest e-values for and against it.
        seeds: number that the decision took, or would take; None: not known.
        agrees: instances whose means are as claimed, which is counted and not tested: "3 of 4"; "": not run.
        instances: number of instances. not_run: number of those without a common seed. ended: True if training diverged
            in one, from which seed on none counts. equal: True if differences that it needs are the same in every seed,
            which decides nothing.
    """

    text: str
    derived: bool
    paper: str
    ours: str
    n: int = 0
    supporting: float = 1.0
    opposing: float = 1.0
    seeds: int | None = None
    agrees: str = ""
    instances: int = 0
    not_run: int = 0
    most: int = 0
    main: bool = False
    ended: bool = False
    equal: bool = False

    @property
    def n_in_words(self) -> str:
        """The number of seeds, "21 to 34" where instances differ; of a claim that was run in part with the instances
        that have them: "10 (1 of 4 run)"."""
        part = f" ({self.instances - self.not_run} of {self.instances} run)" if self.n and self.not_run else ""
        return f"{self.n}{f' to {self.most}' if self.most > self.n else ''}{part}"

    @property
    def seeds_in_words(self) -> str:
        """The seeds that a decision took, or would take: "11", "about 24", "more than 1,000", "none"; "–": not known,
        or training diverged before. One seed has no spread to go by."""
        if self.ours in ("holds", "does not hold"):
            return str(self.seeds)
        if self.seeds is not None and max(self.n, self.most) > 1:
            return f"about {self.seeds}"
        if self.ours != "undecided" or self.n < 2 or self.not_run or self.ended:
            return "–"
        return "none" if self.equal else f"more than {FARTHEST:,}"


def standings(run: SuiteRun) -> list[ClaimSummary]:
    """Return how each claim stands, in the suite's order."""
    return [_summary(*judged) for judged in run.judged]


def _summary(claim: Claim, paper: Verdict, ours: Verdict | None) -> ClaimSummary:
    if ours is None:
        return ClaimSummary(claim.text, claim.derived, _in_paper(paper), _in_ours(ours), main=claim.main)
    seeds = [one.evidence.n for one in ours.instances if one.agrees is not None]
    n, not_run = min(seeds, default=0), len(ours.instances) - len(seeds)
    stand = _in_paper(paper), _in_ours(ours), n, *ours.evidence.largest, ours.seeds, _agreeing(ours)
    return ClaimSummary(
        claim.text, claim.derived, *stand, len(ours.instances),
        not_run=not_run, most=max(seeds, default=0), main=claim.main,
        ended=any(one.most is not None for one in ours.instances),
        equal=any(one.equal for one in ours.instances),
    )  # fmt: skip


def _agreeing(verdict: Verdict) -> str:
    count = sum(one.agrees is not None for one in verdict.instances)
    return f"{verdict.agreeing} of {count}" if count else ""


def _in_paper(verdict: Verdict) -> str:
    return "not printed" if verdict.status == "not run" else verdict.status


def _in_ours(verdict: Verdict | None) -> str:
    return "not judged" if verdict is None else verdict.status


def in_paper(run: SuiteRun, *, derived: bool = False) -> list[str]:
    """Return how each claim of the paper stands in the paper's own numbers; `derived`: each derived one."""
    return [_in_paper(paper) for claim, paper, _ in run.judged if claim.derived == derived]


def in_ours(run: SuiteRun, *, derived: bool = False) -> list[str]:
    """Return how each claim of the paper stands in ours; `derived`: each derived one."""
    return [_in_ours(ours) for claim, _, ours in run.judged if claim.derived == derived]


def count(standings: Sequence[str]) -> str:
    """4 hold, 2 do not hold, 1 undecided"""
    plural = {"holds": "hold", "does not hold": "do not hold"}
    counted = Counter(standings)
    return ", ".join(f"{counted[s]} {plural.get(s, s) if counted[s] > 1 else s}" for s in STANDINGS if counted[s])


def _without(run: SuiteRun, claim: Claim) -> tuple[str, ...]:
    """Reasons for which a claim may lack numbers although its cells were run: diverged repetitions, no such number."""
    numbers = sorted(claim.numbers(run.suite.labels, run.suite.names), key=lambda one: (one.cell, one.key))
    lost = dict.fromkeys(f"{one.cell}: {run.lost(one.cell)}" for one in numbers if run.lost(one.cell))
    lacking = (one for one in numbers if run.outcomes.get(one.cell) and not _has(run, one))
    return (*lost, *(f"{one.cell} has no {one.key}" for one in lacking))


def _has(run: SuiteRun, number: CellNumber) -> bool:
    return bool(run.values(number.cell, run.suite.measure(number.key)))


def _entry(verdict: Verdict | None, absent: str, without: tuple[str, ...] = ()) -> TableCell:
    if verdict is None:
        text, mark = STANDINGS["not judged"]
        return TableCell(text, mark=mark)
    text, mark = STANDINGS[absent if verdict.status == "not run" else verdict.status]
    decision = (told,) if (told := standing(verdict)) else ()
    if len(verdict.instances) == 1 or verdict.status == "not run":
        detail = verdict.instances[0].detail if verdict.instances else ""
        if any(one.unpaired for one in verdict.instances):
            without = without or ("no common seed",)
        return TableCell(text, mark=mark, below=((detail, *decision) if detail else without))
    count = verdict.count.replace("not run", absent)
    least = f"; claimed for {verdict.least}" if verdict.least < len(verdict.instances) else ""
    below = (f"as claimed in {count}{least}", *decision)
    return TableCell(text, mark=mark, below=below, more=tuple(_instance(one, absent) for one in verdict.instances))


def standing(verdict: Verdict) -> str:
    """Return the evidence on a claim in ours, and the seeds that its decision took or would take; "": there is none.

    An e-value below 1 is no evidence.
    """
    if verdict.exact or verdict.status == "not run":
        return ""
    supporting, opposing = verdict.evidence.largest
    seeds = verdict.seeds
    if verdict.status == "holds":
        return f"e = {number(supporting)}, decided after {seeds} seeds"
    if verdict.status == "does not hold":
        return f"e = {number(opposing)} against it, decided after {seeds} seeds"
    least = min(verdict.needed)
    es = f"e = {number(supporting, least)} for it, {number(opposing, least)} against it"
    needed = f"{es}; {number(least)} needed"
    at = [one.where for one in verdict.instances if one.most is not None]
    if verdict.evidence.n < 2 and not at:
        return needed
    lacking = sum(one.agrees is None for one in verdict.instances)
    if lacking and not seeds:
        return f"{needed}; {lacking} of {len(verdict.instances)} instances have no common seed"
    if not seeds and at:
        where = f" at {', '.join(at)}" * (len(verdict.instances) > 1)
        return f"{needed}; training diverged with a seed{where}, from which on none counts"
    if not seeds and any(one.equal for one in verdict.instances):
        return f"{needed}; differences that are the same in every seed decide nothing"
    return needed + (f", about {seeds} seeds" if seeds else f", more than {FARTHEST:,} seeds")


def number(e: float, needed: float = math.inf) -> str:
    """Return an e-value with two digits, or as whole number from 10 on; one below `needed` is not rounded up to it.

    >>> number(9.44), number(119.7), number(119.7, needed=120), number(120.2, needed=120)
    ('9.4', '120', '119', '120')
    """
    whole = math.floor(e) if e < needed <= round(e) else e
    return f"{whole:,.0f}" if 10 <= e < 1e6 else f"{e:.2g}"


def _instance(one: Instance, absent: str) -> str:
    if one.agrees is None:
        return f"{one.where}: {'no common seed' if one.unpaired else absent}"
    agrees = "" if one.agrees else ", not as claimed"
    if not one.comparisons:
        return f"{one.where}: {one.detail}{agrees}"
    supporting, opposing = one.evidence.largest
    e = f"e = {number(supporting)}" if one.agrees else f"e = {number(opposing)} against it"
    return f"{one.where}: {one.detail}{agrees}, {e}"
