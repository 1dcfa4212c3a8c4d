"""The memory that this process may still take, and its largest use so far."""

import contextlib
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pfl_ops.system import control_groups

UNKNOWN = 4 << 30  # where the system does not say
FILES = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Version of control groups -> files with limit and usage, and the entry of memory.stat that can be dropped."""
KEPT = ("VmHWM:", "RssFile:", "RssShmem:")  # of /proc/PID/status


def available(root: Path = Path("/")) -> int:
    """Bytes that can still be taken: what the machine has free, or less where a control group allows less.

    What the kernel can drop at any time (cached files) counts as free.

    Args:
        root: where /proc and /sys are looked for.
    """
    groups = control_groups.above("memory", root)
    found = [left for group in groups if (left := _left(group.folder, *FILES[group.version])) is not None]
    try:
        text = (root / "proc/meminfo").read_text(encoding="ascii")
        found.append(next(int(line.split()[1]) for line in text.splitlines() if line.startswith("MemAvailable:")) << 10)
    except (OSError, ValueError, IndexError, StopIteration):
        found.append(memory_size(2 * UNKNOWN) // 2)
    return max(min(found), 0)


def out_of_memory(error: BaseException) -> bool:
    """True if an error says that memory did not suffice, a GPU's or the machine's."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)  # PyTorch's, `torch.OutOfMemoryError` included
        and any(words in text for words in ("out of memory", "can't allocate memory", "alloc_failed"))
    )


def peak() -> int:
    """Bytes that this process and those it has started took at their peaks; what they share counts once.

    This process counts with its whole resident memory, mapped files included: libraries, and rows in a file. Processes
    below it map the same libraries, so their files do not count. Of shared memory counts what the process with the most
    of it maps. The peaks need not have been at the same time, and a process that has ended does not count.

    Not by `getrusage` on Linux: what it says of a new process begins with the memory of the one that started it. Not by
    the proportional set size (Pss): reading it took 10 to 40 ms a process, and it is smaller while an unrelated process
    maps the same libraries.
    """
    own = _resident("self")
    if own is None:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    below = [found for child in _below("self") if (found := _resident(child)) is not None]
    shared = max((one.shared - own.shared for one in below), default=0)
    return own.peak + sum(one.private for one in below) + max(shared, 0)


class _Resident(NamedTuple):
    """Resident memory of a process in bytes.

    Attributes:
        peak: the largest so far. files, shared: now, in mapped files and in shared memory.
    """

    peak: int
    files: int
    shared: int

    @property
    def private(self) -> int:
        """The peak without files and shared memory; not less than what is private now."""
        return max(self.peak - self.files - self.shared, 0)


def _resident(process: str) -> _Resident | None:
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace").splitlines()
        parts = (line.split() for line in lines)  # "VmHWM:   1696 kB"
        found = {part[0]: int(part[1]) << 10 for part in parts if part and part[0] in KEPT}
        return _Resident(found["VmHWM:"], found.get("RssFile:", 0), found.get("RssShmem:", 0))
    except (OSError, LookupError, ValueError):  # it has ended
        return None


def _below(process: str) -> Iterator[str]:
    """Yield the process numbers of all that a process has started; psutil needs milliseconds for it."""
    files = list(Path(f"/proc/{process}/task").glob("*/children"))
    if not files and process == "self":  # a kernel without these files
        import psutil

        yield from (str(child.pid) for child in psutil.Process().children(recursive=True))
    for file in files:
        with contextlib.suppress(OSError):  # the thread, or the process, has ended
            for child in file.read_text(encoding="ascii").split():
                yield child
                yield from _below(child)


def memory_size(unknown: int = 2**60) -> int:
    """Return the bytes of this machine's memory; `unknown` if the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return unknown


def _left(group: Path, limit: str, usage: str, droppable: str) -> int | None:
    """Return the bytes that a control group still allows; None: it has no limit."""
    try:
        allowed, used = int((group / limit).read_text()), int((group / usage).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return allowed - used + int(stat.get(droppable, 0))
    except (OSError, ValueError):  # no such group here, or "max"
        return None
