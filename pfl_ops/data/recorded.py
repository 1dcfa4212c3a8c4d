"""Clients that exist already: the data set's own (natural), and a recorded partition (file), which is written and
read here.

A recorded partition is a folder with `partition.parquet` (columns `client`, `split`, `index`) and `partition.json`
(where it comes from, class counts, digests). `index` counts the samples of the data set as published, from 0; with
`data.pooled` the test samples follow the training samples. Any tool that reads Parquet can use the same clients.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from pfl_ops.data.cut import counts_table
from pfl_ops.data.partition import PartitionError, Scheme, content_hash, partition
from pfl_ops.errors import PflOpsError
from pfl_ops.section import MOST_COUNT

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Recorded:
    """Who owns what, in sample numbers of the data set as published.

    Attributes:
        train: each client's training samples, a validation share included; sorted int64 arrays.
        test: each client's test samples; None: not cut (a run that never opened the test data).
        counts: classes of the training samples, int [K, L].
        about: where it comes from (`scheme`, `seed`, `data`, `data_digest`, `pooled`), plain JSON values.
    """

    train: list[np.ndarray]
    test: list[np.ndarray] | None
    counts: np.ndarray
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """The partition's own hash: its training samples by client."""
        return content_hash(self.train)


def write_partition(folder: Path | str, recorded: Recorded) -> Path:
    """Write `partition.parquet` and `partition.json`; an older one is replaced file by file, never half-written.

    Returns:
        the folder.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
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
    with _replacing(folder / "partition.parquet") as half:
        pq.write_table(table, half)
    with _replacing(folder / "partition.json") as half:
        half.write_text(_readable(about), encoding="utf-8")
    return folder


def read_partition(path: Path | str) -> Recorded:
    """Read a recorded partition and check its digests.

    Args:
        path: its folder, or one of its two files.
    Raises:
        PflOpsError: it is missing, damaged, or does not say what its digest says.
    """
    folder = Path(path).expanduser()
    if folder.suffix in (".json", ".parquet"):
        folder = folder.parent
    about = _about(folder)
    try:
        import pyarrow.parquet as pq

        table = pq.read_table(folder / "partition.parquet", columns=["client", "split", "index"])
        client = table["client"].to_numpy().astype(np.int64)
        split = np.asarray(table["split"].to_pylist(), dtype=object)
        index = table["index"].to_numpy().astype(np.int64)
        k = int(about["clients"])
        counts = np.array(about["counts"], dtype=np.int64)
        train = _by_client(client[split == "train"], index[split == "train"], k)
        test = None
        if about["test_digest"] is not None:
            test = _by_client(client[split == "test"], index[split == "test"], k)
        digests = about["digest"], about["test_digest"]
    except FileNotFoundError:
        raise PflOpsError(f"recorded partition {folder} has no partition.parquet") from None
    except (
        OSError,
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        RuntimeError,
    ) as error:  # pyarrow's are among them
        reason = str(error).split("\n")[0]
        raise PflOpsError(f"recorded partition {folder} is damaged ({type(error).__name__}: {reason})") from error
    if digests != (content_hash(train), content_hash(test) if test is not None else None):
        raise PflOpsError(
            f"recorded partition {folder} is damaged: its samples do not have the digest in partition.json"
        )
    kept = {name: value for name, value in about.items() if name in ("scheme", "seed", "data", "data_digest", "pooled")}
    return Recorded(train, test, counts, kept)


def _about(folder: Path) -> dict[str, Any]:
    file = folder / "partition.json"
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise PflOpsError(f"no recorded partition in {folder} (partition.json and partition.parquet)") from None
    except (OSError, ValueError) as error:
        raise PflOpsError(f"recorded partition {file} is damaged ({type(error).__name__}: {error})") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise PflOpsError(f"recorded partition {file} has a format that this version does not read (it reads {FORMAT})")
    return about


def _by_client(client: np.ndarray, index: np.ndarray, n_clients: int) -> list[np.ndarray]:
    if not 0 < n_clients <= 10_000_000 or (len(client) and (client.min() < 0 or client.max() >= n_clients)):
        raise ValueError(f"client numbers outside 0..{n_clients - 1}")
    order = np.lexsort((index, client))
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


class _replacing:
    """A path to write to, moved over the target when all went well."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.half = target.with_name(f".{target.name}.{os.getpid()}")

    def __enter__(self) -> Path:
        return self.half

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            os.replace(self.half, self.target)
        else:
            self.half.unlink(missing_ok=True)


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
    """Positions of published sample numbers among those at hand.

    Args:
        clients: sample numbers of the data set as published.
        origin: the published number of each sample at hand, ascending, int [n].
        what: the partition, for messages.
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
