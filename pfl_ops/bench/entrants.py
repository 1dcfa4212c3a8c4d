"""The candidates that take part: those of the settings, less those that a short trial shows to be far behind."""

from collections.abc import Iterator
from importlib.util import find_spec

from pfl_ops.bench.candidate import Label
from pfl_ops.bench.case import Case
from pfl_ops.bench.measure import Series, Timed
from pfl_ops.bench.process import Entrant
from pfl_ops.bench.settings import Figure
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.network.chain import Chain
from pfl_ops.federation.network.net import Net
from pfl_ops.federation.settings import Kernels, Precision
from pfl_ops.federation.training.kernels import built
from pfl_ops.system.machine import cores

HOPELESS = 0.5  # part of the best rate so far, below which a candidate is given up
JUDGED_BY: dict[Figure, Figure] = {"train": "train", "round": "train", "evaluate": "evaluate"}
"""Figure -> the one whose trial decides whether a candidate takes part in it."""


class CaseCandidates:
    """The candidates of one case.

    Args:
        case: what they work on. threads: of each; None: its own default.
        auto: what `auto` takes; it is always measured.
    Attributes:
        timed: figure -> those that are measured. rough: label -> figure -> the one value of those given up.
        labels: of all, in the order of appearance. threads: with which each computes.
        notes: lines on who could not take part.
    """

    def __init__(self, case: Case, threads: int | None, auto: Label | None = None) -> None:
        self.case, self._given, self._auto = case, threads, auto
        self.timed: dict[Figure, list[Timed]] = {figure: [] for figure in case.settings.measure}
        self.rough: dict[Label, dict[Figure, Series]] = {}
        self.labels: list[Label] = []
        self.notes: list[str] = []
        self.threads: dict[Label, int] = {}
        self._candidates: list[Entrant] = []
        self._best: dict[Figure, float] = {}
        self._amounts: dict[Figure, float] = {"train": case.samples, "evaluate": case.answers, "round": 1.0}

    def enter(self) -> None:
        """Make all candidates, and try them."""
        self._admit(Label("plain"), reference=True)
        for precision in self._precisions():
            self._ours(precision, "torch")
            if precision in ("float32", "float64") and self._compiled():
                self._ours(precision, "compiled")
        if self._auto is not None and self._auto not in self.labels:
            self._admit(self._auto)
        if "train" not in self.timed:
            return
        if find_spec("jax") is None:
            self.notes.append("no JAX scan in float32: JAX is not installed (the extra `peers`)")
        elif self._admit(Label("jax")) is not None:
            self._admit(Label("jax-vmap"))

    def everything(self) -> Iterator[Timed]:
        """All that is measured, figure by figure, candidates in turns."""
        for group in self.timed.values():
            yield from group

    def memory_mib(self) -> dict[Label, float | None]:
        """Peak memory of those that are measured."""
        return {candidate.label: candidate.memory_mib() for candidate in self._candidates}

    def series(self, label: Label) -> dict[Figure, Series]:
        """The measurements of a candidate, by figure."""
        found = dict(self.rough.get(label, {}))
        for figure, group in self.timed.items():
            for timed in group:
                if timed.candidate.label == label and timed.values:
                    found[figure] = Series(tuple(timed.values))
        return found

    def close(self) -> None:
        """End the candidates' processes."""
        for candidate in self._candidates:
            candidate.close()

    def _precisions(self) -> tuple[Precision, ...]:
        if self.case.settings.precision is not None:
            return self.case.settings.precision
        return ("float32", "bfloat16", "tf32") if self.case.device.type == "cuda" else ("float32", "bfloat16")

    def _workers(self) -> tuple[int, ...]:
        """More than one; a GPU's cohort is not shared out."""
        asked = self.case.settings.workers
        given = (1, cores()) if asked is None else asked
        return tuple(w for w in dict.fromkeys(given) if w > 1) if self.case.device.type == "cpu" else ()

    def _compiled(self) -> bool:
        """True if there are compiled kernels that cover this case."""
        return self.case.device.type == "cpu" and built() and Chain.of(Net(self.case.network)) is not None

    def _ours(self, precision: Precision, kernels: Kernels) -> None:
        """One at a time, stacks as long as they are worth it, and both in several processes."""
        reference = precision == "float32" and kernels == "torch"
        loop = Label("loop", precision, kernels=kernels)
        rates = {1: self._admit(loop, reference=reference)}
        tried = [rates[1] or self._rough_rate(loop)]
        for chunk in sorted({min(chunk, self.case.settings.clients) for chunk in self.case.settings.chunk}):
            label = Label("vmap", precision, chunk, kernels=kernels)
            rates[chunk] = self._admit(label)
            tried.append(rates[chunk] or self._rough_rate(label))
            if not rates[chunk] and tried[-1] <= tried[-2]:  # larger ones would be as far behind
                break
        stacks = {chunk: rate for chunk, rate in rates.items() if chunk > 1 and rate}
        for workers in self._workers():
            if rates[1]:
                self._admit(Label("loop", precision, workers=workers, kernels=kernels))
            if stacks:
                best = max(stacks, key=lambda chunk: stacks[chunk])
                self._admit(Label("vmap", precision, best, workers, kernels=kernels))

    def _rough_rate(self, label: Label) -> float:
        """The rate of one that was given up, in the first of its figures; 0: it has none."""
        return next((series.median for series in self.rough.get(label, {}).values()), 0.0)

    def _admit(self, label: Label, reference: bool = False) -> float | None:
        """Let a candidate take part in the figures where it is not far behind; a reference always does.

        Returns:
            Its rate in the first of its figures, by the trial; 0: it takes part in none; None: it can't be made.
        """
        try:
            candidate = Entrant(self.case, label, self._given)
        except PflOpsError as error:
            self.notes.append(f"no {label} in {label.precision}: {error}")
            return None
        self.labels.append(label)
        self.threads[label] = candidate.count
        self._candidates.append(candidate)
        tried: dict[Figure, float] = {}
        admitted = False
        for figure in (f for f in self.timed if f in candidate.figures):
            by = JUDGED_BY[figure]
            if by not in tried:
                tried[by] = self._amounts[by] * candidate.trial(by)
            best = self._best.get(by, 0.0)
            if reference or label == self._auto or tried[by] >= HOPELESS * best:
                self._best[by] = max(best, tried[by])
                self.timed[figure].append(Timed(candidate, figure, self._amounts[figure]))
                admitted = True
            elif figure == by:
                self.rough.setdefault(label, {})[figure] = Series((tried[by],), given_up=True)
        if not admitted:
            self._candidates.remove(candidate)
            candidate.close()
            return 0.0
        return next(iter(tried.values()))
