"""The parts that all downloads share: patience with a silent server, and one reason in words when they fail."""

import contextlib
import socket
import urllib.error
from collections.abc import Iterator

TIMEOUT = 30.0  # seconds without a byte


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """Give up on a server that sends nothing for `TIMEOUT` seconds."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def reason(error: BaseException) -> str:
    """Why a download failed, in a few words ("no network")."""
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code}"
    text = str(error)
    if "corrupted" in text or "invalid hash" in text:
        return "its checksum is wrong"
    if isinstance(error, urllib.error.URLError | TimeoutError | ConnectionError | RuntimeError):
        return "no network"
    return text.strip().split("\n")[0] or type(error).__name__
