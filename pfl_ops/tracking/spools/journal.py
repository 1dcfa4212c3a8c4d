"""Journal lines and headers: a digest shows damage, a number shows a line that is missing or repeated.

    <digest> <number> <JSON>

The digest is the first 16 hex digits of the SHA-256 of `<number> <JSON>`; the header is line 0.
"""

import hashlib
import json
from typing import Annotated, Any, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Header: TypeAlias = dict[str, Any]
"""target, experiment, name, identity, parent (its header, or None), start [ms], rerun (see `Store.run`; optional)."""

JournalEntry: TypeAlias = dict[str, Any]
"""`op` and its fields; see `entries`."""

DIGEST_LENGTH = 16
DEEPEST = 16  # levels of parents in a header


class DamagedJournal(Exception):
    """A record is not as it was written; the message is one line."""


class _HeaderFields(BaseModel):
    model_config = ConfigDict(strict=True)

    target: str
    experiment: str
    name: str
    identity: str
    parent: "_HeaderFields | None"
    start: Annotated[int, Field(ge=0, lt=1 << 63)]
    rerun: str = ""


def digest(data: bytes) -> str:
    """Return the first 16 hex digits of the SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()[:DIGEST_LENGTH]


def encode(number: int, content: Header | JournalEntry) -> bytes:
    """Return the journal line of that number, with its line end."""
    text = f"{number} {json.dumps(content)}".encode()
    return digest(text).encode() + b" " + text + b"\n"


def decode(line: bytes) -> tuple[int, dict[str, Any]]:
    """Return the number and the content of a line, with or without its line end.

    Raises:
        DamagedJournal: the digest does not match, or the content is no JSON object.
    """
    found, _, text = line.rstrip(b"\n").partition(b" ")
    if found != digest(text).encode():
        raise DamagedJournal("a line does not match its digest")
    number, _, entry = text.partition(b" ")
    if not number.isdigit() or len(number) > 18:
        raise DamagedJournal("a line has no number")
    try:
        content = json.loads(entry)
    except (ValueError, RecursionError) as error:
        raise DamagedJournal("a line is no JSON") from error
    if not isinstance(content, dict):
        raise DamagedJournal("a line is no JSON object")
    return int(number), content


def decode_header(line: bytes) -> Header:
    """Return the header of a journal's first line.

    Raises:
        DamagedJournal: it is not as it was written, or a field is missing or has a wrong type.
    """
    _, header = decode(line)
    depth, level = 0, cast(Any, header)
    while isinstance(level, dict):
        depth, level = depth + 1, level.get("parent")
    if depth > DEEPEST:
        raise DamagedJournal("the header is nested too deeply")
    try:
        _HeaderFields.model_validate(header)
    except ValidationError as error:
        raise DamagedJournal(f"the header is not valid: {first_error(error)}") from error
    return header


def first_error(error: ValidationError) -> str:
    """Return the first mistake that pydantic found, in one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]


def key(header: Header) -> str:
    """Return the name of a run's folder: the same run in the same target has the same one."""
    return _key(header, header.get("rerun", ""))


def identity_key(header: Header) -> str:
    """Return the `key` that a run and its re-runs share."""
    return _key(header, "")


def _key(header: Header, rerun: str) -> str:
    parent = key(header["parent"]) if header["parent"] else ""
    parts = [header["target"], header["experiment"], header["identity"], parent, *([rerun] if rerun else [])]
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:24]
