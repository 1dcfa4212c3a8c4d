"""Nothing that a run does grows with the number of clients, but for operations on whole arrays."""

import cProfile
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fork_server
import numpy as np
import pytest

from pfl_ops import figures, rng
from pfl_ops.config.experiment import Experiment
from pfl_ops.data.by_client import ByClient
from pfl_ops.data.cut import hold_out, like
from pfl_ops.data.partition import PARTITIONS
from pfl_ops.data.partition_files import Recorded, write_partition
from pfl_ops.federation.loop.estimate import estimate
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.state import durable

FEW, MANY = 3_000, 30_000
"""Above the number of clients that are drawn one by one."""
FIXED = Execution(device="cpu", way="vmap", chunk=10, workers=1, threads=1, state="file")


def data_of(n: int, folder: Path) -> Path:
    """Write n clients of 4 training samples and 1 test sample, 3 features, 3 classes; client k's samples are apart."""
    draws = np.random.default_rng(0)
    arrays = {}
    for part, each in (("train", 4), ("test", 1)):
        y = draws.integers(0, 3, n * each)
        x = (draws.standard_normal((n * each, 3)) + y[:, None]).astype(np.float32)
        arrays |= {f"x_{part}": x, f"y_{part}": y, f"client_{part}": np.tile(np.arange(n), each)}
    np.savez(folder / f"n{n}.npz", **arrays)
    return folder / f"n{n}.npz"


def experiment(n: int, data: Path, method: str = "ditto") -> Experiment:
    """A cohort of 10 clients."""
    return Experiment.of(
        method, dataset=str(data), train_size=None, model="linear", rounds=4, participation=10 / n, optimiser="sgd"
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("many")
    return {n: data_of(n, folder) for n in (FEW, MANY)}


def calls(work: Callable[[], Any]) -> int:
    """Functions that are called, Python's and those in C."""
    with cProfile.Profile() as profile:
        work()
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("method", ["ditto", "scaffold", "fliu"])
def test_calls_of_a_run_do_not_grow_with_clients(method: str, data: dict[int, Path], tmp_path: Path) -> None:
    """Start-up, rounds, final evaluation, partition files and the figure, of ten times as many clients."""

    def whole(n: int, folder: Path) -> None:
        simulation = experiment(n, data[n], method).build(execution=FIXED, folder=folder)
        assert len(list(simulation.run())) == 5
        write_partition(folder / "partition", simulation.clients.recorded)
        figures.save(figures.partition(simulation.clients.table), folder / "partition.png")

    whole(FEW, tmp_path / "warm")  # imports, caches
    whole(MANY, tmp_path / "warm too")
    few, many = (calls(lambda n=n: whole(n, tmp_path / str(n))) for n in (FEW, MANY))
    assert many < 1.05 * few, (few, many)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("iid", {}), ("iid", {"stratified": False}), ("qs", {"min_size": 1}), ("sorted_shards", {}), ("file", {})],
)
def test_calls_of_a_partition_do_not_grow_with_clients(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Drawn, or written and read, with the test sets that are cut as the training data are."""

    def divided(n: int) -> None:
        labels, draws = np.arange(8 * n) % 3, np.random.default_rng(0)
        given = dict(options)
        if kind == "file":
            train = ByClient(np.arange(8 * n), np.arange(0, 8 * n + 1, 8))
            recorded = Recorded(train, None, train.class_counts(labels, 3))
            folder = tmp_path / str(len(list(tmp_path.iterdir())))  # a new one: what was read before is kept
            given["path"] = str(write_partition(folder, recorded))
        clients = PARTITIONS.get(kind)(clients=n, **given).indices(labels, draws)
        assert len(like(labels, clients, labels[: 2 * n], draws)) == n

    divided(FEW)  # imports
    few, many = (calls(lambda n=n: divided(n)) for n in (FEW, MANY))
    assert many < 1.2 * few + 100, (few, many)


def test_calls_of_a_validation_share_are_its_draws() -> None:
    """Each client has a generator, whose key is set and which draws an order and ties; nothing else is called."""
    few, many = (calls(lambda n=n: validation_share(n)) for n in (FEW, MANY))
    assert (many - few) / (MANY - FEW) < 9, (few, many)


def validation_share(n: int) -> None:
    clients = ByClient(np.arange(4 * n), np.arange(0, 4 * n + 1, 4))
    kept, held = hold_out(np.arange(4 * n) % 3, clients, 0.25, rng.generators(0, "validation", numbers=range(n)))
    assert (kept.sizes == 3).all() and (held.sizes == 1).all()


def test_calls_of_a_table_of_all_clients_do_not_grow(data: dict[int, Path], tmp_path: Path) -> None:
    """One shared model, all clients scored: the scores, the table, its part of the checkpoint, and that read again.

    Without L2, for which all absent clients train.
    """

    def whole(n: int, folder: Path) -> None:
        scored = experiment(n, data[n], "fedavg").override({"evaluation.clients": n})
        for _ in ("computed", "read"):
            simulation = scored.build(execution=FIXED, folder=folder, stages=("L1", "G"))
            list(simulation.run())
            assert len(simulation.client_table["client"]) == 2 * n

    whole(FEW, tmp_path / "warm")  # imports, caches
    whole(MANY, tmp_path / "warm too")
    few, many = (calls(lambda n=n: whole(n, tmp_path / str(n))) for n in (FEW, MANY))
    assert many - few < MANY - FEW, (few, many)  # the model answers samples in blocks: less than a call a client


def test_bytes_of_a_round_do_not_grow_with_clients(
    data: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint has the rows of the cohort, not those of all clients: 10 rows of 12 numbers are 480 bytes."""
    written: list[int] = []
    write = durable.write

    def counted(*given: Any) -> durable.Folder:
        folder = write(*given)
        written.append(sum(file.stat().st_size for file in folder.place.iterdir()))
        return folder

    monkeypatch.setattr(durable, "write", counted)
    sizes = {}
    for n in (FEW, MANY):
        written.clear()
        list(experiment(n, data[n]).build(execution=FIXED, folder=tmp_path / str(n)).run())
        sizes[n] = np.array(written)
    assert len(sizes[FEW]) == 6  # the start, four rounds, what stays
    assert np.allclose(sizes[FEW], sizes[MANY], rtol=0.15), (
        sizes
    )  # metrics are written with as many digits as they have


def test_an_estimate_asks_models_of_scored_clients(data: dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """200 of 30,000 clients are scored, hardly one of the few that are measured: their models are asked all the same.

    A client has one test sample, the subset 1,000: each model gives 1,001 answers.
    """
    simulation = experiment(MANY, data[MANY]).build(execution=FIXED)
    asked: list[float] = []
    answers = simulation.scorer.answers
    monkeypatch.setattr(simulation.scorer, "answers", lambda models: asked.append(answers(models)) or asked[-1])
    estimate(simulation)
    assert asked == [10 * 1001]


DYING = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_many_clients import FIXED, MANY, experiment
for record in experiment(MANY, Path({data!r})).build(execution=FIXED, folder=Path({folder!r})).run():
    if record.round == 2:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def _timeless(records: Any) -> list[dict[str, float]]:
    return [{k: v for k, v in record.metrics.items() if not k.startswith("cost/")} for record in records]


def test_a_killed_run_of_many_clients_ends_the_same(data: dict[int, Path], tmp_path: Path) -> None:
    """SIGKILL after round 2 of 4, state in a sparse file; then rounds, scores and rows are those of an unbroken run."""

    def states(folder: str) -> Iterator[Any]:
        simulation = experiment(MANY, data[MANY]).build(execution=FIXED, folder=tmp_path / folder)
        yield simulation.resumed_from
        records = list(simulation.run())
        rows = simulation.state["personal"]
        who = rows.written.nonzero()[:, 0]
        clients = {name: values.tolist() for name, values in simulation.client_table.items()}
        yield json.dumps([_timeless(records), simulation.final, clients])
        yield who.tolist(), rows[who].numpy().tobytes(), simulation.state["central"].numpy().tobytes()

    code = DYING.format(tests=str(Path(__file__).parent), data=str(data[MANY]), folder=str(tmp_path / "killed"))
    done = subprocess.run([*fork_server.python(), "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == -9, done.stderr
    whole, killed = list(states("whole")), list(states("killed"))
    assert (whole[0], killed[0]) == (None, 2)
    assert whole[1:] == killed[1:]
