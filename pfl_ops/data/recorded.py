"""Clients that exist already: the data set's own (natural), and a recorded partition (file), which is written and
read here.

A recorded partition is a folder with `partition.parquet` (columns `client`, `split`, `index`) and `partition.json`
(where it comes from, class counts, digests). `index` counts the samples of the data set as published, from 0; with
`data.pooled` the test samples follow the training samples. Any tool that reads Parquet can use the same clients.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from pfl_ops.data.cut import counts_table
from pfl_ops.data.npz import MAX_CLASSES
from pfl_ops.data.partition import PartitionError, Scheme, content_hash, partition
from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.files import replacing, write_whole
from pfl_ops.section import MOST_COUNT

FORMAT = 1
MAX_SAMPLES = 2**27
MAX_JSON = 2**28  # bytes: 100,000 clients with 1,000 classes


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

    For few clients: `partition_files.write_partition` writes the same in parts.

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
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = Path(folder)
    parts = [("train", recorded.train), *([("test", recorded.test)] if recorded.test is not None else [])]
    client, split, index = [], [], []
    for name, clients in parts:
        sizes = [len(rows) for rows in clients]
        client.append(np.repeat(np.arange(len(clients), dtype=np.int32), sizes))
        split.append(np.repeat(np.array([name]), sum(sizes)))
        index.append(np.concatenate([np.empty(0, np.int64), *clients]))
    table = pa.table(
        {
            "client": np.concatenate(client),
            "split": pa.array(np.concatenate(split)).dictionary_encode(),
            "index": np.concatenate(index),
        }
    )
    about = {
        "format": FORMAT,
        "digest": recorded.digest,
        "test_digest": content_hash(recorded.test) if recorded.test is not None else None,
        "clients": len(recorded.train),
        "samples": int(sum(len(rows) for rows in recorded.train)),
        **recorded.about,
        "counts": recorded.counts.tolist(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / "partition.parquet") as draft:
            pq.write_table(table, draft)
        write_whole(folder / "partition.json", _readable(about))
    except OSError as error:
        raise PflOpsError(f"can't write the partition to {folder}: {error.strerror or error}") from error
    return folder


def read_partition(path: Path | str) -> Recorded:
    """Read a recorded partition and check its digests.

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
    folder = Path(path).expanduser()
    if folder.suffix in (".json", ".parquet"):
        folder = folder.parent
    about = _about(folder)
    try:
        recorded = _checked(about, _table(folder / "partition.parquet"))
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
    file = folder / "partition.json"
    try:
        if file.stat().st_size > MAX_JSON:
            raise ValueError(f"it has {file.stat().st_size:,} bytes; at most {MAX_JSON:,} are read")
        about = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise PflOpsError(f"no recorded partition in {folder} (partition.json and partition.parquet)") from None
    except (OSError, ValueError, RecursionError) as error:
        raise PflOpsError(f"recorded partition {file} is damaged ({in_a_line(error, 200)})") from error
    if not isinstance(about, dict) or type(about.get("format")) is not int or about["format"] != FORMAT:
        raise PflOpsError(f"recorded partition {file} has a format that this version does not read (it reads {FORMAT})")
    return about


def _table(file: Path) -> Columns:
    """Columns `client`, `split` and `index` of a recorded partition, with their types checked.

    Raises:
        ValueError: a column has another type, an entry is missing, or there are too many rows. pyarrow's own errors
            where the file is damaged.
    """
    import pyarrow as pa
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
    parts = table["split"].cast(pa.string()).to_numpy(zero_copy_only=False)
    other = set(parts) - {"train", "test"}
    if other:
        raise ValueError(f"column split has {min(other)[:40]!r}; allowed: train, test")
    client, index = (table[name].cast(pa.int64()).to_numpy() for name in ("client", "index"))
    return Columns(client, parts == "train", index)


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
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows) or not rows:
        raise ValueError("counts is no table of whole numbers, one row a client")
    listed = len(np.unique(columns.client[columns.is_train]))
    if not k == len(rows) == listed:
        raise ValueError(
            f"clients is {k:,}, but counts has {len(rows):,} rows and partition.parquet lists {listed:,} clients"
        )
    if len({len(row) for row in rows}) > 1 or not 0 < len(rows[0]) <= MAX_CLASSES:
        raise ValueError(f"the rows of counts have {len(rows[0]):,} classes and others, or more than {MAX_CLASSES:,}")
    if any(type(count) is not int or not 0 <= count <= MAX_SAMPLES for row in rows for count in row):
        raise ValueError("counts has an entry that is no whole number >= 0")
    if not has_test and not columns.is_train.all():
        raise ValueError("test_digest is null, but partition.parquet has test samples")
    masks = columns.is_train, ~columns.is_train
    parts = [_by_client(columns.client[chosen], columns.sample[chosen], k) for chosen in masks]
    kept = {name: value for name, value in about.items() if name in ("scheme", "seed", "data", "data_digest", "pooled")}
    return Recorded(parts[0], parts[1] if has_test else None, np.array(rows, dtype=np.int64), kept)


def _by_client(client: np.ndarray, index: np.ndarray, n_clients: int) -> list[np.ndarray]:
    if len(client) and (client.min() < 0 or client.max() >= n_clients):
        raise ValueError(f"client numbers outside 0..{n_clients - 1}")
    if len(index) and index.min() < 0:
        raise ValueError(f"sample number {index.min()}; the first sample is 0")
    order = np.lexsort((index, client))
    again = (np.diff(client[order]) == 0) & (np.diff(index[order]) == 0)
    if again.any():
        at = order[int(np.argmax(again))]
        raise ValueError(f"client {client[at]} lists sample {index[at]} twice")
    ends = np.cumsum(np.bincount(client, minlength=n_clients))
    return np.split(index[order], ends[:-1])


def _readable(about: dict[str, Any]) -> str:
    """JSON with a line a field, and a line a client in the table."""
    lines = []
    for name, value in about.items():
        text = json.dumps(value)
        if name == "counts":
            text = "[\n    " + ",\n    ".join(json.dumps(row) for row in value) + "\n  ]"
        lines.append(f"  {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


class _OwnClients(Scheme):
    """A scheme whose clients are given: how many there are need not be said."""

    clients: int | None = Field(  # type: ignore[assignment]
        None, ge=1, le=MOST_COUNT, title="K", description="number of clients; none: all that there are"
    )


class _File(_OwnClients):
    path: str
    digest: str | None

    @model_validator(mode="after")
    def _names_a_path(self) -> "_File":
        if not self.path:
            raise ValueError("partition 'file' needs a path: file:PATH, or partition.path")
        return self

    def identity(self) -> dict[str, Any]:
        """All fields but the path, for which the digests of what lies there stand."""
        recorded = read_partition(self.path)
        test = content_hash(recorded.test) if recorded.test is not None else None
        kept = {name: value for name, value in super().identity().items() if name != "path"}
        return kept | {"clients": len(recorded.train), "digest": recorded.digest, "test_digest": test}


@partition("natural", base=_OwnClients)
def natural(
    labels: np.ndarray,
    n_clients: int | None,
    *,
    rng: np.random.Generator,
    users: np.ndarray | None,
    min_size: Annotated[
        int, Field(ge=1, le=MOST_COUNT, description="the data set's clients with fewer samples are left out")
    ] = 1,
) -> list[np.ndarray]:
    """The data set's own clients.

    Args:
        labels: class of each sample, int [n].
        n_clients: K clients drawn at random; None: all.
        rng: the only source of randomness; not used for all.
        users: the data set's own client number of each sample, int [n]; None: it has none.
        min_size: samples that a client must have.
    Returns:
        one sorted index array a client, by ascending client number; clients not drawn keep their samples to themselves.
    Raises:
        PartitionError: the data set has no clients of its own, or fewer than K with `min_size` samples.

    >>> users = np.array([30, 10, 30, 20, 30, 10])
    >>> clients = natural(np.zeros(6), None, rng=np.random.default_rng(0), users=users, min_size=2)
    >>> [rows.tolist() for rows in clients]  # clients 10 and 30; client 20 has one sample
    [[1, 5], [0, 2, 4]]

    Source: LEAF (Caldas et al. 2018), as used by FedAvg2Rep (fourth seed).
    """
    if users is None:
        raise PartitionError(
            "partition 'natural' needs a data set with clients of its own (client_train, client_test); {data} has none"
        )
    order = np.argsort(users, kind="stable")
    _, starts = np.unique(users[order], return_index=True)
    clients = [rows for rows in np.split(order, starts[1:]) if len(rows) >= min_size]
    wanted = len(clients) if n_clients is None else n_clients
    if wanted > len(clients) or not clients:
        raise PartitionError(
            f"partition 'natural' needs clients <= {len(clients):,} ({{data}} has {len(clients):,} clients with "
            f"{min_size:,} samples or more), got {max(wanted, 1):,}"
        )
    if wanted < len(clients):
        clients = [clients[i] for i in np.sort(rng.choice(len(clients), wanted, replace=False))]
    return clients


@partition("file", base=_File)
def file(
    labels: np.ndarray,
    n_clients: int | None,
    *,
    rng: np.random.Generator,
    origin: np.ndarray | None,
    path: Annotated[str, Field(description="folder of a recorded partition (partition.parquet, partition.json)")] = "",
    digest: Annotated[str | None, Field(description="what its digest must be; none: not checked")] = None,
) -> list[np.ndarray]:
    """A recorded partition: exactly the same clients as in another run.

    Args:
        labels: class of each sample, int [n].
        n_clients: K, which must be the file's; None: not checked.
        rng: not used.
        origin: number of each sample in the data set as published, int [n]; None: 0..n-1.
        path: the folder.
        digest: the partition's digest, if it is known.
    Returns:
        the recorded clients' sorted index arrays; samples that the file does not name stay unused.
    Raises:
        PartitionError: it is for other data, has other clients, or names samples that `data.train_size` left out.

    >>> import tempfile
    >>> labels, rng = np.array([0, 1, 0, 1, 1]), np.random.default_rng(0)
    >>> five = Recorded([np.array([0, 2, 4]), np.array([1, 3])], test=None, counts=np.array([[2, 1], [0, 2]]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = str(write_partition(folder, five))
    ...     [rows.tolist() for rows in file(labels, None, rng=rng, origin=None, path=path)]
    [[0, 2, 4], [1, 3]]
    """
    recorded = read_partition(path)
    if digest is not None and digest != recorded.digest:
        raise PartitionError(
            f"recorded partition {path} has digest {recorded.digest[:12]}, not {digest[:12]} as wanted"
        )
    if n_clients is not None and n_clients != len(recorded.train):
        raise PartitionError(
            f"recorded partition {path} has {len(recorded.train):,} clients, got clients = {n_clients:,}"
        )
    clients = locate(recorded.train, np.arange(len(labels)) if origin is None else origin, f"recorded partition {path}")
    counts = counts_table(labels, clients, max(recorded.counts.shape[1], int(labels.max()) + 1))
    counts = counts[:, : recorded.counts.shape[1]]
    if not np.array_equal(counts, recorded.counts):
        k, c = np.argwhere(counts != recorded.counts)[0]
        raise PartitionError(
            f"recorded partition {path} is for other data: client {k} has {recorded.counts[k, c]:,} samples of "
            f"class {c} there, {counts[k, c]:,} in {{data}}"
        )
    return clients


def locate(clients: Sequence[np.ndarray], origin: np.ndarray, what: str) -> list[np.ndarray]:
    """Return the positions of published sample numbers among those at hand, an int64 array a client.

    Args:
        clients: sample numbers of the data set as published.
        origin: the published number of each sample at hand, ascending, int [n].
        what: the partition, for messages.

    >>> origin = np.array([3, 5, 8])  # data.train_size kept three samples
    >>> [rows.tolist() for rows in locate([np.array([5, 8]), np.array([3])], origin, "recorded")]
    [[1, 2], [0]]
    """
    found = []
    for rows in clients:
        at = np.minimum(np.searchsorted(origin, rows), len(origin) - 1)
        lost = rows[origin[at] != rows]
        if len(lost):
            raise PartitionError(
                f"{what} has sample {lost[0]:,}, which is not among the {len(origin):,} of {{data}} in use; "
                "was it made with another data.train_size?"
            )
        found.append(at)
    return found
