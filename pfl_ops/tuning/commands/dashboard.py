"""Optuna's dashboard on the studies, reachable from this machine only; it changes nothing."""

import errno
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from optuna.storages import BaseStorage

from pfl_ops.errors import PflOpsError
from pfl_ops.tracking import WorkFolder
from pfl_ops.tuning.session.begin import stored
from pfl_ops.tuning.studies.study_storage import recorded

HOST = "127.0.0.1"
EXTRA = "pfl-ops[dashboard]"
READING = ("GET", "HEAD")
FIRST_PAGE = "/dashboard"

App: TypeAlias = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Dashboard(ThreadingMixIn, WSGIServer):
    """A server of the dashboard on 127.0.0.1; `serve_forever` serves, `server_close` ends it."""

    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def dashboard(*, home: str | Path | None = None, storage: str | None = None, port: int = 5000) -> Dashboard:
    """Return the server of the dashboard, which holds its port.

    Args:
        home: the work folder. storage: of the studies; none: studies.db in the work folder.
    Raises:
        PflOpsError: optuna-dashboard is not installed, there is no study, or the port is taken.
    """
    if find_spec("optuna_dashboard") is None:
        raise PflOpsError(f"the page of studies needs optuna-dashboard: pip install '{EXTRA}'")
    studies = stored(storage, WorkFolder.open(home))
    if not recorded(studies):
        raise PflOpsError("there is no study yet; make one (pfl-ops tune fliu), or name a --storage")
    try:
        return make_server(HOST, port, _app(studies, port), server_class=Dashboard, handler_class=_Quiet)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        raise PflOpsError(f"port {port} is taken ({error.strerror}); choose another by --port") from error


def _app(studies: BaseStorage, port: int) -> App:
    """The dashboard, for this machine's own addresses and for requests that change nothing.

    Another site's page in the user's browser may send requests here, under a name of its own; it gets no answer.
    """
    from optuna_dashboard import wsgi

    inner: App = wsgi(studies)
    ours = {f"{name}:{port}" for name in (HOST, "localhost")}

    def app(request: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
        if request.get("HTTP_HOST") not in ours:
            respond("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"this page is for 127.0.0.1\n"]
        if request["REQUEST_METHOD"] not in READING:
            respond("405 Method Not Allowed", [("Content-Type", "text/plain"), ("Allow", ", ".join(READING))])
            return [b"studies are shown here, and changed by pfl-ops tune\n"]
        return inner(request, respond)

    return app
