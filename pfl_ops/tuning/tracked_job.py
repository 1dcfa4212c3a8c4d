"""A job of a study and its run in MLflow."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs.report import FAILURE
from pfl_ops.jobs.runner import JobEvent


class TrackedRun(Protocol):
    """A run in MLflow: `tracking.Run` is one."""

    def log(self, records: Iterable[Record]) -> None: ...
    def tags(self, tags: Mapping[str, object]) -> None: ...
    def text(self, text: str, name: str) -> None: ...
    def complete(self) -> None: ...
    def finish(self, status: str = "FINISHED", patience: float = 30.0) -> bool: ...


class TrackedJob:
    """A job between its making and its end; its run is opened when the job starts.

    Args:
        open_run: opens the run; one that a killed driver began is found again.
    Attributes:
        begun: True once it has started. last: latest round's record. report: latest report that tells no failure.
    """

    def __init__(self, open_run: Callable[[], TrackedRun]) -> None:
        self._open_run = open_run
        self._run: TrackedRun | None = None
        self._start = time.monotonic()
        self.begun = False
        self.last: Record | None = None
        self.report: Mapping[str, Any] = {}

    @property
    def seconds(self) -> float:
        """Time since it started, or was made."""
        return time.monotonic() - self._start

    def take(self, event: JobEvent) -> None:
        """Note that it started, once more after its process died, or finished rounds."""
        run = self._opened()
        if event.kind == "started":
            self._start = self._start if self.begun else time.monotonic()
            self.begun = True
        else:
            run.log(event.records)
            self.last = event.records[-1] if event.records else self.last
            self.report = self.report if FAILURE in event.report else event.report

    def end(self, error: str, account: str, tags: Mapping[str, object] | None = None) -> None:
        """Close its run: as failed if there is an error.

        Args:
            account: what is known of the error, at length. tags: further ones.
        """
        run = self._opened()  # a process that died before it began has opened none
        if found := {**(tags or {}), **({"pfl_ops.error": error} if error else {})}:
            run.tags(found)
        if account:
            run.text(account, "error.txt")
        run.finish("FAILED" if error else "FINISHED", patience=0)
        self._run = None

    def cut_short(self) -> None:
        """Let go of its run if it is open: the job will be continued."""
        if self._run is not None:
            self._run.finish("KILLED", patience=0)

    def _opened(self) -> TrackedRun:
        self._run = self._run or self._open_run()
        return self._run
