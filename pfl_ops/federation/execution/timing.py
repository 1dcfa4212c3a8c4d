"""The speed of real steps on this machine, in each way that a run could take: timed once, and kept for the next run.

All that is timed is timed in turns, several times, and the best reading counts: what disturbs the machine for a moment
disturbs no candidate alone. One thread is timed by its own clock, which stands still while others have its core. The
whole of it ends after `SECONDS`, whatever has not been tried by then.
"""

import contextlib
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, get_args

import torch

from pfl_ops.data.store import remember, remembered
from pfl_ops.federation.settings import Precision
from pfl_ops.system import cores
from pfl_ops.system.machine import cpu_model

SECONDS = {"cpu": 1.2, "cuda": 5.0}
READING = 0.03  # seconds that one reading takes, where a single step is shorter
LAPS = 5  # readings of each candidate that may still win
NEAR = 0.85  # of the best: what may still win, or is not yet a step backwards
HOPELESS = 0.5  # of the best: no larger stack is tried
KEPT = 30 * 24 * 3600  # seconds for which a timing is kept: libraries and firmware change
UNDISTURBED = 0.8  # of the time of all readings, at least, this thread had a core, or was about to go on


class Candidate(NamedTuple):
    """A way to train in one process: clients stacked (None: one at a time), CPU threads, number format."""

    stack: int | None
    threads: int
    precision: Precision


Go: TypeAlias = Callable[[int], int]
"""go(steps): that many steps of a candidate's clients; how many samples they saw."""

Prepare: TypeAlias = Callable[[Candidate], Go]


@dataclass
class Lane:
    """Candidates that differ in the size of their stack, smallest first, and how far they have come."""

    threads: int
    stacks: Sequence[int | None]
    best: float = 0.0
    last: float = 0.0
    losses: int = 0
    over: bool = False

    def note(self, rate: float) -> None:
        """Growth ends once two sizes have lost speed, or one is far behind."""
        self.losses += rate < NEAR * self.best
        self.over = self.losses == 2 or rate < HOPELESS * self.best
        self.best, self.last = max(self.best, rate), rate


@dataclass(frozen=True)
class Timing:
    """Timed rates.

    Attributes:
        rates: samples a second. scaling: how many times one core's work all of them do side by side.
        quiet: nothing else kept the machine busy meanwhile; what is not quiet is used, and not kept.
    """

    rates: Mapping[Candidate, float]
    scaling: float = 1.0
    quiet: bool = field(default=True, compare=False)

    def fastest(self, precision: Precision) -> Candidate:
        """The fastest of one number format."""
        own = {c: rate for c, rate in self.rates.items() if c.precision == precision}
        return max(own, key=lambda c: own[c])

    def to_json(self) -> dict[str, Any]:
        """As the cache keeps it."""
        return {"rates": [{**c._asdict(), "rate": r} for c, r in self.rates.items()], "scaling": self.scaling}

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
        return cls(rates, float(kept["scaling"]))


class Race:
    """Readings of candidates until the time is over.

    Args:
        prepare: makes a candidate ready. on: the device.
        batch: samples that a step shows to each client. walk: steps of a client a round; no reading takes more.
    """

    def __init__(self, prepare: Prepare, on: torch.device, batch: float, walk: int) -> None:
        self.prepare, self.on, self.batch, self.walk = prepare, on, batch, walk
        self.rates: dict[Candidate, float] = {}
        self._ready: dict[Candidate, Go] = {}
        self._steps: dict[Candidate, int] = {}
        self._end = time.perf_counter() + SECONDS[on.type]
        self._wall, self._own = 0.0, 0.0

    @property
    def undisturbed(self) -> bool:
        """True if this thread ran nearly all the time: it sleeps where it, or one that it waits for, has no core."""
        return self._own >= UNDISTURBED * self._wall

    def has_time(self, candidate: Candidate, rate: float, steps: int = 1) -> bool:
        """True if so many steps fit into the time that is left, at so many samples a second."""
        return steps * (candidate.stack or 1) * self.batch <= (self._end - time.perf_counter()) * rate

    def enter(self, candidate: Candidate, against: float = 0.0) -> float:
        """First readings of a candidate: a step that also pays for what is made once, a real reading, and one more
        where it is about to lose `against` another.

        Where the first one is far below already, and took as long as a reading, it is the answer.
        """
        self._ready[candidate], self._steps[candidate] = self.prepare(candidate), 1
        rate = self._read(candidate)
        brief = (candidate.stack or 1) * self.batch < READING * rate
        for bar in (float("inf"), NEAR * against):
            hopeless = rate < HOPELESS**2 * against and not brief
            if not hopeless and rate < bar and self.has_time(candidate, rate, self._steps[candidate]):
                rate = self._read(candidate)
            brief = False
        return rate

    def laps(self, candidates: Sequence[Candidate]) -> None:
        """Read these again, in turns."""
        for _ in range(LAPS if len(candidates) > 1 else 0):
            for c in candidates:
                if self.has_time(c, self.rates[c], self._steps[c]):
                    self._read(c)

    def _read(self, candidate: Candidate) -> float:
        """Samples a second, the best so far; 0 where the memory does not suffice."""
        torch.set_num_threads(candidate.threads)
        steps = self._steps[candidate]
        start, own = time.perf_counter(), time.thread_time()
        try:
            seen = self._ready[candidate](steps)
            if self.on.type == "cuda":
                torch.cuda.synchronize(self.on)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            seen = 0
        took, own = max(time.perf_counter() - start, 1e-9), time.thread_time() - own
        if self.on.type == "cpu":
            self._wall, self._own = self._wall + took, self._own + own
            if candidate.threads == 1:
                took = max(own, 1e-9)
        self._steps[candidate] = min(max(round(READING * steps / took), 1), self.walk)
        self.rates[candidate] = max(self.rates.get(candidate, 0.0), seen / took)
        return self.rates[candidate]


def measure(
    prepare: Prepare, on: torch.device, lanes: Sequence[Lane], precision: Precision, others: Sequence[Precision],
    *, batch: float, walk: int,
) -> Timing:  # fmt: skip
    """Time the candidates of all lanes, growing stacks as long as they gain, and the fastest in other number formats.

    Args:
        prepare, on, batch, walk: see `Race`.
        lanes: stacks to compare at each number of threads.
        precision: the run's. others: what it might use instead.
    """
    race = Race(prepare, on, batch, walk)
    for stack in dict.fromkeys(stack for lane in lanes for stack in lane.stacks):
        for lane in lanes:
            candidate = Candidate(stack, lane.threads, precision)
            known = lane.last or lanes[0].last * lane.threads / lanes[0].threads
            if lane.over or stack not in lane.stacks or (race.rates and not race.has_time(candidate, known, steps=2)):
                continue
            lane.note(race.enter(candidate, lane.best))
    best = max(race.rates, key=lambda c: race.rates[c])
    hints = [c for p in others if race.has_time(c := best._replace(precision=p), race.rates[best], steps=4)]
    for c in hints:
        race.enter(c, race.rates[best])
    bar = {lane.threads: NEAR * lane.best for lane in lanes}
    fast = race.rates[best]
    race.laps([c for c, r in race.rates.items() if r >= (fast if c in hints else bar[c.threads])])
    several = max(lane.threads for lane in lanes)
    scaling = cores.scaling(several) if len(lanes) > 1 else 1.0
    return Timing(race.rates, scaling, quiet=race.undisturbed and not cores.busy())


_here: dict[str, Timing] = {}


def recalled(key: Mapping[str, object], now: Callable[[], Timing]) -> Timing:
    """The timing for `key` (model, shapes, candidates) on this machine: from the user's cache folder, or made now.

    A kept one that is older than `KEPT` is made again. What is timed while others keep the machine busy would be wrong
    for a long time: only this process goes on with it.
    """
    machine = {"processor": cpu_model(), "host": platform.node(), "cores": cores.usable()}
    text = json.dumps({**key, **machine}, sort_keys=True)
    with contextlib.suppress(ValueError, KeyError, TypeError):  # not there, or damaged
        kept = remembered("execution", text)
        if 0 <= time.time() - kept["made"] < KEPT:
            return Timing.from_json(kept)
    if text not in _here:
        _here[text] = now()
    if _here[text].quiet:
        remember("execution", text, {**_here[text].to_json(), "key": dict(key), "made": int(time.time())})
    return _here[text]
