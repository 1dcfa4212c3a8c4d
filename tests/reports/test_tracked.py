"""The selection of runs."""

from dataclasses import replace
from typing import Any

import pytest

from pfl_ops.errors import PflOpsError
from pfl_ops.metric_keys import SUMMED_COSTS
from pfl_ops.reports.comparison.fairness import grouped
from pfl_ops.reports.comparison.tracked import select
from pfl_ops.results import Result
from pfl_ops.tracking import RunInfo
from pfl_ops.tracking.runs.finished import choice_tag, read_ahead, result_of
from pfl_ops.tracking.target.run_info import PARENT


@pytest.fixture
def store(made: Any, study: Any, shelf: Any) -> Any:
    """Two methods with two seeds, a study with two trials and one test run, a benchmark of the machine."""
    above = study("fliu-study", "5" * 32)
    bench = study("", "6" * 32, experiment="pfl-ops-bench")
    bench.tags.clear()
    lr: dict[str, Any] = {"training.lr": 0.3}
    below = {"parent": above.run_id, "experiment": "fliu-study"}
    runs = [
        bench, made("fedavg", 0), made("fedavg", 1), made("fliu", 0, tags={"who": "me"}), made("fliu", 1), above,
        made("fliu", 0, trial=0, **below, tags={"pfl_ops.study": "fliu-study"}),
        made("fliu", 0, trial=1, **below, tags={"pfl_ops.study": "fliu-study"}, **lr),
        made("fliu", 0, name="final-seed0", **below, **lr),
    ]  # fmt: skip
    return shelf(runs)


def tracked(run: RunInfo, store: Any = None) -> Result:
    return result_of(run, store)


def names(store: Any, *given: str, **how: Any) -> list[str]:
    return [run.name for run in select(store, given, **how).runs]


def test_by_what_people_call_them(store: Any) -> None:
    plain = ["fedavg-seed0", "fedavg-seed1", "fliu-seed0", "fliu-seed1"]
    assert names(store) == [*plain, "final-seed0"]
    assert names(store, "digits-lsqs") == plain
    assert names(store, "fliu-seed1") == ["fliu-seed1"]
    assert names(store, "fliu-seed*", "fedavg-seed0") == ["fedavg-seed0", "fliu-seed0", "fliu-seed1"]
    by_id = store.kept[3].run_id
    assert names(store, by_id) == names(store, by_id[:6]) == ["fliu-seed0"]


def test_a_study_means_its_tests_and_on_request_its_trials(store: Any) -> None:
    assert names(store, "fliu-study") == ["final-seed0"]
    assert names(store, "5" * 32) == ["final-seed0"]
    assert names(store, "fliu-study", trials=True) == ["trial-000", "trial-001", "final-seed0"]
    assert names(store, "trial-001") == ["trial-001"]  # named itself
    assert names(store, "trial-*", "final-seed0") == ["trial-000", "trial-001", "final-seed0"]


def test_a_configuration_with_a_new_seed_is_compared_only_if_it_is_named(made: Any, study: Any, shelf: Any) -> None:
    """It was run to choose, as a trial was: neither is a test of the choice, and together they are no repetitions."""
    tags = {"pfl_ops.kind": "confirmation"}
    below = {"parent": "5" * 32, "experiment": "fliu-study", "evaluation.split": "validation"}
    runs = [study("fliu-study", "5" * 32), made("fliu", 0, trial=0, parent="5" * 32, experiment="fliu-study")]
    runs += [made("fliu", 1000, name="confirm-000-seed1000", tags=tags, **below)]
    store = shelf([*runs, made("fliu", 0, name="final-seed0", parent="5" * 32, experiment="fliu-study")])
    assert names(store) == names(store, "fliu-study") == ["final-seed0"]
    assert names(store, "fliu-study", trials=True) == ["trial-000", "final-seed0"]
    assert names(store, "confirm-*") == ["confirm-000-seed1000"]
    assert [run.kind for run in select(store, ["confirm-*"]).runs] == ["trial"]


def test_a_pattern_that_other_runs_have_names_no_trials(made: Any, study: Any, shelf: Any) -> None:
    """fliu* is also the label of each trial, "fliu trial-000", and the name of each repetition of one.

    Both were compared as one line: the value by which a configuration was chosen among its new seeds.
    """
    tags = {"pfl_ops.kind": "confirmation"}
    below = {"parent": "5" * 32, "experiment": "small"}
    runs = [study("small", "5" * 32), made("fliu", 0, trial=0, name="000 fliu lr=0.1", **below)]
    runs += [made("fliu", 1000, name="fliu confirm-000-seed1000", tags=tags, **below)]
    runs += [made("fliu", 0, name="fliu final-seed0", **below)]
    store = shelf([*runs, made("fliu", 3, name="fliu-seed3")])
    assert names(store, "fliu*") == ["fliu final-seed0", "fliu-seed3"]
    assert names(store, "fliu*", trials=True) == ["000 fliu lr=0.1", "fliu final-seed0", "fliu-seed3"]
    assert names(store, "fliu trial-*") == ["000 fliu lr=0.1"]
    assert names(store, "fliu conf*") == ["fliu confirm-000-seed1000"]


def test_tests_of_a_former_choice_stay_out_unless_named(made: Any, study: Any, shelf: Any) -> None:
    """More trials may change a study's choice after its test: the better of two tested ones is chosen on test data."""
    above, tags = study("fliu-study", "5" * 32), {"pfl_ops.kind": "final"}
    below = {"parent": above.run_id, "experiment": "fliu-study", "tags": tags}
    old = made("fliu", 0, 0.9, name="old", group="1" * 64, **below, **{"training.lr": 0.5})
    new = made("fliu", 0, 0.5, name="new", group="2" * 64, **below)
    now = replace(above, tags={**above.tags, "pfl_ops.choice": choice_tag([new.tags["pfl_ops.group_hash"]])})
    assert names(shelf([above, old, new])) == ["old", "new"]  # a study of an earlier version
    store = shelf([now, old, new, made("fedavg", 0, name="alone")])
    assert names(store) == ["new", "alone"] and names(store, "fliu-study") == ["new"]
    assert select(store).former == {"fliu-study": 1} and select(store).late == {new.run_id}
    assert names(store, "old") == ["old"] and not select(store, ["old"]).former
    assert names(store, "o*") == ["old"] and names(store, "*[dw]") == ["new"]  # the second names others, too
    assert select(store, ["*[dw]"]).former == {"fliu-study": 1}
    assert select(store, ["new"]).late == {new.run_id} and not select(shelf([above, old, new])).late
    with pytest.raises(PflOpsError, match="there are only test runs of former choices of a study, whose"):
        names(shelf([now, old]))


def test_a_trial_goes_by_its_number_whatever_its_run_is_named(made: Any, study: Any, shelf: Any) -> None:
    """Earlier versions named trials "trial-000", and "fliu trial-000" in benchmarks."""
    named = shelf([made("fliu", 0, trial=0, name="000 fliu lr=0.1"), made("fedavg", 1, trial=1, name="001 fedavg")])
    assert names(named, "trial-000") == names(named, "fliu trial-0*") == names(named, "000 *") == ["000 fliu lr=0.1"]
    assert names(named, "trial-*") == ["000 fliu lr=0.1", "001 fedavg"]
    assert [run.trial for run in select(named, ["trial-*"]).runs] == ["trial-000", "trial-001"]


def test_what_stands_two_floors_below_is_meant_too(made: Any, study: Any, shelf: Any) -> None:
    suite, cell = study("suite", "1" * 32), study("fliu", "2" * 32, experiment="suite")
    cell = replace(cell, tags={**cell.tags, PARENT: suite.run_id})
    run = made("fliu", 0, name="final-seed0", parent=cell.run_id, experiment="elsewhere")
    assert names(shelf([suite, cell, run]), "1" * 32) == ["final-seed0"]


def test_filters_are_taken_of_what_is_named(store: Any) -> None:
    store.found = {store.kept[1].run_id, store.kept[3].run_id}
    assert names(store, where="params.x = '1'") == ["fedavg-seed0", "fliu-seed0"]
    assert names(store, "fliu-seed*", where="params.x = '1'") == ["fliu-seed0"]
    assert names(store, tags={"who": "me"}) == ["fliu-seed0"]


def test_what_a_record_says(store: Any) -> None:
    trial, final = select(store, ["fliu-study", "trial-000"]).runs
    assert (trial.kind, trial.split, trial.study, trial.partition) == ("trial", "val", "fliu-study", None)
    assert (final.kind, final.split, final.study, final.seed) == ("final", "test", "fliu-study", 0)
    assert (final.method, final.length, final.stage) == ("fliu", 20, "L1")
    assert select(store, ["fliu-seed0"]).runs[0].kind == "run"


@pytest.mark.parametrize(
    ("short", "key"),
    [
        ("acc", "test/L1/acc"),
        ("local/worst", "test/L1/local/worst"),
        ("G/acc", "test/G/acc"),
        ("val/L2/acc", "val/L2/acc"),
        ("train/loss", "train/loss"),
    ],
)
def test_short_keys(made: Any, short: str, key: str) -> None:
    assert tracked(made()).key(short) == key


def test_a_method_is_judged_where_its_clients_have_their_models(made: Any) -> None:
    run = made(tags={"pfl_ops.own_stage": "G"})
    assert tracked(run).key("acc") == "test/G/acc"
    assert tracked(made(tags={"pfl_ops.own_stage": "L2"})).stage == "L1"  # not scored: the first that is


def test_a_repetition_counts_once_however_often_it_is_tracked(made: Any, shelf: Any) -> None:
    runs = [made("fliu", 0, name="alone"), made("fliu", 1), made("fliu", 0, name="of a study")]
    assert names(shelf(runs)) == ["fliu-seed1", "of a study"]


def test_an_earlier_run_is_of_another_scaling(made: Any) -> None:
    """Before `data.scaling` inputs were scaled by mean and deviation: such a run is in no group of runs at half."""
    half, before = made("fedavg", 0, **{"data.scaling": "half"}), made("fliu", 0)
    del before.params["data.scaling"]
    assert tracked(before).params["data.scaling"] == "standard"
    assert [len(group) for group in grouped([tracked(half), tracked(before)])] == [1, 1]


def test_unfinished_runs_are_left_out_and_named(made: Any, shelf: Any) -> None:
    found = select(shelf([made("fliu", 0), made("fliu", 1, status="KILLED")]))
    assert [run.seed for run in found.runs] == [0] and found.unfinished == ("fliu-seed1",)


@pytest.mark.parametrize(
    ("given", "how", "message"),
    [
        (["flui-seed0"], {}, "no run, study or experiment named 'flui-seed0'; did you mean 'fliu-seed0'?"),
        (["fliu-stduy"], {}, "did you mean 'fliu-study'?"),
        (["???"], {}, r"there are 7 runs, in digits-lsqs \(4\), fliu-study \(3\)"),
        (["000"], {}, "no run, study or experiment named '000'"),
        ([], {"tags": {"who": "you"}}, "no run is left to compare: there are 7 runs.*--trials adds those of studies"),
    ],
)
def test_names_that_mean_nothing(store: Any, given: list[str], how: dict[str, Any], message: str) -> None:
    with pytest.raises(PflOpsError, match=message.replace("?", r"\?")):
        select(store, given, **how)


def test_nothing_to_compare(made: Any, shelf: Any) -> None:
    with pytest.raises(PflOpsError, match="a shelf has no runs yet; make some: pfl-ops run fliu"):
        select(shelf([]))
    with pytest.raises(PflOpsError, match=r"the run that is meant has not finished \(running\)"):
        select(shelf([made(status="RUNNING")]))
    lost = {"status": "FAILED", "tags": {"pfl_ops.diverged": "diverged at round 1, client 0, lr 0.4"}}
    with pytest.raises(PflOpsError, match=r"has not finished \(diverged at round 1, client 0, lr 0.4\)"):
        select(shelf([made(**lost)]))
    with pytest.raises(PflOpsError, match=r"none of the 3 runs that are meant has finished \(2 diverged, 1 running\)"):
        select(shelf([made(**lost), made("fedavg", **lost), made("ditto", status="RUNNING")]))


def test_the_beginning_of_an_id_must_mean_one_run(made: Any, shelf: Any) -> None:
    runs = [type(run)(**{**vars(run), "run_id": f"abcd{i}"}) for i, run in enumerate([made(), made("fedavg")])]
    with pytest.raises(PflOpsError, match="2 runs have ids that begin with 'abcd'; give more of it"):
        select(shelf(runs), ["abcd"])


def test_the_beginning_of_a_hash_means_the_run_by_itself(made: Any, shelf: Any) -> None:
    """A study's test has the same hash: it is meant where there is no other."""
    one = made()
    start = one.tags["pfl_ops.experiment_hash"][:12]
    below = replace(one, run_id="below", tags={**one.tags, PARENT: "a study"})
    assert [run.run_id for run in select(shelf([below, one]), [start]).runs] == [one.run_id]
    assert [run.run_id for run in select(shelf([below]), [start]).runs] == ["below"]


def test_only_the_metrics_that_are_compared_are_read(made: Any, shelf: Any) -> None:
    run = made()
    store = shelf([run], {run.run_id: {"test/L1/acc": [0.1, 0.2]}})
    found = read_ahead(
        store, replace(select(store).runs[0], metrics={f"total/{key}": 1.0 for key in SUMMED_COSTS}), ["acc"]
    )
    assert store.asked == [(run.run_id, ("test/L1/acc",))] and list(found.history) == ["test/L1/acc"]
    found = read_ahead(store, select(store).runs[0], ["acc"])
    assert store.asked[1:] == [(run.run_id, tuple(sorted({*SUMMED_COSTS, "test/L1/acc"})))]
    assert found.history["test/L1/acc"].tolist() == [0.1, 0.2] and found.history["cost/up_bytes"].isna().all()
    with pytest.raises(PflOpsError, match=r"run 'fliu-seed0': clients.parquet can't be read \(run .* has no artifact"):
        _ = found.clients
    assert tracked(made(trial=0), store).clients.empty
