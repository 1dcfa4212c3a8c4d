"""Windows, trials and series, on a clock that the tests turn."""

import pytest
import torch

from pfl_ops.bench.candidate import BenchCandidate, Label
from pfl_ops.bench.measure import Series, Timed
from pfl_ops.bench.peak import matmul_rate
from pfl_ops.bench.process import Stopwatch, Window


class Clock:
    now = 0.0

    def perf_counter(self):
        return self.now


class Takes(BenchCandidate):
    """Each call takes so many seconds, the first one five times as many; a probe does a fifth of the work."""

    def __init__(self, clock, seconds):
        super().__init__(Label("loop"), threads=1)
        self.clock, self.each, self.calls = clock, seconds, 0

    def train(self):
        self.clock.now += self.each * (1 if self.calls else 5)
        self.calls += 1

    def probe(self, figure):
        self.clock.now += self.each / 5
        return 0.2


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("pfl_ops.bench.process.time", clock)
    return clock


def watch(clock, seconds):
    return Stopwatch(Takes(clock, seconds), torch.device("cpu"))


def test_a_window_is_filled_with_calls(clock):
    assert watch(clock, 0.1).warm("train", 0.35) == Window(4, pytest.approx(0.4))


def test_what_takes_long_is_called_once(clock):
    one = watch(clock, 2.0)
    calls, seconds = one.warm("train", 0.3)
    assert (calls, seconds) == (1, pytest.approx(10)) and one.candidate.calls == 1


def test_seconds_are_those_of_all_calls(clock):
    one = watch(clock, 0.1)
    one.candidate.calls = 1
    assert one.seconds("train", 7) == pytest.approx(0.7)


def test_a_trial_does_a_part_of_the_work(clock):
    one = watch(clock, 0.5)
    assert one.trial("train") == pytest.approx(2.0)  # whole works a second
    assert one.candidate.calls == 0


def test_a_trial_without_memory_is_hopeless(clock, monkeypatch):
    one = watch(clock, 0.5)
    monkeypatch.setattr(one.candidate, "probe", lambda figure: exec("raise torch.OutOfMemoryError", {"torch": torch}))
    assert one.trial("train") == 0


def test_a_rate_counts_every_call_of_the_window():
    class Entrant:
        def seconds(self, figure, calls):
            assert (figure, calls) == ("train", 3)
            return 1.5

    timed = Timed(Entrant(), "train", amount=100, window=Window(3, 1.0))
    timed.measure()
    assert timed.values == [200]


def test_a_ratio_is_the_median_of_ratios_in_the_same_turn():
    """A machine that is half as fast in the second turn hits both alike: ratios 2, 2, 3."""
    ours, plain = Series((20.0, 10.0, 30.0)), Series((10.0, 5.0, 10.0))
    assert (ours.n, ours.median, ours.over(plain)) == (3, 20, 2)
    assert Series((5.0,), given_up=True).over(plain) == 0.5  # against the median


def test_the_peak_is_a_number_of_operations(monkeypatch):
    monkeypatch.setattr("pfl_ops.bench.peak.SIDE", {"cpu": 64})
    before = torch.get_num_threads()
    for precision in ("float32", "bfloat16", "float64"):
        assert 1e6 < matmul_rate(torch.device("cpu"), precision, before, seconds=0) < 1e14
