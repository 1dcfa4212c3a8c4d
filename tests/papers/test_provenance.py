"""Origins of settings: what a source covers, and that no setting of a paper's suites is without one."""

import pytest
from toy_suite import TOY

from pfl_ops.federation.settings import Execution
from pfl_ops.papers import TITLES, all_suites, find, suites
from pfl_ops.papers.provenance import Source, assumed, departed, sources_of, stated

NAMES = [suite.name for suite in all_suites()]
LOOP = Execution(device="cpu", way="loop", threads=1)


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_of_every_cell_has_an_origin(name):
    suite = find(name)
    without = {
        (cell.name, path) for cell in suite.cells for path, source in suite.sources_of(cell).items() if source is None
    }
    assert not without


@pytest.mark.parametrize("paper", TITLES)
def test_every_source_of_a_paper_is_used(paper):
    """A statement that no cell runs is about another value than the suites have."""
    listed = {id(source): source for suite in suites(paper) for source in suite.sources}
    used = {id(source) for suite in suites(paper) for cell in suite.cells for source in suite.sources_of(cell).values()}
    assert [source for key, source in listed.items() if key not in used] == []


@pytest.mark.parametrize(
    ("paper", "figures", "path", "data"),
    [
        ("fliu", "5678", "partition.clients", "mnist"),
        ("fedas", ["3b"], "participation.stragglers", "cifar10"),
        ("fedavg2rep", "4", "partition.clients", "cifar100"),
        ("fedavg2rep", "245", "participation.share", None),
    ],
)
def test_statement_about_other_exhibits_is_an_assumption_of_a_figure(paper, figures, path, data):
    """FLIU names K in the captions of its tables, of 10 or 100. FedAS' half are those of Fig. 4a. FedAvg2Rep's 100
    clients of CIFAR-100, a tenth of them a round, are those of Sec. 4.3 and 4.5, not of Sec. 3.2 and 4.4."""
    for figure in figures:
        suite = find(f"{paper}/fig{figure}")
        for cell in suite.cells:
            assert data in (None, suite.experiment(cell).data.name)
            assert suite.sources_of(cell)[path].kind == "assumption"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("fliu/table1", "partition.clients"),
        ("fedas/fig4a", "participation.stragglers"),
        ("fedavg2rep/fig5", "partition.clients"),
        ("fedavg2rep/table3", "participation.share"),
    ],
)
def test_statement_about_an_exhibit_stays_one(name, path):
    suite = find(name)
    assert {suite.sources_of(cell)[path].kind for cell in suite.cells} == {"stated"}


@pytest.mark.parametrize("name", NAMES)
def test_sources_say_where_or_why(name):
    for source in find(name).sources:
        assert source.place if source.kind == "stated" else source.reason
        assert source.kind != "departure" or (source.said and source.place)


def test_a_statement_holds_for_its_value_only():
    """The toy suite states 50 rounds; at 40 the statement is silent, and the assumption about all settings counts."""
    cell = TOY.cell("iid/fedavg")
    assert TOY.sources_of(cell)["training.rounds"].kind == "stated"
    shorter = TOY.experiment(cell).override({"training.rounds": 40})
    assert sources_of(shorter, TOY.sources)["training.rounds"].kind == "assumption"
    assert sources_of(shorter, TOY.sources[1:])["training.rounds"] is None


def test_a_condition_chooses_the_experiments():
    rates = {name: TOY.sources_of(TOY.cell(f"path/{name}"))["training.lr"].kind for name in ("fedavg", "fliu")}
    assert rates == {"fedavg": "assumption", "fliu": "stated"}


def test_the_last_source_that_covers_counts():
    cell = TOY.cell("iid/fedavg")
    found = TOY.sources_of(cell)
    assert (found["training.local_epochs"].kind, found["training.local_epochs"].said) == ("departure", "6")
    assert found["training.local_steps"].kind == "no effect"
    assert found["training.batch_size"] == assumed("chosen for the test", "*")[0]


def test_repetitions_are_stated_or_not():
    assert TOY.states_repetitions
    assert find("fliu/table1").states_repetitions
    assert not find("drdm/table3").states_repetitions  # "from Monte Carlo runs": the number is lost
    assert [find(name).papers_repetitions for name in ("fedas/table2", "fedas/fig5")] == ["1", ""]
    assert (TOY.papers_repetitions, find("fedas/table2").repetitions) == ("3", 5)


def test_a_source_in_words():
    (one,) = stated("Sec. 1", {"seed": 0}, "of the tables")
    assert one.text == "Sec. 1; of the tables"
    assert departed("seed", "7", "Sec. 2", "lost").text == "Sec. 2; lost"
    assert Source("seed", "assumption", reason="not stated").text == "not stated"


# -- departures --------------------------------------------------------------------------------------------------------

READINGS = {
    "apfl_library", "fedfomo_library", "fedamp_absolute", "s_fedpg_last", "local_cap", "fedpg_cap", "letter",
    "fedavg_p_stay", "fedas_stay", "drdm_feddyn", "shakespeare_leaf",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_departures_are_listed_where_something_is_trained(name):
    suite = find(name)
    told = [departure.text for departure in suite.departures]
    assert len(told) == len(set(told)) and all(text.endswith(".") for text in told)
    assert told or all(type(exhibit).__name__ == "Allocation" for exhibit in suite.exhibits)


@pytest.mark.parametrize("name", NAMES)
def test_no_claim_is_judged_by_a_second_reading(name):
    """A reading beside ours has no published number: it would leave claims undecided in the paper's own numbers."""
    suite = find(name)
    labels = {axis: list(levels) for axis, levels in suite.axes.items()}
    judged = {part for claim in suite.claims for cell in claim.cells(labels) for part in cell.split("/")}
    assert not judged & READINGS


def test_every_second_reading_is_a_cell():
    cells = {part for name in NAMES for cell in find(name).cells for part in cell.labels.values()}
    assert cells >= READINGS


def test_fedamp_with_absolute_units_is_local_training():
    """Square distances of these networks are far above σ 0.1: exp(-x/σ) underflows, u_k is the client's own θ_k, and
    the pull λ/α (θ_k - u_k) of 1e-4 of the way leaves all predictions as those of local training."""
    suite = find("fedpg/table1")
    scores = {}
    for method in ("local", "fedamp", "fedamp_absolute"):
        one = suite.experiment(suite.cell(f"fmnist/{method}"), "smoke", data="digits")
        metrics = list(one.build(execution=LOOP).run())[-1].metrics
        scores[method] = {key: metrics[key] for key in metrics if key.startswith("test/L1/local")}
    assert scores["fedamp_absolute"] == scores["local"] != {}
    assert scores["fedamp"] != scores["local"]
