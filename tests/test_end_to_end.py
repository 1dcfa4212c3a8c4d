"""The main job, on real data with real Ray and a real store; then what the store holds.

Processes are forks of the tests' fork server. CI runs `make tune` and the README's commands as a user starts them.
"""

from collections.abc import Callable
from pathlib import Path

import mlflow
import pandas as pd
import pytest
from end_to_end import SMALL, Tuned, pfl_ops, pfl_ops_here
from mlflow.tracking import MlflowClient
from safetensors.torch import load_file

from pfl_ops.config.experiment import Experiment
from pfl_ops.data.datasets import load
from pfl_ops.data.partition_files import read_partition

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_user_is_told_what_was_found(tuned: Tuned) -> None:
    for said in ("algorithm.gamma.kind", "training.lr", "pfl-ops ui", "Acc(L)", "L1"):
        assert said in tuned.output


def test_a_study_is_a_parent_with_a_child_for_each_trial_and_test_run(tuned: Tuned) -> None:
    trials, finals = tuned.of_kind("trial"), tuned.of_kind("final")
    assert len(trials) == 3
    for number, trial in enumerate(trials):
        rate = float(trial.data.params["training.lr"])
        kind = trial.data.params["algorithm.gamma.kind"]
        assert str(trial.info.run_name).startswith(f"{number:03d} fliu gamma={kind} ")
        assert f" lr={rate:.3g} " in f"{trial.info.run_name} "
    assert [r.info.run_name for r in finals] == ["final-seed0"]
    (parent,) = [r for r in tuned.runs if "mlflow.parentRunId" not in r.data.tags]
    assert {r.data.tags["mlflow.parentRunId"] for r in [*trials, *finals]} == {parent.info.run_id}
    assert {r.info.status for r in tuned.runs} == {"FINISHED"}
    assert len({r.info.experiment_id for r in tuned.runs}) == 1


def test_trials_are_scored_on_validation_data_only_and_the_choice_on_test_data_once(tuned: Tuned) -> None:
    for trial in tuned.of_kind("trial"):
        assert not [key for key in trial.data.metrics if "test/" in key]
        history = tuned.client.get_metric_history(trial.info.run_id, "val/L1/local/mean")
        assert [point.step for point in history] == list(range(history[-1].step + 1))
    (final,) = tuned.of_kind("final")
    assert not [key for key in final.data.metrics if "val/" in key]
    assert 0 < final.data.metrics["final/test/L1/acc"] <= 2
    acc = tuned.client.get_metric_history(final.info.run_id, "test/L1/acc")
    assert [point.step for point in acc] == [0, 2, 4]


def test_the_chosen_run_keeps_everything_to_judge_it_and_to_use_it(tuned: Tuned) -> None:
    (final,) = tuned.of_kind("final")
    folder = Path(tuned.client.download_artifacts(final.info.run_id, ""))
    experiment = Experiment.from_yaml(folder / "config.yaml")
    assert experiment.hash == final.data.tags["pfl_ops.experiment_hash"]
    assert {p.name for p in (folder / "figures").iterdir()} == {"accuracy.png", "clients.png", "partition.png"}
    recorded = read_partition(folder / "partition")
    assert recorded.digest == final.data.tags["pfl_ops.partition_hash"]
    assert sum(map(len, recorded.train)) == 1438  # every training sample of digits has an owner
    table = pd.read_parquet(folder / "clients.parquet")
    mean = table[table.stage == "L1"].local.mean()
    assert mean == pytest.approx(final.data.metrics["final/test/L1/local/mean"])
    personal = load_file(folder / "models" / "personal.safetensors")
    assert {name.split("/")[0] for name in personal} == {f"client-{k:03d}" for k in range(4)}
    assert load_file(folder / "models" / "global.safetensors")["head.weight"].shape == (10, 32)
    (given,) = final.inputs.dataset_inputs
    assert given.dataset.name == "digits"


def test_its_global_model_answers_as_it_was_scored(
    tuned: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (final,) = tuned.of_kind("final")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tuned.home}/mlruns/mlflow.db")
    served = mlflow.pyfunc.load_model(f"runs:/{final.info.run_id}/model", dst_path=str(tmp_path))
    test = load("digits").test
    right = (served.predict(test.x)["class"].to_numpy() == test.y).mean()
    assert right == pytest.approx(final.data.metrics["final/test/G/global/mean"], abs=1e-6)


def test_the_same_command_again_runs_nothing_again(tuned: Tuned) -> None:
    pfl_ops(*tuned.words, home=tuned.home)
    again = tuned.client.search_runs([tuned.runs[0].info.experiment_id])
    assert {r.info.run_id for r in again} == {r.info.run_id for r in tuned.runs}
    before = {r.info.run_id: r.data.metrics for r in tuned.of_kind("final")}
    assert {r.info.run_id: r.data.metrics for r in again if r.info.run_id in before} == before


def test_a_file_equals_the_flags_and_a_recorded_partition_gives_the_same_clients(tuned: Tuned) -> None:
    (final,) = tuned.of_kind("final")
    folder = Path(tuned.client.download_artifacts(final.info.run_id, ""))
    flags = ["--dataset", "digits", "--rounds", "1", "--clients", "4"]
    pfl_ops_here("run", "fedavg", *flags, home=tuned.home)
    written = tuned.home / "mine.yaml"
    written.write_text(Experiment.of("fedavg", dataset="digits", rounds=1, clients=4).to_yaml(), encoding="utf-8")
    pfl_ops_here("run", "--config", str(written), home=tuned.home)
    pfl_ops_here("run", "fedavg", *flags[:4], "--partition", f"file:{folder / 'partition'}", home=tuned.home)

    ids = [e.experiment_id for e in tuned.client.search_experiments()]
    runs = tuned.client.search_runs(ids, "tags.algorithm = 'fedavg'")
    assert len(runs) == 2  # the file was the same run; the partition from a file is another experiment ...
    partitions = {r.data.tags["pfl_ops.partition_hash"] for r in runs}
    assert partitions == {final.data.tags["pfl_ops.partition_hash"]}  # ... with the same clients


def test_methods_under_one_budget_meet_the_same_clients_and_end_in_one_leaderboard(
    tmp_path: Path, furnish: Callable[[Path], Path]
) -> None:
    furnish(tmp_path / "mlruns")
    words = ["fedavg,ditto", "--dataset", "digits", "--trials", "2", "--repetitions", "2", *SMALL, "--rounds", "2"]
    words += ["--set", "participation.weighting=samples"]  # ditto's space does not vary it
    output = pfl_ops("tune", *words, "--concurrency", "1", "--name", "mine", home=tmp_path)
    for said in ("1  ", "2  ", "fedavg", "ditto", "paired t test over 2 seeds", "reports/mine/index.html"):
        assert said in output

    client = MlflowClient(f"sqlite:///{tmp_path}/mlruns/mlflow.db")
    experiment = client.get_experiment_by_name("mine")
    assert experiment is not None
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    top = runs["benchmark"].info.run_id
    assert "report/index.html" in {f.path for f in client.list_artifacts(top, "report")}
    for method in ("fedavg", "ditto"):
        assert runs[method].data.tags["mlflow.parentRunId"] == top
        tested = [runs[f"{method} final-seed{seed}"].data.metrics["final/test/L1/acc"] for seed in (0, 1)]
        assert runs[method].data.metrics["leaderboard/test"] == pytest.approx(sum(tested) / 2)
        (trial,) = [run for name, run in runs.items() if str(name).startswith(f"000 {method} ")]
        assert trial.data.tags["mlflow.parentRunId"] == runs[method].info.run_id
        assert not [key for key in trial.data.metrics if "test/" in key]
    partitions = [
        [runs[f"{method} final-seed{seed}"].data.tags["pfl_ops.partition_hash"] for seed in (0, 1)]
        for method in ("fedavg", "ditto")
    ]
    assert partitions[0] == partitions[1] and len(set(partitions[0])) == 2


@pytest.mark.needs_data("mnist")
def test_mnist(tmp_path: Path, furnish: Callable[[Path], Path]) -> None:
    furnish(tmp_path / "mlruns")
    small = ["--train-size", "1000", "--clients", "5", "--rounds", "2", "--model", "mlp"]
    assert "G" in pfl_ops_here("run", "fliu", "--dataset", "mnist", *small, home=tmp_path)
    estimate = pfl_ops_here("tune", "fliu", "--dataset", "mnist", "--dry-run", home=tmp_path)
    assert "20 trials" in estimate and "memory" in estimate
