"""A disk that is full after so many bytes of a file, in this process and without a file system of its own."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def full_disk(after: int = 0) -> Iterator[None]:
    """Let no file grow beyond `after` bytes: a write beyond raises OSError (EFBIG), as on a full disk (ENOSPC).

    Python ignores the signal SIGXFSZ, so that the write itself fails, after a part of the data was written.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
