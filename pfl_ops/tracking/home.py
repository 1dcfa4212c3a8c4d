"""Where things lie: the work folder, and the place that tracking goes to."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock

from pfl_ops.errors import PflOpsError

SCHEMES = "http://HOST:PORT, https://HOST, sqlite:///FILE or another SQL database's address"


@dataclass(frozen=True)
class Home:
    """The work folder: `./mlruns`, or `PFL_OPS_HOME`.

    Attributes:
        root: absolute path of the folder.
    """

    root: Path

    @classmethod
    def open(cls, path: Path | str | None = None) -> "Home":
        """The work folder, made if need be; two processes that start at once both find it whole.

        Raises:
            PflOpsError: the folder can't be made or written.
        """
        root = Path(path or os.environ.get("PFL_OPS_HOME") or "mlruns").expanduser().absolute()
        home = cls(root)
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


@dataclass(frozen=True)
class Target:
    """Where tracking goes to.

    Attributes:
        uri: MLflow's tracking address, absolute.
        artifacts: folder for the artifacts of new experiments; None: the server decides.
        lock: a lock file for a database that may have to be made; None: not ours to make.
    """

    uri: str
    artifacts: Path | None
    lock: Path | None

    @classmethod
    def of(cls, home: Home, tracking_uri: str | None = None) -> "Target":
        """The given address, else `MLFLOW_TRACKING_URI`, else the work folder's own SQLite file.

        A foreign `sqlite:///x/t.db` keeps `artifacts/` beside itself.

        Raises:
            PflOpsError: an address that MLflow can't use.
        """
        uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home.database}"
        scheme = urlsplit(uri).scheme
        if scheme in ("http", "https") and urlsplit(uri).hostname:
            return cls(uri.rstrip("/"), None, None)
        if scheme == "sqlite":
            name = uri.removeprefix("sqlite:///").split("?")[0]
            if not uri.startswith("sqlite:///") or not name or name.startswith(":"):
                raise PflOpsError(f"tracking address '{uri}' names no file; write sqlite:///FILE")
            file = Path(name).expanduser().absolute()
            return cls(f"sqlite:///{file}", file.parent / "artifacts", file.parent / f".{file.name}.lock")
        if scheme.split("+")[0] in ("postgresql", "mysql", "mssql"):
            return cls(uri, home.artifacts, None)
        raise PflOpsError(f"tracking address '{uri}' is not one that works here; allowed: {SCHEMES}")

    @property
    def server(self) -> bool:
        """Whether this is a tracking server rather than a database."""
        return self.lock is None and self.artifacts is None

    @property
    def label(self) -> str:
        """The address without user name and password: for messages and for the spool."""
        return re.sub(r"//[^/]*@", "//", self.uri)
