"""The chosen execution: as asked for, or as timed on a machine whose rates are known; and precision switches."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_machine import Machine
from little import network, simulation

from pfl_ops.algorithms.fedavg import FedAvg
from pfl_ops.data.store import remember
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.execution import choose, timing
from pfl_ops.federation.execution.choose import Resolved
from pfl_ops.federation.execution.decide import TrainingWork
from pfl_ops.federation.execution.review import PROCESSOR, Executions, kept
from pfl_ops.federation.settings import Execution, Precision

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(timing, "_here", {})
    monkeypatch.setattr(timing, "WAITED", float("inf"))
    return tmp_path / "cache" / "execution"


# -- resolving ---------------------------------------------------------------------------------------------------------

FAST = {None: 1e4, 2: 2e4, 5: 5e4, 10: 6e4}
TWO = {(size, threads): rate * (1 + 0.2 * (threads - 1)) for size, rate in FAST.items() for threads in (1, 2)}


def resolved(
    machine: Machine, *, stackable: bool = True, cohort: int = 10, rounds: int = 100, precision: Precision = "float32",
    **asked: Any,
) -> tuple[Resolved, list[str]]:  # fmt: skip
    found = choose.resolve(
        Execution(device="cpu", **{"threads": 1, **asked}), CPU, precision, stackable=stackable,
        work=TrainingWork(cohort, rounds, samples=600.0 * cohort, batch=50, walk=12), shapes={},
        prepare=machine.prepare,
    )  # fmt: skip
    return found.resolved, found.hints


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
def test_as_asked_or_as_timed(
    asked: Any, rest: Any, way: str, chunk: int, timed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(FAST).use(monkeypatch)
    found, hints = resolved(machine, **asked, **rest)
    assert (found.way, found.chunk, found.device, found.threads, found.workers) == (way, chunk, "cpu", 1, 1)
    assert bool(machine.asked) == timed and len(hints) == ("chunk" in asked and "stackable" in rest)
    assert found.stack == (None if way == "loop" else chunk)
    assert found.torch == torch.__version__ and found.precision == "float32"


@pytest.mark.parametrize(
    ("asked", "rounds", "expected", "timed"),
    [
        ({}, 100, ("vmap", 10, 1), True),  # eight seconds of training
        ({}, 100_000, ("vmap", 5, 2), True),
        ({"way": "loop"}, 100_000, ("loop", 1, 2), True),
        ({"way": "loop"}, 25, ("loop", 1, 1), True),
        ({"workers": 1}, 100_000, ("vmap", 10, 1), True),
        ({"workers": 2}, 100, ("vmap", 5, 2), True),
        ({"workers": 2, "way": "loop"}, 1, ("loop", 1, 2), False),
        ({"workers": 4, "chunk": 4}, 1, ("vmap", 4, 3), False),  # there are three chunks
        ({"workers": 40, "way": "loop"}, 1, ("loop", 1, 10), False),
        ({"workers": 1, "way": "loop"}, 1, ("loop", 1, 1), False),
        ({"threads": 1, "workers": 2, "way": "loop"}, 1, ("loop", 1, 2), False),
    ],
)
def test_workers_as_asked_or_as_timed(
    asked: dict[str, Any], rounds: int, expected: Any, timed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads: 1.2 times one. Two processes: twice, where the run is long enough for them."""
    machine = Machine(TWO).use(monkeypatch)
    found, _ = resolved(machine, rounds=rounds, **{"threads": 2, **asked})
    assert (found.way, found.chunk, found.workers) == expected
    assert found.threads == asked.get("threads", 2), "of this process, workers or not"
    assert bool(machine.asked) == timed


@pytest.mark.parametrize(("available", "workers"), [(10 << 30, 2), (1 << 30, 1)])
def test_workers_need_memory(available: int, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(TWO).use(monkeypatch)
    monkeypatch.setattr(choose.memory, "available", lambda: available)
    assert resolved(machine, rounds=100_000, threads=2)[0].workers == workers


def test_a_timing_serves_runs_of_other_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for one that is so long that it is worth more timing, what is kept is of the speed alone."""
    machine = Machine(TWO).use(monkeypatch)
    assert resolved(machine, rounds=100_000, threads=2)[0].workers == 2
    machine.asked.clear()
    assert resolved(machine, rounds=1, threads=2)[0].workers == 1
    assert resolved(machine, rounds=200_000, threads=2)[0].workers == 2
    assert not machine.asked


@pytest.mark.parametrize("changed", ["version", "nothing"])
def test_another_version_of_pytorch_is_timed_anew(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(FAST).use(monkeypatch)
    resolved(machine)
    monkeypatch.setattr(timing, "_here", {})
    machine.asked.clear()
    if changed == "version":
        monkeypatch.setattr(choose.torch, "__version__", "99.0")
    resolved(machine)
    assert bool(machine.asked) == (changed == "version")


def test_where_threads_are_open_one_may_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes keep the cores busy: a step of two threads waits for the slower one."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    crowded = {key: rate / (50 if key[1] == 2 else 1) for key, rate in TWO.items()}
    machine = Machine(crowded).use(monkeypatch)
    assert resolved(machine, threads=None)[0].threads == 1
    assert resolved(machine, threads=2)[0].threads == 2
    for threads, expected in ((None, 1), (2, 2)):
        assert resolved(machine, threads=threads, workers=2, way="loop")[0].threads == expected, "workers need cores"


def test_asking_for_vmap_alone_does_not_time_the_loop_nor_share_its_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine({**FAST, None: 5e6}).use(monkeypatch)
    assert resolved(machine, way="vmap")[0].way == "vmap"
    assert (None, 1) not in machine.asked
    assert resolved(machine)[0].way == "loop"


@pytest.mark.parametrize(
    ("precision", "bfloat16", "line"),
    [
        ("float32", 2.0, "precision bfloat16 would train about 2.0 times as fast here"),
        ("float32", 1.2, None),
        ("bfloat16", 0.25, "precision float32 would train about 4.0 times as fast here"),
        ("float64", 2.0, None),
    ],
)
def test_a_line_where_another_precision_is_much_faster(
    precision: Precision, bfloat16: float, line: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the timing is that of an earlier run."""
    machine = Machine(FAST, bfloat16=bfloat16).use(monkeypatch)
    for _ in range(2):
        found, hints = resolved(machine, precision=precision, rounds=100)
        assert found.precision == precision, "it is the user's choice"
        assert [hint[: len(line or "")] for hint in hints] == ([line] if line else [])
        monkeypatch.setattr(timing, "_here", {})
    assert len(machine.asked) == len(set(machine.readings))


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose.threads(Execution(threads=3)) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert choose.threads(Execution()) == 5
    monkeypatch.setattr(choose.cores, "usable", lambda: 7)
    for other in ("", "0", "many", "-1"):
        monkeypatch.setenv("OMP_NUM_THREADS", other)
        assert choose.threads(Execution()) == 7


@pytest.mark.parametrize(
    ("asked", "rest", "line"),
    [
        ({"way": "vmap"}, {"stackable": False}, "can't be stacked .*; use --way loop"),
        ({"way": "loop", "chunk": 5}, {}, "^--way loop trains one client at a time, and --chunk 5 stacks them; leave"),
        ({"workers": 2}, {"on": torch.device("cuda")}, "workers share a cohort on a CPU; leave out --workers"),
        ({"workers": 2}, {"system": False}, "need anonymous shared memory .Linux.; use --workers 1"),
    ],
)
def test_what_is_refused(
    asked: dict[str, Any], rest: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose.processes, "possible", lambda: rest.get("system", True))
    with pytest.raises(PflOpsError, match=line):
        choose.scope_of(Execution.model_validate(asked), rest.get("on", CPU), rest.get("stackable", True), 10)


def test_a_chunk_without_effect_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(TWO).use(monkeypatch)
    why = "this network or loss can't be stacked (dropout, recurrent layers, a loss with branches)"
    line = f"--chunk 3 has no effect: {why}"
    for threads in (1, 2):  # nothing to choose, and one process or two
        assert resolved(machine, stackable=False, chunk=3, threads=threads)[1] == [line]
    assert resolved(machine, stackable=False, chunk=1)[1] == resolved(machine, chunk=3)[1] == []


def test_other_systems_have_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose.processes, "possible", lambda: False)
    assert choose.scope_of(Execution(threads=8), CPU, True, 10).most == 1
    assert choose.scope_of(Execution(threads=8), torch.device("cuda"), True, 10).most == 1


# -- in a simulation ---------------------------------------------------------------------------------------------------


def test_a_simulation_chooses_by_real_steps_and_keeps_to_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves its mark in the cache, and a second one reads it."""
    auto, rounds = Execution(device="cpu", threads=1), 100_000  # long enough for all candidates
    first = simulation(FedAvg(), execution=auto, rounds=rounds)
    assert first.resolved.way in ("loop", "vmap") and len(list(cache.iterdir())) == 1
    [file] = cache.iterdir()
    written = json.loads(file.read_text())
    timing = written["value"]
    assert {entry["stack"] for entry in timing["rates"]} >= {None, 2} and all(e["rate"] > 0 for e in timing["rates"])
    timing["rates"] = [{"stack": 2, "threads": 1, "precision": "float64", "rate": 1.0}]
    timing["seconds"] = 12.0
    remember(cache.name, written["key"], timing)
    second = simulation(FedAvg(), execution=auto, rounds=rounds)
    assert (second.resolved.way, second.resolved.chunk) == ("vmap", 2)
    # SGD with momentum does not go straight into the weights of linear layers: it took the faster rates of plain SGD
    for number, training in enumerate(({"batch_size": 2}, {"momentum": 0.9}, {"optimiser": "adam"})):
        other = simulation(FedAvg(), execution=auto, net=network(), training=training)
        assert len(list(cache.iterdir())) == number + 2, f"{training} is another key ({other.resolved})"


def test_timing_leaves_no_trace() -> None:
    """The state, the meter and the draws of a run that had to choose are those of one that had not."""
    threads = torch.get_num_threads()
    auto = simulation(FedAvg(), rounds=1, execution=Execution(device="cpu", threads=1))
    told = simulation(FedAvg(), rounds=1, execution=Execution(
        device="cpu", threads=1, way=auto.resolved.way, chunk=auto.resolved.stack))  # fmt: skip
    losses = [list(sim.run())[1].metrics["train/loss"] for sim in (auto, told)]
    assert losses[0] == losses[1]
    assert torch.equal(auto.state["central"], told.state["central"])
    torch.set_num_threads(threads)


def test_hints_reach_the_simulation_and_its_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    from pfl_ops.federation.loop.estimate import estimate

    monkeypatch.setattr(choose, "hint", lambda timing, precision: f"not {precision}")
    timed = simulation(FedAvg(), execution=Execution(device="cpu", threads=1))
    assert timed.hints == ["not float64"] and estimate(timed).hints == ("not float64",)
    assert simulation(FedAvg()).hints == [], "nothing was timed"


@pytest.mark.parametrize(
    ("execution", "lines"),
    [
        ({}, []),
        ({"workers": 3, "threads": 2, "way": "vmap", "chunk": 4}, []),
        ({"workers": 1}, ["keeps workers 3, as it was begun, not 1; --no-resume starts again"]),
        ({"way": "loop", "chunk": 5}, ["keeps way vmap, as it was begun, not loop; --no-resume starts again",
                                       "keeps chunk 4, as it was begun, not 5; --no-resume starts again"]),
    ],
)  # fmt: skip
def test_a_resumed_run_keeps_its_execution(execution: dict[str, Any], lines: list[str]) -> None:
    begun = Resolved("cpu", "vmap", 4, 2, "float32", torch.__version__, workers=3)
    meta = {"resolved": json.loads(json.dumps(begun.__dict__))}
    assert kept(meta, Execution.model_validate(execution), CPU) == (Executions([(0, begun)]), lines)


@pytest.mark.parametrize(("device", "before"), [("cpu", "AMD EPYC 9254"), ("cuda", "NVIDIA A100-SXM4-80GB")])
def test_a_run_that_goes_on_on_another_processor_says_so(
    device: str, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rates are those of the other one, too: nothing is compared with them."""
    monkeypatch.setattr(choose, "cpu_model", lambda: "AMD EPYC 9755")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda on: "NVIDIA H200")
    begun, on = Resolved(device, "loop", 1, 2, "float32", torch.__version__), torch.device(device)
    here = choose.processor(on)
    meta = {**Executions([(0, begun)], {begun: 1e4}).to_meta(), PROCESSOR: before}
    line = f"was computed on {before} so far, goes on on {here}: last digits may differ"
    assert kept(meta, Execution(), on)[1] == [line]
    assert kept(meta, Execution(), on, over=True)[1] == []
    assert kept(meta | {PROCESSOR: here}, Execution(), on)[1] == []


def test_each_share_of_a_gpus_memory_has_timings_of_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks of ten fit into the whole GPU alone. One of its trials, with a quarter, took the timing of the whole."""
    share = {"now": 1.0}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda on: "A GPU")
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda: share["now"])
    monkeypatch.setattr(choose, "switch", lambda precision: None)

    def measured(*_: Any, **__: Any) -> timing.Timing:
        rates = {timing.Candidate(size, 1, "float32"): rate for size, rate in FAST.items()}
        if share["now"] < 1:
            rates[timing.Candidate(10, 1, "float32")] = 0.0
        return timing.Timing(rates, seconds=60.0)

    monkeypatch.setattr(choose, "measure", measured)
    for now, stack in ((1.0, 10), (0.225, 5), (1.0, 10)):
        share["now"] = now
        monkeypatch.setattr(timing, "_here", {})  # another process
        found = choose.resolve(
            Execution(threads=1), torch.device("cuda"), "float32", stackable=True,
            work=TrainingWork(10, 100, samples=6e3, batch=50, walk=12), shapes={}, prepare=lambda c: pytest.fail(),
        )  # fmt: skip
        assert found.resolved.chunk == stack
    assert len(list(cache.iterdir())) == 2


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
