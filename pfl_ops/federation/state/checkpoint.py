"""A run on disk: the state after a round and every record so far, written so that a kill at any moment loses no round.

    <folder>/base-00012/    everything after round 12: the state, records of rounds 0..12
             delta-00013/   what round 13 changed: rows that were written, tensors, records since round 12
             delta-00014/   the same for round 14, and so on
             finished/      all that stays of a run that is over: results, records, table of clients, last state

Each is a folder as `durable` writes it, whole or not there, with tensors as `snapshot` names them. A delta bears the
digest of what it stands on: no other history can be mistaken for its own. Where the deltas would outgrow their base, a
new base is written instead: what a round writes grows with what it changes, and all that lies there stays below three
times the state. The base before and its deltas go when the next checkpoint is written, so there is always an earlier
round to go back to.

Damage is reported in one line; the run goes on from the last round before it that is whole.
"""

import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.state import durable, snapshot
from pfl_ops.federation.state.durable import DamagedFile, Folder
from pfl_ops.federation.state.rows import ClientRows, State

FINISHED = "finished"
MODEL = "results/global"
COLUMN = "results/clients/"


class CheckpointError(PflOpsError):
    """A checkpoint is damaged, or belongs to something else, or can't be written."""


@dataclass(frozen=True)
class Record:
    """The metrics of one round.

    Attributes:
        round: finished rounds; 0 is the start.
        metrics: tracked keys -> values.
        time: milliseconds since the epoch when it was first recorded: delivered twice, it is the same point.
    """

    round: int
    metrics: dict[str, float]
    time: int


@dataclass(frozen=True)
class Results:
    """The results of a finished run, beside its records, table of clients and state.

    Attributes:
        full: whether everything was scored in full.
        final: `final/…` and `best/…` keys.
    """

    full: bool
    final: dict[str, float]


Table: TypeAlias = dict[str, np.ndarray]
"""Column -> values: numbers, or texts of which there are few."""


class Checkpoint:
    """A round that can be read back.

    Args:
        folders: a base and the deltas on it, or the folder of a finished run.
    Raises:
        CheckpointError: another version of pfl-ops wrote them.

    Attributes:
        round: its number. records: of all rounds so far. meta: what the run said of itself.
        results: of a finished run, else None. holds_state: False where only its scores were kept.
    """

    def __init__(self, folders: Sequence[Folder]) -> None:
        self.folders = list(folders)
        last = self.folders[-1].about
        try:
            self.round: int = last["round"]
            self.records = [Record(**record) for folder in self.folders for record in folder.about["records"]]
            self.meta: dict[str, Any] = last["meta"]
            said = last.get("results")
            self.results = Results(said["full"], said["final"]) if said is not None else None
            self._columns: dict[str, list[str] | None] = said["columns"] if said is not None else {}
            self.holds_state: bool = last["holds_state"]
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self.folders[-1].place} was written by another version of pfl-ops; --no-resume starts again"
            ) from error

    def restore(self, s: State) -> State:
        """The state of this round, in the form of a fresh `init`, whose rows it takes over.

        Raises:
            CheckpointError: it holds a state of another form, or can't be read.
        """
        try:
            return snapshot.restore((part for folder in self.folders for part in folder.tensors()), s)
        except DamagedFile as error:
            raise CheckpointError(f"the checkpoint of round {self.round} can't be read: {error}") from error
        except ValueError as error:
            raise CheckpointError(
                f"the checkpoint of round {self.round} does not fit this method's state {error}; "
                "--no-resume starts again"
            ) from error

    def model(self) -> Tensor | None:
        """G of a finished run, [P], where there is one."""
        return next((part[MODEL] for part in self.folders[-1].tensors() if MODEL in part), None)

    def clients(self) -> Table:
        """The table of clients of a finished run, as it was given to `finish`; {}: the run is not over."""
        found: dict[str, np.ndarray] = {}
        for part in self.folders[-1].tensors() if self._columns else ():
            found |= {name.removeprefix(COLUMN): t.numpy() for name, t in part.items() if name.startswith(COLUMN)}
            if len(found) == len(self._columns):
                break
        columns = self._columns.items()
        return {name: found[name] if texts is None else np.array(texts)[found[name]] for name, texts in columns}


class Checkpoints:
    """All that one run has on disk.

    Args:
        folder: its own folder. identity: the experiment's hash.
        resume: look for what is there; False: as if there were nothing.
    Raises:
        CheckpointError: the folder holds another experiment's checkpoints, or those of another pfl-ops.

    Attributes:
        latest: what there is to go on from; of a finished run, its end. complaints: a line for each damaged folder.
    """

    def __init__(self, folder: Path, identity: str, *, resume: bool = True) -> None:
        self.folder, self.identity = folder, identity
        self.latest: Checkpoint | None = None
        self.complaints: list[str] = []
        self._stands_on: list[Folder] = []  # a base and its deltas, to which the next one is added
        self._tidied = False  # whether nothing but these is there
        if resume:
            self._look()

    # -- rounds -------------------------------------------------------------------------------------------------------

    def save(self, round_: int, s: State, records: Sequence[Record], meta: Mapping[str, Any]) -> None:
        """Keep a round: what changed since the one that was kept or read here last; or everything.

        Args:
            records: of all rounds so far. meta: what JSON can hold.
        Raises:
            CheckpointError: the disk is full, or the folder can't be written; what was there before stays.
        """
        if not self._tidied:
            self._remove(but={folder.place for folder in self._stands_on})
        deltas = sum(folder.bytes for folder in self._stands_on[1:])
        whole = not self._stands_on or deltas + snapshot.changed_bytes(s) > self._stands_on[0].bytes
        known = 0 if whole else sum(len(folder.about["records"]) for folder in self._stands_on)
        about = {
            **self._about(round_, records[known:], meta),
            "after": None if whole else self._stands_on[-1].digest,
            "holds_state": True,
        }
        name = f"{'base' if whole else 'delta'}-{round_:05d}"
        written = self._write(name, about, snapshot.parts(s, whole=whole))
        self._tidied = not whole
        self._stands_on = [written] if whole else [*self._stands_on, written]
        for value in s.values():
            if isinstance(value, ClientRows):
                value.kept()

    def before(self, round_: int) -> Checkpoint | None:
        """The newest whole checkpoint of an earlier round than `round_`."""
        folders, _ = self._longest(below=round_)
        return Checkpoint(folders) if folders else None

    def clear(self) -> None:
        """Throw away what a run has kept: it starts again."""
        shutil.rmtree(self.folder / FINISHED, ignore_errors=True)
        self._remove()
        self._stands_on, self.latest = [], None

    def remove(self) -> None:
        """Remove the folder and all in it: a run that ended before its first round leaves nothing."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._stands_on, self.latest = [], None

    def finish(
        self, round_: int, s: State | None, records: Sequence[Record], meta: Mapping[str, Any], results: Results,
        clients: Table, model: Tensor | None,
    ) -> None:  # fmt: skip
        """Keep what stays of a run that is over, in one folder; its rounds go.

        Args:
            s: the last state, for clients' models to be read from; None: none is needed.
            clients: the table of the full evaluation, else of the last round's; its columns become tensors.
            model: G, [P].
        Raises:
            CheckpointError: as for `save`.
        """
        names: dict[str, list[str] | None] = {}
        extra = {} if model is None else {MODEL: model}
        for name, values in clients.items():
            texts, numbers = np.unique(values, return_inverse=True) if values.dtype.kind == "U" else (None, values)
            names[name] = None if texts is None else texts.tolist()
            extra[f"{COLUMN}{name}"] = torch.from_numpy(numbers)
        about = {
            **self._about(round_, records, meta), "after": None, "holds_state": s is not None,
            "results": asdict(results) | {"columns": names},
        }  # fmt: skip
        parts = snapshot.parts(s or {}, whole=True, extra=extra)
        self.latest = Checkpoint([self._write(FINISHED, about, parts)])
        self.tidy()

    def tidy(self) -> None:
        """Remove the rounds of a run that is over, as `finish` does unless it is killed."""
        self._remove()
        self._stands_on = []

    # -- files --------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Find what there is to go on from."""
        place = self.folder / FINISHED
        if place.is_dir():
            try:
                self.latest = Checkpoint([self._whole(place)])
                return
            except DamagedFile as error:
                self.complaints.append(f"the results in {self.folder} are damaged ({error})")
        self._stands_on, damaged = self._longest()
        if self._stands_on:
            self.latest = Checkpoint(self._stands_on)
        then = f"going on from round {self.latest.round}" if self.latest else "none is left before it, starting again"
        self.complaints += [f"checkpoint {name} is damaged ({why})" for name, why in damaged]
        self.complaints = [f"{line}: {then}" for line in self.complaints]

    def _longest(self, below: float = float("inf")) -> tuple[list[Folder], list[tuple[str, str]]]:
        """The newest whole base with the deltas that follow, and (name, why) of what is damaged on the way there."""
        bases, deltas = ([(n, p) for n, p in _rounds(self.folder, kind) if n < below] for kind in ("base", "delta"))
        damaged: list[tuple[str, str]] = []
        for number, base in reversed(bases):
            try:
                found = [self._whole(base)]
            except DamagedFile as error:
                damaged.append((base.name, str(error)))
                continue
            for place in (p for later, p in deltas if later > number):
                try:
                    delta = self._whole(place)
                    if delta.about.get("after") != found[-1].digest:
                        raise DamagedFile("the one that it stands on is missing")
                except DamagedFile as error:
                    damaged.append((place.name, str(error)))
                    break
                found.append(delta)
            return found, damaged
        return [], damaged

    def _whole(self, place: Path) -> Folder:
        folder = durable.read(place)
        other = folder.about.get("identity")
        if other != self.identity:
            raise CheckpointError(
                f"{self.folder} holds checkpoints of another experiment ({str(other)[:12]}); name another folder"
            )
        folder.check()
        return folder

    def _about(self, round_: int, records: Sequence[Record], meta: Mapping[str, Any]) -> dict[str, Any]:
        said = [vars(record) for record in records]  # `asdict` would copy them: 0.4 of the CPU time
        return {"identity": self.identity, "round": round_, "records": said, "meta": dict(meta)}

    def _write(self, name: str, about: Mapping[str, Any], parts: Iterable[dict[str, Tensor]]) -> Folder:
        try:
            return durable.write(self.folder / name, about, parts)
        except (OSError, SafetensorError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise CheckpointError(
                f"can't write {name} in {self.folder}: {why}; earlier checkpoints are kept, the same command goes on "
                "from them"
            ) from error

    def _remove(self, but: Collection[Path] = ()) -> None:
        """Remove all rounds but some; the oldest first, a base before what stands on it."""
        for kind in ("base", "delta"):
            for _, place in _rounds(self.folder, kind):
                if place not in but:
                    shutil.rmtree(place, ignore_errors=True)
        self._tidied = True


def _rounds(folder: Path, kind: str) -> list[tuple[int, Path]]:
    """Folders of a kind by their round, earliest first."""
    named = ((re.fullmatch(rf"{kind}-(\d{{5,}})", p.name), p) for p in folder.glob(f"{kind}-*") if p.is_dir())
    return sorted((int(match[1]), p) for match, p in named if match)
