"""Writing a recorded partition in parts, so that a million clients need neither a loop nor memory for all of it.

The files are those of `recorded.write_partition`, and `recorded.read_partition` reads them. That module's code is part
of the hash of runs with its schemes (`code_digest`), so it stays as it is.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from pfl_ops.data.by_client import ByClient
from pfl_ops.data.partition import content_hash
from pfl_ops.data.recorded import FORMAT, Recorded
from pfl_ops.errors import PflOpsError
from pfl_ops.files import replacing

SAMPLES_AT_ONCE = 1 << 20
CLIENTS_AT_ONCE = 1 << 16


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
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / "partition.parquet") as draft, pq.ParquetWriter(draft, _schema()) as writer:
            for name, clients in (("train", train), *([("test", test)] if test is not None else [])):
                for table in _tables(name, clients):
                    writer.write_table(table)
        with replacing(folder / "partition.json") as draft, draft.open("w", encoding="utf-8") as file:
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
    file.write('  "counts": [\n')
    for first in range(0, len(counts), CLIENTS_AT_ONCE):
        some = counts[first : first + CLIENTS_AT_ONCE]
        cells = [pa.array(some[:, c]).cast(pa.string()) for c in range(some.shape[1])]
        rows = pc.binary_join_element_wise(*cells, ", ")
        lines = pc.binary_join(pa.ListArray.from_arrays([0, len(rows)], rows), "],\n    [")[0].as_py()
        file.write(("],\n    [" if first else "    [") + lines)
    file.write("]\n  ]\n}\n")


__all__ = ["write_partition"]
