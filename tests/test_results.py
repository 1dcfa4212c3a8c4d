"""The answers of a finished run, from a table of rounds written by hand."""

import doctest
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pfl_ops import figures
from pfl_ops import results as results_module
from pfl_ops.config.experiment import Experiment
from pfl_ops.energy import Effort
from pfl_ops.errors import PflOpsError
from pfl_ops.results import Result
from pfl_ops.run_on_disk import RunOnDisk

NAN = float("nan")
ROUNDS = pd.DataFrame(
    {
        "test/L1/local/mean": [0.1, 0.5, 0.9, 0.8],
        "test/L1/local/worst": [0.0, 0.2, 0.4, 0.8],
        "test/L1/acc": [0.2, NAN, 1.5, 1.2],
        "test/L2/local/rho_95": [NAN, 1, 3, 2],
        "test/L2/local/clients": [NAN, 4, 4, 3],
        "cost/up_bytes": [NAN, 800, 800, 400],
        "cost/clients": [NAN, 2, 2, 1],
    },
    index=pd.Index([0, 1, 2, 3], name="round"),
)


def result(rounds: pd.DataFrame = ROUNDS, **settings: Any) -> Result:
    experiment = Experiment.of("fedavg", **{"local_steps": 5, **settings})
    return RunOnDisk(experiment, rounds, pd.DataFrame(), Path("nowhere")).result({}, {})


def test_a_curve_has_the_rounds_that_were_evaluated() -> None:
    assert result().curve().tolist() == [0.1, 0.5, 0.9, 0.8]
    assert result().curve("L1", "acc").to_dict() == {0: 0.2, 2: 1.5, 3: 1.2}
    renamed = ROUNDS.rename(columns=lambda name: name.replace("test/", "val/"))
    assert result(renamed, **{"evaluation.split": "validation"}).curve(statistic="worst").iloc[-1] == 0.8
    with pytest.raises(
        PflOpsError, match=r"no tracked value named 'test/L1/local/wrst'. Did you mean 'test/L1/local/worst'\?"
    ):
        result().curve(statistic="wrst")


def test_plot_is_the_tracked_figure_and_draws_through_nan() -> None:
    """`rounds` keeps its NaN; the figure is the one that is drawn from the records, which lack these keys."""
    table = pd.DataFrame(
        {"test/L1/local/mean": [0.1, 0.5, 0.7], "test/L1/global/mean": [0.1, NAN, 0.5]},
        index=pd.Index([0, 1, 2], name="round"),
    )
    records = [(int(str(t)), {k: v for k, v in row.items() if v == v}) for t, row in table.to_dict("index").items()]
    found = result(table)
    assert figures.to_svg(found.plot("a"), "x") == figures.to_svg(figures.curves(records, "a"), "x")
    assert found.plot().axes[1].lines[0].get_xdata().tolist() == [0, 2]
    assert found.rounds["test/L1/global/mean"].isna().tolist() == [False, True, False]


def test_the_examples_of_a_result_are_true() -> None:
    table = pd.DataFrame({"test/L1/local/mean": [0.1, 0.5, 0.7], "test/L1/global/mean": [0.1, NAN, 0.5]})
    known = {**vars(results_module), "result": result(table)}
    assert doctest.testmod(results_module, globs=known) == doctest.TestResults(failed=0, attempted=4)


def test_a_row_of_a_file_has_its_measures_alone() -> None:
    """Measures are in the paper's unit; whatever else is asked for is one line."""
    row = Result.of_numbers(3, {}, measures={"test/L1/acc": 181.5, "test/L1/acc@90": NAN})
    assert (row.seed, row.value("test/L1/acc", unit=100.0), row.value("test/L1/acc@90")) == (3, 181.5, None)
    assert row.by_round("test/L1/acc") == {} and row.spent("cost/up_bytes") is None and row.seconds != row.seconds
    for read in (lambda: row.experiment, lambda: row.rounds, lambda: row.clients, lambda: row.model(0)):
        with pytest.raises(PflOpsError, match="is a row of a file of results, which has its measures alone; run it"):
            read()


def test_a_result_is_shown_with_its_last_evaluation_in_percent() -> None:
    run = RunOnDisk(Experiment.of("fedavg"), ROUNDS, pd.DataFrame(), Path("nowhere"))
    final = {"final/test/L1/local/mean": 0.625, "final/test/L1/global/mean": 0.5}
    assert repr(run.result(final, {})).endswith(", L1 Acc(L) 62.5 %, Acc(G) 50.0 %)")


def test_a_number_by_its_short_key() -> None:
    """Acc of the last round; the round that reaches 50 %; the value of round 1; the highest; what was sent in all."""
    found = result()
    assert (found.value("acc"), found.value("L1/local/worst"), found.value("acc", "best")) == (1.2, 0.8, None)
    assert found.value("local/mean@50", unit=100.0) == 1 and found.value("local/mean@95", unit=100.0) == float("inf")
    assert found.value("local/mean#1", unit=100.0) == 50 and found.value("local/mean#best") == 0.9
    falling = result(pd.DataFrame({"test/L1/local/mean": [0.8, 0.7, 0.6]}))  # round 0 has no training
    assert (falling.value("local/mean#best"), falling.value("local/mean#0")) == (0.7, 0.8)
    assert found.by_round("L2/local/below_95") == {1: 3, 2: 1, 3: 1}
    assert found.spent("cost/up_bytes") == 2000 and found.spent("cost/down_bytes") is None


def test_value_absent_from_last_evaluation_is_none() -> None:
    """With evaluation.absent=last the end has L2 on own data alone; the curves' L2 is of the last cohort."""
    params = {"seed": "0", "evaluation.split": "test"}
    curves = {"test/L2/local/mean": 0.975, "test/L2/global/mean": 0.255, "test/L2/acc": 1.23, "train/loss": 0.5}
    tags = {"pfl_ops.own_stage": "L2"}
    ended = Result(params, {**curves, "final/test/L2/local/mean": 0.97}, tags)
    assert [ended.value(key) for key in ("local/mean", "global/mean", "acc")] == [0.97, None, None]
    assert ended.value("train/loss") == 0.5
    trial = Result(params, curves, tags)  # it has no evaluation after its last round
    assert [trial.value(key) for key in ("local/mean", "acc")] == [0.975, 1.23]


def test_rounds_to_a_target() -> None:
    assert (result().rounds_to(0.5), result().rounds_to(0.9), result().rounds_to(0.95)) == (1, 2, None)
    assert result().rounds_to(0.8, statistic="worst") == 3
    assert result().rounds_to(1.0, "L1", "acc") == 2
    assert result().rounds_to(2.0, "L2", "local", "rho_95") == 2  # clients, no accuracy
    for target, more in ((90, {}), (1.1, {"statistic": "worst"}), (150, {"view": "acc"})):  # None, as if never reached
        with pytest.raises(PflOpsError, match=f"0.9 for 90 %; no test/L1/.* reaches {target}"):
            result().rounds_to(target, **more)


def test_clients_above_and_below() -> None:
    """Four scored clients in rounds 1 and 2, three in round 3."""
    assert result().clients_above(0.95, "L2").to_dict() == {1: 1, 2: 3, 3: 2}
    assert result().clients_below(0.95, "L2").to_dict() == {1: 3, 2: 1, 3: 1}
    with pytest.raises(PflOpsError, match=r"'test/L2/local/rho_90'. Did you mean 'test/L2/local/rho_95'"):
        result().clients_above(0.9, "L2")


def test_effort_by_what_was_really_sent() -> None:
    """2,000 bytes by five participations: 400 bytes, 3,200 bits a client and round."""
    assert result().effort(0.4) == Effort(steps=5, rounds=2, bits=3200.0)
    assert result().effort(0.95).rounds is None
    with pytest.raises(PflOpsError, match=r"energy is counted by local steps \(τ\): run with training.local_steps"):
        result(local_steps="none", local_epochs=2).effort()
