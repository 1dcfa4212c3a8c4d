"""What is on disk: whole or passed over, and a run that goes on from it is the run that was never stopped."""

import errno
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from little import LOOP, Puppet, network, same, simulation, traces
from safetensors.torch import load_file
from torch import nn

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.algorithms.fedavg import FedAvg
from pfl_ops.algorithms.fliu import FLIU
from pfl_ops.algorithms.local import Local
from pfl_ops.errors import PflOpsError
from pfl_ops.experiment import Experiment
from pfl_ops.federation import checkpoint
from pfl_ops.federation.checkpoint import CheckpointError, Record
from pfl_ops.federation.contract import ClientRows
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.simulate import Simulation

META = {"identity": "mine", "resolved": {}}


def state(number: float = 0.0) -> dict[str, Any]:
    rows = ClientRows(torch.tensor([1.0, 2.0]), 5)
    rows.write(torch.tensor([1, 3]), torch.tensor([[number, 1.0], [2.0, number]]))
    return {"central": torch.arange(3) + number, "count": torch.tensor(7), "rows": rows}


def saved(folder: Path, rounds: int = 3) -> list[Record]:
    records = [Record(t, {"test/L1/local/mean": t / 3}, 1000 + t) for t in range(rounds + 1)]
    for t in range(1, rounds + 1):
        checkpoint.save(folder, t, state(t), records[: t + 1], META)
    return records


def upto(sim: Simulation, round_: int) -> None:
    """Run until a round is done, and stop there."""
    for record in sim.run():
        if record.round == round_:
            return


# -- files -------------------------------------------------------------------------------------------------------------


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    records = saved(tmp_path)
    found, complaints = checkpoint.latest(tmp_path, "mine")
    assert found is not None and not complaints
    assert found.round == 3 and found.records == records and found.meta["identity"] == "mine"
    restored = found.restore(state(99))
    expected = state(3)
    assert torch.equal(restored["central"], expected["central"]) and restored["count"] == 7
    everyone = torch.arange(5)
    assert torch.equal(restored["rows"][everyone], expected["rows"][everyone])
    assert torch.equal(restored["rows"].written, expected["rows"].written)


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-00004", "round-00005"]
    before = checkpoint.before(tmp_path, "mine", 5)
    assert before is not None and before.round == 4
    assert checkpoint.before(tmp_path, "mine", 4) is None and checkpoint.before(tmp_path, "other", 5) is None


def test_rounds_are_numbers(tmp_path: Path) -> None:
    """Six digits come after five; what only looks like a checkpoint is none."""
    for t in (99_999, 100_000):
        checkpoint.save(tmp_path, t, state(), [], META)
    (tmp_path / "round-00012.bak").mkdir()
    (tmp_path / "round-x").mkdir()
    found, complaints = checkpoint.latest(tmp_path, "mine")
    assert found is not None and found.round == 100_000 and not complaints


def test_one_tensor_under_two_names_and_views_of_one_memory(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    given = {"a": whole, "b": whole, "c": whole[1:4], "d": whole.view(2, 3).T}
    checkpoint.save(tmp_path, 1, given, [], META)
    found, _ = checkpoint.latest(tmp_path, "mine")
    assert found is not None
    for name, value in found.restore(given).items():
        assert torch.equal(value, given[name]), name


def test_nothing_there(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path, "mine") == (None, [])
    assert checkpoint.latest(tmp_path / "no such folder", "mine") == (None, [])
    assert checkpoint.finished(tmp_path, "mine") is None and checkpoint.before(tmp_path, "mine", 9) is None
    checkpoint.clear(tmp_path / "no such folder")


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) * 3 // 4] ^= 0x10
    file.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "truncated state": lambda p: (p / "state.safetensors").write_bytes((p / "state.safetensors").read_bytes()[:-9]),
    "empty state": lambda p: (p / "state.safetensors").write_bytes(b""),
    "flipped bit in the state": lambda p: flip(p / "state.safetensors"),
    "flipped bit in the records": lambda p: flip(p / "records.json"),
    "no state": lambda p: (p / "state.safetensors").unlink(),
    "no records": lambda p: (p / "records.json").unlink(),
    "no meta": lambda p: (p / "meta.json").unlink(),
    "bad JSON": lambda p: (p / "meta.json").write_text('{"identity": "mine", '),
    "not UTF-8": lambda p: (p / "meta.json").write_bytes(b"\xff\xfe\x00"),
    "meta of another form": lambda p: (p / "meta.json").write_text('["mine"]'),
    "meta without digests": lambda p: (p / "meta.json").write_text('{"identity": "mine"}'),
    "a meta that names no file": lambda p: (p / "meta.json").write_text('{"identity": "mine", "digests": {}}'),
    "an empty folder": lambda p: [f.unlink() for f in p.iterdir()],  # type: ignore[dict-item,return-value]
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over(kind: str, tmp_path: Path) -> None:
    saved(tmp_path)
    DAMAGE[kind](tmp_path / "round-00003")
    found, complaints = checkpoint.latest(tmp_path, "mine")
    assert found is not None and found.round == 2 and len(found.records) == 3
    assert len(complaints) == 1 and "\n" not in complaints[0]
    assert re.fullmatch(r"checkpoint round-00003 is damaged \(.+\): going on from round 2", complaints[0])
    DAMAGE[kind](tmp_path / "round-00002")
    found, complaints = checkpoint.latest(tmp_path, "mine")
    assert found is None and len(complaints) == 2
    assert all(line.endswith("none is left before it, starting again") for line in complaints)


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_results_are_no_results(kind: str, tmp_path: Path) -> None:
    checkpoint.finish(tmp_path, META, {"global": torch.ones(2)}, True, {"final/x": 1.0}, {"client": [0]})
    there = checkpoint.finished(tmp_path, "mine")
    assert there is not None and there.full and there.final == {"final/x": 1.0} and there.clients == {"client": [0]}
    assert checkpoint.finished(tmp_path, "other") is None
    (tmp_path / "finished" / "results.json").rename(tmp_path / "finished" / "records.json")
    meta = json.loads((tmp_path / "finished" / "meta.json").read_text())
    meta["digests"]["records.json"] = meta["digests"].pop("results.json")
    (tmp_path / "finished" / "meta.json").write_text(json.dumps(meta))
    assert checkpoint.finished(tmp_path, "mine") is None
    DAMAGE[kind](tmp_path / "finished")
    assert checkpoint.finished(tmp_path, "mine") is None


def test_half_written_ones_are_never_read_and_go_with_the_next(tmp_path: Path) -> None:
    saved(tmp_path)
    half = tmp_path / ".writing-0123abcd"
    shutil.copytree(tmp_path / "round-00003", half)
    (half / "meta.json").unlink()
    found, complaints = checkpoint.latest(tmp_path, "mine")
    assert found is not None and found.round == 3 and not complaints
    checkpoint.save(tmp_path, 4, state(), [], META)
    assert not half.exists()


def test_anothers_folder_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(CheckpointError, match=r"holds checkpoints of another experiment \(mine\)") as caught:
        checkpoint.latest(tmp_path, "yours")
    assert "\n" not in str(caught.value)


def test_a_state_of_another_form_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    found, _ = checkpoint.latest(tmp_path, "mine")
    assert found is not None
    others = [
        {"late": torch.zeros(1)},
        {"central": torch.zeros(4)},
        {"central": torch.zeros(3).double()},
        {"central": ClientRows(torch.zeros(3), 2)},
        {"rows": torch.zeros(2)},
        {"rows": ClientRows(torch.zeros(3), 5)},
        {"rows": ClientRows(torch.zeros(2), 2)},
    ]
    for other in others:
        with pytest.raises(CheckpointError, match=f"round 3 does not fit this method's state '{next(iter(other))}'"):
            found.restore(other)


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("at", ["save_file", "_sync", "Path.mkdir", "Path.write_text", "Path.rename"])
def test_a_full_disk_is_one_clear_error_and_loses_no_round(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    def full(*_: object, **__: object) -> None:
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(f"pfl_ops.federation.checkpoint.{at}", full)
        with pytest.raises(CheckpointError, match=r"can't write round-00004 in .*: No space left on device;") as caught:
            checkpoint.save(tmp_path, 4, state(), [], META)
    assert "\n" not in str(caught.value)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    checkpoint.save(tmp_path, 4, state(), [], META)


def test_safetensors_own_error_is_told_the_same_way(tmp_path: Path) -> None:
    """It does not raise OSError where the disk is full: a real limit on the size of files shows it."""
    import resource
    import signal

    old, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old[1]))
    try:
        with pytest.raises(CheckpointError, match=r"can't write round-00001 .*File too large"):
            checkpoint.save(tmp_path, 1, {"w": torch.zeros(5000)}, [], META)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


# -- runs that stop and go on ------------------------------------------------------------------------------------------

METHODS = {"fedrep": {"algorithm.head_epochs": 2}, "scaffold": {"training.momentum": 0.0}}


@pytest.mark.parametrize("name", sorted(ALGORITHMS.builtin))
def test_stopped_and_resumed_is_not_stopped(name: str, tmp_path: Path) -> None:
    """Every method on real digits and convolutions, three of five clients a round: bit for bit, but for the clock."""
    experiment = Experiment.of(
        name, dataset="digits", model="cnn_tiny", clients=5, rounds=4, participation=0.6, batch_size=20,
        **{"data.train_size": 200, "evaluation.subset": 40, "evaluation.global_every": 2,
           "algorithm.name": name, "training.lr_decay": 0.9, **METHODS.get(name, {})},
    )  # fmt: skip
    whole = experiment.build(execution=LOOP)
    list(whole.run())
    for stop in (0, 1, 3):
        upto(experiment.build(execution=LOOP, folder=tmp_path), stop)
    last = experiment.build(execution=LOOP, folder=tmp_path)
    assert last.resumed_from == 3 and not last.complaints
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
@pytest.mark.parametrize("method", [FLIU(), Local()], ids=lambda m: m.name)
def test_killed_before_the_final_scores(method: Any, every: int, tmp_path: Path) -> None:
    """All rounds are kept, the final scores are not: they come out the same, from what is there before."""
    execution = LOOP.model_copy(update={"checkpoint_every": every})
    whole = simulation(method, rounds=3, share=0.5, folder=tmp_path / "whole")
    list(whole.run())
    upto(simulation(method, rounds=3, share=0.5, folder=tmp_path / "cut", execution=execution), 3)
    assert not (tmp_path / "cut" / "finished").exists()
    again = simulation(method, rounds=3, share=0.5, folder=tmp_path / "cut", execution=execution)
    kept = list(again.records)
    assert list(again.run()) == kept and again.resumed_from == 3
    same(traces(again), traces(whole))


def test_a_trials_run_can_be_finished_in_full_later(tmp_path: Path) -> None:
    """Without a full evaluation first, with it afterwards: as if it had been asked for at once."""
    trial = simulation(FLIU(), rounds=3, share=0.5, folder=tmp_path, final=False)
    list(trial.run())
    assert not any(key.startswith("final/") for key in trial.final) and "best/round" in trial.final
    later, whole = (simulation(FLIU(), rounds=3, share=0.5, folder=f) for f in (tmp_path, None))
    list(later.run()), list(whole.run())
    same(traces(later), traces(whole))


def test_starting_again_throws_away_what_was_kept(tmp_path: Path) -> None:
    """A checkpoint of round 1 must not lie below old ones of rounds 4 and 5, nor old results count as its own."""
    list(simulation(Puppet(), rounds=5, folder=tmp_path).run())
    upto(simulation(FLIU(), rounds=5, folder=tmp_path, resume=False), 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-00000", "round-00001"]
    assert simulation(FLIU(), rounds=5, folder=tmp_path).resumed_from == 1


def test_all_checkpoints_damaged(tmp_path: Path) -> None:
    """The run starts again, says so, and its new checkpoints hold."""
    upto(simulation(FLIU(), rounds=5, folder=tmp_path), 4)
    for place in tmp_path.glob("round-*"):
        flip(place / "state.safetensors")
    again = simulation(FLIU(), rounds=5, folder=tmp_path)
    assert len(again.complaints) == 2 and again.resumed_from is None
    upto(again, 1)
    third = simulation(FLIU(), rounds=5, folder=tmp_path)
    assert third.resumed_from == 1 and not third.complaints
    list(third.run())
    whole = simulation(FLIU(), rounds=5)
    list(whole.run())
    same(traces(third), traces(whole))


def test_one_damaged_in_the_middle_of_a_run(tmp_path: Path) -> None:
    upto(simulation(FLIU(), rounds=5, folder=tmp_path), 4)
    flip(tmp_path / "round-00004" / "records.json")
    again = simulation(FLIU(), rounds=5, folder=tmp_path)
    assert again.resumed_from == 3 and len(again.complaints) == 1
    list(again.run())
    whole = simulation(FLIU(), rounds=5)
    list(whole.run())
    same(traces(again), traces(whole))


def test_the_disk_fills_up_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = checkpoint.save_file

    def fills(tensors: Any, file: Path, n: list[int] = [0]) -> None:  # noqa: B006
        n[0] += 1
        if n[0] == 4:
            raise FULL
        write(tensors, file)

    monkeypatch.setattr(checkpoint, "save_file", fills)
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


def test_a_run_keeps_the_execution_that_it_was_begun_with(tmp_path: Path) -> None:
    upto(simulation(FLIU(), rounds=3, folder=tmp_path), 1)
    asked = Execution(device="cpu", way="vmap", chunk=2, threads=1)
    again = simulation(FLIU(), rounds=3, folder=tmp_path, execution=asked)
    assert again.resolved.way == "loop"
    assert again.complaints == ["keeps way loop, as it was begun, not vmap; --no-resume starts again"]
    assert simulation(FLIU(), rounds=3, folder=tmp_path, execution=Execution()).resolved == again.resolved
    meta = json.loads((tmp_path / "round-00001" / "meta.json").read_text())
    assert meta["resolved"] == {
        "device": "cpu", "way": "loop", "chunk": 1, "threads": 1, "precision": "float64",
        "torch": torch.__version__, "workers": 1,
    }  # fmt: skip
    assert set(load_file(tmp_path / "round-00001" / "state.safetensors")) >= {"central", "theta/values"}


def test_another_device_or_version_is_told(tmp_path: Path) -> None:
    upto(simulation(FLIU(), rounds=3, folder=tmp_path), 1)
    file = tmp_path / "round-00001" / "meta.json"
    meta = json.loads(file.read_text())
    meta["resolved"]["torch"] = "1.0"
    file.write_text(json.dumps(meta))
    assert "was begun with PyTorch 1.0" in simulation(FLIU(), rounds=3, folder=tmp_path).complaints[0]
    meta["resolved"]["device"] = "cuda"
    file.write_text(json.dumps(meta))
    with pytest.raises(
        PflOpsError, match="begun on cuda, here it would go on on cpu; use --device cuda, or --no-resume"
    ):
        simulation(FLIU(), rounds=3, folder=tmp_path)
    del meta["resolved"]["way"]
    file.write_text(json.dumps(meta))
    with pytest.raises(PflOpsError, match="another version of pfl-ops"):
        simulation(FLIU(), rounds=3, folder=tmp_path)


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    list(simulation(FLIU(), rounds=2).run())
    assert list(tmp_path.iterdir()) == []
