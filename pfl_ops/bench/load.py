"""Other load on purpose: a process that takes a share of one core, in turns of a tenth of a second."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pfl_ops.system.hosting import HostedProcess

PERIOD = 0.1  # seconds


class Load:
    """The load, in its process."""

    def burn(self, share: float) -> None:
        """Keep a core busy for this share of each period, without an end."""
        while True:
            start = time.perf_counter()
            while time.perf_counter() - start < share * PERIOD:
                pass
            time.sleep((1 - share) * PERIOD)


@contextmanager
def other_load(share: float) -> Iterator[None]:
    """Let another process take this share of a core within it; 0: no process."""
    if not share:
        yield
        return
    process = HostedProcess("pfl_ops.bench.load.Load")
    try:
        process.begin("burn", share)
        yield
    finally:
        process.kill()
