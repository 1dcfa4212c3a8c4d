"""Suites from a user's file: the page's example, and what is refused."""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from documents import check_commands, check_links, run_marked
from mlflow.tracking import MlflowClient
from typer.testing import CliRunner

from pfl_ops import registry, tuning
from pfl_ops.cli import app
from pfl_ops.errors import PflOpsError
from pfl_ops.papers import find, suites
from pfl_ops.papers.exhibits import Energy
from pfl_ops.papers.user_suites import _check_exhibit, load_suites
from pfl_ops.results import Result

PAGE = Path(__file__).parents[2] / "docs" / "suites.md"
BLOCKS = {
    kind: text for kind, text in re.findall(r"^```(python|csv)\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
}


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Forget the files of a test: they are plug-ins of this process, and travel to every worker."""
    before = dict(registry._plugins)
    yield
    registry._plugins.clear()
    registry._plugins.update(before)


@pytest.fixture
def example(tmp_path: Path) -> Callable[..., Path]:
    """Write the page's two files, with a text replaced by another one; return the Python file."""

    def write(old: str = "", new: str = "", csv: tuple[str, str] = ("", "")) -> Path:
        for text, part in ((BLOCKS["python"], old), (BLOCKS["csv"], csv[0])):
            assert part in text
        (tmp_path / "table1.csv").write_text(BLOCKS["csv"].replace(*csv) if csv[0] else BLOCKS["csv"])
        file = tmp_path / "ours.py"
        file.write_text(BLOCKS["python"].replace(old, new) if old else BLOCKS["python"])
        return file

    return write


def test_the_example_is_a_suite_with_an_origin_for_every_setting(example: Callable[..., Path]) -> None:
    (suite,) = load_suites([example()])
    assert (suite.name, suite.file, [cell.name for cell in suite.cells]) == (
        "ours/table1",
        "ours.py",
        ["fedavg", "local"],
    )
    assert all(source for cell in suite.cells for source in suite.sources_of(cell).values())
    sources = suite.sources_of(suite.cell("local"))
    assert [sources[path].kind for path in ("training.rounds", "training.lr")] == ["stated", "assumption"]
    assert suite.published["local", "test/L1/global/mean"].remark == "the spread is not printed"
    assert [verdict.status for verdict in suite.judged()] == ["holds"]  # 97.5 > 70.1
    assert [suite.experiment(suite.cells[0], scale).training.rounds for scale in ("small", "full")] == [5, 10]


def test_every_command_and_link_of_the_page_exists() -> None:
    assert check_commands(PAGE)
    check_links(PAGE)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_runs(tmp_path: Path, furnish: Callable[[Path], Path]) -> None:
    """Through real Ray; the report with changed settings lies beside the other, and neither counts the other's runs."""
    assert run_marked(PAGE.read_text("utf-8"), tmp_path, furnish(tmp_path / "mlruns"))
    report = tmp_path / "reports" / "ours" / "table1"
    plain, changed = ((folder / "report.md").read_text() for folder in (report, report / "small-training.lr=0.2"))
    assert "2 of 2 run" in plain and "97.50 ± 0.40" in plain and "--set" not in plain
    assert "Changed by --set: training.lr=0.2, in all cells" in changed
    assert "| `training.lr` | – | 0.1 | 0.2 (--set) |" in changed
    assert "Origin not recorded" not in plain
    first, second = (
        next(line for line in text.splitlines() if line.startswith("| FedAvg")) for text in (plain, changed)
    )
    assert first.split("±")[0].partition("[")[2] != second.split("±")[0].partition("[")[2]
    overview = (tmp_path / "reports" / "report.md").read_text()
    assert (
        "| [ours/table1](ours/table1/small-training.lr=0.2/index.html) | training.lr=0.2 | small | 2 of 2 |" in overview
    )
    runs = MlflowClient(f"sqlite:///{tmp_path}/mlruns/mlflow.db").search_runs(["1"])
    tagged = [run.info.run_name for run in runs if run.data.tags.get("pfl_ops.set") == "training.lr=0.2"]
    assert (
        sorted(tagged)[-1] == "ours/table1 small training.lr=0.2" and len(tagged) == 5
    )  # 2 cells x 2 seeds, the suite


def test_energy_of_several_methods_is_refused_and_of_one_is_not() -> None:
    """Efforts of all methods were averaged, as if they were repetitions of one."""
    (energy,) = find("drdm/fig4").exhibits
    assert isinstance(energy, Energy)
    _check_exhibit(find("drdm/fig4"), energy)
    with pytest.raises(PflOpsError, match=r"^an Energy is of one method and setting; axis \w+ has several levels$"):
        _check_exhibit(find("drdm/table4"), replace(energy, steps="method"))


def test_own_suites_join_the_others(example: Callable[..., Path]) -> None:
    own = load_suites([example()])
    assert [suite.name for suite in suites(own=own)][-1] == "ours/table1"
    assert suites("ours", own) == own
    assert find("ours/table1", own) is own[0]
    assert find("drdm/table3", own).name == "drdm/table3"
    with pytest.raises(PflOpsError, match=r"Did you mean 'ours/table1'\?"):
        find("ours/table2", own)


def test_numbers_are_read_on_the_driver_only(example: Callable[..., Path]) -> None:
    """A worker on another machine imports the file from its text, without the CSV file beside it."""
    file = example()
    (file.parent / "table1.csv").unlink()
    registry.load_plugin(file)
    with pytest.raises(PflOpsError, match=r"suite 'ours/table1': can't read published numbers .*table1.csv"):
        load_suites([file])


def test_published_numbers_are_those_of_the_file_as_it_is_now(example: Callable[..., Path]) -> None:
    """After an edit of the CSV file alone, the claim was judged on the former numbers until the session ended."""
    place = "local", "test/L1/local/mean"
    (before,) = load_suites([example()])
    (now,) = load_suites([example(csv=("97.5", "60.5"))])
    assert [suite.published[place].value for suite in (before, now)] == [97.5, 60.5]
    assert [verdict.status for suite in (before, now) for verdict in suite.judged()] == ["holds", "does not hold"]


GRID, EXHIBITS = 'Grid(rows=("method",), columns=("measure",))', '__import__("pfl_ops").papers.exhibits.'
WRONG = {
    "name": ('name="ours/table1"', 'name="table1"', "suite 'table1': the name of a suite is PAPER/EXHIBIT"),
    "up": ('name="ours/table1"', 'name="../table1"', "the name of a suite is PAPER/EXHIBIT"),
    "clash": ('name="ours/table1"', 'name="fliu/table1"', "there is another suite 'fliu/table1'; choose another name"),
    "twice": ("(TABLE_1,)", "(TABLE_1, TABLE_1)", "there is another suite 'ours/table1'"),
    "file_name": (
        "(TABLE_1,)", '(TABLE_1, __import__("dataclasses").replace(TABLE_1, name="ours-table1/a", rule=None),'
        ' __import__("dataclasses").replace(TABLE_1, name="ours/table1-a", rule=None))',
        "suite 'ours/table1-a' would have the results file of 'ours-table1/a'; choose another name",
    ),
    "none": ("SUITES = (TABLE_1,)", "", "defines no suite; it needs SUITES = (Suite(...),)"),
    "no_tuple": ("(TABLE_1,)", "TABLE_1", "defines no suite"),
    "other": ("(TABLE_1,)", "(TABLE_1, 7)", "SUITES has a int; it takes objects of type Suite"),
    "raises": ("SUITES =", "SUITES = 1 / 0,", "ours.py failed: ZeroDivisionError: division by zero (ours.py:5"),
    "argument": ("repetitions=3,\n    claims", "repetition=3,\n    claims", "unexpected keyword argument 'repetition'"),
    "path": ('"training.lr": 0.1', '"training.lrr": 0.1', "no setting named 'training.lrr'. Did you mean"),
    "scale": ('{"training.rounds": 5}', '{"training.rounds": 0}', "cell fedavg: training.rounds (T) must be"),
    "method": ('{"algorithm.name": "local"}', '{"algorithm.name": "locl"}', "cell local: no algorithm named 'locl'"),
    "label": ('"local": Level', '"lo cal": Level', "label 'lo cal' of axis method"),
    "claim": ('f"local:{OWN} >', 'f"locl:{OWN} >', "no label in"),
    "claim_key": ('f"local:{OWN} > fedavg:{OWN}"', '"local:test/L1/acc > 3"', "no measure 'test/L1/acc'"),
    "grid": ('rows=("method",)', 'rows=("methods",)', "no axis in a Grid named 'methods'. Did you mean 'method'?"),
    "types": ("axes={", "axes=[{", "SyntaxError"),
    "no_mapping": (
        'Level({"algorithm.name": "local"}, "local training")', '"local"',
        "level local must be a Level(...), got 'local'",
    ),
    "rule_suites": ('suites=("ours/table1",)', 'suites=("ours/table2",)', "rule ours does not list the suite in"),
    "rule_cell": ('"local": "local"}', '"local": "locl"}', "no cell of ours/table1 named 'locl'"),
    "rule_label": ('cells={"fedavg"', 'cells={"fedavgs"', "no label of ours/table1 (rule ours) named 'fedavgs'"),
    "measure": ('(OWN, "own classes")', '("test/L1/locl/mean", "x")', "no number of a run named 'test/L1/locl/mean'"),
    "target": ('(OWN, "own classes")', '(OWN + "@high", "x")', "behind the key stands @ with a target, # with a round"),
    "reach": (
        '(OWN, "own classes")', '(OWN + "@80", "x", unit=1)',
        "no test/L1/local/mean reaches 80: with unit 1, in which the target is, it is at most 1",
    ),
    "round": ('(OWN, "own classes")', '(OWN + "#11", "x")', "mean#11: no cell has round 11 at scale full"),
    "measures": ('(OWN, "own classes")', '(ALL, "x")', "measure test/L1/global/mean is there twice"),
    "unit": ('(OWN, "own classes")', '(OWN, "x", unit="%")', "unit must be a number above 0, got '%'"),
    "digits": ('(OWN, "own classes")', '(OWN, "x", digits=-1)', "digits must be 0 to 10, got -1"),
    "better": ('(OWN, "own classes")', '(OWN, "x", better="up")', "better must be high, low or empty, got 'up'"),
    "at": ('spread_over="repetitions"', 'at="last"', "at must be final or best, got last"),
    "spread": ('spread_over="repetitions"', 'spread_over="seeds"', "spread_over must be repetitions or clients, got"),
    "apart": (
        'Scale({"training.rounds": 5}', 'Scale({"algorithm.name": "fedavg"}',
        "scale small makes cells fedavg and local one experiment: it sets what an axis varies",
    ),
    "seed": ('{"algorithm.name": "local"}', '{"algorithm.name": "local", "seed": 9}', "level local sets seed: all"),
    "n": ('Scale({"training.rounds": 5}', 'Scale({"repetitions": 5}', "small sets repetitions: give Suite(repetitions"),
    "level": ('"local training")', '"x", at={"smal": {}})', "no scale in level local named 'smal'. Did you"),
    "stage": ('"local training")', '"x", stages={"P": "L9"})', "no stage in level local named 'L9'"),
    "share": ('"Sec. 4"),', '"Sec. 4", share="12/10"),', "share must be all, most, or a fraction above 0 and up to 1"),
    "texts": (
        '"Sec. 4"),', '"Sec. 4"), Claim("Local training is better on own classes", f"local:{OWN} > 90"),',
        "two claims have the text 'Local training is better on own classes'",
    ),
    "no_claim": ('claims=(Claim(', 'claims=("x", Claim(', "claims has a str; it takes Claim(...)"),
    "axis": ('axes={\n        "method"', 'axes={\n        "measure"', "no axis can be named measure"),
    "places": ('columns=("measure",)', 'columns=("measure", "measure")', "a Grid has axis measure at two places"),
    "grid_measure": (GRID, 'Grid(rows=("method",), columns=())', "a Grid has no place for measure: it shows several"),
    "over_title": (
        GRID, EXHIBITS + 'Over("method", ((0.0, OWN),))',
        "an Over has axis method, whose level fedavg has no number: its title is 'FedAvg'",
    ),
    "over_keys": (GRID, EXHIBITS + 'Over("measure", ())', "an Over has one key, and with x=measure one or more; got 0"),
    "over_key": (GRID, EXHIBITS + 'Over("measure", ((1, "test/L1/locl/mean"),))', "no number of a run named 'test/L1"),
    "curves_key": (GRID, EXHIBITS + 'Curves("test/L1/locl/mean")', "no number of a run named 'test/L1/locl/mean'. Did"),
    "energy_steps": (
        GRID, EXHIBITS + 'Energy("method", 0.8, OWN, (0.0,), (1e6,), 0.1, 1e-3)',
        "an Energy counts local steps, and cell fedavg has no training.local_steps",
    ),
    "bars_axis": (GRID, EXHIBITS + 'Bars(OWN, "measure")', "no axis in a Bars named 'measure'. Known: method"),
    "rule_own": ("trials=8", 'trials=8, own={"locl": {}}', "no method in `cells` of rule ours named 'locl'"),
    "rule_trials": ("trials=8", 'trials="8"', "rule ours: trials must be a whole number from 1 on, got '8'"),
    "rule_metric": ("val/L1/acc", "test/L1/acc", "no validation score (rule ours) named 'test/L1/acc'. Did you mean"),
    "rule_range": ("[0.01, 1.0]", "[1.0, 0.01]", "rule ours, fedavg: training.lr: low must be at most high"),
    "rule_path": ("training.lr\": {\"float", "training.l\": {\"float", "rule ours, fedavg: training.l: the experiment"),
    "rule_first": ("trials=8", 'trials=8, before={"local": {"training.lr": 5}}', "rule ours, local: first: training"),
    "rule_seed": ("seed=1000", "seed=2", "their confirmation 1002 to 1004, and repetitions of the suite 0 to 2"),
    "rule_before": ("trials=8", "trials=8, before=()", "rule ours: before must be a dict, got ()"),
    "rule_confirmation": (
        '"training.lr": 0.1,', '"training.lr": 0.1, "seed": 1998,',
        "trials have seed 1000, their confirmation 2000 to 2002, and repetitions of the suite 1998 to 2000",
    ),
    "name_number": ('name="ours/table1"', "name=7", "ours.py: the name of a suite must be text, got 7"),
    "title": ('title="Digits, two classes a client"', "title=None", "title must be text, got None"),
    "level_title": ('"local training")', "3)", "the title of level local must be text, got 3"),
    "damage": ('spread_over="repetitions"', 'damage="lost"', "damage must be a tuple of texts, got 'lost'"),
    "departures": ('spread_over="repetitions"', 'departures=("x",)', "departures must be a tuple of Departure(...)"),
    "instead": ('spread_over="repetitions"', 'instead={"digits": "mnits"}', "no data set (instead) named 'mnits'. Did"),
    "no_measure": (
        "SUITES = (TABLE_1,)",
        'SUITES = (__import__("dataclasses").replace(TABLE_1, measures=(), exhibits=(), published={}, claims=()),)',
        "'ours/table1': it has no measure",
    ),
    "claim_words": ('"Sec. 4"),', "7),", "remark of a claim must be text, got 7"),
    "claim_lines": ('f"local:{OWN} >', 'f"local:{OWN}\\n?', "claim 'local:test/L1/local/mean ? fedavg"),
    "rule_kind": ("rule=RULE", 'rule="ours"', "rule must be a ChoiceRule(...), got 'ours'"),
    "rule_name": ('name="ours",', 'name="../ours",', "the name of a rule has at most 100 letters"),
    "rule_suite": ('suites=("ours/table1",)', 'suites="ours/table1"', "rule ours: suites must be a tuple of names"),
    "rule_true": ("trials=8", "trials=True", "rule ours: trials must be a whole number from 1 on, got True"),
    "rule_rivals": ("confirm_top=2", "confirm_top=1", "rule ours: confirm_top must be a whole number from 2 on, got 1"),
    "csv_name": ('"table1.csv"', '"table2.csv"', "table2.csv: No such file or directory"),
}  # fmt: skip
NUMBERS = {
    "row": ("local,test/L1/global", "locl,test/L1/global", "table1.csv: no cell of ours/table1 named 'locl'"),
    "key": ("fedavg,test/L1/global/mean", "fedavg,test/L1/acc", "table1.csv: no measure of ours/table1 named"),
    "column": ("spread,n", "sd,n", "columns cell,key,value,sd,n,remark; it needs cell,key,value,spread,n,remark"),
    "unit": ("70.1,2.0,3", "170.1,2.0,3", "fedavg test/L1/local/mean: the paper's number 170.1 is above 100"),
    "fields": (",70.1,2.0,3,", ",70.1,2.0,3", "line 2: 5 fields, not 6"),
    "number": ("70.1", "7o.1", "line 2: could not convert string to float: '7o.1'"),
    "nan": ("70.1", "nan", "line 2: nan is no finite number; an empty field is none"),
    "spread": ("70.1,2.0,3", "70.1,-2.0,3", "line 2: a spread is 0 or more, got -2.0"),
    "n": ("70.1,2.0,3", "70.1,2.0,0", "line 2: n is 1 or more, got 0"),
    "twice": ("local,test/L1/global", "local,test/L1/local", "line 5: a second number for local test/L1/local/mean"),
}  # fmt: skip


def refused(file: Path, message: str) -> None:
    """A command line with the file: one line, exit code 2, nothing on standard output and nothing written."""
    result = CliRunner().invoke(app, ["reproduce", "--suite", str(file), "--reports", str(file.parent / "reports")])
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith("pfl-ops: ") and result.stderr.count("\n") == 1
    assert message in result.stderr
    assert {path.name for path in file.parent.iterdir()} <= {"ours.py", "table1.csv", "__pycache__"}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_refused_in_a_line(case: str, example: Callable[..., Path]) -> None:
    old, new, message = WRONG[case]
    refused(example(old, new), message)


@pytest.mark.parametrize("case", NUMBERS)
def test_wrong_numbers_are_refused_in_a_line(case: str, example: Callable[..., Path]) -> None:
    old, new, message = NUMBERS[case]
    refused(example(csv=(old, new)), message)


@pytest.mark.parametrize(("content", "message"), [(b"", "table1.csv is empty; it needs cell"), (b"\xff", "no")])
def test_a_file_without_text_is_refused(content: bytes, message: str, example: Callable[..., Path]) -> None:
    file = example()
    (file.parent / "table1.csv").write_bytes(content)
    refused(file, message)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "no.py", "suite file")


def test_own_suites_are_listed_after_the_others(example: Callable[..., Path]) -> None:
    listed = CliRunner().invoke(app, ["reproduce", "--suite", str(example()), "--list"]).stdout
    assert listed.index("fliu/table1") < listed.index("ours/table1")
    named = CliRunner().invoke(app, ["reproduce", "ours", "--suite", str(example()), "--list"]).stdout
    assert "ours/table1" in named and "fliu" not in named


def test_own_suites_run_without_names(example: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[str] = []

    def plan(chosen: Any, *_: Any, **__: Any) -> SimpleNamespace:
        planned.extend(suite.name for suite, _ in chosen)
        return SimpleNamespace(parts=(), wanted=())

    monkeypatch.setattr(tuning, "plan", plan)
    monkeypatch.setattr(tuning, "reproduce", lambda plan, **_: [])
    assert CliRunner().invoke(app, ["reproduce", "--suite", str(example())]).exit_code == 0
    assert planned == ["ours/table1"]


def test_results_are_kept_beside_the_report_of_each_suite(
    example: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A suite without a report has its results all the same; runs on substitute data are none.

    The page of claims has all suites of the call and their claims alone. It had the last suite's, and counted 219
    claims of the papers.
    """
    file = example("(TABLE_1,)", '(TABLE_1, __import__("dataclasses").replace(TABLE_1, name="ours/table2", rule=None))')
    suite, other = load_suites([file])
    outcomes = {cell.name: [Result.of_numbers(0, {"final/test/L1/local/mean": 0.5})] for cell in suite.cells}
    about = {
        "stand_ins": {suite.cells[0].name: "digits"},
        "problems": {},
        "diverged": {},
        "changes": {},
        "uncounted": 0,
    }

    def reproduce(plan: Any, on_suite: Any, **_: Any) -> list[Any]:
        found = [SimpleNamespace(suite=one, scale="small", outcomes=outcomes, **about) for one in (suite, other)]
        for one in found:
            on_suite(one)
        return found

    def report(*_: Any) -> Any:
        raise ValueError("no axis")

    monkeypatch.setattr(tuning, "reproduce", reproduce)
    monkeypatch.setattr(sys.modules["pfl_ops.cli.reproduce"]._Keeper, "_report", report)
    folder = tmp_path / "kept"
    words = ["reproduce", "ours", "--suite", str(file), "--scale", "small", "--results", str(folder)]
    result = CliRunner().invoke(app, words)
    lines = [f"no report of {one.name}" for one in (suite, other)]
    assert result.exit_code == 2 and result.stderr == f"pfl-ops: {', '.join(lines)}: ValueError: no axis\n"
    rows = (folder / f"{suite.name.replace('/', '-')}-small.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == [cell.name for cell in suite.cells[1:]]
    page = (folder / "README.md").read_text()
    assert page.startswith("# Do the claims hold?\n") and "The suites have 2 claims" in page
    assert "[ours/table1](ours-table1-small.md)" in page and "[ours/table2](ours-table2-small.md)" in page
