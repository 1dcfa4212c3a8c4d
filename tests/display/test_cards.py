"""Runs, studies and benchmarks as a notebook shows them: one element, and never an error."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pfl_ops import figures
from pfl_ops.comparison import Line
from pfl_ops.config.experiment import Experiment
from pfl_ops.display import cards
from pfl_ops.display.tables import TableRows
from pfl_ops.results import Result
from pfl_ops.run_on_disk import RunOnDisk
from pfl_ops.statistics import Difference
from pfl_ops.tuning import Study
from pfl_ops.tuning.commands.benchmark import Benchmark
from pfl_ops.tuning.studies.objective import Objective

NAN = math.nan
ROUNDS = pd.DataFrame({"test/L1/local/mean": [0.1, 0.5, 0.75], "test/L1/global/mean": [0.1, NAN, 0.5]})
FINAL = {"final/test/L1/local/mean": 0.75, "final/test/L1/global/mean": 0.5, "final/test/L1/acc": 1.25}
CLIENTS = pd.DataFrame({"client": [0, 1], "stage": "L1", "n_held": [3, 20], "local": [0.5, 1.0]})
TRIALS = pd.DataFrame(
    {"trial": [0, 1], "state": ["complete", "failed"], "rounds": [2, 1], "val/L1/acc": [1.5, NAN]}
    | {"seconds": [3.0, 1.0], "training.lr": [0.01, 0.5], "error": ["", "ValueError: <b>"]}
)


def result(**given: Any) -> Result:
    known = {"rounds": ROUNDS, "clients": CLIENTS, "folder": Path("nowhere")} | given
    return RunOnDisk(Experiment.of("fliu", rounds=2), **known).result(FINAL, {}, run_id="0" * 32)


def broken_result() -> Result:
    """Parts that can't be read, as they would be of a damaged run."""
    source = RunOnDisk(Experiment.of("fliu", rounds=2), None, None, Path("nowhere"))  # type: ignore[arg-type]
    return replace(result(), source=source, metrics=None, complaints=None)  # type: ignore[arg-type]


def study(table: pd.DataFrame = TRIALS, **given: Any) -> Study:
    goal = Objective(("val/L1/acc",), ("max",))
    known = {"finals": [result()], "openings": 1} | given
    return Study(
        "mine", None, goal, {"training.lr": 0.01}, 0, {"val/L1/acc": 1.5}, Experiment.of("fliu"), table, **known
    )


def benchmark(**given: Any) -> Benchmark:
    scores = {"validation": [1.25, NAN], "test": [1.5, NAN], "std": [0.25, NAN], "n": [3, 0], "test_runs": [3, 0]}
    views = {"local": [0.75, NAN], "global": [0.5, NAN], "worst": [0.25, NAN]}
    views |= {f"n_{name}": [3, 0] for name in ("local", "global", "worst")}
    tests = {"difference": [NAN, NAN], "p_holm": [NAN, NAN]}
    table = pd.DataFrame(
        {
            "rank": pd.array([1, None], "Int64"),
            "method": ["fliu", "ditto"],
            "scored_at": "L1",
            "metric": "val/L1/acc",
            **scores,
            **views,
            **tests,
        }
        | {"status": ["complete", "failed"], "restricted": "", "trial": [0, NAN], "settings": ["lr=0.1", ""]}
        | {"error": ["", "it <broke>"]}
    )
    nothing = pd.DataFrame()
    known = {"table": table.assign(trials=4), "notes": ("one note",)} | given
    return Benchmark("both", None, {}, {"ditto": "it <broke>"}, traces=nothing, tests=nothing, **known)


class Tree(HTMLParser):
    """Fails if elements are not nested; collects their names and what they are fetched from."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.seen.append(tag)
        assert not [value for name, value in attrs if name in ("src", "href", "xlink:href") and value[0] != "#"]
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def words(html: str) -> str:
    """The text of the tables and notes."""
    html = re.sub(r"<(style|svg)\b.*?</\1>", "", html, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


MADE = {"result": result, "study": study, "benchmark": benchmark}
SHOWN = {
    "result": ["fliu-digits-lsqs seed 0", "L1 75.0 % 50.0 % 125.0 %", "1 of 2 clients have fewer than 10"],
    "study": ["trial 000", "training.lr 0.01", "ValueError: &lt;b&gt;", "last round, test", "were opened 1 time for"],
    "benchmark": ["1 fliu L1 125.0 % 150.0 ± 25.0 %", "lr=0.1", "failed: it &lt;broke&gt;", "one note"],
}
LINES = {
    "result": "Result(fliu-digits-lsqs seed 0, 2 rounds, L1 Acc(L) 75.0 %, Acc(G) 50.0 %)",
    "study": "Study(mine: trial 000 of 2, Acc(L)+Acc(G) 150.0 %, 1 test run)",
    "benchmark": "Benchmark(both: fliu; without a rank: ditto)",
}


@pytest.mark.parametrize("kind", MADE)
def test_a_value_is_one_line_of_text(kind: str) -> None:
    assert repr(MADE[kind]()) == LINES[kind]


@pytest.mark.parametrize("kind", MADE)
def test_a_value_in_a_notebook_has_its_tables_and_picture(kind: str) -> None:
    html = MADE[kind]()._repr_html_()
    tags = Tree(html).seen
    assert tags.count("svg") == (kind != "benchmark") and "script" not in tags and "not shown" not in html
    for text in SHOWN[kind]:
        assert text in words(html)


@pytest.mark.parametrize(("p", "bold"), [(0.2, 0), (0.01, 1)])
def test_leaderboard_in_a_notebook_has_a_best_method_alone_in_bold(p: float, bold: int) -> None:
    """The method of rank 1 was bold in all columns, whether or not the test tells it apart from the others."""
    test = Difference(difference=-0.5, low=-0.9, high=-0.1, p=p, n=3, n_tested=3, tested_difference=-0.5)
    made = benchmark(lines=(Line("fliu", ()), Line("ditto", (), difference=test)))
    assert made._repr_html_().count('class="pfl-chosen"') == bold


@pytest.mark.parametrize(
    "broken",
    [
        result(rounds=pd.DataFrame()),
        broken_result(),
        study(table=pd.DataFrame()),
        study(table=None, finals=None, openings=None, diverged=None, pareto=1),
        benchmark(table=pd.DataFrame(), notes=()),
        benchmark(table=None, notes=None),
    ],
    ids=lambda broken: type(broken).__name__,
)
def test_a_broken_value_is_shown_without_an_error(broken: Any) -> None:
    """Each part that can't be made says so; the others are there."""
    html = broken._repr_html_()
    Tree(html)
    assert "not shown: " in html


def test_experiment_in_a_notebook_has_its_settings_and_what_differs() -> None:
    experiment = Experiment.of("fliu", dataset="digits", partition="dirichlet", alpha=0.2, clients=7)
    experiment = experiment.override({"training.lr": 0.3, "model.name": "mlp", "repetitions": 3})
    html = experiment._repr_html_()
    assert "svg" not in Tree(html).seen and "not shown" not in html
    for text in (
        "fliu-digits-dirichlet &ensp;3 repetitions, seeds 0 to 2",
        "partition dirichlet, 7 clients: alpha 0.2, per class, cap false, min_size 10",
        "network mlp: hidden",
        "training.lr 0.3 0.001 local learning rate of the first round",
        "model.name mlp cnn_tiny",
        f"hash {experiment.hash} (of the first repetition)",
    ):
        assert text in words(html)


def test_experiment_without_its_data_is_shown_without_a_hash(tmp_path: Path) -> None:
    """The hash counts the content of the data. The name of a file is escaped."""
    html = Experiment.of("fedavg", dataset=str(tmp_path / "<b>.npz"), model="mlp", partition="iid")._repr_html_()
    Tree(html)
    assert "hash: known once &lt;b&gt; is on this machine" in html and "<b>." not in html


def test_clients_are_three_lines_of_text_and_a_picture_in_a_notebook() -> None:
    clients = Experiment.of("fedavg", dataset="digits", partition="path", clients=5).clients()
    digest = clients.partition_digest
    assert repr(clients).splitlines() == [
        f"Clients(digits, path, seed 0: 5 clients, 10 classes, partition {digest[:12]}",
        "  train: 1,438 samples, a client 283 to 291 (median 288) of 2 classes",
        "  test: 359 samples, a client 71 to 73 (median 72))",
    ]
    assert repr(clients.held) == "Pool(359 samples of 5 clients, x uint8 [359, 8, 8, 1])"
    html = replace(clients, remarks=("a < b",))._repr_html_()
    assert Tree(html).seen.count("svg") == 1 and "not shown" not in html
    for text in ("training samples 283 288 291 1,438", "classes 2 2 2 10", f"partition {digest}", "a &lt; b"):
        assert text in words(html)


def test_clients_of_a_data_set_with_signs_in_its_name_are_escaped() -> None:
    clients = Experiment.of("fedavg", dataset="digits", partition="path", clients=5).clients()
    named = replace(clients.recorded, about={**clients.recorded.about, "data": "<i>\x1b"})
    html = replace(clients, recorded=named)._repr_html_()
    Tree(html)
    assert "<i>" not in html and "&lt;i&gt;\\x1b, path" in html


def test_a_study_without_a_picture_says_so() -> None:
    html = study(table=TRIALS.drop(columns="state"))._repr_html_()
    assert "training.lr 0.01" in words(html) and "not shown: KeyError: &#x27;state&#x27;" in html


def test_the_colours_of_a_picture_follow_the_page() -> None:
    """Inks are the page's colour; the first colour of the palette is the dark theme's on a dark page."""
    svg = cards.picture(lambda: figures.history([0.5, 0.7]), "trials")
    light = {colour.lower() for colour in (figures.style.LIGHT.ink, figures.style.LIGHT.line)}
    assert "currentColor" in svg and not light & set(re.findall(r"#[0-9a-f]{6}", svg))
    assert "var(--pfl-0072b2,#0072b2)" in svg
    style = cards.card(lambda: svg).partition("</style>")[0]
    assert 'body[data-jp-theme-light="false"] .pfl-ops' in style and "--pfl-0072b2: #67a5fe" in style
    assert "--pfl-d55e00" not in style  # a colour that no picture of the card has


def test_a_table_escapes_its_texts_and_singles_out_a_row() -> None:
    html = cards.table(TableRows("a & b", ("name", "n"), (("<x>", "1"), ("y", "2")), chosen=1))
    Tree(html)
    assert "<caption>a &amp; b</caption>" in html and "&lt;x&gt;" in html
    assert html.count('class="pfl-chosen"') == 1 and '<tr class="pfl-chosen"><td style="text-align:left">y' in html
    assert cards.table(TableRows("", ("name",), ())) == ""
