"""Addresses: no password in any message, and mistakes found before anything is sent."""

import logging
import sys

import pytest

from pfl_ops.addresses import check_database, check_server
from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.redaction import RedactingFilter, redact, redact_address

SECRETS = ["s3cret", "s3c:ret", "s3c/ret", "s3c?ret", "s3c#ret", "s3c@ret", "s3c@r/t@x", "12/34", "p%40ss%2Fword"]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("scheme", ["http", "https", "postgresql", "postgresql+psycopg2", "mysql+pymysql"])
def test_redact_removes_user_and_password(scheme, secret):
    for text in ("{}", "('{}',)", "failed: {}, later", "<{}>", '"{}"', "a {}\nb {}"):
        message = text.replace("{}", f"{scheme}://me:{secret}@db.example.org:5432/flow")
        assert redact(message) == text.replace("{}", f"{scheme}://db.example.org:5432/flow")


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("postgresql://h/d?user=me&password=s3cret&x=1", "postgresql://h/d?user=me&password=***&x=1"),
        ("https://h/?access_token=s3cret#a", "https://h/?access_token=***#a"),
        ("mssql://h/?odbc_connect=UID%3Dme%3BPWD%3Ds3cret%3BDB%3Dx", "mssql://h/?odbc_connect=UID%3Dme%3BPWD%3D***%3BDB%3Dx"),
        ("page?next=postgresql%3A%2F%2Fme%3As3cret%40h%2Fd", "page?next=postgresql%3A%2F%2Fh%2Fd"),
        ("host=h password='my s3cret' dbname=d", "host=h password=*** dbname=d"),
        ("MLFLOW_TRACKING_TOKEN=s3cret", "MLFLOW_TRACKING_TOKEN=***"),
    ],
)  # fmt: skip
def test_redact_removes_secret_parameters(text, clean):
    assert redact(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "sqlite:////home/me@work/mlflow.db",
        "http://127.0.0.1:5000/#/experiments/1",
        "no address, but mail me@example.org",
        "file:///tmp/a@b",
        "learning rate=0.5, tokens of text",
    ],
)
def test_redact_leaves_other_text(text):
    assert redact(text) == text


def test_errors_that_are_kept_in_a_line_hold_no_password():
    error = OSError("can't reach http://me:s3cret@h:1/\n  or postgresql://me:s3cret@h/d")
    assert in_a_line(error) == "OSError: can't reach http://h:1/ or postgresql://h/d"


def test_redact_address_hides_spaces_and_quotes_too():
    assert redact_address("postgresql://me:my 's3cret\"@h/d") == "postgresql://h/d"


def test_log_records_are_redacted_with_their_tracebacks():
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(logging.Formatter().format(record))
    handler.addFilter(RedactingFilter())
    logger = logging.getLogger("test.redacted")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        raise OSError("can't reach http://me:s3cret@h:1/")
    except OSError:
        logger.exception("lost %s", "postgresql://me:s3cret@h/d")
    assert lines[0].startswith("lost postgresql://h/d\nTraceback")
    assert "OSError: can't reach http://h:1/" in lines[0]
    assert "s3cret" not in lines[0]


@pytest.mark.parametrize(
    "address",
    ["http://[::1", "http://me:s3cret@[::1", "http://h:99999", "http://h:0", "http://h:abc", "http://me:s3c/ret@h:5",
     "http://", "http://:5000", "http://me:s3 cret@h", "http://me:s3'cret@h", "http://h\n:5000"],
)  # fmt: skip
def test_malformed_server_addresses_are_one_line_without_password(address):
    with pytest.raises(PflOpsError, match=r"^tracking address 'http://") as caught:
        check_server(address, "tracking address")
    assert "\n" not in str(caught.value).replace("http://h\n", "")
    assert "s3" not in str(caught.value)


@pytest.mark.parametrize("address", ["http://h", "https://me:s3cret@h:5000/path", "http://[::1]:5000"])
def test_well_formed_server_addresses_pass(address):
    check_server(address, "tracking address")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("postgresql://me:s3cret@h:abc/d", "write postgresql://HOST:PORT/DATABASE"),
        ("postgresql://me:s3cret@h:99999/d", "port must be"),
        ("postgresql://me:s3@cret@h/d", "percent-encoded"),
        ("postgresql://me:s3/c@ret@h/d", "percent-encoded"),
        ("postgresql://me:s3 cret@h/d", "percent-encoded"),
        ("postgresql://[::1/d", "write postgresql"),
        ("postgresql+nothing://me:s3cret@h/d", "no driver 'nothing' for it; leave the driver out: postgresql://"),
        ("postgresq://me:s3cret@h/d", "did you mean 'postgresql'"),
        ("postgresql+asyncpg://me:s3cret@h/d", "asyncpg"),
    ],
)
def test_malformed_database_addresses_are_one_line_without_password(address, message):
    with pytest.raises(PflOpsError, match=r"^study storage '") as caught:
        check_database(address, "study storage")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "s3" not in str(caught.value) and "cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "module", "install"),
    [
        ("postgresql", "psycopg2", "pip install 'pfl-ops[server]'"),
        ("postgresql+psycopg2", "psycopg2", "pip install 'pfl-ops[server]'"),
        ("postgresql+psycopg", "psycopg", "pip install 'psycopg[binary]'"),
        ("mysql", "MySQLdb", "pip install 'mysqlclient'"),
        ("mysql+pymysql", "pymysql", "pip install 'PyMySQL'"),
    ],
)
def test_a_missing_driver_is_named_with_its_package(scheme, module, install, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(PflOpsError) as caught:
        check_database(f"{scheme}://me:s3cret@h/d", "tracking address")
    assert str(caught.value) == (
        f"tracking address '{scheme}://h/d' needs the Python package {module}, which is not installed: {install}"
    )
