"""Shakespeare's roles: from both forms of file, cut by position, and never a character on both sides of the cut."""

import json
import lzma
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_ops.config.experiment import Experiment
from pfl_ops.data import shakespeare
from pfl_ops.data.clients import LEAF_REMARK, Clients, Pool, build_clients
from pfl_ops.data.datasets import DataSection, Dataset, load
from pfl_ops.data.npz import DataError
from pfl_ops.data.partition import PARTITIONS
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.training.feed import Feed

WORDS = "Now, by two-headed Janus, Nature hath framed strange fellows in her time: some that will evermore peep "


def text(role: int, length: int) -> str:
    """Another text for each role: one that never repeats itself within a window."""
    letters = np.random.default_rng(role).integers(0, len(WORDS), length)
    return "".join(WORDS[i] for i in letters)


TEXTS = {"HAMLET_OPHELIA": text(0, 400), "HAMLET_A_CLOWN": text(1, 300), "TEMPEST_ARIEL": text(2, 240),
         "TEMPEST_BOATSWAIN": text(3, 60)}  # fmt: skip


def write_roles(folder: Path, texts: dict[str, str] = TEXTS, packed: bool = True) -> Path:
    content = json.dumps({"about": "", "roles": {role: {"play": "", "text": t} for role, t in texts.items()}})
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"shakespeare_leaf_roles.json{'.xz' if packed else ''}"
    file.write_bytes(lzma.compress(content.encode()) if packed else content.encode())
    return file


def leaf(texts: dict[str, str]) -> dict[str, Any]:
    """As LEAF's preprocess writes it: every window of 80 characters and the next one."""
    data = {
        role: {"x": [t[i : i + 80] for i in range(len(t) - 80)], "y": [t[i + 80] for i in range(len(t) - 80)]}
        for role, t in texts.items()
        if len(t) > 80
    }
    return {"users": list(data), "num_samples": [len(d["y"]) for d in data.values()], "user_data": data}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder."""
    monkeypatch.setenv("PFL_OPS_DATA", str(tmp_path / "here"))
    return tmp_path / "here"


def read(roles: Any = "all", records: Any = 40, **section: Any) -> Dataset:
    return load(DataSection(name="shakespeare", roles=roles, records=records, **{"train_size": None, **section}))


def build(data: Dataset, kind: str = "natural", split: str = "test", **options: Any) -> Clients:
    return build_clients(data, PARTITIONS.get(kind)(kind=kind, **options), seed=0, split=split)


def letters(codes: np.ndarray) -> str:
    return "".join(shakespeare.ALPHABET[c] for c in codes)


def test_the_alphabet_is_leafs() -> None:
    """80 characters; the places that LEAF's own `word_to_indices` gives these."""
    assert len(shakespeare.ALPHABET) == len(set(shakespeare.ALPHABET)) == 80
    assert shakespeare.encode("\n !Aaz}", "here").tolist() == [0, 1, 2, 25, 53, 78, 79]
    assert letters(shakespeare.encode(WORDS, "here")) == WORDS


def test_windows_by_hand(folder: Path) -> None:
    """Roles by name: the clown (300 characters, 220 windows), Ophelia, Ariel. 40 windows, 80 left out, then 10."""
    write_roles(folder)
    data = read()
    assert (data.shape, data.n_classes, data.mean.tolist(), data.std.tolist()) == ((80,), 80, [0], [1])
    train, test = data.train, data.test
    assert train.x.dtype == np.uint8 and train.x.shape == (120, 80) and test.x.shape == (30, 80)
    assert train.y.dtype == np.int64 and train.client is not None and test.client is not None
    assert train.client.tolist() == [k for k in range(3) for _ in range(40)]
    assert test.client.tolist() == [k for k in range(3) for _ in range(10)]
    for k, role in enumerate(("HAMLET_A_CLOWN", "HAMLET_OPHELIA", "TEMPEST_ARIEL")):
        for i in (0, 39):
            assert letters(train.x[40 * k + i]) == TEXTS[role][i : i + 80]
            assert shakespeare.ALPHABET[train.y[40 * k + i]] == TEXTS[role][i + 80]
        assert letters(test.x[10 * k]) == TEXTS[role][120:200]
        assert shakespeare.ALPHABET[test.y[10 * k + 9]] == TEXTS[role][209]


def test_no_character_lies_on_both_sides() -> None:
    """Each character a number of its own: training windows reach to 119, test windows begin at 120."""
    windows = np.lib.stride_tricks.sliding_window_view(np.arange(300), 81)
    for records in (40, "all"):
        train, test = shakespeare.cut(windows, records)  # type: ignore[arg-type]
        assert not set(train.ravel().tolist()) & set(test.ravel().tolist())
        assert train.max() + 1 == test.min()
    assert (len(train), len(test)) == (112, 28)  # of 220 windows 80 are left out, one in five of 140 is for testing
    assert [len(part) for part in shakespeare.cut(windows[:129], 40)] == [0, 0]
    assert [len(part) for part in shakespeare.cut(windows[:130], 40)] == [40, 10]


def test_all_there_is(folder: Path) -> None:
    write_roles(folder)
    data = read(records="all")
    assert np.bincount(data.train.client).tolist() == [112, 192, 64]
    assert np.bincount(data.test.client).tolist() == [28, 48, 16]


def test_fewer_roles_are_a_part_of_more_and_always_the_same(folder: Path) -> None:
    write_roles(folder, {f"ROLE_{k:02d}": text(k, 300) for k in range(12)})
    every = {r.tobytes() for r in read().train.x}
    five, two = ({r.tobytes() for r in read(roles=n).train.x} for n in (5, 2))
    assert len(five) == 200 and len(two) == 80 and two < five < every
    first = read(roles=5)
    assert first.digest == read(roles=5).digest != read(roles=6).digest
    starts = [letters(first.train.x[40 * k])[:20] for k in range(5)]
    assert starts != [text(k, 20) for k in range(5)], "the first ones are no random choice"


def test_both_forms_give_the_same(folder: Path, tmp_path: Path) -> None:
    write_roles(folder)
    ours = read()
    assert load(DataSection(name="shakespeare", roles=3, records=40), data_dir=str(folder)).digest == ours.digest
    plain = tmp_path / "plain"
    write_roles(plain, packed=False)
    assert load(DataSection(name="shakespeare", roles=3, records=40), data_dir=str(plain)).digest == ours.digest
    for place in ("shakespeare/all_data_0.json", "shakespeare/data/all_data/all_data.json"):
        there = tmp_path / place.replace("/", "-")
        (there / place).parent.mkdir(parents=True)
        (there / place).write_text(json.dumps(leaf(TEXTS)))
        assert load(DataSection(name="shakespeare", roles=3, records=40), data_dir=str(there)).digest == ours.digest


def test_leafs_own_split_is_kept(folder: Path) -> None:
    """Two files of training data; Ariel has no test data, the clown too little."""
    for part, files in (
        ("train", ({"A": text(0, 200), "B": text(1, 180)}, {"C": text(2, 200), "D": text(3, 130)})),
        ("test", ({"A": text(4, 95), "B": text(5, 89), "D": text(6, 200)},)),
    ):
        (folder / "shakespeare" / part).mkdir(parents=True)
        for i, texts in enumerate(files):
            (folder / "shakespeare" / part / f"{part}_{i}.json").write_text(json.dumps(leaf(texts)))
    data = read()
    assert data.train.client.tolist() == [0] * 40 + [1] * 40
    assert letters(data.train.x[0]) == text(0, 80) and letters(data.test.x[0]) == text(4, 80)
    assert letters(data.train.x[40]) == text(3, 80) and len(data.test.y) == 20
    assert np.bincount(read(records="all").train.client).tolist() == [120, 100, 50]


# -- as clients --------------------------------------------------------------------------------------------------------


def test_one_client_a_role(folder: Path) -> None:
    write_roles(folder)
    clients = build(read())
    assert clients.train.sizes.tolist() == [40, 40, 40] and clients.held.sizes.tolist() == [10, 10, 10]
    first = clients.held.x[clients.held.index[1]][0].numpy()
    assert letters(first) == TEXTS["HAMLET_OPHELIA"][120:200]


def test_validation_data_comes_last_and_apart(folder: Path) -> None:
    """200 windows a role: the last 40 are held out, the 80 before them are used for nothing."""
    write_roles(folder, {f"R{k}": text(k, 500) for k in range(2)})
    clients = build(read(records=200).sealed(), split="validation")
    assert clients.train.sizes.tolist() == [80, 80] and clients.held.sizes.tolist() == [40, 40]
    mine = clients.train.x[clients.train.index[1]].numpy(), clients.held.x[clients.held.index[1]].numpy()
    assert letters(mine[0][-1]) == text(1, 500)[79:159] and letters(mine[1][0]) == text(1, 500)[160:240]


def characters(pool: Pool, roles: int) -> set[tuple[int, int]]:
    """Role and place in its text of each character of a pool's windows, the answers included."""
    places = {text(k, 500)[i : i + 80]: (k, i) for k in range(roles) for i in range(420)}
    starts = [places[letters(window)] for window in pool.x.numpy()]
    return {(role, start + i) for role, start in starts for i in range(81)}


KINDS = [("natural", {}), ("iid", {"clients": 3}), ("lsqs", {"clients": 3}), ("sorted_shards", {"clients": 4})]


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_no_character_is_trained_on_and_validated(folder: Path, kind: str, options: dict[str, Any]) -> None:
    """Of 200 windows a role the last 40 are held out and the 80 before them left out, whichever client has them."""
    write_roles(folder, {f"R{k}": text(k, 500) for k in range(2)})
    data = read(records=200)
    clients = build(data.sealed(), kind, split="validation", **options)
    assert len(clients.train) == 2 * 80 and len(clients.held) == 2 * 40
    assert not characters(clients.train, 2) & characters(clients.held, 2)
    assert clients.partition_digest == build(data, kind, **options).partition_digest


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_no_character_is_trained_on_and_in_a_test_share(folder: Path, kind: str, options: dict[str, Any]) -> None:
    """Pooled, a role has 260 windows, and 65 that begin 80 characters later: a quarter is 81, 16 of the 260 among them.

    80 windows before these are left out, which leaves 164. For validation a fifth of the 164 is held out, 33, and again
    80 before them are left out, which leaves 51.
    """
    write_roles(folder, {f"R{k}": text(k, 500) for k in range(2)})
    data = read(records=260).merged()
    final = build(data, kind, **options)
    assert len(final.train) == 2 * 164 and len(final.held) == 2 * 81 and not final.remarks
    assert not characters(final.train, 2) & characters(final.held, 2)
    trial = build(data.sealed(), kind, split="validation", **options)
    assert len(trial.train) == 2 * 51 and len(trial.held) == 2 * 33
    assert not characters(trial.train, 2) & characters(trial.held, 2)
    assert not (characters(trial.train, 2) | characters(trial.held, 2)) & characters(final.held, 2)


def test_leafs_iid_split_overlaps_and_says_so(folder: Path) -> None:
    """All 250 windows of each of two roles are dealt to four clients, and a quarter of each client's is for testing."""
    write_roles(folder, {f"R{k}": text(k, 500) for k in range(2)})
    clients = build(read(records=200).merged(), "iid", clients=4, stratified=False)
    assert len(clients.train) + len(clients.held) == 500
    assert characters(clients.train, 2) & characters(clients.held, 2)
    assert clients.remarks == (LEAF_REMARK,)


@pytest.mark.parametrize(
    ("kind", "options"), [("iid", {}), ("dirichlet", {"alpha": 0.5}), ("shards", {"classes_per_client": 20})]
)
def test_schemes_that_divide_by_label(folder: Path, kind: str, options: dict[str, Any]) -> None:
    write_roles(folder)
    clients = build(read(), kind, clients=3, **options)
    assert clients.n_classes == 80 and clients.train.sizes.sum() == 120 and clients.table.shape == (3, 80)


def test_the_default_cut_takes_of_every_role(folder: Path) -> None:
    write_roles(folder)
    data = read(train_size=60)
    assert np.bincount(data.train.client).tolist() == [20, 20, 20] and len(data.test.y) == 15


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_network_gets_codes_as_numbers(folder: Path, dtype: torch.dtype) -> None:
    write_roles(folder)
    clients = build(read())
    feed = Feed(clients.train, clients.mean, clients.std, torch.device("cpu"), dtype)
    x, y = feed.batch(torch.tensor([[0, 39], [40, 41]]))
    assert x.shape == (2, 2, 80) and x.dtype == dtype and not feed.images
    assert torch.equal(x.long()[0, 1], clients.train.x[39].long()) and torch.equal(y[0], clients.train.y[[0, 39]])


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_nothing_there(folder: Path) -> None:
    line = (
        r"^shakespeare is not in .*here or .*cache, and is never downloaded.\n"
        r"Put shakespeare_leaf_roles.json.xz there, or LEAF's own JSON into shakespeare/ there"
    )
    with pytest.raises(DataError, match=line):
        read()


def test_too_few_roles(folder: Path) -> None:
    write_roles(folder)
    with pytest.raises(DataError, match=r"has 3 roles with 40 records to train on .*, got data.roles = 4"):
        read(roles=4)
    with pytest.raises(DataError, match=r"has 0 roles with 2,000 records to train on .*, got data.roles = 100"):
        read(roles=None, records=None)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"{", "is damaged, or cannot be read"),
        (b"[]", "is not a file of roles"),
        (b'{"roles": {"A": {"txt": ""}}}', "is not a file of roles"),
        (b'{"roles": {"A": {"text": ["a", "b"]}}}', "is not a file of roles"),
        (b'{"roles": {"A": {"text": "a"}, "A": {"text": "b"}}}', "'A' is twice in one object"),
        (b"[" * 100_000, "is damaged, or cannot be read \\(RecursionError"),
        (
            json.dumps({"roles": {"A": {"text": "Caf\u00e9 " * 40}}}).encode(),
            r"role A has the character 'é', which LEAF",
        ),
        (json.dumps({"roles": {"A": {"text": "one\u2014two " * 40}}}).encode(), r"role A has the character '—', which"),
    ],
)
def test_broken_files_of_roles(folder: Path, content: bytes, line: str) -> None:
    folder.mkdir()
    (folder / "shakespeare_leaf_roles.json").write_bytes(content)
    with pytest.raises(DataError, match=line):
        read()
    (folder / "shakespeare_leaf_roles.json").unlink()
    (folder / "shakespeare_leaf_roles.json.xz").write_bytes(lzma.compress(content)[:-5])
    with pytest.raises(DataError, match="is damaged, or cannot be read"):
        read()


def test_a_packed_file_is_unpacked_to_a_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MB of spaces pack to 10 KB."""
    monkeypatch.setattr(shakespeare, "MAX_BYTES", 2**20)
    folder.mkdir()
    (folder / f"{shakespeare.ROLES_FILE}.xz").write_bytes(lzma.compress(b" " * 2**26))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"it holds more than 1,048,576 bytes"):
            read()
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"users": []}, "is not LEAF's"),
        ({"user_data": {"A": {"x": ["a" * 79], "y": ["b"]}}}, "role A: x must be texts of 80 characters"),
        ({"user_data": {"A": {"x": ["a" * 80], "y": []}}}, "role A: x must be texts of 80 characters"),
        ({"user_data": {"A": {"x": ["a" * 80], "y": ["bc"]}}}, "role A: x must be texts of 80 characters"),
        ({"user_data": {"A": {"x": ["~" * 80], "y": ["b"]}}}, "role A has the character '~'"),
        ({"user_data": {"A": {"x": {"a" * 80: 1}, "y": ["b"]}}}, "role A: x must be texts of 80 characters"),
        ({"user_data": {"A": {"x": [["a"] * 80], "y": ["b"]}}}, "role A: x must be texts of 80 characters"),
        ({"user_data": {"A\n" * 99: {"x": 1, "y": 2}}}, r"role (A\\n){30}: x must be texts"),
    ],
)
def test_broken_leaf_files(folder: Path, data: Any, line: str) -> None:
    (folder / "shakespeare").mkdir(parents=True)
    (folder / "shakespeare" / "all_data.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match=line):
        read()


def test_other_data_sets_have_no_roles() -> None:
    with pytest.raises(
        PflOpsError, match=r"^data: roles and records belong to dataset shakespeare; digits has neither$"
    ):
        Experiment.of("local", **{"data.roles": 5})
    with pytest.raises(PflOpsError, match=r"^data.records must be an integer in \[1, 1,000,000\] or all or none, got"):
        Experiment.of("local", dataset="shakespeare", model="linear", **{"data.records": 0})


def test_roles_and_records_move_the_hash(folder: Path) -> None:
    write_roles(folder, {f"ROLE_{k:02d}": text(k, 300) for k in range(4)})
    given = ({"data.roles": 3}, {"data.roles": 4}, {"data.roles": 3, "data.records": 30})
    tests = [
        Experiment.of("local", dataset="shakespeare", model="linear", **{"data.records": 40, **more}) for more in given
    ]
    assert len({e.hash for e in tests}) == 3


# -- the real one ------------------------------------------------------------------------------------------------------


def test_the_real_roles(real_data: Callable[[str], Path]) -> None:
    real_data("shakespeare_leaf_roles.json.xz")
    data = load(DataSection(name="shakespeare", train_size=None))
    assert len(data.train.y) == 200_000 and len(data.test.y) == 50_000
    assert np.bincount(data.train.client).tolist() == [2_000] * 100
    assert data.train.x.max() < 80 and not data.train.x.flags.owndata  # mapped
    chance = np.bincount(data.test.y).max() / len(data.test.y)
    assert shakespeare.ALPHABET[np.bincount(data.train.y).argmax()] == " " and 0.15 < chance < 0.25
    assert data.digest == "4bd1502876b957fb6f0a958e1c2715637a34cdac399d71afdad36e6e9d1ed518"
