"""The outbox after damage: what is intact is delivered, what is lost is named, nothing outside is touched."""

import contextlib
import errno
import json
import logging
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_mlflow import MemoryMlflow, memory_sender
from mlflow.exceptions import RestException

from pfl_ops import tag_names
from pfl_ops.errors import PflOpsError
from pfl_ops.tracking.runs.run import Run
from pfl_ops.tracking.sending import delivery
from pfl_ops.tracking.sending.delivery import Delivery
from pfl_ops.tracking.spools import outbox, spool_folder
from pfl_ops.tracking.spools.journal import DamagedJournal, decode, encode, key
from pfl_ops.tracking.spools.spool import Damage, Spool

HEADER = {"target": "http://a", "experiment": "e", "name": "n", "identity": "i", "parent": None, "start": 1}
OTHER = HEADER | {"identity": "other", "start": 2}
OPEN = {"op": "open", "name": "n"}
FINISH = {"op": "finish", "status": "FINISHED", "time": 9}


def point(step, value=None):
    return {"op": "metrics", "points": [["loss", step / 8 if value is None else value, 1000 + step, step]]}


def write(root, *entries, header=HEADER, digests=True):
    """A spool that a process has left; returns its folder."""
    folder = root / key(header)
    folder.mkdir(parents=True)
    lines = [header, *entries]
    encoded = [encode(n, line) if digests else json.dumps(line).encode() + b"\n" for n, line in enumerate(lines)]
    (folder / "journal.jsonl").write_bytes(b"".join(encoded))
    return folder


def change(folder, number, line):
    """Put another line (None: no line) at that place of a journal."""
    journal = folder / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[number : number + 1] = [] if line is None else [line]
    journal.write_bytes(b"".join(lines))


def deliver(root, client, patience=0.0):
    """Deliver the outbox of a work folder as the next command does; True if all was delivered."""
    sending = Delivery(memory_sender(client), root)
    try:
        for spool in outbox.adopt(root, "http://a", sending.spools):
            sending.add(spool)
        return sending.wait(patience=patience)
    finally:
        sending.stop()


@pytest.fixture
def client():
    return MemoryMlflow()


@pytest.fixture
def root(tmp_path):
    (tmp_path / "home" / "spool").mkdir(parents=True)
    return tmp_path / "home" / "spool"


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    """Short pauses, and no waiting for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(delivery, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(delivery, "LONGEST_PAUSE", 0.002)


def only(client, identity="i"):
    (run,) = client.by_identity(identity)
    return run


def losses(client, identity="i"):
    return {step: value for (_, step), (value, _) in client.points[only(client, identity).info.run_id].items()}


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# -- lines ------------------------------------------------------------------------------------------------------------


def test_any_changed_byte_of_a_line_shows():
    line = encode(3, point(1))
    assert decode(line) == (3, point(1))
    for place in range(len(line) - 1):
        changed = line[:place] + bytes([line[place] ^ 1]) + line[place + 1 :]
        with pytest.raises(DamagedJournal):
            decode(changed)
    with pytest.raises(DamagedJournal):
        decode(json.dumps(point(1)).encode())


def test_a_journal_without_digests_is_set_aside(root, client, caplog):
    folder = write(root, OPEN, point(1), point(2), FINISH, digests=False)
    assert deliver(root, client)
    assert client.by_identity("i") == []
    assert not folder.exists() and len(list(root.glob("damaged-*"))) == 1
    (line,) = warnings(caplog)
    assert "repeat the run's command" in line


def test_a_run_whose_journal_has_no_digests_begins_a_new_one(root):
    write(root, OPEN, digests=False)
    spool = Spool(root, HEADER)
    spool.append(point(1))
    assert [entry for _, entry in spool.entries()] == [point(1)]
    spool.append(point(2))
    spool.release()
    change(spool.folder, 2, encode(2, point(2)).replace(b"0.25", b"0.26"))
    again = Spool(root, HEADER)
    first, second = [entry for _, entry in again.entries()]
    assert first == point(1) and isinstance(second, Damage)
    again.release()


def test_a_damaged_line_is_kept_and_the_run_says_so(root, client, caplog):
    folder = write(root, OPEN, point(1), point(2), point(3), FINISH)
    change(folder, 2, encode(2, point(1)).replace(b"0.125", b"0.999"))
    assert deliver(root, client)
    assert losses(client) == {2: 0.25, 3: 0.375}
    run = only(client)
    assert run.info.status == "FAILED"
    assert run.data.tags[tag_names.MISSING_RECORDS].startswith(f"1 record is not here: {folder / 'refused.jsonl'}")
    (kept,) = [json.loads(line) for line in (folder / "refused.jsonl").read_text().splitlines()]
    assert "0.999" in kept["line"] and kept["reason"] == "a line does not match its digest"
    (line,) = warnings(caplog)
    assert "\n" not in line and str(folder) in line


def test_lines_that_are_gone_are_counted(root, client):
    folder = write(root, OPEN, point(1), point(2), point(3), FINISH)
    change(folder, 2, None)
    change(folder, 2, None)
    assert deliver(root, client)
    assert losses(client) == {3: 0.375} and only(client).info.status == "FAILED"
    assert "2 lines are missing from the journal" in (folder / "refused.jsonl").read_text()


def test_a_repeated_line_is_passed_over(root, client):
    folder = write(root, OPEN, point(1), FINISH)
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(encode(1, OPEN))
    spool = Spool(root, HEADER)
    spool.closed = True
    sending = Delivery(memory_sender(client), root)
    sending.add(spool)
    assert sending.wait(patience=0)
    sending.stop()
    assert only(client).info.status == "FINISHED" and not folder.exists()


def test_a_damaged_end_is_a_killed_run(root, client):
    folder = write(root, OPEN, point(1), FINISH)
    change(folder, 3, b"\0" * 40 + b"\n")
    assert deliver(root, client)
    assert only(client).info.status == "KILLED" and tag_names.MISSING_RECORDS in only(client).data.tags


def test_the_same_command_in_the_same_outbox_makes_the_run_whole(root, client):
    """The run is opened again before its damaged outbox has been sent: one journal has the damage and the repair."""
    folder = write(root, OPEN, point(1), FINISH, OPEN, point(1), {"op": "complete"}, FINISH)
    change(folder, 2, b"?\n")
    assert deliver(root, client)
    assert only(client).info.status == "FINISHED" and tag_names.MISSING_RECORDS not in only(client).data.tags
    assert (folder / "refused.jsonl").exists()


@pytest.mark.parametrize("line", [b"?\n", None])
@pytest.mark.parametrize("torn", [b"", b'{"op": "metr'])
@pytest.mark.parametrize("after", [point(2), {"op": "open"}], ids=["metrics", "no valid opening"])
def test_damage_is_remembered_by_the_next_process(line, torn, after, root, client):
    """The damaged line, or the gap, behind the opening was passed, then a kill; the end is delivered by another
    process. `torn`: an earlier kill has left an unfinished note."""
    folder = write(root, OPEN, point(1), after, FINISH)
    (folder / "refused.jsonl").write_bytes(torn)
    change(folder, 2, line)
    spool, sender = Spool(root, HEADER), memory_sender(client)
    sending = Delivery(sender, root)
    for end, entry in spool.entries():
        if entry == FINISH:
            break
        assert sending._settle(spool, end, entry)
        spool.done(end, entry)
    spool.save()
    spool.release()
    sending.stop()
    assert (folder / "sent").exists()
    assert deliver(root, client)
    assert only(client).info.status == "FAILED" and tag_names.MISSING_RECORDS in only(client).data.tags


def test_records_that_were_lost_again_leave_the_note(root, client):
    """`complete` says that all was logged again; a line of this recording is damaged, too."""
    folder = write(root, OPEN, point(1), {"op": "complete"}, FINISH)
    change(folder, 2, b"?\n")
    assert deliver(root, client)
    assert only(client).info.status == "FAILED" and tag_names.MISSING_RECORDS in only(client).data.tags


def test_an_opening_that_was_not_sent_yet_hides_no_damage(root):
    folder = write(root, OPEN, point(1), FINISH, OPEN)
    change(folder, 2, b"?\n")
    spool = Spool(root, HEADER)
    (first, opening), (second, damage), *_ = spool.entries()
    spool.done(first, opening)
    spool.refuse(second, damage, damage.reason, damaged=True)
    spool.done(second, damage)
    spool.save()
    spool.release()
    again = Spool(root, HEADER)
    assert again.damaged and again.missing == 1
    again.release()


def test_records_that_are_sent_again_take_the_note_away(root, client):
    folder = write(root, OPEN, point(1), FINISH)
    change(folder, 2, b"?\n")
    assert deliver(root, client)
    assert only(client).info.status == "FAILED"
    write(root.parent / "again", OPEN, point(1), {"op": "complete"}, FINISH, header=HEADER | {"start": 5})
    shutil.copy(root.parent / "again" / folder.name / "journal.jsonl", folder)
    assert deliver(root, client)
    assert only(client).info.status == "FINISHED" and tag_names.MISSING_RECORDS not in only(client).data.tags
    assert losses(client) == {1: 0.125}


# -- headers and folders ----------------------------------------------------------------------------------------------


def nested(levels):
    header = HEADER
    for _ in range(levels):
        header = HEADER | {"parent": header}
    return header


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"\x93NUMPY\x01\x00v\x00\n\xff\xfe\x00", id="binary"),
        pytest.param(encode(0, HEADER)[:-9] + b"\n", id="truncated"),
        pytest.param(encode(0, HEADER).replace(b'"i"', b'"j"'), id="changed"),
        pytest.param(encode(0, OTHER), id="another run's"),
        pytest.param(b"{}\n", id="empty object"),
        pytest.param(b"[]\n", id="list"),
        pytest.param(b"[" * 5000 + b"\n", id="deep list"),
        pytest.param(json.dumps(nested(60)).encode() + b"\n", id="deep parents"),
        pytest.param(json.dumps(HEADER | {"start": "now"}).encode() + b"\n", id="start is text"),
        pytest.param(json.dumps(HEADER | {"identity": 7}).encode() + b"\n", id="identity is a number"),
        pytest.param(json.dumps(HEADER | {"parent": "p"}).encode() + b"\n", id="parent is text"),
        pytest.param(json.dumps(HEADER | {"name": None}).encode() + b"\n", id="name is null"),
        pytest.param(json.dumps({k: v for k, v in HEADER.items() if k != "target"}).encode() + b"\n", id="no target"),
        pytest.param(json.dumps(HEADER | {"identity": "\ud800"}).encode() + b"\n", id="lone surrogate"),
        pytest.param(b"garbage without an end", id="no line"),
    ],
)
def test_a_damaged_header_sets_the_folder_aside(header, root, client, caplog):
    folder = root / key(HEADER)
    folder.mkdir()
    (folder / "journal.jsonl").write_bytes(header)
    write(root, OPEN, point(1), FINISH, header=OTHER)
    assert deliver(root, client)
    assert losses(client, "other") == {1: 0.125}
    (aside,) = root.glob("damaged-*")
    assert aside.name == f"damaged-{folder.name}-1" and (aside / "journal.jsonl").read_bytes() == header
    (line,) = warnings(caplog)
    assert "\n" not in line and str(aside) in line and "repeat the run's command" in line
    caplog.clear()
    assert deliver(root, client) and not warnings(caplog), "it is told once"


def test_a_run_whose_outbox_is_damaged_starts_a_new_one(root, caplog):
    folder = write(root, OPEN)
    change(folder, 0, b"?\n")
    spool = Spool(root, HEADER)
    spool.append(point(1))
    assert [entry for _, entry in spool.entries()] == [point(1)]
    assert (root / f"damaged-{folder.name}-1").is_dir() and len(warnings(caplog)) == 1
    spool.release()


@pytest.mark.parametrize("name", ["journal.jsonl", "sent", "refused.jsonl", "lock", "owner", "files", "refused"])
def test_a_link_instead_of_a_file_sets_the_folder_aside(name, root, client, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "keep.txt").write_text("precious")
    folder = write(root, OPEN, point(1), FINISH)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim if name in ("files", "refused") else victim / "keep.txt")
    assert deliver(root, client)
    assert (victim / "keep.txt").read_text() == "precious"
    assert [place.name for place in root.glob("damaged-*")] == [f"damaged-{folder.name}-1"]


def test_a_lost_journal_with_staged_files_is_set_aside(root, client, caplog):
    folder = write(root, OPEN)
    (folder / "files" / "000001").mkdir(parents=True)
    (folder / "files" / "000001" / "a.txt").write_text("a")
    (folder / "journal.jsonl").unlink()
    assert deliver(root, client)
    assert (root / f"damaged-{folder.name}-1" / "files" / "000001" / "a.txt").exists()
    assert "its journal is missing" in warnings(caplog)[0]


def test_folders_that_are_no_spools_are_left_alone(root, client):
    (root / "notes").mkdir()
    (root / "notes" / "mine.txt").write_text("mine")
    (root / "a file").write_text("mine")
    assert deliver(root, client)
    assert (root / "notes" / "mine.txt").read_text() == (root / "a file").read_text() == "mine"


def test_an_unreadable_owner_is_no_traceback(root):
    spool = Spool(root, HEADER)
    (spool.folder / "owner").write_bytes(b"\xff\xfe")
    with pytest.raises(PflOpsError, match="pid unknown"):
        Spool(root, HEADER)
    spool.release()


# -- sent -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sent(root):
    """A spool of three entries, of which one has been delivered, and what `sent` says then."""
    folder = write(root, OPEN, point(1), point(2))
    spool = Spool(root, HEADER)
    end, entry = next(spool.entries())
    spool.done(end, entry)
    spool.save()
    spool.release()
    return folder, (folder / "sent").read_text()


def left(root):
    spool = Spool(root, HEADER)
    found = [entry for _, entry in spool.entries()]
    spool.release()
    return found


def test_what_was_sent_is_not_sent_again(sent, root):
    assert left(root) == [point(1), point(2)]


@pytest.mark.parametrize("text", ["999999", "-5", "0", "", "\0\0", "9" * 5000, "{n} 0123456789abcdef", "1{n} {mark}"])
def test_a_wrong_note_of_what_was_sent_loses_nothing(text, sent, root):
    folder, before = sent
    number, mark = before.split()
    (folder / "sent").write_text(text.format(n=number, mark=mark))
    assert left(root) == [OPEN, point(1), point(2)]


@pytest.mark.parametrize("shift", [0, -3, 3])
def test_a_note_of_a_number_alone_loses_nothing(shift, root):
    folder = write(root, OPEN, point(1), point(2))
    ends = [len(line) for line in (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)]
    (folder / "sent").write_text(str(sum(ends[:3]) + shift))
    assert left(root) == [OPEN, point(1), point(2)]


def test_a_note_of_an_earlier_journal_does_not_count(sent, root):
    """A kill between the removal of the journal and that of `sent`; the next journal has the same lines."""
    folder, before = sent
    (folder / "journal.jsonl").unlink()
    write(root.parent / "again", OPEN, point(1), header=HEADER | {"start": 7})
    shutil.copy(root.parent / "again" / folder.name / "journal.jsonl", folder)
    assert (folder / "sent").read_text() == before
    assert left(root) == [OPEN, point(1)]


def test_a_note_beyond_a_truncated_journal_does_not_hide_new_lines(sent, root):
    folder, _ = sent
    lines = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "journal.jsonl").write_bytes(lines[0])
    spool = Spool(root, HEADER)
    spool.append({"op": "open", "name": "m"})
    spool.append(point(5))
    spool.release()
    assert left(root) == [{"op": "open", "name": "m"}, point(5)]


# -- entries ----------------------------------------------------------------------------------------------------------

WRONG = [
    {"name": "no op"},
    {"op": "unknown"},
    {"op": "damaged"},
    {"op": "send"},
    {"op": None},
    {"op": ["open"]},
    {"op": "open"},
    {"op": "finish", "status": "DONE", "time": 1},
    {"op": "tags", "tags": ["a"]},
    {"op": "tags", "tags": {"a": 1}},
    {"op": "params", "params": None},
    {"op": "metrics", "points": [["loss", 1.0, 2]]},
    {"op": "metrics", "points": [["loss", "1.0", 2, 3]]},
    {"op": "metrics", "points": [["loss", 1.0, 2, 10**30]]},
    {"op": "metrics", "points": {"loss": 1}},
    {"op": "artifact", "file": 7, "folder": ""},
    {"op": "artifact", "folder": ""},
    {"op": "model", "file": "files/000001/m", "name": "m", "step": "1"},
]


@pytest.mark.parametrize("entry", WRONG, ids=json.dumps)
def test_an_entry_of_the_wrong_shape_blocks_nothing(entry, root, client):
    folder = write(root, OPEN, entry, point(1), FINISH)
    write(root, OPEN, point(2), FINISH, header=OTHER)
    assert deliver(root, client)
    assert losses(client) == {1: 0.125} and losses(client, "other") == {2: 0.25}
    assert only(client).info.status == "FAILED" and only(client, "other").info.status == "FINISHED"
    assert json.loads((folder / "refused.jsonl").read_text())["reason"].startswith("the entry is not valid")


def test_a_line_that_is_no_object_blocks_nothing(root, client):
    folder = write(root, OPEN, point(1), FINISH)
    with (folder / "journal.jsonl").open("rb+") as file:
        lines = file.read().splitlines(keepends=True)
    lines[2:2] = [encode(1, 7), encode(1, None)]  # type: ignore[arg-type]
    (folder / "journal.jsonl").write_bytes(b"".join(lines))
    assert deliver(root, client)
    assert losses(client) == {1: 0.125}


def test_trouble_with_one_spool_does_not_delay_the_next(root, client, monkeypatch, caplog):
    """The first spool's metrics fail with an error of our own, again and again; it is given up after some tries."""
    monkeypatch.setattr(delivery, "TRIES", 10**9)
    write(root, OPEN, point(1), FINISH)
    write(root, OPEN, point(2), FINISH, header=OTHER)
    sender = memory_sender(client)
    metrics, tried = sender._metrics, []

    def fail(run_id, spool, entry):
        if spool.header == HEADER:
            tried.append(1)
            raise KeyError("a mistake of ours")
        metrics(run_id, spool, entry)

    monkeypatch.setattr(sender, "_metrics", fail)
    sending = Delivery(sender, root)
    found = list(outbox.adopt(root, "http://a", ()))
    for spool in found:
        sending.add(spool)
    second = next(spool for spool in found if spool.header == OTHER)
    assert sending.wait(second, patience=60)
    assert only(client, "other").info.status == "FINISHED" and tried
    assert not sending.wait(patience=0)
    monkeypatch.setattr(delivery, "TRIES", 8)
    assert sending.wait(patience=60)
    sending.stop()
    run = only(client)
    assert (
        run.info.status == "FINISHED"
        and tag_names.REFUSED_RECORDS in run.data.tags
        and tag_names.MISSING_RECORDS not in run.data.tags
    )
    assert sum("have to wait" in line for line in warnings(caplog)) == 1


@pytest.mark.parametrize(
    ("error", "failures"),
    [
        (KeyError("a mistake of ours"), delivery.TRIES - 1),  # of each entry
        (RestException({"error_code": "PERMISSION_DENIED", "message": "not now"}), 3 * delivery.TRIES),
        (OSError(errno.ENOSPC, "No space left on device"), 3 * delivery.TRIES),
    ],
    ids=["odd", "later", "local"],
)
def test_an_error_that_may_pass_gives_no_record_up(error, failures, root, client, monkeypatch):
    folder = write(root, OPEN, point(1), point(2), FINISH)
    sender = memory_sender(client)
    send, tried = sender._metrics, []

    def fail(run_id, spool, entry):
        tried.append(entry["points"][0][3])
        if tried.count(tried[-1]) <= failures:
            raise error
        send(run_id, spool, entry)

    monkeypatch.setattr(sender, "_metrics", fail)
    sending = Delivery(sender, root)
    for spool in outbox.adopt(root, "http://a", ()):
        sending.add(spool)
    assert sending.wait(patience=60)
    sending.stop()
    assert losses(client) == {1: 0.125, 2: 0.25} and only(client).info.status == "FINISHED"
    assert not folder.exists() and tried == [1] * (failures + 1) + [2] * (failures + 1)


def test_a_journal_that_vanishes_stops_only_its_spool(root, client, caplog):
    folder = write(root, OPEN, point(1), FINISH)
    write(root, OPEN, point(2), FINISH, header=OTHER)
    found = list(outbox.adopt(root, "http://a", ()))
    (folder / "journal.jsonl").rename(root.parent / "journal.jsonl")
    sending = Delivery(memory_sender(client), root)
    for spool in found:
        sending.add(spool)
    assert sending.wait(next(spool for spool in found if spool.header == OTHER), patience=60)
    assert not sending.wait(patience=0.05) and not sending.down
    (root.parent / "journal.jsonl").rename(folder / "journal.jsonl")
    assert sending.wait(patience=60)
    sending.stop()
    assert losses(client) == {1: 0.125} and losses(client, "other") == {2: 0.25}
    assert sum("have to wait" in line for line in warnings(caplog)) == 1


def test_an_error_while_the_target_is_down_gives_nothing_up(root, client, monkeypatch):
    """A server without its database answers INTERNAL_ERROR to everything."""
    monkeypatch.setattr(delivery, "TRIES", 2)
    write(root, OPEN, point(1), FINISH)
    sender, tried = memory_sender(client), []

    def broken(*_, **__):
        tried.append(1)
        raise RestException({"error_code": "INTERNAL_ERROR", "message": "no database"})

    with monkeypatch.context() as patch:
        patch.setattr(sender, "send", broken)
        patch.setattr(sender, "answers", lambda: False)
        sending = Delivery(sender, root)
        for spool in outbox.adopt(root, "http://a", ()):
            sending.add(spool)
        while len(tried) < 5:
            assert not sending.wait(patience=0.01)
        assert sending.down
    assert sending.wait(patience=60)
    sending.stop()
    assert losses(client) == {1: 0.125} and only(client).info.status == "FINISHED"


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path):
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "keep.txt").write_text("precious")
    return folder


def artifact(file, folder=""):
    return {"op": "artifact", "file": file, "folder": folder}


@pytest.mark.parametrize(
    "file",
    [
        "../../../victim/keep.txt",
        "files/000001/../../../../../victim/keep.txt",
        "{victim}/keep.txt",
        "files/../journal.jsonl",
        "files/000001/..",
        "files/000001/",
        "files/000001",
        "files/link/keep.txt",
        "files/000002/keep.txt",
        "files/000003/keep.txt",
        "files/000004/inside",
        "files/000001/a\0b",
        "journal.jsonl",
        "",
        ".",
    ],
)
def test_a_path_out_of_the_outbox_is_refused(file, root, client, victim):
    folder = write(root, OPEN, artifact(file.format(victim=victim)), point(1), FINISH)
    (folder / "files" / "000003").mkdir(parents=True)
    (folder / "files" / "link").symlink_to(victim)
    (folder / "files" / "000002").symlink_to(victim)
    (folder / "files" / "000003" / "keep.txt").symlink_to(victim / "keep.txt")
    (folder / "files" / "000004" / "inside").mkdir(parents=True)
    (folder / "files" / "000004" / "inside" / "keep.txt").symlink_to(victim / "keep.txt")
    assert deliver(root, client)
    assert (victim / "keep.txt").read_text() == "precious"
    assert client.files[only(client).info.run_id] == {}
    assert losses(client) == {1: 0.125} and only(client).info.status == "FAILED"


@pytest.mark.parametrize("destination", ["../x", "a/../../x", "/etc", "a\\..\\b"])
def test_a_destination_out_of_the_artifacts_is_refused(destination, root, client, tmp_path):
    folder = write(root, OPEN, artifact("files/000001/a.txt", destination), FINISH)
    (folder / "files" / "000001").mkdir(parents=True)
    (folder / "files" / "000001" / "a.txt").write_text("a")
    assert deliver(root, client)
    assert client.files[only(client).info.run_id] == {}
    run = Run(Spool(root, OTHER), None)
    (tmp_path / "b.txt").write_text("b")
    for attempt in (
        lambda: run.artifact(tmp_path / "b.txt", destination),
        lambda: run.text("b", f"{destination}/b.txt"),
    ):
        with pytest.raises(PflOpsError, match="can't keep a file: the destination"):
            attempt()
    assert not (run.spool.folder / "files").exists()
    run.spool.release()


@pytest.fixture
def kept(root):
    """A spool with one staged file and one staged folder, as a killed process leaves it."""
    spool = Spool(root, HEADER)
    spool.append(OPEN)
    paths = [spool.stage("a.txt"), spool.stage("folder")]
    paths[0].write_text("content")
    (paths[1] / "deep").mkdir(parents=True)
    (paths[1] / "deep" / "b.txt").write_text("deep content")
    for path in paths:
        spool.append({"op": "artifact", **spool.seal(path), "folder": "x"})
    spool.append(FINISH)
    spool.release()
    return paths


def test_staged_files_are_delivered_whole(kept, root, client):
    assert deliver(root, client)
    files = client.files[only(client).info.run_id]
    assert files == {"x/a.txt": b"content", "x/folder/deep/b.txt": b"deep content"}
    assert list(root.iterdir()) == [root / ".lock"]


@pytest.mark.parametrize("damage", ["missing", "changed", "shorter", "folder changed", "a link", "a pipe"])
def test_a_damaged_staged_file_is_refused(damage, kept, root, client, victim):
    file, folder = kept
    match damage:
        case "changed":
            file.write_text("CONTENT")
        case "shorter":
            file.write_text("conten")
        case "folder changed":
            (folder / "deep" / "b.txt").rename(folder / "deep" / "c.txt")
        case _:
            file.unlink()
    if damage == "a link":
        file.symlink_to(victim / "keep.txt")
    if damage == "a pipe":
        os.mkfifo(file)
    assert deliver(root, client)
    run = only(client)
    assert (
        len(client.files[run.info.run_id]) == 1
        and run.info.status == "FAILED"
        and tag_names.MISSING_RECORDS in run.data.tags
    )
    assert "the staged file" in (file.parents[2] / "refused.jsonl").read_text()
    assert (victim / "keep.txt").read_text() == "precious"


def test_a_file_that_was_delivered_before_a_kill_is_not_missed(kept, root, client):
    """Killed after the removal of the file, and `sent` lost too: MLflow has the file, so nothing is missing."""
    shutil.copytree(root, root.parent / "before")
    assert deliver(root, client)
    shutil.copytree(root.parent / "before", root, dirs_exist_ok=True)
    shutil.rmtree(kept[0].parent)
    assert deliver(root, client)
    assert only(client).info.status == "FINISHED" and tag_names.MISSING_RECORDS not in only(client).data.tags
    assert list(root.iterdir()) == [root / ".lock"]


def test_a_lost_file_of_which_mlflow_has_a_part_is_missed(kept, root, client):
    shutil.copytree(root, root.parent / "before")
    assert deliver(root, client)
    client.files[only(client).info.run_id]["x/a.txt"] = b"conten"
    shutil.copytree(root.parent / "before", root, dirs_exist_ok=True)
    shutil.rmtree(kept[0].parent)
    assert deliver(root, client)
    assert only(client).info.status == "FAILED" and tag_names.MISSING_RECORDS in only(client).data.tags


def test_staged_files_are_synced_before_their_line(root, monkeypatch):
    synced = []

    def record(handle):
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))

    spool = Spool(root, HEADER)
    monkeypatch.setattr(os, "fsync", record)
    staged = spool.stage("folder")
    (staged / "deep").mkdir(parents=True)
    (staged / "deep" / "b.txt").write_text("b")
    spool.append({"op": "artifact", **spool.seal(staged), "folder": ""})
    spool.release()
    slot = staged.parent
    wanted = [spool.folder, staged / "deep" / "b.txt", staged / "deep", staged, slot, slot.parent]
    assert [Path(path) for path in synced[:-1]] == wanted and synced[-1].endswith("journal.jsonl")


def test_staged_files_stay_while_a_line_that_may_name_them_is_damaged(kept, root):
    change(root / key(HEADER), 2, b"?\n")
    Spool(root, HEADER).release()
    assert all(path.exists() for path in kept)


def test_a_refused_file_is_kept_after_a_kill_before_it_was_moved(kept, root, client, monkeypatch):
    """Killed when the note of the refusal was written: the next process moves the file and does not remove it."""
    spool = Spool(root, HEADER)
    end, entry = list(spool.entries())[1]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(Kill))
        with pytest.raises(Kill):
            spool.refuse(end, entry, "too large", damaged=False)
    spool.release()
    assert deliver(root, client)
    assert (spool.folder / "refused" / entry["file"]).read_text() == "content"
    assert len((spool.folder / "refused.jsonl").read_text().splitlines()) == 1
    assert tag_names.REFUSED_RECORDS in only(client).data.tags


def test_a_refusal_is_on_disk_before_the_entry_is_passed(root, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(Path(os.readlink(f"/proc/self/fd/{handle}"))))
    spool = Spool(root, HEADER)
    synced.clear()
    spool.refuse(1, OPEN, "no", damaged=False)
    assert synced == [spool.folder / "refused.jsonl", spool.folder]
    spool.release()


def test_other_names_among_staged_files_are_left_alone(root):
    spool = Spool(root, HEADER)
    (spool.folder / "files" / "notes").mkdir(parents=True)
    assert spool.stage("a.txt").parent.name == "000001"
    spool.release()
    again = Spool(root, HEADER)
    assert [f.name for f in (spool.folder / "files").iterdir()] == ["notes"], "an empty slot without a line is swept"
    again.release()


def test_links_are_kept_as_the_files_they_lead_to(root, tmp_path):
    (tmp_path / "origin.txt").write_text("content")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link.txt").symlink_to(tmp_path / "origin.txt")

    class Idle:
        def wake(self):
            pass

    run = Run(Spool(root, HEADER), Idle())
    run.artifact(tmp_path / "folder", move=True)
    (entry,) = [entry for _, entry in run.spool.entries()]
    assert (run.spool.find_file(entry) / "link.txt").read_text() == "content"
    assert not (tmp_path / "folder").exists() and (tmp_path / "origin.txt").exists()
    run.spool.release()


# -- kills and full disks ---------------------------------------------------------------------------------------------


class Kill(BaseException):
    pass


@pytest.mark.parametrize("survived", range(8))
def test_a_kill_while_a_spool_is_let_go(survived, kept, root, client, monkeypatch):
    """After each number of removals and syncs of `release` the next process ends what is left."""
    calls = []

    def counted(function):
        def call(*arguments, **options):
            if len(calls) >= survived:
                raise Kill
            calls.append(function)
            return function(*arguments, **options)

        return call

    spool = Spool(root, HEADER)
    memory = memory_sender(client)
    for end, entry in spool.entries():
        memory.send(spool, entry)
        spool.done(end, entry)
        spool.save()
    spool.closed = True
    with monkeypatch.context() as patch:
        for where, name in ((Path, "unlink"), (os, "unlink"), (os, "rmdir"), (spool_folder, "sync")):
            patch.setattr(where, name, counted(getattr(where, name)))
        with contextlib.suppress(Kill):
            spool.release()
    spool._lock.release()
    assert deliver(root, client)
    assert only(client).info.status == "FINISHED" and tag_names.MISSING_RECORDS not in only(client).data.tags
    assert list(root.iterdir()) == [root / ".lock"]


def test_files_that_could_not_be_removed_are_no_damage(root, client, monkeypatch):
    """As where file handles run out while a delivered spool goes: the next process removes the rest."""
    spool = Spool(root, HEADER)
    spool.stage("model").write_bytes(b"weights")
    for end, entry in spool.entries():
        spool.done(end, entry)
    spool.closed = True
    with monkeypatch.context() as patch:
        patch.setattr(spool_folder.shutil, "rmtree", lambda *_, **__: None)
        spool.release()
    assert spool.folder.exists()
    assert deliver(root, client)
    assert list(root.iterdir()) == [root / ".lock"]


@pytest.mark.parametrize("cut", [True, False])
def test_a_full_disk_leaves_whole_lines(cut, root, monkeypatch):
    """`cut`: the unfinished line can be cut off at once; else before the next line is written."""
    spool = Spool(root, HEADER)
    spool.append(OPEN)
    journal = spool._journal

    class Full:
        def __getattr__(self, name):
            return getattr(journal, name)

        def write(self, data):
            journal.write(data[:7])
            raise OSError(errno.ENOSPC, "No space left on device")

        def truncate(self, size):
            if not cut:
                raise OSError(errno.EIO, "Input/output error")
            return journal.truncate(size)

    spool._journal = Full()
    with pytest.raises(PflOpsError, match="No space left"):
        spool.append(point(1))
    spool._journal = journal
    spool.append(point(2))
    assert [entry for _, entry in spool.entries()] == [OPEN, point(2)]
    spool.release()
    assert left(root) == [OPEN, point(2)]


def test_a_full_disk_at_the_beginning_lets_go_of_the_lock(root, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(PflOpsError, match=r"can't write .*No space left"):
            Spool(root, HEADER)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(PflOpsError, match=r"can't write .*No space left"):
            Spool(root, HEADER)
    Spool(root, HEADER).release()


# -- random damage ----------------------------------------------------------------------------------------------------

ENTRIES = [
    OPEN,
    {"op": "tags", "tags": {"k": "v"}},
    point(1),
    {"op": "artifact", "file": "files/000001/a.txt", "folder": ""},
    {"op": "params", "params": {"p": "q"}},
    point(2),
    point(3),
    FINISH,
]
PIECES = st.one_of(
    st.tuples(st.just("flip"), st.floats(0, 1, exclude_max=True), st.integers(1, 255)),
    st.tuples(st.just("insert"), st.floats(0, 1), st.binary(min_size=1, max_size=12)),
    st.tuples(st.just("delete"), st.floats(0, 1), st.integers(1, 200)),
    st.tuples(st.just("truncate"), st.floats(0, 1), st.none()),
    st.tuples(st.just("repeat"), st.floats(0, 1, exclude_max=True), st.integers(0, 9)),
    st.tuples(st.just("zeros"), st.floats(0, 1), st.integers(1, 200)),
)


def damaged(data, pieces):
    for kind, where, what in pieces:
        if not data:
            break
        at = int(where * len(data))
        if kind == "flip":
            data = data[:at] + bytes([data[at] ^ what]) + data[at + 1 :]
        elif kind == "insert":
            data = data[:at] + what + data[at:]
        elif kind == "delete":
            data = data[:at] + data[at + what :]
        elif kind == "truncate":
            data = data[:at]
        elif kind == "zeros":
            data = data[:at] + b"\0" * len(data[at : at + what]) + data[at + what :]
        else:
            lines = data.splitlines(keepends=True)
            line = lines[int(where * len(lines))]
            lines.insert(what, line)
            data = b"".join(lines)
    return data


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(PIECES, min_size=1, max_size=3), sent=st.one_of(st.none(), st.binary(max_size=20)))
def test_random_damage_never_changes_a_value_or_leaves_the_outbox(pieces, sent, tmp_path_factory):
    home = tmp_path_factory.mktemp("damage")
    root, victim = home / "spool", home / "victim.txt"
    root.mkdir()
    victim.write_text("precious")
    folder = write(root, *ENTRIES)
    (folder / "files" / "000001").mkdir(parents=True)
    (folder / "files" / "000001" / "a.txt").write_text("content")
    journal = folder / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(damaged(whole, pieces))
    if sent is not None:
        (folder / "sent").write_bytes(sent)
    client = MemoryMlflow()
    before = {path: path.read_bytes() for path in home.iterdir() if path.is_file()}

    assert deliver(root, client)
    assert {path: path.read_bytes() for path in home.iterdir() if path.is_file()} == before
    for run in client.runs.values():
        assert run.data.tags["pfl_ops.identity"] == "i"
        assert losses(client).items() <= {1: 0.125, 2: 0.25, 3: 0.375}.items()
        assert run.data.params.items() <= {"p": "q"}.items() and run.data.tags.get("k", "v") == "v"
        assert client.files[run.info.run_id].items() <= {"a.txt": b"content"}.items()
        if run.info.status == "FINISHED":
            assert len(losses(client)) == 3 and run.data.params and "k" in run.data.tags
            assert client.files[run.info.run_id] == {"a.txt": b"content"}
    if not client.runs:
        assert list(root.glob("damaged-*")) or not (folder / "journal.jsonl").exists() or not whole
    shutil.rmtree(home)


# -- re-runs ----------------------------------------------------------------------------------------------------------


def test_a_rerun_is_a_new_run_and_marks_the_old_one(root, client):
    write(root, OPEN, point(1), FINISH)
    assert deliver(root, client)
    new = HEADER | {"rerun": "t1", "start": 50}
    for _ in range(2):  # sent twice, as after a kill
        write(root, {"op": "supersede"}, OPEN, point(1, 0.5), FINISH, header=new)
        assert deliver(root, client)
    first, second = client.by_identity("i")
    assert first.data.tags[tag_names.SUPERSEDED] == second.info.run_id
    assert second.data.tags[tag_names.RERUN] == "t1" and tag_names.SUPERSEDED not in second.data.tags
    assert client.points[first.info.run_id] == {("loss", 1): (0.125, 1001)}
    assert client.points[second.info.run_id] == {("loss", 1): (0.5, 1001)}


@pytest.mark.parametrize("reverse", [True, False])
def test_reruns_that_waited_go_to_their_own_runs_in_any_order(reverse, root, client):
    """The first run, its re-run, and a third that was opened while the target was down and knows of no re-run."""
    spools = [
        ((OPEN, point(1), FINISH), HEADER),
        (({"op": "supersede"}, OPEN, point(1, 0.5), FINISH), HEADER | {"rerun": "t1", "start": 50}),
        (({"op": "supersede"}, OPEN, point(1, 0.7), FINISH), HEADER | {"rerun": "t2", "start": 90}),
    ]
    for entries, header in spools[::-1] if reverse else spools:
        write(root, *entries, header=header)
        assert deliver(root, client)
    runs = sorted(client.by_identity("i"), key=lambda run: run.info.start_time)
    assert [run.data.tags.get(tag_names.RERUN) for run in runs] == [None, "t1", "t2"]
    assert [client.points[run.info.run_id]["loss", 1][0] for run in runs] == [0.125, 0.5, 0.7]
    assert [tag_names.SUPERSEDED in run.data.tags for run in runs] == [True, True, False]
    write(root, OPEN, point(2), FINISH, header=HEADER | {"start": 95})
    assert deliver(root, client)
    assert set(client.points[runs[2].info.run_id]) == {("loss", 1), ("loss", 2)}
