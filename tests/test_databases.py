"""Databases are made aside and renamed; locks of a server's database; places that could not be written."""

import logging
import os
import resource
import sqlite3

import pytest

from pfl_ops import databases
from pfl_ops.databases import lock_statements, make_aside, probe, set_aside, sqlite_file
from pfl_ops.errors import PflOpsError
from pfl_ops.files import check_writable


def two_tables(address):
    with sqlite3.connect(sqlite_file(address)) as connection:
        connection.execute("CREATE TABLE one (x)")
        connection.execute("CREATE TABLE two (x)")
    connection.close()


def fork(action):
    """Exit code of a child that does it."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:
            os._exit(3)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_database_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "some.db"

    def killed_between_tables(address):
        with sqlite3.connect(sqlite_file(address)) as connection:
            connection.execute("CREATE TABLE one (x)")
        os._exit(9)

    assert fork(lambda: make_aside(file, killed_between_tables)) == 9
    assert not file.exists() and len(list(tmp_path.iterdir())) == 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *_: os._exit(9))
        assert fork(lambda: make_aside(file, two_tables)) == 9
    assert not file.exists() and len(list(tmp_path.iterdir())) == 1, "the first left-over was swept"
    make_aside(file, two_tables)
    assert [p.name for p in tmp_path.iterdir()] == ["some.db"]
    assert databases.tables(file) == {"one", "two"}


def test_a_template_is_made_once_and_copied_while_it_is_whole(tmp_path):
    template, made = tmp_path / "cache" / "t.db", []

    def make(address):
        made.append(address)
        two_tables(address)

    def new(name, **settings):
        make_aside(tmp_path / name, make, template, **settings)
        return databases.tables(tmp_path / name)

    assert new("a.db") == new("b.db") == {"one", "two"} and len(made) == 1
    assert new("c.db", adapt=lambda connection: connection.execute("DROP TABLE one")) == {"two"}
    assert new("d.db") == {"one", "two"} and len(made) == 1
    template.write_bytes(template.read_bytes()[:-1])  # cut off, as a full disk may
    assert new("e.db") == {"one", "two"} and len(made) == 2
    assert new("f.db") == {"one", "two"} and len(made) == 2
    assert {file.name for file in (tmp_path / "cache").iterdir()} == {"t.db", "t.db.sha256"}


def test_a_cache_that_can_not_be_written_is_no_error(tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    make_aside(tmp_path / "a.db", two_tables, tmp_path / "cache" / "t.db")
    assert databases.tables(tmp_path / "a.db") == {"one", "two"}


def test_journals_of_a_removed_database_do_not_touch_the_new_one(tmp_path):
    for suffix in databases.SIDE_FILES:
        (tmp_path / f"some.db{suffix}").write_bytes(b"old")
    make_aside(tmp_path / "some.db", two_tables)
    assert [p.name for p in tmp_path.iterdir()] == ["some.db"]


def test_a_full_disk_leaves_nothing_and_says_so(tmp_path):
    file = tmp_path / "some.db"

    def little_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        with pytest.raises(
            PflOpsError, match=rf"^the database {file} can't be made \([^\n]*\); is the disk full[^\n]*$"
        ):
            make_aside(file, two_tables)

    assert fork(little_room) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_ends_the_copy_of_a_template(tmp_path):
    """A part of the copy was taken for a database: its tables were made, and it was called malformed."""
    template, made = tmp_path / "cache" / "t.db", []
    make_aside(tmp_path / "first.db", two_tables, template)

    def little_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        with pytest.raises(PflOpsError, match=r"some.db can't be made \([^\n]*File too large[^\n]*\); is the disk"):
            make_aside(tmp_path / "some.db", made.append, template)
        assert not made

    assert fork(little_room) == 0
    assert {file.name for file in tmp_path.iterdir()} == {"cache", "first.db"}


def test_a_database_set_aside_keeps_its_journal_and_never_replaces_another(tmp_path):
    for n in ("", "-2"):
        (tmp_path / "some.db").write_text(f"content{n}")
        (tmp_path / "some.db-wal").write_text(f"log{n}")
        aside = set_aside(tmp_path / "some.db", "run", logging.getLogger("pfl_ops"))
        assert aside == tmp_path / f"some.unfinished{n}.db"
        assert (tmp_path / f"some.unfinished{n}.db").read_text() == f"content{n}"
        assert (tmp_path / f"some.unfinished{n}.db-wal").read_text() == f"log{n}"


def test_a_file_that_is_no_database_is_one_line(tmp_path):
    (tmp_path / "letter").write_text("this is a letter, not a database" * 100)
    with pytest.raises(PflOpsError, match=r"the database .*letter can't be used \(file is not a database\)"):
        databases.tables(tmp_path / "letter")


def test_each_server_has_its_own_lock():
    assert lock_statements("postgresql")[-1] == f"SELECT pg_advisory_lock({databases.LOCK_NUMBER})"
    assert -(2**63) <= databases.LOCK_NUMBER < 2**63
    assert lock_statements("mysql") == ["SELECT GET_LOCK('pfl-ops', 300)"]
    assert lock_statements("mssql") == []


def test_a_host_that_does_not_exist_is_refused_and_one_that_is_down_is_not(monkeypatch):
    import socket

    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(ConnectionError, match=r"postgresql://127\.0\.0\.1:9/d does not answer"):
        probe("postgresql://me:s3cret@127.0.0.1:9/d")
    monkeypatch.setattr(socket, "create_connection", unknown)
    with pytest.raises(PflOpsError, match="no host named 'mlfow'") as caught:
        probe("http://me:s3cret@mlfow:5000")
    assert "s3cret" not in str(caught.value)


def test_places_that_can_not_be_written_are_found_without_making_them(tmp_path):
    check_writable(tmp_path / "a" / "b", "the report's folder", "name another")
    (tmp_path / "file").write_text("")
    check_writable(tmp_path / "file", "the report", "name another")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    with pytest.raises(
        PflOpsError, match=r"the work folder .*file/x can't be written \(.*file is not a folder\); name"
    ):
        check_writable(tmp_path / "file" / "x", "the work folder", "name another")
