"""Public tables: suites beside the five papers, their transcription and their sizes."""

import math
from dataclasses import replace

import pytest
from documents import ROOT

from pfl_ops.config.experiment import Experiment
from pfl_ops.papers import PAPERS, PUBLIC, TITLES, Grid, Measure, Published, all_suites, find, suites
from pfl_ops.papers.chosen import with_choices
from pfl_ops.papers.rules import Choices
from pfl_ops.papers.suite_run import SuiteRun
from pfl_ops.reports.pages.markdown import to_markdown
from pfl_ops.reports.suites import order, results_pages
from pfl_ops.results import Result
from pfl_ops.statistics import Agreement
from pfl_ops.tuning.commands.choosing import experiment_of

TABLES = tuple(suite for suite in all_suites() if suite.paper in PUBLIC)


def test_public_tables_are_beside_the_five_papers() -> None:
    """Sentences such as "219 claims of five papers" count `suites()`; a public table is found by its name."""
    assert not set(PAPERS) & set(PUBLIC) and [*TITLES] == [*PAPERS, *PUBLIC]
    assert {suite.paper for suite in suites()} == set(PAPERS)
    assert {suite.paper for suite in TABLES} == set(PUBLIC)
    for suite in TABLES:
        assert find(suite.name) is suite and suite in suites(suite.paper)
        assert not suite.claims and suite.published


def test_the_page_of_all_claims_counts_no_public_table() -> None:
    """With or without them in the list, the page says the same."""
    pages = {to_markdown(results_pages.overview([], found)) for found in (suites(), all_suites())}
    assert len(pages) == 1 and "219 claims" in pages.pop()


def test_a_public_table_has_its_numbers_under_changed_settings() -> None:
    """It has no claims, whose order would be shown."""
    suite = find("mcmahan/table1")
    rounds = {"test/G/global/mean@99": 22.0}
    runs = {"iid/fedavg": [Result.of_numbers(0, {}, measures=rounds)]}
    changed = [SuiteRun(suite, "full", runs, changes={"training.lr": lr}) for lr in (0.2, 0.3)]
    page = to_markdown(results_pages.suite_page(SuiteRun(suite, "full", {}), changed))
    _, _, told = page.partition("## Changed settings")
    assert "With training.lr=0.2:" in told and "With training.lr=0.3:" in told
    assert len([line for line in told.splitlines() if line.startswith("| IID ") and "22" in line]) == 2
    assert "family of claims" not in page and "does the order hold" not in page


def test_mcmahans_setting() -> None:
    """Table 1 with E = 5, B = 10, C = 0.1: 100 clients of 600 images, 300 steps a client and round."""
    suite = find("mcmahan/table1")
    iid, shards = (suite.experiment(suite.cell(f"{split}/fedavg")) for split in ("iid", "non_iid"))
    for experiment in (iid, shards):
        assert experiment.training.local_epochs * 60_000 / experiment.partition.clients / 10 == 300
        assert experiment.training.batch_size == 10 and experiment.participation.share == 0.1
    assert (iid.partition.kind, shards.partition.kind) == ("iid", "sorted_shards")
    assert {cell: number.value for (cell, _), number in suite.published.items()} == {
        "iid/fedavg": 18,
        "non_iid/fedavg": 206,
    }
    assert iid.training.rounds > 2 * 18 and shards.training.rounds > 206


def test_niid_benchs_table_is_whole() -> None:
    """Three data sets, four splits, three methods; the order of CIFAR-10, Dir(0.5) is as printed."""
    suite = find("niid_bench/label_skew")
    numbers = {cell: number.value for (cell, _), number in suite.published.items()}
    assert set(numbers) == {cell.name for cell in suite.cells} and len(numbers) == 36
    assert sorted(("fedavg", "scaffold", "fedprox"), key=lambda method: numbers[f"cifar10/dir05/{method}"]) == [
        "fedavg",
        "fedprox",
        "scaffold",
    ]
    assert all(number.spread is not None for number in suite.published.values())
    one = suite.experiment(suite.cell("cifar10/dir05/fedprox"))
    assert (one.training.momentum, one.training.weight_decay, one.training.batch_size) == (0.9, 1e-5, 64)
    plain = suite.experiment(suite.cell("mnist/c2/scaffold")).training
    assert (plain.momentum, plain.lr) == (0, 0.01)


@pytest.mark.parametrize("name", ["niid_bench/label_skew", "pfllib/fashion_mnist"])
def test_numbers_of_a_best_round_stand_beside_best_rounds(name) -> None:
    """Both sources print the round that is best on test data. Beside our last round they would be too high."""
    suite = find(name)
    assert {key.rpartition("#")[2] for _, key in suite.published} == {"best"}
    assert "best" in suite.source and "last" in suite.source
    keys = [key for exhibit in suite.exhibits if isinstance(exhibit, Grid) for key in exhibit.measures]
    assert not keys or keys[0] == suite.measures[0].key


def test_pfllibs_leaderboard_is_whole() -> None:
    """Thirteen methods in two environments; every one trains one epoch of B 10 at 0.005 in 2,000 rounds."""
    suite = find("pfllib/fashion_mnist")
    numbers = {cell: number.value for (cell, _), number in suite.published.items()}
    assert set(numbers) == {cell.name for cell in suite.cells} and len(numbers) == 26
    for split, best in (("pathological", 99.57), ("dir01", 97.66)):  # FedALA's, and FedProx' is the lowest
        of = {cell.partition("/")[2]: value for cell, value in numbers.items() if cell.startswith(split)}
        assert max(of, key=of.__getitem__) == "fedala" and of["fedala"] == best
        assert min(of, key=of.__getitem__) == "fedprox"
    for cell in suite.cells:
        training = suite.experiment(cell).training
        assert (training.rounds, training.local_epochs, training.batch_size, training.lr) == (2000, 1, 10, 0.005)


def ran(scale: str, **scores: list[float]) -> SuiteRun:
    """CIFAR-10, Dir(0.5), of NIID-Bench with these accuracies of each method by seed."""
    suite = find("niid_bench/label_skew")
    key = "test/G/global/mean#best"
    found = {
        f"cifar10/dir05/{method}": [
            Result.of_numbers(seed, {}, measures={key: 100 * value}) for seed, value in enumerate(of)
        ]
        for method, of in scores.items()
    }
    return SuiteRun(suite, scale, found)  # type: ignore[arg-type]


def test_the_order_of_methods_is_compared_with_the_published_one() -> None:
    """Published 62.47 < 65.63 (FedProx) < 68.08 (SCAFFOLD); ours in the mean 0.60 < 0.62 (SCAFFOLD) < 0.64.

    One of three pairs is reversed: τ = 1/3. In every resample SCAFFOLD is 2 points above FedAvg and 2 below FedProx.
    """
    run = ran("full", fedavg=[0.58, 0.60, 0.62], scaffold=[0.60, 0.62, 0.64], fedprox=[0.62, 0.64, 0.66])
    (table,) = order.blocks(run)
    assert [[entry.text for entry in row.entries] for row in table.rows] == [
        ["CIFAR-10, Dir(0.5)", "best round on test", "3", "3", "2 of 3", "0.33", "0.33 to 0.33"]
    ]


def test_order_leaves_out_cells_with_diverged_repetitions() -> None:
    """Of SCAFFOLD on Dir(0.5) seed 3 diverged: two methods are left there, of which there is no order. IID has all."""
    given = ran("full", fedavg=[0.58, 0.60], scaffold=[0.60, 0.62], fedprox=[0.62, 0.64])
    iid = {name.replace("dir05", "iid"): each for name, each in given.outcomes.items()}
    lost = {"cifar10/dir05/scaffold": {3: "diverged at round 7, lr 0.1"}}
    run = replace(given, outcomes={**given.outcomes, **iid}, diverged=lost)
    (table,) = order.blocks(run)
    assert [row.entries[0].text for row in table.rows] == ["CIFAR-10, IID"]
    assert table.notes[-1] == "Left out, since repetitions diverged: cifar10/dir05/scaffold."
    assert not list(order.blocks(replace(given, diverged=lost)))


def test_order_leaves_out_networks_that_give_one_answer() -> None:
    """SCAFFOLD's on Dir(0.5) have 10 % on pooled data in each seed: training failed, which says nothing of the method.
    It was the last of three there. IID has all."""
    given = ran("full", fedavg=[0.58, 0.60, 0.62], scaffold=[0.1] * 3, fedprox=[0.62, 0.64, 0.66])
    iid = {name.replace("dir05", "iid"): each for name, each in given.outcomes.items()}
    iid["cifar10/iid/scaffold"] = given.outcomes["cifar10/dir05/fedprox"]
    pooled = {"test/G/global/mean": 10.0}
    dead = [
        replace(one, measures={**(one.measures or {}), **pooled}) for one in given.outcomes["cifar10/dir05/scaffold"]
    ]
    run = replace(given, outcomes={**given.outcomes, **iid, "cifar10/dir05/scaffold": dead})
    (table,) = order.blocks(run)
    assert [row.entries[0].text for row in table.rows] == ["CIFAR-10, IID"]
    assert table.notes[-1] == "Left out, since networks give one answer to all inputs: cifar10/dir05/scaffold."


def test_no_order_of_smoke_or_of_two_methods() -> None:
    same = {"fedavg": [0.5] * 3, "scaffold": [0.6] * 3}
    assert not list(order.blocks(ran("smoke", **same, fedprox=[0.55] * 3)))
    assert not list(order.blocks(ran("full", **same)))
    assert list(order.blocks(ran("full", **same, fedprox=[0.55] * 3)))


def test_no_order_where_a_run_never_reached_the_target() -> None:
    """In seeds 0 and 1 FedAvg is first with 10 and 12 rounds; in seed 2 it never gets there, so it has no mean.

    With seeds 0 and 1 alone the order is the published one, 11 < 20.5 < 30.5. A seed that one lacks is in no mean.
    """
    key = "test/G/global/mean@60"
    measure = Measure(key, "rounds", digits=0, better="low")
    names = [f"cifar10/dir05/{method}" for method in ("fedavg", "scaffold", "fedprox")]
    published = {(name, key): Published(value) for name, value in zip(names, (10.0, 20.0, 30.0), strict=True)}
    suite = replace(find("niid_bench/label_skew"), published=published)

    def compared(fedavg: list[float | None]) -> Agreement | None:
        rows = [fedavg, [20.0, 21.0, 22.0], [30.0, 31.0, 32.0]]
        found = {
            name: [Result.of_numbers(seed, {}, measures={key: math.nan if value is None else value})
                   for seed, value in enumerate(of)]
            for name, of in zip(names, rows, strict=True)
        }  # fmt: skip
        return order.compared(SuiteRun(suite, "full", found), measure, names)

    assert compared([10.0, 12.0, math.inf]) is None
    two = compared([10.0, 12.0, None])
    assert two is not None and (two.tau, two.n) == (1.0, 2)


@pytest.mark.parametrize("method", find("pfllib/fashion_mnist").axes["method"])
def test_the_preset_pfllib_is_the_leaderboards_setting(method) -> None:
    """All settings but those of what is recorded: the suite scores each method at the stage of its own models."""
    suite = find("pfllib/fashion_mnist")
    cell, preset = suite.experiment(suite.cell(f"pathological/{method}")), Experiment.compose(method, preset="pfllib")
    for part in ("data", "partition", "model", "algorithm", "training", "participation", "seed", "repetitions"):
        assert getattr(cell, part) == getattr(preset, part)


def test_the_methods_page_has_what_the_preset_changes() -> None:
    """Each row of docs/methods.md, "PFLlib's defaults": the method's own default, and the preset's value; none is left
    out."""
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").partition("## PFLlib's defaults")[2]
    rows = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line
    ]
    said = {(method, option): (here.split(":")[0], theirs) for method, option, here, theirs in rows[2:]}
    changed = {}
    for method in find("pfllib/fashion_mnist").axes["method"]:
        mine = Experiment.compose(method).resolved["algorithm"]
        theirs = Experiment.compose(method, preset="pfllib").resolved["algorithm"]
        for option, value in theirs.items():
            if value != mine[option]:
                shown = ["none" if one is None else str(one) for one in (mine[option], value)]
                changed[method, option] = tuple(shown)
    assert said == changed


def test_mcmahans_rule_chooses_a_rate_for_each_split() -> None:
    """The labels of the rule are splits: both cells run FedAvg, and each takes its own η."""
    suite = find("mcmahan/table1")
    rule = suite.rule
    assert rule is not None
    methods = {"iid": {"training.lr": 0.2}, "non_iid": {"training.lr": 0.05}}
    chosen = with_choices(suite, Choices(rule.name, "chosen", "a command", "2026-11-25", methods, rule.budget))
    for split, settings in methods.items():
        cell = chosen.cell(f"{split}/fedavg")
        source = chosen.sources_of(cell)["training.lr"]
        assert chosen.experiment(cell).training.lr == settings["training.lr"]
        assert source is not None and "rule mcmahan" in source.reason
        tuned = experiment_of(suite, rule, split)
        assert (tuned.training.lr, tuned.seed) == (0.1, 1000) and tuned.partition == suite.experiment(cell).partition
    assert not any("here 0.1 for both" in departure.text for departure in chosen.departures)
