"""Reports of a job's process: rounds, the end, and why it failed, all as plain values and text.

A finished round is a `federation.state.checkpoint.Record`.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import ClassVar

from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.federation.loop.diverged import Diverged

# keys of a report, beside the metrics that it has to hold
ROUND, RECORDS = "round", "records"  # finished rounds; records since the last report
FAILURE = "failure"  # traceback and `Failure` of a job that raised
LOSSES = "losses"  # the training loss of the first and of the last round
SAMPLES = "samples"  # samples that were trained on so far
SENT_BYTES = "sent_bytes"  # by all clients so far, up and down
ERRORS = "errors"  # {metric: standard error of the evaluation}, of metrics that were scored on a sample


class ObjectiveMissing(PflOpsError):
    """A trial was evaluated and the objective was not among the results; no other trial will have it either."""


@dataclass(frozen=True)
class Failure:
    """Cause of a job's failure, as text.

    Attributes:
        line: one line for the user. hopeless: True if every other trial would fail with it.
        diverged: True if its training diverged: a result, if a bad one.
        died: True if the process was lost, or never started: the job itself has said nothing.
    """

    line: str
    hopeless: bool = False
    diverged: bool = False
    died: bool = False

    MARK: ClassVar[str] = "pfl-ops failure "

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        return cls(in_a_line(error), isinstance(error, ObjectiveMissing), isinstance(error, Diverged))

    def __str__(self) -> str:
        """Return a line of ASCII that `found_in` reads."""
        return self.MARK + json.dumps(asdict(self))

    @classmethod
    def found_in(cls, text: str) -> "Failure | None":
        """Return the last failure in a text; None: it holds none."""
        marked = [part for line in text.splitlines() for _, mark, part in [line.partition(cls.MARK)] if mark]
        try:
            told = json.loads(marked[-1])
            return cls(str(told["line"]), told["hopeless"] is True, told["diverged"] is True)
        except (IndexError, ValueError, KeyError, TypeError):
            return None

    @classmethod
    def in_account(cls, text: str) -> "Failure":
        """Return why a job failed, from Ray's account of it.

        The job's own process states it; without such a line the process died, or Ray could not run it.
        """
        failure = cls.found_in(text)
        lines = text.strip().splitlines() or ["unknown"]
        if "raised in its creation task" in text:
            return cls(f"the process did not start: {failure.line if failure else lines[-1]}", died=True)
        if failure:
            return failure
        if has_died(text):
            return cls("its process died twice, perhaps for lack of memory (fewer at once: --concurrency)", died=True)
        return cls(lines[-1], died=True)


_DIED = re.compile(r"^The actor\b.*\b(died|dead|unavailable)\b|running low on memory", re.MULTILINE)


def has_died(account: str) -> bool:
    """True if Ray's account of a failure says that the process or its machine was lost: another may go on."""
    return "raised in its creation task" not in account and bool(_DIED.search(account))


class JobFailed(Exception):
    """A job's error on its way to the driver: its text is a `Failure`. The driver unpickles no error."""


@contextlib.contextmanager
def failing_as_text() -> Iterator[None]:
    """Raise errors as `JobFailed`, with the traceback of the error in front."""
    try:
        yield
    except Exception as error:
        raise JobFailed(str(Failure.of(error))) from error
