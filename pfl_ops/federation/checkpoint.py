"""A run on disk: the state after a round and every record so far, written so that a kill at any moment loses no round.

    <folder>/round-00012/state.safetensors   tensors of the state
                         records.json        records of rounds 0..12
                         meta.json           identity, resolved execution, digests of the other two files
    <folder>/finished/...                    final scores, once the run is over

A checkpoint is written into a hidden folder, synced, and renamed: what bears the name is whole. Damage (a digest that
does not match) is reported and the checkpoint before it is used.
"""

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.contract import ClientRows, State

KEEP = 2


class CheckpointError(PflOpsError):
    """A checkpoint is damaged, or belongs to something else, or can't be written."""


@dataclass(frozen=True)
class Record:
    """What one round left behind.

    Attributes:
        round: finished rounds; 0 is the start.
        metrics: tracked keys -> values.
        time: milliseconds since the epoch when it was first recorded: delivered twice, it is the same point.
    """

    round: int
    metrics: dict[str, float]
    time: int


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and found whole."""

    round: int
    tensors: dict[str, Tensor]
    records: list[Record]
    meta: dict[str, Any]

    def restore(self, s: State) -> State:
        """The state of this round, in the form of a fresh `init`.

        Raises:
            CheckpointError: it holds a state of another form.
        """
        new: State = {}
        for name, value in s.items():
            try:
                if isinstance(value, ClientRows):
                    prefix = f"{name}/"
                    value.restore({k[len(prefix) :]: v for k, v in self.tensors.items() if k.startswith(prefix)})
                    new[name] = value
                else:
                    kept = self.tensors[name].to(value.device)
                    if kept.shape != value.shape or kept.dtype != value.dtype:
                        raise RuntimeError("another shape or type")
                    new[name] = kept
            except (KeyError, RuntimeError, IndexError) as error:
                raise CheckpointError(
                    f"the checkpoint of round {self.round} does not fit this method's state '{name}' ({error}); "
                    "--no-resume starts again"
                ) from error
        return new


@dataclass(frozen=True)
class Finished:
    """What a finished run keeps.

    Attributes:
        tensors: `global`, G, where there is one.
        full: whether everything was scored in full.
        final: `final/…` and `best/…` keys. clients: column -> values of the full evaluation.
    """

    tensors: dict[str, Tensor]
    full: bool
    final: dict[str, float]
    clients: dict[str, list[Any]]


def save(folder: Path, round_: int, s: State, records: list[Record], meta: Mapping[str, Any]) -> Path:
    """Write the checkpoint of a round; older ones but the last two go once it is durable.

    Raises:
        CheckpointError: the disk is full, or the folder can't be written; what was there before stays.
    """
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in s.items():
        if isinstance(value, ClientRows):
            tensors |= {f"{name}/{key}": t.contiguous() for key, t in value.snapshot().items()}
            continue
        plain = value.detach().cpu().contiguous()
        storage = plain.untyped_storage().data_ptr()
        tensors[name] = plain.clone() if storage in seen else plain  # safetensors refuses two names for one memory
        seen.add(storage)
    place = _write(folder, f"round-{round_:05d}", meta, tensors, {"records.json": [asdict(r) for r in records]})
    for _, old in _rounds(folder)[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return place


def latest(folder: Path, identity: str) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint of an experiment, and one line for each damaged one that was passed over.

    Raises:
        CheckpointError: the folder holds another experiment's checkpoints.
    """
    damaged = []
    found = None
    for number, place in reversed(_rounds(folder)):
        try:
            found = _checkpoint(number, place)
        except CheckpointError as error:
            damaged.append((place.name, error))
            continue
        if found.meta.get("identity") != identity:
            other = str(found.meta.get("identity"))[:12]
            raise CheckpointError(f"{folder} holds checkpoints of another experiment ({other}); name another folder")
        break
    then = f"going on from round {found.round}" if found is not None else "none is left before it, starting again"
    return found, [f"checkpoint {name} is damaged ({error}): {then}" for name, error in damaged]


def before(folder: Path, identity: str, round_: int) -> Checkpoint | None:
    """The newest whole checkpoint of an earlier round than `round_`."""
    for number, place in reversed(_rounds(folder)):
        if number < round_:
            try:
                found = _checkpoint(number, place)
            except CheckpointError:
                continue
            return found if found.meta.get("identity") == identity else None
    return None


def finish(
    folder: Path,
    meta: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    full: bool,
    final: Mapping[str, float],
    clients: Mapping[str, list[Any]],
) -> None:
    """Write what a finished run keeps; see `Finished`.

    Raises:
        CheckpointError: as for `save`.
    """
    results = {"full": full, "final": dict(final), "clients": dict(clients)}
    _write(folder, "finished", meta, dict(tensors), {"results.json": results})


def finished(folder: Path, identity: str) -> Finished | None:
    """What `finish` wrote, or None when the run is not over or the files are damaged."""
    if not (folder / "finished").is_dir():
        return None
    try:
        meta, tensors, texts = _read(folder / "finished")
        kept = Finished(tensors, **texts["results.json"])
    except (CheckpointError, KeyError, TypeError):
        return None
    return kept if meta.get("identity") == identity else None


def clear(folder: Path) -> None:
    """Throw away what a run has kept: it starts again. Older checkpoints would outlive the new ones."""
    places = [place for _, place in _rounds(folder)]
    for place in [*places, folder / "finished"]:  # the results last: without checkpoints they are not looked for
        shutil.rmtree(place, ignore_errors=True)


# -- files ------------------------------------------------------------------------------------------------------------


def _rounds(folder: Path) -> list[tuple[int, Path]]:
    """Checkpoints by their round, earliest first."""
    named = ((re.fullmatch(r"round-(\d{5,})", p.name), p) for p in folder.glob("round-*") if p.is_dir())
    return sorted((int(match[1]), p) for match, p in named if match)


def _write(
    folder: Path, name: str, meta: Mapping[str, Any], tensors: dict[str, Tensor], texts: Mapping[str, Any]
) -> Path:
    draft = folder / f".writing-{uuid.uuid4().hex[:8]}"
    place = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".writing-*"):
            shutil.rmtree(left, ignore_errors=True)
        draft.mkdir()
        save_file(tensors, draft / "state.safetensors")
        for file, content in texts.items():
            (draft / file).write_text(json.dumps(content), encoding="utf-8")
        digests = {p.name: _digest(p) for p in sorted(draft.iterdir())}
        (draft / "meta.json").write_text(json.dumps({**meta, "digests": digests}, sort_keys=True), encoding="utf-8")
        for p in [*draft.iterdir(), draft]:
            _sync(p)
        if place.exists():
            shutil.rmtree(place)
        draft.rename(place)
        _sync(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise CheckpointError(
            f"can't write {name} in {folder}: {why}; earlier checkpoints are kept, the same command goes on from them"
        ) from error
    return place


def _checkpoint(number: int, place: Path) -> Checkpoint:
    meta, tensors, texts = _read(place)
    try:
        records = [Record(r["round"], r["metrics"], r["time"]) for r in texts["records.json"]]
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{type(error).__name__}: {error}") from error
    return Checkpoint(number, tensors, records, meta)


def _read(place: Path) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any]]:
    try:
        meta = json.loads((place / "meta.json").read_text(encoding="utf-8"))
        for name, digest in meta["digests"].items():
            if _digest(place / name) != digest:
                raise CheckpointError(f"{name} does not match its digest")
        tensors = load_file(place / "state.safetensors")
        texts = {
            name: json.loads((place / name).read_text("utf-8")) for name in meta["digests"] if name[-5:] == ".json"
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        why = f"{Path(error.filename).name} is missing" if isinstance(error, FileNotFoundError) else str(error)
        raise CheckpointError(why if isinstance(error, OSError) else f"{type(error).__name__}: {why}") from error
    return meta, tensors, texts


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
