"""Earlier runs of the same settings and data: the tags by which they are found, and the line that tells of them."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from pfl_ops.errors import PflOpsError
from pfl_ops.fields import Tree
from pfl_ops.identity import CODE, VERSION, code_line, differing_code, fingerprint

if TYPE_CHECKING:
    from pfl_ops.tracking.store import RunInfo, Store

SETTINGS, CODE_TAG = "pfl_ops.settings", "pfl_ops.code"
"""Tags: the digest of a run's settings and data alone, and its code (`identity.code_line`)."""


def tags(identity: Tree) -> dict[str, str]:
    """Return the tags by which later runs find this one.

    Args:
        identity: of the run's experiment.
    """
    return {SETTINGS: fingerprint(identity, without=(CODE, VERSION)), CODE_TAG: code_line(identity)}


def find(store: "Store", identity: Tree) -> "list[RunInfo]":
    """Return the tracked runs with the same settings and data and any code, oldest first; none without an answer."""
    if store.reachable:
        with suppress(PflOpsError):
            return store.runs(where=f"tags.`{SETTINGS}` = '{tags(identity)[SETTINGS]}'")
    return []


def describe_read(run_id: str | None, time: int, same_engine: bool) -> str:
    """Return the line for a run that was read and not computed.

    Args:
        run_id: MLflow's; None: it has none yet. time: of its last record, ms since the epoch.
        same_engine: False if the engine's code was edited since, under the same results version.
    """
    engine = "" if same_engine else "; the engine's code was changed since, not its results version"
    return (
        f"read: run {(run_id or 'not sent yet')[:8]} of {_clock(time)}, same settings, data and method code "
        f"(--no-resume computes it anew){engine}"
    )


def describe_other_code(runs: "Sequence[RunInfo]", identity: Tree) -> str:
    """Return the line that names the newest of these runs that has other code; "": there is none."""
    mine = code_line(identity)
    others = [(run, parts) for run in runs if (parts := differing_code(mine, run.tags.get(CODE_TAG, "")))]
    if not others:
        return ""
    run, parts = others[-1]
    before = f"run {run.run_id[:8]} of {_clock(run.start)}"
    return f"computed: {before} has the same settings and data, and other code ({parts})"


def _clock(time: int) -> str:
    """Return milliseconds since the epoch as local time, with the date unless it is today's."""
    at = datetime.fromtimestamp(time / 1000)
    return f"{at:%H:%M}" if at.date() == datetime.now().date() else f"{at:%Y-%m-%d %H:%M}"
