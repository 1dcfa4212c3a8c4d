"""DRDM's suites: the transcription by what must be so, claims against what the paper's numbers say of them."""

import pytest

from pfl_ops.papers import drdm
from pfl_ops.papers.drdm.rule import MNIST_RULE
from pfl_ops.papers.drdm.setting import AVERAGE, DEVIATION, WORST
from pfl_ops.papers.published import load
from pfl_ops.papers.suite import SCALES

SUITES = {suite.name.partition("/")[2]: suite for suite in drdm.SUITES}
TABLES = [f"table{number}" for number in range(1, 7)]
PRINTED = ["drdm", "drfa", "scaffold", "scaff_pd", "fedavg"]


def judged(suite):
    """{claim's text: verdict on the paper's own numbers}."""
    return {claim.text: verdict for claim, verdict in zip(suite.claims, suite.judged(), strict=True)}


# -- the transcription -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES)
def test_a_name_stands_on_the_third_of_its_rows(table):
    """Read one row off, a worst client would be another method's average."""
    numbers = load(f"drdm_{table}")
    columns = {cell.partition("/")[0] for cell, _ in numbers}
    assert columns == set(next(iter(SUITES[table].axes.values())))
    for column in columns:
        for method in PRINTED:
            average, worst, deviation = (
                numbers[f"{column}/{method}", key].value for key in (AVERAGE, WORST, DEVIATION)
            )
            assert worst < average - deviation  # of several, the worst is more than a deviation below
    assert len(numbers) == 3 * 5 * len(columns)


def test_numbers_that_the_text_names_stand_where_it_says():
    """From the page's own sentences: DRDM's worst client and the best other one, or two that a claim compares."""
    tables = {number: load(f"drdm_table{number}") for number in range(1, 7)}

    def worst(table, column):
        return {method: tables[table][f"{column}/{method}", WORST].value for method in PRINTED}

    first, second, fifth = worst(1, "a0.1"), worst(2, "s0.7"), worst(5, "a0.9")
    assert (first.pop("drdm"), max(first.values())) == (91.58, 78.18)
    assert (second.pop("drdm"), max(second.values())) == (86.83, 72.66)
    assert (fifth["drdm"], fifth["drfa"]) == (51.21, 51.80)


# -- the claims ------------------------------------------------------------------------------------------------------

FAILS = {
    "table1": {
        "FedAvg is last in average": "2 of 4; not at a0.3, a0.5",
        "FedAvg is last in standard deviation": "3 of 4; not at a0.5",
    },
    "table2": {},
    "table3": {
        "DRDM has the lowest standard deviation": "3 of 4; not at a0.1",
        "DRFA's worst-case accuracy is above FedAvg's": "3 of 4; not at a0.7",
        "Less class skew, better worst-case accuracy": "4 of 5; not at scaffold",
    },
    "table4": {"DRDM has the lowest standard deviation": "1 of 3; not at s0.3, s0.5"},
    "table5": {
        "DRDM has the highest average": "4 of 5; not at a0.1",
        "DRDM has the highest worst-case accuracy": "4 of 5; not at a0.9",
        "DRDM has the lowest standard deviation": "2 of 5; not at a0.1, a0.5, a0.9",
    },
    "table6": {
        "DRDM has the highest average": "1 of 3; not at s0.5, s0.7",
        "DRDM has the lowest standard deviation": "0 of 3",
    },
}


@pytest.mark.parametrize("exhibit", TABLES)
def test_which_claims_fail_on_the_papers_own_numbers(exhibit):
    found = judged(SUITES[exhibit])
    fails = {text: verdict.count for text, verdict in found.items() if verdict.status == "does not hold"}
    assert fails == FAILS[exhibit]
    assert {verdict.status for text, verdict in found.items() if text not in fails} == {"holds"}


@pytest.mark.parametrize("exhibit", ["fig1", "fig2", "fig5", "fig6"])
def test_a_figures_claims_hold_on_the_paper_but_for_rounds_that_it_does_not_print(exhibit):
    found = judged(SUITES[exhibit])
    open_ones = {text for text, verdict in found.items() if verdict.status == "not run"}
    assert all(text.startswith("DRDM needs the fewest rounds") for text in open_ones)
    assert {verdict.status for text, verdict in found.items() if text not in open_ones} == {"holds"}


def test_no_claim_is_judged_by_the_other_reading_of_drdm():
    """`drdm_feddyn` has no published numbers: beside the printed methods it would leave every claim open."""
    for suite in drdm.SUITES:
        for claim in suite.claims:
            assert not any(cell.endswith("/drdm_feddyn") for cell in claim.cells(suite.labels)), claim.text


def test_rounds_to_a_target_are_derived_where_the_paper_names_no_target():
    """Only Figure 4's is in the text (80 %); Figure 3's is lost with the numbers of its sentence."""
    for suite in drdm.SUITES:
        for claim in suite.claims:
            if any("@" in number.key for number in claim.numbers(suite.labels)):
                assert claim.derived == (suite.name != "drdm/fig4"), claim.text


# -- the experiments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exhibit", SUITES)
def test_smoke_has_one_or_two_local_steps(exhibit):
    suite = SUITES[exhibit]
    for cell in suite.sample():
        assert suite.experiment(cell, "smoke").training.local_steps in (1, 2)


@pytest.mark.parametrize("exhibit", TABLES)
def test_methods_differ_in_nothing_but_the_method(exhibit):
    """The same clients, cohort size, local steps and rounds for all; where a rule chooses it, each has its own rate."""
    suite = SUITES[exhibit]
    column = next(iter(next(iter(suite.axes.values()))))
    made = [suite.experiment(suite.cell(f"{column}/{method}")) for method in suite.axes["method"]]
    if suite.rule is MNIST_RULE:
        made = [experiment.override({"training.lr": 0.1}) for experiment in made]
    for section in ("data", "partition", "model", "training", "participation", "evaluation"):
        assert len({str(getattr(experiment, section)) for experiment in made}) == 1


@pytest.mark.parametrize(
    ("figure", "table", "cell"),
    [
        ("fig1", "table1", "a0.1/scaffold"),
        ("fig2", "table2", "s0.5/drfa"),
        ("fig5", "table4", "s0.3/drdm"),
        ("fig6", "table4", "s0.7/scaff_pd"),
    ],
)
def test_a_cell_in_two_exhibits_is_one_experiment(figure, table, cell):
    """Found by its hash, it is run once."""
    for scale in SCALES:
        again, before = SUITES[figure], SUITES[table]
        assert again.experiment(again.cell(cell), scale) == before.experiment(before.cell(cell), scale)
