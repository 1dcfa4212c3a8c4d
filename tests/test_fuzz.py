"""Readers of files that people write or disks damage: a value, a complaint, or one line; never another exception."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pfl_ops import spaces
from pfl_ops.config.experiment import Experiment
from pfl_ops.data import store
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.method.contract import ClientRows
from pfl_ops.federation.state import durable
from pfl_ops.federation.state.checkpoint import Checkpoints, Record
from pfl_ops.federation.state.durable import DamagedFile
from pfl_ops.tuning.studies import study_database, study_storage

fuzz = partial(
    settings,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
TOKENS = [
    *("{", "}", "[", "]", ":", ",", "-", "&a", "*a", "<<", "!!python/object:os.system", "!!binary", "|", ">", "#", "%"),
    *(
        "\n",
        "  ",
        "\t",
        "---",
        "...",
        "null",
        "~",
        "yes",
        "1:30",
        "0x1f",
        "1e999",
        ".nan",
        "-.inf",
        "9" * 50,
        "''",
        '"',
    ),
    *(
        "algorithm",
        "training.lr",
        "name",
        "float",
        "int",
        "choice",
        "when",
        "first",
        "log",
        "data",
        "\x00",
        "é",
        "\ud7ff",
    ),
]
"""Fragments that a mutation puts into a text."""
CONFIG = (
    "algorithm: {name: fliu, gamma: {kind: fixed, value: 0.5}}\n"
    "data: {name: digits}\ntraining:\n  rounds: 3\n  lr: 0.1\n"
)
SPACE = (
    "algorithm.gamma.kind: {choice: [fixed, adaptive]}\n"
    "algorithm.gamma.value: {float: [0.0, 1.0], when: {algorithm.gamma.kind: fixed}}\n"
    "training.lr: {float: [1.0e-4, 1.0e-1], log: true}\n\nfirst:\n  - {training.lr: 0.01}\n"
)


def mutated(data: bytes, inserts: list[bytes]) -> st.SearchStrategy[bytes]:
    """`data` with up to four pieces replaced by others, cut out, or repeated; sometimes cut off."""
    at = st.integers(0, len(data))
    piece = st.sampled_from(inserts) | st.binary(max_size=6)

    def apply(changes: list[tuple[int, int, bytes, int]], end: int) -> bytes:
        found = data
        for start, length, new, times in changes:
            found = found[:start] + new * times + found[start + length :]
        return found[: end if end < len(data) // 2 else None]

    change = st.tuples(at, st.integers(0, 8), piece, st.integers(1, 3))
    return st.builds(apply, st.lists(change, min_size=1, max_size=4), at)


def one_line(work: Callable[[], Any]) -> Any:
    """Return the result of `work`; None if it refuses in words."""
    try:
        return work()
    except (PflOpsError, DamagedFile) as error:
        assert str(error).strip() and "Traceback" not in str(error)
        return None


TEXT = [token.encode(errors="surrogatepass") for token in TOKENS]


@fuzz(max_examples=60)
@given(mutated(CONFIG.encode(), TEXT) | st.binary(max_size=60))
def test_config_file_is_read_or_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "config.yaml").write_bytes(data)
    found = one_line(lambda: Experiment.compose(None, config=tmp_path / "config.yaml"))
    assert found is None or isinstance(found, Experiment)


@fuzz(max_examples=60)
@given(mutated(SPACE.encode(), TEXT) | st.binary(max_size=60))
def test_search_space_is_read_or_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "space.yaml").write_bytes(data)
    found = one_line(lambda: spaces.read(tmp_path / "space.yaml", "fliu"))
    assert found is None or isinstance(found, spaces.Space)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
"""Any small JSON value."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of rounds 0 to 2: a base and two deltas."""
    folder = tmp_path_factory.mktemp("checkpoints") / "run"
    checkpoints, records = Checkpoints(folder, "mine"), []
    for t in range(3):
        records.append(Record(t, {"train/loss": 1 / (t + 1)}, 1_700_000_000_000 + t))
        checkpoints.save(t, state(t), records, {})
    assert sorted(place.name for place in folder.iterdir()) == ["base-00000", "delta-00001", "delta-00002"]
    return folder


def state(t: int) -> dict[str, Any]:
    """The state after round t."""
    return {"central": torch.full((6,), float(t)), "rows": ClientRows(torch.zeros(50), 20)}


def resumed(folder: Path) -> None:
    """Read a folder of checkpoints as a resumed run does; what is read must be one of the states that were written."""

    def read() -> None:
        found = Checkpoints(folder, "mine")
        assert all("\n" not in line for line in found.complaints)
        if found.latest is not None and found.latest.holds_state:
            restored = found.latest.restore(state(0))
            assert torch.equal(restored["central"], state(found.latest.round)["central"])  # type: ignore[arg-type]

    one_line(read)


@fuzz(max_examples=60)
@given(st.data())
def test_damaged_checkpoints_fall_back_or_are_refused(tmp_path: Path, kept: Path, data: st.DataObject) -> None:
    """Bytes of one file are changed; digests find that."""
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(kept, folder)
    file = data.draw(st.sampled_from(sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())))
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(data.draw(mutated(content, [b"{", b'"', b"\x00" * 8, b"\xff", b"NaN", b"[]"])))
    resumed(folder)


@fuzz(max_examples=60)
@given(st.sampled_from(["round", "records", "meta", "holds_state", "after", "identity", "results"]), JSON)
def test_checkpoint_with_other_values_is_refused(tmp_path: Path, kept: Path, key: str, value: Any) -> None:
    """Whole by its digest, but of another form: as another version may have written it."""
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(kept, folder)
    sign(folder / "delta-00002", about={key: value})

    def read() -> None:
        found = Checkpoints(folder, "mine")
        if found.latest is not None and found.latest.holds_state:
            found.latest.restore(state(0))

    one_line(read)


def sign(folder: Path, about: dict[str, Any] | None = None, **values: Any) -> None:
    """Change a durable folder's meta.json so that its digest is right again."""
    meta = json.loads((folder / "meta.json").read_text())
    meta.pop("digest")
    meta |= {**values, "about": {**meta["about"], **(about or {})}}
    (folder / "meta.json").write_text(json.dumps({**meta, "digest": durable._digest(meta)}))


@fuzz(max_examples=40)
@given(JSON | st.dictionaries(st.sampled_from(["about", "parts", "digest"]), JSON))
def test_durable_folder_with_any_json_is_damaged_or_read(tmp_path: Path, value: Any) -> None:
    place = tmp_path / "it"
    place.mkdir(exist_ok=True)
    if isinstance(value, dict) and value.keys() >= {"about", "parts"}:
        value = {**value, "digest": durable._digest({k: v for k, v in value.items() if k != "digest"})}
    (place / "meta.json").write_text(json.dumps(value))
    one_line(lambda: durable.read(place).check())


@fuzz(max_examples=40)
@given(st.data())
def test_tensors_of_any_bytes_are_damaged_or_read(tmp_path: Path, data: st.DataObject) -> None:
    """Also where the digest agrees with the bytes."""
    folder = durable.write(tmp_path / "it", {}, [{"w": torch.ones(3)}])
    [name] = folder.parts
    whole = (folder.place / name).read_bytes()
    (folder.place / name).write_bytes(data.draw(mutated(whole, [b"\xff" * 8, b"{", b"F64", b"[9,9]"]) | st.binary()))
    one_line(lambda: list(folder.tensors()))


@fuzz(max_examples=12)
@given(st.binary(max_size=200), st.sampled_from([b"", b"SQLite format 3\x00", b'{"op_code": 0}\n']))
def test_study_storage_of_any_bytes_is_opened_or_refused(tmp_path: Path, data: bytes, head: bytes) -> None:
    """A journal or a database that something else has written to."""
    for name in ("studies.log", "studies.db"):
        file = tmp_path / name
        file.write_bytes(head + data)
        address = str(file) if name.endswith(".log") else f"sqlite:///{file}"

        def read(address: str = address) -> None:
            opened = study_database.storage(address)
            try:
                study_storage.recorded(opened)
            finally:
                opened.remove_session()

        one_line(read)
        for left in tmp_path.glob(f"*{name}*"):
            left.unlink()


@fuzz(max_examples=40)
@given(JSON | st.dictionaries(st.sampled_from(["format", "digest", "files", "n_train", "mean"]), JSON) | st.just(None))
def test_cached_description_of_any_json_is_unpacked_again(tmp_path: Path, value: Any) -> None:
    """A damaged cache only costs unpacking again."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PFL_OPS_CACHE", str(tmp_path))
    try:
        found = store.unpacked("somewhere", arrays)
        (found.folder / "meta.json").write_text(json.dumps(value) if value is not None else "{")
        again = store.unpacked("somewhere", arrays)
        assert again.array("y_test").tolist() == [0, 1, 2]
    finally:
        patch.undo()


def arrays() -> dict[str, Any]:
    """A tiny data set."""
    x = torch.arange(6 * 4, dtype=torch.uint8).reshape(6, 2, 2, 1).numpy()
    y = torch.tensor([0, 1, 2] * 2).numpy()
    return {"x_train": x[:3], "y_train": y[:3], "x_test": x[3:], "y_test": y[3:]}
