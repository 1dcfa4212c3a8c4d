"""One run through the one door: what it gives, what MLflow has of it, and what stops it without losing anything."""

import doctest
import errno
import gc
import math
import re
import shutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file

from pfl_ops import figures, recording, rng, runs, tag_names
from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.algorithms.fedavg import FedAvg
from pfl_ops.algorithms.fliu import FLIU
from pfl_ops.config.arguments import ArgumentError
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.loop import diverged, engine
from pfl_ops.federation.loop.diverged import Diverged
from pfl_ops.federation.method.checked import MethodError
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.state import checkpoint, durable
from pfl_ops.metric_keys import SUMMED_COSTS, TOTAL_PREFIX
from pfl_ops.models import build
from pfl_ops.registry import load_plugin
from pfl_ops.reports.comparison.tracked import select
from pfl_ops.tracking.runs.finished import experiment_of, read_ahead, result_of
from pfl_ops.tracking.runs.store import Store
from pfl_ops.tracking.target.run_info import RunInfo

LOOP = Execution(device="cpu", way="loop", threads=1)
ARTIFACTS = ("config.yaml", "clients.parquet", "figures/partition.png", "figures/accuracy.png", "figures/clients.png",
             "models/global.safetensors", "models/personal.safetensors", "partition")  # fmt: skip

FIGURES = {name: getattr(figures, name) for name in ("partition", "curves", "clients")}


def experiment(seed: int = 0, method: str = "fliu", **more: Any) -> Experiment:
    return Experiment.of(
        method, dataset="digits", model="linear", clients=4, rounds=3, participation=0.5, batch_size=20, seed=seed,
        **{"data.train_size": 120, "evaluation.subset": 40, **more},
    )  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, furnish: Callable[[Path], Path]) -> Path:
    """One work folder. Tests keep apart by their seeds."""
    return furnish(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def store(home: Path) -> Iterator[Store]:
    with Store.open(home) as opened:
        yield opened


@pytest.fixture(autouse=True, scope="module")
def _own_settings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PFL_OPS_HOME", "MLFLOW_TRACKING_URI"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True, scope="module")
def _plain_figures(_own_settings: None) -> Iterator[pytest.MonkeyPatch]:
    """Empty ones, which are drawn faster."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("partition", "curves", "clients"):
            patch.setattr(figures, name, lambda *_, **__: Figure((1, 1)))
        yield patch


def go(store: Store, e: Experiment, **how: Any) -> runs.Result:
    return runs.run(e, execution=LOOP, store=store, **how)


def tracked(store: Store, e: Experiment) -> RunInfo:
    found = store.find(e.digest())
    assert found is not None
    return found


def models_of(run: runs.Result) -> list[dict[str, torch.Tensor]]:
    return [run.model(k) for k in range(4)]


def same(one: runs.Result, other: runs.Result, models: list[dict[str, torch.Tensor]] | None = None) -> None:
    """Assert that two results are equal; `models`: the other's, if another computation has its checkpoint since."""
    clock = [c for c in one.rounds.columns if c.startswith("cost/")]
    pd.testing.assert_frame_equal(one.rounds.drop(columns=clock), other.rounds.drop(columns=clock))
    pd.testing.assert_frame_equal(one.clients, other.clients)
    assert one.final == other.final
    for mine, theirs in zip(models_of(one), models or models_of(other), strict=True):
        assert all(torch.equal(value, theirs[name]) for name, value in mine.items())


# -- what it gives -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result(store: Store) -> runs.Result:
    return go(store, experiment())


def test_a_result(result: runs.Result, home: Path) -> None:
    assert list(result.rounds.index) == [0, 1, 2, 3] and result.rounds.index.name == "round"
    assert result.rounds["test/L1/local/mean"].notna().all()
    assert list(result.rounds["test/L1/global/mean"].notna()) == [True, False, False, True]
    assert 0 < result.final["final/test/G/local/mean"] <= 1 and result.final["best/round"] in (1, 2, 3)
    assert list(result.clients["client"]) == [0, 1, 2, 3] * 3
    assert result.folder == home / "checkpoints" / experiment().digest() and (result.folder / "finished").is_dir()
    assert result.complaints == [] and result.run_id and result.experiment == experiment()


def test_run_shows_its_progress_if_asked_for(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    go(store, experiment(seed=81))
    assert "round" not in capsys.readouterr().err
    go(store, experiment(seed=82), progress=True)
    lines = [line for line in capsys.readouterr().err.splitlines() if "seed 82  round" in line]
    assert len(lines) == 3 and lines[2].startswith("fliu-digits-lsqs seed 82  round 3/3  Acc(L) ")


def test_the_example_of_run_is_true(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_OPS_HOME", str(home))
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for example in doctest.DocTestFinder(recurse=False).find(runs.run, "run", globs=vars(runs).copy()):
        runner.run(example)
    assert runner.tries == 3 and not runner.failures


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], Any]]]:
    """Weak references to the simulations that are built, while nothing collects garbage."""
    references: list[Callable[[], Any]] = []
    build = Experiment.build

    def watched(self: Experiment, **how: Any) -> Any:
        simulation = build(self, **how)
        references.append(weakref.ref(simulation))
        return simulation

    monkeypatch.setattr(Experiment, "build", watched)
    gc.disable()
    yield references
    gc.enable()


def test_a_run_leaves_no_models_in_memory(store: Store, built: list[Callable[[], Any]]) -> None:
    """Nothing that `run` made holds the simulation once it has returned."""
    found = go(store, experiment(seed=77), progress=False)
    assert found.final and [simulation() for simulation in built] == [None]


@pytest.mark.parametrize("how", ["stop", "continue"])
def test_a_run_that_diverges_leaves_no_models_in_memory(
    how: Any, store: Store, built: list[Callable[[], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error keeps no simulation alive once it has been dealt with."""
    monkeypatch.setattr(diverged, "check", lambda *_: Diverged(1, 0.1))
    execution = Execution(diverged=how, threads=1, workers=1)
    with pytest.raises(Diverged):
        runs.run(experiment(seed=78), store=store, progress=False, execution=execution)
    assert [simulation() for simulation in built] == [None]


def test_its_models(result: runs.Result) -> None:
    g, own = result.global_model(), [result.model(k) for k in range(4)]
    assert g is not None and set(g) == {"head.weight", "head.bias"} == set(own[0])
    assert own[0]["head.weight"].shape == (10, 64)
    assert not torch.equal(own[0]["head.bias"], own[1]["head.bias"])
    for wrong in (4, -1):
        with pytest.raises(PflOpsError, match=f"there is no client {wrong}; clients are 0 to 3"):
            result.model(wrong)
    assert torch.equal(result.model(np.int64(1))["head.bias"], own[1]["head.bias"])
    wrong_kinds: list[tuple[Any, str]] = [("ward-c", "'ward-c'"), (2.0, "a float"), ([0, 1], "a list")]
    for given, told in wrong_kinds:
        with pytest.raises(ArgumentError, match=re.escape(f"model() takes the number of one client, got {told}; ")):
            result.model(given)


def test_models_of_clients_that_a_method_lacks(store: Store) -> None:
    found = go(store, experiment(method="centralized"))
    assert found.global_model() is not None
    for one in (found, result_of(tracked(store, found.experiment), store)):
        with pytest.raises(PflOpsError, match=r"^centralized keeps no models of clients; take global_model\(\)$"):
            one.model(0)


def test_a_model_that_all_share(store: Store) -> None:
    found = go(store, experiment(method="fedavg"))
    g = found.global_model()
    assert g is not None and all(torch.equal(found.model(k)["head.bias"], g["head.bias"]) for k in range(4))
    there = result_of(tracked(store, found.experiment), store).model(3)
    assert there.keys() == g.keys() and all(torch.equal(there[name], g[name]) for name in g)
    with pytest.raises(PflOpsError, match="there is no client 4; clients are 0 to 3"):
        result_of(tracked(store, found.experiment), store).model(4)
    with pytest.raises(PflOpsError, match="has no artifact"):
        store.download(str(found.run_id), "models/personal.safetensors")


def test_what_a_model_answers_with_beside_its_parameters(store: Store) -> None:
    """FedROD's personal head: a client's own, beside the generic model that all share."""
    found = go(store, experiment(method="fedrod"))
    own = [found.model(k) for k in range(2)]
    assert torch.equal(own[0]["head.weight"], own[1]["head.weight"])
    assert own[0]["personal"].shape == (650,) and not torch.equal(own[0]["personal"], own[1]["personal"])
    kept = load_file(store.download(str(found.run_id), "models/personal.safetensors"))
    assert torch.equal(kept["client-001/personal"], own[1]["personal"])


DRAWN_FEATURES = '''
import torch
from torch import nn

from pfl_ops import register
from pfl_ops.models.base import Network


class Drawn(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.register_buffer("w", torch.randn(d, 12) / d**0.5)

    def forward(self, x):
        return torch.relu(x.flatten(1) @ self.w)


@register("drawn_features")
class DrawnFeatures(Network):
    """A linear network on fixed random features."""

    def __init__(self, shape, n_classes):
        super().__init__({"drawn": Drawn(shape[0] * shape[1])}, 12, n_classes)
'''


def test_models_bring_the_buffers_that_the_seed_draws(
    store: Store, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They fill a network that is built with another seed, by hand and where MLflow loads it, and answer as scored."""
    import mlflow.pyfunc

    (tmp_path / "drawn.py").write_text(DRAWN_FEATURES)
    load_plugin(tmp_path / "drawn.py")
    all_clients = {"data.train_size": 120, "participation.share": 1.0, "evaluation.final": "all"}
    e = Experiment.of("fliu", dataset="digits", model="drawn_features", clients=4, rounds=2, seed=5, **all_clients)
    found, clients = go(store, e), e.clients()
    x = ((clients.held.x - torch.from_numpy(clients.mean)) / torch.from_numpy(clients.std)).movedim(3, 1)
    network = build(e.model, clients.shape, clients.n_classes, seed=0).eval()

    def accuracy(model: dict[str, torch.Tensor] | None) -> float:
        assert model is not None
        network.load_state_dict(model)
        with torch.no_grad():
            return float((network(x).argmax(dim=1) == clients.held.y).double().mean())

    own = found.clients[found.clients["stage"] == "L1"]["global"].tolist()
    scored = found.final["final/test/G/global/mean"]
    for run in (found, result_of(tracked(store, e), store)):
        assert accuracy(run.global_model()) == pytest.approx(scored, abs=1e-9)
        assert [accuracy(run.model(k)) for k in range(4)] == pytest.approx(own, abs=1e-9)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home}/mlflow.db")
    served = mlflow.pyfunc.load_model(f"runs:/{found.run_id}/model", dst_path=str(tmp_path))
    right = served.predict(clients.held.x.numpy())["class"].to_numpy() == clients.held.y.numpy()
    assert right.mean() == pytest.approx(scored, abs=1e-9)


def test_many_models_come_in_several_files(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """650 numbers a model: four clients in two files, which hold what the one would."""
    found = go(store, experiment())
    monkeypatch.setattr(recording, "MODELS_IN_A_FILE", 2 * 650 * 4)
    files = list(recording.models(found.source.simulation(), tmp_path))
    assert [f.name for f in files] == ["global.safetensors", "personal-000.safetensors", "personal-001.safetensors"]
    several = {name: value for f in files[1:] for name, value in load_file(f).items()}
    one = load_file(store.download(str(found.run_id), "models/personal.safetensors"))
    assert several.keys() == one.keys() and all(torch.equal(value, one[name]) for name, value in several.items())


def test_clients_that_never_took_part_leave_no_model(store: Store, tmp_path: Path) -> None:
    found = go(store, experiment(seed=12, **{"participation.share": 0.25, "training.rounds": 2}))
    simulation = found.source.simulation()
    took_part = simulation.participants.tolist()
    assert 1 <= len(took_part) <= 2
    _, file = recording.models(simulation, tmp_path)
    assert {name.partition("/")[0] for name in load_file(file)} == {f"client-{k:03d}" for k in took_part}


def test_what_mlflow_has(result: runs.Result, store: Store, tmp_path: Path) -> None:
    info = tracked(store, experiment())
    assert (info.run_id, info.status) == (result.run_id, "FINISHED")
    history = store.history(info.run_id)
    for column in result.rounds:
        pd.testing.assert_series_equal(
            history[column].dropna(), result.rounds[column].dropna(), check_names=False, check_index_type=False
        )
    for key, value in result.final.items():
        assert info.metrics[key] == value
    assert info.params["training.rounds"] == "3" and info.params["algorithm.name"] == "fliu"
    engine = {
        "pfl_ops.state": "memory",
        "pfl_ops.clients": "4",
        "pfl_ops.way": "loop",
        "pfl_ops.chunk": "1",
        "pfl_ops.threads": "1",
        "pfl_ops.workers": "1",
        "pfl_ops.precision": "float32",
        "pfl_ops.kernels": "torch",
    }
    expected = {"algorithm": "fliu", "dataset": "digits", "model": "linear", **engine}
    assert expected.items() <= info.tags.items()
    for artifact in ARTIFACTS:
        assert store.download(info.run_id, artifact, tmp_path / artifact.replace("/", "-")).exists(), artifact
    table = pd.read_parquet(store.download(info.run_id, "clients.parquet", tmp_path / "table"))
    pd.testing.assert_frame_equal(table, result.clients, check_dtype=False)
    again = Experiment.from_yaml(store.download(info.run_id, "config.yaml", tmp_path / "config"))
    assert again == experiment()


def test_a_run_in_mlflow_answers_as_the_run_on_disk(result: runs.Result, store: Store, home: Path) -> None:
    """Rounds, scores, clients, settings, models and cost; also once the store is closed that it was found in."""
    with Store.open(home) as other:
        found = result_of(tracked(store, experiment()), other)
        assert found.history.empty, "rounds are read when they are asked for"
        assert found.experiment == result.experiment
        pd.testing.assert_frame_equal(found.rounds[list(result.rounds)], result.rounds, check_index_type=False)
        assert set(found.rounds) == set(result.rounds) and found.final == result.final
    assert {**result.metrics}.items() <= found.metrics.items()
    assert {**result.params} == {**found.params} and {**result.tags}.items() <= found.tags.items()
    pd.testing.assert_frame_equal(found.clients, result.clients, check_dtype=False)
    for name in ("run_id", "name", "place", "parent", "study", "kind", "trial", "state", "seed", "hash", "group",
                 "method", "length", "split", "stage", "partition", "final_samples", "folder"):  # fmt: skip
        assert getattr(found, name) == getattr(result, name), name
    assert repr(found) == repr(result) and found.curve().tolist() == result.curve().tolist()
    assert found.value("acc") == result.value("acc") == result.final["final/test/L1/acc"]
    costs = {key: result.spent(key) for key in SUMMED_COSTS}
    assert None not in costs.values() and {key: found.spent(key) for key in SUMMED_COSTS} == costs
    assert found.seconds == pytest.approx(result.seconds)
    assert read_ahead(store, found, ()).history.empty, "the sums were tracked at the end"
    older = replace(
        found, metrics={key: value for key, value in found.metrics.items() if not key.startswith(TOTAL_PREFIX)}
    )
    assert older.spent(*SUMMED_COSTS) is None and math.isnan(older.seconds)
    older = read_ahead(store, older, ())
    assert set(older.history) == set(SUMMED_COSTS) and {key: older.spent(key) for key in SUMMED_COSTS} == costs
    took_part = result.source.simulation().participants.tolist()
    assert 1 <= len(took_part) < 4
    for k in range(4):
        if k not in took_part:
            with pytest.raises(PflOpsError, match=f"MLflow has no model of client {k}; it never took part, or there"):
                found.model(k)
            continue
        own = found.model(k)
        assert own.keys() == result.model(k).keys()
        assert all(torch.equal(value, result.model(k)[name]) for name, value in own.items())
    g, same_g = found.global_model(), result.global_model()
    assert g is not None and same_g is not None and all(torch.equal(g[name], same_g[name]) for name in same_g)
    with pytest.raises(PflOpsError, match="there is no client 4; clients are 0 to 3"):
        found.model(4)


@pytest.mark.parametrize("method", ALGORITHMS.names())
def test_experiment_of_mlflow_params(method: str) -> None:
    """A trial has no config.yaml: its settings are read from the text of its parameters."""
    experiment = Experiment.of(method, partition="path", seed=3)
    params = {path: str(value) for path, value in experiment.flat.items()}
    assert experiment_of(params) == experiment


def test_records_as_a_table() -> None:
    records = [checkpoint.Record(0, {"a": 1.0}, 5), checkpoint.Record(1, {"b": 2.0}, 6)]
    found = runs.table(records)
    assert list(found.index) == [0, 1] and found.loc[0, "a"] == 1 and math.isnan(found.loc[1, "a"])


def test_its_figures(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, function in FIGURES.items():
        monkeypatch.setattr(figures, name, function)
    found = go(store, experiment(seed=1))
    for name in ("partition", "accuracy", "clients"):
        file = store.download(str(found.run_id), f"figures/{name}.png", tmp_path / name)
        assert file.read_bytes()[:4] == b"\x89PNG"


def test_picture_of_clients_says_what_is_drawn(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local accuracies, of validation data if the run is scored on these: the page of a run has the picture alone."""
    said = []
    monkeypatch.setattr(figures, "clients", lambda *_, **how: said.append(how["ylabel"]) or Figure((1, 1)))
    go(store, experiment(seed=61))
    go(store, experiment(seed=61, **{"evaluation.split": "validation"}))
    assert said == ["test accuracy, own data", "validation accuracy, own data"]


def test_run_without_scored_rounds_is_finished(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """`centralized` has G alone: with `evaluation.stages=L1` only the full evaluation after the last round has a score,
    which the picture then shows."""
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "curves", lambda records: drawn.append(records) or FIGURES["curves"](records))
    e = experiment(seed=2, method="centralized", **{"participation.share": 1.0, "evaluation.stages": ["L1"]})
    found = go(store, e)
    assert tracked(store, e).status == "FINISHED"
    ((last, values),) = drawn[0]
    assert last == 3 and values["test/G/local/mean"] == found.final["final/test/G/local/mean"]


def test_run_of_a_client_without_test_samples_is_finished(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two clients the second one is scored, and the first one has all test samples: Acc(G) alone has values."""
    for name, function in FIGURES.items():
        monkeypatch.setattr(figures, name, function)
    x, y, owner = np.arange(32, dtype=np.float32).reshape(16, 2), np.arange(16) % 2, np.arange(16) // 8
    parts = {"x_test": x[:8], "y_test": y[:8], "client_test": owner[:8]}
    np.savez(tmp_path / "two.npz", x_train=x, y_train=y, client_train=owner, **parts)
    seed = next(s for s in range(9) if rng.generator(s, "evaluation/clients").choice(2, 1, replace=False) == [1])
    e = Experiment.of(
        "fedavg", dataset=str(tmp_path / "two.npz"), model="linear", rounds=2, seed=seed, **{"evaluation.clients": 1}
    )
    found = go(store, e)
    assert tracked(store, e).status == "FINISHED"
    assert "final/test/G/global/mean" in found.final and not any("/local/" in key for key in found.final)


# -- a method that fails ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [0, 1])
def test_method_that_fails_ends_its_run(t: int, store: Store, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong answer in round 1 leaves no checkpoint, a later one the finished rounds; MLflow's run is FAILED."""
    e, whole = experiment(seed=70 + t), FLIU.round
    with monkeypatch.context() as patch:
        patch.setattr(FLIU, "round", lambda self, s, r: whole(self, s, r) if r.t < t else None)
        with pytest.raises(MethodError, match=r"method 'fliu': round\(\) returned None") as caught:
            go(store, e)
    assert caught.value.exit_code == (1 if t else 2)
    assert tracked(store, e).status == "FAILED"
    assert (home / "checkpoints" / e.digest()).exists() is (t > 0)
    again = go(store, e)
    assert list(again.rounds.index) == [0, 1, 2, 3] and tracked(store, e).status == "FINISHED"


# -- again -------------------------------------------------------------------------------------------------------------


def test_a_run_that_went_on_after_it_diverged_is_nobody_s_result(store: Store) -> None:
    """It has all its rounds and no mark of a finished run, which is what `reproduce` looks for; and stays so."""
    e = experiment(method="fedavg").override({"model.name": "mlp", "training.lr": 1e3})
    execution = LOOP.model_copy(update={"diverged": "continue"})
    for _ in range(2):
        with pytest.raises(runs.Diverged, match=r"^diverged at round \d"):
            runs.run(e, store=store, execution=execution)
        found = tracked(store, e)
        assert found.status == "FAILED" and recording.FINISHED not in found.metrics
        assert found.tags[tag_names.DIVERGED].startswith("diverged at round ")
        assert store.history(found.run_id).index[-1] == e.training.rounds


def test_a_finished_run_is_read(result: runs.Result, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FLIU, "round", lambda *_: pytest.fail("it ran again"))
    monkeypatch.setattr(recording, "keep", lambda *_: pytest.fail("it was kept again"))
    seen: list[int] = []
    again = go(store, experiment(), on_record=lambda record: seen.append(record.round))
    same(again, result)
    assert again.run_id == result.run_id and seen == [0, 1, 2, 3]
    assert again.page == result.page and "viewStateShareKey=methods" in (result.page or "")
    assert tracked(store, experiment()).status == "FINISHED"
    pd.testing.assert_frame_equal(again.rounds, result.rounds)  # the clock's columns too: nothing was measured again
    assert result.origin == ""
    settings = r"same settings, data and method code \(--no-resume computes it anew\)"
    assert re.fullmatch(f"read: run {experiment().digest()[:12]} of .*, {settings}", again.origin)
    monkeypatch.setattr(engine, "digest", lambda: "of another engine")
    assert go(store, experiment()).origin.endswith("; the engine's code was changed since, not its results version")


def test_other_code_is_another_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edited method is never answered with old numbers; one line says that there are some."""
    e, digest = experiment(seed=31, method="fedavg"), ALGORITHMS.digest
    first = go(store, e)
    monkeypatch.setattr(ALGORITHMS, "digest", lambda name: digest(name)[::-1])
    again = go(store, e)
    assert first.origin == "" and again.run_id != first.run_id
    line = f"computed: run {first.hash[:12]} of .* has the same settings and data, and other code \\(method\\)"
    assert re.fullmatch(line, again.origin)
    assert go(store, e).origin.startswith(f"read: run {again.hash[:12]}")
    monkeypatch.undo()
    assert go(store, e).origin.startswith(f"read: run {first.hash[:12]}"), "the old code again"
    tags = tracked(store, e).tags
    assert len(tags["pfl_ops.engine"]) == 64 and tags["version.pfl-ops"]


def test_a_run_that_goes_on_under_another_engine_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    e = experiment(seed=32, method="fedavg")

    def stop(record: checkpoint.Record) -> None:
        if record.round == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine, "digest", lambda: "of another engine")
        with pytest.raises(KeyboardInterrupt):
            go(store, e, on_record=stop)
    done = go(store, e)
    assert done.complaints == [
        "goes on from round 1, which was computed by an engine with other code of the same results version; "
        "--no-resume computes all of it anew"
    ]
    assert done.origin == ""


def test_not_resumed_it_is_a_new_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rounds are those of the new computation; all that read runs leave the old one out."""
    e = experiment(seed=2, method="fedavg")
    first = go(store, e)
    rounds, kept = [], []
    plain, keep = FedAvg.round, recording.keep

    def another(self: FedAvg, s: Any, r: Any) -> Any:
        rounds.append(r.t)
        return plain(self, {**s, "central": s["central"] * 0.5}, r)

    monkeypatch.setattr(FedAvg, "round", another)
    monkeypatch.setattr(recording, "keep", lambda *a: kept.append(1) or keep(*a))
    again = go(store, e, resume=False)
    assert sorted(set(rounds)) == [0, 1, 2] and kept == [1]
    assert again.run_id != first.run_id
    assert again.rounds["train/loss"][3] != first.rounds["train/loss"][3]
    for one in (first, again):
        history = store.history(str(one.run_id))["train/loss"].dropna()
        assert list(history) == list(one.rounds["train/loss"].dropna())
    old, new = store.runs(where=f"tags.`pfl_ops.identity` = '{e.digest()}'", superseded=True)
    assert (old.run_id, old.status, old.tags["pfl_ops.superseded"]) == (first.run_id, "FINISHED", again.run_id)
    assert new.status == "FINISHED" and "pfl_ops.superseded" not in new.tags
    assert [run.run_id for run in store.runs() if run.identity == e.digest()] == [again.run_id]
    assert tracked(store, e).run_id == again.run_id
    assert select(store, [new.name]).runs[0].run_id == again.run_id
    monkeypatch.setattr(FedAvg, "round", lambda *_: pytest.fail("it ran again"))
    assert go(store, e).run_id == again.run_id, "a finished run is read, also when it is the second"
    assert kept == [1]


@pytest.mark.parametrize("how", ["finished", "stopped", "elsewhere"])
def test_a_run_whose_checkpoint_is_gone_is_a_new_run(how: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow has what is printed: another execution rounds differently, so no run has rounds of two computations."""
    e = experiment(seed=["finished", "stopped", "elsewhere"].index(how) + 50, method="fedavg")

    def stop(record: Any) -> None:
        if record.round == 2:
            raise Stop

    with nullcontext() if how != "stopped" else pytest.raises(Stop):
        go(store, e, on_record=stop if how == "stopped" else None)
    shutil.rmtree(store.home.checkpoints / e.digest())
    plain = FedAvg.round
    monkeypatch.setattr(FedAvg, "round", lambda self, s, r: plain(self, {"central": s["central"] * 0.5}, r))
    if how == "elsewhere":  # by a job, as tests of studies and cells of suites are
        list(runs.simulate(e, home=store.home.root, execution=LOOP, final=True))
    again = go(store, e, computed=how == "elsewhere")
    monkeypatch.setattr(FedAvg, "round", lambda *_: pytest.fail("it ran again"))
    assert go(store, e).run_id == again.run_id
    old, new = store.runs(where=f"tags.`pfl_ops.identity` = '{e.digest()}'", superseded=True)
    assert old.tags["pfl_ops.superseded"] == again.run_id == new.run_id
    assert list(store.history(new.run_id)["train/loss"].dropna()) == list(again.rounds["train/loss"].dropna())
    assert {key: new.metrics[key] for key in again.final} == again.final


@pytest.mark.parametrize("how", ["checkpoint deleted", "not resumed"])
def test_a_finished_run_counts_until_its_rerun_is_finished(how: str, store: Store) -> None:
    """A re-run that was stopped hid the result."""
    e = experiment(seed=60 if how == "not resumed" else 61, method="fedavg")
    first = go(store, e)

    def stop(record: Any) -> None:
        if record.round == 2:
            raise Stop

    if how == "checkpoint deleted":
        shutil.rmtree(store.home.checkpoints / e.digest())
    with pytest.raises(Stop):
        go(store, e, on_record=stop, resume=how != "not resumed")
    stopped = [run for run in store.runs() if run.identity == e.digest() and run.run_id != first.run_id]
    selected = select(store, [e.digest()[:12]])
    assert [run.run_id for run in selected.runs] == [first.run_id] and [run.status for run in stopped] == ["FAILED"]
    assert store.find(e.digest()).run_id == first.run_id  # type: ignore[union-attr]
    done = go(store, e)
    (left,) = [run for run in store.runs() if run.identity == e.digest()]
    assert left.run_id == done.run_id == stopped[0].run_id and "pfl_ops/finished" in left.metrics
    (kept,) = [run for run in store.runs(superseded=True) if run.run_id == first.run_id]
    assert kept.tags["pfl_ops.superseded"] == done.run_id


@pytest.mark.parametrize("other", [False, True])
def test_two_work_folders_take_turns_reading_a_run(
    other: bool, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each reading made a new MLflow run and superseded the other's. `other`: their results differ."""
    e = experiment(seed=62 + other, method="fedavg")
    first = go(store, e)
    with Store.open(tmp_path / "elsewhere", store.target.uri) as there:
        with monkeypatch.context() as patch:
            plain, half = FedAvg.round, lambda self, s, r: plain(self, {"central": s["central"] * 0.5}, r)
            patch.setattr(FedAvg, "round", half if other else plain)
            second = go(there, e)
        assert second.run_id != first.run_id
        caplog.clear()
        read = [go(one, e) for one in (store, there, store, there)]
    mine = first if other else second
    assert [one.run_id for one in read] == [mine.run_id, second.run_id] * 2
    assert read[0].page == first.page
    told = [record.getMessage() for record in caplog.records if "has another result" in record.getMessage()]
    assert len(told) == (2 if other else 0)
    assert all(str(first.run_id) in line and str(second.run_id) in line for line in told)
    found = store.runs(where=f"tags.`pfl_ops.identity` = '{e.digest()}'", superseded=True)
    assert [run.run_id for run in found] == [first.run_id, second.run_id]
    assert [run.tags.get("pfl_ops.superseded") for run in found] == [second.run_id, None]
    assert {key: found[0].metrics[key] for key in first.final} == first.final


def test_models_of_a_result_are_never_those_of_another_computation(store: Store) -> None:
    """Its checkpoint was removed, or the run was computed anew: the result has its scores, and says why no models."""
    e = experiment(seed=54)
    first = go(store, e)
    again = go(store, e, resume=False)
    with pytest.raises(PflOpsError, match="was computed anew since; the same run\\(\\) reads it"):
        first.model(0)
    assert again.model(0).keys() == go(store, e).model(0).keys()
    shutil.rmtree(store.home.checkpoints / e.digest())
    with pytest.raises(PflOpsError, match="any more; the same run\\(\\) computes it again"):
        again.model(0)
    assert not (store.home.checkpoints / e.digest()).exists()


@pytest.mark.parametrize("when", ["before the old checkpoints are gone", "after round 1"])
def test_a_new_run_that_was_stopped_goes_on_without_a_third(when: str, store: Store, monkeypatch: Any) -> None:
    e = experiment(seed=20 if when.startswith("before") else 21)
    first = go(store, e)
    models = models_of(first)

    def stop(record: Any) -> None:
        if record.round == 1:
            raise Stop

    with monkeypatch.context() as patch, pytest.raises(Stop):
        if when.startswith("before"):
            patch.setattr(checkpoint.Checkpoints, "clear", lambda _: (_ for _ in ()).throw(Stop()))
        go(store, e, resume=False, on_record=stop)
    rounds: list[int] = []
    plain = FLIU.round
    monkeypatch.setattr(FLIU, "round", lambda self, s, r: rounds.append(r.t) or plain(self, s, r))
    done = go(store, e)
    assert sorted(set(rounds)) == ([0, 1, 2] if when.startswith("before") else [1, 2]), "finished rounds are kept"
    found = store.runs(where=f"tags.`pfl_ops.identity` = '{e.digest()}'", superseded=True)
    assert [run.run_id for run in found] == [first.run_id, done.run_id]
    assert [run.tags.get("pfl_ops.superseded") for run in found] == [done.run_id, None]
    same(done, first, models)


def test_repetitions_are_runs_of_their_own(store: Store, result: runs.Result) -> None:
    """A run is one repetition. Of three in one call it would have the number of one seed for their mean."""
    several = experiment().override({"repetitions": 3})
    with pytest.raises(
        PflOpsError, match=r"one repetition, and this experiment has 3; run each: \[run\(experiment.rep"
    ):
        go(store, several)
    assert go(store, several.repetition(0)).run_id == result.run_id
    assert experiment().repetition(1).digest() != experiment().digest()


def test_a_study_s_test_is_another_run_than_the_same_experiment_by_itself(store: Store) -> None:
    above = store.run("a-study", "study", identity="a study")
    below = go(store, experiment(seed=13), parent=above, name="final-seed13", tags={"pfl_ops.kind": "final"})
    alone = go(store, experiment(seed=13))
    above.finish()
    assert below.run_id != alone.run_id and below.page != alone.page
    both = {run.run_id: run for run in store.runs(where=f"tags.`pfl_ops.experiment_hash` = '{alone.experiment.hash}'")}
    assert both.keys() == {below.run_id, alone.run_id}
    assert len({run.metrics["score/acc"] for run in both.values()}) == 1  # each has all that is kept
    assert [both[r.run_id or ""].tags["pfl_ops.kind"] for r in (below, alone)] == ["final", "run"]


# -- stopped -----------------------------------------------------------------------------------------------------------


class Stop(Exception):
    pass


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), "KILLED"), (Stop("no"), "FAILED")])
def test_stopped_in_the_middle(error: BaseException, status: str, store: Store) -> None:
    """Its status says how it ended; the next one goes on, gets all records, and ends as if nothing had happened."""
    e = experiment(seed=3 if status == "KILLED" else 4)

    def stop(record: Any) -> None:
        if record.round == 2:
            raise error

    with pytest.raises(type(error)):
        go(store, e, on_record=stop)
    assert tracked(store, e).status == status
    assert set(store.history(tracked(store, e).run_id).index) == {0, 1, 2}
    seen: list[int] = []
    done = go(store, e, on_record=lambda record: seen.append(record.round))
    assert seen == [0, 1, 2, 3] and tracked(store, e).status == "FINISHED"
    whole = e.build(execution=LOOP)
    list(whole.run())
    assert {k: v for k, v in done.final.items() if "cost" not in k} == whole.final
    history = store.history(str(done.run_id))
    assert list(history.loc[[1, 2, 3], "train/loss"]) == [r.metrics["train/loss"] for r in whole.records[1:]]


def test_a_full_disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    e = experiment(seed=5)
    write = durable.write

    def full(place: Path, *rest: Any) -> Any:
        if place.name.endswith("-00002"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(place, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "write", full)
        with pytest.raises(PflOpsError, match=r"can't write \w+-00002 .*No space left on device") as caught:
            go(store, e)
    assert "\n" not in str(caught.value) and tracked(store, e).status == "FAILED"
    done = go(store, e)
    assert list(done.rounds.index) == [0, 1, 2, 3] and tracked(store, e).status == "FINISHED"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), Stop("a figure's mistake")])
def test_what_was_not_kept_is_kept_by_the_next(error: Exception, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rounds done, then something fails among tables and figures: it is not finished before it has them all."""
    e = experiment(seed=6 if isinstance(error, OSError) else 7)

    def fails(*_: Any, **__: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(figures, "clients", fails)
        kind, says = (
            (PflOpsError, "the disk is full .*from the last checkpoint")
            if isinstance(error, OSError)
            else (Stop, "figure")
        )
        with pytest.raises(kind, match=says):
            go(store, e)
    info = tracked(store, e)
    assert info.status == "FAILED" and recording.FINISHED not in info.metrics
    monkeypatch.setattr(FLIU, "round", lambda *_: pytest.fail("it ran again"))
    done = go(store, e)
    for artifact in ARTIFACTS:
        assert store.download(str(done.run_id), artifact).exists()
    assert recording.FINISHED in tracked(store, e).metrics


def test_one_at_a_time(store: Store) -> None:
    e, told = experiment(seed=8), []

    def twice(record: Any) -> None:
        if record.round == 1:
            with pytest.raises(PflOpsError, match="going on in another process") as caught:
                go(store, e)
            told.append(str(caught.value))

    assert len(go(store, e, on_record=twice).rounds) == 4
    assert len(told) == 1 and "\n" not in told[0]


def test_a_server_that_does_not_answer_does_not_stop_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: Any, **__: Any) -> Any:
        raise PflOpsError("the tracking server does not answer")

    monkeypatch.setattr(store, "runs", silent)
    assert len(go(store, experiment(seed=9)).rounds) == 4


# -- without tracking --------------------------------------------------------------------------------------------------


def test_a_trials_records(home: Path, store: Store) -> None:
    e = experiment(seed=10, **{"evaluation.split": "validation"})
    found = list(runs.simulate(e, home=home, execution=LOOP, sealed=True, stages={"L1", "G"}))
    assert [r.round for r in found] == [0, 1, 2, 3]
    assert "val/L1/local/mean" in found[1].metrics and not any("/L2/" in key for key in found[1].metrics)
    assert store.find(e.digest()) is None, "nothing is tracked"
    kept = home / "checkpoints" / f"{e.digest()}-G-L1"
    assert [p.name for p in kept.iterdir()] == ["finished"]
    assert sum(f.stat().st_size for f in kept.rglob("*") if f.is_file()) < 20_000, "scores, and no models"
    assert list(runs.simulate(e, home=home, execution=LOOP, sealed=True, stages={"G", "L1"})) == found
    runs.forget(e, home=home, stages={"G"})
    assert kept.exists(), "of other stages"
    runs.forget(e, home=home, stages={"G", "L1"})
    assert not kept.exists()
    with pytest.raises(PflOpsError, match="test data stay closed"):
        next(runs.simulate(experiment(), home=home, execution=LOOP, sealed=True))


@pytest.mark.parametrize("method", ["fliu", "scaffold", "ditto"])
@pytest.mark.parametrize("how", [LOOP, LOOP.model_copy(update={"state": "file"})], ids=["memory", "file"])
def test_the_measured_round_of_an_estimate_changes_nothing_of_the_run(method, how, store, tmp_path) -> None:
    """It is measured on the simulation that then runs. A run that is read has none."""
    told: list[Any] = []
    seed = 21 if how.state == "file" else 22
    measured = experiment(seed, method, **{"evaluation.eps": (0.9,)})  # another run, which trains alike
    plain = runs.run(experiment(seed, method), execution=how, store=store)
    found = runs.run(measured, execution=how, store=store, on_estimate=told.append)
    timed = [key for key in plain.rounds if key.startswith("cost/")]
    same = [key for key in plain.rounds if key in found.rounds and key not in timed]
    assert len(same) > 20 and plain.rounds[same].equals(found.rounds[same])
    assert len(told) == 1 and told[0].rounds == 3
    runs.run(measured, execution=how, store=store, on_estimate=told.append)
    assert len(told) == 1


def test_an_estimate_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = runs.estimate(experiment(seed=11), execution=LOOP)
    assert found.rounds == 3 and 0 < found.seconds < 60 and "memory" in str(found)
    assert list(tmp_path.iterdir()) == []
