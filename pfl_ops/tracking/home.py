"""The places of files: the work folder, and the place that tracking goes to."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from pfl_ops.addresses import SQL_SCHEMES, check_database, check_server, redact_address
from pfl_ops.databases import check_sqlite
from pfl_ops.errors import PflOpsError, nearest
from pfl_ops.files import check_writable

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
            PflOpsError: it could not be made or written.
        """
        root = Path(path or os.environ.get("PFL_OPS_HOME") or "mlruns").expanduser().absolute()
        check_writable(root, "the work folder", "name another by PFL_OPS_HOME")
        return cls(root)

    @classmethod
    def open(cls, path: Path | str | None = None) -> "WorkFolder":
        """The work folder, made if need be; two processes that start at once both find it whole.

        Raises:
            PflOpsError: the folder can't be made or written.
        """
        home = cls.at(path)
        root = home.root
        try:
            root.mkdir(parents=True, exist_ok=True)
            with home.lock():
                for folder in (home.artifacts, home.checkpoints, home.spool):
                    folder.mkdir(exist_ok=True)
        except OSError as error:
            raise PflOpsError(
                f"the work folder {root} can't be written ({error.strerror}); name another by PFL_OPS_HOME"
            ) from error
        return home

    def leave(self) -> None:
        """Remove the folder if it holds nothing but what `open` makes, and locks: a command that failed leaves none."""
        with suppress(OSError):
            for folder in (self.artifacts, self.checkpoints, self.spool):
                for left in folder.glob(".*.lock"):
                    left.unlink()
                folder.rmdir()  # fails where there is anything else
            (self.root / ".lock").unlink(missing_ok=True)
            self.root.rmdir()  # fails where there is anything else

    def lock(self) -> FileLock:
        """The lock that guards whatever is made only once in this folder."""
        return FileLock(self.root / ".lock", timeout=300)

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
