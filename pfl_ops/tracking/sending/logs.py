"""The log file of a work folder: what MLflow and its libraries print during an outage.

A server that is down makes MLflow, SQLAlchemy and urllib3 print a traceback at every try. While a store is open, these
loggers write to `pfl-ops.log` instead of stderr. Other loggers, the root logger among them, are left alone.
"""

import logging
import threading
from logging.handlers import RotatingFileHandler
from pathlib import Path

from pfl_ops.redaction import RedactingFilter, redact

NAME = "pfl-ops.log"
LARGEST = 1 << 20  # bytes of the file before it is renamed to pfl-ops.log.1
LOGGERS = ("mlflow", "sqlalchemy", "alembic", "urllib3")

details = logging.getLogger("pfl_ops.tracking.details")  # tracebacks of our own deliveries
details.addHandler(logging.NullHandler())
details.propagate = False
details.addFilter(RedactingFilter())

_mutex = threading.Lock()
_open: dict[Path, tuple[logging.Handler, int]] = {}  # work folder -> handler, stores that use it
_before: dict[str, tuple[list[logging.Handler], bool]] = {}  # logger -> its handlers and `propagate`


def path(home: Path) -> Path:
    """Return the log file of a work folder."""
    return home / NAME


def hint(home: Path) -> str:
    """Return the end of a message that names the log file, "" if there is none."""
    return f"; details: {path(home)}" if path(home).is_file() else ""


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


class _File(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Drop what can't be written: logging would print a traceback a record, which this file is to prevent."""


def open_log(home: Path) -> None:
    """Send what the loggers write to the work folder's file, until `close_log`."""
    with _mutex:
        handler, users = _open.get(home, (None, 0))
        if handler is None:
            if not _open:
                for name in LOGGERS:
                    logger = logging.getLogger(name)
                    _before[name] = (list(logger.handlers), logger.propagate)
                    logger.handlers, logger.propagate = [], False
            handler = _File(path(home), maxBytes=LARGEST, backupCount=1, encoding="utf-8", delay=True)
            handler.setFormatter(_Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
            for logger in (details, *map(logging.getLogger, LOGGERS)):
                logger.addHandler(handler)
        _open[home] = (handler, users + 1)


def close_log(home: Path) -> None:
    """Undo one `open_log`; after the last one the loggers are as they were."""
    with _mutex:
        if home not in _open:
            return
        handler, users = _open.pop(home)
        if users > 1:
            _open[home] = (handler, users - 1)
            return
        for logger in (details, *map(logging.getLogger, LOGGERS)):
            logger.removeHandler(handler)
        handler.close()
        if not _open:
            for name, (handlers, propagate) in _before.items():
                logger = logging.getLogger(name)
                logger.handlers, logger.propagate = handlers, propagate
            _before.clear()
