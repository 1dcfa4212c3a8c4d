"""A finished run: its curves, its scores, its models, the round in which it reached a target, its cost."""

import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from pfl_ops import metric_keys, metrics, tag_names
from pfl_ops.config.arguments import ArgumentError
from pfl_ops.config.experiment import Experiment
from pfl_ops.energy import Effort
from pfl_ops.energy import energy_table as energy_table  # its former address, which notebooks may have
from pfl_ops.errors import PflOpsError, count, echo, unknown
from pfl_ops.federation.settings import ALL_UP_TO
from pfl_ops.metrics import Split
from pfl_ops.units import check_target

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from torch import Tensor


DIGEST = re.compile(r"[0-9a-f]{8,}")
HELD_OUT_RULE = "engine.rule for test data"
BEHIND_NAMES = {
    "data.content": ("data.name", "data"),
    "model.weights' content": ("model.weights", "weights"),
    "model.network's code": ("model.name", "model"),
    "training.loss's code": ("training.loss", "loss"),
    "algorithm.code": ("algorithm.name", "algorithm"),
    "engine.results version": ("", "version"),
    "engine.rules of sampling": ("", "sampling"),
    HELD_OUT_RULE: ("", "held_out"),
}
"""Paths of `Result.settings` -> the setting that names it, and the part of these tags. The code of a partition shows in
who holds which samples."""

At: TypeAlias = Literal["final", "best"]
Kind: TypeAlias = Literal["run", "trial", "final"]


class RunSource(Protocol):
    """The place that the larger parts of a finished run are read from when they are asked for, see `Result`."""

    @property
    def experiment(self) -> Experiment: ...
    @property
    def rounds(self) -> "pd.DataFrame": ...
    @property
    def clients(self) -> "pd.DataFrame": ...
    @property
    def folder(self) -> Path: ...
    @property
    def data_dir(self) -> str | None: ...
    def global_model(self) -> "dict[str, Tensor] | None": ...
    def model(self, client: int) -> "dict[str, Tensor]": ...


def _no_rounds() -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame()


def _client_number(given: Any) -> int:
    """Return the number of a client as an int.

    Raises:
        ArgumentError: it is no whole number, as the name of a client, or a list.
    """
    try:
        return operator.index(given)
    except TypeError:
        shown = f"'{echo(given)}'" if isinstance(given, str) else f"a {type(given).__name__}"
        raise ArgumentError(
            f"model() takes the number of one client, got {shown}; clients are numbered from 0 (result.clients), those "
            "with names in sorted order"
        ) from None


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run: computed here, or read from its checkpoint, from MLflow or from a file of results.

    Attributes:
        params: each setting by its path, as text.
        metrics: the last value of each tracked key, `final/…`, `best/…` and `reached/…` among them.
        tags: of its run: hashes, versions, machine.
        history: the rounds in memory: of a run in MLflow the keys that were read ahead.
        source: of all that is read when it is asked for; None: of a row of a file of results, which has no more.
        run_id, experiment_id: MLflow's; None while the tracking server was never reached, and where a courier tracks
            the run. name: of the tracked run. place: the name of its MLflow experiment. parent: id of the run above it.
        study: it belongs to, or None. kind: "trial" of a study, or its configuration with a new seed; "final": the
            test of a study's choice; or "run". trial: "trial-003" of a study's trial; "": it is none.
        state: "finished"; of a run without an end "running", "killed" or "failed".
        stages: names that a suite gives to stages -> the tracked ones, where they differ; see `suite.Level`.
        measures: the suite's measures by key, in the paper's units, where it was read from a file of results.
        complaints: as for `Simulation`.
        hints: a line where another precision would have been much faster.
        origin: a line where the run was read and not computed, or where the same settings were run before with other
            code; "": neither.
        page: where MLflow's page shows it beside its like, behind the server's address; None: it was never reached.
    """

    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str] = field(default_factory=dict)
    history: "pd.DataFrame" = field(default_factory=_no_rounds, repr=False)
    source: RunSource | None = field(default=None, repr=False)
    run_id: str | None = None
    name: str = ""
    place: str = ""
    experiment_id: str | None = None
    parent: str | None = None
    study: str | None = None
    kind: Kind = "run"
    trial: str = ""
    state: str = "finished"
    stages: Mapping[str, str] = field(default_factory=dict)
    measures: Mapping[str, float] | None = None
    complaints: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    page: str | None = None
    origin: str = ""

    @classmethod
    def of_numbers(cls, seed: int, metrics: Mapping[str, float], **about: Any) -> "Result":
        """Return a run of which only numbers are known.

        >>> Result.of_numbers(3, {}, measures={"test/L1/acc": 181.5}).value("test/L1/acc", unit=100.0)
        181.5
        """
        return cls({"seed": str(seed)}, metrics, **about)

    def __repr__(self) -> str:
        views = {"Acc(L)": "local", "Acc(G)": "global"}
        found = {name: self.final.get(f"final/{self.split}/{self.stage}/{view}/mean") for name, view in views.items()}
        scores = ", ".join(f"{name} {100 * value:.1f} %" for name, value in found.items() if value is not None)
        said = f", {self.stage} {scores}" if scores else ""
        return f"Result({self._title}, {self._length}{said})"

    def _repr_html_(self) -> str:
        from pfl_ops.display import cards, tables

        return cards.card(
            lambda: cards.heading(self._title, self._length),
            lambda: cards.table(tables.scores([self], self.split)),
            lambda: cards.note(*tables.score_notes([self], self.split), *self.complaints, self.origin),
            lambda: cards.picture(self.plot, f"Accuracy over rounds of {self._title}"),
        )

    # -- its parts ---------------------------------------------------------------------------------------------------

    @property
    def _parts(self) -> RunSource:
        if self.source is None:
            raise PflOpsError("this run is a row of a file of results, which has its measures alone; run it again")
        return self.source

    @property
    def experiment(self) -> Experiment:
        """The experiment that was run."""
        return self._parts.experiment

    @property
    def rounds(self) -> "pd.DataFrame":
        """One row a round, a column a tracked key; NaN where a round has no value."""
        return self._parts.rounds

    @property
    def clients(self) -> "pd.DataFrame":
        """One row a client and stage, of the full last evaluation."""
        return self._parts.clients

    @property
    def folder(self) -> Path:
        """Its checkpoints."""
        return self._parts.folder

    @cached_property
    def final(self) -> dict[str, float]:
        """The `final/…`, `best/…` and `reached/…` keys of `metrics`."""
        return {key: value for key, value in self.metrics.items() if key.startswith(metric_keys.FINAL_PREFIXES)}

    def global_model(self) -> "dict[str, Tensor] | None":
        """G of the last round by parameter name; None where the method has none."""
        return self._parts.global_model()

    def model(self, client: int) -> "dict[str, Tensor]":
        """The model of a client after the last round (L1), by name: parameters, and what else it answers with.

        Raises:
            ArgumentError: it is no whole number.
            PflOpsError: no such client, or it has no model.
        """
        return self._parts.model(_client_number(client))

    # -- its settings ------------------------------------------------------------------------------------------------

    @cached_property
    def settings(self) -> dict[str, str]:
        """`params`, and by further paths what names in them stand for, as far as it was recorded.

        These are the content of files, code and the results version: {"data.name": "mine.csv", "data.content":
        "#1f2e3d"}.
        """
        parts = f"{self.tags.get(tag_names.CODE, '')} {self.tags.get(tag_names.CONTENT, '')}".split()
        known = dict(part.partition("=")[::2] for part in parts)
        further = {path: known[part] for path, (_, part) in BEHIND_NAMES.items() if part in known}
        if self.tags.get(tag_names.CODE):
            further.setdefault(HELD_OUT_RULE, "none")  # before there was one; or the test data are clients' own
        shown = {path: f"#{text[:6]}" if DIGEST.fullmatch(text) else text for path, text in further.items()}
        return {**self.params, **shown}

    @property
    def data_dir(self) -> str | None:
        """The folder of the data, if it was named for a run on disk."""
        return self.source.data_dir if self.source else None

    @property
    def hash(self) -> str:
        """The experiment's hash, in hexadecimal; its first digits name the run in commands."""
        return self.tags.get(tag_names.EXPERIMENT_HASH) or self.folder.name

    @property
    def group(self) -> str:
        """The hash without the seed: the same for all repetitions."""
        return self.tags[tag_names.GROUP_HASH]

    @property
    def seed(self) -> int:
        """The seed of this repetition."""
        return int(self.params.get("seed", "0"))

    @property
    def method(self) -> str:
        """The algorithm's name."""
        return self.params["algorithm.name"]

    @property
    def length(self) -> int:
        """T, the number of rounds that were to be run."""
        return int(self.params["training.rounds"])

    @property
    def split(self) -> Split:
        """The data that it was scored on."""
        return "val" if self.params.get("evaluation.split") == "validation" else "test"

    @cached_property
    def stage(self) -> str:
        """The stage where its method is judged (`Algorithm.own_stage`); if that was not scored, the first that was."""
        keys = [f"/{key}" for key in self.metrics]
        there = [stage for stage in metrics.STAGES if any(f"/{self.split}/{stage}/" in key for key in keys)]
        own = self.tags.get(tag_names.OWN_STAGE, "L1")
        return own if own in there or not there else there[0]

    @property
    def partition(self) -> str | None:
        """Hash of who holds which samples; None: it was not recorded (a trial)."""
        return self.tags.get(tag_names.PARTITION_HASH)

    @property
    def n_clients(self) -> int | None:
        """N, the number of clients of the federation; None: it was not recorded."""
        found = self.tags.get(tag_names.CLIENTS)
        return int(found) if found else None

    @property
    def drawn_clients(self) -> str:
        """The clients that are scored, "200 of 300 clients"; "": all are, or that is not known."""
        text = self.settings.get("evaluation.clients", "None")
        scored = int(text) if text.isdigit() else ALL_UP_TO
        n = self.n_clients
        return f"{scored:,} of {n:,} clients" if n is not None and scored < n else ""

    @property
    def common(self) -> str:
        """The common space that it was chosen from, and the number of trials; "": none, see `spaces.share`."""
        return self.tags.get(tag_names.COMMON, "")

    @property
    def chosen(self) -> frozenset[str]:
        """Paths of the settings in that space."""
        return frozenset(self.common.partition(": ")[2].split())

    @property
    def final_samples(self) -> int | None:
        """Pooled samples behind the global view of the last round; None: all."""
        found = self.metrics.get(metrics.key(self.split, self.stage, "global", metrics.SAMPLES, prefix="final/"))
        return None if found is None else int(found)

    @property
    def _title(self) -> str:
        dataset = Path(self.params["data.name"]).stem
        return f"{self.method}-{dataset}-{self.params['partition.kind']} seed {self.seed}"

    @property
    def _length(self) -> str:
        return count(self.length, "round")

    # -- its numbers -------------------------------------------------------------------------------------------------

    def key(self, metric: str) -> str:
        """Return the tracked key that a short one means.

        "acc" is "test/L1/acc", "G/local/mean" is "test/G/local/mean", and with `stages` {"P": "L2"} "test/P/acc" is
        "test/L2/acc".
        """
        first = metric.partition("/")[0]
        if first in metrics.STAGES:
            return f"{self.split}/{metric}"
        if first in ("acc", "local", "global"):
            return f"{self.split}/{self.stage}/{metric}"
        return metric_keys.tracked_as(metric, self.stages)

    def value(self, key: str, at: At = "final", unit: float = 1.0) -> float | None:
        """Return a number: last or best; "…@90": first round with 90 or more; "…#20": round 20; "…#best": highest.

        The highest value is that of a trained model, as `best/…` is: round 0 does not count.

        Args:
            key: a tracked key, or a short one. at: "final", of the last round and its full evaluation, or "best".
            unit: tracked values are multiplied by it; targets are in it.
        Returns:
            None: not tracked; for a round that was never reached, infinity.
        """
        if self.measures is not None:
            found: float | None = self.measures.get(key)
            return None if found is None or math.isnan(found) else found
        name, mark, number = metric_keys.split_mark(key)
        if mark == metric_keys.TARGET_MARK:
            curve = self.by_round(name)
            if not curve:
                return None
            reached = metrics.rounds_to(curve, float(number) / unit)
            return math.inf if reached is None else float(reached)
        if mark == metric_keys.ROUND_MARK:
            curve = self.by_round(name)
            trained = [value for t, value in curve.items() if t > 0]
            found = max(trained, default=None) if number == metric_keys.HIGHEST else curve.get(int(number))
        else:
            name = self.key(key)
            found = self.metrics.get(f"{at}/{name}")
            if found is None and at == "final" and not (self._ends_scored and name.startswith(f"{self.split}/")):
                found = self.metrics.get(name)
        return None if found is None or math.isnan(found) else found * unit

    @cached_property
    def _ends_scored(self) -> bool:
        """True if it has a full evaluation after the last round. A score of the curves may be of other clients."""
        return any(key.startswith(f"final/{self.split}/") for key in self.metrics)

    def by_round(self, key: str) -> dict[int, float]:
        """Return {round: value} where it was evaluated and is in memory; "…/below_95" is counted from rho_95."""
        key = self.key(key)
        if parts := metric_keys.parts_of_below(key):
            scored, above = map(self.by_round, parts)
            return {t: scored[t] - above[t] for t in above if t in scored}
        if key not in self.history:
            return {}
        column: Any = self.history[key].dropna()
        return {int(t): float(v) for t, v in column.items()}

    def spent(self, *keys: str) -> float | None:
        """Return the sum of tracked costs over all rounds, `spent("cost/up_bytes")`; None: not tracked, or not read."""
        there = [found for key in keys if (found := self._sum(key)) is not None]
        return math.fsum(there) if there else None

    def _sum(self, key: str) -> float | None:
        """The sum of a cost over the rounds in memory; if these have none, the one that was tracked at the end."""
        values = self.history[key].dropna() if key in self.history else ()
        return math.fsum(values) if len(values) else self.metrics.get(f"{metric_keys.TOTAL_PREFIX}{key}")

    @property
    def seconds(self) -> float:
        """Seconds of its training and evaluation; NaN: not tracked, or not read."""
        found = self.spent(*metric_keys.TIME_COSTS)
        return math.nan if found is None else found

    def curve(self, stage: str = "L1", view: str = "local", statistic: str = "mean") -> "pd.Series":
        """A tracked value by round, where it was evaluated: `curve("L2", "local", "worst")`, `curve("L1", "acc")`.

        Raises:
            PflOpsError: no such key was tracked; the nearest one is named.
        """
        rest = (view,) if view == "acc" else (view, statistic)
        return self._column(metrics.key(self.split, stage, *rest))

    def plot(self, title: str | None = None) -> "Figure":
        """Draw accuracy over rounds by stage, as in the tracked run's figure "accuracy".

        A line goes through rounds in which its view was not scored; in `rounds` these are NaN.

        Args:
            title: above the picture.
        Raises:
            PflOpsError: the run has no accuracies.

        >>> list(result.rounds["test/L1/global/mean"])
        [0.1, nan, 0.5]
        >>> figure = result.plot("digits")
        >>> [line.get_xdata().tolist() for line in figure.axes[1].lines]
        [[0, 2]]
        """
        from pfl_ops import figures

        rows = self.rounds.to_dict("index").items()
        return figures.curves([(int(str(t)), {str(key): row[key] for key in row}) for t, row in rows], title)

    def rounds_to(self, target: float, stage: str = "L1", view: str = "local", statistic: str = "mean") -> int | None:
        """The first round in which that value is the target or more; None: never (FLIU, Fig. 7; DRDM).

        Args:
            target: an accuracy as a fraction, 0.9 for 90 %.
        Raises:
            PflOpsError: as for `curve`; or no accuracy reaches the target.
        """
        curve = self.curve(stage, view, statistic)
        check_target(target, str(curve.name))
        return metrics.rounds_to(dict(zip(curve.index.tolist(), curve.tolist(), strict=True)), target)

    def clients_above(self, eps: float = 0.95, stage: str = "L1") -> "pd.Series":
        """ρ_ε by round: how many clients' own accuracy lies above ε, one of the experiment's `evaluation.eps`.

        Raises:
            PflOpsError: this ε was not tracked, or no client has this stage.
        """
        return self.curve(stage, "local", metrics.rho_name(eps))

    def clients_below(self, eps: float = 0.95, stage: str = "L1") -> "pd.Series":
        """By round, how many of the scored clients do not lie above ε (FLIU, Fig. 8).

        Raises:
            PflOpsError: as for `clients_above`.
        """
        return self.curve(stage, "local", "clients") - self.clients_above(eps, stage)

    def effort(self, target: float = 0.8, stage: str = "L1", view: str = "local", statistic: str = "worst") -> Effort:
        """Local steps τ, rounds R to the target, and the bits that a client really sent a round, for `energy_table`.

        Raises:
            PflOpsError: the run has local epochs instead of steps, or as for `curve`.
        """
        steps = self.experiment.training.local_steps
        if steps is None:
            raise PflOpsError("energy is counted by local steps (τ): run with training.local_steps, not local_epochs")
        sent, clients = self._column("cost/up_bytes"), self._column("cost/clients")
        return Effort(steps, self.rounds_to(target, stage, view, statistic), 8 * float(sent.sum() / clients.sum()))

    def _column(self, key: str) -> "pd.Series":
        if key not in self.rounds:
            raise unknown("tracked value", key, map(str, self.rounds))
        return self.rounds[key].dropna()
