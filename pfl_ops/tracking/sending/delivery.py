"""The delivery: a thread that sends what the spools hold, and keeps trying while the target is down.

The simulation only ever writes to a spool. While the target is down, lines wait there; the thread tries again after
0.5 s, 1 s, 2 s, ... up to 15 s. What is left when the process ends is sent by the next one.

An outage stops all spools: the target does not answer, or answers with an error to a small question too. Any other
trouble (an entry that MLflow answers with an error of its own, a disk fault, a mistake of ours) stops only its spool,
which has pauses of its own; the other spools go on.
"""

import logging
import math
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import requests
from mlflow.exceptions import MlflowException

from pfl_ops import tag_names
from pfl_ops.errors import count
from pfl_ops.redaction import redact
from pfl_ops.tracking.sending import logs
from pfl_ops.tracking.sending.sender import Sender
from pfl_ops.tracking.spools import entries
from pfl_ops.tracking.spools.journal import DamagedJournal, JournalEntry, key
from pfl_ops.tracking.spools.spool import Damage, Repetition, Spool

log = logging.getLogger("pfl_ops.tracking")

NEVER = {
    *("ALREADY_EXISTS", "RESOURCE_ALREADY_EXISTS", "NOT_FOUND", "ENDPOINT_NOT_FOUND", "RESOURCE_DOES_NOT_EXIST"),
    *("BAD_REQUEST", "INVALID_PARAMETER_VALUE", "INVALID_STATE", "MALFORMED_REQUEST"),
    *("FEATURE_DISABLED", "NOT_IMPLEMENTED"),
}
"""MLflow's answers that no second try will change."""
LATER = {401, 403, 408, 425, 429}  # HTTP refusals that may pass
TRIES = 8  # of an entry that the target answers with an error of its own
SECONDS_UNSAVED = 1.0  # what a kill may cause to be sent again
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0  # seconds


class Outage(Exception):
    """The target can't take anything at the moment."""


@dataclass
class DeliveryProblem:
    """Trouble with one spool.

    Attributes:
        since, until: seconds of the monotonic clock; it is left alone until `until`.
        pause: seconds. tries: of the entry in hand, so far.
    """

    since: float
    until: float
    pause: float
    tries: int = 0


def verdict(error: Exception) -> str:
    """Return what an error means for the entry: "never" (give it up), "odd" (after some tries) or "later"."""
    if isinstance(error, DamagedJournal):
        return "never"
    if isinstance(error, requests.HTTPError) and error.response is not None:
        status = error.response.status_code
        return "never" if 400 <= status < 500 and status not in LATER else "later"
    if isinstance(error, MlflowException):
        if error.error_code in NEVER:
            return "never"
        return "odd" if error.error_code == "INTERNAL_ERROR" and not no_answer(error) else "later"
    return "later" if isinstance(error, OSError) else "odd"


def no_answer(error: BaseException) -> bool:
    """True if an error says that the target can't be reached."""
    return isinstance(error, requests.ConnectionError | requests.Timeout) or bool(
        isinstance(error, MlflowException) and re.match(r"API request .*failed with (timeout )?exception", str(error))
    )


def is_local(error: Exception) -> bool:
    """True for a fault of this machine's disk, not of the target: requests' errors are OSErrors too."""
    return isinstance(error, OSError) and not isinstance(error, requests.RequestException)


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
        self._down_since: float | None = -math.inf if down else None  # down from the start: no wait
        self._troubles: dict[Spool, DeliveryProblem] = {}
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
        """True if the target was found down at the last try."""
        return self._down_since is not None

    def wake(self) -> None:
        """Look for new entries now."""
        with self._change:
            self._change.notify_all()

    def wait(self, spool: Spool | None = None, patience: float = 30.0) -> bool:
        """Wait until a spool, or all of them, is delivered.

        Args:
            patience: seconds that the target may be down, or the spool in trouble, counted from when this was found.
        Returns:
            True if everything was delivered.
        """
        with self._change:
            while waiting := self._waiting(spool):
                since = [self._down_since] if self._down_since is not None else []
                troubles = [self._troubles.get(s) for s in waiting]
                if all(troubles):
                    since += [max(trouble.since for trouble in troubles if trouble)]
                is_late = any(time.monotonic() - moment >= patience for moment in since)
                if self._stop or not self._thread.is_alive() or is_late:
                    return False
                self._change.wait(0.2)
        return True

    def delivered(self, patience: float) -> bool:
        """`wait` for all spools, with a line in the log when something stays behind."""
        done = self.wait(patience=patience)
        if not done and not self.root.is_dir():
            log.warning("%s was removed, and the records that waited in it: repeat the command", self.root)
        elif not done:
            reason = f"{self.sender.target.label} does not answer: " if self.down else ""
            log.warning(
                f"{reason}records wait in {self.root} and are sent by the next pfl-ops command that uses it"
                f"{logs.hint(self.root.parent)}"
            )
        return done

    def _waiting(self, spool: Spool | None) -> list[Spool]:
        """Spools that are not delivered yet."""
        return [s for s in self.spools.values() if (s.pending or s.closed) and (spool is None or s is spool)]

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
                    self._change.notify_all()
                    self._change.wait_for(lambda: self._stop, pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            with self._change:
                self._change.notify_all()
                while not (self._stop or self._ready()):
                    self._change.wait(self._until_next_try())  # anew after each wake: what waits has changed
        with self._change:
            for spool in self.spools.values():
                try:
                    if spool.pending or not spool.closed:
                        spool.save()
                    spool.release()
                except OSError as error:
                    log.warning("can't close %s (%s)", spool.folder, error)
            self.spools.clear()

    def _ready(self) -> list[Spool]:
        """Spools with something to send that are not in a pause of their own."""
        now, troubles = time.monotonic(), self._troubles
        return [s for s in self._waiting(None) if s not in troubles or troubles[s].until <= now]

    def _until_next_try(self) -> float | None:
        """Seconds until the first of the spools in trouble is tried again; None if there are none."""
        moments = [self._troubles[spool].until for spool in self._waiting(None) if spool in self._troubles]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _report(self, error: BaseException) -> None:
        """Log one line when an outage begins; what MLflow says of it goes to the log file."""
        logs.details.error("%s can't take records", self.sender.target.label, exc_info=error)
        if self._down_since is not None:
            return
        self._down_since = time.monotonic()
        reason = "no answer" if no_answer(error) else first_line(error)
        lost, hint = f"{self.sender.target.label} can't take records ({reason})", logs.hint(self.root.parent)
        log.warning(f"{lost}; they are kept and sent later{hint}")

    def _round(self) -> None:
        """Send what can be sent. Raises Outage."""
        with self._change:
            spools = sorted(self._ready(), key=lambda spool: spool.header["start"])
        for spool in spools:
            try:
                if not self._drain(spool):
                    continue
                with self._change:
                    if spool.closed and not spool.pending:
                        spool.release()
                        del self.spools[key(spool.header)]
                        self._troubles.pop(spool, None)
            except Outage:
                raise
            except Exception as error:  # this spool's own trouble: the others go on
                self._delay(spool, error)
            if self._stop:
                return

    def _drain(self, spool: Spool) -> bool:
        """Send a spool's entries; False if it has to wait. Raises Outage."""
        try:
            for end, entry in spool.entries():
                if self._stop or not self._settle(spool, end, entry):
                    return False
                spool.done(end, entry)
                self._troubles.pop(spool, None)
                if self._down_since is not None:
                    log.info("%s takes records again", self.sender.target.label)
                    self._down_since = None
                spool.save(SECONDS_UNSAVED)
        finally:
            if spool.pending or not spool.closed:
                spool.save(SECONDS_UNSAVED)
        return True

    def _settle(self, spool: Spool, end: int, entry: JournalEntry | Damage | Repetition) -> bool:
        """Send an entry, or put it away for good; False if it has to be tried again later. Raises Outage."""
        if isinstance(entry, Repetition):
            return True
        if isinstance(entry, Damage):
            self._refuse(spool, end, entry, DamagedJournal(entry.reason))
            return True
        if spool.is_refused(end, entry):
            spool.put_away(entry)  # a kill may have come before that
            self._tag_missing(spool)
            return True
        try:
            entries.check(entry)
            if spool.damaged and entry["op"] == "finish" and entry["status"] == "FINISHED":
                entry = {**entry, "status": "FAILED"}
            self.sender.send(spool, entry)
        except Exception as error:
            meaning = verdict(error)
            if meaning != "never" and not is_local(error) and (no_answer(error) or not self.sender.answers()):
                raise Outage from error
            if meaning != "never" and (self._delay(spool, error).tries < TRIES or meaning == "later"):
                return False
            self._refuse(spool, end, entry, error)
        return True

    def _delay(self, spool: Spool, error: Exception) -> DeliveryProblem:
        """Leave a spool alone for a while; each time for longer."""
        now = time.monotonic()
        logs.details.error("trouble with %s", spool.folder, exc_info=error)
        trouble = self._troubles.get(spool)
        if trouble is None:
            trouble = self._troubles[spool] = DeliveryProblem(now, now, FIRST_PAUSE)
            log.warning(
                f"records of run '{spool.header['name']}' have to wait ({first_line(error)}); they are kept in "
                f"{spool.folder} and tried again{logs.hint(self.root.parent)}"
            )
        else:
            trouble.pause = min(2 * trouble.pause, LONGEST_PAUSE)
        trouble.until = now + trouble.pause
        trouble.tries += 1
        return trouble

    def _refuse(self, spool: Spool, end: int, entry: JournalEntry | Damage, error: Exception) -> None:
        """Put an entry away for good; say so in the log and in the run's tag. Raises Outage."""
        damaged, reason = isinstance(error, DamagedJournal), first_line(error, 300)
        op = entry.get("op", "an entry") if isinstance(entry, dict) else "a line"
        if spool.refuse(end, entry, reason, damaged=damaged):
            what = f"{'damaged in the outbox:' if damaged else 'MLflow refused'} {str(op)[:40]}"
            log.warning(f"{what} of run '{spool.header['name']}' ({reason}); it is kept in {spool.folder}")
        self._tag_missing(spool)

    def _tag_missing(self, spool: Spool) -> None:
        """Set the run's tag for records that could not be delivered. Raises Outage."""
        text = f"{count(spool.missing, 'record', 'is')} not here: {spool.folder / 'refused.jsonl'}"
        if spool.damaged:
            tags = {tag_names.MISSING_RECORDS: f"{text}; the outbox was damaged; the same command sends them again"}
        else:
            tags = {tag_names.REFUSED_RECORDS: text}
        try:
            self.sender.send(spool, {"op": "tags", "tags": tags})
        except Exception as failed:
            if verdict(failed) != "never":
                raise (Outage() if no_answer(failed) else failed) from failed
            log.warning("MLflow refused the tag %s of run '%s'", *tags, spool.header["name"])


def first_line(error: BaseException, longest: int = 200) -> str:
    """Return an error's first line, without passwords."""
    return redact((str(error).strip().splitlines() or [type(error).__name__])[0])[:longest]
