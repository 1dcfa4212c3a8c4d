"""Texts, addresses and log records without user names and passwords.

>>> redact("no answer from postgresql://me:secret@db:5432/flow?sslmode=require")
'no answer from postgresql://db:5432/flow?sslmode=require'
"""

import logging
import re
import traceback
from typing import Any

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
