"""Earlier runs of the same settings and data: the tags by which they are found, and the line that tells of them."""

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from pfl_ops import tag_names
from pfl_ops.config.fields import Tree
from pfl_ops.config.identity import CODE, VERSION, code_line, content_line, differing_code, fingerprint
from pfl_ops.errors import PflOpsError
from pfl_ops.tracking.home import WorkFolder

if TYPE_CHECKING:
    from pfl_ops.tracking.runs.store import Store
    from pfl_ops.tracking.target.run_info import RunInfo


SHORT = 12
"""Hexadecimal digits of an experiment's hash by which commands name a run."""


def tags(identity: Tree) -> dict[str, str]:
    """Return the tags by which later runs find this one.

    Args:
        identity: of the run's experiment.
    """
    return {tag_names.SETTINGS: fingerprint(identity, without=(CODE, VERSION)), **code_tags(identity)}


def code_tags(identity: Tree) -> dict[str, str]:
    """Return the tags by which comparisons tell code and content of files apart."""
    return {tag_names.CODE: code_line(identity), tag_names.CONTENT: content_line(identity)}


def find(store: "Store", identity: Tree) -> "list[RunInfo]":
    """Return the tracked runs with the same settings and data and any code, oldest first; none without an answer."""
    if store.reachable:
        with suppress(PflOpsError):
            return store.runs(where=f"tags.`{tag_names.SETTINGS}` = '{tags(identity)[tag_names.SETTINGS]}'")
    return []


def describe_read(digest: str, time: int, same_engine: bool) -> str:
    """Return the line for a run that was read and not computed.

    Args:
        digest: the experiment's hash. time: of its last record, ms since the epoch.
        same_engine: False if the engine's code was edited since, under the same results version.
    """
    engine = "" if same_engine else "; the engine's code was changed since, not its results version"
    return (
        f"read: run {digest[:SHORT]} of {_clock(time)}, same settings, data and method code "
        f"(--no-resume computes it anew){engine}"
    )


def note(home: WorkFolder, identity: Tree, digest: str, time: int) -> str:
    """Note a run, and return the line that names the newest one with the same settings and data and other code.

    The notes of a work folder are lines `<digest> <time> <code>` in a file for each settings and data.

    Args:
        digest: of the identity. time: of its last record, ms since the epoch.
    Returns:
        "" if there is none in this work folder.
    """
    file = home.checkpoints / f".{tags(identity)[tag_names.SETTINGS][:32]}.notes"
    mine, known = code_line(identity), False
    newest: tuple[int, str, str] | None = None
    with suppress(OSError):
        for line in file.read_text().splitlines():
            other, _, rest = line.partition(" ")
            clock, _, code = rest.partition(" ")
            known |= other == digest
            if clock.isdigit() and (parts := differing_code(mine, code)):
                newest = max(newest or (0, "", ""), (int(clock), other, parts))
    if not known:
        with suppress(OSError), file.open("a") as notes:
            notes.write(f"{digest} {time} {mine}\n")
    if newest is None:
        return ""
    when, other, parts = newest
    return f"computed: run {other[:SHORT]} of {_clock(when)} has the same settings and data, and other code ({parts})"


def _clock(time: int) -> str:
    """Return milliseconds since the epoch as local time, with the date unless it is today's."""
    at = datetime.fromtimestamp(time / 1000)
    return f"{at:%H:%M}" if at.date() == datetime.now().date() else f"{at:%Y-%m-%d %H:%M}"
