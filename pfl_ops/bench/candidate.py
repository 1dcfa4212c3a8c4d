"""The timed entries: a way of doing a round's work, with a name."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pfl_ops.bench.settings import Figure
from pfl_ops.errors import count
from pfl_ops.federation.settings import Kernels, Precision

Way: TypeAlias = Literal["plain", "loop", "vmap", "jax", "jax-vmap"]
WORDS: dict[Way, str] = {
    "plain": "plain loop",
    "loop": "loop",
    "vmap": "stacked",
    "jax": "JAX scan",
    "jax-vmap": "JAX scan, vmapped",
}


@dataclass(frozen=True)
class Label:
    """The name of a candidate.

    Attributes:
        way: "plain" and the JAX scans are peers; "loop" and "vmap" (stacked) are ours.
        chunk: clients stacked at once, 1 for those that take them one by one. workers: processes that share the work.
        threads: of its process; None: those that the settings ask for, else its own default.
        kernels: of ours, PyTorch's or compiled ones.
    """

    way: Way
    precision: Precision = "float32"
    chunk: int = 1
    workers: int = 1
    threads: int | None = None
    kernels: Kernels = "torch"

    def __str__(self) -> str:
        text = WORDS[self.way] + (f" {self.chunk}" if self.way == "vmap" else "")
        text += ", compiled" if self.kernels == "compiled" else ""
        text += f", {count(self.threads, 'thread')}" if self.threads else ""
        return f"{text}, {self.workers} workers" if self.workers > 1 else text

    @property
    def key(self) -> str:
        """For names of metrics: "vmap-20-workers-2/float32"."""
        parts = [self.way, *([str(self.chunk)] if self.way == "vmap" else [])]
        parts += ["compiled"] if self.kernels == "compiled" else []
        parts += ["threads", str(self.threads)] if self.threads else []
        return "-".join([*parts, *(["workers", str(self.workers)] if self.workers > 1 else [])]) + f"/{self.precision}"


class BenchCandidate:
    """A way of doing a round's work, in a process that does nothing else.

    Attributes:
        label: which. figures: what it has a part in. threads: with which it computes, its workers together.
    """

    figures: tuple[Figure, ...] = ("train", "evaluate", "round")

    def __init__(self, label: Label, threads: int) -> None:
        self.label, self.threads = label, threads

    def train(self) -> object:
        """A cohort's local training: each client from the same parameters, J batches of B."""
        raise NotImplementedError

    def evaluate(self) -> object:
        """M local models on the pooled test images, and each on its own client's."""
        raise NotImplementedError

    def round(self) -> object:
        """A round of FedAvg: training, the average, every trained model on its own client's held-out samples, and the
        average on the data of all clients."""
        raise NotImplementedError

    def probe(self, figure: Figure) -> float:
        """Do a part of a figure's work that tells its speed, and say which share of the whole that was."""
        getattr(self, figure)()
        return 1.0

    def close(self) -> None:
        """End what runs beside this process."""
