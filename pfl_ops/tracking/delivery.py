"""The delivery: a thread that sends what the spools hold, and keeps trying when nobody answers.

The simulation only ever writes to a spool. When the target is down, lines wait there; the thread tries again after
0.5 s, 1 s, 2 s, ... up to 15 s. What is left when the process ends is sent by the next one.
"""

import logging
import math
import re
import threading
import time
from pathlib import Path

import requests
from mlflow.exceptions import MlflowException, RestException

from pfl_ops.addresses import redact
from pfl_ops.tracking.sender import Sender
from pfl_ops.tracking.spool import Entry, Spool, key

log = logging.getLogger("pfl_ops.tracking")

NEVER = {  # MLflow's answers that no second try will change
    "ALREADY_EXISTS",
    "BAD_REQUEST",
    "ENDPOINT_NOT_FOUND",
    "FEATURE_DISABLED",
    "INVALID_PARAMETER_VALUE",
    "INVALID_STATE",
    "MALFORMED_REQUEST",
    "NOT_FOUND",
    "NOT_IMPLEMENTED",
    "RESOURCE_ALREADY_EXISTS",
    "RESOURCE_DOES_NOT_EXIST",
}
LATER = {401, 403, 408, 425, 429}  # HTTP refusals that may pass
TRIES = 8  # of an entry that the target answers with an error of its own
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0  # seconds


class Outage(Exception):
    """The target can't take anything at the moment."""


def verdict(error: Exception) -> str:
    """What an error means for the entry: "never" (give it up), "odd" (give it up after some tries) or "later"."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        status = error.response.status_code
        return "never" if 400 <= status < 500 and status not in LATER else "later"
    if isinstance(error, MlflowException):
        if error.error_code in NEVER:
            return "never"
        return "odd" if isinstance(error, RestException) and error.error_code == "INTERNAL_ERROR" else "later"
    return "later" if isinstance(error, OSError) else "odd"


class Delivery:
    """Sends the entries of all spools handed to it, each spool's in order, from a thread of its own.

    Args:
        sender: does the sending.
        root: the folder of all spools.
        down: the target was found down already.
    """

    def __init__(self, sender: Sender, root: Path, down: bool = False) -> None:
        self.sender = sender
        self.root = root
        self.spools: dict[str, Spool] = {}
        self._change = threading.Condition()
        self._stop = False
        self._down_since: float | None = -math.inf if down else None  # nobody waits for what was down from the start
        self._tries: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="pfl-ops tracking", daemon=True)
        self._thread.start()

    def add(self, spool: Spool) -> None:
        """Take charge of a spool: what it holds and what will be appended."""
        with self._change:
            self.spools[key(spool.header)] = spool
            self._change.notify_all()

    def take(self, folder: str) -> Spool | None:
        """Open again a spool in hand, so that it stays; None if there is none of that name."""
        with self._change:
            spool = self.spools.get(folder)
            if spool is not None:
                spool.closed = False
            return spool

    @property
    def down(self) -> bool:
        """Whether the target was found down at the last try."""
        return self._down_since is not None

    def wake(self) -> None:
        """Something was appended."""
        with self._change:
            self._change.notify_all()

    def wait(self, spool: Spool | None = None, patience: float = 30.0) -> bool:
        """Wait until a spool, or all of them, is delivered.

        Args:
            patience: seconds that the target may be down, counted from when it was first found so.
        Returns:
            whether everything was delivered.
        """
        with self._change:
            while self._waiting(spool):
                down = self._down_since
                if (
                    self._stop
                    or not self._thread.is_alive()
                    or (down is not None and time.monotonic() - down >= patience)
                ):
                    return False
                self._change.wait(0.2)
        return True

    def delivered(self, spool: Spool | None = None, patience: float = 30.0) -> bool:
        """`wait`, with a line in the log when something stays behind."""
        done = self.wait(spool, patience)
        if not done:
            log.warning(
                "%s does not answer: records wait in %s and are sent by the next pfl-ops command that uses it",
                self.sender.target.label,
                self.root,
            )
        return done

    def _waiting(self, spool: Spool | None) -> bool:
        return any(s.pending or s.closed for s in self.spools.values() if spool is None or s is spool)

    def stop(self) -> None:
        """End the thread after the entry in hand; it lets go of all spools."""
        with self._change:
            self._stop = True
            self._change.notify_all()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._stop:
            try:
                self._round()
            except Exception as error:  # whatever it is, this thread must live on
                self._report(error.__cause__ or error)
                with self._change:
                    self._change.wait_for(lambda: self._stop, pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            with self._change:
                self._change.notify_all()
                self._change.wait_for(lambda: self._stop or self._waiting(None))
        with self._change:
            for spool in self.spools.values():
                spool.release()
            self.spools.clear()

    def _report(self, error: BaseException) -> None:
        """One line when an outage begins."""
        if self._down_since is not None:
            return
        self._down_since = time.monotonic()
        reason = redact((str(error).strip().splitlines() or [type(error).__name__])[0])[:200]
        if re.search("failed with (timeout )?exception", reason):
            reason = "no answer"
        log.warning("%s can't take records (%s); they are kept and sent later", self.sender.target.label, reason)

    def _round(self) -> None:
        with self._change:
            spools = sorted(self.spools.values(), key=lambda spool: spool.header["start"])
        for spool in spools:
            for end, entry in spool.entries():
                if self._stop:
                    return
                self._send(spool, entry)
                self._tries.pop(key(spool.header), None)
                spool.done(end, entry)
                if self._down_since is not None:
                    log.info("%s takes records again", self.sender.target.label)
                    self._down_since = None
            with self._change:
                if spool.closed and not spool.pending:
                    spool.release()
                    del self.spools[key(spool.header)]

    def _send(self, spool: Spool, entry: Entry) -> None:
        """Send an entry, or put it away for good. Raises Outage when it should be tried again."""
        try:
            self.sender.send(spool, entry)
        except Exception as error:
            meaning, name = verdict(error), key(spool.header)
            if meaning == "odd":
                self._tries[name] = self._tries.get(name, 0) + 1
            if meaning == "never" or self._tries.get(name, 0) >= TRIES:
                reason = redact(str(error))
                spool.refuse(entry, reason)
                log.warning(
                    "MLflow refused %s of run '%s' (%s); it is kept in %s",
                    entry["op"],
                    spool.header["name"],
                    reason[:300],
                    spool.folder,
                )
                return
            raise Outage from error
