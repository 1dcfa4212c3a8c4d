"""Folders that are whole or not there, and whose damage shows."""

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pfl_ops.federation.state import durable
from pfl_ops.federation.state.durable import DamagedFile, Folder

PARTS = [{"w": torch.arange(6.0), "n": torch.tensor(3)}, {"w": torch.ones(2, 2, dtype=torch.bfloat16)}]
ABOUT = {"name": "mine", "scores": [0.1, math.nan], "nested": {"b": 1, "a": None}}


def flip(file: Path) -> None:
    """One bit of a file, three quarters of the way in."""
    data = bytearray(file.read_bytes())
    data[len(data) * 3 // 4] ^= 0x10
    file.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda p: os.truncate(p / "state-000.safetensors", 9),
    "empty": lambda p: os.truncate(p / "state-000.safetensors", 0),
    "a flipped bit": lambda p: flip(p / "state-000.safetensors"),
    "a missing file": lambda p: (p / "state-000.safetensors").unlink(),
    "no meta": lambda p: (p / "meta.json").unlink(),
    "a flipped bit in meta": lambda p: flip(p / "meta.json"),
    "meta that was edited": lambda p: edited(p / "meta.json"),
    "bad JSON": lambda p: (p / "meta.json").write_text('{"about": {'),
    "not UTF-8": lambda p: (p / "meta.json").write_bytes(b"\xff\xfe\x00"),
    "meta of another form": lambda p: (p / "meta.json").write_text('["mine"]'),
    "meta without a digest": lambda p: (p / "meta.json").write_text('{"about": {}, "parts": {}}'),
    "a folder in place of a file": lambda p: [(p / "meta.json").unlink(), (p / "meta.json").mkdir()],
    "an empty folder": lambda p: [f.unlink() for f in p.iterdir()],
}
"""Damages of a folder, by name."""


def edited(file: Path) -> None:
    kept = json.loads(file.read_text())
    kept["about"]["name"] = "yours"
    file.write_text(json.dumps(kept))


def written(place: Path) -> Folder:
    return durable.write(place, ABOUT, iter(PARTS))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    one = written(tmp_path / "deep" / "folder")
    other = durable.read(tmp_path / "deep" / "folder")
    other.check()
    assert repr(one) == repr(other) and other.about["name"] == "mine" and math.isnan(other.about["scores"][1])
    assert other.bytes == sum(f.stat().st_size for f in other.place.iterdir())
    for given, found in zip(PARTS, other.tensors(), strict=True):
        assert given.keys() == found.keys()
        assert all(
            torch.equal(given[name], value) and value.dtype == given[name].dtype for name, value in found.items()
        )


def test_the_digest_is_of_everything(tmp_path: Path) -> None:
    """Equal for equal contents under any name, another for any other about or tensor."""
    one = written(tmp_path / "a").digest
    assert written(tmp_path / "b").digest == one
    others = [
        durable.write(tmp_path / "c", {**ABOUT, "name": "yours"}, PARTS),
        durable.write(tmp_path / "d", ABOUT, PARTS[:1]),
    ]
    assert len({one, *(folder.digest for folder in others)}) == 3


def test_tensors_are_made_and_read_one_part_at_a_time(tmp_path: Path) -> None:
    def parts() -> Iterator[dict[str, Tensor]]:
        for i in range(3):
            assert len(list(tmp_path.glob(".writing-*/state-*"))) == i
            yield {"w": torch.full((4,), float(i))}

    found = durable.write(tmp_path / "it", {}, parts()).tensors()
    assert next(found)["w"][0] == 0
    (tmp_path / "it" / "state-001.safetensors").unlink()
    with pytest.raises(DamagedFile, match=r"state-001\.safetensors is missing"):
        next(found)


def test_nothing_is_a_part_too(tmp_path: Path) -> None:
    assert list(durable.write(tmp_path / "a", {}, [{}]).tensors()) == [{}]
    assert list(durable.write(tmp_path / "b", {}, []).tensors()) == []


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_seen(kind: str, tmp_path: Path) -> None:
    written(tmp_path / "it")
    DAMAGE[kind](tmp_path / "it")
    with pytest.raises(DamagedFile) as caught:
        durable.read(tmp_path / "it").check()
    assert str(caught.value) and "\n" not in str(caught.value) and str(tmp_path) not in str(caught.value)


def test_a_later_part_is_checked_too(tmp_path: Path) -> None:
    written(tmp_path / "it")
    flip(tmp_path / "it" / "state-001.safetensors")
    with pytest.raises(DamagedFile, match=r"state-001\.safetensors does not match its digest"):
        durable.read(tmp_path / "it").check()


def test_what_is_there_is_replaced(tmp_path: Path) -> None:
    written(tmp_path / "it")
    durable.write(tmp_path / "it", {"name": "new"}, PARTS[:1])
    found = durable.read(tmp_path / "it")
    found.check()
    assert found.about == {"name": "new"} and len(list((tmp_path / "it").iterdir())) == 2


@pytest.mark.parametrize("error", [OSError("no room"), KeyboardInterrupt(), ValueError("a part that can't be made")])
def test_what_fails_leaves_nothing(error: BaseException, tmp_path: Path) -> None:
    written(tmp_path / "it")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    def parts() -> Iterator[dict[str, Tensor]]:
        yield {"w": torch.ones(3)}
        raise error

    with pytest.raises(type(error)):
        durable.write(tmp_path / "it", {}, parts())
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    assert len(list(tmp_path.iterdir())) == 1


def test_drafts_of_the_dead_go_with_the_next(tmp_path: Path) -> None:
    (tmp_path / ".writing-0123abcd").mkdir()
    (tmp_path / ".writing-0123abcd" / "state-000.safetensors").write_bytes(b"half of it")
    written(tmp_path / "it")
    assert [p.name for p in tmp_path.iterdir()] == ["it"]


def test_everything_is_synced_before_it_bears_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, rename = os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name), sync(fd)))
    monkeypatch.setattr(Path, "rename", lambda a, b: (done.append("rename"), rename(a, b))[1])
    written(tmp_path / "it")
    *files, draft, renamed, parent = done
    assert sorted(files) == ["meta.json", "state-000.safetensors", "state-001.safetensors"]
    assert draft.startswith(".writing-") and renamed == "rename" and parent == tmp_path.name
