"""The choice of a packing among measured ones; and the layouts to measure, given the memory."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Execution
from pfl_ops.probe import ProbeOutOfMemory, Speed
from pfl_ops.tuning.resources import packing
from pfl_ops.tuning.resources.packing import (
    Packing,
    PackingLayout,
    PackingRate,
    best,
    cpu_layouts,
    gpu_layouts,
    hopeless,
)

GIB = 1 << 30


@pytest.mark.parametrize(
    ("cores", "most", "expected"),
    [
        (1, 12, [(1, 1)]),
        (2, 12, [(1, 2), (2, 1)]),
        (6, 12, [(1, 6), (3, 2), (6, 1)]),
        (16, 12, [(1, 16), (2, 8), (4, 4), (8, 2), (12, 1)]),
        (16, 1, [(1, 16)]),
        (4, 3, [(1, 4), (2, 2), (3, 1)]),
    ],
)
def test_cores_are_shared_out_whole(cores, most, expected):
    layouts = cpu_layouts(cores, most)
    assert [(lay.trials, lay.threads) for lay in layouts] == expected
    assert all(lay.trials * lay.cpus <= cores and lay.gpus == 0 for lay in layouts)


def test_a_gpu_is_shared_among_one_two_four_eight():
    assert [lay.gpus for lay in gpu_layouts(16, 12)] == [1, 0.5, 0.25, 0.125]
    assert [lay.trials for lay in gpu_layouts(16, 3)] == [1, 2]
    assert [lay.cpus for lay in gpu_layouts(2, 12)] == [2, 1, 0.5, 0.25]  # trials on a GPU may take turns on the CPU
    assert [lay.threads for lay in gpu_layouts(2, 12)] == [2, 1, 1, 1]
    assert [lay.cpus for lay in gpu_layouts(15, 12)] == [15, 7, 3, 1]  # they share its machine's cores
    assert [(lay.trials, lay.cpus) for lay in gpu_layouts(8, 12, cpus=2)] == [(1, 2), (2, 2), (4, 2)]
    assert [(lay.trials, lay.cpus) for lay in gpu_layouts(2, 12, cpus=4)] == [(1, 4)]


def tried(*rates, peak=GIB):
    """One, two, four, ... trials and what they reached together."""
    return [PackingRate(PackingLayout(2**i, 1, 0.5**i), rate, peak, Execution()) for i, rate in enumerate(rates)]


@pytest.mark.parametrize(
    ("rates", "room", "trials"),
    [
        ((100,), 8, 1),
        ((100, 180, 300), 8, 4),
        ((100, 180, 170), 8, 2),
        ((100, 104), 8, 1),  # as good: fewer at once
        ((100, 190, 198, 199), 8, 2),
        ((100, 150, 0), 8, 2),  # four ran out of memory
        ((100, 150, 300), 3.9, 2),  # four ran, but only just: a whole study would not
        ((100,), 0.5, 1),  # it ran: it fits
        ((0, 0), 8, None),
        ((), 8, None),
    ],
)
def test_the_most_that_fits_wins(rates, room, trials):
    chosen = best(tried(*rates), int(room * GIB))
    assert (chosen and chosen.layout.trials) == trials


@pytest.mark.parametrize(
    ("rates", "over"),
    [((), False), ((100,), False), ((100, 80), False), ((100, 80, 70), True), ((100, 95, 92), False),
     ((100, 80, 120), False), ((100, 0), True), ((100, 80, 120, 100, 90), True)],
)  # fmt: skip
def test_trying_ends_where_memory_or_speed_does(rates, over):
    assert hopeless(tried(*rates)) is over


# -- measuring, with a table instead of processes -------------------------------------------------------------------


class FakeProbe:
    """Rates and peaks by count; a count without an entry does not fit."""

    table: ClassVar[dict[int, tuple[float, int]]] = {}
    room: ClassVar[int | None] = None
    made: ClassVar[list["FakeProbe"]] = []

    def __init__(self, experiment, processes, *, data_dir, stages):
        self.processes, self.orders, self.closed = processes, [], False
        self.made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True

    def resolve(self, execution, gpus):
        self.orders.append(("resolve", execution.threads, gpus))
        return execution.model_copy(update={"way": "vmap", "chunk": 10, "workers": 1})

    def speed(self, count, execution, gpus):
        assert (execution.way, execution.chunk) == ("vmap", 10)
        self.orders.append(("speed", count, gpus))
        if count not in self.table:
            raise ProbeOutOfMemory("CUDA out of memory. Tried to allocate 2.00 GiB")
        return Speed(*self.table[count], self.room)


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(packing, "Probe", FakeProbe)
    monkeypatch.setattr(packing, "machine", lambda kind: f"a test's {kind}")
    monkeypatch.setattr(packing.memory, "available", lambda: 16 * GIB)
    monkeypatch.setattr(FakeProbe, "made", [])
    monkeypatch.setattr(FakeProbe, "room", None)

    def go(table, layouts, **settings):
        monkeypatch.setattr(FakeProbe, "table", table)
        found = packing.measure(Experiment.of("fedavg"), Execution(**settings), layouts)
        return found, FakeProbe.made[-1]

    return go


def test_cores_are_measured_and_the_best_packing_is_said_in_a_line(fake):
    found, probe = fake({1: (15_000, GIB), 2: (28_000, GIB), 4: (41_000, GIB)}, cpu_layouts(4, 12))
    assert (found.kind, found.layout) == ("cpu", PackingLayout(4, 1))
    assert str(found) == "4 trials at once, 1 thread each: 41,000 samples/s together (1: 15,000, 2: 28,000)"
    assert [order for order in probe.orders if order[0] == "resolve"] == [("resolve", t, 0) for t in (4, 2, 1)]
    assert probe.closed and probe.processes == 4
    assert found.execution(Execution()) == Execution(way="vmap", chunk=10, workers=1, threads=1)
    assert found.execution(Execution(way="loop")) == Execution(way="loop", threads=1)  # what the user says stays


def test_a_gpu_is_measured_up_to_where_its_memory_ends(fake, monkeypatch):
    monkeypatch.setattr(FakeProbe, "room", 16 * GIB)
    found, probe = fake({1: (15_000, 9 * GIB), 2: (28_000, 3 * GIB), 4: (41_000, 3 * GIB)}, gpu_layouts(8, 12))
    assert (found.kind, found.layout, found.threads) == ("gpu", PackingLayout(4, 2, 0.25), 2)
    # that one alone took more memory says nothing of four
    rates = "(1: 15,000, 2: 28,000, 8: out of memory)"
    assert str(found) == f"4 trials at once on a GPU, 0.25 each: 41,000 samples/s together {rates}"
    assert probe.orders[-1] == ("speed", 8, 0.125)
    assert [order for order in probe.orders if order[0] == "resolve"] == [("resolve", 8, 1)]  # the same for all


def test_what_would_not_fit_on_the_cpu_is_not_tried(fake):
    found, probe = fake({1: (10, 6 * GIB), 2: (20, 6 * GIB), 4: (40, 6 * GIB)}, cpu_layouts(4, 12))
    assert found.layout == PackingLayout(2, 2) and found.rates == {1: 10, 2: 20, 4: 0}
    assert ("speed", 4, 0) not in probe.orders


def test_threads_that_the_user_wants_are_those_that_are_measured(fake):
    found, probe = fake({1: (10, GIB), 2: (20, GIB)}, cpu_layouts(2, 12), threads=2)
    assert probe.orders[0] == ("resolve", 2, 0) and (found.layout, found.threads) == (PackingLayout(2, 1), 2)


def test_processes_that_alone_would_fill_the_memory_are_not_started(fake, monkeypatch):
    monkeypatch.setattr(packing.memory, "available", lambda: 2 * packing.A_PROCESS)
    _, probe = fake({1: (10, 1), 2: (20, 1)}, cpu_layouts(4, 12))
    assert probe.processes == 2


def test_one_trial_that_does_not_fit_is_one_clear_line(fake):
    with pytest.raises(
        ProbeOutOfMemory, match=r"not even one trial fits into the GPU \(CUDA out of .*smaller --batch-size"
    ):
        fake({}, gpu_layouts(8, 12))
    assert FakeProbe.made[-1].closed


# -- kept -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def some():
    return Packing("cpu", "2 cores", PackingLayout(2, 1), "loop", None, 1, 1, {1: 10.0, 2: 20.0}, GIB)


def test_a_packing_survives_json(some):
    assert Packing.recorded(json.loads(json.dumps(some.as_dict()))) == some
    assert Packing.recorded(None) is None and Packing.recorded({"kind": "cpu"}) is None


def test_the_second_study_starts_at_once(some, tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path))
    monkeypatch.setattr(packing.cores, "busy", lambda: False)
    monkeypatch.setattr(packing.memory, "available", lambda: 4 * GIB)

    def never():
        raise AssertionError("measured again")

    assert packing.cached({"model": "cnn"}, lambda: some) == some
    assert packing.cached({"model": "cnn"}, never) == some
    with pytest.raises(AssertionError):
        packing.cached({"model": "mlp"}, never)
    monkeypatch.setattr(packing.memory, "available", lambda: GIB)  # it would not fit any more
    with pytest.raises(AssertionError):
        packing.cached({"model": "cnn"}, never)


@pytest.mark.parametrize(
    ("used", "trials", "again"),
    [(4 * GIB, 8, False), (9 * GIB, 8, True), (15 * GIB, 1, False), (None, 8, False)],
    ids=["free", "taken", "one trial", "driver does not tell"],
)
def test_a_packing_of_a_gpu_is_measured_anew_where_others_hold_its_memory(
    used, trials, again, some, tmp_path, monkeypatch
):
    """Eight trials took 1 GiB each of a GPU of 16 GiB; each would end with CUDA out of memory."""
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path))
    monkeypatch.setattr(packing.cores, "busy", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=16 * GIB))

    def used_now(_):
        if used is None:
            raise RuntimeError("no NVML")
        return used

    monkeypatch.setattr(torch.cuda, "device_memory_used", used_now)
    on_gpu = replace(some, kind="gpu", layout=PackingLayout(trials, 1, 1 / trials), rates={trials: 20.0})
    measured = []

    def measure():
        measured.append(True)
        return on_gpu

    for _ in range(2):
        assert packing.cached({"model": "cnn"}, measure) == on_gpu
    assert len(measured) == 1 + again


def test_what_was_measured_on_a_busy_machine_is_not_kept(some, tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path))
    monkeypatch.setattr(packing.cores, "busy", lambda: True)
    packing.cached({"model": "cnn"}, lambda: some)
    assert not list(tmp_path.rglob("*.json"))


def test_only_what_decides_the_speed_asks_for_another_measurement():
    def key(layouts=None, **settings):
        return packing.key(Experiment.of("fedavg", **settings), Execution(), layouts or cpu_layouts(2, 12))

    assert key() == key(lr=0.3, seed=5, rounds=99)
    others = [key(model="mlp"), key(batch_size=10), key(precision="float64"), key(clients=7), key(cpu_layouts(2, 1))]
    assert all(other != key() for other in others)


def test_test_data_stay_closed():
    with pytest.raises(PflOpsError, match="test data stay closed"):
        packing.measure(Experiment.of("fedavg"), Execution(), cpu_layouts(1, 1))
