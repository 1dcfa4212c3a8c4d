"""The round loop: which stage is scored when and on what, what ends a run, and that looking never moves training."""

import gc
import math
import weakref
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
import torch
from little import HELD, LOOP, Puppet, clients, network, same, simulation, timeless, traces
from pydantic import ValidationError
from torch import Tensor, nn

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.algorithms.fedavg import FedAvg
from pfl_ops.algorithms.fliu import FLIU
from pfl_ops.algorithms.local import Local
from pfl_ops.config.experiment import Experiment
from pfl_ops.data.clients import Clients
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.loop import diverged, finish
from pfl_ops.federation.loop.diverged import Diverged
from pfl_ops.federation.loop.simulate import Simulation, commit
from pfl_ops.federation.method.contract import ClientRows, Models, Rows
from pfl_ops.federation.scoring.evaluate import Scores
from pfl_ops.federation.scoring.stages import _is_copied, keys
from pfl_ops.federation.settings import (
    DirichletParticipation,
    Evaluation,
    Execution,
    StragglerParticipation,
    Training,
    UniformParticipation,
)
from pfl_ops.federation.state.checkpoint import Record


def played(method: Any, **settings: Any) -> tuple[Simulation, list[Record]]:
    sim = simulation(method, **settings)
    return sim, list(sim.run())


@pytest.mark.parametrize("way", ["loop", "vmap"])
@pytest.mark.parametrize("name", ALGORITHMS.builtin)
def test_models_are_freed_without_a_garbage_collection(name: str, way: Literal["loop", "vmap"]) -> None:
    """A simulation is part of no reference cycle: the next run of this process finds the memory of this one free."""
    e = Experiment.of(
        name, dataset="digits", model="mlp", clients=4, rounds=1, **{"data.train_size": 50, "evaluation.subset": 10}
    )
    gc.disable()
    try:
        sim = e.build(execution=Execution(way=way, threads=1, workers=1, chunk=2 if way == "vmap" else 1))
        assert len(list(sim.run())) == 2
        sim.close()
        kept = {"simulation": sim, "task": sim.task, "trainer": sim.trainer, "initial model": sim.task.initial}
        references = {name: weakref.ref(value) for name, value in (kept | sim.state).items()}
        del sim, kept
        assert not [name for name, reference in references.items() if reference() is not None]
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("how", "rounds", "ends"),
    [({}, 1, False), ({"state": "file"}, 3, False), ({}, 3, True), ({"diverged": "continue"}, 3, True)],
    ids=["closed half-way", "in a file", "diverged", "went on"],
)
def test_models_are_freed_however_a_run_ends(
    how: Any, rounds: int, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its generator is closed after some rounds, or raises: neither a frame nor an error keeps the models."""
    if ends:
        monkeypatch.setattr(diverged, "check", lambda *_: Diverged(1, 0.1))
    e = Experiment.of("fliu", dataset="digits", model="mlp", clients=4, rounds=3, **{"data.train_size": 50})
    gc.disable()
    try:
        sim = e.build(execution=Execution(way="loop", threads=1, workers=1, **how), folder=tmp_path)
        reference = weakref.ref(sim)
        records = sim.run()
        with pytest.raises(Diverged) if ends and not how else nullcontext():
            for record in records:
                if record.round == rounds:
                    break
        records.close()
        sim.close()
        del sim, records
        assert reference() is None
    finally:
        gc.enable()


def stages_and_views(record: Record) -> set[str]:
    return {"/".join(key.split("/")[1:3]) for key in record.metrics if key.startswith("test/")} - {
        f"{stage}/acc" for stage in ("L1", "L2", "G")
    }


# -- what is scored ----------------------------------------------------------------------------------------------------


def test_one_round_counted_on_paper() -> None:
    """Held-out labels 0001, 112, none, 2. Round 1: L1 answers 0 1 2 0, L2 the same (t = 0), G 0.

    L1 and L2 local: 3/4, 2/3, -, 0; global 3/8, 3/8, 2/8, 3/8. G local: 3/4, 0, -, 0; global 3/8.
    """
    sim, records = played(Puppet(), rounds=1, evaluation={"eps": 0.7})
    found = records[1].metrics
    for stage in ("L1", "L2"):
        assert found[f"test/{stage}/local/mean"] == pytest.approx((3 / 4 + 2 / 3) / 3)
        assert found[f"test/{stage}/local/worst"] == 0
        assert found[f"test/{stage}/local/rho_70"] == 1 and found[f"test/{stage}/local/clients"] == 3
        assert found[f"test/{stage}/global/mean"] == pytest.approx(11 / 32)
        assert found[f"test/{stage}/global/worst"] == pytest.approx(2 / 8)
        assert found[f"test/{stage}/acc"] == pytest.approx((3 / 4 + 2 / 3) / 3 + 11 / 32)
    assert found["test/G/local/mean"] == pytest.approx(1 / 4)
    assert found["test/G/global/mean"] == pytest.approx(3 / 8) and found["test/G/global/std"] == 0
    assert sim.final["final/test/L1/local/mean"] == pytest.approx((3 / 4 + 2 / 3) / 3)


def test_the_schedule() -> None:
    """every = 2, global_every = 4, seven rounds: own data at 2, 4, 6 and the last, N models on the pool at 4 and 7."""
    _, records = played(Puppet(), rounds=7, evaluation={"every": 2, "global_every": 4})
    own = {"L1/local", "L2/local", "G/local", "G/global"}
    everything = own | {"L1/global", "L2/global"}
    # before round 1 there is L1 alone; clients 0 and 3 have other models there, so all are scored
    expected = [{"L1/local", "L1/global"}, set(), own, set(), everything, set(), own, everything]
    assert [stages_and_views(record) for record in records] == expected
    assert [record.round for record in records] == list(range(8))
    assert all("train/lr" in r.metrics and "cost/train_seconds" in r.metrics for r in records[1:])


def test_the_local_view_and_g_in_every_round_by_default() -> None:
    _, records = played(Puppet(), rounds=6)
    for record in records[1:]:
        everything = record.round in (5, 6)
        assert ("test/L1/global/mean" in record.metrics) == everything
        assert {"test/L1/local/mean", "test/L2/local/mean", "test/G/global/mean"} <= record.metrics.keys()


def test_the_start_is_one_model_where_all_clients_hold_the_same() -> None:
    sim = simulation(Puppet(l1=lambda k: 1), rounds=1)
    shown = []
    score = sim.scorer.score
    sim.scorer.score = lambda models, **how: shown.append(models) or score(models, **how)  # type: ignore
    start = next(iter(sim.run()))
    assert isinstance(shown[0], list) and shown[0][0].clients is None
    assert start.metrics["test/L1/local/mean"] == pytest.approx((1 / 4 + 2 / 3 + 0) / 3)
    assert start.metrics["test/L1/global/mean"] == pytest.approx(3 / 8)


def test_the_start_is_every_clients_own_where_they_differ() -> None:
    start = next(iter(simulation(Puppet(), rounds=1).run()))
    assert start.metrics["test/L1/local/mean"] == pytest.approx((3 / 4 + 2 / 3 + 0) / 3)


@pytest.mark.parametrize("at_once", [1, 50])
def test_start_of_groups_of_equal_models_is_of_each(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two largest clients, 2 and 3, start from one model, that answers 2; clients 0 and 1 from others, 0 and 1."""
    monkeypatch.setattr("pfl_ops.federation.scoring.stages.MODELS_AT_ONCE", at_once)
    start = next(iter(simulation(Puppet(l1=lambda k: min(k, 2)), rounds=1).run()))
    assert start.metrics["test/L1/local/mean"] == pytest.approx((3 / 4 + 2 / 3 + 1) / 3)
    assert start.metrics["test/L1/global/worst"] == pytest.approx(2 / 8)


@pytest.mark.parametrize(("kind", "copied"), [([0, 0], True), ([0, 1], False)])
def test_start_is_one_model_only_with_what_predict_needs(kind: list[int], copied: bool) -> None:
    one, each = Models(torch.ones(3), ctx={"kind": torch.tensor(0)}), torch.ones(2, 3)
    assert _is_copied(one, Models(each, torch.arange(2), {"kind": torch.tensor(kind)})) == copied
    assert not _is_copied(one, Models(each, torch.arange(2)))


@pytest.mark.parametrize(("shared", "said"), [(False, "None"), (True, "one model for all")])
def test_models_of_some_clients_alone_are_refused(shared: bool, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Client 0 has a model of its own, and for the others `personal` gives one for all, which was scored as client
    0's, too; or none."""
    monkeypatch.setattr("pfl_ops.federation.scoring.stages.MODELS_AT_ONCE", 1)

    class Mixed(FedAvg):
        def personal(self, s: Any, r: Any) -> Any:
            if 0 in r.cohort.tolist():
                return Models(s["central"][None], r.cohort)
            return Models(s["central"]) if shared else None

    run = simulation(Mixed(), rounds=1).run()
    with pytest.raises(PflOpsError, match=f"returned a model each for some clients and {said} for others; expected"):
        list(run)


@pytest.mark.parametrize("scored", [0, 1, 2, 3], ids=["training", "L1", "L2", "G"])
def test_run_goes_on_only_from_the_state_of_its_records(scored: int, tmp_path: Path) -> None:
    """Round 2 is interrupted (Ctrl-C) in the scores of a stage. Its training is in the state, and would be repeated.

    Built again, the simulation goes on from the checkpoint of round 1. Interrupted in training, it can go on itself.
    """

    def build(folder: Path | None) -> Simulation:
        return simulation(FedAvg(), rounds=3, folder=folder)

    whole, stopped = build(None), build(tmp_path / "run")
    list(whole.run())
    interrupted = stopped.run()
    next(interrupted), next(interrupted)
    with pytest.MonkeyPatch.context() as patch:
        if scored:
            score, lives = stopped.scorer.score, iter([True] * (scored - 1) + [False])
            patch.setattr(stopped.scorer, "score", lambda *a, **k: score(*a, **k) if next(lives) else ctrl_c())
        else:
            patch.setattr(stopped.method, "round", lambda *a: ctrl_c())
        with pytest.raises(KeyboardInterrupt):
            next(interrupted)
    again = stopped
    if scored:
        with pytest.raises(PflOpsError, match="round 2 was interrupted after its training"):
            list(stopped.run())
        again = build(tmp_path / "run")
    assert [record.round for record in again.run()] == [0, 1, 2, 3]
    same(traces(again), traces(whole))


def ctrl_c() -> Any:
    raise KeyboardInterrupt


def test_l2_in_the_curves_is_the_cohorts() -> None:
    """Half of the clients in a round: only their L2; the last full evaluation has everybody's."""
    sim, records = played(Puppet(l2=lambda k, t: HELD[k][0] if HELD[k] else 0), rounds=3, share=0.5)
    for record in records[1:]:
        assert record.metrics["test/L1/local/clients"] == 3
        assert record.metrics["test/L2/local/clients"] <= 2
    assert sim.final["final/test/L2/local/clients"] == 3
    table = {k: v for k, stage, v in zip(*(sim.client_table[c] for c in ("client", "stage", "local")), strict=True)
             if stage == "L2"}  # fmt: skip
    assert table[0] == 3 / 4 and table[1] == 2 / 3 and table[3] == 1 and math.isnan(table[2])


@pytest.mark.parametrize("method", [FedAvg(), FLIU(), Local()], ids=lambda m: m.name)
def test_absent_clients_repeat_the_last_round_from_the_state_before_it(method: Any) -> None:
    """A round of half the clients ends with the L2 that the other half would have had in it: the same as everybody's.

    After one round, since all clients start from the same state and a client's draws hang on its number alone.
    """
    found = []
    for share in (0.5, 1.0):
        sim, rows = simulation(method, rounds=1, share=share, stages={"L2"}), {}
        score = sim.scorer.score

        def seen(models: Any, score: Any = score, rows: Any = rows, full: bool = False, **how: Any) -> Any:
            chunks = list(models)
            rows |= {int(k): row for m in chunks if full and m.clients is not None
                     for k, row in zip(m.clients, m.params, strict=True)}  # fmt: skip
            return score(chunks, full=full, **how)

        sim.scorer.score = seen  # type: ignore[method-assign]
        list(sim.run())
        table = {name: values.tolist() for name, values in sim.client_table.items()}
        found.append((rows, {k: v for k, v in sim.final.items() if k.startswith("final/")}, table))
    (few, *scores), (all_, *expected) = found
    assert few.keys() == all_.keys() == {0, 1, 2, 3}
    for k, row in few.items():
        assert torch.equal(row, all_[k]), f"client {k}"
    assert repr(scores) == repr(expected)


@pytest.mark.parametrize("method", [FedAvg(), FLIU(), Local()], ids=lambda m: m.name)
def test_that_leaves_no_trace_in_the_state(method: Any) -> None:
    with_, without = (played(method, rounds=3, share=0.5, final=final)[0] for final in (True, False))
    one, other = traces(with_), traces(without)
    for each in (one, other):
        del each["final"], each["table"]
    same(one, other)


def test_a_stage_given_as_a_function_is_asked_for_those_who_are_scored() -> None:
    method = Puppet(lazy=True)
    sim = simulation(method, rounds=4, share=0.5, evaluation={"every": 2})
    cohorts = []
    for record in sim.run():
        if record.round in (2, 4):
            cohorts.append(method.asked[0])
            assert len(method.asked[0]) == 2
            assert method.asked[1:] == ([[0, 1, 2, 3]] if record.round == 4 else [])
        else:
            assert method.asked == [], "nobody asked"
        method.asked.clear()
    eager, _ = played(Puppet(), rounds=4, share=0.5, evaluation={"every": 2})
    assert timeless(sim.final) == timeless(eager.final)


def test_stages_that_nobody_wants_are_not_asked_for() -> None:
    method = Puppet(lazy=True)
    sim, records = played(method, rounds=2, stages={"L1"})
    assert method.asked == []
    assert all(key.split("/")[1] == "L1" for r in records for key in r.metrics if key.startswith("test/"))
    assert {key.split("/")[2] for key in sim.final if key.startswith("final/")} == {"L1"}
    assert sim.global_model() is not None, "the model is kept, scored or not"


@pytest.mark.parametrize(("stages", "expected"), [("G", {"G"}), (("L2", "L1"), {"L1", "L2"})], ids=("G", "L2 L1"))
def test_stages_of_the_curves_and_all_in_the_last_round(stages: Any, expected: set[str]) -> None:
    """A stage that is not scored during the run is not asked of the method before the end."""
    plain, _ = played(Puppet(lazy=True), rounds=3)
    method = Puppet(lazy=True)
    sim, records = played(method, rounds=3, evaluation={"stages": stages})
    assert {key.split("/")[1] for r in records for key in r.metrics if key.startswith("test/")} == expected
    assert ("test/L1/local/mean" in records[0].metrics) == ("L1" in expected)

    def final(simulation: Simulation) -> dict[str, float]:
        return {key: value for key, value in timeless(simulation.final).items() if key.startswith("final/")}

    assert final(sim) == final(plain) and {key.split("/")[2] for key in final(sim)} == {"L1", "L2", "G"}
    if "L2" not in expected:
        everyone = list(range(sim.task.n_clients))
        assert [sorted(asked) for asked in method.asked] == [everyone], "once, at the end"


def test_no_cohort_member_is_scored() -> None:
    """One client is scored, one takes part: where it is another, L2 has no key in that round."""
    _, records = played(Puppet(lazy=True), rounds=8, share=0.25, evaluation={"clients": 1})
    there = {"test/L2/local/mean" in r.metrics for r in records[1:-1]}
    assert False in there


def test_a_stage_that_a_method_has_not_has_no_key() -> None:
    sim, records = played(Puppet(l1=None, l2=None), rounds=2)
    assert stages_and_views(records[0]) == set()
    assert stages_and_views(records[2]) == {"G/local", "G/global"}
    assert sim.final["best/round"] == 2 and sim.personal_models() is None  # by G then: 1/4 + 3/8, 11/36 + 3/8
    sim, records = played(Puppet(g=None), rounds=1)
    assert stages_and_views(records[1]) == {"L1/local", "L1/global", "L2/local", "L2/global"}
    assert sim.global_model() is None


class Tuned:
    """FedAvg whose L2 is Θ trained once more, by a function."""

    def __init__(self) -> None:
        self.rows: list[tuple[list[int], Tensor]] = []

    def init(self, task: Any) -> Any:
        return {"central": task.initial}

    def round(self, s: Any, r: Any) -> Any:
        central = r.weights @ r.train(s["central"])

        def tuned(who: Tensor) -> Models:
            w = r.over(who).train(central)
            self.rows.append((who.tolist(), w))
            return Models(w, who)

        return {"central": central}, {"L2": tuned, "G": Models(central)}

    def personal(self, s: Any, r: Any) -> Models:
        return Models(s["central"])


def test_a_stage_that_trains_gives_the_same_however_often_and_for_whom_it_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The curve's L2 and the last one's are the same models; chunks of clients make no difference."""
    method = Tuned()
    played(method, rounds=1)
    (who, curve), (_, last) = method.rows
    assert torch.equal(curve, last)
    monkeypatch.setattr("pfl_ops.federation.scoring.stages.MODELS_AT_ONCE", 1)
    method.rows.clear()
    played(method, rounds=1)
    assert [w for w, _ in method.rows] == [[k] for k in who] * 2
    assert torch.equal(torch.cat([rows for _, rows in method.rows[:4]]), curve)


@pytest.mark.parametrize("at_once", [1, 3])
def test_models_may_be_asked_for_a_few_at_a_time(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = traces(played(FLIU(), rounds=2, share=0.5)[0])
    monkeypatch.setattr("pfl_ops.federation.scoring.stages.MODELS_AT_ONCE", at_once)
    same(whole, traces(played(FLIU(), rounds=2, share=0.5)[0]))


@pytest.mark.parametrize("prefix", ["", "final/"])
def test_keys_of_stages_by_hand(prefix: str) -> None:
    """The worst client is that of 9 samples, the worst of 10 or more the other one; G has no pooled score."""
    l1 = Scores(np.array([0.25, 0.5]), np.array([0.375, 0.625]), {20: np.array([0.5, 0.75])}, 4, 0.125)
    g = Scores(np.array([0.5, 0.5]), np.array([math.nan, math.nan]), {}, 4, 0.125)
    found = keys({"L1": l1, "G": g}, "test", (0.4,), np.array([9, 10]), prefix)
    expected = {
        "L1/local/mean": 0.375, "L1/local/worst": 0.25, "L1/local/worst_min10": 0.5, "L1/local/rho_40": 1.0,
        "L1/global/mean": 0.5, "L1/global/worst": 0.375, "L1/global/se": 0.125, "L1/synthetic_20/worst": 0.5,
        "L1/acc": 0.875, "G/local/mean": 0.5, "G/local/worst_min10": 0.5,
    } | ({"L1/global/samples": 4.0} if prefix else {})  # fmt: skip
    assert {f"{prefix}test/{key}": value for key, value in expected.items()}.items() <= found.items()
    absent = ("L1/global/worst_min10", "L1/global/rho_40", "G/global/se", "G/global/samples", "G/acc")
    assert not found.keys() & {f"{prefix}test/{key}" for key in absent}


def test_synthetic_views_have_keys_and_columns() -> None:
    sim, records = played(Puppet(), rounds=2, evaluation={"synthetic": (0, 100)})
    last = records[-1].metrics
    for stage in ("L1", "L2", "G"):
        assert last[f"test/{stage}/synthetic_0/mean"] == pytest.approx(last[f"test/{stage}/local/mean"])
        assert last[f"test/{stage}/synthetic_100/mean"] == pytest.approx(last[f"test/{stage}/global/mean"])
        assert sim.final[f"final/test/{stage}/synthetic_100/mean"] == pytest.approx(last[f"test/{stage}/global/mean"])
    assert sim.client_table["synthetic_0"] == pytest.approx(sim.client_table["local"], nan_ok=True)


def test_test_sets_of_one_size() -> None:
    """G answers 0 everywhere, labels 0001, 112, none, 2: 3 of 8 by samples; 3/4, 0, 0 by clients, 1/4."""
    for alike, expected in ((False, 3 / 8), (True, 1 / 4)):
        sim, _ = played(Puppet(), rounds=1, evaluation={"synthetic": 100, "equal_tests": alike})
        assert sim.final["final/test/G/synthetic_100/mean"] == pytest.approx(expected)
        assert sim.final["final/test/G/global/mean"] == pytest.approx(3 / 8), "the pooled test set is as published"


def test_rounds_to_targets_are_told_at_the_end() -> None:
    """Round by round L1 local is what the records say; the first at or over the target counts."""
    sim, records = played(Puppet(), rounds=4, evaluation={"targets": (0.2, 0.99), "global_every": 2})
    told = {name: value for name, value in sim.final.items() if name.startswith("reached/")}
    for name in ("test/G/local/mean", "test/L1/local/worst", "test/L1/global/mean"):
        first = [r.round for r in records if r.metrics.get(name, 0) >= 0.2]
        assert told.pop(f"reached/{name}_20", None) == (first[0] if first else None)
    assert told and not [name for name in told if name.endswith("_99")]


def test_reached_by_hand() -> None:
    records = [Record(t, {"val/L2/local/worst": v}, 0) for t, v in enumerate([0.5, 0.8, 0.7, 0.9])]
    found = finish.reached(records, "validation", (0.75, 0.8, 0.95))
    assert found == {"reached/val/L2/local/worst_75": 1.0, "reached/val/L2/local/worst_80": 1.0}


# -- absent clients ----------------------------------------------------------------------------------------------------


def own_scores(sim: Simulation) -> dict[int, float]:
    """{client: local accuracy of its L2 model}, of the clients that have one."""
    table = pd.DataFrame(sim.client_table)
    return table[table["stage"] == "L2"].set_index("client")["local"].dropna().to_dict()


LATE: dict[str, Any] = {"rounds": 4, "share": 0.5, "evaluation": {"absent": "last"}}


@pytest.mark.parametrize("method", [FLIU(), Tuned()], ids=["models", "function"])
def test_absent_clients_keep_the_score_of_their_last_round(method: Any) -> None:
    """Runs of one, two, ... rounds, each scored after its cohort has trained, give every client's last score."""
    expected: dict[int, float] = {}
    for rounds in range(1, 5):
        expected |= own_scores(played(method, rounds=rounds, share=0.5, final=False)[0])
    sim, records = played(method, **LATE)
    assert own_scores(sim) == expected
    assert sim.final["final/test/L2/local/mean"] == pytest.approx(sum(expected.values()) / len(expected))
    assert "final/test/L2/global/mean" not in sim.final and "final/test/L1/global/mean" in sim.final
    again, _ = played(method, **{**LATE, "evaluation": {}})
    assert own_scores(again) != expected or isinstance(method, Tuned), "FLIU's train once more"
    assert [r.metrics["test/L2/local/mean"] for r in records[1:]] == [
        r.metrics["test/L2/local/mean"] for r in again.records[1:]
    ]


@pytest.mark.parametrize("done", [1, 3, 4])
def test_they_keep_it_over_a_stop(done: int, tmp_path: Path) -> None:
    whole, _ = played(FLIU(), **LATE)
    with closing(simulation(FLIU(), **LATE, folder=tmp_path).run()) as run:  # type: ignore[type-var]
        for _ in range(done + 1):
            next(run)
    sim, _ = played(FLIU(), **LATE, folder=tmp_path)
    assert sim.resumed_from == done
    assert own_scores(sim) == own_scores(whole) and sim.final == whole.final


@pytest.mark.parametrize("settings", [{"every": 2}, {"stages": "G"}], ids=str)
def test_their_last_scores_must_be_known(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="absent=last needs every=1 and L2 in stages"):
        Evaluation(absent="last", **settings)


# -- looking never moves training --------------------------------------------------------------------------------------

SETTINGS: list[dict[str, Any]] = [
    {"every": 3},
    {"global_every": 1, "subset": None},
    {"subset": 2, "eps": 0.5},
    {"eps": (0.5, 0.9), "targets": 0.9, "synthetic": "sweep", "equal_tests": True},
    {"clients": 1},
    {"synthetic": (0, 50, 100), "global_every": 1},
    {"final": 4},
    {"stages": "G"},
    {"absent": "last"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("method", [FLIU(), Tuned()], ids=["fliu", "tuned"])
def test_no_evaluation_setting_moves_training(method: Any, settings: dict[str, Any]) -> None:
    plain = traces(played(method, rounds=4, share=0.5)[0])
    looked = traces(played(method, rounds=4, share=0.5, evaluation=settings)[0])
    for name, value in plain.items():
        if isinstance(value, Tensor):
            assert torch.equal(value, looked[name]), name
    losses = [[m["train/loss"] for _, m in t["records"][1:]] for t in (plain, looked)]
    assert losses[0] == losses[1]


def test_nor_which_stages_are_scored() -> None:
    plain = traces(played(FLIU(), rounds=3, share=0.5)[0])
    looked = traces(played(FLIU(), rounds=3, share=0.5, stages={"G"}, final=False)[0])
    for name, value in plain.items():
        if isinstance(value, Tensor):
            assert torch.equal(value, looked[name]), name


# -- the end -----------------------------------------------------------------------------------------------------------


def test_best_is_the_earliest_round_of_the_highest_acc() -> None:
    """G answers 0, 1, 2, 0; clients' own: 3/4 0 - 0, then 1/4 2/3 - 0, then 0 1/3 - 1 (the best), then as at first."""
    sim, records = played(Puppet(l1=None, l2=None), rounds=4)
    assert sim.final["best/round"] == 3
    assert sim.final["best/test/G/local/mean"] == pytest.approx((1 / 3 + 1) / 3)
    assert {k.removeprefix("best/") for k in sim.final if k.startswith("best/test")} == {
        k for k in records[3].metrics if k.startswith("test")
    }
    assert not any(k.startswith(("best/cost", "best/train", "final/cost")) for k in sim.final)
    assert sim.final["final/test/G/local/mean"] == pytest.approx(1 / 4)


def test_best_counts_no_start_and_falls_back_to_what_there_is() -> None:
    """By L1's Acc; a stage without a global view by its own data; G where there is no other."""

    def of(key: str, *values: float) -> dict[str, float]:
        return finish.best([Record(t, {key: v, "cost/x": 1.0}, 0) for t, v in enumerate(values)], "test")

    for key in ("test/L1/acc", "test/L1/local/mean", "test/G/acc"):
        assert of(key, 0.9, 0.5, 0.8, 0.8) == {"best/round": 2.0, f"best/{key}": 0.8}
    assert of("train/loss", 1.0, 0.5) == {}


def test_best_is_that_of_the_stage_where_the_method_is_judged() -> None:
    """L1 is best in round 1 and L2 in round 2; a method judged at L2 whose L2 was not scored falls back to L1."""
    scores = [(0.1, 0.1), (0.9, 0.5), (0.8, 0.7)]
    records = [Record(t, {"test/L1/acc": l1, "test/L2/acc": l2}, 0) for t, (l1, l2) in enumerate(scores)]
    assert finish.best(records, "test")["best/round"] == 1
    assert finish.best(records, "test", "L2") == {"best/round": 2.0, "best/test/L1/acc": 0.8, "best/test/L2/acc": 0.7}
    without = [Record(r.round, {"test/L1/acc": r.metrics["test/L1/acc"]}, 0) for r in records]
    assert finish.best(without, "test", "L2")["best/round"] == 1


def test_the_best_round_of_a_run_is_of_its_own_stage() -> None:
    """L1 is the same in all rounds, so that its best one is the first; L2 is best in a later one."""
    method = Puppet(l2=lambda k, t: (k + t + 1) % 3)
    method.own_stage = "L2"
    sim, records = played(method, rounds=3, evaluation={"global_every": 1})
    acc = {record.round: record.metrics["test/L2/acc"] for record in records[1:]}
    assert sim.final["best/round"] == max(acc, key=lambda t: acc[t]) != 1
    assert sim.final["best/test/L2/acc"] == max(acc.values())


def test_the_last_round_is_full_and_the_curve_is_not() -> None:
    sim, records = played(Puppet(), rounds=1, evaluation={"subset": 4})
    seen = torch.bincount(sim.scorer.feed.y[sim.scorer.subset], minlength=3)
    assert records[1].metrics["test/G/global/mean"] == pytest.approx(int(seen[0]) / 4)
    assert sim.final["final/test/G/global/mean"] == pytest.approx(3 / 8)
    keys = {key for key in records[1].metrics if key.startswith("test/") and not key.endswith("/se")}
    assert {key.removeprefix("final/") for key in sim.final if key.startswith("final/")} == keys


def test_the_table_of_clients() -> None:
    sim, _ = played(Puppet(), rounds=1)
    table = sim.client_table
    assert list(table) == ["client", "stage", "n_train", "n_held", "local", "global"]
    assert table["client"].tolist() == [0, 1, 2, 3] * 3
    assert table["stage"].tolist() == ["L1"] * 4 + ["L2"] * 4 + ["G"] * 4
    assert table["n_train"].tolist() == [5, 6, 7, 8] * 3 and table["n_held"].tolist() == [4, 3, 0, 1] * 3
    assert table["local"] == pytest.approx([3 / 4, 2 / 3, np.nan, 0] * 2 + [3 / 4, 0, np.nan, 0], nan_ok=True)
    assert table["global"] == pytest.approx([3 / 8, 3 / 8, 2 / 8, 3 / 8] * 2 + [3 / 8] * 4)


def test_the_table_says_who_seldom_comes() -> None:
    """Four clients, two of them stragglers: probabilities 10/22 and 1/22. Of clients all alike it says nothing."""
    late = StragglerParticipation(share=0.5)
    one, same_one, other = (run_with(late, seed) for seed in (0, 0, 3))
    assert sum(one["straggler"][:4]) == 2 and one["straggler"][:4] * 3 == one["straggler"]
    assert one["probability"] == pytest.approx([1 / 22 if s else 10 / 22 for s in one["straggler"]])
    assert one["straggler"] == same_one["straggler"] != other["straggler"]
    dirichlet, uniform = (run_with(kind(share=0.5), 0) for kind in (DirichletParticipation, UniformParticipation))
    assert set(one) - set(dirichlet) == {"straggler"} and set(dirichlet) - set(uniform) == {"probability"}
    assert sum(dirichlet["probability"][:4]) == pytest.approx(1)


def run_with(participation: Any, seed: int) -> dict[str, list[Any]]:
    """The table of clients, as lists."""
    sim = Simulation(
        network(), Puppet(), clients(), Training(rounds=1), participation, Evaluation(), seed=seed, execution=LOOP
    )
    list(sim.run())
    return {name: values.tolist() for name, values in sim.client_table.items()}


def test_models_afterwards() -> None:
    sim, _ = played(FLIU(), rounds=2)
    named = sim.global_model()
    assert named is not None and {k: tuple(v.shape) for k, v in named.items()} == {
        "head.weight": (3, 2),
        "head.bias": (3,),
    }
    assert torch.equal(torch.cat([named["head.weight"].reshape(-1), named["head.bias"]]), sim.state["central"])
    held = sim.personal_models(torch.tensor([2, 0]))
    assert held is not None and held.clients is not None and held.clients.tolist() == [0, 2]
    assert torch.equal(held.params, sim.state["theta"][torch.tensor([0, 2])])


def test_costs() -> None:
    """float64 models of 9 numbers, two clients: 144 bytes each way. 21 of 26 samples in an epoch of everybody."""
    _, records = played(FedAvg(), rounds=2, share=0.5, training={"lr_decay": 0.5})
    first, second = records[1].metrics, records[2].metrics
    assert first["cost/up_bytes"] == first["cost/down_bytes"] == 2 * 9 * 8 and first["cost/clients"] == 2
    assert (first["train/lr"], second["train/lr"]) == (0.2, 0.1)
    assert first["cost/samples_per_second"] * first["cost/train_seconds"] == pytest.approx(
        round(first["cost/samples_per_second"] * first["cost/train_seconds"])
    )
    assert first["cost/eval_seconds"] > 0 and first["cost/peak_mib"] > 50 and first["train/loss"] > 0
    _, records = played(Local(), rounds=1)
    assert records[1].metrics["cost/up_bytes"] == 0


# -- where and how -----------------------------------------------------------------------------------------------------


def test_loop_and_stacked_give_the_same_scores() -> None:
    loop = played(FLIU(), rounds=3, share=0.5)[0]
    for chunk in (1, 3):
        execution = Execution(device="cpu", way="vmap", chunk=chunk, threads=1)
        stacked = played(FLIU(), rounds=3, share=0.5, execution=execution)[0]
        assert stacked.resolved.way == "vmap"
        for one, other in zip(loop.records, stacked.records, strict=True):
            assert timeless(one.metrics) == pytest.approx(timeless(other.metrics), abs=1e-12)
        assert timeless(loop.final) == pytest.approx(timeless(stacked.final))


def hidden() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh())


@pytest.mark.parametrize("stack", [None, 3])
@pytest.mark.parametrize(("precision", "kind"), [("float64", torch.float64), ("bfloat16", torch.float32)])
def test_precisions(precision: str, kind: torch.dtype, stack: int | None) -> None:
    """bfloat16 computes in bfloat16 and keeps float32; it is another result, and not a far one."""
    how = LOOP if stack is None else Execution(device="cpu", way="vmap", chunk=stack, threads=1)
    sims = [
        played(FLIU(), rounds=2, net=network(hidden, 8), training={"precision": p}, execution=how)[0]
        for p in (precision, "float32")
    ]
    one, plain = (sim.state["central"] for sim in sims)
    assert one.dtype == kind and one.isfinite().all()
    assert not torch.equal(one.double(), plain.double())
    torch.testing.assert_close(one.double(), plain.double(), rtol=0, atol=5e-2 if precision == "bfloat16" else 1e-5)
    assert sims[0].resolved.precision == precision


def test_tf32_needs_a_gpu() -> None:
    with pytest.raises(PflOpsError, match="'tf32' needs a CUDA device") as caught:
        simulation(FedAvg(), training={"precision": "tf32"})
    assert "\n" not in str(caught.value)


# -- networks that draw ------------------------------------------------------------------------------------------------


def dropout() -> nn.Module:
    return network(lambda: nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.5)), 16)


class Recurrent(nn.Module):
    """Two features as a sequence of two numbers, and the last state of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(1, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x[..., None])[0][:, -1]


def test_dropout_is_drawn_from_the_runs_seed() -> None:
    """Earlier draws of the process make no difference, nor does the run to later ones."""
    found = []
    for other in (1, 2):
        torch.manual_seed(other)
        before = torch.random.get_rng_state()
        sim, _ = played(FLIU(), net=dropout(), rounds=2, share=0.5, stackable=False)
        assert torch.equal(torch.random.get_rng_state(), before)
        found.append(traces(sim))
    same(*found)
    third = traces(played(FLIU(), net=dropout(), rounds=2, share=0.5, stackable=False, seed=1)[0])
    assert not torch.equal(third["state/central"], found[0]["state/central"])


def test_dropout_draws_anew_for_each_client_round_stream_and_call() -> None:
    """A walk whose learning rate is nearly nothing shows the masks: no two gradients may be alike."""
    data = clients(train=[[0, 1, 2]] * 4)
    for k in range(4):  # all clients hold the same samples
        data.train.x[data.train.index[k]] = torch.tensor([[1.0, 2.0], [0.5, -1.0], [2.0, 1.0]])
        data.train.y[data.train.index[k]] = torch.tensor([0, 1, 2])
    sim = simulation(FedAvg(), net=dropout(), data=data, stackable=False, training={"batch_size": None})
    first = sim.round_at(0, torch.arange(4))
    grads = [
        first.grad(sim.task.initial),
        first.grad(sim.task.initial),
        sim.round_at(1, torch.arange(4)).grad(sim.task.initial),
    ]
    rows = torch.cat(grads)
    assert torch.unique(rows, dim=0).shape[0] == len(rows) == 12
    again = sim.round_at(0, torch.tensor([2]))
    torch.testing.assert_close(again.grad(sim.task.initial)[0], grads[0][2], rtol=0, atol=0)


def test_dropout_is_off_where_models_are_judged() -> None:
    sim = simulation(FedAvg(), net=dropout(), stackable=False)
    models = Models(sim.task.initial)
    one, other = (sim.scorer.score([models], pooled=True, full=True) for _ in range(2))
    np.testing.assert_array_equal(one.local, other.local)
    r = sim.round_at(0, torch.arange(4))
    assert torch.equal(r.losses(sim.task.initial), r.losses(sim.task.initial))
    kept = {n: p for n, p in sim.task.net.network.named_parameters()}
    plain = nn.Sequential(nn.Linear(2, 16), nn.ReLU())
    plain.load_state_dict({k.removeprefix("body."): v for k, v in kept.items() if k.startswith("body.")})
    judged = simulation(FedAvg(), net=network(lambda: plain, 16))
    expected = judged.round_at(0, torch.arange(4)).losses(judged.task.layout.flatten(kept))
    torch.testing.assert_close(r.losses(sim.task.initial), expected)
    assert sim.task.net.network.training


def test_a_recurrent_network_learns_in_the_loop_way() -> None:
    labels = [[0] * 12 + [2] * 12] * 3
    sim, records = played(
        FedAvg(), net=network(Recurrent, 4), data=clients(labels, labels), rounds=6, stackable=False,
        training={"local_epochs": 5, "lr": 0.5},
    )  # fmt: skip
    losses = [r.metrics["train/loss"] for r in records[1:]]
    assert losses[-1] < 0.7 * losses[0]
    assert sim.resolved.way == "loop"


def test_what_can_not_be_stacked_is_not() -> None:
    assert (
        simulation(FedAvg(), net=dropout(), stackable=False, execution=Execution(device="cpu")).resolved.way == "loop"
    )
    with pytest.raises(PflOpsError, match=r"can't be stacked .* use --way loop"):
        simulation(FedAvg(), net=dropout(), stackable=False, execution=Execution(device="cpu", way="vmap"))


# -- state -------------------------------------------------------------------------------------------------------------


def test_commit_takes_only_what_init_made() -> None:
    state = {"central": torch.zeros(3), "rows": ClientRows(torch.zeros(2), 4)}
    commit(state, {"central": torch.ones(3), "rows": Rows(torch.tensor([1, 3]), torch.ones(2, 2))})
    assert state["central"].tolist() == [1, 1, 1]
    assert state["rows"][torch.arange(4)].tolist() == [[0, 0], [1, 1], [0, 0], [1, 1]]
    wrong = {
        "init.. did not make|expected": [{"late": torch.zeros(1)}, {"rows": torch.zeros(4, 2)},
                                   {"central": Rows(torch.tensor([0]), torch.zeros(1, 3))}],
        "expected .*, as in init": [{"central": torch.zeros(4)}, {"central": torch.zeros(3).double()},
                {"rows": Rows(torch.tensor([0]), torch.zeros(1, 3))},
                {"rows": Rows(torch.tensor([0]), torch.zeros(1, 2).double())}],
    }  # fmt: skip
    for message, updates in wrong.items():
        for update in updates:
            with pytest.raises(PflOpsError, match=message):
                commit(state, update)


def test_extra_blocks_are_part_of_the_models() -> None:
    class Extra(Puppet):
        def extra(self, task: Any) -> dict[str, tuple[int, ...]]:
            return {"exit": (3, 2)}

        def init(self, task: Any) -> Any:
            assert task.layout.size == task.initial.numel() == 9 + 6
            return {"w": task.initial}

        def round(self, s: Any, r: Any) -> Any:
            return {"w": s["w"] + 1}, {"G": Models(s["w"])}

        def personal(self, s: Any, r: Any) -> Models:
            return Models(s["w"])

    sim, _ = played(Extra(), rounds=1)
    named = sim.global_model()
    assert named is not None and named["exit"].shape == (3, 2)


def test_clients_of_one_class_and_one_sample() -> None:
    data: Clients = clients([[0], [1]], train=[[0], [1]])
    sim, _ = played(FLIU(), data=data, rounds=2)
    assert sim.final["final/test/L1/local/clients"] == 2


def test_each_round_has_the_threads_of_its_own_run() -> None:
    """Two simulations in one process in turns: PyTorch has one number of threads, and the last one built had set it."""
    e = Experiment.of("fedavg", dataset="digits", model="linear", clients=4, rounds=2, **{"data.train_size": 50})
    runs = [e.build(execution=Execution(device="cpu", way="loop", threads=n, workers=1)) for n in (1, 2)]
    turns = [sim.run() for sim in runs]
    seen = []
    for _ in range(3):  # the start, and two rounds
        for records in turns:
            next(records)
            seen.append(torch.get_num_threads())
    assert seen[2:] == [1, 2, 1, 2] and [sim.resolved.threads for sim in runs] == [1, 2]
