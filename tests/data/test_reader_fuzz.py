"""Every reader of data files: hostile bytes give the data or one line of PflOpsError, never another exception."""

import io
import json
import lzma
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from data_samples import arrays
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from pfl_ops.data import shakespeare, store
from pfl_ops.data.npz import checked, read_npz
from pfl_ops.data.partition_files import Recorded, read_partition, write_partition
from pfl_ops.data.tables import read_table
from pfl_ops.errors import PflOpsError
from pfl_ops.models import weights

LONGEST = 1_500  # characters of a message, with the paths in it

fuzz = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def survives(read: Callable[[], Any]) -> Any:
    """Return the value that was read; None if it was refused in one line."""
    try:
        return read()
    except PflOpsError as error:
        message = str(error)
        assert message and "\n" not in message and len(message) < LONGEST
        return None


Edit = tuple[float, str, bytes]
edits = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.sampled_from(["replace", "insert", "delete", "cut", "repeat"]),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=4,
)


def mutated(content: bytes, changes: list[Edit]) -> bytes:
    for place, kind, new in changes:
        at = int(place * len(content))
        if kind == "replace":
            content = content[:at] + new + content[at + len(new) :]
        elif kind == "insert":
            content = content[:at] + new + content[at:]
        elif kind == "delete":
            content = content[:at] + content[at + len(new) :]
        elif kind == "cut":
            content = content[:at]
        else:
            content = content[:at] + content[at:] * 2
    return content


def hostile(valid: bytes) -> st.SearchStrategy[bytes]:
    """Arbitrary bytes, and valid content with a few changes."""
    return st.one_of(st.binary(max_size=200), edits.map(lambda changes: mutated(valid, changes)))


# --- .npz


def packed(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), content, compression)
    return out.getvalue()


def plain(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


MEMBERS = {name: plain(array) for name, array in arrays(8, 4, 2).items()}


def read_data(file: Path) -> dict[str, np.ndarray]:
    return checked(read_npz(file), str(file))


@fuzz
@given(content=hostile(packed(MEMBERS)), compressed=edits)
def test_npz_of_any_bytes(tmp_path: Path, content: bytes, compressed: list[Edit]) -> None:
    for raw in (content, mutated(packed(MEMBERS, zipfile.ZIP_DEFLATED), compressed)):
        (tmp_path / "a.npz").write_bytes(raw)
        survives(lambda: read_data(tmp_path / "a.npz"))


numbers = st.one_of(st.integers(-2, 40), st.sampled_from([2**31, 2**63, 2**64, 10**400]), st.booleans(), st.floats())
descrs = st.one_of(
    st.sampled_from(["|u1", "<f4", ">f4", "<i8", "<u8", "|b1", "|O", "|V0", "<U3", "<M8[s]", "<c8", "|u1,<f4", "V99"]),
    st.lists(st.tuples(st.text(max_size=3), st.sampled_from(["|u1", "|O", "(2,)<f4"])), max_size=3),
    st.text(max_size=12),
    st.none() | st.integers() | st.floats(),
)
headers = st.one_of(
    st.fixed_dictionaries(
        {"descr": descrs, "fortran_order": st.booleans() | st.integers(0, 1), "shape": st.lists(numbers, max_size=5)}
    ).map(lambda about: repr(about | {"shape": tuple(about["shape"])})),
    st.text(max_size=60),
    st.sampled_from(["(" * 9_000, "-" * 9_000 + "1", "{'descr': " * 2_000, "1" * 5_000]),
)


@fuzz
@given(
    name=st.sampled_from(sorted(MEMBERS)),
    header=headers,
    version=st.sampled_from([b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x07"]),
    longer=st.sampled_from([0, 0, 0, -7, 9, 2**15]),
    payload=st.binary(max_size=300),
)
def test_npz_of_any_header(tmp_path: Path, name: str, header: str, version: bytes, longer: int, payload: bytes) -> None:
    text = header.encode("utf-8", "surrogatepass")
    length = max(len(text) + longer, 0)
    size = struct.pack("<H", min(length, 65_535)) if version == b"\x01\x00" else struct.pack("<I", length)
    content = packed({**MEMBERS, name: b"\x93NUMPY" + version + size + text + payload})
    (tmp_path / "a.npz").write_bytes(content)
    survives(lambda: read_data(tmp_path / "a.npz"))


# --- tables


def table(kind: str) -> bytes:
    out = io.BytesIO()
    rows = pd.DataFrame({"client": ["a", "b"] * 6, "label": [0, 1, 1] * 4, "x": range(12), "z": [0.5] * 12})
    rows.to_csv(out, index=False) if kind == "csv" else rows.to_parquet(out, index=False)
    return out.getvalue()


@fuzz
@given(csv=hostile(table("csv")), parquet=hostile(table("parquet")))
def test_tables_of_any_bytes(tmp_path: Path, csv: bytes, parquet: bytes) -> None:
    for name, content in (("a.csv", csv), ("a.parquet", parquet)):
        (tmp_path / name).write_bytes(content)
        survives(lambda name=name: checked(read_table(tmp_path / name), str(tmp_path / name)))


# --- JSON: Shakespeare's two forms, and recorded partitions

values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([10**400, 2**63, float("nan"), float("inf"), "é" * 80, "a" * 80, "\n", "\x00", "a" * 300])
    | st.text("ab ", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "text", "A"]), inner),
    max_leaves=6,
)
ROLES = json.dumps({"roles": {name: {"text": name * 170} for name in ("a", "b")}}).encode()
LEAF = json.dumps({"user_data": {name: {"x": [name * 80] * 90, "y": [name] * 90} for name in ("a", "b")}}).encode()


def read_roles(file: Path) -> dict[str, np.ndarray]:
    return shakespeare.arrays([file], "all", "all")


@fuzz
@given(roles=hostile(ROLES), leaf=hostile(LEAF), xz=hostile(lzma.compress(ROLES)), value=values)
def test_shakespeares_files_of_anything(tmp_path: Path, roles: bytes, leaf: bytes, xz: bytes, value: Any) -> None:
    tree = json.dumps({"roles": {"a": {"text": "a" * 170}, "b": value}}).encode()
    leaves = json.dumps({"user_data": {"a": {"x": ["a" * 80], "y": ["b"]}, "b": value}}).encode()
    for name, content in (
        (shakespeare.ROLES_FILE, roles),
        (shakespeare.ROLES_FILE, tree),
        ("all_data.json", leaf),
        ("all_data.json", leaves),
        (f"{shakespeare.ROLES_FILE}.xz", xz),
    ):
        (tmp_path / name).write_bytes(content)
        survives(lambda name=name: read_roles(tmp_path / name))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Recorded([np.array([0, 2]), np.array([1, 3])], [np.array([0]), np.array([1])], np.ones((2, 2), int))
    return write_partition(tmp_path_factory.mktemp("partition"), made)


FIELDS = ("clients", "counts", "digest", "test_digest", "format", "seed", "pooled")


@fuzz
@given(changes=st.dictionaries(st.sampled_from(FIELDS), values, min_size=1, max_size=2), data=st.data())
def test_recorded_partitions_of_anything(recorded: Path, changes: dict[str, Any], data: st.DataObject) -> None:
    whole = {file: file.read_bytes() for file in recorded.iterdir()}
    table, about = sorted(whole, key=lambda file: file.suffix, reverse=True)
    try:
        about.write_text(json.dumps(json.loads(whole[about]) | changes))
        survives(lambda: read_partition(recorded))
        about.write_bytes(data.draw(hostile(whole[about])))
        survives(lambda: read_partition(recorded))
        about.write_bytes(whole[about])
        table.write_bytes(data.draw(hostile(whole[table])))
        found = survives(lambda: read_partition(recorded))
        assert found is None or [rows.tolist() for rows in found.train] == [[0, 2], [1, 3]]  # by the digest
    finally:
        for file, content in whole.items():
            file.write_bytes(content)


# --- weights

STATE = {"body.weight": torch.ones(3, 2), "head.bias": torch.zeros(2)}


def saved(legacy: bool) -> bytes:
    out = io.BytesIO()
    torch.save(STATE, out, _use_new_zipfile_serialization=not legacy)
    return out.getvalue()


@fuzz
@given(new=hostile(saved(False)), legacy=hostile(saved(True)), tensors=hostile(save(STATE)))
def test_weights_of_any_bytes(tmp_path: Path, new: bytes, legacy: bytes, tensors: bytes) -> None:
    for name, content in (("a.pth", new), ("b.pth", legacy), ("a.safetensors", tensors)):
        (tmp_path / name).write_bytes(content)
        found = survives(lambda name=name: weights.read(tmp_path / name))
        assert found is None or all(isinstance(value, torch.Tensor) for value in found.values())


# --- the cache


@settings(fuzz, max_examples=15)
@given(changes=edits, note=hostile(b'{"key": "a"}'))
def test_a_cache_of_any_bytes_is_remade(
    cache: Path, changes: list[Edit], note: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever happened to a file, the arrays are the ones that were unpacked."""
    made = checked(arrays(8, 4, 2), "a")
    found = store.unpacked("a", lambda: made)
    files = [*sorted(found.folder.iterdir()), *(cache / "sources").glob("*.json")]
    file = files[len(changes[0][2] * len(changes)) % len(files)]
    file.write_bytes(mutated(file.read_bytes(), changes))
    again = store.unpacked("a", lambda: made)
    assert again.meta == found.meta
    assert all(np.array_equal(again.array(name), made[name]) for name in made)
    store.remember("execution", "a", {"rate": 1.5})
    (kept,) = (cache / "execution").iterdir()
    kept.write_bytes(note)
    assert store.remembered("execution", "a") is None
