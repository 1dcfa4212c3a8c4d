"""The journal on disk."""

import json
from itertools import pairwise

import pytest

from pfl_ops.tracking.spools.journal import encode, key
from pfl_ops.tracking.spools.spool import Damage, Repetition, RunLocked, Spool
from pfl_ops.tracking.spools.spool_folder import read_header

HEADER = {"target": "http://a", "experiment": "e", "name": "n", "identity": "i", "parent": None, "start": 1}


def entries(spool):
    return [entry for _, entry in spool.entries()]


def test_entries_come_back_in_order_in_the_next_process(tmp_path):
    spool = Spool(tmp_path, HEADER)
    for i in range(3):
        spool.append({"op": "tags", "i": i, "value": float("nan")})
    spool.release()
    again = Spool(tmp_path, HEADER | {"name": "later", "start": 9})
    assert [entry["i"] for entry in entries(again)] == [0, 1, 2]
    assert again.header == HEADER
    again.release()


def test_what_was_delivered_does_not_come_again(tmp_path):
    spool = Spool(tmp_path, HEADER)
    spool.append({"op": "a"})
    spool.append({"op": "b"})
    end, entry = next(spool.entries())
    spool.done(end, entry)
    spool.save()
    spool.release()
    again = Spool(tmp_path, HEADER)
    assert entries(again) == [{"op": "b"}]
    again.release()


def test_a_line_that_a_kill_left_unfinished_is_cut_off(tmp_path):
    spool = Spool(tmp_path, HEADER)
    spool.append({"op": "a"})
    spool.release()
    journal = spool.folder / "journal.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"op": "metr')
    again = Spool(tmp_path, HEADER)
    again.append({"op": "b"})
    assert entries(again) == [{"op": "a"}, {"op": "b"}]
    again.release()


def test_a_damaged_line_does_not_hide_the_next(tmp_path):
    spool = Spool(tmp_path, HEADER)
    with (spool.folder / "journal.jsonl").open("ab") as file:
        file.write(b'{"op": \xff\n')
    spool.append({"op": "b"})
    damage, entry = entries(spool)
    assert damage == Damage('{"op": \\xff', "a line does not match its digest")
    assert entry == {"op": "b"}
    spool.release()


def journal_of(root, numbers):
    """A journal with lines of these numbers, entry n is {"op": n}; None: a damaged line. Returns the ends of lines."""
    lines = [encode(0, HEADER), *(b"?\n" if n is None else encode(n, {"op": str(n)}) for n in numbers)]
    (root / key(HEADER)).mkdir()
    (root / key(HEADER) / "journal.jsonl").write_bytes(b"".join(lines))
    return [sum(map(len, lines[: i + 1])) for i in range(len(lines))]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([1, 2, 3], ["1", "2", "3"]),
        ([1, 1, 2], ["1", "again", "2"]),
        ([1, 2, 3, 2, 4], ["1", "2", "3", "again", "4"]),
        ([1, 3], ["1", "1 line is missing", "3"]),
        ([2], ["1 line is missing", "2"]),
        ([1, 4], ["1", "2 lines are missing", "4"]),
        ([1, None, 3, 4], ["1", "damaged", "3", "4"]),
        ([1, None, 6, 8], ["1", "damaged", "6", "1 line is missing", "8"]),
    ],
)
def test_lines_that_are_missing_or_repeated_are_found(numbers, expected, tmp_path):
    """Also by a process that goes on behind any of the lines. Lines that are missing end with the line before them."""
    ends = journal_of(tmp_path, numbers)

    def found(spool):
        for end, entry in spool.entries():
            damage = isinstance(entry, Damage) and ("damaged" if entry.line else entry.reason.partition(" from")[0])
            yield end, damage or ("again" if isinstance(entry, Repetition) else entry["op"])

    spool = Spool(tmp_path, HEADER)
    left = list(found(spool))
    assert [text for _, text in left] == expected
    assert [end for end, text in left if "missing" not in text] == ends[1:]
    assert all(end < after for (end, text), (after, _) in pairwise(left) if "missing" in text)
    spool.release()
    while left:
        spool = Spool(tmp_path, HEADER)
        end, entry = next((end, entry) for end, entry in spool.entries() if end in ends[1:] and end > spool._sent)
        spool.done(end, entry)
        spool.save()
        spool.release()
        passed = next(i for i, (at, text) in enumerate(left) if at == end and "missing" not in text)
        left = left[passed + 1 :]
        spool = Spool(tmp_path, HEADER)
        assert list(found(spool)) == left
        spool.release()


@pytest.mark.parametrize("numbers", [[1, 2], [1, 2, 1], [1, 2, 2], [1, 2, None], [None], []])
def test_entries_that_a_later_process_appends_are_whole_and_not_passed_over(numbers, tmp_path):
    journal_of(tmp_path, numbers)
    spool = Spool(tmp_path, HEADER)
    assert spool.last_op == (None if numbers in ([None], []) else "2")
    before = len(entries(spool))
    spool.append({"op": "new"})
    spool.append({"op": "newer"})
    spool.release()
    again = Spool(tmp_path, HEADER)
    assert entries(again)[before:] == [{"op": "new"}, {"op": "newer"}]
    again.release()


def test_a_line_that_is_written_in_parts_is_whole(tmp_path):
    """An unbuffered file may take fewer bytes than it is given."""
    spool = Spool(tmp_path, HEADER)
    journal = spool._journal

    class Slow:
        def __getattr__(self, name):
            return getattr(journal, name)

        def write(self, data):
            return journal.write(data[:7])

    spool._journal = Slow()
    spool.append({"op": "tags", "tags": {"k": "v"}})
    assert entries(spool) == [{"op": "tags", "tags": {"k": "v"}}]
    spool.release()


def test_a_header_that_a_kill_left_unfinished_is_written_again(tmp_path):
    folder = tmp_path / key(HEADER)
    folder.mkdir()
    (folder / "journal.jsonl").write_bytes(encode(0, HEADER)[:29])
    assert read_header(folder) is None
    spool = Spool(tmp_path, HEADER)
    assert spool.header == HEADER
    assert not spool.pending
    spool.release()


def test_a_damaged_note_of_what_was_sent_means_sending_again(tmp_path):
    spool = Spool(tmp_path, HEADER)
    spool.append({"op": "a"})
    end, entry = next(spool.entries())
    spool.done(end, entry)
    spool.save()
    (spool.folder / "sent").write_text("")
    spool.release()
    again = Spool(tmp_path, HEADER)
    assert entries(again) == [{"op": "a"}]
    again.release()


def test_files_are_removed_once_delivered_and_the_folder_when_all_is(tmp_path):
    spool = Spool(tmp_path, HEADER)
    staged = [spool.stage("same.txt") for _ in range(2)]
    for path in staged:
        path.write_text("x")
        spool.append({"op": "artifact", **spool.seal(path)})
    for end, entry in spool.entries():
        assert (spool.folder / entry["file"]).exists()
        spool.done(end, entry)
        spool.save()
        assert not (spool.folder / entry["file"]).exists()
    spool.closed = True
    spool.release()
    assert not spool.folder.exists()


def test_what_was_refused_stays_with_its_reason(tmp_path):
    spool = Spool(tmp_path, HEADER)
    staged = spool.stage("kept.txt")
    staged.write_text("x")
    spool.append({"op": "artifact", **spool.seal(staged)})
    end, entry = next(spool.entries())
    spool.refuse(end, entry, "because", damaged=False)
    spool.done(end, entry)
    spool.save()
    spool.closed = True
    spool.release()
    assert json.loads((spool.folder / "refused.jsonl").read_text())["reason"] == "because"
    assert [f.name for f in (spool.folder / "refused").rglob("*.txt")] == ["kept.txt"]
    assert read_header(spool.folder) is None


def test_one_process_at_a_time(tmp_path, python):
    spool = Spool(tmp_path, HEADER)
    with pytest.raises(RunLocked, match="being recorded by another process"):
        Spool(tmp_path, HEADER)
    other = Spool(tmp_path, HEADER | {"identity": "j"})
    other.release()
    spool.release()
    code = """
        import json, sys
        from pathlib import Path
        from pfl_ops.tracking.spools.spool import Spool
        spool = Spool(Path(sys.argv[1]), json.loads(sys.argv[2]))
        print("mine", flush=True)
        sys.stdin.readline()
    """
    process = python(code, str(tmp_path), json.dumps(HEADER))
    assert process.stdout.readline() == "mine\n"
    with pytest.raises(RunLocked, match=f"pid {process.pid}"):
        Spool(tmp_path, HEADER)
    process.kill()
    process.wait()
    Spool(tmp_path, HEADER).release()


def test_the_same_run_in_another_place_or_under_another_parent_is_another_spool():
    headers = [HEADER, HEADER | {"target": "http://b"}, HEADER | {"parent": HEADER}, HEADER | {"identity": "j"}]
    assert len({key(header) for header in headers}) == 4
    assert key(HEADER | {"name": "x", "start": 5}) == key(HEADER)
