"""Ports of 127.0.0.1 for servers of tests."""

import contextlib
import socket
from collections.abc import Iterator

HOST = "127.0.0.1"


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a free port that no other process is given until the block ends, whether its server runs or not.

    On Linux. A bound socket that does not listen holds the port: connections are refused, and no outgoing connection
    gets it. A server that sets SO_REUSEADDR, as those of the tests do, can listen on it nevertheless.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((HOST, 0))
        yield held.getsockname()[1]
