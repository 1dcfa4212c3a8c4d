"""A partition that is written down: read back, by us and by others, and refused when it is not what it says."""

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from full_disk import full_disk

from pfl_ops.data import partition_files
from pfl_ops.data.clients import Clients, build_clients
from pfl_ops.data.datasets import DataSection, load
from pfl_ops.data.partition import PARTITIONS, PartitionError, content_hash
from pfl_ops.data.partition_files import Recorded, read_partition, write_partition
from pfl_ops.errors import PflOpsError


def clients_of(kind: str = "lsqs", split: str = "test", seed: int = 5, data: Any = None, **options: Any) -> Clients:
    section = DataSection(train_size=600, **(data or {}))
    dataset = load(section, sealed=split == "validation")
    return build_clients(dataset, PARTITIONS.get(kind)(**options), seed=seed, split=split)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_partition(tmp_path / "partition", clients_of(clients=7).recorded)


@pytest.mark.parametrize("pooled", [False, True])
def test_round_trip_gives_the_same_clients_under_another_seed(tmp_path: Path, pooled: bool) -> None:
    first = clients_of(clients=7, data={"pooled": pooled})
    folder = write_partition(tmp_path / "a", first.recorded)
    again = clients_of("file", path=str(folder), seed=99, data={"pooled": pooled})
    assert again.partition_digest == first.partition_digest
    for one, two in ((first.train, again.train), (first.held, again.held)):
        assert all(np.array_equal(a, b) for a, b in zip(one.index, two.index, strict=True))
        assert np.array_equal(one.x, two.x)
    assert again.table.tolist() == first.table.tolist()


def test_what_is_read_is_what_was_written(folder: Path) -> None:
    made, found = clients_of(clients=7).recorded, read_partition(folder)
    assert found.digest == made.digest == content_hash(made.train)
    assert all(np.array_equal(a, b) for a, b in zip(made.train, found.train, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(made.test or [], found.test or [], strict=True))
    assert found.about == made.about and found.about["scheme"]["kind"] == "lsqs" and found.about["seed"] == 5
    for file in ("partition.json", "partition.parquet"):
        assert read_partition(folder / file).digest == made.digest
    assert sorted(p.name for p in folder.iterdir()) == ["partition.json", "partition.parquet"]


def test_a_partition_in_parts_is_that_of_json_and_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of about 50 samples and of 3 clients: the JSON that `json` writes, a line a field and a client; the rows of
    a loop over clients."""
    import pyarrow.parquet as pq

    monkeypatch.setattr(partition_files, "SAMPLES_AT_ONCE", 50)
    monkeypatch.setattr(partition_files, "CLIENTS_AT_ONCE", 3)
    made = clients_of(clients=7).recorded
    parts = write_partition(tmp_path / "parts", made)
    assert made.test is not None
    fields = {
        "format": 1, "digest": made.digest, "test_digest": content_hash(made.test), "clients": 7, "samples": 600,
        **made.about,
    }  # fmt: skip
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items()]
    rows = ",\n    ".join(json.dumps(row) for row in made.counts.tolist())
    lines.append(f'  "counts": [\n    {rows}\n  ]')
    assert (parts / "partition.json").read_text() == "{\n" + ",\n".join(lines) + "\n}\n"
    table = pq.read_table(parts / "partition.parquet").to_pydict()
    wanted = [
        (k, name, i)
        for name, each in (("train", made.train), ("test", made.test))
        for k, own in enumerate(each)
        for i in own.tolist()
    ]
    assert list(zip(table["client"], table["split"], table["index"], strict=True)) == wanted
    assert pq.ParquetFile(parts / "partition.parquet").num_row_groups > 7
    assert read_partition(parts).digest == made.digest


def test_a_partition_is_parsed_again_only_if_it_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed digit is found though the file's size and times are as before."""
    first = read_partition(folder)
    monkeypatch.setattr(partition_files, "_about", lambda _: pytest.fail("parsed again"))
    assert read_partition(folder) is first
    monkeypatch.undo()
    file = folder / "partition.json"
    times, text = file.stat(), file.read_text()
    file.write_text(text.replace(first.digest[:8], "0" * 8))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(PflOpsError, match="is damaged"):
        read_partition(folder)


def test_counts_in_another_layout_are_the_same(folder: Path) -> None:
    """One line of JSON, as another tool writes it, and its lines with a space more."""
    made = read_partition(folder)
    file = folder / "partition.json"
    text = file.read_text()
    for other in (json.dumps(json.loads(text)), text.replace(", ", ",  "), text.replace("\n", "\r\n")):
        file.write_text(other)
        assert read_partition(folder).counts.tolist() == made.counts.tolist()


def test_another_library_can_read_it(folder: Path) -> None:
    """pandas and json alone, indices into the data as published."""
    import pandas as pd

    about = json.loads((folder / "partition.json").read_text())
    table = pd.read_parquet(folder / "partition.parquet")
    train = table[table["split"] == "train"]
    labels = load(DataSection(train_size=None)).train.y
    counts = np.stack([np.bincount(labels[rows["index"]], minlength=10) for _, rows in train.groupby("client")])
    assert counts.tolist() == about["counts"] and len(counts) == about["clients"] == 7
    assert train["index"].is_unique and len(train) == about["samples"] == 600
    assert about["data"] == "digits" and len(about["data_digest"]) == 64


def test_a_run_that_saw_no_test_data_records_none(tmp_path: Path) -> None:
    blind = clients_of(split="validation", clients=7)
    seeing = clients_of(split="test", clients=7)
    assert blind.recorded.test is None and blind.partition_digest == seeing.partition_digest
    folder = write_partition(tmp_path / "a", blind.recorded)
    assert read_partition(folder).test is None
    # its test sets are then cut by the training proportions, as they are without a file
    again = clients_of("file", path=str(folder))
    assert all(np.array_equal(a, b) for a, b in zip(again.held.index, seeing.held.index, strict=True))


def test_it_counts_by_content(folder: Path, tmp_path: Path) -> None:
    scheme = PARTITIONS.get("file")
    copy = write_partition(tmp_path / "copy", read_partition(folder))
    one, two = scheme(path=str(folder)).identity(), scheme(path=str(copy), clients=7).identity()
    assert one == two and "path" not in one and one["digest"] == read_partition(folder).digest
    blind = write_partition(tmp_path / "blind", clients_of(split="validation", clients=7).recorded)
    assert scheme(path=str(blind)).identity() != one  # other test sets may follow
    with pytest.raises(ValueError, match=r"needs a path"):
        scheme()


def damage_digest(folder: Path) -> None:
    file = folder / "partition.json"
    file.write_text(file.read_text().replace(read_partition(folder).digest, "0" * 64))


def damage_test(folder: Path) -> None:
    about = json.loads((folder / "partition.json").read_text())
    (folder / "partition.json").write_text(json.dumps(about | {"test_digest": "0" * 64}))


def cut_short(folder: Path) -> None:
    file = folder / "partition.parquet"
    file.write_bytes(file.read_bytes()[:-30])


def flip(folder: Path) -> None:
    file = folder / "partition.parquet"
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    file.write_bytes(raw)


def without(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        about = json.loads((folder / "partition.json").read_text())
        del about[name]
        (folder / "partition.json").write_text(json.dumps(about))

    return change


def other_column(folder: Path) -> None:
    import pandas as pd

    pd.DataFrame({"who": [1], "what": [2]}).to_parquet(folder / "partition.parquet")


def says(**changes: Any) -> Callable[[Path], None]:
    """partition.json with other values."""

    def change(folder: Path) -> None:
        file = folder / "partition.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def listed(**columns: Callable[[Any], Any]) -> Callable[[Path], None]:
    """partition.parquet with other columns."""

    def change(folder: Path) -> None:
        import pandas as pd

        table = pd.read_parquet(folder / "partition.parquet").astype({"split": str})
        table.assign(**{name: make(table) for name, make in columns.items()}).to_parquet(folder / "partition.parquet")

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage_digest, "is damaged: its samples do not have the digest in partition.json"),
        (damage_test, "is damaged: its samples do not have the digest in partition.json"),
        (cut_short, "is damaged"),
        (flip, "is damaged"),
        (other_column, "is damaged"),
        (without("digest"), r"is damaged \(ValueError: partition.json has no field 'digest'\)"),
        (without("clients"), r"is damaged \(ValueError: partition.json has no field 'clients'\)"),
        (says(clients=3), r"clients is 3, but counts has 7 rows and partition.parquet lists 7 clients\)"),
        (says(clients=10_000_000), r"clients is 10,000,000, but counts has 7 rows and partition.parquet lists 7 cl"),
        (says(clients=7.0), r"clients is '7.0'; it must be a whole number > 0"),
        (says(clients=True), r"clients is 'True'; it must be a whole number > 0"),
        (says(clients=10**400), r"clients is '1000000000000000000000000000000000000000'; it must be"),
        (says(clients=float("nan")), r"clients is 'nan'; it must be"),
        (says(counts=[[1, 2], [3]] + [[1, 2]] * 5), r"the rows of counts have 2 classes and others"),
        (says(counts=[[1.5] * 10] * 7), r"counts has an entry that is no whole number >= 0"),
        (says(counts=[[-1] * 10] * 7), r"counts has an entry that is no whole number >= 0"),
        (says(counts=[[10**400] * 10] * 7), r"counts has an entry that is no whole number >= 0"),
        (says(counts={"0": 3}), r"counts must be a table of whole numbers, one row a client"),
        (says(digest=["a"]), r"its samples do not have the digest"),
        (says(test_digest=None), r"test_digest is null, but partition.parquet has test samples"),
        (lambda f: (f / "partition.json").write_text("[" * 100_000), r"partition.json is damaged \(RecursionError"),
        (listed(index=lambda t: t["index"] * 1.5), r"column index holds double, not whole numbers"),
        (
            listed(index=lambda t: t["index"].where(t["index"] > 9).astype("Int64")),
            r"column index has .* empty entries",
        ),
        (listed(index=lambda t: -t["index"] - 1), r"sample number -\d+; the first sample is 0"),
        (listed(index=lambda t: t["index"] * 0), r"client \d lists sample 0 twice"),
        (listed(client=lambda t: t["client"] + 1), r"client numbers outside 0..6"),
        (listed(client=lambda t: t["client"].astype(str)), r"column client holds .*string, not whole numbers"),
        (listed(split=lambda t: "all"), r"column split has 'all'; allowed: train, test"),
        (listed(split=lambda t: 1), r"column split holds int64, not texts"),
        (without("format"), r"has a format that this version does not read \(it reads 1\)"),
        (lambda f: (f / "partition.json").write_text("{"), "is damaged"),
        (lambda f: (f / "partition.json").write_text("[]"), "has a format"),
        (lambda f: (f / "partition.parquet").unlink(), "has no partition.parquet"),
        (lambda f: (f / "partition.json").unlink(), "no recorded partition in"),
    ],
)
def test_damage_is_refused_in_one_line(folder: Path, change: Callable[[Path], Any], message: str) -> None:
    change(folder)
    with pytest.raises(PflOpsError, match=message) as error:
        read_partition(folder)
    assert "\n" not in str(error.value)


def test_a_partition_of_many_clients_that_lists_few_takes_no_memory(folder: Path) -> None:
    """One array a declared client would be a gigabyte."""
    says(clients=10_000_000)(folder)
    tracemalloc.start()
    try:
        with pytest.raises(PflOpsError):
            read_partition(folder)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


def test_a_full_disk_leaves_the_old_partition(folder: Path) -> None:
    made = clients_of(clients=5).recorded
    before = read_partition(folder)
    with full_disk(after=100), pytest.raises(PflOpsError, match=r"can't write the partition to .*: ") as error:
        write_partition(folder, made)
    assert "\n" not in str(error.value)
    assert read_partition(folder).digest == before.digest
    assert sorted(file.name for file in folder.iterdir()) == ["partition.json", "partition.parquet"]
    with full_disk(after=100), pytest.raises(PflOpsError, match=r"can't write the partition to .*: "):
        write_partition(folder / "new" / "one", made)
    assert not (folder / "new").exists()


def test_a_disk_with_room_for_one_of_both_files_leaves_the_old_partition(tmp_path: Path) -> None:
    """The new samples took their place beside the old words, and neither partition could be read."""
    old, new = (
        Recorded([np.array([k, 2])], test=None, counts=np.array([[1, 1]]), about={"note": "x" * k}) for k in (0, 20_000)
    )
    write_partition(tmp_path, old)
    with full_disk(after=15_000), pytest.raises(PflOpsError, match=r"can't write the partition to .*: "):
        write_partition(tmp_path, new)
    assert read_partition(tmp_path).digest == old.digest
    assert sorted(file.name for file in tmp_path.iterdir()) == ["partition.json", "partition.parquet"]


def test_for_other_data_or_other_clients(folder: Path, tmp_path: Path) -> None:
    scheme = PARTITIONS.get("file")
    rng = np.random.default_rng(0)
    labels = load(DataSection(train_size=None)).train.y
    with pytest.raises(PartitionError, match=r"has 7 clients, got clients = 20"):
        scheme(path=str(folder), clients=20).indices(labels, rng)
    with pytest.raises(PartitionError, match=r"has digest .*, not 000000000000 as wanted"):
        scheme(path=str(folder), digest="0" * 64).indices(labels, rng)
    with pytest.raises(PartitionError, match=r"is for other data: client 0 has .* samples of class .* in digits"):
        scheme(path=str(folder)).indices((labels + 1) % 10, rng, data="digits")
    with pytest.raises(
        PartitionError, match=r"among the 300 of digits in use; was it made with another data.train_size"
    ):
        dataset = load(DataSection(train_size=300))
        build_clients(dataset, scheme(path=str(folder)), seed=0, split="test")
    with pytest.raises(PartitionError, match=r"needs data.pooled: false"):
        clients_of("file", path=str(folder), data={"pooled": True})
    about = json.loads((folder / "partition.json").read_text())
    (folder / "partition.json").write_text(json.dumps(about | {"data_digest": "ab" * 32, "data": "mnist"}))
    with pytest.raises(PartitionError, match=r"is for other data: mnist with digest abababababab, where digits has"):
        clients_of("file", path=str(folder))


def test_clients_made_elsewhere(tmp_path: Path) -> None:
    """Somebody's own list of lists: samples may be left out, none may be given twice."""
    labels = load(DataSection(train_size=None)).train.y
    parts = [np.arange(0, 50), np.arange(100, 130)]
    counts = np.stack([np.bincount(labels[rows], minlength=10) for rows in parts])
    folder = write_partition(tmp_path / "own", Recorded(parts, None, counts))
    dataset = load(DataSection(train_size=None))
    clients = build_clients(dataset, PARTITIONS.get("file")(path=str(folder)), seed=0, split="test")
    assert clients.train.sizes.tolist() == [50, 30] and len(clients.train) == 80
    assert len(clients.held) == len(dataset.test.y)
    twice = Recorded([parts[0], parts[0]], None, np.stack([counts[0]] * 2))
    with pytest.raises(PartitionError, match=r"gave sample 0 to two clients"):
        write_partition(folder, twice)
        build_clients(dataset, PARTITIONS.get("file")(path=str(folder)), seed=0, split="test")


@pytest.mark.parametrize("pooled", [False, True])
def test_a_test_sample_belongs_to_one_client(tmp_path: Path, pooled: bool) -> None:
    made = clients_of(clients=7, data={"pooled": pooled}).recorded
    assert made.test is not None
    leaked = made.train[0][:1] if pooled else made.test[0][:1]
    wrong = Recorded(made.train, [*made.test[:-1], np.sort(np.append(made.test[-1], leaked))], made.counts, made.about)
    folder = write_partition(tmp_path / "a", wrong)
    with pytest.raises(PartitionError, match="gives a test sample to two clients, or for training too"):
        clients_of("file", path=str(folder), data={"pooled": pooled})
