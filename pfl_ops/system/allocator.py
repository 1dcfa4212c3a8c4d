"""The C library's allocator, told to keep what a step frees for the next step.

A step allocates and frees the same few arrays thousands of times a second. By default glibc gives large ones back to
the system at once, and fetching them again, page by page, costs small models up to a third of their time.
"""

import contextlib
import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # mallopt's numbers for them
KEEP = 256 << 20  # bytes of freed memory that a process keeps at most
MAPPED_FROM = 32 << 20  # bytes; larger arrays (matrices of rows) still go back to the system at once


def keep_freed_memory() -> None:
    """Set it for this process; elsewhere than under glibc nothing happens."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(MMAP_THRESHOLD, MAPPED_FROM)
        mallopt(TRIM_THRESHOLD, KEEP)
