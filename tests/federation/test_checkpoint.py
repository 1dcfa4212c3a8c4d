"""A base and what changed since: written a little at a time, read back bit for bit, whole or passed over."""

import errno
import resource
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from test_durable import DAMAGE, flip

from pfl_ops.federation.method.contract import ClientRows, State
from pfl_ops.federation.state import checkpoint, durable, snapshot
from pfl_ops.federation.state.checkpoint import CheckpointError, Checkpoints, Record, Results
from pfl_ops.federation.state.rows import RowStore

META = {"resolved": {"way": "loop"}}
N, WIDTH = 1000, 50


def fresh(n: int = N) -> State:
    return {"central": torch.zeros(4), "rows": ClientRows(torch.zeros(WIDTH), n), "count": torch.tensor(0)}


def played(s: State, t: int, who: tuple[int, ...] = ()) -> None:
    """Round t: two clients' rows, and the rest; what it gives is known beforehand."""
    some = torch.tensor(who or (t % 97, t % 97 + 300))
    s["rows"].write(some, torch.randn(len(some), WIDTH, generator=torch.Generator().manual_seed(t)))
    s["central"], s["count"] = torch.full((4,), t / 7), torch.tensor(t)


def record(t: int) -> Record:
    return Record(t, {"test/L1/local/mean": t / 3}, 1000 + t)


def after(rounds: int, n: int = N) -> tuple[State, list[Record]]:
    s = fresh(n)
    for t in range(1, rounds + 1):
        played(s, t)
    return s, [record(t) for t in range(rounds + 1)]


def saved(folder: Path, rounds: int, n: int = N) -> Checkpoints:
    """Rounds 0, 1, ... of a run, each kept."""
    kept, s = Checkpoints(folder, "mine", resume=False), fresh(n)
    for t in range(rounds + 1):
        if t:
            played(s, t)
        kept.save(t, s, [record(i) for i in range(t + 1)], META)
    return kept


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def expect(found: checkpoint.Checkpoint | None, rounds: int, n: int = N) -> None:
    """This is the state after that round, bit for bit, and its records."""
    assert found is not None
    expected, records = after(rounds, n)
    assert found.round == rounds and found.records == records and found.meta == META
    restored = found.restore(fresh(n))
    everyone = torch.arange(n)
    assert torch.equal(restored["rows"][everyone], expected["rows"][everyone])
    assert torch.equal(restored["rows"].written, expected["rows"].written)
    assert torch.equal(restored["central"], expected["central"]) and restored["count"] == expected["count"]


# -- a base and what stands on it --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", range(12))
def test_every_round_is_read_back(rounds: int, tmp_path: Path) -> None:
    """Bases and deltas alike; then it goes on from there as if it had not been read."""
    saved(tmp_path, rounds)
    again = Checkpoints(tmp_path, "mine")
    assert not again.complaints
    expect(again.latest, rounds)
    assert again.latest is not None
    s = again.latest.restore(fresh())
    for t in (rounds + 1, rounds + 2):
        played(s, t)
        again.save(t, s, after(t)[1], META)
        expect(Checkpoints(tmp_path, "mine").latest, t)


def test_a_base_comes_where_deltas_would_outgrow_it(tmp_path: Path) -> None:
    """Two rows of 200 bytes a round: after a base of 2, 6, 14 clients as many rounds as double it, and a little."""
    kept, s, kinds = Checkpoints(tmp_path, "mine"), fresh(), []
    for t in range(60):
        if t:
            played(s, t)
        kept.save(t, s, [record(i) for i in range(t + 1)], META)
        last = kept._stands_on[-1]
        kinds.append(last.place.name[0])
        base, *deltas = kept._stands_on
        assert sum(d.bytes for d in deltas[:-1]) <= base.bytes
        assert last.bytes == sum(f.stat().st_size for f in last.place.iterdir())
    bases = [t for t, kind in enumerate(kinds) if kind == "b"]
    assert 4 <= len(bases) <= 12 and bases[-1] - bases[-2] > bases[2] - bases[1]


def test_what_lies_there_stays_below_three_states(tmp_path: Path) -> None:
    """Everybody in every round: the worst case, at most a base, a delta as large, and the next base."""
    kept, s = Checkpoints(tmp_path, "mine"), fresh(20)
    for t in range(8):
        played(s, t, tuple(range(20)))
        kept.save(t, s, [record(i) for i in range(t + 1)], META)
        there = sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file())
        assert there < 3.2 * 20 * WIDTH * 4 + 3 * 1500  # meta.json, three times


def written_bytes(folder: Path, n: int, rounds: int = 60) -> int:
    """Of all rounds; the same clients whatever n."""
    kept, s, total = Checkpoints(folder, "mine"), fresh(n), 0
    for t in range(rounds):
        if t:
            played(s, t)
        kept.save(t, s, [record(i) for i in range(t + 1)], META)
        total += kept._stands_on[-1].bytes
    return total


def test_bytes_written_do_not_depend_on_n(tmp_path: Path) -> None:
    assert written_bytes(tmp_path / "a", 400) == written_bytes(tmp_path / "b", 400_000)


def test_bytes_written_grow_with_the_rounds_and_not_with_their_square(tmp_path: Path) -> None:
    """Bases included, and records: a base holds all of them."""
    once, twice = (written_bytes(tmp_path / str(rounds), N, rounds) for rounds in (50, 100))
    assert twice < 2.6 * once


def test_there_is_always_an_earlier_round(tmp_path: Path) -> None:
    """Return whether the last is a base or a delta."""
    seen = set()
    for rounds in range(1, 9):
        kept = saved(tmp_path / str(rounds), rounds)
        seen.add(kept._stands_on[-1].place.name[0])
        expect(kept.before(rounds), rounds - 1)
        assert kept.before(0) is None
    assert seen == {"b", "d"}


def test_a_file_takes_what_memory_gave_and_the_other_way(tmp_path: Path) -> None:
    saved(tmp_path, 7)
    found = Checkpoints(tmp_path, "mine").latest
    assert found is not None
    stores = [RowStore(where, tmp_path) for where in ("memory", "file")]
    one, other = (found.restore({**fresh(), "rows": store(torch.zeros(WIDTH), N)}) for store in stores)
    assert other["rows"].in_file and not one["rows"].in_file
    assert torch.equal(one["rows"][torch.arange(N)], other["rows"][torch.arange(N)])


def test_much_state_is_read_and_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never all rows at once: no part is larger than five rows and their numbers."""
    limit, sizes = 5 * (WIDTH * 4 + 8), []
    monkeypatch.setattr(snapshot, "PART", limit)
    save, load = durable.save_file, durable.load

    def noted(part: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        sizes.append(sum(t.numel() * t.element_size() for t in part.values()))
        return part

    monkeypatch.setattr(durable, "save_file", lambda part, file: save(noted(part), file))
    monkeypatch.setattr(durable, "load", lambda data: noted(load(data)))
    saved(tmp_path, 30)
    writes = len(sizes)
    expect(Checkpoints(tmp_path, "mine").latest, 30)
    assert writes > 40 and len(sizes) > writes + 10 and max(sizes) <= limit


def test_numbers_of_rounds_are_numbers(tmp_path: Path) -> None:
    """Six digits come after five; what only looks like a checkpoint is none."""
    kept = Checkpoints(tmp_path, "mine")
    for t in (99_998, 99_999, 100_000):
        kept.save(t, fresh(), [], META)
    (tmp_path / "base-100012.bak").mkdir()
    (tmp_path / "delta-x").mkdir()
    found = Checkpoints(tmp_path, "mine")
    assert found.latest is not None and found.latest.round == 100_000 and not found.complaints


def test_nothing_there(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "no such folder"):
        kept = Checkpoints(folder, "mine")
        assert kept.latest is None and kept.complaints == [] and kept.before(9) is None
        kept.clear()
    assert names(tmp_path) == []


# -- damage ------------------------------------------------------------------------------------------------------------

ROUNDS = 12


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run's folder, and the round of its base: it ends with a base and at least three deltas."""
    folder = tmp_path_factory.mktemp("chain")
    base, *deltas = saved(folder, ROUNDS)._stands_on
    assert len(deltas) >= 3 and deltas[-1].about["round"] == ROUNDS
    return folder, int(base.about["round"])


@pytest.fixture
def copy(chain: tuple[Path, int], tmp_path: Path) -> Path:
    shutil.copytree(chain[0], tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("kind", [*DAMAGE, "the whole folder"])
@pytest.mark.parametrize("where", ["base", "middle", "last"])
def test_damage_falls_back_to_the_longest_part_that_is_whole(
    kind: str, where: str, chain: tuple[Path, int], copy: Path
) -> None:
    base = chain[1]
    hit = {"base": base, "middle": base + 2, "last": ROUNDS}[where]
    place = copy / f"{'base' if where == 'base' else 'delta'}-{hit:05d}"
    DAMAGE.get(kind, shutil.rmtree)(place)
    found = Checkpoints(copy, "mine")
    gone = kind == "the whole folder"
    assert all("\n" not in line for line in found.complaints)
    if where == "base":
        assert found.latest is None
        ending = "none is left before it, starting again"
    else:
        expect(found.latest, hit - 1)
        ending = f"going on from round {hit - 1}"
    if gone and where != "middle":
        assert found.complaints == []  # nothing tells that there was one
    else:
        named = f"delta-{hit + 1:05d}" if gone else place.name
        (line,) = found.complaints
        assert line.startswith(f"checkpoint {named} is damaged (") and line.endswith(f"): {ending}")
    # and it goes on from there, without what it can't use
    s, round_ = fresh(), 0
    if found.latest is not None:
        s, round_ = found.latest.restore(s), found.latest.round
    for t in range(round_ + 1, ROUNDS + 3):
        played(s, t)
        found.save(t, s, after(t)[1], META)
    again = Checkpoints(copy, "mine")
    assert again.complaints == []
    if found.latest is not None:
        expect(again.latest, ROUNDS + 2)


def test_damage_to_a_new_base_falls_back_to_the_old_one(tmp_path: Path) -> None:
    """Before the next checkpoint is written; its deltas included."""
    rounds = next(t for t in range(5, 40) if len(saved(tmp_path / str(t), t)._stands_on) == 1)
    folder = tmp_path / str(rounds)
    flip(folder / f"base-{rounds:05d}" / "state-000.safetensors")
    found = Checkpoints(folder, "mine")
    expect(found.latest, rounds - 1)
    (line,) = found.complaints
    assert f"base-{rounds:05d} is damaged" in line and line.endswith(f"going on from round {rounds - 1}")


def test_another_history_is_not_taken_for_its_own(copy: Path) -> None:
    """A delta of the same run and the right round that stands on something else, as a killed `clear` may leave it."""
    last = durable.read(copy / f"delta-{ROUNDS:05d}")
    durable.write(last.place, {**last.about, "after": "0" * 64}, list(last.tensors()))
    found = Checkpoints(copy, "mine")
    expect(found.latest, ROUNDS - 1)
    assert "(the one that it stands on is missing)" in found.complaints[0]


def test_half_written_ones_are_never_read_and_go_with_the_next(copy: Path) -> None:
    half = copy / ".writing-0123abcd"
    shutil.copytree(copy / f"delta-{ROUNDS:05d}", half)
    (half / "meta.json").unlink()
    found = Checkpoints(copy, "mine")
    expect(found.latest, ROUNDS)
    assert not found.complaints and found.latest is not None
    found.save(ROUNDS + 1, found.latest.restore(fresh()), after(ROUNDS + 1)[1], META)
    assert not half.exists()


def test_anothers_folder_is_refused(copy: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds checkpoints of another experiment \(mine\)") as caught:
        Checkpoints(copy, "yours")
    assert "\n" not in str(caught.value)


def test_a_newer_pfl_ops_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    durable.write(tmp_path / "base-00001", {"identity": "mine", "rounds": 1}, [])
    with pytest.raises(CheckpointError, match="was written by another version of pfl-ops; --no-resume starts again"):
        Checkpoints(tmp_path, "mine")


def test_a_state_of_another_form_is_refused(copy: Path) -> None:
    found = Checkpoints(copy, "mine").latest
    assert found is not None
    with pytest.raises(
        CheckpointError, match=rf"round {ROUNDS} does not fit this method's state 'central' \(.+\); --no"
    ):
        found.restore({"central": torch.zeros(5)})


def test_a_file_that_goes_between_looking_and_reading(copy: Path) -> None:
    found = Checkpoints(copy, "mine").latest
    (copy / f"delta-{ROUNDS:05d}" / "state-000.safetensors").unlink()
    assert found is not None
    with pytest.raises(CheckpointError, match=rf"round {ROUNDS} can't be read: state-000\.safetensors is missing"):
        found.restore(fresh())


# -- results -----------------------------------------------------------------------------------------------------------

RESULTS = Results(True, {"final/x": 1.0})
TABLE = {
    "client": np.array([3, 5, 3, 5]),
    "stage": np.array(["L2", "L2", "G", "G"]),
    "straggler": np.array([True, False, True, False]),
    "local": np.array([0.1, np.nan, 1 / 3, 1.0]),
}


def over(folder: Path) -> Checkpoints:
    kept = saved(folder, 5)
    s, records = after(5)
    kept.finish(5, s, records, META, RESULTS, TABLE, torch.ones(2))
    return kept


def test_a_run_that_is_over_is_one_folder(tmp_path: Path) -> None:
    first = over(tmp_path)
    assert names(tmp_path) == ["finished"]
    for kept in (first, Checkpoints(tmp_path, "mine")):
        expect(kept.latest, 5)
        assert kept.latest is not None and kept.latest.results == RESULTS and not kept.complaints
        model = kept.latest.model()
        assert model is not None and model.tolist() == [1, 1]
        table = kept.latest.clients()
        assert list(table) == list(TABLE)
        for name, values in TABLE.items():
            assert np.array_equal(table[name], values, equal_nan=name == "local") and table[name].dtype == values.dtype
    with pytest.raises(CheckpointError, match="another experiment"):
        Checkpoints(tmp_path, "other")


def test_a_table_of_clients_is_in_no_json(tmp_path: Path) -> None:
    """Of 10,000 clients with 8 bytes a number and a byte or more a digit, the JSON has the same size as of four."""
    sizes = []
    for n in (4, 10_000):
        kept = saved(tmp_path / str(n), 5)
        kept.finish(5, None, [], META, RESULTS, {"client": np.arange(n), "local": np.linspace(0, 1, n)}, None)
        sizes.append((tmp_path / str(n) / "finished" / "meta.json").stat().st_size)
        assert len(kept.latest.clients()["local"]) == n if kept.latest else False
    assert sizes[0] == sizes[1]


def test_scores_alone(tmp_path: Path) -> None:
    kept = saved(tmp_path, 5)
    kept.finish(5, None, after(5)[1], META, RESULTS, {}, None)
    found = Checkpoints(tmp_path, "mine").latest
    assert found is not None and not found.holds_state and found.model() is None and found.records == after(5)[1]
    assert sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file()) < 2000


def test_killed_before_the_rounds_went(tmp_path: Path) -> None:
    """The results count, and the rounds go later."""
    saved(tmp_path / "rounds", 5)
    over(tmp_path)
    for place in (tmp_path / "rounds").iterdir():
        place.rename(tmp_path / place.name)
    (tmp_path / "rounds").rmdir()
    kept = Checkpoints(tmp_path, "mine")
    assert kept.latest is not None and kept.latest.results == RESULTS
    kept.tidy()
    assert names(tmp_path) == ["finished"]


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_results_are_no_results(kind: str, tmp_path: Path) -> None:
    over(tmp_path)
    DAMAGE[kind](tmp_path / "finished")
    found = Checkpoints(tmp_path, "mine")
    assert found.latest is None
    (line,) = found.complaints
    assert line.startswith(f"the results in {tmp_path} are damaged (") and line.endswith("starting again")


# -- a full disk -------------------------------------------------------------------------------------------------------

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("at", ["save_file", "sync", "Path.mkdir", "Path.write_text", "Path.rename"])
@pytest.mark.parametrize("rounds", [5, 6, 7, 8])
def test_a_full_disk_is_one_clear_error_and_loses_no_round(
    at: str, rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Base or delta, the same process writes it later; what it failed to keep is not forgotten."""
    kept, s = Checkpoints(tmp_path, "mine"), fresh()
    for t in range(1, rounds + 1):
        played(s, t)
        kept.save(t, s, after(t)[1], META)

    def full(*_: object, **__: object) -> None:
        raise FULL

    played(s, rounds + 1)
    with monkeypatch.context() as patch:
        patch.setattr(f"pfl_ops.federation.state.durable.{at}", full)
        with pytest.raises(CheckpointError, match=rf"can't write \w+-0000{rounds + 1} in .*: No space left") as caught:
            kept.save(rounds + 1, s, after(rounds + 1)[1], META)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob(".writing-*"))
    found = Checkpoints(tmp_path, "mine").latest
    assert found is not None
    assert found.round == rounds and torch.equal(found.restore(fresh())["central"], torch.full((4,), rounds / 7))
    kept.save(rounds + 1, s, after(rounds + 1)[1], META)
    again = Checkpoints(tmp_path, "mine").latest
    assert again is not None
    everyone = torch.arange(N)
    assert torch.equal(again.restore(fresh())["rows"][everyone], s["rows"][everyone])


def test_a_real_limit_is_told_the_same_way(tmp_path: Path) -> None:
    old, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old[1]))
    try:
        with pytest.raises(CheckpointError, match=r"can't write base-00001 in [^:]*: File too large; "):
            Checkpoints(tmp_path, "mine").save(1, {"w": torch.zeros(5000)}, [], META)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []
