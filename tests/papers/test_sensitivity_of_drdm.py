"""docs/reproduced.md says of DRDM's Table 3 under changed settings what the kept runs say."""

from pathlib import Path

import pytest

from pfl_ops.data.datasets import here
from pfl_ops.papers import find, results_files
from pfl_ops.reports.suites.verdicts import standings

RESULTS = Path(__file__).parents[2] / "docs" / "results"
NUMBERS = {"training.lr": "η", "training.local_steps": "τ", "partition.clients": "N", "algorithm.alpha": "α"}


@pytest.mark.skipif(not here("mnist"), reason="MNIST is not here, so that rows can't be checked against the suite")
def test_columns_in_which_drdm_leads() -> None:
    runs = [run for run in results_files.read(RESULTS, [find("drdm/table3")]) if run.changes]
    agrees: dict[str, dict[str, str]] = {}
    for run in runs:
        ((path, value),) = run.changes.items()
        for claim in standings(run):
            agrees.setdefault(claim.text, {})[f"{NUMBERS[path]} {value}"] = claim.agrees
            assert claim.ours == "undecided"
    assert sum(len(each) for run in runs for cell, each in run.outcomes.items() if cell in run.changed) == 444
    worst = agrees["DRDM has the highest worst-case accuracy"]
    assert {name for name, count in worst.items() if count in ("3 of 4", "4 of 4")} == {
        "τ 1",
        "τ 20",
        "η 0.005",
        "η 0.05",
    }
    assert {name for name, count in worst.items() if count in ("1 of 4", "2 of 4")} == {
        "N 50", "N 100", "α 0.1", "α 3", "η 0.1",
    }  # fmt: skip
    average = agrees["DRDM has the highest average"]
    assert {name for name, count in average.items() if count == "4 of 4"} == {"τ 1", "η 0.005"}
    assert {count for name, count in average.items() if name not in ("τ 1", "η 0.005")} == {"0 of 4", "1 of 4"}
    skew = agrees["Less class skew, better worst-case accuracy"]
    assert {name for name, count in skew.items() if count != "5 of 5"} == {"N 50"} and skew["N 50"] == "4 of 5"
    drfa = agrees["DRFA's worst-case accuracy is above FedAvg's"]
    assert {name for name, count in drfa.items() if count == "3 of 4"} == {"τ 20", "η 0.005"}
    assert drfa["τ 1"] == "0 of 4"
