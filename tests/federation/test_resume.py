"""A run that goes on from what is on disk is the run that was never stopped."""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from little import LOOP, Puppet, clients, network, same, simulation, traces
from test_checkpoint import FULL
from test_durable import DAMAGE, flip
from torch import nn

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.algorithms.apfl import APFL
from pfl_ops.algorithms.fedavg import FedAvg
from pfl_ops.algorithms.fliu import FLIU
from pfl_ops.algorithms.local import Local
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.execution import choose
from pfl_ops.federation.loop.simulate import Simulation
from pfl_ops.federation.method.contract import ClientRows
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.state import durable
from pfl_ops.federation.state.checkpoint import Checkpoint, CheckpointError, Checkpoints
from pfl_ops.federation.state.matrix import InFile


def upto(sim: Simulation, round_: int) -> None:
    """Run until a round is done, and stop there."""
    for found in sim.run():
        if found.round == round_:
            return


METHODS = {
    "fedrep": {"algorithm.head_epochs": 2}, "pfedme": {"training.local_steps": 6, "algorithm.inner_steps": 2},
    "scaffold": {"training.momentum": 0.0},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ALGORITHMS.builtin))
def test_stopped_and_resumed_is_not_stopped(name: str, tmp_path: Path) -> None:
    """Every method on real digits and convolutions, three of five clients a round: bit for bit, but for the clock.

    The run that stops has its state in a file, the other in memory.
    """
    experiment = Experiment.of(
        name, dataset="digits", model="cnn_tiny", clients=5, rounds=4, participation=0.6, batch_size=20,
        **{"data.train_size": 200, "evaluation.subset": 40, "evaluation.global_every": 2,
           "algorithm.name": name, "training.lr_decay": 0.9, **METHODS.get(name, {})},
    )  # fmt: skip
    whole = experiment.build(execution=LOOP)
    list(whole.run())
    file = LOOP.model_copy(update={"state": "file"})
    for stop in (0, 1, 3):
        upto(experiment.build(execution=file, folder=tmp_path), stop)
    last = experiment.build(execution=file, folder=tmp_path)
    assert last.resumed_from == 3 and not last.complaints
    assert whole.state_place == "memory" and all(v.in_file for v in last.state.values() if isinstance(v, ClientRows))
    replayed = list(last.run())
    assert [r.round for r in replayed] == list(range(5))
    same(traces(last), traces(whole))


@pytest.mark.parametrize("every", [2, 3, 9])
def test_rounds_since_the_last_checkpoint_are_run_again(every: int, tmp_path: Path) -> None:
    execution = LOOP.model_copy(update={"checkpoint_every": every})
    whole = simulation(FLIU(), rounds=7, share=0.5)
    list(whole.run())
    upto(simulation(FLIU(), rounds=7, share=0.5, folder=tmp_path, execution=execution), 5)
    last = simulation(FLIU(), rounds=7, share=0.5, folder=tmp_path, execution=execution)
    assert last.resumed_from == 5 // every * every
    list(last.run())
    same(traces(last), traces(whole))


@pytest.mark.parametrize(
    ("precision", "asked", "refusal"),
    [
        ("tf32", {}, "'tf32' needs a CUDA device"),
        ("float32", {"state": "device"}, "'device' is a GPU's memory"),
        ("float32", {"device": "cuda"}, "'cuda' is not available"),
    ],
)
def test_finished_run_of_a_gpu_is_read_without_one(
    precision: str, asked: dict[str, Any], refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The courier reads on the CPU; what is not over is refused there. The GPU is a CPU under another name."""
    given = {"rounds": 2, "training": {"precision": precision}, "folder": tmp_path}
    here = LOOP.model_copy(update=asked)
    with monkeypatch.context() as patched:
        patched.setattr(choose, "device", lambda *_: torch.device("cpu"))
        first = simulation(FLIU(), **given)
        upto(first, 1)
        patched.undo()
        with pytest.raises(PflOpsError, match=refusal):
            simulation(FLIU(), **given, execution=here)
        patched.setattr(choose, "device", lambda *_: torch.device("cpu"))
        whole = simulation(FLIU(), **given)
        list(whole.run())
    found = simulation(FLIU(), **given, execution=here)
    assert found.read and found.state_place == "memory"
    list(found.run())
    same(traces(found), traces(whole))


def test_another_processor_is_told_and_ends_the_check_of_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate that was promised on one processor is none of another's."""
    first = simulation(FLIU(), rounds=3, folder=tmp_path)
    first.executions.promised = {first.resolved: 1e9}
    upto(first, 1)
    assert simulation(FLIU(), rounds=3, folder=tmp_path, adapt=True).executions.promised
    monkeypatch.setattr(choose, "cpu_model", lambda: "another one")
    last = simulation(FLIU(), rounds=3, folder=tmp_path, adapt=True)
    [line] = last.complaints
    assert line.endswith("so far, goes on on another one: last digits may differ") and not last.executions.promised
    list(last.run())
    assert not simulation(FLIU(), rounds=3, folder=tmp_path).complaints


def test_dropout_and_stacks_resume_too(tmp_path: Path) -> None:
    def drops() -> nn.Module:
        return network(lambda: nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.5)), 16)

    stacked = {"execution": Execution(device="cpu", way="vmap", chunk=3, threads=1)}
    for name, settings in {"drops": {"stackable": False}, "stacked": stacked}.items():

        def make(folder: Path | None, settings: Any = settings, drops: Any = drops) -> Simulation:
            net = network() if "execution" in settings else drops()
            return simulation(FLIU(), net=net, rounds=4, share=0.5, folder=folder, **settings)

        whole = make(None)
        list(whole.run())
        for stop in (1, 2):
            torch.manual_seed(stop)
            upto(make(tmp_path / name), stop)
        last = make(tmp_path / name)
        list(last.run())
        same(traces(last), traces(whole))


def test_records_keep_their_time(tmp_path: Path) -> None:
    first = simulation(FedAvg(), rounds=3, folder=tmp_path)
    upto(first, 2)
    second = simulation(FedAvg(), rounds=3, folder=tmp_path)
    again = list(second.run())
    assert again[:3] == first.records and again[3].time >= again[2].time
    assert "cost/train_seconds" in again[1].metrics


def test_a_finished_run_is_read_and_not_run_again(tmp_path: Path) -> None:
    first = simulation(FLIU(), rounds=2, folder=tmp_path)
    list(first.run())

    class Poisoned(FLIU):
        def round(self, *_: Any) -> Any:
            raise AssertionError("it ran again")

    second = simulation(Poisoned(), rounds=2, folder=tmp_path)
    assert list(second.run()) == first.records
    same(traces(first), traces(second))
    assert second.final == first.final  # the clock's values too


@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize("rounds", [2, 3, 4])
@pytest.mark.parametrize("method", [FLIU(), Local()], ids=lambda m: m.name)
def test_killed_before_the_final_scores(method: Any, rounds: int, every: int, tmp_path: Path) -> None:
    """All rounds are kept, the final scores are not: they come out the same, from what is there before."""
    more: dict[str, Any] = {"rounds": rounds, "share": 0.5}
    execution = LOOP.model_copy(update={"checkpoint_every": every})
    whole = simulation(method, folder=tmp_path / "whole", **more)
    list(whole.run())
    upto(simulation(method, folder=tmp_path / "cut", execution=execution, **more), rounds)
    assert not (tmp_path / "cut" / "finished").exists()
    again = simulation(method, folder=tmp_path / "cut", execution=execution, **more)
    kept = list(again.records)
    assert list(again.run()) == kept and again.resumed_from == rounds
    same(traces(again), traces(whole))


@pytest.mark.parametrize("every", [1, 5])
def test_trial_killed_after_its_last_round_keeps_its_clients(every: int, tmp_path: Path) -> None:
    """Without a full evaluation the table of clients is that of the last round: it comes out the same, as G does."""
    more: dict[str, Any] = {"rounds": 3, "share": 0.5, "final": False, "stages": {"L1", "L2"}}
    execution = LOOP.model_copy(update={"checkpoint_every": every})
    whole = simulation(FLIU(), folder=tmp_path / "whole", **more)
    list(whole.run())
    upto(simulation(FLIU(), folder=tmp_path / "cut", execution=execution, **more), 3)
    list(simulation(FLIU(), folder=tmp_path / "cut", execution=execution, **more).run())
    again = simulation(FLIU(), folder=tmp_path / "cut", execution=execution, **more)
    list(again.run())
    assert again.read and {"L1", "L2"} == {*again.client_table["stage"]} == {*whole.client_table["stage"]}
    for column, values in whole.client_table.items():
        np.testing.assert_array_equal(again.client_table[column], values)
    ours, theirs = again.global_model(), whole.global_model()
    assert ours is not None and theirs is not None and all(ours[name].equal(theirs[name]) for name in theirs)


def test_a_trials_run_can_be_finished_in_full_later(tmp_path: Path) -> None:
    """Without a full evaluation first, with it afterwards: as if it had been asked for at once."""
    trial = simulation(FLIU(), rounds=3, share=0.5, folder=tmp_path, final=False)
    list(trial.run())
    assert not any(key.startswith("final/") for key in trial.final) and "best/round" in trial.final
    assert trial.personal_models() is not None
    later, whole = (simulation(FLIU(), rounds=3, share=0.5, folder=f) for f in (tmp_path, None))
    list(later.run()), list(whole.run())
    same(traces(later), traces(whole))


def test_a_finished_trial_keeps_its_scores_alone(tmp_path: Path) -> None:
    """Nobody asks for its models; who does is told, and does not get those of round 0."""
    trial = simulation(FLIU(), rounds=3, folder=tmp_path, final=False)
    list(trial.run())
    assert sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file()) < 10_000
    again = simulation(FLIU(), rounds=3, folder=tmp_path, final=False)
    assert again.resumed_from == 3 and list(again.run()) == trial.records and again.final == trial.final
    with pytest.raises(PflOpsError, match="this run kept its scores and no models"):
        again.personal_models()


def test_a_finished_run_reads_its_state_when_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores and G are there at once; models of a thousand clients are not copied for them."""
    first = simulation(FLIU(), rounds=2, folder=tmp_path)
    list(first.run())
    read, restore = [], Checkpoint.restore
    monkeypatch.setattr(Checkpoint, "restore", lambda self, s: (read.append(self.round), restore(self, s))[1])
    again = simulation(FLIU(), rounds=2, folder=tmp_path)
    list(again.run())
    assert again.final == first.final and again.global_model() is not None and read == []
    same(traces(again), traces(first))
    assert read == [2], "once"


def test_a_finished_run_keeps_one_folder(tmp_path: Path) -> None:
    list(simulation(FLIU(), rounds=5, folder=tmp_path).run())
    assert [p.name for p in tmp_path.iterdir()] == ["finished"]


def test_starting_again_throws_away_what_was_kept(tmp_path: Path) -> None:
    """A checkpoint of round 1 must not lie below old ones of rounds 4 and 5, nor old results count as its own."""
    list(simulation(Puppet(), rounds=5, folder=tmp_path).run())
    upto(simulation(FLIU(), rounds=5, folder=tmp_path, resume=False), 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base-00000", "delta-00001"]
    assert simulation(FLIU(), rounds=5, folder=tmp_path).resumed_from == 1


def test_all_checkpoints_damaged(tmp_path: Path) -> None:
    """The run starts again, says so, and its new checkpoints hold."""
    upto(simulation(FLIU(), rounds=5, folder=tmp_path), 4)
    bases = list(tmp_path.glob("base-*"))
    for place in bases:
        flip(place / "state-000.safetensors")
    again = simulation(FLIU(), rounds=5, folder=tmp_path)
    assert len(again.complaints) == len(bases) > 0 and again.resumed_from is None
    upto(again, 1)
    third = simulation(FLIU(), rounds=5, folder=tmp_path)
    assert third.resumed_from == 1 and not third.complaints
    list(third.run())
    whole = simulation(FLIU(), rounds=5)
    list(whole.run())
    same(traces(third), traces(whole))


@pytest.mark.parametrize("state", ["memory", "file"])
@pytest.mark.parametrize("method", [APFL(), Local()], ids=lambda m: m.name)
def test_damage_anywhere_in_a_run(method: Any, state: str, tmp_path: Path) -> None:
    """Each folder of a stopped run in turn: it goes on from the longest part that is whole, to the same bits."""
    execution = LOOP.model_copy(update={"state": state})
    more: dict[str, Any] = {"rounds": 8, "share": 0.3, "data": clients([[0, 1]] * 12), "execution": execution}
    whole = simulation(method, **more)
    list(whole.run())
    for record in simulation(method, folder=tmp_path / "cut", **more).run():
        there = Checkpoints(tmp_path / "cut", "little").latest
        assert there is not None and there.round == record.round
        if len(there.folders) == 3:  # a base, one in the middle, a last one
            break
    assert 3 <= there.round < 8
    for number, kind in enumerate(["a flipped bit", "no meta", "truncated"]):
        folder = tmp_path / f"{number}"
        shutil.copytree(tmp_path / "cut", folder)
        DAMAGE[kind](folder / there.folders[number].place.name)
        again = simulation(method, folder=folder, **more)
        assert len(again.complaints) == 1 and again.resumed_from != there.round
        list(again.run())
        same(traces(again), traces(whole))


def test_the_disk_fills_up_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = durable.save_file

    def fills(tensors: dict[str, torch.Tensor], file: Path, n: list[int] = [0]) -> None:  # noqa: B006
        n[0] += 1
        if n[0] == 4:
            raise FULL
        save(tensors, file)

    monkeypatch.setattr(durable, "save_file", fills)
    seen = []
    with pytest.raises(CheckpointError, match="No space left"):
        for record in simulation(FLIU(), rounds=5, folder=tmp_path).run():
            seen.append(record.round)
    assert seen == [0, 1, 2], "a record is yielded once it is kept"
    last = simulation(FLIU(), rounds=5, folder=tmp_path)
    assert last.resumed_from == 2
    list(last.run())
    whole = simulation(FLIU(), rounds=5)
    list(whole.run())
    same(traces(last), traces(whole))


def test_the_disk_fills_up_under_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in a file: one line, and the run goes on from the round before, in memory this time."""
    write, left = InFile.write, [9]

    def fills(matrix: InFile, client: int, row: torch.Tensor) -> None:
        left[0] -= 1
        if left[0] < 0:
            monkeypatch.setattr(matrix, "_file", Full())
        write(matrix, client, row)

    class Full:
        def seek(self, place: int) -> None: ...

        def write(self, data: memoryview) -> int:
            raise FULL

    monkeypatch.setattr(InFile, "write", fills)
    seen = []
    file = LOOP.model_copy(update={"state": "file"})
    with pytest.raises(
        PflOpsError, match=r"can't keep the clients' state in .*: No space left on device; make"
    ) as caught:
        for record in simulation(FLIU(), rounds=5, folder=tmp_path, execution=file).run():
            seen.append(record.round)
    assert seen == [0, 1, 2] and "\n" not in str(caught.value)
    last = simulation(FLIU(), rounds=5, folder=tmp_path)
    assert last.resumed_from == 2 and not last.state["theta"].in_file
    list(last.run())
    whole = simulation(FLIU(), rounds=5)
    list(whole.run())
    same(traces(last), traces(whole))


def test_a_run_keeps_the_execution_that_it_was_begun_with(tmp_path: Path) -> None:
    upto(simulation(FLIU(), rounds=3, folder=tmp_path), 1)
    asked = Execution(device="cpu", way="vmap", chunk=2, threads=1)
    again = simulation(FLIU(), rounds=3, folder=tmp_path, execution=asked)
    assert again.resolved.way == "loop"
    assert again.complaints == ["keeps way loop, as it was begun, not vmap; --no-resume starts again"]
    assert simulation(FLIU(), rounds=3, folder=tmp_path, execution=Execution()).resolved == again.resolved
    found = Checkpoints(tmp_path, "little").latest
    assert found is not None and found.meta["resolved"] == asdict(again.resolved)


def test_another_device_or_version_is_told(tmp_path: Path) -> None:
    upto(simulation(FLIU(), rounds=3, folder=tmp_path), 1)
    last = next(tmp_path.glob("*-00001"))
    folder = durable.read(last)
    resolved = folder.about["meta"]["resolved"]

    def changed(**values: Any) -> None:
        kept = {key: value for key, value in {**resolved, **values}.items() if value is not None}
        durable.write(last, {**folder.about, "meta": {"resolved": kept}}, parts)

    parts = list(folder.tensors())
    changed(torch="1.0")
    assert "was begun with PyTorch 1.0" in simulation(FLIU(), rounds=3, folder=tmp_path).complaints[0]
    changed(device="cuda")
    with pytest.raises(
        PflOpsError, match="begun on cuda, here it would go on on cpu; use --device cuda, or --no-resume"
    ):
        simulation(FLIU(), rounds=3, folder=tmp_path)
    changed(way=None)
    with pytest.raises(PflOpsError, match="another version of pfl-ops"):
        simulation(FLIU(), rounds=3, folder=tmp_path)


def test_a_finished_run_is_read_on_any_device(tmp_path: Path) -> None:
    """A node with a GPU has run it; the driver, which tracks it, may have none."""
    here = simulation(FLIU(), rounds=2, folder=tmp_path)
    list(here.run())
    folder = durable.read(tmp_path / "finished")
    parts, meta = list(folder.tensors()), folder.about["meta"]
    there = {**meta, "resolved": {**meta["resolved"], "device": "cuda", "torch": "1.0"}}
    durable.write(tmp_path / "finished", {**folder.about, "meta": there}, parts)
    again = simulation(FLIU(), rounds=2, folder=tmp_path)
    list(again.run())
    assert again.read and again.final == here.final and again.resolved.device == "cuda" and not again.complaints
    assert again.personal_models() is not None


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    list(simulation(FLIU(), rounds=2).run())
    assert list(tmp_path.iterdir()) == []
