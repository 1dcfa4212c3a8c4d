"""The number of trials that run at once: measurements of one, two, four, ... of them, and the best packing.

On a GPU each trial gets a share of it, else a share of the CPU's cores. More trials at once get more done together
until they slow each other down; only a measurement shows where that begins.
"""

import json
import math
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import torch

from pfl_ops.config.experiment import Experiment
from pfl_ops.data.store import remember, remembered
from pfl_ops.errors import count
from pfl_ops.federation.settings import Execution
from pfl_ops.probe import Probe, ProbeOutOfMemory
from pfl_ops.probe.memory import device_free
from pfl_ops.system import cores, memory

ON_A_GPU = (1, 2, 4, 8)
NEARLY_BEST = 0.95  # of the best total: as good, and fewer trials at once are better: the search learns in between
LOSS = 0.9  # of the best total so far; after two of these nothing more is tried
A_PROCESS = 512 << 20  # bytes that a process takes before it does anything
RAY_ITSELF = 200 << 20  # bytes that a trial's process holds beyond what a measuring one does

Kind: TypeAlias = Literal["cpu", "gpu"]


class PackingLayout(NamedTuple):
    """A way to share a machine (or one GPU) among trials.

    Attributes:
        trials: how many at once. cpus: CPUs of each; below 1: they take turns. gpus: share of the GPU of each; 0: none.
    """

    trials: int
    cpus: float
    gpus: float = 0.0

    @property
    def threads(self) -> int:
        """CPU threads of a trial."""
        return max(1, math.floor(self.cpus))


class PackingRate(NamedTuple):
    """A layout and what it reached.

    Attributes:
        rate: samples a second of all its trials together; 0: they did not fit into memory.
        peak: bytes that one of them held at most. execution: as each of them resolved it.
    """

    layout: PackingLayout
    rate: float
    peak: int
    execution: Execution


@dataclass(frozen=True)
class Packing:
    """The layout that a study takes.

    Attributes:
        kind: what is shared. machine: whose measurement it is, in words.
        layout: the choice. way, chunk, workers, threads: how each trial computes.
        rates: {trials at once: samples a second together}; 0: did not fit.
        peak: bytes that one trial held at most.
    """

    kind: Kind
    machine: str
    layout: PackingLayout
    way: Literal["loop", "vmap"]
    chunk: int | None
    workers: int | None
    threads: int
    rates: Mapping[int, float]
    peak: int

    @classmethod
    def recorded(cls, record: Any) -> Self | None:
        """As `as_dict` recorded it; None: nothing was, or it is damaged."""
        try:
            rates = {int(count): float(rate) for count, rate in record["rates"].items()}
            return cls(**{**record, "layout": PackingLayout(*record["layout"]), "rates": rates})
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        rates = {str(count): rate for count, rate in self.rates.items()}
        return {**asdict(self), "layout": list(self.layout), "rates": rates}

    @property
    def fits(self) -> bool:
        """True if all trials fit into the memory that is free now: another process may have taken some since."""
        room = device_free() if self.kind == "gpu" else memory.available()
        return self.layout.trials == 1 or self.layout.trials * self.peak <= room

    def execution(self, asked: Execution) -> Execution:
        """Return the execution of a trial: as asked for, and as measured in what was left open."""
        chosen: dict[str, Any] = {"threads": asked.threads or self.threads}
        if asked.way in ("auto", self.way):
            chosen |= {"way": self.way, "chunk": asked.chunk or self.chunk, "workers": asked.workers or self.workers}
        return asked.model_copy(update=chosen)

    def __str__(self) -> str:
        n, each = self.layout.trials, f"{self.layout.gpus:g}"
        if self.kind == "cpu":
            each = count(self.threads, "thread")
        where = " on a GPU" if self.kind == "gpu" else ""
        others = ", ".join(f"{k}: {f'{r:,.0f}' if r else 'out of memory'}" for k, r in self.rates.items() if k != n)
        return (
            f"{count(n, 'trial')} at once{where}, {each} each: {self.rates[n]:,.0f} samples/s"
            f"{' together' * (n > 1)}{f' ({others})' if others else ''}"
        )


# -- what to try, and what to take: pure ----------------------------------------------------------------------------


def cpu_layouts(cores: int, most: int) -> list[PackingLayout]:
    """From one trial with all cores to one a core, each time about twice as many; never more than `most` at once."""
    counts = {max(1, min(cores // 2**i, most)) for i in range(cores.bit_length())}
    return [PackingLayout(n, cores // n) for n in sorted(counts)]


def gpu_layouts(cores: float, most: int, cpus: float | None = None) -> list[PackingLayout]:
    """1, 2, 4 and 8 trials on one GPU, never more than `most`, nor more than the cores allow.

    Args:
        cores: CPU cores for the trials of one GPU. cpus: of each trial; none: as many whole cores as there are for
            each, or a part of one where there are not enough.
    """
    at_most = min(most, math.floor(cores / cpus)) if cpus else most
    counts = [n for n in ON_A_GPU if n <= max(at_most, 1)]
    return [PackingLayout(n, cpus or cores // n or cores / n, 1 / n) for n in counts]


def best(tried: Sequence[PackingRate], room: int) -> PackingRate | None:
    """The layout that gets the most done; of those that are about as good, the one with the fewest trials at once.

    Args:
        room: bytes for all trials together. One trial that ran fits, whatever its figure says.
    Returns:
        None: nothing fits.
    """
    fitting = [t for t in tried if t.rate > 0 and (t.layout.trials == 1 or t.layout.trials * t.peak <= room)]
    if not fitting:
        return None
    most = max(t.rate for t in fitting)
    return min((t for t in fitting if t.rate >= NEARLY_BEST * most), key=lambda t: t.layout.trials)


def hopeless(tried: Sequence[PackingRate]) -> bool:
    """True if still more trials at once are not worth trying: memory is at its end, or two steps have lost speed."""
    if tried and tried[-1].rate == 0:
        return True
    rates = [t.rate for t in tried]
    losses = [rate < LOSS * max(rates[: i + 1]) for i, rate in enumerate(rates)]
    return losses[-2:] == [True, True]


# -- measuring --------------------------------------------------------------------------------------------------------


def measure(
    experiment: Experiment,
    execution: Execution,
    layouts: Sequence[PackingLayout],
    *,
    data_dir: str | None = None,
    stages: Collection[str] | None = None,
) -> Packing:
    """Try layouts with real processes, smallest first, and take the best; see `probe`.

    Args:
        experiment: as trials run it. execution: of trials, without their threads.
        layouts: ordered by `trials`; all on CPUs, or all on one GPU.
        data_dir, stages: as trials have them.
    Raises:
        ProbeOutOfMemory: not even one trial fits. PflOpsError: the experiment does not run.
    """
    kind: Kind = "gpu" if layouts[0].gpus else "cpu"
    room = memory.available()
    layouts = [lay for lay in layouts if lay.trials * A_PROCESS <= room] or layouts[:1]
    device = execution.device if kind == "gpu" else "cpu"
    tried: list[PackingRate] = []
    settled: dict[int, Execution] = {}
    with Probe(experiment, layouts[-1].trials, data_dir=data_dir, stages=stages) as probe:
        for layout in layouts:
            if hopeless(tried):
                break
            threads = execution.threads or layout.threads
            asked = execution.model_copy(update={"device": device, "threads": threads})
            needs = layout.trials * tried[-1].peak if tried else 0
            try:
                if kind == "cpu" and needs > room:
                    raise ProbeOutOfMemory(f"{count(layout.trials, 'trial')} need {needs / 2**30:.1f} GiB")
                timed = threads if kind == "cpu" else 0  # a GPU's stacks are the same whatever the host has
                if timed not in settled:
                    settled[timed] = probe.resolve(asked, layout.gpus)
                resolved = settled[timed].model_copy(update={"threads": threads})
                speed = probe.speed(layout.trials, resolved, layout.gpus)
            except ProbeOutOfMemory as error:
                if not tried:
                    raise _not_even_one(kind, error) from None
                tried.append(PackingRate(layout, 0.0, 0, asked))
            else:
                peak = speed.peak + (RAY_ITSELF if kind == "cpu" else 0)
                tried.append(PackingRate(layout, speed.rate, peak, resolved))
                room = room if speed.room is None else speed.room
    chosen = best(tried, room)
    assert chosen is not None  # the first one ran
    how, rates = chosen.execution, {t.layout.trials: t.rate for t in tried}
    threads = how.threads or chosen.layout.threads
    way: Any = how.way
    return Packing(kind, machine(kind), chosen.layout, way, how.chunk, how.workers, threads, rates, chosen.peak)


def _not_even_one(kind: Kind, error: ProbeOutOfMemory) -> ProbeOutOfMemory:
    place, hint = ("the GPU", ", or --device cpu") if kind == "gpu" else ("this machine's memory", "")
    return ProbeOutOfMemory(
        f"not even one trial fits into {place} ({error}); use a smaller --batch-size, --chunk, --model{hint}"
    )


def machine(kind: Kind) -> str:
    """Describe the machine that a measurement holds for: the cores, or the GPU and how many there are."""
    if kind == "cpu":
        return count(cores.usable(), "core")
    device = torch.cuda.get_device_properties(0)
    return f"{torch.cuda.device_count()} x {device.name}, {device.total_memory / 2**30:.0f} GiB"


def cached(key: Mapping[str, object], now: Callable[[], Packing]) -> Packing:
    """The packing for `key` on this machine: from the user's cache folder if it fits still, or measured now.

    What is measured while others keep the machine busy is not kept.
    """
    computer = {"processor": platform.processor() or platform.machine(), "host": platform.node()}
    text = json.dumps({**key, **computer, "torch": torch.__version__}, sort_keys=True, default=str)
    found = Packing.recorded(remembered("packing", text))
    if found and found.fits:
        return found
    disturbed = cores.busy()
    packing = now()
    if not disturbed:
        remember("packing", text, packing.as_dict())
    return packing


SPEED = (
    *("data.", "partition.kind", "partition.clients", "model.", "algorithm.name", "participation.share"),
    *("training.local_", "training.batch_size", "training.optimiser", "training.precision", "training.loss"),
    *("evaluation.every", "evaluation.global_every", "evaluation.subset", "evaluation.clients"),
)
"""Beginnings of the paths that decide how fast a trial is, and what memory it takes."""


def key(experiment: Experiment, execution: Execution, layouts: Sequence[PackingLayout]) -> dict[str, object]:
    """Return the settings on which a measurement depends, beside the machine."""
    flat = {path: value for path, value in experiment.flat.items() if path.startswith(SPEED)}
    kind: Kind = "gpu" if layouts[0].gpus else "cpu"
    asked = execution.model_dump(exclude={"checkpoint_every", "diverged"})
    return {**flat, "execution": asked, "layouts": [list(lay) for lay in layouts], "machine": machine(kind)}
