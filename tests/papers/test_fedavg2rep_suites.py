"""FedAvg2Rep's suites: the transcription against the text, claims against what the paper's numbers say of them."""

import numpy as np
import pytest

from pfl_ops.data.datasets import here, load
from pfl_ops.errors import PflOpsError
from pfl_ops.papers import fedavg2rep
from pfl_ops.papers.fedavg2rep.setting import ACC, HYBRIDS
from pfl_ops.papers.suite import SCALES

SUITES = {suite.name.partition("/")[2]: suite for suite in fedavg2rep.SUITES}


# -- the transcription -----------------------------------------------------------------------------------------------


def test_tables_are_whole():
    """4 and 5 rows of three J; three methods of 4 N_C and three J; IID cells of Table 2 in Table 3."""
    assert {exhibit: len(SUITES[exhibit].published) for exhibit in ("table2", "table3", "table4")} == {
        "table2": 4,
        "table3": 15 + 2,
        "table4": 36 + 12,
    }


def test_one_number_is_the_same_in_all_exhibits():
    numbers = {}
    for suite in fedavg2rep.SUITES:
        for (cell, _), number in suite.published.items():
            identity = str(suite.experiment(suite.cell(cell)))
            assert numbers.setdefault(identity, number.value) == number.value, (suite.name, cell)


def test_numbers_that_the_text_names():
    """The best heterogeneous cell of FedAvg, and how far FedAvg2Rep is from it: 0.9 to 8.1 points."""
    numbers = {cell: number.value for (cell, _), number in SUITES["table4"].published.items()}
    below = [
        numbers[f"{split}/{steps}/fedavg"] - numbers[f"{split}/{steps}/fedavg2rep"]
        for split in ("nc5", "nc10", "nc50")
        for steps in ("j4", "j8", "j16")
    ]
    assert (min(below), max(below)) == (pytest.approx(0.9), pytest.approx(8.1))
    assert max(numbers[cell] for cell in numbers if cell.endswith("/fedavg")) == 24.8


# -- the claims ------------------------------------------------------------------------------------------------------

FAILS = {
    "table2": {},
    "table3": {
        "... especially with smaller values of N_C": "0 of 3",
        "J = 4 yields the best accuracy across all heterogeneous scenarios": "9 of 10; not at nc50/j16",
    },
    "table4": {
        "FedRep: for all N_C the accuracy is higher with J = 4": "6 of 8; not at nc1/j8, nc1/j16",
        "With N_C = 1 FedRep performs worse than FedAvg": "0 of 3",
        "Pre-trained, more local steps lead to improved performance": "2 of 4; not at nc5, nc10",
        "FedAvg2Rep surpasses FedRep": "8 of 9; not at nc50/j8",
        "... slightly": "2 of 9; not at nc5/j4, nc5/j8, nc5/j16, nc10/j4, nc10/j8, nc10/j16, nc50/j8",
        "FedAvg2Rep: the optimal J seems to be 4": "7 of 8; not at nc50/j16",
    },
}


@pytest.mark.parametrize("exhibit", SUITES)
def test_which_claims_fail_on_the_papers_own_numbers(exhibit):
    """The figures' images are lost: no claim about them has a printed number for all its terms."""
    suite = SUITES[exhibit]
    judged = {claim.text: verdict for claim, verdict in zip(suite.claims, suite.judged(), strict=True)}
    assert len(judged) == len(suite.claims)
    fails = {text: verdict.count for text, verdict in judged.items() if verdict.status == "does not hold"}
    assert fails == FAILS.get(exhibit, {})
    others = {verdict.status for text, verdict in judged.items() if text not in fails}
    assert others <= ({"holds"} if exhibit in FAILS else {"not run"})


# -- the experiments -------------------------------------------------------------------------------------------------


def test_local_steps_times_rounds():
    """Sec. 4.5 and 4.6.2: 8,000 local steps a client that is always there (Shakespeare: 800), 6,000 pre-trained."""

    def steps(exhibit, cell):
        experiment = SUITES[exhibit].experiment(SUITES[exhibit].cell(cell))
        rounds, each = experiment.training.rounds, experiment.training.local_steps
        warm_up, first = experiment.get("algorithm.warm_up") or 0, experiment.get("algorithm.warm_up_steps") or each
        return warm_up * first + (rounds - warm_up) * each

    for j in ("j4", "j8", "j16"):
        assert steps("table3", f"nc5/{j}/fedavg") == 8000
        assert steps("table3", f"shakespeare/{j}/fedavg") == 800
        assert [steps("table4", f"nc1/{j}/{method}") for method in HYBRIDS] == [8000, 6000, 8000]
    assert SUITES["table4"].experiment(SUITES["table4"].cell("nc5/j16/fedavg2rep")).training.rounds == 500 + 375


@pytest.mark.parametrize("scale", SCALES)
def test_a_cell_in_two_exhibits_is_one_experiment(scale):
    """Found by its hash, it is run once."""

    def experiments(*places):
        found = [SUITES[exhibit].experiment(SUITES[exhibit].cell(cell), scale) for exhibit, cell in places]
        return {str(experiment.override({"repetitions": 1})) for experiment in found}

    iid, own = "iid/j4/fedavg", "shakespeare_iid/j4/fedavg"
    for places in (
        [("table2", iid), ("table3", iid), ("fig4", f"{iid}/random")],
        [("table2", own), ("table3", own), ("fig2", f"{own}/eta1"), ("fig5", f"{own}/random")],
        [("table2", "iid/j4/centralized"), ("fig1", "iid/cosine")],
        [("table3", "nc5/j8/fedavg"), ("table4", "nc5/j8/fedavg")],
        [("table4", "nc1/j16/fedavg2rep"), ("fig7", "nc1/j16/fedavg2rep")],
        [("table3", "shakespeare/j4/fedavg"), ("fig6", "shakespeare/j4/fedavg")],
    ):
        assert len(experiments(*places)) == 1, places


def test_pre_trained_waits_for_a_file(tmp_path, monkeypatch):
    """Without it the cell has no identity, and says what is missing; at smoke it runs without."""
    monkeypatch.chdir(tmp_path)
    suite = SUITES["table4"]
    cell = suite.cell("nc10/j4/pretrained")
    with pytest.raises(PflOpsError, match=r"tiny_imagenet\.safetensors"):
        suite.experiment(cell, "small", data="digits").digest()
    assert suite.experiment(cell, "smoke").model.weights is None


@pytest.mark.parametrize("exhibit", SUITES)
def test_digits_can_stand_in(exhibit):
    """At smoke, where a data set can't be had; whole classes are as many as digits have."""
    suite = SUITES[exhibit]
    for cell in suite.sample():
        experiment = suite.experiment(cell, "smoke", data="digits")
        assert experiment.data.name == "digits"
        assert (experiment.get("partition.classes_per_client") or 0) <= 10


@pytest.mark.parametrize("cell", ["nc1/j4/fedrep", "nc5/j8/pretrained", "nc50/j16/fedavg2rep"])
def test_a_cell_measures_what_the_table_shows(cell):
    suite = SUITES["table4"]
    simulation = suite.experiment(suite.cell(cell), "smoke", data="digits").build()
    list(simulation.run())
    simulation.close()
    assert 0 <= simulation.final[f"final/{ACC}"] <= 1


@pytest.mark.skipif(not here("shakespeare"), reason="Shakespeare is not here")
def test_leafs_iid_split_pools_all_records_before_it_splits() -> None:
    """At small, 100 roles of 200 + 50 records: 100 new clients of 200 + 50, of many roles.

    A record one character away from a test record is for training with probability 0.8, one of both with 0.96; the
    cell beside it tests on text that begins 80 characters after the training records, and has none.
    """
    near = {}
    for split in ("shakespeare_leaf", "shakespeare_iid"):
        suite = SUITES["table2"]
        experiment = suite.experiment(suite.cell(f"{split}/j4/fedavg"), "small")
        data = load(experiment.data)
        clients = experiment.clients(data)
        assert set(clients.train.sizes.tolist()) == {200}
        train, test = (np.concatenate(rows) for rows in (clients.recorded.train, clients.recorded.test))
        if split == "shakespeare_leaf":
            assert set(clients.held.sizes.tolist()) == {50} and data.train.client is not None
            roles = [np.unique(data.train.client[rows]).size for rows in clients.recorded.train]
            assert min(roles) > 50  # of 100: 200 draws leave out 13 of them on average
            assert sorted([*train, *test]) == list(range(100 * 250))
        else:
            test = test + 100 * 200
        # published order: 200 training records of each role, then 50 test records of each, 80 characters further
        in_text = np.arange(100)[:, None] * 1000 + np.arange(200)
        later = np.arange(100)[:, None] * 1000 + 280 + np.arange(50)
        place = np.concatenate([in_text.ravel(), later.ravel()])
        trained, tested = set(place[train].tolist()), place[test].tolist()
        near[split] = np.mean([bool({at - 1, at + 1} & trained) for at in tested])
    assert near["shakespeare_leaf"] == pytest.approx(0.96, abs=0.01) and near["shakespeare_iid"] == 0
