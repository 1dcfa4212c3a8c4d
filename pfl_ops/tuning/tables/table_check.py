"""The check of a table of trials that is read from a file: a user may have edited it."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from pfl_ops.errors import PflOpsError, echo

RUN = ("method", "configuration", "environment", "seed")
TRUTH = "truth/"
GROUPS = "groups"
COUNTS = ("configuration", "seed", "round", "samples")
TEXTS = ("method", "environment", "settings", "hash", "error", GROUPS, TRUTH + "hash", TRUTH + "error")


def checked(frame: pd.DataFrame, methods: Mapping[str, Mapping[str, Any]], name: str) -> pd.DataFrame:
    """Return the rows of a table, those of each run in the order of their rounds.

    Args:
        frame: rows, with all columns. methods: see `TrialTable`. name: of the file, for messages.
    Raises:
        PflOpsError: a value that can't be, or a row that is missing; the message has the file and the row.
    """
    frame = frame.reset_index(drop=True)
    check = _Check(frame, name)
    for column in TEXTS:
        check.each(column, lambda value: isinstance(value, str), "must be a text")
    for column in COUNTS:
        check.each(column, _is_count, "must be a whole number >= 0")
    check.each("sent_bytes", _is_size, "must be a number >= 0")
    check.each("settings", _is_mapping, "must be a JSON mapping of settings")
    check.each(GROUPS, _is_groups, "must be empty or a JSON mapping of groups to scores")
    for method, about in methods.items():
        for column in {str(about["metric"]), TRUTH + str(about["truth"])} & set(frame.columns):
            check.each(column, _is_score, "must be a number or empty", frame["method"] == method)

    runs = frame.groupby(list(RUN), sort=False).ngroup()
    order = np.lexsort((frame["round"].to_numpy(dtype=float), runs))
    frame, runs = frame.iloc[order], runs.iloc[order]
    check.none(pd.Series(frame.duplicated([*RUN, "round"])), "a second row of the same run and round")
    settings = frame.groupby(["method", "configuration"])["settings"].transform("first")
    check.none(frame["settings"] != settings, "other settings than in the first row of this configuration")
    last = frame[~runs.duplicated(keep="last")]
    for method, about in methods.items():
        mine = last[last["method"] == method]
        for key, start in ((str(about["metric"]), ""), (TRUTH + str(about["truth"]), TRUTH)):
            values = mine[key].to_numpy(dtype=float, na_value=np.nan) if key in frame else np.full(len(mine), np.nan)
            without = (mine[start + "error"] == "") & ~np.isfinite(values)
            check.none(without, f"{key} has no value, but this is the last row of a run without an error")
    complete = frame[frame.groupby(list(RUN), sort=False)["error"].transform("last") == ""]
    here = ["method", "configuration", "environment"]
    for _, rows in complete.groupby(here, sort=False):
        _check_rounds(check, rows)
    return frame.astype({column: "int64" for column in COUNTS}).reset_index(drop=True)


def _check_rounds(check: "_Check", rows: pd.DataFrame) -> None:
    """Refuse a run without an error that lacks a round which the same configuration has with another seed."""
    every = set(rows["round"])
    if len(rows) == len(every) * rows["seed"].nunique():
        return
    for _, mine in rows.groupby("seed", sort=False):
        if absent := sorted(every - set(mine["round"])):
            check.refuse(
                mine.index[-1],
                f"this run (seed {int(mine['seed'].iloc[0])}) has no row of round {int(absent[0])}, which "
                "other seeds of this configuration have",
            )


class _Check:
    """Refuses rows of a table; their numbers are those of the file, from 0."""

    def __init__(self, frame: pd.DataFrame, name: str) -> None:
        self.frame, self.name = frame, name

    def each(
        self, column: str, allowed: Callable[[Any], bool], must: str, where: "pd.Series[bool] | None" = None
    ) -> None:
        """Refuse the first row, of those `where`, whose value is not allowed."""
        values = self.frame[column] if where is None else self.frame.loc[where, column]
        codes, different = pd.factorize(values, use_na_sentinel=False)
        wrong = [code for code, value in enumerate(different) if not allowed(value)]
        if wrong:
            first = int(np.isin(codes, wrong).argmax())
            self.refuse(values.index[first], f"{column} {must}, got {echo(values.iloc[first])}")

    def none(self, wrong: "pd.Series[bool]", what: str) -> None:
        """Refuse the first row that is wrong."""
        if wrong.any():
            self.refuse(wrong.index[wrong.to_numpy()][0], what)

    def refuse(self, row: Any, what: str) -> NoReturn:
        raise PflOpsError(f"'{self.name}', row {row} (from 0): {what}; pfl-ops tabulate makes a whole table")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value) and bool(value >= 0)


def _is_count(value: Any) -> bool:
    return _is_size(value) and value == int(value) and value < 2**63


def _is_score(value: Any) -> bool:
    return value is None or value is pd.NA or _is_number(value)


def _is_mapping(text: str) -> bool:
    return isinstance(_json(text), dict)


def _is_groups(text: str) -> bool:
    found = _json(text) if text else {}
    return isinstance(found, dict) and all(_is_number(value) and math.isfinite(value) for value in found.values())


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
