"""Timing on a machine whose rates are known: what is tried, for how long, what counts, and what is kept."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_machine import Machine

from pfl_ops.data.store import remember
from pfl_ops.federation.execution import timing
from pfl_ops.federation.execution.timing import Candidate, Lane, Race, Timing, measure, recalled

CPU = torch.device("cpu")
SIZES = (2, 5, 10, 20, 50, 100)
ONE = Candidate(None, 1, "float32")


def measured(machine: Machine, *lanes: Lane, others: Any = (), walk: int = 12, samples: float = 1e9) -> Timing:
    return measure(
        machine.prepare, CPU, list(lanes), "float32", others, batch=machine.batch, walk=walk, samples=samples
    )


# -- what is tried -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rates", "best", "asked"),
    [
        ({None: 62, 2: 80, 5: 150, 10: 173, 20: 170}, 10, 5),  # the best of all
        ({None: 62, 2: 80, 5: 150, 10: 170, 20: 173, 50: 80, 100: 0}, 20, 6),  # far behind: stop
        ({None: 62, 2: 150, 5: 120, 10: 170, 20: 140, 50: 0}, 10, 6),  # losses may be noise
        ({None: 100, 2: 20, 5: 21, 10: 500}, None, 3),  # far behind, and no growth: given up
        ({None: 220, 2: 100, 5: 180, 10: 320, 20: 640}, 20, 5),  # slower than the loop at first, and growing
        ({None: 100, 2: 60, 5: 90, 10: 99, 20: 98}, None, 5),  # near, and never faster
        ({None: 100, 2: 0, 5: 500}, None, 2),  # does not fit into memory
        ({None: 100}, None, 1),
    ],
)
def test_stacks_grow_while_they_gain(
    rates: dict[Any, float], best: int | None, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine({size: 1e5 * rate for size, rate in rates.items()}).use(monkeypatch)
    found = measured(machine, Lane(1, tuple(rates)))
    assert found.fastest("float32") == Candidate(best, 1, "float32")
    assert [stack for stack, _ in machine.asked] == list(rates)[:asked]


def test_each_number_of_threads_grows_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {(None, 1): 1.0, (None, 2): 1.5, (2, 1): 0.4, (2, 2): 2.0, (5, 1): 0.4, (5, 2): 2.5, (10, 2): 0.1}
    machine = Machine({key: 1e6 * rate for key, rate in rates.items()}).use(monkeypatch)
    found = measured(machine, Lane(1, (None, 2, 5, 10)), Lane(2, (None, 2, 5, 10)))
    assert machine.asked == [(None, 1), (None, 2), (2, 1), (2, 2), (5, 1), (5, 2), (10, 2)]
    assert found.fastest("float32") == Candidate(5, 2, "float32") and found.scaling == 2.0


@pytest.mark.parametrize(("bfloat16", "readings"), [(2.0, 8), (0.9, 3), (0.2, 2)])
def test_another_precision_is_timed_where_the_own_is_fastest(
    bfloat16: float, readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step and two readings where it is slower, one where it is far behind, as often as the rest where it may win."""
    machine = Machine({None: 1e5, 2: 2e5, 5: 1e5}, bfloat16=bfloat16).use(monkeypatch)
    found = measured(machine, Lane(1, (None, 2, 5)), others=["bfloat16"], walk=100_000)
    assert len(machine.readings[Candidate(2, 1, "bfloat16")]) == readings
    assert found.rates[Candidate(2, 1, "bfloat16")] == pytest.approx(bfloat16 * 2e5)
    assert found.fastest("float32").stack == 2, "another precision is never what is taken"


# -- for how long ------------------------------------------------------------------------------------------------------

TWO_LANES = {(size, threads): 1.0 for size in (None, *SIZES) for threads in (1, 2)}


@pytest.mark.parametrize("training", [2.0, 60.0, 1200.0, 1e6])
@pytest.mark.parametrize(
    "rate",
    [
        1e6,  # a linear model
        5e4,  # an MLP
        2e3,  # McMahan's CNN: 25 ms a step, a stack of 20 takes half a second
    ],
)
def test_all_of_it_is_over_in_time_whatever_the_model(
    rate: float, training: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing loses here, so that nothing is given up early: the clock alone ends it. A run of a minute is timed for
    0.6 s, one of 20 minutes for 12 s."""
    machine = Machine({key: rate for key in TWO_LANES}, bfloat16=1.0).use(monkeypatch)
    lanes = Lane(1, (None, *SIZES)), Lane(2, (None, *SIZES))
    found = measured(machine, *lanes, others=["bfloat16"], samples=training * rate)
    assert machine.now <= timing.length(training, "cpu") == pytest.approx(found.seconds)
    assert ONE in found.rates and Candidate(None, 2, "float32") in found.rates
    if training >= 1200 and rate > 2e3:
        assert {c[:2] for c in found.rates} == TWO_LANES.keys(), "a long run has the time for all"


@pytest.mark.parametrize(
    ("training", "expected"), [(1.0, 0.1), (6.0, 0.6), (60.0, 0.6), (100.0, 1.0), (1200.0, 12.0), (1e6, 12.0)]
)
def test_the_length_follows_the_run(training: float, expected: float) -> None:
    """1 %, at least 0.6 s but never more than a tenth, at most 12 s."""
    assert timing.length(training, "cpu") == pytest.approx(expected)


def test_a_step_that_takes_all_the_time_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 s a step, 200 s of training: 2 s of timing."""
    machine = Machine({key: 10.0 for key in TWO_LANES}).use(monkeypatch)
    lanes = Lane(1, (None, *SIZES)), Lane(2, (None, *SIZES))
    found = measured(machine, *lanes, others=["bfloat16"], samples=2000)
    assert machine.asked == [(None, 1)] and machine.now == pytest.approx(5.0)
    assert found.rates == {ONE: pytest.approx(10.0)}


def test_a_reading_is_several_walks_where_one_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """180 s of training: 1.8 s of timing, of which a reading takes 30 ms: 60 steps of 0.5 ms, or nine walks of seven.
    A step, two readings, five more."""
    machine = Machine({None: 1e5, 2: 1e5}).use(monkeypatch)
    measured(machine, Lane(1, (None, 2)), walk=7, samples=180e5)
    assert machine.readings[ONE] == [1, *[7] * 9 * 7]
    machine = Machine({None: 1e5, 2: 1e5}).use(monkeypatch)
    measured(machine, Lane(1, (None, 2)), walk=100, samples=180e5)
    assert machine.readings[ONE] == [1, *[60] * 7]


# -- what counts -------------------------------------------------------------------------------------------------------


def test_the_best_reading_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step also pays for what is made once; later something disturbs one of the readings."""
    machine = Machine({None: 1e5, 2: 1.2e5}, first=0.5).use(monkeypatch)
    race = Race(machine.prepare, CPU, batch=50, walk=10, samples=1e7)
    assert race.enter(ONE) == pytest.approx(1e5)
    go = race._ready[ONE]

    def disturbed(steps: int) -> int:
        machine.rest(0.1)
        return go(steps)

    race._ready[ONE] = disturbed
    race.laps([ONE, ONE])
    assert race.rates[ONE] == pytest.approx(1e5)


def test_a_reading_is_rated_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client at a time has 1e5 samples/s, in walks of 3.5 ms that take 0.7 and 1.3 times as long in turns: eight
    of them are a reading. Stacks of 20 have 1.1e5. The best single walk would be 1.43e5."""
    machine = Machine({None: 1e5, 20: 1.1e5}).use(monkeypatch)

    def uneven(candidate: Candidate) -> timing.Go:
        go, times = machine.prepare(candidate), itertools.cycle([0.7, 1.3] if candidate == ONE else [1.0])

        def walk(steps: int) -> int:
            machine.rates[None, 1] = 1e5 / next(times)
            return go(steps)

        return walk

    found = measure(uneven, CPU, [Lane(1, (None, 20))], "float32", (), batch=50, walk=7, samples=180e5)
    assert found.fastest("float32").stack == 20
    assert found.rates[ONE] == pytest.approx(1e5)


@pytest.mark.parametrize("waits", [0.0, 0.5, 0.9])
def test_one_thread_is_as_fast_as_it_is_while_it_has_a_core(waits: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack is read while others have the core for some of the time: it is twice as fast all the same.

    Where all readings are like that, the best of them counts."""
    machine = Machine({None: 1e5, 2: 2e5}).use(monkeypatch)
    race = Race(machine.prepare, CPU, batch=50, walk=10, samples=1e7)
    race.enter(ONE)
    machine.waits = waits
    machine.rates[2, 1] *= 1 - waits  # by the wall clock
    assert race.enter(ONE._replace(stack=2), against=1e5) == pytest.approx(2e5)


def test_a_reading_that_waited_for_a_core_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads, 1e5 samples/s. Other load takes a core for half of the time, which halves the rate: such a reading
    is the best at first, is read again although all laps are over, and counts no more."""
    two = ONE._replace(threads=2)
    machine = Machine({(None, 2): 0.5e5}, waits=0.5).use(monkeypatch)
    race = Race(machine.prepare, CPU, batch=50, walk=1000, samples=1e9)
    assert race.enter(two) == pytest.approx(0.5e5) and not race.clean
    machine.waits, machine.rates[None, 2] = 0.05, 1e5
    race._ready[two] = machine.prepare(two)
    race.laps([two])
    assert race.clean == {two} and race.rates[two] == pytest.approx(1e5)


def test_time_without_a_core_is_not_counted_as_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to two thirds of it: half of the time without a core doubles what timing takes, nine tenths treble it."""
    for waits, times in ((0.0, 1), (0.5, 2), (0.9, 3)):
        machine = Machine({None: 1e5 * (1 - waits)}, waits=waits).use(monkeypatch)
        race = Race(machine.prepare, CPU, batch=50, walk=10, samples=1e8)
        race.enter(ONE)
        while race.has_time(ONE, 1e5, 100):
            race.read(ONE)
        assert machine.now == pytest.approx(times * 10, rel=0.02)


def test_a_system_that_tells_of_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the CPU time of this thread tells."""
    for waits in (0.05, 0.5):
        machine = Machine({None: 1e5}, waits=waits).use(monkeypatch)
        monkeypatch.setattr(timing.cores, "waited", lambda: None)
        race = Race(machine.prepare, CPU, batch=50, walk=10, samples=1e7)
        race.enter(ONE)
        assert (ONE in race.clean) == (waits < timing.WAITED)


def test_other_load_in_one_lane_leaves_time_for_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of two threads take 50 times as long as those of one: all stacks of one thread are tried."""
    machine = Machine({(s, t): 1e6 if t == 1 else 2e4 for s, t in TWO_LANES}).use(monkeypatch)
    found = measured(machine, Lane(1, (None, *SIZES)), Lane(2, (None, *SIZES)), samples=120e6)
    assert {c.stack for c in found.rates if c.threads == 1} == {None, *SIZES}


def test_a_first_step_that_makes_something_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 ms of work and 20 ms that come once: a reading follows. A step of 200 ms is a reading by itself."""
    machine = Machine({None: 1e5, 2: 2e5}, first=0.02).use(monkeypatch)
    race = Race(machine.prepare, CPU, batch=50, walk=100, samples=1e7)
    assert race.enter(ONE._replace(stack=2), against=1e5) == pytest.approx(2e5)
    machine = Machine({2: 500.0}).use(monkeypatch)
    Race(machine.prepare, CPU, batch=50, walk=100, samples=5e4).enter(ONE._replace(stack=2), against=1e5)
    assert machine.readings[ONE._replace(stack=2)] == [1]


# -- what is kept ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(timing, "_here", {})
    return tmp_path / "cache" / "execution"


SOME = Timing({Candidate(None, 2, "float32"): 1500.5, Candidate(20, 1, "bfloat16"): 2000.0}, scaling=1.75, seconds=0.3)


def test_the_form_of_a_kept_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing.time, "time", lambda: 1e6)
    assert recalled({"batch": 50}, lambda: SOME) == SOME
    [file] = cache.iterdir()
    assert json.loads(file.read_text())["value"] == {
        "rates": [
            {"stack": None, "threads": 2, "precision": "float32", "rate": 1500.5},
            {"stack": 20, "threads": 1, "precision": "bfloat16", "rate": 2000.0},
        ],
        "scaling": 1.75,
        "seconds": 0.3,
        "key": {"batch": 50},
        "made": 1_000_000,
    }


def test_timed_once_for_the_same_key(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recalled({"batch": 50}, lambda: SOME)
    monkeypatch.setattr(timing, "_here", {})  # another process
    assert recalled({"batch": 50}, lambda: pytest.fail("timed again")) == SOME  # type: ignore[arg-type]
    other = Timing({ONE: 1.0})
    assert recalled({"batch": 10}, lambda: other) == other
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(("days", "again"), [(29, False), (30, True), (-1, True)])
def test_a_kept_timing_serves_for_a_month(days: int, again: bool, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One from the future was made under another clock: its age is not known."""
    recalled({"a": 1}, lambda: SOME)
    monkeypatch.setattr(timing, "_here", {})  # another process
    now = timing.time.time()
    monkeypatch.setattr(timing.time, "time", lambda: now + days * 24 * 3600)
    assert recalled({"a": 1}, lambda: Timing({ONE: 1.0})) == (Timing({ONE: 1.0}) if again else SOME)


@pytest.mark.parametrize("changed", ["processor", "host", "cores"])
def test_another_machine_is_timed_anew(changed: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recalled({"a": 1}, lambda: SOME)
    monkeypatch.setattr(timing, "_here", {})
    monkeypatch.setattr(*{
        "processor": (timing, "cpu_model", lambda: "another"),
        "host": (timing.platform, "node", lambda: "another"),
        "cores": (timing.cores, "usable", lambda: 999),
    }[changed])  # fmt: skip
    assert recalled({"a": 1}, lambda: Timing({ONE: 1.0})) == Timing({ONE: 1.0})


def test_a_longer_run_is_timed_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.8 s of timing serve runs of up to 160 s, at 1,000 samples/s, in other processes, too."""
    short, longer = Timing({ONE: 1000.0}, seconds=0.8), Timing({ONE: 1000.0}, seconds=12.0)

    def asked(samples: float, now: Timing | None) -> Timing:
        return recalled({"a": 1}, lambda: now or pytest.fail("timed again"), lambda kept: kept.serves(samples, "cpu"))

    assert asked(50e3, short) == short == asked(159e3, None) == asked(1e3, None)
    assert asked(161e3, longer) == longer
    for _ in range(2):
        assert asked(1e9, None) == asked(50e3, None) == longer
        monkeypatch.setattr(timing, "_here", {})


def test_a_run_too_short_for_timing_leaves_nothing_for_longer_ones() -> None:
    """A tenth of a run of 5 s: 0.5 s, less than the least of a longer run."""
    tiny = Timing({ONE: 1000.0}, seconds=0.5)
    assert tiny.serves(5000, "cpu") and not tiny.serves(6000, "cpu")


def test_what_was_disturbed_serves_this_process_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loud = Timing({ONE: 1.0}, quiet=False)
    assert recalled({"a": 1}, lambda: loud) is loud
    assert recalled({"a": 1}, lambda: pytest.fail("timed again")) is loud  # type: ignore[arg-type]
    assert not cache.exists()
    monkeypatch.setattr(timing, "_here", {})
    assert recalled({"a": 1}, lambda: SOME) is SOME and len(list(cache.iterdir())) == 1


@pytest.mark.parametrize(("waits", "quiet"), [(0.0, True), (0.05, True), (0.15, False), (0.9, False)])
def test_quiet(waits: float, quiet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine({None: 1e5, 2: 1e5}, waits=waits).use(monkeypatch)
    assert measured(machine, Lane(1, (None, 2))).quiet == quiet


@pytest.mark.parametrize(
    ("error", "quiet"),
    [
        (None, True),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), False),
    ],
)
def test_a_timing_that_lacked_memory_is_not_quiet(
    error: Exception | None, quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes may have had the GPU's memory: it would keep stacks small for a month."""
    machine = Machine({None: 1e5, 2: 2e5}).use(monkeypatch)
    prepare = machine.prepare

    def refused(candidate: Candidate) -> timing.Go:
        go = prepare(candidate)

        def without_memory(steps: int) -> int:
            if error is not None:
                raise error
            return go(steps)

        return without_memory if candidate.stack == 2 else go

    monkeypatch.setattr(machine, "prepare", refused)
    found = measured(machine, Lane(1, (None, 2)))
    assert found.quiet == quiet
    assert found.rates[ONE._replace(stack=2)] == pytest.approx(2e5 if quiet else 0.0)


GOOD = '{"stack": 2, "threads": 1, "precision": "float32", "rate": 3.0}'


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"rates": [], "scaling": 1}', f'{{"rates": [{GOOD}]}}'.encode(),
        f'{{"rates": [{GOOD}], "scaling": null}}'.encode(),
        f'{{"rates": [{GOOD}], "scaling": 1}}'.encode(),  # of a version that timed all runs alike
        *(f'{{"rates": [{GOOD.replace(*change)}], "scaling": 1, "seconds": 1}}'.encode() for change in [
            ("2", "0"), ("2", '"two"'), ("1", "null"), ("float32", "float31"), ("3.0", '"fast"')]),
    ],
)  # fmt: skip
def test_a_damaged_file_is_timed_again_and_mended(content: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recalled({"a": 1}, lambda: Timing({ONE: 1.0}))
    [file] = cache.iterdir()
    try:
        value = json.loads(content)
    except ValueError:
        file.write_bytes(content)
    else:  # as if it had been remembered so
        remember("execution", json.loads(file.read_text())["key"], value)
    monkeypatch.setattr(timing, "_here", {})
    assert recalled({"a": 1}, lambda: SOME) is SOME
    assert Timing.from_json(json.loads(file.read_text())["value"]) == SOME


def test_a_cache_that_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path / "file"))
    assert recalled({"a": 1}, lambda: SOME) is SOME
