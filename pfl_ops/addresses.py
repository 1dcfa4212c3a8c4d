"""Addresses of servers and databases, checked before they are used."""

import re
from urllib.parse import urlsplit

from pfl_ops.errors import PflOpsError, nearest
from pfl_ops.redaction import redact_address

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
        if parts.port == 0:
            raise ValueError("no port")
    except ValueError as error:
        raise _malformed(address, name, "the port must be a number from 1 to 65535", "http://HOST:PORT") from error
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
