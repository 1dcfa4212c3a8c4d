"""Reading a data set from a table, CSV or Parquet: a sample a row, a feature a column.

Three names are reserved, all other columns are features, in the order of the file:

    label (or y)   class: whole numbers from 0, or text
    client         owner: whole numbers or text; may be left out
    split          train or test; if it is left out, a fifth of each client's samples is for testing

Text is numbered by `npz.number_names`: texts that are all whole numbers by what they spell, others in sorted order.
Spaces around a text do not count, as they do not around the numbers of a feature: `0.5, 1` is as `0.5,1`.
"""

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from pfl_ops import rng
from pfl_ops.csv_text import NUMBER
from pfl_ops.data import cut
from pfl_ops.data.by_client import ByClient
from pfl_ops.data.npz import DataError, check_size, number_names, reading
from pfl_ops.errors import echo

Table: TypeAlias = Any
"""A `pyarrow.Table`, which is imported where it is used."""
Column: TypeAlias = Any
"""A `pyarrow.ChunkedArray`."""

LABELS = ("label", "y")
RESERVED = (*LABELS, "client", "split")
TEST_SHARE = 0.2
MAX_SAMPLES = 2**27
CSV_GROWTH = 4  # bytes in memory for a byte of CSV: a digit and a comma become a float64
MAX_ROUNDING = 0.05  # of a feature's values to float32, in standard deviations of the feature
SEPARATORS = {";": "semicolons", "\t": "tabs"}  # of other programs
NAMES_SHOWN = 8  # columns that a message lists


def read_table(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a data set from a table.

    Args:
        path: a file that ends in .csv (UTF-8, commas, a header line) or .parquet.
    Returns:
        x_train, x_test float32 [n, d]; y_train, y_test int64 [n]; client_train, client_test int64 [n] if there is a
        column `client`.
    Raises:
        DataError: the file is missing or damaged, lacks a label, has an empty entry, or has a feature that is no
            finite number or loses its differences in float32.
    """
    with reading(path):
        table = _read_csv(path) if path.suffix == ".csv" else _read_parquet(path)
        return _make_arrays(table, path)


def read_names(path: Path) -> list[str]:
    """Return the names of a table's columns, in the order of the file, without reading its rows."""
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8-sig") as file:
            return next(csv.reader(file), [])
    import pyarrow.parquet as pq

    names: list[str] = pq.read_schema(path).names
    return names


def _read_csv(path: Path) -> Table:
    import pyarrow as pa
    from pyarrow import csv as pa_csv

    check_size(path, CSV_GROWTH * path.stat().st_size)
    _check_separator(path)
    return pa_csv.read_csv(
        path,
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        # names are never guessed to be dates or numbers: '007' is not '7'
        convert_options=pa_csv.ConvertOptions(column_types=dict.fromkeys(RESERVED, pa.string())),
    )


def _check_separator(path: Path) -> None:
    """Refuse a file whose header has a label once it is divided by another character than a comma."""
    try:
        names = read_names(path)
    except (csv.Error, UnicodeDecodeError):  # pyarrow decides
        return
    for separator, told in SEPARATORS.items():
        if not set(LABELS) & {*names} and set(LABELS) & {*next(csv.reader([",".join(names)], delimiter=separator), [])}:
            raise DataError(f"{path} has {told} between its columns; write it with commas, and points in numbers")


def _read_parquet(path: Path) -> Table:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        about, names = file.metadata, file.schema_arrow.names
    _check_rows(path, about.num_rows)
    # a compressed column may declare far more rows than it has bytes; so may text that is not kept by dictionary
    check_size(path, 8 * about.num_rows * about.num_columns)
    with pq.ParquetFile(path, read_dictionary=[name for name in RESERVED if name in names]) as file:
        return file.read()


def _check_rows(path: Path, n: int) -> None:
    if n > MAX_SAMPLES:
        raise DataError(f"{path} has {n:,} rows; at most {MAX_SAMPLES:,} are read")
    if not n:
        raise DataError(f"{path} has no rows")


def _make_arrays(table: Table, path: Path) -> dict[str, np.ndarray]:
    names = list(table.column_names)
    label = _check_names(names, path)
    _check_rows(path, table.num_rows)
    features = [name for name in names if name not in RESERVED]
    x = np.empty((table.num_rows, len(features)), np.float32)
    for j, name in enumerate(features):
        x[:, j] = _read_feature(table[name], name, path)
    y = _to_numbers(table[label], label, path)
    client = _to_numbers(table["client"], "client", path) if "client" in names else None
    is_test = _is_test(table["split"], path) if "split" in names else _draw_test_rows(y, client)
    for part, rows in (("training", ~is_test), ("testing", is_test)):
        if not rows.any():
            why = "column split has none" if "split" in names else "a client with one sample keeps it for training"
            raise DataError(f"{path} has no sample for {part}: {why}")
    done: dict[str, np.ndarray] = {}
    for part, rows in (("train", ~is_test), ("test", is_test)):
        done |= {f"x_{part}": x[rows], f"y_{part}": y[rows]}
        if client is not None:
            done[f"client_{part}"] = client[rows]
    return done


def _check_names(names: Sequence[str], path: Path) -> str:
    """The label's column, once the names of all columns make sense."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{path} has two columns named '{echo(twice[0])}'")
    if any(not name or name.startswith("__index_level_") for name in names):
        raise DataError(f"{path} has a column without a name, as pandas writes its index; write it with index=False")
    labels = [name for name in LABELS if name in names]
    if len(labels) != 1:
        found = "both label and y" if labels else f"neither label nor y, but {_join_names(names)}"
        raise DataError(f"{path} needs one column label (or y); it has {found}")
    if not set(names) - set(RESERVED):
        raise DataError(f"{path} has no feature: each column but label, client and split is one")
    return labels[0]


def _join_names(names: Sequence[str]) -> str:
    shown = ", ".join(echo(name, 30) for name in names[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN:,} more"


def _check_empty(column: Column, name: str, path: Path) -> None:
    if column.null_count:
        first = int(np.argmax(column.is_null().to_numpy())) + 1
        raise DataError(f"{path}: column '{echo(name)}' has {column.null_count:,} empty entries (first: row {first:,})")


def _read_feature(column: Column, name: str, path: Path) -> np.ndarray:
    """A column as float32 [n]."""
    import pyarrow as pa

    kind = column.type
    allowed = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)  # a null is empty
    if not any(is_kind(kind) for is_kind in allowed):
        raise DataError(
            f"{path}: column '{echo(name)}' holds {str(kind)[:60]}; features are numbers (label, client and split are "
            "the columns that may hold text)"
        )
    _check_empty(column, name, path)
    stored = column.to_numpy()
    with np.errstate(over="ignore"):
        values = stored.astype(np.float32)
    bad = ~np.isfinite(values)
    if bad.any():
        raise DataError(
            f"{path}: column '{echo(name)}' has {int(bad.sum()):,} entries that are not finite in float32 "
            f"(first: row {int(np.argmax(bad)) + 1:,})"
        )
    exact = stored.astype(np.float64)
    if stored.min() != stored.max() and np.abs(values - exact).max() >= MAX_ROUNDING * exact.std():
        raise DataError(
            f"{path}: column '{echo(name)}' loses its differences in float32: values from {stored.min()} to "
            f"{stored.max()}; subtract a constant, as the smallest"
        )
    return values


def _to_numbers(column: Column, name: str, path: Path) -> np.ndarray:
    """Labels or clients as int64 [n]."""
    import pyarrow as pa

    if pa.types.is_integer(column.type):
        _check_empty(column, name, path)
        return column.cast(pa.int64()).to_numpy()
    names, codes = _encode_text(column, name, path)
    used, places = np.unique(codes, return_inverse=True)
    found, what = [names[code] for code in used], f"{path}: column '{name}'"
    fractional = [text for text in found if not text.lstrip("+-").isdecimal()]
    if fractional and all(map(NUMBER.fullmatch, found)):
        broken = [text for text in fractional if not float(text).is_integer()]
        way = ", as 1 and not 1.0"
        if broken:  # the target of a regression
            way = "; a range of numbers has to be divided into classes" if name in LABELS else ""
        raise DataError(f"{what} holds {echo([*broken, *fractional][0])}; it must hold whole numbers or text{way}")
    different = list(dict.fromkeys(found))
    numbers = dict(zip(different, number_names(different, what), strict=True))
    return np.array([numbers[text] for text in found], dtype=np.int64)[places]


def _encode_text(column: Column, name: str, path: Path) -> tuple[list[str], np.ndarray]:
    """The texts of a column without spaces around them, perhaps some twice, and which one each row has, int [n]."""
    import pyarrow as pa

    kind = column.type
    inner: Any = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(inner) or pa.types.is_large_string(inner)):
        wanted = "train and test" if name == "split" else "whole numbers or text"
        raise DataError(f"{path}: column '{name}' holds {str(inner)[:60]}; it must hold {wanted}")
    _check_empty(column, name, path)
    coded = column if pa.types.is_dictionary(kind) else column.dictionary_encode()
    whole = coded.unify_dictionaries().combine_chunks()
    whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    return [text.strip() for text in whole.dictionary.to_pylist()], whole.indices.to_numpy()


def _is_test(column: Column, path: Path) -> np.ndarray:
    """True for each sample of the test set, bool [n]."""
    names, codes = _encode_text(column, "split", path)
    for code in np.unique(codes):
        if names[code] not in ("train", "test"):
            raise DataError(f"{path}: column 'split' has '{echo(names[code])}'; allowed: train, test")
    return np.array([name == "test" for name in names])[codes]


def _draw_test_rows(y: np.ndarray, client: np.ndarray | None) -> np.ndarray:
    """True for a fifth of each client's samples, drawn once for all by class, bool [n]; a single sample is kept."""
    owner = np.zeros(len(y), np.int64) if client is None else client
    order = np.argsort(owner, kind="stable")
    numbers, starts = np.unique(owner[order], return_index=True)
    clients = ByClient(order, np.append(starts, len(order)))
    generators = rng.generators(0, "table", "test", numbers=numbers.tolist())
    classes = np.unique(y, return_inverse=True)[1]  # of numbers that are not checked yet
    is_test = np.zeros(len(y), bool)
    is_test[cut.hold_out(classes, clients, TEST_SHARE, generators)[1].samples] = True
    return is_test
