"""The speed of real steps on this machine, with each execution backend that a run could take.

All candidates are timed in turns, several times, and the best reading counts. A reading in which a thread waited for a
core is dropped: it is repeated, and other load makes it slower, never faster. One thread is timed by its CPU time.
Timing takes about 1 % of the training that is ahead. It is kept for later runs if the readings that count were
undisturbed.
"""

import contextlib
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, get_args

import torch

from pfl_ops.data.store import remember, remembered
from pfl_ops.federation.settings import Precision
from pfl_ops.system import cores
from pfl_ops.system.machine import cpu_model
from pfl_ops.system.memory import out_of_memory

SHARE = 0.01  # of the time of all training, that timing takes
LEAST_SECONDS, MOST_SECONDS = {"cpu": 0.6, "cuda": 5.0}, {"cpu": 12.0, "cuda": 20.0}  # seconds of timing
SHORT = 0.1  # of the time of all training, that timing takes at most, however short that is
READINGS = 60  # that fit into the time of timing, where a single step is not longer
LAPS = 5  # further readings of each candidate that may still win; twice as many where the best is disturbed
NEARLY_BEST = 0.85  # of the best: what may still win, or is not yet a step backwards
HOPELESS = 0.5  # of the best: a larger stack is tried only where stacks gain
GAINS = 1.2  # times the rate of the stack before: such growth may catch up
KEPT = 30 * 24 * 3600  # seconds for which a timing is kept: libraries and firmware change
WAITED = 0.1  # of a reading, during which a thread was without a core: such a reading is disturbed
IDLE = 2 / 3  # of a reading, that is not counted as time of timing where it was spent without a core, at most


class Candidate(NamedTuple):
    """A way to train in one process: clients stacked (None: one at a time), CPU threads, number format."""

    stack: int | None
    threads: int
    precision: Precision


Go: TypeAlias = Callable[[int], int]
"""go(steps): that many steps of a candidate's clients; how many samples they saw."""

Prepare: TypeAlias = Callable[[Candidate], Go]


class Timed(NamedTuple):
    """Some steps of a candidate: samples that they saw, and seconds.

    Attributes:
        took: by the clock, of the CPU where one thread computes: what the rate is taken from.
        clock: by the clock. without: of the clock's, those in which a thread was without a core.
    """

    samples: int
    took: float
    clock: float
    without: float


@dataclass
class Lane:
    """Candidates that differ in the size of their stack, smallest first, and the rates found so far.

    Attributes:
        best, last: of all, and of the size before. stacked: that was a stack. spent: seconds.
        over: no larger stack is tried.
    """

    threads: int
    stacks: Sequence[int | None]
    best: float = 0.0
    last: float = 0.0
    stacked: bool = False
    spent: float = 0.0
    over: bool = False

    def note(self, stack: int | None, rate: float) -> None:
        """End the growth where a stack is far behind, and gains too little on the one before to catch up.

        A small stack that is slower than one client at a time says nothing about larger ones.
        """
        grows = not self.stacked or rate >= GAINS * self.last
        self.over = not rate or (rate < HOPELESS * self.best and not grows)
        self.stacked, self.best, self.last = stack is not None, max(self.best, rate), rate


@dataclass(frozen=True)
class Timing:
    """Timed rates.

    Attributes:
        rates: samples a second. scaling: the work of all cores side by side, in multiples of one core's.
        seconds: for which candidates were read, at most.
        quiet: the best readings of all candidates that may win had a core for each thread, and all had the memory that
            they need; else it is not kept.
    """

    rates: Mapping[Candidate, float]
    scaling: float = 1.0
    seconds: float = 0.0
    quiet: bool = field(default=True, compare=False)

    def fastest(self, precision: Precision) -> Candidate:
        """The fastest of one number format."""
        own = {c: rate for c, rate in self.rates.items() if c.precision == precision}
        return max(own, key=lambda c: own[c])

    def to_json(self) -> dict[str, Any]:
        """As the cache keeps it."""
        rates = [{**c._asdict(), "rate": r} for c, r in self.rates.items()]
        return {"rates": rates, "scaling": self.scaling, "seconds": self.seconds}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "Timing":
        """Read what `to_json` gave.

        Raises:
            KeyError, TypeError, ValueError: it is damaged.
        """
        rates = {}
        for entry in kept["rates"]:
            stack, precision = entry["stack"], entry["precision"]
            if not (stack is None or int(stack) >= 1) or precision not in get_args(Precision):
                raise ValueError(f"not a candidate: {entry}")
            rates[Candidate(stack, int(entry["threads"]), precision)] = float(entry["rate"])
        if not rates:
            raise ValueError("nothing was timed")
        return cls(rates, float(kept["scaling"]), float(kept["seconds"]))

    def serves(self, samples: float, on: str) -> bool:
        """True if it is not much shorter than a timing for a run of so many samples."""
        wanted = length(samples / max([*self.rates.values(), 1e-9]), on)
        return self.seconds >= max(wanted / 2, min(wanted, LEAST_SECONDS[on]))


def length(training: float, on: str) -> float:
    """Seconds of timing for a run with so many seconds of training.

    >>> length(600.0, "cpu"), length(10.0, "cpu"), length(4.0, "cpu")  # 1 %; the least; a tenth
    (6.0, 0.6, 0.4)
    """
    return min(max(SHARE * training, LEAST_SECONDS[on]), SHORT * training, MOST_SECONDS[on])


class Race:
    """Readings of candidates until the time is over.

    Args:
        prepare: makes a candidate ready. on: the device.
        batch: samples that a step shows to each client. walk: steps of a client a round; no reading takes more.
        samples: that the run trains on, all rounds together.

    Attributes:
        rates: samples a second, by the best reading of each candidate.
        clean: candidates of which that reading had a core for each thread.
        spent: seconds of readings, less those that were spent without a core.
        short: the memory did not suffice for a candidate; other processes may have taken it.
    """

    def __init__(self, prepare: Prepare, on: torch.device, batch: float, walk: int, samples: float) -> None:
        self.prepare, self.on, self.batch, self.walk, self.samples = prepare, on, batch, walk, samples
        self.rates: dict[Candidate, float] = {}
        self.clean: set[Candidate] = set()
        self._ready: dict[Candidate, Go] = {}
        self._pace: dict[Candidate, float] = {}  # steps a second
        self.spent = 0.0
        self.short = False

    @property
    def seconds(self) -> float:
        """The length of all readings together."""
        return length(self.samples / max([*self.rates.values(), 1e-9]), self.on.type)

    def has_time(self, candidate: Candidate, rate: float, steps: int = 1) -> bool:
        """True if so many steps fit into the time that is left, at so many samples a second."""
        return steps * (candidate.stack or 1) * self.batch <= (self.seconds - self.spent) * rate

    def enter(self, candidate: Candidate, against: float = 0.0) -> float:
        """First readings of a candidate: a step that also pays for what is made once, and two readings: caches and
        memory are warm after some steps.

        Where the first step is far below `against` already, and took as long as a reading, it is the answer.
        """
        self._ready[candidate] = self.prepare(candidate)
        rate = self._rate(candidate, [self._go(candidate, 1)])
        brief = (candidate.stack or 1) * self.batch < self.seconds / READINGS * rate
        for _ in range(2):
            if brief or rate >= HOPELESS**2 * against:
                rate, brief = self.read(candidate, anew=brief), False
        return rate

    def laps(self, candidates: Sequence[Candidate]) -> None:
        """Read these again, in turns; then those on, whose best reading was disturbed."""
        for lap in range(2 * LAPS):
            for c in candidates:
                if len(candidates) > 1 if lap < LAPS else c not in self.clean:
                    self.read(c)

    def read(self, candidate: Candidate, anew: bool = False) -> float:
        """A reading, of several walks where one is short, as far as there is time; the best so far counts.

        It is rated as a whole: the best of many short walks would favour small stacks, which have more of them.

        Args:
            anew: what came before was shorter than a reading, and counts no more.
        """
        end = self.spent + 0.99 * self.seconds / READINGS
        walks = []
        while self.spent < end:
            steps = min(max(round(self.seconds / READINGS * self._pace[candidate]), 1), self.walk)
            if not self.has_time(candidate, self.rates[candidate], steps):
                break
            walks.append(self._go(candidate, steps))
        if walks and anew:
            del self.rates[candidate]
        return self._rate(candidate, walks) if walks else self.rates[candidate]

    def _rate(self, candidate: Candidate, walks: Sequence[Timed]) -> float:
        """Samples a second of the best reading so far, this one included; 0 where the memory does not suffice."""
        samples, took, clock, without = (sum(parts) for parts in zip(*walks, strict=True))
        if samples / took >= self.rates.get(candidate, 0.0):
            self.rates[candidate] = samples / took
            (self.clean.add if without <= WAITED * clock else self.clean.discard)(candidate)
        return self.rates[candidate]

    def _go(self, candidate: Candidate, steps: int) -> Timed:
        """Take so many steps."""
        torch.set_num_threads(candidate.threads)
        waited, start, own = cores.waited(), time.perf_counter(), time.thread_time()
        samples, fits = 0, True
        try:
            samples = self._ready[candidate](steps)
            if self.on.type == "cuda":
                torch.cuda.synchronize(self.on)
        except Exception as error:
            if not out_of_memory(error):
                raise
            fits = False
        if not fits:  # the error is gone, and with it what its frames held
            self.short = True
            torch.cuda.empty_cache()
        clock, own = max(time.perf_counter() - start, 1e-9), time.thread_time() - own
        took, without = clock, 0.0
        if self.on.type == "cpu":
            without = clock - own if waited is None else max((cores.waited() or 0.0) - waited, 0.0)
            if candidate.threads == 1:
                took = max(own, 1e-9)
        self.spent += clock - min(without / candidate.threads, IDLE * clock)
        self._pace[candidate] = steps / took
        return Timed(samples, took, clock, without)


def measure(
    prepare: Prepare, on: torch.device, lanes: Sequence[Lane], precision: Precision, others: Sequence[Precision],
    *, batch: float, walk: int, samples: float,
) -> Timing:  # fmt: skip
    """Time the candidates of all lanes, growing stacks as long as they gain, and the fastest in other number formats.

    Args:
        prepare, on, batch, walk, samples: see `Race`.
        lanes: stacks to compare at each number of threads.
        precision: the run's. others: what it might use instead.
    """
    race = Race(prepare, on, batch, walk, samples)
    for stack in dict.fromkeys(stack for lane in lanes for stack in lane.stacks):
        for lane in lanes:
            candidate = Candidate(stack, lane.threads, precision)
            known = lane.last or lanes[0].last * lane.threads / lanes[0].threads
            if lane.over or stack not in lane.stacks or (race.rates and not race.has_time(candidate, known, steps=2)):
                continue
            if lane.spent > race.seconds / (len(lanes) + 1):
                continue  # the rest of the time is for the other lanes, and for readings in turns
            before = race.spent
            lane.note(stack, race.enter(candidate, lane.best))
            lane.spent += race.spent - before
    best = max(race.rates, key=lambda c: race.rates[c])
    hints = [c for p in others if race.has_time(c := best._replace(precision=p), race.rates[best], steps=4)]
    for c in hints:
        race.enter(c, race.rates[best])
    bar = {lane.threads: NEARLY_BEST * lane.best for lane in lanes}
    fast = race.rates[best]
    front = [c for c, r in race.rates.items() if r >= (fast if c in hints else bar[c.threads])]
    race.laps(front)
    several = max(lane.threads for lane in lanes)
    workers = len(lanes) > 1 and race.seconds >= LEAST_SECONDS[on.type]  # shorter runs have none
    scaling = cores.scaling(several, seconds=min(0.02, race.seconds / 30)) if workers else 1.0
    return Timing(race.rates, scaling, race.seconds, quiet=not race.short and race.clean.issuperset(front))


_here: dict[str, Timing] = {}
_anew = False


@contextlib.contextmanager
def timed_anew() -> Iterator[None]:
    """Within it nothing that is kept serves: for a benchmark of the choice."""
    global _anew
    before, _anew = _anew, True
    try:
        yield
    finally:
        _anew = before


def recalled(
    key: Mapping[str, object], now: Callable[[], Timing], serves: Callable[[Timing], bool] = lambda timing: True
) -> Timing:
    """The timing for `key` (model, shapes, candidates) on this machine: from the user's cache folder, or made now.

    One that is older than `KEPT`, or that was made on another processor, is made again; so is one that does not serve.
    A disturbed timing, or one for which a GPU's memory did not suffice, would be wrong for a long time: only this
    process uses it again.

    Args:
        key: all that the rates depend on, but for the machine. now: times. serves: True if a kept one is long enough.
    """
    machine = {"processor": cpu_model(), "host": platform.node(), "cores": cores.usable()}
    text = json.dumps({**key, **machine}, sort_keys=True)
    with contextlib.suppress(ValueError, KeyError, TypeError):  # not there, or damaged
        kept = remembered("execution", text)
        if not _anew and 0 <= time.time() - kept["made"] < KEPT and serves(found := Timing.from_json(kept)):
            return found
    if _anew or text not in _here or not serves(_here[text]):
        _here[text] = now()
        if _here[text].quiet:
            remember("execution", text, {**_here[text].to_json(), "key": dict(key), "made": int(time.time())})
    return _here[text]
