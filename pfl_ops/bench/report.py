"""Measurements as plain values: the same for the table, the JSON file and MLflow."""

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from pfl_ops.bench.candidate import Label, Way
from pfl_ops.bench.case import Case, Work
from pfl_ops.bench.measure import Series
from pfl_ops.bench.settings import BenchSettings, Figure
from pfl_ops.system.machine import cores, cpu_flags, cpu_model

UNITS: dict[Figure, str] = {"train": "samples/s", "evaluate": "samples/s", "round": "rounds/s"}


@dataclass
class BenchRow:
    """One candidate.

    Attributes:
        label: which. figures: what was measured of it; a figure in which it has no part is not there.
        memory_mib: peak of its process and workers, what they share once; on a GPU, of what PyTorch allocated there.
        chosen: whether `auto` would take it.
    """

    label: Label
    figures: dict[Figure, Series]
    memory_mib: float | None = None
    chosen: bool = False


@dataclass
class CaseReport:
    """All candidates for one network and batch size, the plain loop first.

    Attributes:
        model, dataset, batch, optimiser, clients, steps (J), parameters (P), work: of the case.
        rows: of the candidates. threads: with which each computes.
        peaks: (precision, threads) -> operations a second of a matrix product, one a repeat.
        auto: what `auto` would take. notes: lines on who could not take part.
    """

    model: str
    dataset: str
    batch: int
    optimiser: str
    clients: int
    steps: int
    parameters: int
    work: Work
    rows: list[BenchRow]
    peaks: dict[tuple[str, int], Series]
    threads: dict[Label, int]
    auto: Label | None = None
    notes: list[str] = field(default_factory=list)

    def ratio(self, row: BenchRow, figure: Figure) -> float | None:
        """Speed in multiples of the plain loop's."""
        plain = self.rows[0].figures.get(figure)
        mine = row.figures.get(figure)
        return None if plain is None or mine is None else mine.over(plain)

    def share(self, row: BenchRow, figure: Figure) -> float | None:
        """Share of the measured peak of a matrix product, in the candidate's precision and with its threads.

        The peak is the best of its repeats, and not below that with fewer threads: other load makes no candidate look
        better.
        """
        mine, threads = row.figures.get(figure), self.threads[row.label]
        if mine is None or (row.label.precision, threads) not in self.peaks or figure == "round":
            return None
        work = self.work.train if figure == "train" else self.work.forward
        peaks = (max(v.values) for (p, k), v in self.peaks.items() if p == row.label.precision and k <= threads)
        return mine.median * work / max(peaks)

    def beside_jax(self) -> tuple[BenchRow, BenchRow, float] | None:
        """Our fastest training in float32, the faster JAX scan, and how many times as fast ours is."""
        ours = [row for row in self._trained("loop", "vmap") if not row.figures["train"].given_up]
        theirs = [row for row in self._trained("jax", "jax-vmap") if not row.figures["train"].given_up]
        if not ours or not theirs:
            return None
        mine, peer = max(ours, key=_trains), max(theirs, key=_trains)
        return mine, peer, mine.figures["train"].over(peer.figures["train"])

    def beside_best(self) -> tuple[BenchRow, float, float] | None:
        """The training in float32 that is our fastest by the median, and how many times as fast as it what `auto` takes
        is: by the median of the ratios within a turn, and by the best turn of each."""
        ours = self._trained("loop", "vmap")
        auto = next((row.figures["train"] for row in ours if row.label == self.auto), None)
        if auto is None:
            return None
        best, fastest = max(ours, key=_trains), max(max(row.figures["train"].values) for row in ours)
        return best, auto.over(best.figures["train"]), max(auto.values) / fastest

    def _trained(self, *ways: Way) -> list[BenchRow]:
        """Rows of these ways whose training in float32 was measured."""
        rows = [row for row in self.rows if row.label.precision == "float32" and "train" in row.figures]
        return [row for row in rows if row.label.way in ways]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, every single measurement included."""
        beside, choice = self.beside_jax(), self.beside_best()
        named = ("model", "dataset", "batch", "optimiser", "clients", "steps", "parameters")
        return {
            **{name: getattr(self, name) for name in named},
            "flop_per_sample": self.work._asdict(),
            "flop_counted_by": "torch.utils.flop_counter: convolutions and matrix products",
            "rows": [self._row(row) for row in self.rows],
            "matmul_peak": [
                {"precision": precision, "threads": threads, "unit": "FLOP/s", **_plain(series)}
                for (precision, threads), series in self.peaks.items()
            ],
            "auto": str(self.auto) if self.auto else None,
            "auto_over_best": choice and {"best": str(choice[0].label), "ratio": choice[1], "by_best_turns": choice[2]},
            "over_jax": beside and {"ours": str(beside[0].label), "jax": str(beside[1].label), "ratio": beside[2]},
            "notes": self.notes,
        }

    def _row(self, row: BenchRow) -> dict[str, Any]:
        about = {"candidate": str(row.label), **asdict(row.label), "threads": self.threads[row.label]}
        figures: dict[str, Any] = {
            figure: {"unit": UNITS[figure], **_plain(series), **self._beside(row, figure)}
            for figure, series in row.figures.items()
        }
        return {**about, "chosen_by_auto": row.chosen, **figures, "peak_memory_mib": row.memory_mib}

    def _beside(self, row: BenchRow, figure: Figure) -> dict[str, float | None]:
        return {"over_plain": self.ratio(row, figure), "share_of_peak": self.share(row, figure)}

    def metrics(self) -> Iterator[tuple[str, float]]:
        """Names and values for MLflow: "cnn/b50/loop/float32/train/median", …"""
        for row in self.rows:
            at = f"{self.model}/b{self.batch}/{row.label.key}"
            for figure, series in row.figures.items():
                values = {**_extent(series), **self._beside(row, figure)}
                yield from ((f"{at}/{figure}/{name}", v) for name, v in values.items() if v is not None)
            if row.memory_mib is not None:
                yield f"{at}/peak_memory_mib", row.memory_mib


@dataclass
class Report:
    """A whole benchmark.

    Attributes:
        machine: what it ran on. settings: what was asked for. cases: one a network and batch size.
        skipped: a line for each case that could not be measured. seconds: how long it took.
    """

    machine: dict[str, Any]
    settings: BenchSettings
    cases: list[CaseReport] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "machine": self.machine,
            "settings": self.settings.model_dump(mode="json"),
            "cases": [case.to_dict() for case in self.cases],
            "skipped": self.skipped,
            "seconds": self.seconds,
        }


def machine(device: torch.device) -> dict[str, Any]:
    """Processor, device, libraries, and how busy the machine was before anything was measured."""
    return {
        "cpu": cpu_model(),
        "cpu_flags": cpu_flags(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_before": round(os.getloadavg()[0], 2),
    }


def case_report(case: Case, rows: list[BenchRow], **rest: Any) -> CaseReport:
    """Return a case's description, with its measurements."""
    return CaseReport(
        model=case.model,
        dataset=case.section.label,
        batch=case.batch,
        optimiser=case.settings.optimiser,
        clients=case.settings.clients,
        steps=case.steps,
        parameters=sum(p.numel() for p in case.network.parameters()),
        work=case.work,
        rows=rows,
        **rest,
    )


def _trains(row: BenchRow) -> float:
    """The median rate of its training."""
    return row.figures["train"].median


def _plain(series: Series) -> dict[str, Any]:
    return {"n": series.n, **_extent(series), "values": list(series.values), "given_up": series.given_up}


def _extent(series: Series) -> dict[str, float]:
    return {"median": series.median, "min": min(series.values), "max": max(series.values)}
