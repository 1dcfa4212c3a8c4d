"""A recorded partition: who has which samples, in two files that are read and written in parts.

`partition.parquet` has the columns `client`, `split` and `index`, `partition.json` has where it comes from, class
counts and digests. `index` counts the samples of the data set as published, from 0; with `data.pooled` the test samples
follow the training samples. Any tool that reads Parquet can use the same clients. A million clients need neither a loop
nor memory for all rows as Python's numbers.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from pfl_ops.data.by_client import ByClient
from pfl_ops.data.npz import MAX_CLASSES
from pfl_ops.data.partition import content_hash
from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.files import alone_in, as_pinned, replacing, sync

FORMAT = 1
FILES = "partition.json", "partition.parquet"
MAX_SAMPLES = 2**27
MAX_JSON = 2**28  # bytes: 100,000 clients with 1,000 classes
SAMPLES_AT_ONCE = 1 << 20
CLIENTS_AT_ONCE = 1 << 16
TABLE_OPENS, TABLE_CLOSES = '  "counts": [\n    [', "]\n  ]\n}\n"
NEXT_ROW, CELLS = "],\n    [", ", "


@dataclass(frozen=True, eq=False)
class Recorded:
    """Each client's samples, in sample numbers of the data set as published.

    Attributes:
        train: each client's training samples, a validation share included; sorted int64 arrays.
        test: each client's test samples; None: not cut (a run that never opened the test data).
        counts: classes of the training samples, int [K, L].
        about: where it comes from (`scheme`, `seed`, `data`, `data_digest`, `pooled`), plain JSON values.

    >>> recorded = Recorded([np.array([0, 2]), np.array([1])], test=None, counts=np.array([[1, 1], [1, 0]]))
    >>> recorded.digest[:12]
    '7f6b62f0d98c'
    """

    train: Sequence[np.ndarray]
    test: Sequence[np.ndarray] | None
    counts: np.ndarray
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """The partition's own hash: its training samples by client."""
        return content_hash(self.train)


class Columns(NamedTuple):
    """`partition.parquet`: client and sample (its column `index`) int64 [n]; is_train bool [n], else for testing."""

    client: np.ndarray
    is_train: np.ndarray
    sample: np.ndarray


def write_partition(folder: Path | str, recorded: Recorded) -> Path:
    """Write `partition.parquet` and `partition.json`; an older one is replaced file by file, never half-written.

    Returns:
        the folder.
    Raises:
        PflOpsError: the folder can't be written to.

    >>> import tempfile
    >>> five = Recorded([np.array([0, 2, 4]), np.array([1, 3])], test=None, counts=np.array([[2, 1], [1, 1]]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = write_partition(folder, five)
    ...     sorted(file.name for file in written.iterdir())
    ['partition.json', 'partition.parquet']
    """
    import pyarrow.parquet as pq

    folder = Path(folder)
    train = ByClient.of(recorded.train)
    test = None if recorded.test is None else ByClient.of(recorded.test)
    about = {
        "format": FORMAT,
        "digest": recorded.digest,
        "test_digest": None if test is None else content_hash(test),
        "clients": len(train),
        "samples": len(train.samples),
        **recorded.about,
    }
    try:
        with alone_in(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(folder / "partition.parquet") as draft:
                with pq.ParquetWriter(draft, _schema()) as writer:
                    for name, clients in (("train", train), *([("test", test)] if test is not None else [])):
                        for table in _tables(name, clients):
                            writer.write_table(table)
                sync(draft)
                # before the samples take their place: without room for these, an old partition stays as it was
                with replacing(folder / "partition.json") as words, words.open("w", encoding="utf-8") as file:
                    _write_json(file, about, recorded.counts)
                    file.flush()
    except OSError as error:
        raise PflOpsError(f"can't write the partition to {folder}: {error.strerror or error}") from error
    return folder


def _schema() -> Any:
    """Return the columns of `partition.parquet`."""
    import pyarrow as pa

    split = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([("client", pa.int32()), ("split", split), ("index", pa.int64())])


def _tables(name: str, clients: ByClient[np.ndarray]) -> Iterator[Any]:
    """Yield the rows of `partition.parquet` for one split, about `SAMPLES_AT_ONCE` at a time."""
    import pyarrow as pa

    sizes = clients.sizes
    for first, last in clients.blocks(SAMPLES_AT_ONCE):
        index = clients.samples[clients.offsets[first] : clients.offsets[last]]
        client = np.repeat(np.arange(first, last, dtype=np.int32), sizes[first:last])
        split = pa.DictionaryArray.from_arrays(np.zeros(len(index), np.int32), [name])
        yield pa.table({"client": client, "split": split, "index": index}, schema=_schema())


def _write_json(file: TextIO, about: dict[str, object], counts: np.ndarray) -> None:
    """Write JSON with a line a field, and a line a client in the table of class counts, int [K, L]."""
    import pyarrow as pa
    import pyarrow.compute as pc

    file.write("{\n")
    for name, value in about.items():
        file.write(f"  {json.dumps(name)}: {json.dumps(value)},\n")
    file.write(TABLE_OPENS)
    for first in range(0, len(counts), CLIENTS_AT_ONCE):
        some = counts[first : first + CLIENTS_AT_ONCE]
        cells = [pa.array(some[:, c]).cast(pa.string()) for c in range(some.shape[1])]
        rows = pc.binary_join_element_wise(*cells, CELLS)
        lines = pc.binary_join(pa.ListArray.from_arrays([0, len(rows)], rows), NEXT_ROW)[0].as_py()
        file.write((NEXT_ROW if first else "") + lines)
    file.write(TABLE_CLOSES)


def read_partition(path: Path | str) -> Recorded:
    """Read a recorded partition and check its digests; the last one that was read is kept while its files are the same.

    Args:
        path: its folder, or one of its two files.
    Raises:
        PflOpsError: it is missing, damaged, or does not have its digest.

    >>> import tempfile
    >>> five = Recorded([np.array([0, 2, 4]), np.array([1, 3])], test=None, counts=np.array([[2, 1], [1, 1]]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = read_partition(write_partition(folder, five))
    >>> [rows.tolist() for rows in again.train], again.digest == five.digest
    ([[0, 2, 4], [1, 3]], True)
    """
    folder = folder_of(path)
    return _read(folder, _content(folder))


def folder_of(path: Path | str) -> Path:
    """Return the folder of a recorded partition that is named by it, or by one of its two files.

    >>> folder_of("mine/partition.json") == folder_of("mine") == Path("mine")
    True
    """
    folder = Path(path).expanduser()
    return folder.parent if folder.suffix in (".json", ".parquet") else folder


def _content(folder: Path) -> str:
    """Digest of both files; "" where one can't be read, as `_read` then says."""
    found = hashlib.sha256()
    for name in FILES:
        try:
            with as_pinned(folder / name).open("rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
        except OSError:
            return ""
    return found.hexdigest()


@lru_cache(maxsize=1)  # a run asks for its clients, their test sets and their digests, 5 s each at a million clients
def _read(folder: Path, content: str) -> Recorded:
    about = _about(folder)
    try:
        recorded = _checked(about, _table(as_pinned(folder / "partition.parquet")))
    except FileNotFoundError:
        raise PflOpsError(f"recorded partition {folder} has no partition.parquet") from None
    except Exception as error:  # pyarrow raises errors of a dozen kinds for damaged input
        reason = in_a_line(error, 300)
        raise PflOpsError(f"recorded partition {folder} is damaged ({reason})") from error
    test = content_hash(recorded.test) if recorded.test is not None else None
    if (about["digest"], about["test_digest"]) != (recorded.digest, test):
        raise PflOpsError(
            f"recorded partition {folder} is damaged: its samples do not have the digest in partition.json"
        )
    return recorded


def _about(folder: Path) -> dict[str, Any]:
    """The fields of `partition.json`; `counts` as an int64 array [K, L] where `_write_json` wrote them."""
    file = as_pinned(folder / "partition.json")
    try:
        if file.stat().st_size > MAX_JSON:
            raise ValueError(f"it has {file.stat().st_size:,} bytes; at most {MAX_JSON:,} are read")
        about = _read_json(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise PflOpsError(f"no recorded partition in {folder} (partition.json and partition.parquet)") from None
    except (OSError, ValueError, RecursionError) as error:
        raise PflOpsError(f"recorded partition {file} is damaged ({in_a_line(error, 200)})") from error
    if not isinstance(about, dict) or type(about.get("format")) is not int or about["format"] != FORMAT:
        raise PflOpsError(f"recorded partition {file} has a format that this version does not read (it reads {FORMAT})")
    return about


def _read_json(text: str) -> Any:
    """The value of JSON; `counts` is an int64 array [K, L] if it has the layout of `_write_json`."""
    head, opening, table = text.partition(TABLE_OPENS)
    if opening and table.endswith(TABLE_CLOSES) and not table.strip("0123456789, []}\n"):
        with contextlib.suppress(ValueError):  # it is read as any JSON then
            about = json.loads(head + TABLE_OPENS + TABLE_CLOSES)
            return about | {"counts": _whole_numbers(table.removesuffix(TABLE_CLOSES))}
    return json.loads(text)


def _whole_numbers(rows: str) -> np.ndarray:
    """Read the rows of a table of whole numbers, int64 [K, L].

    Raises:
        ValueError: the rows are not equally long, or an entry is no number.

    >>> _whole_numbers("1, 2],\\n    [3, 4").tolist()
    [[1, 2], [3, 4]]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = pc.split_pattern(pc.split_pattern(pa.array([rows]), NEXT_ROW).values, CELLS)
    return cells.values.cast(pa.int64()).to_numpy().reshape(len(cells), -1)


def _table(file: Path) -> Columns:
    """Columns `client`, `split` and `index` of a recorded partition, with their types checked.

    Raises:
        ValueError: a column has another type, an entry is missing, or there are too many rows. pyarrow's own errors
            where the file is damaged.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as parquet:
        if parquet.metadata.num_rows > MAX_SAMPLES:
            raise ValueError(f"{parquet.metadata.num_rows:,} rows; at most {MAX_SAMPLES:,} are read")
        table = parquet.read(columns=["client", "split", "index"])
    for name, is_right, wanted in (
        ("client", pa.types.is_integer, "whole numbers"),
        ("index", pa.types.is_integer, "whole numbers"),
        ("split", _is_text, "texts"),
    ):
        kind = table.schema.field(name).type
        if not is_right(kind):
            raise ValueError(f"column {name} holds {str(kind)[:60]}, not {wanted}")
        if table[name].null_count:
            raise ValueError(f"column {name} has {table[name].null_count:,} empty entries")
    parts = table["split"].cast(pa.string())
    other = set(pc.unique(parts).to_pylist()) - {"train", "test"}
    if other:
        raise ValueError(f"column split has {min(other)[:40]!r}; allowed: train, test")
    client, index = (table[name].cast(pa.int64()).to_numpy() for name in ("client", "index"))
    return Columns(client, pc.equal(parts, "train").to_numpy(), index)


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _checked(about: Mapping[str, Any], columns: Columns) -> Recorded:
    """The partition of both files, once they agree.

    Raises:
        ValueError: a field is missing, has another type, or contradicts the table.
    """
    for name in ("clients", "counts", "digest", "test_digest"):
        if name not in about:
            raise ValueError(f"partition.json has no field {name!r}")
    k, rows, has_test = about["clients"], about["counts"], about["test_digest"] is not None
    if type(k) is not int or not 0 < k <= MAX_SAMPLES:
        raise ValueError(f"clients is {str(k)[:40]!r}; it must be a whole number > 0")
    counts = rows if isinstance(rows, np.ndarray) else _rectangular(rows)
    listed = len(np.unique(columns.client[columns.is_train]))
    if not k == len(counts) == listed:
        raise ValueError(
            f"clients is {k:,}, but counts has {len(counts):,} rows and partition.parquet lists {listed:,} clients"
        )
    if not 0 < counts.shape[1] <= MAX_CLASSES:
        raise ValueError(f"the rows of counts have {counts.shape[1]:,} classes; allowed: 1 to {MAX_CLASSES:,}")
    if counts.min() < 0 or counts.max() > MAX_SAMPLES:
        raise ValueError("counts has an entry that is no whole number >= 0")
    if not has_test and not columns.is_train.all():
        raise ValueError("test_digest is null, but partition.parquet has test samples")
    masks = columns.is_train, ~columns.is_train
    parts = [_by_client(columns.client[chosen], columns.sample[chosen], k) for chosen in masks]
    kept = {name: value for name, value in about.items() if name in ("scheme", "seed", "data", "data_digest", "pooled")}
    return Recorded(parts[0], parts[1] if has_test else None, counts, kept)


def _rectangular(rows: object) -> np.ndarray:
    """The class counts of JSON, int64 [K, L].

    Raises:
        ValueError: it is not a table of whole numbers.
    """
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows) or not rows:
        raise ValueError("counts must be a table of whole numbers, one row a client")
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"the rows of counts have {len(rows[0]):,} classes and others")
    if any(type(count) is not int or not 0 <= count <= MAX_SAMPLES for row in rows for count in row):
        raise ValueError("counts has an entry that is no whole number >= 0")
    return np.array(rows, dtype=np.int64)


def _by_client(client: np.ndarray, index: np.ndarray, n_clients: int) -> ByClient[np.ndarray]:
    if len(client) and (client.min() < 0 or client.max() >= n_clients):
        raise ValueError(f"client numbers outside 0..{n_clients - 1}")
    if len(index) and index.min() < 0:
        raise ValueError(f"sample number {index.min()}; the first sample is 0")
    order = np.lexsort((index, client))
    again = (np.diff(client[order]) == 0) & (np.diff(index[order]) == 0)
    if again.any():
        at = order[int(np.argmax(again))]
        raise ValueError(f"client {client[at]} lists sample {index[at]} twice")
    return ByClient(index[order], np.append(0, np.cumsum(np.bincount(client, minlength=n_clients))))
