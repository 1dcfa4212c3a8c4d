"""The end of `pfl-ops reproduce` on the terminal: runs, claims and problems of each suite."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pfl_ops.cli.output import out, say
from pfl_ops.cli.terminal_tables import plain_table
from pfl_ops.errors import PflOpsError, by_key, count
from pfl_ops.papers import all_suites, results_files
from pfl_ops.papers.default_plan import KEPT, LARGER
from pfl_ops.reports.suites import verdicts
from pfl_ops.reports.suites.suite import replaced
from pfl_ops.reports.suites.verdicts import number

if TYPE_CHECKING:
    from rich.table import Table

    from pfl_ops.reports.suites.suites import SuiteSummary
    from pfl_ops.tuning.suites.cells import Reproduced

MOST_CLAIMS = 40  # that are listed one by one
STATUSES = ("holds", "does not hold", "undecided", "not run", "not judged")


def show_results(
    done: "list[Reproduced]", summaries: "list[SuiteSummary]", folder: Path, planned: bool, data_dir: str | None
) -> None:
    """Print the runs and claims of each suite, the problems, and where the reports are.

    Args:
        done: suites, in the order of the plan. summaries: their reports'; a suite without one is left out.
        folder: of the reports. planned: by the call without names and scale. data_dir: where the data lie.
    """
    console = out()
    order = [one.suite.name for one in done]
    summaries = sorted(summaries, key=lambda summary: order.index(summary.suite))
    console.print(_suites_table(summaries))
    say(console, *totals(summaries))
    if changes := sorted({one for summary in summaries for one in summary.changes}):
        named = ", ".join(one.suite for one in summaries if one.changes)
        say(console, f"judged under changed settings: {', '.join(changes)}{f' ({named})' if planned else ''}")
    say(console, *(line for one in done for line in problem_lines(one.suite.name, one.problems)))
    say(console, *(f"{one.suite.name}: {one.uncounted_in_words}" for one in done if one.uncounted))
    if moved := sorted({data for summary in summaries for data in summary.stand_ins}):
        say(
            console,
            f"substitute data: {', '.join(moved)} for data sets that are not here; claims about them are not judged",
        )
    _show_claims(summaries)
    if planned:
        _show_kept(KEPT, data_dir)
        say(console, f"\n{LARGER}")
    if summaries:
        say(console, f"\nreports: {folder}/index.html")


def problem_lines(suite: str, problems: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each reason why cells of a suite have no run.

    >>> list(problem_lines("fliu/table1", {"path/local": "no such data", "path/fliu": "no such data"}))
    ['fliu/table1 path/local, path/fliu: no such data']
    """
    for reason, names in by_key((reason, cell) for cell, reason in problems.items()).items():
        yield f"{suite} {', '.join(names)}: {reason}"


def _suites_table(summaries: "list[SuiteSummary]") -> "Table":
    """The cells and claims of each suite, counted."""
    numbers = ("cells run", "failed", "claims hold", "do not", "undecided", "not run", "not judged", "derived")
    table = plain_table("suite", numbers=numbers, no_wrap=("suite",))
    for summary in summaries:
        stand = [summary.ours.get(status, 0) for status in STATUSES]
        counts = (str(n or "·") for n in (summary.failed, *stand))
        table.add_row(summary.suite, summary.run, *counts, _decided(summary.derived))
    return table


def _show_claims(summaries: "list[SuiteSummary]") -> None:
    """Print each claim that was judged, in a line; nothing where they are more than MOST_CLAIMS."""
    judged = [
        (one, claim)
        for one in summaries
        for claim in one.standings
        if claim.ours not in ("not judged", "not run")
    ]  # fmt: skip
    if not 0 < len(judged) <= MOST_CLAIMS:
        return
    words = ("suite", "claim", "in the paper's numbers", "in ours")
    table = plain_table(*words, numbers=("n", "e for", "e against", "seeds to decide"), no_wrap=("suite",))
    for one, claim in judged:
        text = f"{claim.text}{' (derived)' * claim.derived}"
        evidence = (number(claim.supporting), number(claim.opposing))
        table.add_row(one.suite, text, claim.paper, claim.ours, claim.n_in_words, *evidence, claim.seeds_in_words)
    out().print()
    out().print(table)


def _show_kept(folder: Path, data_dir: str | None) -> None:
    """Print what is known from the results files that come with the sources, a line a suite; nothing without files."""
    try:
        found = [one for one in results_files.read(folder, all_suites(), data_dir) if not one.changes]
    except PflOpsError as error:
        say(out(), f"\nthe results in {folder} can't be shown: {error}")
        return
    kept = [one for one in found if one.outcomes]
    if outdated := sum(one.outdated for one in found):
        say(
            out(),
            f"\n{count(outdated, 'run')} in {folder} of other settings, data or code than the suites have here: "
            "left out",
        )
    if not kept:
        return
    words = ("kept results", "scale")
    numbers = ("runs", "seeds a cell", "claims hold", "do not", "undecided", "derived")
    table = plain_table(*words, numbers=numbers, no_wrap=words)
    for one in kept:
        counts = [len(each) for each in one.outcomes.values()]
        ours, derived = (Counter(verdicts.in_ours(one, derived=derived)) for derived in (False, True))
        seeds = f"{min(counts)} to {max(counts)}" if len(set(counts)) > 1 else str(counts[0])
        stand = (str(ours[status] or "·") for status in STATUSES[:3])
        scale = f"{one.scale}, another network" if replaced(one) else one.scale
        table.add_row(one.suite.name, scale, f"{sum(counts):,}", seeds, *stand, _decided(derived))
    say(out(), "\nrun before, and kept with the sources (docs/results/README.md has the claims one by one):")
    out().print(table)


def _decided(counts: Mapping[str, int]) -> str:
    """12 of 14: the decided ones among some claims; "·": there are none."""
    decided = counts.get("holds", 0) + counts.get("does not hold", 0)
    return f"{decided} of {total}" if (total := sum(counts.values())) else "·"


def totals(summaries: "list[SuiteSummary]") -> list[str]:
    """Return how many claims are decided: those of the papers, those at other networks, and derived ones."""
    found = []
    kept = [one for one in summaries if not one.networks]
    changed = [one for one in summaries if one.networks]
    for group, where in ((kept, ""), (changed, " for other networks than the papers', counted apart")):
        for title, counts in (
            ("claims", [one.ours for one in group]),
            ("derived claims" if where else "derived claims, counted apart,", [one.derived for one in group]),
        ):
            total = sum(map(Counter, counts), Counter[str]())
            if total:
                told = f"{total['holds']} hold, {total['does not hold']} do not"
                found.append(f"{_decided(total)} {title} decided{where}: {told}")
    return found
