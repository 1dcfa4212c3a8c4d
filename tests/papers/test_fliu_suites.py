"""FLIU's suites: the transcription against its own redundancy, claims against what the paper's numbers say of them."""

import pytest

from pfl_ops.config.experiment import Experiment
from pfl_ops.papers import fliu
from pfl_ops.papers.fliu import setting
from pfl_ops.papers.published import load
from pfl_ops.papers.suite import SCALES

SUITES = {suite.name.partition("/")[2]: suite for suite in fliu.SUITES}


# -- the transcription -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["fliu_table1", "fliu_table2"])
@pytest.mark.parametrize("stage", ["L1", "L2"])
def test_acc_is_the_sum_of_both(table, stage):
    """Each was rounded to two decimals, so the sum is within 0.015, and one digit more for the printed 0.02."""
    numbers, seen = load(table), 0
    for cell in {cell for cell, _ in numbers}:
        local, pooled, both = (numbers[cell, f"test/{stage}/{view}"] for view in ("local/mean", "global/mean", "acc"))
        if local.value is None:
            continue
        seen += 1
        assert local.value + pooled.value == pytest.approx(both.value, abs=0.0201), cell
        if None not in (local.spread, pooled.spread, both.spread):
            assert abs(local.spread - pooled.spread) - 0.015 <= both.spread <= local.spread + pooled.spread + 0.015, (
                cell
            )
    others = 2 if (table, stage) == ("fliu_table2", "L2") else 0  # APFL and FedFomo, which have no L1
    assert seen == 5 * (8 + others)


def test_table_3_repeats_tables_1_and_2():
    """Its rows for 100 clients are theirs, where they have the method."""
    tables = {"mnist": load("fliu_table1"), "cifar10": load("fliu_table2")}
    again = 0
    for (cell, key), number in load("fliu_table3").items():
        data, clients, environment, method = cell.split("/")
        before = tables[data].get((f"{environment}/{method}", key))
        if clients == "k100" and before is not None:
            again += 1
            assert number.value == before.value
            assert before.spread in (number.spread, None), cell  # none: left out there as damaged
    assert again == 2 * 3 * (3 + 5)  # two numbers, three environments; MNIST lacks APFL and FedFomo in Table I


def test_clt_is_the_same_at_both_stages():
    for table in ("fliu_table1", "fliu_table2"):
        numbers = load(table)
        for (cell, key), number in numbers.items():
            if cell.endswith("/local") and "/L1/" in key:
                assert number == numbers[cell, key.replace("/L1/", "/L2/")]


# -- the claims ------------------------------------------------------------------------------------------------------

FAILS = {
    "table1": {
        "On PATH, FLIU's L1 Acc(G) is above FedAvg's": "",
        "In IID, a smaller γ is better at L1 Acc": "",  # FLIU10 197.26 < FLIU25 197.45
        "On PATH, a larger γ is better at L1 Acc, up to 0.5": "",
    },
    "table2": {
        "On PATH, FLIU's L2 Acc is above FedAvg's": "",
        "CLT performs poorly in all cases: Acc at L1 below FedAvg's": "4 of 5; not at path",
        "A high fixed γ (0.75, 0.9) is suboptimal: below the adaptive one at L1 Acc": "9 of 10; not at path/fliu75",
        "Equal sizes give every client γ = 0.25: in IID, FLIU is FLIU25, within a point of L1 Acc": "",
        "Equal sizes give every client γ = 0.25: in LS, FLIU is FLIU25, within a point of L1 Acc": "",
    },
    "table3": {
        "With 100 clients it is reversed: FLIU's Acc(L) is above APFL's": "5 of 6; not at mnist/qs",
    },
    "fig7": {},
}


@pytest.mark.parametrize("exhibit", FAILS)
def test_which_claims_fail_on_the_papers_own_numbers(exhibit):
    suite = SUITES[exhibit]
    judged = {claim.text: verdict for claim, verdict in zip(suite.claims, suite.judged(), strict=True)}
    fails = {text: verdict.count for text, verdict in judged.items() if verdict.status == "does not hold"}
    assert fails == FAILS[exhibit]
    assert {verdict.status for text, verdict in judged.items() if text not in fails} == {"holds"}


def test_claims_about_nearly_all_allow_for_exceptions():
    """The paper's own exceptions: PATH in Table II (Sec. V says so), QS on CIFAR-10 and FedFomo on QS in Table III."""
    held = {
        claim.text: (verdict.count, claim.share)
        for suite in (SUITES["table2"], SUITES["table3"])
        for claim, verdict in zip(suite.claims, suite.judged(), strict=True)
        if verdict.status == "holds" and verdict.agreeing < len(verdict.instances)
    }
    assert held == {
        "Further local training diminishes Acc in nearly all environments: L2 below L1, of FedAvg and FLIU": (
            "8 of 10; not at path/fedavg, path/fliu",
            "most",
        ),
        "With 10 clients APFL is best in almost all metrics: Acc(L) on CIFAR-10": ("2 of 3; not at qs", "most"),
        "With 10 clients APFL is best in almost all metrics: Acc(G) on CIFAR-10": ("2 of 3; not at qs", "most"),
        "The vast majority of approaches is proficient in QS: above 90 on MNIST with 100 clients": (
            "3 of 4; not at fedfomo",
            "most",
        ),
    }


def test_curves_that_rise_are_those_of_all_methods_of_both_figures():
    """Sec. V says it of Figure 5, and of Figure 6 as "an observation of the same kind". CLT has no update."""
    named = [
        {cell.rpartition("/")[2] for cell in suite.claims[0].cells(suite.labels)}
        for suite in (SUITES["fig5"], SUITES["fig6"])
    ]
    assert named == [{"fedavg", *setting.FLIU, *setting.FIXED}] * 2


def test_claims_of_some_numbers_of_clients_say_which():
    """Table III has 10 and 100 clients; a text that names neither is about both, but for what stands in Figure 8."""
    suite = SUITES["table3"]
    for claim in suite.claims:
        sizes = {cell.split("/")[1] for cell in claim.cells(suite.labels)}
        assert len(sizes) == 2 or f"{int(min(sizes)[1:])} clients" in claim.text or "Fig. 8" in claim.remark, claim.text


# -- the experiments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["local", "fedavg", "fliu", "apfl", "fedfomo"])
@pytest.mark.parametrize("data", ["mnist", "cifar10"])
def test_the_full_size_is_the_preset_of_the_paper(data, method):
    cell = SUITES["table3"].cell(f"{data}/k100/lsqs/{method}")
    preset = Experiment.compose(method, preset="paper", flags={"data.name": data, "partition.kind": "lsqs"})
    assert SUITES["table3"].experiment(cell) == preset


def test_a_cell_in_two_exhibits_is_one_experiment():
    """Found by its hash, it is run once."""
    for scale in SCALES:
        in_table = SUITES["table1"].experiment(SUITES["table1"].cell("path/fliu50"), scale)
        for figure in ("fig5", "fig6"):
            assert SUITES[figure].experiment(SUITES[figure].cell("path/fliu50"), scale) == in_table
        in_table = SUITES["table2"].experiment(SUITES["table2"].cell("lsqs/fedfomo"), scale)
        again = SUITES["table3"].cell("cifar10/k100/lsqs/fedfomo")
        assert SUITES["table3"].experiment(again, scale) == in_table
        in_figure = SUITES["fig7"].experiment(SUITES["fig7"].cell("lsqs/apfl"), scale)
        again = SUITES["table3"].cell("mnist/k100/lsqs/apfl")
        assert SUITES["table3"].experiment(again, scale) == in_figure
