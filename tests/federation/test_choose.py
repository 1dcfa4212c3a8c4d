"""Which way is taken: by asking, by a fake stopwatch whose readings are known, by the cache; and precision switches."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from little import network, simulation

from pfl_ops.algorithms.fedavg import FedAvg
from pfl_ops.errors import PflOpsError
from pfl_ops.federation import choose
from pfl_ops.federation.choose import Resolved
from pfl_ops.federation.settings import Execution

CPU = torch.device("cpu")


class Rates:
    """A stopwatch with known readings, that notes what it was asked for."""

    def __init__(self, loop: float, stacks: dict[int, float]) -> None:
        self.loop, self.stacks = loop, stacks
        self.asked: list[int | None] = []

    def __call__(self, stack: int | None, enough: float) -> float:
        self.asked.append(stack)
        return self.loop if stack is None else self.stacks[stack]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(choose, "busy", lambda: False)
    return tmp_path / "cache" / "execution"


# -- the fastest -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loop", "stacks", "cohort", "expected", "asked"),
    [
        (
            62,
            {2: 80, 5: 150, 10: 173, 20: 170},
            20,
            ("vmap", 10),
            [None, 2, 5, 10, 20],
        ),  # growth ends: the best of them
        (
            62,
            {2: 80, 5: 150, 10: 170, 20: 173, 50: 80},
            100,
            ("vmap", 20),
            [None, 2, 5, 10, 20, 50],
        ),  # far behind: stop
        (62, {2: 150, 5: 120, 10: 170, 20: 140}, 100, ("vmap", 10), [None, 2, 5, 10, 20]),  # one loss may be noise
        (100, {2: 20}, 50, ("loop", 1), [None, 2]),  # hopeless: given up at once
        (100, {2: 60, 5: 90, 10: 99, 20: 98}, 20, ("loop", 1), [None, 2, 5, 10, 20]),  # near, and never faster
        (100, {2: 60, 3: 101}, 3, ("vmap", 3), [None, 2, 3]),  # never more than the cohort
        (100, {2: 101}, 2, ("vmap", 2), [None, 2]),
        (100, {2: 110, 5: 120, 10: 130, 20: 140, 50: 150, 100: 160}, 500, ("vmap", 100), [None, 2, 5, 10, 20, 50, 100]),
        (100, {}, 1, ("loop", 1), [None]),
    ],
)
def test_the_fastest(
    loop: float, stacks: dict[int, float], cohort: int, expected: Any, asked: list[int | None]
) -> None:
    rates = Rates(loop, stacks)
    assert choose.fastest(rates, cohort) == expected
    assert rates.asked == asked


def test_the_best_stack_where_the_loop_is_no_candidate() -> None:
    rates = Rates(1000, {2: 3, 5: 4, 10: 2})
    assert choose.fastest(rates, 10, loop=False) == ("vmap", 5)
    assert rates.asked == [2, 5, 10]
    assert choose.fastest(Rates(1000, {2: 0, 5: 0}), 5, loop=False) == ("vmap", 1)  # none fits into memory


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds a reading: after the first stack no other is tried."""
    clock, rates = Clock(monkeypatch), Rates(100, {2: 150, 5: 500})

    def slow(stack: int | None, enough: float) -> float:
        clock.now += 2
        return rates(stack, enough)

    assert choose.fastest(slow, 20) == ("vmap", 2)
    assert rates.asked == [None, 2]


class Clock:
    """Time that passes only where it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("pfl_ops.federation.choose.time.perf_counter", lambda: self.now)


@pytest.mark.parametrize(
    ("a_step", "enough", "calls", "rate"),
    [
        (0.01, 0.0, [1, 3, 3, 3], 1000),  # 0.03 s a go, until 0.08 s are over
        (0.5, 0.0, [1, 1], 20),  # slow: one step more
        (0.5, 200.0, [1, 1], 20),  # hopeless: two steps and no more
        (0.01, 900.0, [1, 3, 3, 3], 1000),
    ],
)
def test_the_stopwatch(
    a_step: float, enough: float, calls: list[int], rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seen = Clock(monkeypatch), []

    def run(steps: int) -> int:
        seen.append(steps)
        clock.now += steps * a_step
        return 10 * steps

    assert choose.stopwatch(run, CPU, enough) == pytest.approx(rate)
    assert seen == calls


def test_a_slow_first_step_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, steps_taken = Clock(monkeypatch), []

    def run(steps: int) -> int:
        clock.now += 5.0 if not steps_taken else 0.01 * steps
        steps_taken.append(steps)
        return 10 * steps

    assert choose.stopwatch(run, CPU, enough=900) == pytest.approx(1000)


def test_not_enough_memory_is_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(steps: int) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert choose.stopwatch(run, CPU) == 0.0


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_measured_once_for_the_same_key(cache: Path) -> None:
    calls = []

    def measure() -> choose.Choice:
        calls.append(1)
        return "vmap", 20

    assert choose.cached({"batch": 50}, measure) == ("vmap", 20) == choose.cached({"batch": 50}, measure)
    assert len(calls) == 1 and len(list(cache.iterdir())) == 1
    assert json.loads(next(cache.iterdir()).read_text())["key"] == {"batch": 50}
    choose.cached({"batch": 10}, measure)
    assert len(calls) == 2


def test_nothing_is_kept_that_a_busy_machine_said(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "busy", lambda: True)
    assert choose.cached({"a": 1}, lambda: ("vmap", 5)) == ("vmap", 5)
    assert not cache.exists()
    monkeypatch.setattr(choose, "busy", lambda: False)
    assert choose.cached({"a": 1}, lambda: ("loop", 1)) == ("loop", 1)
    monkeypatch.setattr(choose, "busy", lambda: True)
    assert choose.cached({"a": 1}, lambda: ("vmap", 5)) == ("loop", 1), "what was kept before counts"


@pytest.mark.parametrize(("load", "cores", "expected"), [(2.9, 2, False), (3.1, 2, True), (9.0, 16, False)])
def test_busy(load: float, cores: int, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert choose.busy() == expected


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"way": "loop"}', b'{"way": "both", "chunk": 1}',
                b'{"way": "vmap", "chunk": 0}', b'{"way": "vmap", "chunk": null}',
                b'{"way": "vmap", "chunk": "many"}', b"\xff\xfe"]
)  # fmt: skip
def test_a_damaged_entry_is_measured_again_and_mended(content: bytes, cache: Path) -> None:
    choose.cached({"a": 1}, lambda: ("loop", 1))
    file = next(cache.iterdir())
    file.write_bytes(content)
    assert choose.cached({"a": 1}, lambda: ("vmap", 5)) == ("vmap", 5)
    assert choose.cached({"a": 1}, lambda: pytest.fail("measured again")) == ("vmap", 5)  # type: ignore[arg-type,return-value]


def test_a_cache_that_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path / "file"))
    assert choose.cached({"a": 1}, lambda: ("vmap", 5)) == ("vmap", 5)


# -- resolving ---------------------------------------------------------------------------------------------------------


def resolved(rates: Rates, *, stackable: bool = True, cohort: int = 10, **asked: Any) -> Resolved:
    return choose.resolve(
        Execution(device="cpu", threads=1, **asked), CPU, "float32", stackable=stackable, cohort=cohort, shapes={},
        rate=rates,
    )  # fmt: skip


FAST = {2: 200.0, 5: 500.0, 10: 900.0}


@pytest.mark.parametrize(
    ("asked", "rest", "way", "chunk", "timed"),
    [
        ({}, {}, "vmap", 10, True),
        ({"way": "loop"}, {}, "loop", 1, False),
        ({"way": "vmap"}, {}, "vmap", 10, True),
        ({"way": "vmap", "chunk": 3}, {}, "vmap", 3, False),
        ({"way": "vmap", "chunk": 30}, {}, "vmap", 10, False),  # no more than the cohort
        ({"chunk": 3}, {}, "vmap", 3, False),  # a chunk means stacking
        ({}, {"stackable": False}, "loop", 1, False),
        ({"chunk": 3}, {"stackable": False}, "loop", 1, False),
        ({}, {"cohort": 1}, "loop", 1, False),
        ({"way": "vmap"}, {"cohort": 1}, "vmap", 1, False),
    ],
)
def test_as_asked_or_as_timed(asked: Any, rest: Any, way: str, chunk: int, timed: bool) -> None:
    rates = Rates(100, FAST)
    found = resolved(rates, **asked, **rest)
    assert (found.way, found.chunk, found.device, found.threads) == (way, chunk, "cpu", 1)
    assert bool(rates.asked) == timed
    assert found.stack == (None if way == "loop" else chunk)
    assert found.torch == torch.__version__ and found.precision == "float32"


def test_asking_for_vmap_alone_does_not_time_the_loop_nor_share_its_entry() -> None:
    rates = Rates(5000, FAST)
    assert resolved(rates, way="vmap").way == "vmap"
    assert None not in rates.asked
    assert resolved(rates).way == "loop"


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose.threads(Execution(threads=3)) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert choose.threads(Execution()) == 5
    for other in ("", "0", "many", "-1"):
        monkeypatch.setenv("OMP_NUM_THREADS", other)
        assert choose.threads(Execution()) == len(os.sched_getaffinity(0))


def test_a_simulation_chooses_by_real_steps_and_keeps_to_it(cache: Path) -> None:
    """It leaves its mark in the cache, and a second one reads it."""
    auto = Execution(device="cpu", threads=1)
    first = simulation(FedAvg(), execution=auto)
    assert first.resolved.way in ("loop", "vmap") and len(list(cache.iterdir())) == 1
    file = next(cache.iterdir())
    file.write_text(json.dumps({"way": "vmap", "chunk": 2}))
    second = simulation(FedAvg(), execution=auto)
    assert (second.resolved.way, second.resolved.chunk) == ("vmap", 2)
    other = simulation(FedAvg(), execution=auto, net=network(), training={"batch_size": 2})
    assert len(list(cache.iterdir())) == 2, f"another batch size is another key ({other.resolved})"


def test_timing_leaves_no_trace(cache: Path) -> None:
    """The state, the meter and the draws of a run that had to choose are those of one that had not."""
    auto = simulation(FedAvg(), rounds=1, execution=Execution(device="cpu", threads=1))
    told = simulation(FedAvg(), rounds=1, execution=Execution(
        device="cpu", threads=1, way=auto.resolved.way, chunk=auto.resolved.chunk))  # fmt: skip
    losses = [list(sim.run())[1].metrics["train/loss"] for sim in (auto, told)]
    assert losses[0] == losses[1]
    assert torch.equal(auto.state["central"], told.state["central"])


# -- devices and precision ---------------------------------------------------------------------------------------------


def test_no_gpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose.device(Execution(), "float32") == CPU
    with pytest.raises(PflOpsError, match="'cuda' is not available on this machine; use --device cpu"):
        choose.device(Execution(device="cuda"), "float32")
    with pytest.raises(PflOpsError, match="'tf32' needs a CUDA device; on a CPU use float32 or bfloat16"):
        choose.device(Execution(), "tf32")


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16", "float64"])
def test_float32_means_float32_on_a_gpu(precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN uses TF32 unless told otherwise; only `tf32` asks for it. A GPU that is only said to be there will do."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    switches = [torch.backends.cuda.matmul, torch.backends.cudnn]
    before = [s.allow_tf32 for s in switches]
    try:
        for s in switches:
            s.allow_tf32 = precision != "tf32"
        assert choose.device(Execution(), precision).type == "cuda"
        assert [s.allow_tf32 for s in switches] == [precision == "tf32"] * 2
        for s in switches:
            s.allow_tf32 = True
        assert choose.device(Execution(device="cpu"), "float32") == CPU
    finally:
        for s, value in zip(switches, before, strict=True):
            s.allow_tf32 = value
