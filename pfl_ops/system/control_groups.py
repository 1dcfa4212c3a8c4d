"""The control groups (version 2 or 1) that limit this process: its own, and all above it."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class ControlGroup(NamedTuple):
    """A folder with the files of a control group, and their version, which decides their names."""

    folder: Path
    version: int


def above(controller: str, root: Path = Path("/")) -> Iterator[ControlGroup]:
    """Yield the groups of this process, the innermost first; folders that do not exist are among them.

    A container sees its own group at the top, and may read the name that the host has for it.

    Args:
        controller: of version 1, "cpu" or "memory"; version 2 has one tree for all.
        root: where /proc and /sys are looked for.
    """
    top = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # the top is tried all the same
        lines = ["0::/", f"1:{controller}:/"]
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            first, version = top, 2
        elif controller in controllers.split(","):
            first, version = top / controller, 1
        else:
            continue
        group = first / path.strip("/")
        for folder in (group, *(p for p in group.parents if p.is_relative_to(first))):
            yield ControlGroup(folder, version)
