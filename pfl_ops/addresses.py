"""Addresses of servers and databases: checked before they are used, and never shown with a password.

>>> redact("no answer from postgresql://me:secret@db:5432/flow?sslmode=require")
'no answer from postgresql://db:5432/flow?sslmode=require'
"""

import logging
import re
import traceback
from typing import Any
from urllib.parse import urlsplit

from pfl_ops.errors import PflOpsError, nearest

SQL_SCHEMES = ("postgresql", "mysql", "mssql")
SERVER_EXTRA = "pfl-ops[server]"
DRIVER_PACKAGES = {  # module that SQLAlchemy imports -> what to install
    "psycopg2": SERVER_EXTRA,
    "psycopg": "psycopg[binary]",
    "pg8000": "pg8000",
    "MySQLdb": "mysqlclient",
    "pymysql": "PyMySQL",
    "mysql.connector": "mysql-connector-python",
    "pyodbc": "pyodbc",
    "pymssql": "pymssql",
}
ESCAPES = "special characters in a user name or a password must be percent-encoded, as %40 for @ and %2F for /"

# Of schemes and keys only the end is matched: a pattern for the whole would try each letter of a long text as a start.
_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z0-9+.-]://)(?P<rest>[^\s'\"<>`]*)")
_ENCODED = re.compile(r"(?i)(?P<scheme>[a-z0-9+.-]%3A%2F%2F)[^\s'\"<>`&]*%40")
_SECRET = re.compile(
    r"(?i)(?P<key>(?:password|passwd|passphrase|pwd|secret|token|api_?key|credentials?)[\w.-]{0,500}(?:=|%3D))"
    r"(?:'[^']*'|\"[^\"]*\"|(?:(?!%3B|%26)[^&;#\s'\"<>])*)"
)


def redact(text: str) -> str:
    """Remove user names and passwords from all addresses in a text, and the values of password and token parameters.

    Everything between `://` and the last `@` of an address goes: a password may itself contain `/`, `?` or `@`.

    >>> redact("sqlite:////home/me@work/mlflow.db")
    'sqlite:////home/me@work/mlflow.db'
    >>> redact("http://host:5000/api?token=abc&page=2")
    'http://host:5000/api?token=***&page=2'
    """
    text = _ADDRESS.sub(lambda found: found["scheme"] + _without_user(found["rest"]), text)
    text = _ENCODED.sub(lambda found: found["scheme"], text)
    return _SECRET.sub(lambda found: found["key"] + "***", text)


def redact_address(address: str) -> str:
    """Return one address for a message; unlike in a text, its password may contain spaces and quotes."""
    scheme, separator, rest = address.partition("://")
    return redact(scheme + separator + _without_user(rest)) if separator else redact(address)


def _without_user(rest: str) -> str:
    """Drop what stands before the last `@`; an address that begins with `/` names a file and has no user."""
    return rest if rest.startswith("/") else rest.rpartition("@")[2]


class RedactingFilter(logging.Filter):
    """Remove passwords from log records, their tracebacks included. It drops no record."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            record.msg, record.args = redact(record.getMessage()), None
        except (TypeError, ValueError):  # the message does not fit its arguments: logging itself tells that
            return True
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            record.exc_text = redact("".join(traceback.format_exception(*record.exc_info)).rstrip())
        return True


def redact_logs() -> None:
    """Remove passwords from all log records of this process."""
    usual = logging.getLogRecordFactory()
    if getattr(usual, "redacts", False):
        return
    without_passwords = RedactingFilter()

    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = usual(*args, **kwargs)
        without_passwords.filter(record)
        return record

    make.redacts = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make)


def check_server(address: str, name: str) -> None:
    """Check the form of an http:// or https:// address; nothing is sent.

    Args:
        address: the address. name: what it is, for the message ("tracking address").
    Raises:
        PflOpsError: it has no host, a port that is none, or characters that must be escaped.
    """
    _check_characters(address, name)
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except ValueError as error:  # http://[::1
        raise _malformed(address, name, "the host is not a name or an IP address", "http://HOST:PORT") from error
    try:
        port = parts.port
    except ValueError as error:
        raise _malformed(address, name, "the port must be a number from 1 to 65535", "http://HOST:PORT") from error
    if port == 0:
        raise _malformed(address, name, "the port must be a number from 1 to 65535", "http://HOST:PORT")
    if not host:
        raise _malformed(address, name, "it names no host", "http://HOST:PORT")


def check_database(address: str, name: str) -> None:
    """Check the form of an SQL database's address, and that its driver is installed; nothing is sent.

    Args:
        address: the address. name: what it is, for the message ("tracking address").
    Raises:
        PflOpsError: it can't be read, no such driver exists, or its package is missing (which one, is said).
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    _check_characters(address, name)
    scheme = address.partition("://")[0]
    form = f"{scheme}://HOST:PORT/DATABASE"
    try:
        url = make_url(address)
    except (ArgumentError, ValueError) as error:
        # SQLAlchemy's own words may hold a part of the password.
        raise _malformed(address, name, "it can't be read", form) from error
    if url.port is not None and not 0 < url.port < 65536:
        raise _malformed(address, name, "the port must be a number from 1 to 65535", form)
    if url.host and not re.fullmatch(r"[\w.:%,-]+", url.host):
        raise _malformed(address, name, "the host is not a name or an IP address", form)
    try:
        dialect = url.get_dialect()
    except NoSuchModuleError as error:
        kind, _, driver = scheme.partition("+")
        close = nearest(kind, [*SQL_SCHEMES, "sqlite"])
        what = f"there is no driver '{driver}' for it" if driver and close == kind else f"no database '{kind}' is known"
        hint = f"; did you mean '{close}'?" if close and close != kind else f"; leave the driver out: {kind}://..."
        raise PflOpsError(f"{name} '{redact_address(address)}': {what}{hint}") from error
    try:
        dialect.import_dbapi()
    except ImportError as error:
        package = DRIVER_PACKAGES.get(error.name or "", error.name or dialect.driver)
        raise PflOpsError(
            f"{name} '{redact_address(address)}' needs the Python package "
            f"{error.name or dialect.driver}, which is not installed: pip install '{package}'"
        ) from error
    if dialect.is_async:
        raise PflOpsError(
            f"{name} '{redact_address(address)}': driver '{dialect.driver}' is asynchronous and does not work here; "
            f"leave it out: {url.get_backend_name()}://..."
        )


def _check_characters(address: str, name: str) -> None:
    if re.search(r"[\s'\"<>`\x00-\x1f\x7f]", address):
        raise PflOpsError(f"{name} '{redact_address(address)}' has a space, a quote or a control character; {ESCAPES}")


def _malformed(address: str, name: str, what: str, form: str) -> PflOpsError:
    hint = f" ({ESCAPES})" if "@" in address else ""
    return PflOpsError(f"{name} '{redact_address(address)}': {what}; write {form}{hint}")
