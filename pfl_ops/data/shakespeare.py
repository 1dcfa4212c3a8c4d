"""LEAF's Shakespeare: a client is a speaking role; 80 of its characters in, the next one out.

Read from LEAF's own JSON, or from a file of whole roles. Either way a role is its windows of 81 characters in the
order of the text, of which the first ones are for training and later ones for testing.
"""

import json
import lzma
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from pfl_ops import rng
from pfl_ops.data.npz import DataError
from pfl_ops.errors import in_a_line

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters; a character's code is its place here."""
MAX_BYTES = 2**30  # of a file's text; LEAF's own are under 400 MB
SEEN = 80  # characters that a network is shown
ROLES, RECORDS = 100, 2_000
ROLES_FILE = "shakespeare_leaf_roles.json"
LEAF_FOLDERS = ("shakespeare", "shakespeare/data")  # as in LEAF's repository

Count: TypeAlias = int | Literal["all"]

_CODE = np.full(256, 255, dtype=np.uint8)
_CODE[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))


class Role(NamedTuple):
    """A role's windows, codes uint8 [n, 81]: 80 characters and the one to predict."""

    train: np.ndarray
    test: np.ndarray


def find(folders: Iterable[Path]) -> list[Path]:
    """The files of the first folder that has any: that of the roles, or what LEAF's scripts leave in `shakespeare/`.

    That is `all_data*.json` (perhaps in a folder `all_data`), or the folders `train` and `test`, whose split is kept.
    """
    for folder in folders:
        for name in (f"{ROLES_FILE}.xz", ROLES_FILE):
            if (folder / name).is_file():
                return [folder / name]
        for leaf in (folder / inside for inside in LEAF_FOLDERS):
            train, test = sorted((leaf / "train").glob("*.json")), sorted((leaf / "test").glob("*.json"))
            if train and test:
                return [*train, *test]
            whole = sorted([*leaf.glob("all_data*.json"), *(leaf / "all_data").glob("all_data*.json")])
            if whole:
                return whole
    return []


def arrays(files: Sequence[Path], roles: Count, records: Count) -> dict[str, np.ndarray]:
    """The chosen roles' records, as a data set's arrays: x uint8 [n, 80], y and client int64 [n].

    Args:
        files: as `find` gives them.
        roles: drawn among those with enough text, always the same ones, fewer a part of more; all: each of them.
            Clients 0, 1, … are the drawn ones by name.
        records: training records of each role; a quarter as many, at least one, are for testing. all: of every role
            what there is, one in five for testing.
    Raises:
        DataError: a file is damaged, or there are not so many roles with so many records.
    """
    enough = {name: role for name, role in sorted(_roles(files, records)) if len(role.train) and len(role.test)}
    wanted = len(enough) if roles == "all" else roles
    if wanted > len(enough) or not enough:
        raise DataError(
            f"shakespeare in {files[0].parent} has {len(enough):,} roles with "
            f"{'any' if records == 'all' else f'{records:,}'} records to train on and others for testing, "
            f"got data.roles = {roles}"
        )
    drawn = np.sort(rng.generator(0, "shakespeare", "roles").permutation(len(enough))[:wanted])
    chosen = [list(enough.values())[i] for i in drawn]
    made: dict[str, np.ndarray] = {}
    for part, windows in (("train", [role.train for role in chosen]), ("test", [role.test for role in chosen])):
        made[f"x_{part}"] = np.concatenate([w[:, :SEEN] for w in windows])
        made[f"y_{part}"] = np.concatenate([w[:, SEEN] for w in windows]).astype(np.int64)
        made[f"client_{part}"] = np.repeat(np.arange(len(windows)), [len(w) for w in windows])
    return made


def cut(windows: np.ndarray, records: Count) -> Role:
    """Take the first windows for training, leave out 80, and take the next ones for testing.

    A window reaches 80 characters past its start, so no character is in a training and in a test window; LEAF leaves
    out 79, which lets a last training window's answer be a test window's first character.

    Args:
        windows: in the order of the text, [n, 81].
        records: training windows; all: as many as leave one in five for testing.
    Returns:
        empty ones where there are not so many.

    >>> windows = np.zeros((180, 81), np.uint8)
    >>> [len(part) for part in cut(windows, 40)], [len(part) for part in cut(windows, "all")]  # a fifth of 100
    ([40, 10], [80, 20])
    """
    if records == "all":
        tests = max(len(windows) - SEEN, 0) // 5
        train = max(len(windows) - SEEN - tests, 0)
    else:
        train, tests = records, _tests(records)
    if train + SEEN + tests > len(windows):
        return Role(windows[:0], windows[:0])
    return Role(windows[:train], windows[train + SEEN : train + SEEN + tests])


def encode(text: str, where: str) -> np.ndarray:
    """Codes of the characters, uint8 [n].

    Raises:
        DataError: a character that is not in LEAF's alphabet; `where` is for the message.

    >>> encode("\\n AB", "a role").tolist()
    [0, 1, 25, 26]
    """
    try:
        codes = _CODE[np.frombuffer(text.encode("latin-1"), np.uint8)]
    except UnicodeEncodeError as error:
        raise DataError(f"{where} has the character {text[error.start]!r}, which LEAF's alphabet lacks") from None
    if (codes == 255).any():
        raise DataError(f"{where} has the character {text[int(np.argmax(codes))]!r}, which LEAF's alphabet lacks")
    return codes


def _tests(records: int) -> int:
    return max(1, records // 4)


def _roles(files: Sequence[Path], records: Count) -> Iterator[tuple[str, Role]]:
    if files[0].name.startswith(ROLES_FILE):
        for name, text in _texts(files[0]):
            codes = encode(text, f"{files[0]}: role {_shown(name)}")
            if len(codes) > SEEN:
                yield name, cut(np.lib.stride_tricks.sliding_window_view(codes, SEEN + 1), records)
    elif files[0].parent.name == "train":
        train, test = (_windows([f for f in files if f.parent.name == part]) for part in ("train", "test"))
        nobody = np.empty((0, SEEN + 1), dtype=np.uint8)
        for name, windows in train.items():
            tests = test.get(name, nobody)
            if records == "all":
                yield name, Role(windows, tests)
            elif len(windows) >= records and len(tests) >= _tests(records):
                yield name, Role(windows[:records], tests[: _tests(records)])
    else:
        yield from ((name, cut(windows, records)) for name, windows in _windows(files).items())


def _texts(file: Path) -> Iterable[tuple[str, str]]:
    """{"roles": {role: {"text"}}} -> (role, text)."""
    try:
        roles = _json(file)["roles"].items()
        if all(isinstance(role["text"], str) for _, role in roles):
            return [(name, role["text"]) for name, role in roles]
    except (KeyError, TypeError, AttributeError):
        pass  # as where a text is none
    raise DataError(f'{file} is not a file of roles: {{"roles": {{role: {{"text"}}}}}}')


def _windows(files: Iterable[Path]) -> dict[str, np.ndarray]:
    """{"user_data": {role: {"x": [80 characters, …], "y": [character, …]}}} -> role: [n, 81]."""
    found: dict[str, np.ndarray] = {}
    for file in files:
        try:
            for name, data in _json(file)["user_data"].items():
                x, y, where = data["x"], data["y"], f"{file}: role {_shown(name)}"
                if not (_are_texts(x, SEEN) and _are_texts(y, 1) and len(x) == len(y)):
                    raise DataError(f"{where}: x must be texts of {SEEN} characters, y as many single characters")
                if name in found:
                    raise DataError(f"{where} is in two files, or twice in one")
                if x:
                    codes = encode("".join(x), where).reshape(-1, SEEN), encode("".join(y), where)[:, None]
                    found[name] = np.concatenate(codes, axis=1)
        except (KeyError, TypeError, AttributeError):
            raise DataError(f'{file} is not LEAF\'s: {{"users", "user_data": {{role: {{"x", "y"}}}}}}') from None
    return found


def _are_texts(values: Any, length: int) -> bool:
    """True for a list of texts of this length."""
    return isinstance(values, list) and all(isinstance(text, str) and len(text) == length for text in values)


def _shown(name: str) -> str:
    """A name from a file, as a message shows it: short, on one line."""
    return repr(name[:60])[1:-1]


def _json(file: Path) -> Mapping[str, Any]:
    """The content of a JSON file, packed or not.

    Raises:
        DataError: it is damaged, larger than `MAX_BYTES`, or has a name twice in one object.
    """
    try:
        with lzma.open(file) if file.suffix == ".xz" else file.open("rb") as stream:
            text = stream.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ValueError(f"it holds more than {MAX_BYTES:,} bytes")
        found: Mapping[str, Any] = json.loads(text.decode("utf-8"), object_pairs_hook=_once)
        return found
    except (OSError, EOFError, ValueError, RecursionError, MemoryError, lzma.LZMAError) as error:
        raise DataError(f"{file} is damaged, or cannot be read ({in_a_line(error, 200)})") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"'{_shown(twice)}' is twice in one object")
    return made
