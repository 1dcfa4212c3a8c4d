"""Storage of studies: Optuna's at an address, and the lock of a study that runs."""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import optuna
from filelock import FileLock, Timeout
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from pfl_ops import databases
from pfl_ops.addresses import check_database
from pfl_ops.data.store import cache_folder
from pfl_ops.errors import PflOpsError
from pfl_ops.files import check_writable, ends_whole
from pfl_ops.redaction import redact, redact_address
from pfl_ops.tracking.spools.requests import is_locked

log = logging.getLogger("pfl_ops.tuning")
logging.getLogger("alembic").setLevel(logging.ERROR)

NAME = "study storage"


def check_storage(address: str) -> None:
    """Check the form of a storage's address, its driver and its folder; nothing is made or sent.

    Raises:
        PflOpsError: it can't be used.
    """
    if _is_journal(address):
        check_writable(address, NAME, "name another file")
    elif "://" not in address:
        raise PflOpsError(f"{NAME} '{address}' must be sqlite:///FILE, another SQL address, or FILE.log")
    elif address.startswith("sqlite:"):
        databases.check_sqlite(address, NAME)
    else:
        check_database(address, NAME)


def storage(address: str, make: bool = True) -> BaseStorage:
    """Optuna's storage at an address: an SQL database (sqlite:///FILE, postgresql://...), or a journal, FILE.log.

    Args:
        make: make the tables on a server that has none; False: return a storage without studies, in memory.
    Raises:
        PflOpsError: it can't be opened.
    """
    check_storage(address)
    try:
        if _is_journal(address):
            file = Path(address).expanduser().absolute()
            file.parent.mkdir(parents=True, exist_ok=True)
            _mend_journal(file)
            return JournalStorage(JournalFileBackend(str(file)))
        with databases.exclusive(address):
            found = databases.sqlite_file(address)
            if found:
                return _sqlite(found)
            if not make and not databases.has_table(address, "studies"):
                return InMemoryStorage()
            return RDBStorage(address, engine_kwargs={"pool_pre_ping": True})
    except PflOpsError:
        raise
    except Exception as error:
        reason = redact((str(error).splitlines() or [type(error).__name__])[0])
        raise PflOpsError(f"{NAME} '{redact_address(address)}' can't be opened: {reason}") from error


def existing(address: str) -> BaseStorage:
    """Open a storage to read it. No file or table is made: for a missing one, return a storage in memory, without
    studies.

    Raises:
        PflOpsError: as for `storage`.
    """
    check_storage(address)
    file = Path(address).expanduser() if _is_journal(address) else databases.sqlite_file(address)
    return InMemoryStorage() if file is not None and databases.is_empty(file) else storage(address, make=False)


def _is_journal(address: str) -> bool:
    return address.endswith((".log", ".journal")) and "://" not in address


def _sqlite(file: Path) -> RDBStorage:
    """Open an SQLite storage; a missing one is made aside, an unfinished one without studies is made again."""
    address = f"sqlite:///{file}"
    if databases.is_empty(file):
        databases.make_aside(file, _make_tables, _template())
    try:
        return RDBStorage(address, engine_kwargs={"connect_args": {"timeout": 60}})
    except Exception:
        names = databases.tables(file)
        ours = names & {"studies", "version_info"} and "experiments" not in names
        if not ours or ("studies" in names and databases.query(file, "SELECT count(*) FROM studies")[0][0]):
            raise
    databases.set_aside(file, "study", log)
    databases.make_aside(file, _make_tables, _template())
    return RDBStorage(address, engine_kwargs={"connect_args": {"timeout": 60}})


def _template() -> Path:
    """A new database of this Optuna, kept since one was made."""
    return cache_folder() / "databases" / f"optuna-{optuna.__version__}.db"


def _make_tables(address: str) -> None:
    made = RDBStorage(address)
    made.remove_session()
    made.engine.dispose()


def _mend_journal(file: Path) -> None:
    """Cut off a last line that a kill left unfinished: the next line would be glued to it, and neither be readable."""
    if not file.exists() or ends_whole(file):
        return
    lock = JournalFileSymlinkLock(str(file))
    lock.acquire()  # another process may be writing that line now
    try:
        if not ends_whole(file):
            whole = file.read_bytes().rfind(b"\n") + 1
            os.truncate(file, whole)
    finally:
        lock.release()


@contextlib.contextmanager
def lock(folder: Path, name: str) -> Iterator[None]:
    """A lock that is held while a study runs, so that no other process resumes it; it ends with its process.

    Raises:
        PflOpsError: another process runs this study.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = FileLock(_lock_file(folder, name), timeout=0, thread_local=False)
    owner = _owner_file(folder, name)
    try:
        file.acquire()
    except Timeout:
        raise _running(folder, name) from None
    try:
        owner.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        owner.unlink(missing_ok=True)
        file.release()


def check_free(folder: Path, name: str) -> None:
    """Check that no process runs a study; nothing is written.

    Raises:
        PflOpsError: one does.
    """
    if is_locked(_lock_file(folder, name)):
        raise _running(folder, name)


def _lock_file(folder: Path, name: str) -> Path:
    return folder / f".study-{name}.lock"


def _owner_file(folder: Path, name: str) -> Path:
    return folder / f".study-{name}.owner"


def _running(folder: Path, name: str) -> PflOpsError:
    owner = _owner_file(folder, name)
    who = (owner.read_text() if owner.exists() else "") or "another process"
    return PflOpsError(f"study '{name}' is running ({who}); wait for it or stop it, or use another --name")
