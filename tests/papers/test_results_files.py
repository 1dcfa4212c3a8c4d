"""Results in files: read again they judge as the runs did, rows of another version of a suite are left out."""

import json
import math
import re
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from kept_results import FOLDER, kept_results
from toy_suite import ACC, TOY, G

from pfl_ops.errors import PflOpsError
from pfl_ops.papers import (
    PAPERS,
    Level,
    Measure,
    Scale,
    all_suites,
    assumed,
    measure_keys,
    results_files,
    stated,
    suites,
)
from pfl_ops.papers.provenance import Sources
from pfl_ops.papers.suite import differences
from pfl_ops.papers.suite_run import SuiteRun
from pfl_ops.reports.pages.markdown import to_markdown
from pfl_ops.reports.suites import results_pages, verdicts
from pfl_ops.reports.suites.suite import suite_report
from pfl_ops.results import Result

ROUNDS = "test/L1/local/mean@90"


def outcome(seed: int, acc: float, reached: int | None = 2, commit: str = "c" * 40) -> Result:
    """A finished run of four rounds; `reached`: the round in which Acc(L) is above 90 %."""
    curve = [0.5 if reached is None or t < reached else 0.95 for t in range(1, 5)]
    history = pd.DataFrame({"test/L1/local/mean": curve}, index=range(1, 5))
    tags = {"pfl_ops.git_revision": commit, "version.torch": "2.6.0"}
    return Result.of_numbers(seed, {ACC: acc, f"final/{ACC}": acc}, history=history, tags=tags)


@pytest.fixture
def outcomes() -> dict[str, list[Result]]:
    """Six seeds; local training is 0.3 ± 0.01 below FedAvg in both environments, FLIU 0.002 ± 0.1 above it on PATH."""
    noise = [0.011, -0.007, 0.004, -0.013, 0.009, -0.004]
    found = {
        f"{env}/fedavg": [outcome(seed, 1.5 + x, None if env == "path" else 2) for seed, x in enumerate(noise)]
        for env in ("iid", "path")
    }
    found |= {f"{env}/local": [outcome(seed, 1.2 - x / 3) for seed, x in enumerate(noise)] for env in ("iid", "path")}
    return {**found, "path/fliu": [outcome(seed, 1.502 - 9 * x) for seed, x in enumerate(noise)]}


def test_what_is_read_has_the_values_and_the_verdicts_of_the_runs(tmp_path: Path, outcomes) -> None:
    path = results_files.write(tmp_path, TOY, "small", outcomes)
    assert path.name == "toy-table1-small.csv"
    (found,) = results_files.read(tmp_path, [TOY])
    assert (found.suite, found.scale, found.outdated) == (TOY, "small", 0)
    assert list(found.outcomes) == [cell.name for cell in TOY.cells]
    for cell, each in outcomes.items():
        for run, kept in zip(each, found.outcomes[cell], strict=True):
            assert kept.seed == run.seed
            for measure in TOY.measures:
                value = run.value(measure.key, TOY.at, measure.unit)
                assert kept.value(measure.key, TOY.at, measure.unit) == (value and pytest.approx(value, rel=1e-9))
            assert kept.value(G) is None
    assert {one.value(ROUNDS) for one in found.outcomes["path/fedavg"]} == {math.inf}
    ours, again = TOY.judged(outcomes), TOY.judged(found.outcomes)
    assert [one.status for one in again] == [one.status for one in ours] == ["holds", "undecided"]
    for one, other in zip(ours, again, strict=True):
        assert other.evidence.largest == pytest.approx(one.evidence.largest, rel=1e-6)


def test_another_call_adds_seeds_and_replaces_those_that_it_has_again(tmp_path: Path, outcomes) -> None:
    results_files.write(tmp_path, TOY, "small", outcomes)
    results_files.write(tmp_path, TOY, "small", {"iid/local": [outcome(7, 1.0), outcome(2, 0.5, commit="d" * 40)]})
    (found,) = results_files.read(tmp_path, [TOY])
    assert [one.seed for one in found.outcomes["iid/local"]] == [0, 1, 2, 3, 4, 5, 7]
    assert [one.value(ACC) for one in found.outcomes["iid/local"]][2] == 50.0
    assert len(found.outcomes["iid/fedavg"]) == 6
    page = (results_pages.write(tmp_path, [found], [TOY]).parent / "toy-table1-small.md").read_text()
    assert f"`{'c' * 12}` and `{'d' * 12}`" in page


def test_two_processes_that_write_at_once_lose_no_row(tmp_path: Path, outcomes, monkeypatch) -> None:
    """The second begins when the first has read the file and has not written it."""
    to_csv, others = results_files.to_csv, []
    iid = {"iid/local": outcomes["iid/local"]}

    def slow(table: pd.DataFrame) -> str:
        if not others:
            others.append(pool.submit(results_files.write, tmp_path, TOY, "small", iid))
            wait(others, timeout=0.3)
        return to_csv(table)

    monkeypatch.setattr(results_files, "to_csv", slow)
    with ThreadPoolExecutor(1) as pool:
        results_files.write(tmp_path, TOY, "small", {"path/local": outcomes["path/local"]})
    (found,) = results_files.read(tmp_path, [TOY])
    assert {cell: len(each) for cell, each in found.outcomes.items()} == {"iid/local": 6, "path/local": 6}
    assert [file.name for file in tmp_path.iterdir()] == ["toy-table1-small.csv"]


def test_diverged_repetition_has_a_row_and_is_on_the_page(tmp_path: Path, outcomes) -> None:
    """Local training in IID: seeds 0 and 2 of three have 1.2 − x/3; seed 1 diverged, and converges in a later call."""
    how = "diverged at round 3, client 4, lr 0.4"
    three = {cell: each[:3] for cell, each in outcomes.items()}
    two = {**three, "iid/local": [three["iid/local"][0], three["iid/local"][2]]}
    path = results_files.write(tmp_path, TOY, "small", two, diverged={"iid/local": {1: how}})
    assert path.read_text().splitlines()[0].startswith("cell,seed,setting,commit,torch,diverged,")
    for _ in range(2):
        (found,) = results_files.read(tmp_path, [TOY])
        assert found.diverged == {"iid/local": {1: how}} and found.outdated == 0
        kept = results_files.known(tmp_path, [TOY], "small", {})[TOY.name]
        assert kept.diverged["iid/local"] == {1: how} and [one.seed for one in kept.outcomes["iid/local"]] == [0, 2]
        assert [one.seed for one in found.outcomes["iid/local"]] == [0, 2]
        results_files.write(tmp_path, TOY, "small", {})  # a call about other cells keeps the row
    page = (results_pages.write(tmp_path, [found], [TOY]).parent / "toy-table1-small.md").read_text()
    assert "Training diverged in 1 cell." in page and f"iid/local: 1 of 3 diverged: seed 1 {how}" in page
    assert "1 of 3 diverged: mean of the others." in page
    results_files.write(tmp_path, TOY, "small", {"iid/local": [three["iid/local"][1]]})
    (found,) = results_files.read(tmp_path, [TOY])
    assert not found.diverged and [one.seed for one in found.outcomes["iid/local"]] == [0, 1, 2]
    assert "diverged" not in path.read_text(), "a file without divergence is as it was before"


def test_rows_of_another_version_of_the_suite_are_never_shown_as_of_this_one(tmp_path: Path, outcomes) -> None:
    """The rate of one method is edited: its cell runs another experiment, the other four cells the same."""
    results_files.write(tmp_path, TOY, "small", outcomes)
    methods = {**TOY.axes["method"]}
    methods["fliu"] = replace(methods["fliu"], changes={**methods["fliu"].changes, "training.lr": 0.02})
    edited = replace(TOY, axes={**TOY.axes, "method": methods})
    (found,) = results_files.read(tmp_path, [edited])
    assert found.outdated == 6 and "path/fliu" not in found.outcomes and len(found.outcomes) == 4
    page = (results_pages.write(tmp_path, [found], [edited]).parent / "toy-table1-small.md").read_text()
    assert "6 runs of other settings, data or code" in page
    assert results_files.outdated(tmp_path, [TOY, edited], "small", {}) == {"toy-table1-small.csv": 6}
    assert not results_files.outdated(tmp_path, [edited], "full", {}) | results_files.outdated(
        tmp_path, [edited], "small", {"training.lr": 0.3}
    )
    results_files.write(tmp_path, edited, "small", {})
    assert results_files.read(tmp_path, [edited])[0].outdated == 0
    assert not results_files.read(tmp_path, [TOY])[0].outcomes.get("path/fliu")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no column cell"),
        ("cell,seed,setting,commit\n", "no column torch"),
        ("cell,seed,setting,commit,torch\niid/local,x,a,b,c\n", "column seed: x is no whole number from 0 on"),
        ("cell,seed,setting,commit,torch\niid/local,-1,a,b,c\n", "column seed: -1 is no whole number from 0 on"),
        (f"cell,seed,setting,commit,torch,{ACC}\niid/local,1,a,b,c,much\n", f"column {ACC}: much is no finite number"),
        (f"cell,seed,setting,commit,torch,{ACC}\niid/local,1,a,b,c\n", "another number of cells"),
        (
            f"cell,seed,setting,commit,torch,{ACC}\niid/local,1,a,b,c,1.5,2.5\n",
            "line 2: ValueError: another number of cells",
        ),
        (f"cell,seed,setting,commit,torch,{ACC}\n<<<<<<< HEAD\niid/local,1,a,b,c,1.5\n", "line 2: "),
        (
            f"cell,seed,setting,commit,torch,{ACC}\na/b,1,a,b,c,1.5\na/b,1,a,b,c,2\n",
            "line 3: ValueError: a/b has seed 1 twice",
        ),
        (f"cell,seed,setting,commit,torch,{ACC}\niid/local,1,a,b,c,nan\n", f"column {ACC}: nan is no finite number"),
        (f"cell,seed,setting,commit,torch,{ACC}\niid/local,1,a,b,c,1e400\n", "1e400 is no finite number"),
        (f"cell,seed,setting,commit,torch,{ACC},{ACC}\niid/local,1,a,b,c,1,2\n", f"column {ACC} twice"),
    ],
)
def test_a_damaged_file_is_told_in_a_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "toy-table1-small.csv"
    path.write_text(text)
    for call in (lambda: results_files.read(tmp_path, [TOY]), lambda: results_files.write(tmp_path, TOY, "small", {})):
        with pytest.raises(PflOpsError) as error:
            call()
        assert str(path) in str(error.value) and why in str(error.value) and "\n" not in str(error.value)
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("column", "number", "why"),
    [
        (ACC, "1497", "column test/L1/acc: 1497 is no number of a run, which is 0 to 200"),
        (ACC, "-14.97", "column test/L1/acc: -14.97 is no number of a run, which is 0 to 200"),
        (G, "100.5", "column test/G/global/mean: 100.5 is no number of a run, which is 0 to 100"),
        (ROUNDS, "-2", f"column {ROUNDS}: -2 is no number of a run, which is 0 or more"),
    ],
)
def test_number_that_no_run_has_is_refused(tmp_path: Path, outcomes, column: str, number: str, why: str) -> None:
    """An edit: line 4 had 149.7, seed 2 of iid/fedavg's. A row of other settings is left out, whatever it has."""
    path = results_files.write(tmp_path, TOY, "small", outcomes)
    table = pd.read_csv(path, dtype=str)
    table.loc[2, column] = number
    table.to_csv(path, index=False)
    for call in (lambda: results_files.read(tmp_path, [TOY]), lambda: results_files.write(tmp_path, TOY, "small", {})):
        with pytest.raises(PflOpsError) as error:
            call()
        assert str(error.value) == f"can't read the results {path}: line 4: {why}"
    table.loc[2, "setting"] = "0" * 12
    table.to_csv(path, index=False)
    assert results_files.read(tmp_path, [TOY])[0].outdated == 1


@pytest.mark.parametrize(
    ("key", "bounds"),
    [
        ("test/L1/local/std", (0, 0.5)),
        ("test/L1/local/worst#best", (0, 1)),
        ("test/L1/local/rho_95", (0, math.inf)),
        ("cost/up_bytes", (0, math.inf)),
        ("method/drift/mean", (-math.inf, math.inf)),
        ("train/loss#3", (-math.inf, math.inf)),
    ],
)
def test_bounds_of_a_measure(key: str, bounds: tuple[float, float]) -> None:
    assert measure_keys.bounds(key) == bounds


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, outcomes) -> None:
    """The last number, Acc of a run, was read as 15 of 155.6 %: with all its cells the row looks whole."""
    measures = (Measure(ACC, "L1 Acc"),)
    short = replace(TOY, measures=measures, exhibits=TOY.exhibits[:1])
    path = results_files.write(tmp_path, short, "small", outcomes)
    whole = path.read_text()
    path.write_text(whole.rstrip()[:-3])
    with pytest.raises(PflOpsError, match=r"line \d+: ValueError: the file ends without a line break"):
        results_files.read(tmp_path, [short])
    path.write_text(whole)
    assert len(results_files.read(tmp_path, [short])) == 1


def test_a_file_that_excel_saved_is_read(tmp_path: Path, outcomes) -> None:
    """Excel begins a file in UTF-8 with a mark; "it has no column cell" was said of it."""
    path = results_files.write(tmp_path, TOY, "small", outcomes)
    path.write_text(path.read_text(), encoding="utf-8-sig")
    (found,) = results_files.read(tmp_path, [TOY])
    assert found.outcomes.keys() == outcomes.keys()


def test_networks_that_give_one_answer_are_told_from_a_file_as_from_runs(tmp_path: Path) -> None:
    """The suite shows no accuracy on pooled data. In the file it is a share, which earlier versions did not keep."""
    suite = replace(TOY, measures=TOY.measures[:1], published={}, exhibits=(), claims=TOY.claims[:1])

    def run(seed: int, acc: float, pooled: float | None) -> Result:
        return Result.of_numbers(seed, {f"final/{ACC}": acc} | ({} if pooled is None else {f"final/{G}": pooled}))

    alive = [run(seed, 1.5 + 0.01 * seed, 0.8 + 0.01 * seed) for seed in range(4)]
    dead = [run(seed, 0.2 + 0.01 * seed, 0.1135 if seed else None) for seed in range(4)]
    each = {f"{env}/{method}": of for env in ("iid", "path") for method, of in (("fedavg", alive), ("local", dead))}
    for _ in range(2):  # a later call keeps the column
        path = results_files.write(tmp_path, suite, "small", each)
        (found,) = results_files.read(tmp_path, [suite])
        assert found.one_answer == {"iid/local": (0.1135, 3, 3), "path/local": (0.1135, 3, 3)}
        assert [claim.ours for claim in verdicts.standings(found)] == ["not judged"]
        each = {}
    assert path.read_text().splitlines()[0] == f"cell,seed,setting,commit,torch,{ACC},{G}"


def test_the_page_of_claims_counts_what_was_judged_and_what_was_not(tmp_path: Path, outcomes) -> None:
    """Of the toy suite two claims are judged; of a suite of which nothing is kept its two are not."""
    results_files.write(tmp_path, TOY, "small", {cell: each for cell, each in outcomes.items() if cell != "path/fliu"})
    other = replace(TOY, name="toy/table2")
    page = results_pages.write(tmp_path, results_files.read(tmp_path, [TOY, other]), [TOY, other]).read_text()
    assert "4 claims, derived ones among them. 1 were judged" in page and "of the other 3 nothing is known" in page
    (line,) = [line for line in page.splitlines() if line.startswith("| Local training is below FedAvg")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1:5] == ["holds", "✓ holds", "2 of 2", "6"] and float(cells[5].replace(",", "")) > 40
    assert "| [toy/table1](toy-table1-small.md) |" in page and "| 4 of 5 | 24 | 6 |" in page
    assert "– not run" in next(line for line in page.splitlines() if line.startswith("| FLIU is above FedAvg"))


def test_main_claims_stand_first_each_at_the_largest_scale_that_judged_it(tmp_path: Path, outcomes) -> None:
    """At full no cell of PATH was run: the claim about both environments is judged at small alone."""
    both, on_path = TOY.claims
    suite = replace(TOY, claims=(replace(both, main=True), replace(on_path, main=True)))
    page = results_pages.write(tmp_path, [], [suite]).read_text()
    assert main_claims(page) == [["toy/table1", "– not run", "–", "–", "–", "–"]] * 2
    results_files.write(tmp_path, suite, "small", outcomes)
    in_iid = {cell: each[:4] for cell, each in outcomes.items() if cell.startswith("iid")}
    results_files.write(tmp_path, suite, "full", in_iid)
    page = results_pages.write(tmp_path, results_files.read(tmp_path, [suite]), [suite]).read_text()
    first, second = main_claims(page)
    assert first[:4] == ["[toy/table1](toy-table1-small.md)", "✓ holds", "small", "6"]
    assert second[:4] == ["[toy/table1](toy-table1-small.md)", "? undecided", "small", "6"]
    results_files.write(tmp_path, suite, "full", {cell: each[:4] for cell, each in outcomes.items()})
    page = results_pages.write(tmp_path, results_files.read(tmp_path, [suite]), [suite]).read_text()
    assert [line[2:4] for line in main_claims(page)] == [["full", "4"]] * 2
    assert "Main claims" not in results_pages.write(tmp_path, results_files.read(tmp_path, [TOY]), [TOY]).read_text()


def test_main_claims_that_were_run_and_not_judged_are_not_called_not_run(tmp_path: Path) -> None:
    """Local training gives one answer in all three seeds at small; nothing was run at full."""
    claim = replace(TOY.claims[0], main=True)
    suite = replace(TOY, measures=TOY.measures[:1], published={}, exhibits=(), claims=(claim,))

    def runs(alive: bool) -> list[Result]:
        pooled = [0.8, 0.81, 0.82] if alive else [0.1] * 3
        return [Result.of_numbers(i, {f"final/{ACC}": 1.5 + 0.01 * i, f"final/{G}": g}) for i, g in enumerate(pooled)]

    each = {f"{env}/{method}": runs(method == "fedavg") for env in ("iid", "path") for method in ("fedavg", "local")}
    results_files.write(tmp_path, suite, "small", each)
    page = results_pages.write(tmp_path, results_files.read(tmp_path, [suite]), [suite]).read_text()
    assert main_claims(page) == [["[toy/table1](toy-table1-small.md)", "– not judged", "small", "–", "–", "–"]]


def test_pages_name_the_settings_that_the_paper_does_not_state(tmp_path: Path, outcomes) -> None:
    """Toy: all are assumed but the rounds, FLIU's rate and the epochs; scoring and seeds are not named."""
    results_files.write(tmp_path, TOY, "small", outcomes)
    overview = results_pages.write(tmp_path, results_files.read(tmp_path, [TOY]), [TOY])
    assert "A value that a paper does not state is our assumption, at every scale." in overview.read_text()
    lines = (tmp_path / "toy-table1-small.md").read_text().splitlines()
    (line,) = [one for one in lines if one.startswith("The paper states no value of ")]
    assert "`training.lr`" in line and "`partition.kind`" in line and "`training.batch_size`" in line
    assert not [one for one in ("training.rounds", "training.local_epochs", "evaluation.", "`seed`") if one in line]


def main_claims(page: str) -> list[list[str]]:
    """The lines of the table of main claims: suite, status in ours, scale, n, e for and against."""
    table = page.partition("## Main claims")[2].partition("## Suites")[0]
    rows = [line.strip("|").split(" | ") for line in table.splitlines() if line[:1] == "|" and "toy/" in line]
    return [[row[0].strip(), *(entry.strip() for entry in row[4:])] for row in rows]


@pytest.mark.needs_data("mnist")
def test_main_claims_say_which_compare_cells_under_different_optimisers() -> None:
    """FLIU's Tables I and III have FedAvg under SGD, which is our assumption; DRDM's methods share one."""
    found = [one for one in kept_results() if not one.changes]
    page = to_markdown(results_pages.overview(found, all_suites()))
    main = page.partition("## Main claims")[2].partition("## Suites")[0]
    assert main.count("compares cells under different optimisers") == 2
    for name in ("fliu/table1", "fliu/table3"):
        assert f"{name} compares cells under different optimisers, some of them our assumption" in main


NOT_STATED = assumed("not stated", "training.optimiser")
OF_OTHERS = tuple(
    source
    for name in ("local", "fliu")
    for source in stated("Sec. 2", {"training.optimiser": "adam"}, when={"algorithm.name": name})
)
OF_PATH = stated("Sec. 3", {"training.optimiser": "sgd"}, when={"algorithm.name": "fedavg", "partition.kind": "path"})


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (stated("Sec. 2", {"training.optimiser": ["sgd", "adam"]}), ""),
        (NOT_STATED, ", some of them our assumption"),
        ((*NOT_STATED, *OF_OTHERS), ", some of them our assumption"),
        ((*NOT_STATED, *OF_OTHERS, *OF_PATH), ", some of them our assumption"),  # in one of two environments
    ],
)
def test_optimisers_that_a_paper_states_are_not_called_ours(source: Sources, said: str, outcomes) -> None:
    """Of two methods whose paper states both optimisers the note said "some of them our assumption"."""
    method = {**TOY.axes["method"], "local": Level({"algorithm.name": "local", "training.optimiser": "adam"})}
    claims = tuple(replace(claim, main=True) for claim in TOY.claims)
    axes, sources = {**TOY.axes, "method": method}, (*TOY.sources, *source)
    found = SuiteRun(replace(TOY, axes=axes, claims=claims, sources=sources), "small", outcomes)
    page = to_markdown(results_pages.overview([found], [found.suite]))
    assert f"toy/table1 compares cells under different optimisers{said}, which may be what differs" in page
    assert ("sgd (iid/fedavg, path/fedavg, our assumption in 1)" in page) == (source[-1:] == OF_PATH)


def test_overview_says_what_small_changes_and_of_which_claims_a_part_was_run(outcomes) -> None:
    """Fewer clients or rounds are said of the package's suites, which may stand beside a user's own."""
    ours = SuiteRun(TOY, "small", outcomes)
    own = SuiteRun(replace(TOY, name="mine/table", file="mine.py"), "small", outcomes)
    part = replace(ours, outcomes={cell: outcomes[cell] for cell in ("iid/local", "iid/fedavg")})
    for found, reduced, in_part in (
        ([ours], results_pages.FEWER, False),
        ([own], results_pages.OTHERWISE, False),
        ([own, ours], results_pages.FEWER, False),
        ([own, part], results_pages.FEWER, True),
        ([own, replace(ours, outcomes={"path/fliu": outcomes["path/fliu"]})], results_pages.FEWER, False),
    ):
        page = to_markdown(results_pages.overview(found, [one.suite for one in found]))
        assert (results_pages.IN_PART in page) == in_part
        assert [line for line in (results_pages.FEWER, results_pages.OTHERWISE) if line in page] == [reduced]


def test_each_paper_has_main_claims() -> None:
    """Not all derived: the paper itself says some in terms that can be judged."""
    for paper in PAPERS:
        main = [claim for suite in suites(paper) for claim in suite.claims if claim.main]
        assert 1 < len(main) < 17 and not all(claim.derived for claim in main), paper


def test_a_claim_of_which_a_part_was_run_is_not_judged(tmp_path: Path, outcomes) -> None:
    """Local training is compared in both environments; without its cell in one of them there is no evidence."""
    kept = {cell: each for cell, each in outcomes.items() if cell not in ("path/local", "path/fliu")}
    results_files.write(tmp_path, TOY, "small", kept)
    page = results_pages.write(tmp_path, results_files.read(tmp_path, [TOY]), [TOY]).read_text()
    assert "0 were judged" in page and "of 1 more a part of the cells was run" in page
    assert "of the other 1 nothing is known" in page


def test_claim_that_one_scale_judged_is_counted_as_judged(outcomes) -> None:
    """At small both are. At full the first was run in part (IID alone), and a cell of the second has other data."""
    some = {cell: each for cell, each in outcomes.items() if cell != "path/local"}
    full = SuiteRun(TOY, "full", some, stand_ins={"path/fliu": "digits"})
    assert "1 more were run and not judged" in to_markdown(results_pages.overview([full], [TOY]))
    page = to_markdown(results_pages.overview([SuiteRun(TOY, "small", outcomes), full], [TOY]))
    assert "2 were judged in runs that are kept here; of the other 0 nothing is known." in page


def test_claim_decided_by_a_part_is_counted_as_decided(tmp_path: Path, outcomes) -> None:
    """Local training is claimed to be below FedAvg in both environments. In IID it is above; on PATH it was not run.

    Evidence against "both": the mean of the two reversed e-values, that of PATH is 1, so (e + 1)/2. It decides at 80:
    two claims with two directions each are 4 hypotheses at level 0.05.
    """
    above = [outcome(seed, 1.8 + 0.01 * seed) for seed in range(6)]
    results_files.write(tmp_path, TOY, "small", {"iid/fedavg": outcomes["iid/fedavg"], "iid/local": above})
    (found,) = results_files.read(tmp_path, [TOY])
    claim, _ = verdicts.standings(found)
    assert (claim.ours, claim.n, claim.instances, claim.not_run) == ("does not hold", 6, 2, 1)
    assert claim.opposing > 80
    page = results_pages.write(tmp_path, [found], [TOY]).read_text()
    assert "1 were judged" in page and "a part of the cells" not in page and "of the other 1 nothing is known" in page
    assert "| small | claims of the papers | 0 | 1 | 0 |" in page and "is no verdict on the paper" in page
    note = "Scale small changes the paper's setting: Half of the rounds. Claims are decided for this setting here."
    suite = replace(TOY, small=replace(TOY.small, note="Half of the rounds."))
    assert note in to_markdown(results_pages.suite_page(replace(found, suite=suite)))
    (line,) = [line for line in page.splitlines() if line.startswith("| Local training is below FedAvg")]
    assert [cell.strip() for cell in line.strip("|").split("|")][2:5] == ["✗ does not hold", "0 of 1", "6 (1 of 2 run)"]
    assert "1 of 4 run: of a claim with four instances one was run" in page


def test_diverged_first_seeds_are_told_where_no_seed_counts(tmp_path: Path, outcomes) -> None:
    """On PATH local training diverged with its first seed, FLIU with its second: one claim has an instance without a
    seed, the other one seed in all, and both say why no further one counts."""
    kept = {**outcomes, "path/local": outcomes["path/local"][1:], "path/fliu": outcomes["path/fliu"][:1]}
    lost = {"path/local": {0: "diverged at round 2"}, "path/fliu": {1: "diverged at round 2"}}
    results_files.write(tmp_path, TOY, "small", kept, diverged=lost)
    (found,) = results_files.read(tmp_path, [TOY])
    page = to_markdown(results_pages.suite_page(found))
    assert "as claimed in 1 of 1; 1 without a common seed" in page and "path: no common seed" in page
    assert "80 needed; training diverged with a seed, from which on none counts" in page


@pytest.mark.parametrize(
    ("ours", "n", "seeds", "more", "told"),
    [
        ("holds", 1, 9, {}, "9"),
        ("undecided", 2, 13, {}, "about 13"),
        ("undecided", 1, 13, {"most": 3}, "about 13"),  # another instance has three
        ("undecided", 1, 13, {}, "–"),  # of rounds that one method never reached; one seed has no spread to go by
        ("undecided", 3, None, {}, "more than 1,000"),
        ("undecided", 3, None, {"equal": True}, "none"),
        ("undecided", 3, None, {"ended": True}, "–"),
    ],
)
def test_seeds_to_decide_in_words(ours: str, n: int, seeds: int | None, more: dict[str, int], told: str) -> None:
    claim = verdicts.ClaimSummary("", False, "holds", ours, n, seeds=seeds, **{"most": n, **more})
    assert claim.seeds_in_words == told


def test_reduced_suites_have_fewer_clients_samples_or_rounds() -> None:
    """FedAvg2Rep's have all 100 clients at small, DRDM's Tables 5 and 6 all 150 rounds."""
    sizes = ("partition.clients", "data.train_size", "data.records", "training.rounds")
    for suite in all_suites():
        for cell in suite.cells if suite.claims else ():
            full, small = suite.experiment(cell), suite.experiment(cell, "small")
            pairs = [(full.get(path) or math.inf, small.get(path) or math.inf) for path in sizes]
            assert any(here < there for there, here in pairs) or not differences(full, small), cell.name
    assert results_pages.FEWER.startswith("At small there are fewer clients, samples or rounds than")


def test_scale_small_that_changes_nothing_is_not_called_reduced(tmp_path: Path, outcomes) -> None:
    """As of DRDM's linear models, whose scale small is the full size."""
    axes = {axis: {label: replace(level, at={}) for label, level in of.items()} for axis, of in TOY.axes.items()}
    suite = replace(TOY, axes=axes, small=Scale(repetitions=5, note="The full size."))
    results_files.write(tmp_path, suite, "small", outcomes)
    (found,) = results_files.read(tmp_path, [suite])
    page = results_pages.write(tmp_path, [found], [suite]).read_text()
    assert "| small | claims of the papers |" in page and "no verdict on the paper" not in page
    assert "changes the paper's setting" not in (tmp_path / "toy-table1-small.md").read_text()
    assert "small: that of full. The full size." in to_markdown(suite_report(found))
    own = replace(TOY, file="mine.py")
    assert "At small some settings are not the paper's: a verdict" in to_markdown(
        results_pages.overview([replace(found, suite=own)], [own])
    )


def test_instances_with_other_numbers_of_seeds_show_the_least_and_the_most(tmp_path: Path, outcomes) -> None:
    """On PATH there are four seeds, in IID six: the smaller evidence, of PATH, stays at its fourth seed."""
    four = {cell: each[: 4 if cell.startswith("path") else 6] for cell, each in outcomes.items()}
    results_files.write(tmp_path, TOY, "small", four)
    (found,) = results_files.read(tmp_path, [TOY])
    claim, _ = verdicts.standings(found)
    assert (claim.n, claim.most, claim.n_in_words) == (4, 6, "4 to 6")
    page = results_pages.write(tmp_path, [found], [TOY]).read_text()
    assert "| 2 of 2 | 4 to 6 |" in page and "21 to 34: some have more" in page


def test_claim_that_seeds_hardly_decide_says_so(tmp_path: Path, outcomes) -> None:
    """FLIU and FedAvg differ by +0.1, −0.1, ... in turns, 0 in the mean: no number of such seeds decides for either."""
    fedavg = [outcome(seed, 1.5) for seed in range(6)]
    fliu = [outcome(seed, 1.6 - 0.2 * (seed % 2)) for seed in range(6)]
    results_files.write(tmp_path, TOY, "small", {**outcomes, "path/fedavg": fedavg, "path/fliu": fliu})
    (found,) = results_files.read(tmp_path, [TOY])
    page = results_pages.write(tmp_path, [found], [TOY]).read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("| FLIU is above FedAvg")]
    assert "? undecided" in line and line.endswith("| more than 1,000 |")
    assert "more than 1,000 seeds" in (tmp_path / "toy-table1-small.md").read_text()
    assert page.count("As claimed: comparisons whose means are as claimed") == 1


def test_claim_about_differences_without_a_spread_is_not_promised_to_seeds(tmp_path: Path, outcomes) -> None:
    """Two cells that compute the same differ by 0 in every seed: the page of all claims said "more than 1,000"."""
    same = [outcome(seed, 1.5 + 0.01 * seed) for seed in range(6)]
    results_files.write(tmp_path, TOY, "small", {**outcomes, "path/fedavg": same, "path/fliu": same})
    (found,) = results_files.read(tmp_path, [TOY])
    page = results_pages.write(tmp_path, [found], [TOY]).read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("| FLIU is above FedAvg")]
    assert "? undecided" in line and line.endswith("| none |")


def test_runs_with_changed_settings_have_a_file_of_their_own_and_a_table_on_the_suites_page(
    tmp_path: Path, outcomes
) -> None:
    """At a rate of 0.3 local training is 0.3 above FedAvg; γ exists in FLIU's cell only."""
    faster, fixed = {"training.lr": 0.3}, {"algorithm.gamma.kind": "fixed", "algorithm.gamma.value": 0.5}
    worse = {cell: [outcome(seed, 1.8 + 0.01 * seed) for seed in range(6)] for cell in ("iid/local", "path/local")}
    results_files.write(tmp_path, TOY, "small", outcomes)
    path = results_files.write(tmp_path, TOY, "small", {**outcomes, **worse}, changes=faster)
    assert path.name == "toy-table1-small-changed.csv"
    results_files.write(tmp_path, TOY, "small", {"path/fliu": outcomes["path/fliu"]}, changes=fixed)
    results_files.write(tmp_path, TOY, "small", {"path/fliu": [outcome(9, 1.1)]}, changes=dict(reversed(fixed.items())))
    plain, one, other = results_files.read(tmp_path, [TOY])
    assert (plain.changes, one.changes, other.changes) == ({}, fixed, faster)
    assert [run.seed for run in one.outcomes["path/fliu"]] == [0, 1, 2, 3, 4, 5, 9]
    assert [run.value(ACC) for run in other.outcomes["iid/local"]][:2] == [180.0, 181.0]
    assert plain.outcomes["iid/local"][0].value(ACC) == pytest.approx(100 * (1.2 - 0.011 / 3))
    table = pd.read_csv(path)
    unchanged = pd.read_csv(tmp_path / "toy-table1-small.csv")
    assert [json.loads(text) for text in table.set.unique()] == [fixed, faster]
    assert not set(table.setting) & set(unchanged.setting)

    overview = results_pages.write(tmp_path, [plain, one, other], [TOY]).read_text()
    assert "2 claims, derived ones among them. 2 were judged" in overview and "| small |" in overview
    page = (tmp_path / "toy-table1-small.md").read_text()
    (heads,) = [line for line in page.splitlines() if line.startswith("| claim | unchanged")]
    columns = [cell.strip() for cell in heads.strip("|").split("|")]
    assert columns[2:] == ["algorithm.gamma.kind=fixed, algorithm.gamma.value=0.5", "training.lr=0.3"]
    (line,) = [line for line in page.splitlines() if line.startswith("| Local training is below FedAvg | ")]
    cells = re.split(r" (?<!\\)\| ", line.strip("| "))
    assert "2 of 2" in cells[1] and "holds" in cells[1] and "not run" in cells[2]
    assert "0 of 2" in cells[3] and "does not hold, n = 6" in cells[3]


def test_cells_that_a_change_leaves_as_they_are_are_known_without_it(tmp_path: Path, outcomes) -> None:
    """γ exists in FLIU's cell only: of the others the unchanged rows count, and of FLIU the changed one."""
    fixed = {"algorithm.gamma.kind": "fixed", "algorithm.gamma.value": 0.5}
    results_files.write(tmp_path, TOY, "small", outcomes)
    results_files.write(tmp_path, TOY, "small", {"path/fliu": [outcome(3, 1.1)]}, changes=fixed)
    seeds = [
        {
            cell: [one.seed for one in rows]
            for cell, rows in results_files.known(tmp_path, [TOY], scale, changes)[TOY.name].outcomes.items()
        }
        for scale, changes in (("small", {}), ("small", fixed), ("small", {"training.lr": 0.7}), ("full", {}))
    ]
    six = list(range(6))
    others = {cell: six for cell in outcomes if cell != "path/fliu"}
    assert seeds == [{**others, "path/fliu": six}, {**others, "path/fliu": [3]}, {}, {}]


def test_changed_rows_of_an_earlier_version_are_left_out_and_alone_have_a_page(tmp_path: Path, outcomes) -> None:
    results_files.write(tmp_path, TOY, "small", outcomes, changes={"training.lr": 0.3})
    shorter = replace(TOY, small=replace(TOY.small, changes={**TOY.small.changes, "training.rounds": 3}))
    (found,) = results_files.read(tmp_path, [shorter])
    assert found.outdated == 30 and not found.outcomes
    results_pages.write(tmp_path, [found], [shorter])
    assert "30 runs of other settings, data or code" in (tmp_path / "toy-table1-small.md").read_text()


def test_changes_that_can_not_be_read_are_told_with_the_file(tmp_path: Path, outcomes) -> None:
    path = results_files.write(tmp_path, TOY, "small", outcomes, changes={"training.lr": 0.3})
    path.write_text(path.read_text().replace('{""', "{", 1))
    with pytest.raises(PflOpsError, match=r"toy-table1-small-changed\.csv: "):
        results_files.read(tmp_path, [TOY])


def test_any_change_is_read_as_it_was_written(tmp_path: Path, outcomes) -> None:
    """Also a long list, and a text that looks like a number."""
    several = {"evaluation.eps": [round(0.001 * i, 3) for i in range(1, 40)], "training.lr": 0.25}
    results_files.write(tmp_path, TOY, "small", outcomes, changes=several)
    (found,) = results_files.read(tmp_path, [TOY])
    assert found.changes == several and found.outdated == 0 and len(found.outcomes) == 5


def test_rows_that_can_not_be_checked_here_stay_in_their_file(tmp_path: Path, outcomes) -> None:
    """Their data are on another machine: they count nowhere, another change is added, and the other suites go on."""
    elsewhere = {"data.name": str(tmp_path / "there.npz")}
    path = results_files.write(tmp_path, TOY, "small", outcomes, changes={"training.lr": 0.3})
    path.write_text(path.read_text().replace('""training.lr"": 0.3', f'""data.name"": ""{elsewhere["data.name"]}""'))
    (found,) = results_files.read(tmp_path, [TOY])
    assert found.changes == elsewhere and found.outdated == 30 and not found.outcomes
    before = pd.read_csv(path)
    results_files.write(tmp_path, TOY, "small", outcomes, changes={"training.lr": 0.4})
    after = pd.read_csv(path)
    pd.testing.assert_frame_equal(after[after.set == before.set[0]].reset_index(drop=True), before)
    assert len(after) == 60


def test_a_measure_that_a_suite_has_since_then_is_not_known_of_older_rows(tmp_path: Path, outcomes) -> None:
    """The runs have no G, which is known of a new row; of the older ones it is not, also after the file is written."""
    older = replace(TOY, measures=TOY.measures[:1], published={}, exhibits=(), claims=())
    results_files.write(tmp_path, older, "small", outcomes)
    for again in ({}, {"iid/fedavg": [outcome(9, 1.0)]}):
        results_files.write(tmp_path, TOY, "small", again)
        (found,) = results_files.read(tmp_path, [TOY])
        assert {tuple(one.measures) for one in found.outcomes["iid/local"]} == {(ACC,)}
    (new,) = [one for one in found.outcomes["iid/fedavg"] if one.seed == 9]
    assert set(new.measures) == {measure.key for measure in TOY.measures} and new.value(G) is None


SUM = [ACC, "test/L1/local/mean", "test/L1/global/mean"]


@pytest.mark.parametrize(
    ("units", "numbers", "told"),
    [
        ((100, 100, 100), ("185.1", "92.8", "92.3"), ""),
        ((100, 100, 100), ("185", "93", "92"), ""),  # as a table program rounds
        ((100, 100, 100), ("185.1", "92.8", "none"), ""),
        ((100, 100, 100), ("185.1", "92.8", "0.923"), "185.1 is not 92.8 + 0.923, the sum of columns "),
        ((100, 100, 100), ("185.1", "62.8", "92.3"), "185.1 is not 62.8 + 92.3, the sum of columns "),
        ((1, 1, 1), ("1.851", "0.928", "0.923"), ""),
        ((1, 100, 1), ("1.851", "92.8", "0.923"), ""),
        ((1, 100, 1), ("1.851", "0.928", "0.923"), "1.851 is not 0.928 + 0.923, the sum of columns "),
    ],
)
def test_sum_that_is_not_the_sum_of_its_row_is_refused(
    tmp_path: Path, units: tuple[float, ...], numbers: tuple[str, ...], told: str
) -> None:
    """Acc is Acc(L) + Acc(G) by definition. A script wrote Acc(G) as a share beside percent, and its page 0.92 %."""
    measures = tuple(Measure(key, key, unit=unit) for key, unit in zip(SUM, units, strict=True))
    suite = replace(TOY, measures=measures, published={}, exhibits=(), claims=())
    values = dict(zip(SUM, (1.851, 0.928, 0.923), strict=True))
    run = Result.of_numbers(0, {f"final/{key}": value for key, value in values.items()})
    path = results_files.write(tmp_path, suite, "small", {"iid/local": [run]})
    table = pd.read_csv(path, dtype=str)
    table.loc[0, SUM] = numbers
    table.to_csv(path, index=False)
    if told:
        unit = "100" if units[0] == 100 else "1, 100 and 1"
        with pytest.raises(PflOpsError) as error:
            results_files.read(tmp_path, [suite])
        assert str(error.value) == (
            f"can't read the results {path}: line 2: column {ACC}: {told}{SUM[1]} and {SUM[2]}, where 100 % is {unit}"
        )
    else:
        (found,) = results_files.read(tmp_path, [suite])
        assert found.outcomes["iid/local"][0].value(ACC) == float(numbers[0])


@pytest.mark.parametrize("edit", ["unit", "at", "stages"])
def test_numbers_in_another_unit_are_outdated_in_a_file_of_a_users_suite(tmp_path: Path, outcomes, edit: str) -> None:
    """Rows in percent under a suite in shares: 181 was taken for 18,100 %, and "above 0.9" held of anything.

    A measure that was added, or taken away, leaves the rows as they are.
    """
    own = replace(TOY, file="ours.py")
    path = results_files.write(tmp_path, own, "small", outcomes)
    methods = {name: replace(level, stages={"P": "L2"}) for name, level in own.axes["method"].items()}
    edited = {
        "unit": replace(own, measures=(replace(own.measures[0], unit=1.0), *own.measures[1:])),
        "at": replace(own, at="best"),
        "stages": replace(own, axes={**own.axes, "method": methods}),
    }[edit]
    (found,) = results_files.read(tmp_path, [edited])
    rows = sum(map(len, outcomes.values()))
    assert (found.outdated, found.outcomes) == (rows, {})
    for measures in (own.measures, own.measures[:2], (*own.measures, Measure("test/L2/acc", "L2"))):
        (found,) = results_files.read(tmp_path, [replace(own, measures=measures)])
        assert found.outdated == 0 and sum(map(len, found.outcomes.values())) == rows
    text = path.read_text().replace('""units"": ', '""units""')
    path.write_text(text)
    with pytest.raises(PflOpsError, match=r"toy-table1-small\.csv: line 2: JSONDecodeError"):
        results_files.read(tmp_path, [own])


def test_a_share_that_a_file_has_beside_the_measures_is_no_measure_in_percent(tmp_path: Path) -> None:
    """Pooled accuracy is in each file, 0.5; it was read as 0.5 % once the suite showed it in percent."""
    without = replace(TOY, file="ours.py", measures=TOY.measures[:1], claims=())
    runs = {"iid/local": [Result.of_numbers(0, {f"final/{ACC}": 1.5, f"final/{G}": 0.5})]}
    results_files.write(tmp_path, without, "small", runs)
    assert [one.outdated for one in results_files.read(tmp_path, [without])] == [0]
    assert [one.outdated for one in results_files.read(tmp_path, [replace(without, measures=TOY.measures[:2])])] == [1]


def test_the_committed_results_are_of_these_suites_and_their_pages_are_made_from_them(tmp_path: Path) -> None:
    found = kept_results()
    files = {path.name for path in FOLDER.iterdir()}
    assert {f"{results_files.file_name(one.suite, one.scale, bool(one.changes))}.csv" for one in found} == {
        name for name in files if name.endswith(".csv")
    }
    assert [one.suite.name for one in found if one.outdated] == []
    results_pages.write(tmp_path, found, all_suites())
    assert {path.name for path in tmp_path.iterdir()} == {name for name in files if name.endswith(".md")}
    for page in tmp_path.iterdir():
        assert page.read_text() == (FOLDER / page.name).read_text(), f"make {page.name} again: make results"
