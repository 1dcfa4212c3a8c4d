"""Databases that are made once: SQLite files under a temporary name, tables on a server under a lock.

A program that makes a database's tables takes seconds, and may be killed in them or find the disk full. An SQLite
file is therefore made beside its place, synced, and renamed: it is there whole or not at all.
"""

import contextlib
import hashlib
import logging
import os
import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock

from pfl_ops.errors import PflOpsError
from pfl_ops.files import check_writable, replacing, write_whole
from pfl_ops.redaction import redact, redact_address

LOCK_SECONDS = 300
LOCK_NUMBER = int.from_bytes(b"pfl-ops")  # of PostgreSQL's advisory lock, the same for every pfl-ops process
PROBE_SECONDS = 5.0
PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
SIDE_FILES = ("-journal", "-wal", "-shm")


def sqlite_file(address: str) -> Path | None:
    """Return the absolute path of a `sqlite:///FILE` address; None if it names no file."""
    name = address.removeprefix("sqlite:///").split("?")[0]
    if not address.startswith("sqlite:///") or not name or name.startswith(":"):
        return None
    return Path(name).expanduser().absolute()


def check_sqlite(address: str, name: str) -> Path:
    """Return the file of a `sqlite:` address after a check; nothing is made.

    Args:
        name: what the address is, for the message ("tracking address").
    Raises:
        PflOpsError: it names no file, or one that can't be written.
    """
    file = sqlite_file(address)
    if file is None:
        raise PflOpsError(f"{name} '{address}' names no file; write sqlite:///FILE")
    check_writable(file, name, "name another file")
    return file


def tables(file: Path) -> set[str]:
    """Return the names of an SQLite file's tables; opening it also rolls back what a kill left unfinished.

    Raises:
        PflOpsError: the file is no SQLite database, or can't be read.
    """
    return {row[0] for row in query(file, "SELECT name FROM sqlite_master WHERE type = 'table'")}


def query(file: Path, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of one statement on an SQLite file, which must exist.

    Raises:
        PflOpsError: as for `tables`.
    """
    try:
        with contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode=rw", uri=True, timeout=60)) as connection:
            return connection.execute(statement).fetchall()
    except sqlite3.Error as error:
        raise PflOpsError(f"the database {file} can't be used ({error})") from error


def has_table(address: str, name: str) -> bool:
    """True if an SQL database has a table of this name."""
    import sqlalchemy
    from sqlalchemy.pool import NullPool

    return bool(sqlalchemy.inspect(sqlalchemy.create_engine(address, poolclass=NullPool)).has_table(name))


def is_empty(file: Path) -> bool:
    """True if there is no such file, or one of no bytes, as a kill leaves right after it was opened."""
    return not file.exists() or file.stat().st_size == 0


def make_aside(
    file: Path,
    make: Callable[[str], None],
    template: Path | None = None,
    adapt: Callable[[sqlite3.Connection], None] = lambda connection: None,
) -> None:
    """Make an SQLite database beside its place, sync it, and rename it. Hold `exclusive` around it.

    Args:
        file: its place.
        make: gets the address of the temporary file, makes the tables there, and closes it.
        template: such a database, kept in the user's cache: copied if it is whole, else made. None: there is none.
        adapt: changes in a copy what is another folder's.
    Raises:
        PflOpsError: the disk is full or can't be written; nothing is left behind.
    """
    from sqlalchemy.exc import SQLAlchemyError

    sweep(file)
    try:
        with replacing(file) as draft, _unsynced(draft):
            if template and _copied(template, draft):
                with contextlib.closing(sqlite3.connect(draft)) as connection:
                    adapt(connection)
                    connection.commit()
            else:
                make(f"sqlite:///{draft}")
                if template:
                    _keep_template(draft, template)
            for suffix in SIDE_FILES:  # of a file that was removed: SQLite would apply them to the new one
                file.with_name(file.name + suffix).unlink(missing_ok=True)
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        reason = getattr(error, "orig", None) or error
        raise PflOpsError(
            f"the database {file} can't be made ({redact(str(reason)).splitlines()[0]}); is the disk full? "
            "Make room, and the same command begins again"
        ) from error
    finally:
        sweep(file)


def _copied(template: Path, draft: Path) -> bool:
    """Copy a template; False if there is none, or it is not as it was kept.

    Raises:
        OSError: the copy can't be written; a part of it must not be taken for a database to make tables in.
    """
    try:
        content = template.read_bytes()
        if hashlib.sha256(content).hexdigest() != _digest_file(template).read_text():
            return False
    except (OSError, UnicodeDecodeError):
        return False
    draft.write_bytes(content)
    return True


def _keep_template(draft: Path, template: Path) -> None:
    """Keep a new database as the template, with its digest; a cache that can't be written is no error."""
    with contextlib.suppress(OSError, PflOpsError):
        template.parent.mkdir(parents=True, exist_ok=True)
        content = draft.read_bytes()
        write_whole(_digest_file(template), hashlib.sha256(content).hexdigest())
        with replacing(template) as copy:
            copy.write_bytes(content)


def _digest_file(template: Path) -> Path:
    return template.with_name(template.name + ".sha256")


def sweep(file: Path) -> None:
    """Remove the temporary files that earlier makings of a database left when they were killed."""
    for left in file.parent.glob(f".{file.stem}-????????{file.suffix}*"):
        left.unlink(missing_ok=True)


def set_aside(file: Path, holds: str, log: logging.Logger) -> Path:
    """Rename an unfinished database and its side files to a free name, say so in one line, and return the name.

    Args:
        holds: what the database would hold if it were finished ("run"). log: where the line goes.
    """
    numbered = (f"-{n}" if n > 1 else "" for n in range(1, 10_000))
    other = next(p for n in numbered if not (p := file.with_name(f"{file.stem}.unfinished{n}{file.suffix}")).exists())
    for suffix in ("", *SIDE_FILES):
        with contextlib.suppress(FileNotFoundError):
            os.replace(file.with_name(file.name + suffix), other.with_name(other.name + suffix))
    log.warning(
        "the database %s was left unfinished by an earlier start and holds no %s; it is kept as %s, and a new one is "
        "made",
        file,
        holds,
        other.name,
    )
    return other


@contextlib.contextmanager
def _unsynced(draft: Path) -> Iterator[None]:
    """Make SQLAlchemy's connections to one file skip syncing: the whole file is synced once, at the end."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def connected(connection: Any, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            here = connection.execute("PRAGMA database_list").fetchone()[2]
            if Path(here).name == draft.name:
                connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", connected)
    try:
        yield
    finally:
        event.remove(Engine, "connect", connected)


@contextlib.contextmanager
def exclusive(address: str) -> Iterator[None]:
    """Hold the lock under which one process at a time looks at a database and makes its tables.

    A file beside an SQLite database; on PostgreSQL an advisory lock and on MySQL a named lock, each in a session of its
    own, so that a process that dies lets go of it. SQL Server has none here: start one process first.

    Raises:
        PflOpsError: the database refuses the connection (a wrong password, no such database).
        ConnectionError: the database's server does not answer.
    """
    file = sqlite_file(address)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_name(f".{file.name}.lock"), timeout=LOCK_SECONDS):
            yield
        return
    import sqlalchemy
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import NullPool

    probe(address)
    engine = sqlalchemy.create_engine(address, poolclass=NullPool)
    try:
        connection = engine.connect()
    except DBAPIError as error:
        reason = redact(str(error.orig)).strip().splitlines()[0]
        if any(passing in reason for passing in ("starting up", "shutting down", "too many")):
            raise ConnectionError(f"{redact_address(address)} takes no connections now ({reason})") from error
        raise PflOpsError(f"the database {redact_address(address)} refuses the connection ({reason})") from error
    with connection:
        for statement in lock_statements(engine.dialect.name):
            connection.execute(sqlalchemy.text(statement))
        yield
        connection.rollback()  # closing the session gives the lock back


def lock_statements(dialect: str) -> list[str]:
    """Return the statements that take the lock in a session of this SQL dialect; none where it has no such lock."""
    if dialect == "postgresql":
        return [f"SET lock_timeout = '{LOCK_SECONDS}s'", f"SELECT pg_advisory_lock({LOCK_NUMBER})"]
    return [f"SELECT GET_LOCK('pfl-ops', {LOCK_SECONDS})"] if dialect == "mysql" else []


def probe(address: str) -> None:
    """Open and close a connection to the host of an address, as drivers that try for minutes should not have to.

    Raises:
        PflOpsError: no host of that name exists.
        ConnectionError: nothing answers there.
    """
    from urllib.parse import urlsplit

    parts = urlsplit(address)
    port = parts.port or PORTS.get(parts.scheme.split("+")[0], 443 if parts.scheme == "https" else 80)
    if not parts.hostname or "," in parts.netloc:
        return  # a socket in the file system, or several hosts: the driver finds out
    try:
        socket.create_connection((parts.hostname, port), timeout=PROBE_SECONDS).close()
    except socket.gaierror as error:
        if error.errno == socket.EAI_NONAME:
            raise PflOpsError(
                f"no host named '{parts.hostname}' exists, as far as this machine can tell; correct the address "
                f"{redact_address(address)}"
            ) from error
        raise ConnectionError(f"{redact_address(address)} does not answer ({error.strerror})") from error
    except OSError as error:
        raise ConnectionError(f"{redact_address(address)} does not answer ({error.strerror or error})") from error
