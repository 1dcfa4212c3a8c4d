"""The places of files: the work folder, and the place that tracking goes to."""

import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from filelock import FileLock

from pfl_ops.addresses import SQL_SCHEMES, check_database, check_server
from pfl_ops.databases import check_sqlite
from pfl_ops.errors import LONGEST_PATH, PflOpsError, echo, nearest
from pfl_ops.files import check_writable
from pfl_ops.redaction import redact_address

SCHEMES = "http://HOST:PORT, https://HOST, sqlite:///FILE or another SQL database's address"
NAME = "tracking address"


@dataclass(frozen=True)
class WorkFolder:
    """The work folder: `./mlruns`, or `PFL_OPS_HOME`.

    Attributes:
        root: absolute path of the folder.
    """

    root: Path

    @classmethod
    def at(cls, path: Path | str | None = None) -> "WorkFolder":
        """Return the work folder without making it.

        Raises:
            PflOpsError: it could not be made or written, or an address can't have its path.
        """
        root = Path(path or os.environ.get("PFL_OPS_HOME") or "mlruns").expanduser().absolute()
        check_writable(root, "the work folder", "name another by PFL_OPS_HOME")
        name = echo(root, LONGEST_PATH)
        if root.exists() and not root.is_dir():
            raise PflOpsError(
                f"the work folder {name} can't be written (a file is there); name another by PFL_OPS_HOME"
            )
        if "?" in str(root) or unquote(str(root)) != str(root):  # addresses of databases and artifacts hold this path
            raise PflOpsError(
                f"the work folder {name} has '?', or '%' and two hexadecimal digits, in its path, which MLflow reads "
                "as parts of an address; name another by PFL_OPS_HOME"
            )
        return cls(root)

    @classmethod
    def open(cls, path: Path | str | None = None) -> "WorkFolder":
        """The work folder, made if need be; two processes that start at once both find it whole.

        Raises:
            PflOpsError: the folder can't be made or written.
        """
        home = cls.at(path)
        try:
            try:
                home._make()
            except FileNotFoundError:  # another command left it meanwhile
                home._make()
        except OSError as error:
            raise PflOpsError(
                f"the work folder {home.root} can't be written ({error.strerror}); name another by PFL_OPS_HOME"
            ) from error
        return home

    def _make(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        with self.lock():
            for folder in self._folders:
                folder.mkdir(exist_ok=True)

    def leave(self, own: Path | None = None) -> None:
        """Remove the folder if it holds nothing but what `open` makes, and locks: a command that failed leaves none.

        It stays while another process holds one of the locks: that one is about to write.

        Args:
            own: a lock that this process holds.
        """
        with suppress(OSError), self.lock(), ExitStack() as held:  # Timeout is an OSError too
            files = [file for folder in self._folders for file in folder.iterdir()]
            others = {*self.root.iterdir()} - {*self._folders, self.root / ".lock"}
            if others or any(file.suffix != ".lock" or not file.is_file() for file in files):
                return
            for file in files:
                if file != own:
                    held.enter_context(FileLock(file, timeout=0))
            for file in files:
                file.unlink()
            for folder in self._folders:
                folder.rmdir()
            (self.root / ".lock").unlink()
            self.root.rmdir()

    def lock(self) -> FileLock:
        """The lock that guards whatever is made only once in this folder."""
        return FileLock(self.root / ".lock", timeout=300)

    @property
    def _folders(self) -> tuple[Path, ...]:
        """Those that `open` makes."""
        return self.artifacts, self.checkpoints, self.spool

    @property
    def database(self) -> Path:
        return self.root / "mlflow.db"

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def studies(self) -> Path:
        return self.root / "studies.db"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def requests(self) -> Path:
        """Runs that a courier tracks; made with the first of them."""
        return self.root / "requests"


@dataclass(frozen=True)
class TrackingTarget:
    """The place that tracking goes to.

    Attributes:
        uri: MLflow's tracking address, absolute.
        artifacts: folder for the artifacts of new experiments; None: the server decides.
    """

    uri: str
    artifacts: Path | None

    @classmethod
    def of(cls, home: WorkFolder, tracking_uri: str | None = None) -> "TrackingTarget":
        """The given address, else `MLFLOW_TRACKING_URI`, else the work folder's own SQLite file.

        A foreign `sqlite:///x/t.db` keeps `artifacts/` beside itself.

        Raises:
            PflOpsError: an address that MLflow can't use, or one whose driver is not installed.
        """
        uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home.database}"
        scheme, separator, _ = uri.partition("://")
        if scheme in ("http", "https"):
            check_server(uri, NAME)
            return cls(uri.rstrip("/"), None)
        if scheme == "sqlite":
            file = check_sqlite(uri, NAME)
            return cls(f"sqlite:///{file}", file.parent / "artifacts")
        if scheme.split("+")[0] in SQL_SCHEMES:
            check_database(uri, NAME)
            return cls(uri, home.artifacts)
        close = nearest(scheme, ["http", "https", "sqlite", *SQL_SCHEMES]) if separator else None
        hint = f"did you mean '{close}://'? Allowed" if close else "allowed"
        raise PflOpsError(f"{NAME} '{redact_address(uri)}' is not one that works here; {hint}: {SCHEMES}")

    @property
    def server(self) -> bool:
        """True if this is a tracking server rather than a database."""
        return self.artifacts is None

    @property
    def label(self) -> str:
        """The address without user name and password: for messages and for the spool."""
        return redact_address(self.uri)


def check_places(tracking_uri: str | None) -> None:
    """Check the work folder and the tracking address before anything long begins; nothing is made or sent.

    Raises:
        PflOpsError: the folder can't be written, or the address can't be used.
    """
    TrackingTarget.of(WorkFolder.at(), tracking_uri)
