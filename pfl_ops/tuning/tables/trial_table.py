"""A table of trials in one Parquet file: configurations of methods, in environments, with seeds, on validation data.

A row is an evaluated round of a run on validation data: `method`, `configuration` (number), `settings` (JSON),
`environment`, `seed`, `round`, the scores (`val/L1/acc`, ...), `samples` and `sent_bytes` so far, `hash` of the run's
setting, and `error` if it has no result. The last row of each run also has `groups`, the scores of its groups of
clients (JSON, see `paired.by_group`), and the truth: the scores of the same configuration and seed on test data,
trained on training and validation data together, in the columns `truth/...`.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from pfl_ops import spaces
from pfl_ops.errors import LONGEST_PATH, PflOpsError, by_key, echo
from pfl_ops.files import replacing
from pfl_ops.metric_keys import summands
from pfl_ops.spaces import Point, Space
from pfl_ops.tuning.tables.table_check import GROUPS, RUN, TRUTH, checked

ABOUT = b"pfl_ops.trial_table"  # key of the Parquet file's metadata
VERSION, EARLIER = 2, 1  # a table of version 1 has no `groups`
ABOUT_METHOD = {"metric", "truth", "mode", "rounds", "full_every", "space", "space_source", "experiment"}
COLUMNS = (*RUN, "settings", "round", "samples", "sent_bytes", "hash", "error", TRUTH + "hash", TRUTH + "error")


@dataclass(frozen=True)
class RunRecord:
    """A finished run as the table keeps it.

    Attributes:
        hash: of the run's setting. rounds: of each evaluated round {"round", "samples", "sent_bytes", key: score}.
        error: why it has no result; "": it has one.
        groups: group of clients -> score after the last round, on validation data; {}: not recorded.
    """

    hash: str
    rounds: tuple[Mapping[str, float], ...]
    error: str = ""
    groups: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SearchProblem:
    """One method in one environment: what a search could find, and the truth about it.

    Attributes:
        method, environment: names. metric: key on validation data. larger: True if larger is better.
        space: of which the configurations are. points: the configurations, by number.
        rounds: of a whole run. full_every: rounds between two scores.
        seeds: those that every configuration was run with.
        values: (configuration, seed) -> validation score after the last round; NaN: the run has no result.
        truths: likewise, on test data.
        samples: likewise, {round: gradient samples so far}, of the run on validation data, its last round included.
        curves: likewise, {round: validation score}, finite ones.
        groups: likewise, {group of clients: validation score}; without a key: the table has none of this run.
    """

    method: str
    environment: str
    metric: str
    larger: bool
    space: Space
    rounds: int
    full_every: int
    points: tuple[Point, ...]
    seeds: tuple[int, ...]
    values: Mapping[tuple[int, int], float]
    truths: Mapping[tuple[int, int], float]
    samples: Mapping[tuple[int, int], Mapping[int, int]]
    curves: Mapping[tuple[int, int], Mapping[int, float]]
    groups: Mapping[tuple[int, int], Mapping[str, float]] = field(default_factory=dict)

    def cost(self, configuration: int, seed: int) -> int:
        """Gradient samples of a whole run on validation data."""
        return max(self.samples[configuration, seed].values())


@dataclass(frozen=True)
class TrialTable:
    """A table of trials.

    Attributes:
        frame: its rows. methods: name -> {metric, truth, mode, rounds, full_every, space, space_source, experiment}.
    """

    frame: pd.DataFrame
    methods: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, path: Path | str) -> "TrialTable":
        """Return the table in a file; its rows may have any order.

        Raises:
            PflOpsError: there is no such file, it is no table of trials, or a row is wrong or missing.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        name = echo(path, LONGEST_PATH)
        if not Path(path).is_file():
            raise PflOpsError(f"no file '{name}'; pfl-ops tabulate makes a table of trials")
        try:
            table = pq.read_table(Path(path))
            about = json.loads((table.schema.metadata or {})[ABOUT])
            methods, version = dict(about["methods"]), int(about["version"])
        except (OSError, KeyError, ValueError, TypeError, pa.ArrowException):
            raise PflOpsError(f"'{name}' is no table of trials; pfl-ops tabulate makes one") from None
        if version not in (EARLIER, VERSION):
            raise PflOpsError(
                f"'{name}' is a table of version {version}, and this pfl-ops reads up to version {VERSION}"
            )
        missing = [column for column in COLUMNS if column not in table.column_names]
        if missing:
            raise PflOpsError(f"'{name}' is no whole table of trials: it has no column {missing[0]}")
        frame = table.to_pandas()
        if GROUPS not in frame:
            frame[GROUPS] = ""
        for method in frame["method"].unique():
            about = methods.get(method)
            if not isinstance(about, dict) or not about.keys() >= ABOUT_METHOD or about["metric"] not in frame:
                raise PflOpsError(f"'{name}' is no whole table of trials: it says too little about {echo(method)}")
        return cls(checked(frame, methods, name), methods)

    def write(self, path: Path) -> None:
        """Write it; a reader finds the old file or the new one, never a part.

        Raises:
            PflOpsError: the file can't be written.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        openings = self.frame[TRUTH + "hash"].nunique()
        about = json.dumps({"version": VERSION, "test_openings": openings, "methods": dict(self.methods)})
        table = pa.Table.from_pandas(self.frame, preserve_index=False)
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), ABOUT: about.encode()})
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as draft:
                pq.write_table(table, draft, compression="zstd")
        except OSError as error:
            raise PflOpsError(f"can't write {path}: {error.strerror or error}") from error

    def records(self) -> dict[str, RunRecord]:
        """The runs in it, on validation and on test data, by hash."""
        found: dict[str, RunRecord] = {}
        keys = [str(column) for column in self.frame.columns if column not in (*COLUMNS, GROUPS)]
        scores = [key for key in keys if not key.startswith(TRUTH)]
        truths = [key for key in keys if key.startswith(TRUTH)]
        every = self.frame.to_dict("records")  # of all: of each run's few rows it takes longer than all the rest
        runs = by_key((tuple(row[name] for name in RUN), row) for row in every)
        for listed in runs.values():
            rounds = tuple(_finite(row, ("round", "samples", "sent_bytes", *scores)) for row in listed)
            last = listed[-1]
            found[last["hash"]] = RunRecord(last["hash"], rounds, last["error"], _groups(last))
            truth = {key.removeprefix(TRUTH): value for key, value in _finite(last, truths).items()}
            kept = ({"round": last["round"], **truth},) if truth else ()
            found[last[TRUTH + "hash"]] = RunRecord(last[TRUTH + "hash"], kept, last[TRUTH + "error"])
        return found

    def problems(self) -> list[SearchProblem]:
        """Each method in each environment, in the order of the rows.

        Raises:
            PflOpsError: a configuration lacks a run that others have.
        """
        return [
            self._problem(str(method), str(environment), rows)
            for (method, environment), rows in self.frame.groupby(["method", "environment"], sort=False)
        ]

    def _problem(self, method: str, environment: str, rows: pd.DataFrame) -> SearchProblem:
        about = self.methods[method]
        metric, truth = str(about["metric"]), TRUTH + str(about["truth"])
        if truth not in rows:  # no run on test data has a score
            rows = rows.assign(**{truth: math.nan})
        values: dict[tuple[int, int], float] = {}
        truths: dict[tuple[int, int], float] = {}
        samples: dict[tuple[int, int], dict[int, int]] = {}
        curves: dict[tuple[int, int], dict[int, float]] = {}
        groups: dict[tuple[int, int], Mapping[str, float]] = {}
        for row in rows.to_dict("records"):
            key = (int(row["configuration"]), int(row["seed"]))
            score = float(row[metric])
            if math.isfinite(score):
                curves.setdefault(key, {})[int(row["round"])] = score
            values[key] = math.nan if row["error"] else score
            samples.setdefault(key, {})[int(row["round"])] = int(row["samples"])
            truths[key] = math.nan if row[TRUTH + "error"] else float(row[truth])
            if row[GROUPS]:
                groups[key] = _groups(row)
        first = rows.drop_duplicates("configuration").sort_values("configuration")
        points = tuple(json.loads(text) for text in first["settings"])
        seeds = tuple(sorted({int(seed) for seed in rows["seed"]}))
        for number in range(len(points)):
            if absent := [seed for seed in seeds if (number, seed) not in values]:
                raise PflOpsError(
                    f"this table has no run of {method}'s configuration {number} in {environment} with seed {absent[0]}"
                )
        return SearchProblem(
            method,
            environment,
            metric,
            about["mode"] == "max",
            spaces.from_dict(about["space"], str(about["space_source"])),
            int(about["rounds"]),
            int(about["full_every"]),
            points,
            seeds,
            values,
            truths,
            samples,
            {key: curves.get(key, {}) for key in values},
            groups,
        )


def rows_of(run: Mapping[str, Any], point: Point, validation: RunRecord, truth: RunRecord) -> Iterator[dict[str, Any]]:
    """The rows of one configuration in one environment with one seed.

    Args:
        run: `RUN` -> value. validation, truth: its runs.
    """
    empty = {"round": 0, "samples": 0, "sent_bytes": 0.0}
    rounds: Sequence[Mapping[str, float]] = validation.rounds or (empty,)
    best = {} if truth.error or not truth.rounds else truth.rounds[-1]
    scores = {TRUTH + key: value for key, value in best.items() if key not in empty}
    for number, each in enumerate(rounds):
        is_last = number == len(rounds) - 1
        yield {
            **run,
            "settings": json.dumps(point),
            **empty,
            **each,
            "hash": validation.hash,
            "error": validation.error,
            GROUPS: json.dumps(dict(validation.groups)) if is_last and validation.groups else "",
            TRUTH + "hash": truth.hash,
            TRUTH + "error": truth.error,
            **(scores if is_last else {}),
        }


def kept_keys(metric: str) -> tuple[str, ...]:
    """Return the keys of a metric's row: the metric, and the parts of a sum.

    >>> kept_keys("val/L1/acc"), kept_keys("train/loss")
    (('val/L1/acc', 'val/L1/local/mean', 'val/L1/global/mean'), ('train/loss',))
    """
    return (metric, *summands(metric))


def _groups(row: Mapping[Any, Any]) -> dict[str, float]:
    """The scores of groups of clients in a run's last row; {}: there are none."""
    return dict(json.loads(row[GROUPS])) if row[GROUPS] else {}


def _finite(row: Mapping[Any, Any], keys: Sequence[str]) -> dict[str, float]:
    """The numbers of a row; those that a run does not have are left out."""
    numbers = {key: row[key] for key in keys if row[key] is not None and math.isfinite(row[key])}
    return {key: int(value) if key in ("round", "samples") else float(value) for key, value in numbers.items()}
