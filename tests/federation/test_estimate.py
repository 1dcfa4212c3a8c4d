"""An estimate against the real run, on a clock that counts samples: no machine's mood in it."""

import random
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from little import LOOP, clients, network, same, simulation, traces
from torch import nn

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.algorithms.fliu import FLIU
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.loop.estimate import (
    CHECKPOINT_SECONDS,
    COURIER_MIB,
    RUN_SECONDS,
    TRACKING_SECONDS,
    Estimate,
    duration,
    estimate,
    size,
)
from pfl_ops.federation.loop.simulate import Simulation
from pfl_ops.federation.method.contract import Models, Stages, State, Update
from pfl_ops.federation.method.round import Round
from pfl_ops.federation.scoring.evaluate import Scorer
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.state import snapshot
from pfl_ops.federation.training.feed import Feed
from pfl_ops.system import machine

CHUNK = Execution(device="cpu", way="vmap", chunk=4, threads=1)


class Clock:
    """A millisecond for each sample that is trained on, a third of that for each that is answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        batch, score, scores, scoring = Feed.batch, Scorer.score, Scorer._scores, []

        def counted(feed: Feed, samples: Any) -> Any:
            if torch.is_grad_enabled() or not scoring:
                self.now += samples.numel() * (1e-3 if torch.is_grad_enabled() else 1e-3 / 3)
            return batch(feed, samples)

        def scored(*args: Any, **settings: Any) -> Any:
            scoring.append(True)
            try:
                return score(*args, **settings)
            finally:
                scoring.pop()

        def asked(scorer: Scorer, models: Models, x: torch.Tensor) -> torch.Tensor:
            self.now += len(models.params) * x.shape[1] * 1e-3 / 3
            return scores(scorer, models, x)

        monkeypatch.setattr(Feed, "batch", counted)
        monkeypatch.setattr(Scorer, "score", scored)
        monkeypatch.setattr(Scorer, "_scores", asked)
        monkeypatch.setattr("time.perf_counter", lambda: self.now)


class ClockOfAGpu(Clock):
    """The same of a GPU: calls return at once, and their time passes when it is waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.seen = 0.0

        def wait(simulation: Simulation) -> None:
            self.seen = self.now

        monkeypatch.setattr(Simulation, "wait", wait)
        monkeypatch.setattr("time.perf_counter", lambda: self.seen)


def built(name: str, folder: Path | None = None, **more: Any) -> Simulation:
    experiment = Experiment.of(
        name, dataset="digits", model="mlp", clients=8, rounds=6, batch_size=20,
        **{"data.train_size": 400, "evaluation.subset": 80, **more},
    )  # fmt: skip
    return experiment.build(execution=LOOP, folder=folder)


SHORTER: dict[str, dict[str, Any]] = {"pfedme": {"algorithm.inner_steps": 2}}
CASES: list[tuple[str, dict[str, Any]]] = [(name, SHORTER.get(name, {})) for name in sorted(ALGORITHMS.builtin)] + [
    ("fliu", {"participation.share": 0.5}),
    ("fliu", {"evaluation.every": 3, "evaluation.global_every": 2}),
    ("fliu", {"evaluation.clients": 3}),
    ("ditto", {"training.local_epochs": 4, "training.rounds": 3}),
    ("fedavg", {"evaluation.subset": None, "evaluation.global_every": 1}),
    ("fedavg", {"participation.share": 0.25, "training.rounds": 2}),
]


ROUGH = {
    "drfa": "drawn with replacement: fewer clients than draws",
    "drdm": "drawn with replacement: fewer clients than draws",
    "fedala": "learns weights in its second round for as long as it takes, which counts as the others",
    "s_fedpg": "searches for a step, for as long as it takes",
}
"""Methods of which one round says less about the others."""
VARYING = {"cd2_pfed": 0.25, "fedpg": 0.1, "fedproto": 0.1}
"""Methods that send more in some rounds than in others, and by how much of the whole their estimate may be off."""
KEYS = ("samples_per_second", "train_seconds", "up_bytes", "down_bytes")


@pytest.mark.parametrize(("name", "more"), CASES, ids=str)
def test_near_the_real_run(name: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    sim = built(name, **more)
    found = estimate(sim)
    start = clock.now
    records = list(sim.run())
    real = clock.now - start
    if name in ROUGH:
        assert 0.4 < found.seconds / real < 2.5
        return
    assert found.seconds == pytest.approx(real, rel=0.2)
    cost = [[r.metrics[f"cost/{what}_seconds"] for r in records[1:]] for what in ("train", "eval")]
    assert found.train_seconds == pytest.approx(np.mean(cost[0]), rel=0.35)  # clients of average size, few of them
    assert found.eval_seconds == pytest.approx(sum(cost[1]), rel=0.15)
    rounds = found.rounds * (found.train_seconds + CHECKPOINT_SECONDS)
    assert found.eval_seconds == pytest.approx(found.seconds - rounds)
    # what a tuner's budgets count: samples as the rounds that were run report them, and bytes
    costs = [{key: r.metrics[f"cost/{key}"] for key in KEYS} for r in records[1:]]
    assert found.samples == pytest.approx(sum(c["samples_per_second"] * c["train_seconds"] for c in costs), rel=0.35)
    assert found.sent_bytes == pytest.approx(
        sum(c["up_bytes"] + c["down_bytes"] for c in costs), rel=VARYING.get(name, 0.01)
    )


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedala", "fedbabu"])
def test_a_gpu_is_waited_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training and scoring take as long as on a device whose calls return when they are done."""
    with monkeypatch.context() as patched:
        Clock(patched)
        expected = estimate(built(name))
    ClockOfAGpu(monkeypatch)
    found = estimate(built(name))
    assert found.train_seconds > 0 and found.eval_seconds > 0
    assert found.seconds == pytest.approx(expected.seconds)
    assert found.train_seconds == pytest.approx(expected.train_seconds)


@pytest.mark.parametrize("done", [0, 4, 5])
def test_a_resumed_run_is_estimated_for_the_rounds_left(done: int, monkeypatch: Any, tmp_path: Path) -> None:
    """Of six rounds; pooled data are scored in rounds 0, 5 and 6, so that the cost is not even."""
    Clock(monkeypatch)
    begun = built("fliu", tmp_path).run()
    for _ in range(done + 1 if done else 0):
        next(begun)
    begun.close()
    resumed = built("fliu", tmp_path)
    found = estimate(resumed)
    costs = [r.metrics for r in list(resumed.run())[done + 1 :]]
    real = sum(cost[f"cost/{what}_seconds"] for cost in costs for what in ("train", "eval"))
    assert (found.done, found.rounds) == (done, 6 - done)
    assert found.seconds == pytest.approx(real, rel=0.25)
    assert found.samples == pytest.approx(
        sum(c["cost/samples_per_second"] * c["cost/train_seconds"] for c in costs), rel=0.35
    )
    words = {0: "6 rounds of", 4: "2 more rounds of", 5: "1 more round of"}
    assert words[done] in str(found)


def test_checkpoints_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 rounds without a cost of their own: 2 s to write them all, 0.2 s to write every tenth."""
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    every, tenth = (
        estimate(simulation(FLIU(), rounds=100, execution=LOOP.model_copy(update={"checkpoint_every": n})))
        for n in (1, 10)
    )
    assert (every.seconds, tenth.seconds) == (pytest.approx(100 * CHECKPOINT_SECONDS), pytest.approx(0.2))
    assert "(100 rounds of 0.0 s, evaluation 0.0 s)" in str(every)


def test_only_what_is_wanted_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    whole, few, none = (estimate(simulation(FLIU(), stages=s, final=f)) for s, f in
                        ((None, True), ({"G"}, False), ((), False)))  # fmt: skip
    assert none.eval_seconds == 0 < few.eval_seconds < whole.eval_seconds


@pytest.mark.parametrize("execution", [LOOP, CHUNK], ids=["loop", "vmap"])
def test_nothing_changes(execution: Execution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes nothing, and the run afterwards is the run without it: state, draws, and what the state would save."""
    monkeypatch.chdir(tmp_path)
    for name in ("local", "fliu", "fedrep"):
        method = ALGORITHMS.get(name)()
        net: Any = {}
        if name == "fedrep":
            net = {"net": network(lambda: nn.Sequential(nn.Linear(2, 4), nn.Tanh()), 4)}
        measured = simulation(method, share=0.5, rounds=2, execution=execution, **net)
        before = [part.keys() for part in snapshot.parts(measured.state, whole=True)]
        estimate(measured)
        assert before == [part.keys() for part in snapshot.parts(measured.state, whole=True)]
        list(measured.run())
        plain = simulation(method, share=0.5, rounds=2, execution=execution, **net)
        list(plain.run())
        same(traces(measured), traces(plain))
    assert list(tmp_path.iterdir()) == []


def test_memory_and_disk_grow_with_rows() -> None:
    """A method with a row a client keeps three times all of them for a moment; P = 9 here, in float64."""
    big = clients([[0]] * 40, train=[[0, 1]] * 40)
    small, large = (estimate(simulation(FLIU(), data=d)) for d in (None, big))
    assert large.disk_mib > 5 * small.disk_mib and large.memory_mib > small.memory_mib
    rows, p = 40 * 9 * 8 / 2**20, 9 * 8 / 2**20
    assert large.disk_mib == pytest.approx(3 * (rows + p))


def test_rows_in_a_file_are_on_the_disk_and_not_in_memory() -> None:
    big = clients([[0]] * 40, train=[[0, 1]] * 40)
    memory, file = (
        estimate(simulation(FLIU(), data=big, execution=LOOP.model_copy(update={"state": state})))
        for state in ("memory", "file")
    )
    rows = 40 * 9 * 8 / 2**20
    assert memory.memory_mib - file.memory_mib == pytest.approx(rows)
    assert file.disk_mib - memory.disk_mib == pytest.approx(rows)


def test_rows_of_clients_that_are_never_drawn_cost_nothing() -> None:
    """Two rounds of four clients out of 40: eight rows at most, and eight models of clients."""
    big = clients([[0]] * 40, train=[[0, 1]] * 40)
    trial, final = (estimate(simulation(FLIU(), data=big, share=0.1, final=final)) for final in (False, True))
    assert trial.disk_mib == final.disk_mib == pytest.approx(3 * (8 + 1) * 9 * 8 / 2**20)


def test_models_that_are_tracked_count_where_they_are_more_than_the_state() -> None:
    """FedRep keeps a head of 15 numbers a client, and tracks a whole model a client: those and a body of 214."""
    net = network(lambda: nn.Sequential(nn.Linear(2, 30), nn.Tanh(), nn.Linear(30, 4), nn.Tanh()), 4)
    big = clients([[0]] * 40, train=[[0, 1]] * 40)
    final, trial = (
        estimate(simulation(ALGORITHMS.get("fedrep")(), data=big, net=net, final=final)) for final in (True, False)
    )
    state, models = 40 * 15 + 214, (40 + 2) * (15 + 214)
    assert final.disk_mib == pytest.approx((state + models) * 8 / 2**20)
    assert trial.disk_mib == pytest.approx(3 * state * 8 / 2**20)


def test_how_a_person_says_it() -> None:
    found = Estimate(7500.4, 60.2, 1500, 100, 3 * 1024, 800)
    assert (
        str(found) == "about 2 h 5 min (100 rounds of 1 min 0 s, evaluation 25 min 0 s), memory 3.0 GiB, disk 800 MiB"
    )
    assert str(Estimate(1, 1, 0, 1, 1, 1)).startswith("about 1.0 s (1 round of 1.0 s")
    assert [duration(s) for s in (0.04, 9.94, 12.4, 59.6, 61, 3599.9)] == [
        "0.0 s", "9.9 s", "12 s", "1 min 0 s", "1 min 1 s", "1 h 0 min",
    ]  # fmt: skip
    assert [size(mib) for mib in (0.02, 1, 1023, 1536)] == ["under 1 MiB", "1 MiB", "1023 MiB", "1.5 GiB"]


def test_a_busy_machine_is_one_of_the_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = [0.24, 0.6]
    monkeypatch.setattr(machine.OtherLoad, "share", lambda self: shares.pop(0))
    quiet, busy = estimate(simulation(FLIU())), estimate(simulation(FLIU()))
    assert quiet.hints == ()
    assert busy.hints == ("the machine was busy (other processes took about 60 % of it): the estimate may be too high",)


def test_start_up_is_what_the_process_took_so_far_and_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "process_age", lambda: 6.0)
    found = Estimate(30, 2, 10, 10, 500, 3)
    monkeypatch.setitem(sys.modules, "mlflow", sys)
    assert found.with_startup().startup_seconds == 6.0
    monkeypatch.delitem(sys.modules, "mlflow")
    whole = found.with_startup()
    assert whole.startup_seconds == 6.0 + TRACKING_SECONDS == 10.0
    assert str(whole).startswith("about 40 s (start-up 10 s, 10 rounds of 2.0 s, evaluation 10 s), ")
    apart = found.with_startup(tracking=False)
    assert (apart.startup_seconds, apart.memory_mib, whole.memory_mib) == (6.0, 500 + COURIER_MIB, 500)
    # 10 s here, 10 s in the trials' processes, then 12 trials of 30 s, three at once, and what a run takes besides
    besides = 4 * RUN_SECONDS
    assert whole.of_trials(12, 3) == pytest.approx(10 + 10 + 120 + besides)
    assert found.of_trials(12, 3) == pytest.approx(120 + besides)


def test_a_method_that_notes_values_is_estimated_too() -> None:
    """A round is measured twice; a method may note a value once a round."""
    fliu = Experiment.of("fliu", dataset="digits", clients=4, rounds=1)
    assert estimate(fliu.build(execution=CHUNK)).seconds > 0


def test_a_method_that_fails_in_its_second_round_is_estimated_by_its_first() -> None:
    """The run keeps the round that it finished; an error of the estimate would keep it from its start."""

    class Fails(FLIU):
        def round(self, s: State, r: Round) -> tuple[Update, Stages]:
            if r.t:
                raise ValueError("no second round")
            return super().round(s, r)

    found = estimate(simulation(Fails(), rounds=5))
    assert found.rounds == 5 and found.train_seconds > 0 and found.eval_seconds > 0 and found.samples > 0


def test_a_method_whose_round_does_not_repeat_is_refused() -> None:
    """A generator of Python's belongs to no run, and no generator of PyTorch or NumPy was drawn from."""
    own = random.Random(0)  # 0.844, then 0.758

    class Noisy(FLIU):
        def round(self, s: Any, r: Any) -> Any:
            update, stages = super().round(s, r)
            return {**update, "central": update["central"] * (1 + 0.01 * own.random())}, stages

    for method, words in ((FLIU(), None), (Noisy(), r"method 'fliu': round\(\) gave another 'central' when the same")):
        one = simulation(method)
        if words is None:
            estimate(one)
        else:
            with pytest.raises(PflOpsError, match=words):
                estimate(one)


@pytest.mark.usefixtures("forked_children")
@pytest.mark.parametrize("workers", [1, 2])
def test_each_worker_has_clients_to_train_while_a_round_is_measured(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three clients in a stack, and so many for each worker; one stack kept one of them busy."""
    e = Experiment.of("fedavg", dataset="digits", model="mlp", clients=8, rounds=2, **{"data.train_size": 160})
    execution = Execution(device="cpu", way="vmap", chunk=3, workers=workers, threads=1)
    with closing(e.build(execution=execution)) as one:
        at, measured = one.round_at, []

        def noted(t: int, clients: torch.Tensor, *rest: Any, **more: Any) -> Any:
            measured.append(len(clients))
            return at(t, clients, *rest, **more)

        monkeypatch.setattr(one, "round_at", noted)
        estimate(one)
    assert set(measured) == {3 * workers}
