"""Finished runs in MLflow as `Result`s: settings and numbers at once, the rest when it is asked for."""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from pfl_ops import tag_names
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.metric_keys import FINAL_PREFIXES, SUMMED_COSTS, TOTAL_PREFIX
from pfl_ops.results import Kind, Result
from pfl_ops.system.scratch import scratch
from pfl_ops.tracking.runs.store import Store
from pfl_ops.tracking.target.run_info import RunInfo

if TYPE_CHECKING:
    from torch import Tensor

CHOICE_DIGITS = 12
CLIENTS = "clients.parquet"
CLIENT_COLUMNS = ("client", "stage", "local")
EARLIER_PARAMS = {"data.scaling": "standard"}
"""Settings that runs of earlier versions do not have, with the values that these runs had."""
OF_THE_END = (*FINAL_PREFIXES, TOTAL_PREFIX, "score/", "pfl_ops/")
"""Beginnings of the metrics that a run gets once, when it is over; all others belong to rounds."""


@dataclass(frozen=True)
class TrackedRun:
    """A run in MLflow, as the source of a `Result`.

    Attributes:
        info: the run. store: that has it; once it is closed, it is opened again for what is read then.
    """

    info: RunInfo
    store: Store = field(repr=False)

    @cached_property
    def experiment(self) -> Experiment:
        """Its file config.yaml; of a trial, which has none, its parameters.

        Raises:
            PflOpsError: this version does not know a setting or a plug-in that it was run with.
        """
        with self._open() as store, scratch() as folder:
            try:
                return Experiment.from_yaml(store.download(self.info, "config.yaml", folder))
            except PflOpsError:
                return experiment_of(self.info.params)

    @cached_property
    def rounds(self) -> pd.DataFrame:
        with self._open() as store:
            keys = [key for key in self.info.metrics if not key.startswith(OF_THE_END)]
            return store.history(self.info.run_id, keys)

    @cached_property
    def clients(self) -> pd.DataFrame:
        """Its table of clients; empty: it keeps none (a trial).

        Raises:
            PflOpsError: its artifact is missing, damaged, or has other columns; the message names run and artifact.
        """
        if self._is_trial:
            return pd.DataFrame(columns=list(CLIENT_COLUMNS))
        try:
            with self._open() as store, scratch() as folder:
                table = pd.read_parquet(store.download(self.info, CLIENTS, folder))
            lost = [name for name in CLIENT_COLUMNS if name not in table]
            if lost:
                raise ValueError(f"it has no column {', '.join(lost)}")
            if not pd.api.types.is_numeric_dtype(table["local"]):
                raise ValueError(f"its column local holds {table['local'].dtype}, not numbers")
        except Exception as error:  # pyarrow raises errors of a dozen kinds for damaged input, beside the store's own
            raise PflOpsError(f"run '{self.info.name}': {CLIENTS} can't be read ({in_a_line(error, 200)})") from error
        return table

    @property
    def folder(self) -> Path:
        return self.store.home.checkpoints / self.info.tags[tag_names.EXPERIMENT_HASH]

    @property
    def data_dir(self) -> None:
        """The path of another machine, perhaps, which is not recorded."""

    def global_model(self) -> "dict[str, Tensor] | None":
        return next((model for file, model in self._models() if file == "global.safetensors"), None)

    def model(self, client: int) -> "dict[str, Tensor]":
        """The client's own model; where there are none, the global model, which all share."""
        n = self.info.tags.get(tag_names.CLIENTS, "")
        if n.isdigit() and not 0 <= client < int(n):
            raise PflOpsError(f"there is no client {client}; clients are 0 to {int(n) - 1}")
        start, shared = f"client-{client:03d}/", None
        personal = False
        for file, model in self._models():
            if file == "global.safetensors":
                shared = model
                continue
            personal = True
            if own := {key.removeprefix(start): value for key, value in model.items() if key.startswith(start)}:
                return own
        if personal or client < 0:
            why = "it never took part, or there is no such client"
            raise PflOpsError(f"run '{self.info.name}': MLflow has no model of client {client}; {why}")
        if shared is None:
            raise PflOpsError(f"run '{self.info.name}' has no models in MLflow")
        if self.info.tags.get(tag_names.OWN_STAGE) == "G":
            method = self.info.params.get("algorithm.name", "the method")
            raise PflOpsError(f"{method} keeps no models of clients; take global_model()")
        return shared

    def _models(self) -> "Iterator[tuple[str, dict[str, Tensor]]]":
        """The files of its models by name."""
        from safetensors.torch import load_file

        with self._open() as store, scratch() as folder:
            for path in sorted(store.download(self.info, "models", folder).glob("*.safetensors")):
                yield path.name, load_file(path)

    @property
    def _is_trial(self) -> bool:
        return bool(trial_label(self.info)) or is_confirmation(self.info)

    @contextmanager
    def _open(self) -> Iterator[Store]:
        """The store; a new one on the same target if it was closed meanwhile."""
        if self.store.is_open:
            yield self.store
        else:
            with Store(self.store.home, self.store.target) as store:
                yield store


def result_of(run: RunInfo, store: Store, study: str | None = None) -> Result:
    """Return a run of the store as a `Result`; `study`: of its parent."""
    label = trial_label(run)
    kind: Kind = "trial" if label or is_confirmation(run) else "final" if study else "run"
    return Result(
        {**EARLIER_PARAMS, **run.params},
        run.metrics,
        run.tags,
        source=TrackedRun(run, store),
        run_id=run.run_id,
        name=run.name,
        place=run.experiment,
        experiment_id=run.experiment_id,
        parent=run.parent,
        study=run.tags.get(tag_names.STUDY) or study,
        kind=kind,
        trial=label,
        state=run.status.lower(),
    )


def read_ahead(store: Store, run: Result, metrics: Collection[str]) -> Result:
    """Return a tracked run with the rounds of these metrics in memory, and of costs whose sums it does not have.

    Short keys (`Result.key`) are its own. Read for what is compared and no more: a server is asked once for each key.
    """
    costs = {key for key in SUMMED_COSTS if f"{TOTAL_PREFIX}{key}" not in run.metrics}
    wanted = {*map(run.key, metrics), *costs}
    return replace(run, history=store.history(str(run.run_id), wanted)) if wanted else run


def trial_label(run: RunInfo) -> str:
    """Return "trial-003" for a study's trial of that number, whatever its run is named; "": it is no trial."""
    found = re.search(r":(trial-\d+)$", run.identity or "")
    return found[1] if found else ""


def choice_tag(groups: Iterable[str]) -> str:
    """Return the value of the tag `tag_names.CHOICE`.

    >>> choice_tag(["0123456789abcdef", "0123456789abcdef"])
    '0123456789ab'
    """
    return " ".join(dict.fromkeys(group[:CHOICE_DIGITS] for group in groups))


def is_of_former_choice(run: RunInfo, study: RunInfo | None) -> bool:
    """True of a test run of a study that has chosen another configuration since; `study`: the run above it."""
    chosen = study.tags.get(tag_names.CHOICE, "").split() if study else []
    group = run.tags.get(tag_names.GROUP_HASH, "")[:CHOICE_DIGITS]
    return is_test(run) and bool(chosen) and group not in chosen


def is_test(run: RunInfo) -> bool:
    """True for a test run of a study."""
    return run.tags.get(tag_names.KIND) == "final"


def is_confirmation(run: RunInfo) -> bool:
    """True for a configuration that a study ran again with a new seed before its choice: compared only if named."""
    return run.tags.get(tag_names.KIND) == "confirmation"


def experiment_of(params: Mapping[str, str]) -> Experiment:
    """Return the experiment of these settings by path, of which MLflow has the text.

    Raises:
        PflOpsError: this version does not know one of them.
    """
    values: dict[str, Any] = dict(params)
    for path, text in params.items():
        with suppress(ValueError, SyntaxError):  # a word
            values[path] = ast.literal_eval(text)
    return Experiment.compose(flags=values)
