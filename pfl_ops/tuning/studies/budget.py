"""Budgets of a search: trials, hours, gradient samples, trials without a better value. The first that is spent ends it.

A trial that runs when a budget is spent ends as usual, and no new one starts; confirmation and tests follow. A trial
that a kill cut short counts as one that runs.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pfl_ops.errors import count
from pfl_ops.tuning.studies.limits import Cause
from pfl_ops.tuning.studies.settings import Settings
from pfl_ops.tuning.studies.study_storage import StudyStorage

if TYPE_CHECKING:
    from pfl_ops.federation.loop.estimate import Estimate

HOUR = 3600.0  # seconds
SAVE_EVERY = 10.0  # seconds between two records of the search's time


def affordable(settings: Settings, trial: "Estimate", at_once: int, before: "Estimate | None" = None) -> int:
    """Return the number of whole trials of which the last one starts before a budget is spent.

    Args:
        trial: the cost of one that is not stopped early. at_once: runs side by side; those of one trial may be among
            them (`Settings.at_once`).
        before: the cost of the runs before the first trial, which the budgets count: FedAvg's in environments.
    """
    number, of_trial = settings.trials, settings.at_once
    if settings.hours and trial.seconds > 0:
        seconds = settings.hours * HOUR - (before.seconds / at_once if before else 0.0)
        in_turn = max(1, math.ceil(seconds * of_trial / trial.seconds)) if seconds > 0 else 0
        number = min(number, math.ceil(at_once * in_turn / of_trial))
    if settings.samples and trial.samples:
        samples = settings.samples - (before.samples if before else 0)
        started = math.ceil(samples * of_trial / trial.samples) + at_once - 1 if samples > 0 else 0
        number = min(number, math.ceil(started / of_trial))
    return number


def left_of(settings: Settings, study_storage: StudyStorage) -> Settings:
    """Return the settings of a search that was begun, with what is left of its budgets; no trials: it is over."""
    missing = max(0, settings.trials - study_storage.done())
    if spent(settings, study_storage):  # only trials that a kill cut short still end
        return replace(settings, trials=min(missing, study_storage.cut_short()), hours=None, samples=None)
    return replace(
        settings,
        trials=missing,
        hours=settings.hours and settings.hours - study_storage.search_seconds() / HOUR,
        samples=settings.samples and settings.samples - study_storage.search_samples(),
    )


def done_text(settings: Settings, study_storage: StudyStorage) -> str:
    """Return what a search has done, in the units of its budgets: "12 trials are done (0.31 h, 2,000 samples)"."""
    done = study_storage.done()
    used = [f"{study_storage.search_seconds() / HOUR:.2g} h"] if settings.hours else []
    used += [f"{study_storage.search_samples():,} samples"] if settings.samples else []
    return f"{count(done, 'trial')} {'is' if done == 1 else 'are'} done" + (f" ({', '.join(used)})" if used else "")


def spent(settings: Settings, study_storage: StudyStorage, seconds: float | None = None) -> Cause | None:
    """Return the budget that is spent; None: the search goes on.

    A cause that was recorded holds as long as its budget is not changed.

    Args:
        seconds: of the search so far; None: as recorded.
    """
    if study_storage.done() >= settings.trials:
        return "trials"
    recorded = study_storage.ended()
    if recorded and getattr(settings, recorded[0]) == recorded[1]:
        return recorded[0]
    if settings.hours and (study_storage.search_seconds() if seconds is None else seconds) >= settings.hours * HOUR:
        return "hours"
    if settings.samples and study_storage.search_samples() >= settings.samples:
        return "samples"
    if settings.terminate and study_storage.since_best() >= settings.terminate:
        return "terminate"
    return None


def goes_on(settings: Settings, study_storage: StudyStorage) -> bool:
    """True if no budget of a search is spent, or a trial was begun and has not ended."""
    return study_storage.cut_short() > 0 or not spent(settings, study_storage)


def ending(settings: Settings, study_storage: StudyStorage) -> str:
    """Return a line on the budget that ended the search; "": it goes on, or trials are the only budget."""
    cause = spent(settings, study_storage)
    if cause is None or not settings.has_several_budgets:
        return ""
    seconds = study_storage.search_seconds()
    time_text = f"{seconds / HOUR:.3g} h" if seconds >= 0.1 * HOUR else f"{seconds:.0f} s"
    used = time_text, f"{study_storage.search_samples():,} samples"
    trials = count(study_storage.done(), "trial")
    match cause:
        case "trials":
            beyond = study_storage.done() > settings.trials
            done = f" {settings.trials}: {trials}" if beyond else f": all {settings.trials}"
            return f"search ended by --trials{done} are done ({', '.join(used)})"
        case "hours":
            return f"search ended by --hours {settings.hours:g}: {used[0]} are spent ({trials}, {used[1]})"
        case "samples":
            return f"search ended by --samples {settings.samples:,}: {used[1]} are spent ({trials}, {used[0]})"
        case "terminate":
            change = "raised" if settings.objective.modes[0] == "max" else "lowered"
            since = study_storage.since_best()
            why = f"{count(since, 'trial')} {'has' if since == 1 else 'have'} not {change} the best value"
            return f"search ended by --terminate {settings.terminate}: {why} ({trials}, {', '.join(used)})"


@dataclass
class Clock:
    """Seconds of a study's search, over all of its calls: from the start of a call's first run, not of its process.

    Attributes:
        study_storage: where they are recorded. now: monotonic seconds.
    """

    study_storage: StudyStorage
    now: Callable[[], float] = time.monotonic
    _before: float = field(init=False)
    _begun: float | None = field(init=False, default=None)
    _saved: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._before = self.study_storage.search_seconds()

    def start(self) -> None:
        """Begin to count, at the first call."""
        if self._begun is None:
            self._begun = self._saved = self.now()
            self.study_storage.set_search_seconds(self._before)  # else those of trials, with the start of processes

    @property
    def seconds(self) -> float:
        """Of earlier calls and of this one so far."""
        return self._before + (0.0 if self._begun is None else self.now() - self._begun)

    def save(self, every: float = SAVE_EVERY) -> None:
        """Record the seconds, unless that was done less than `every` seconds ago, or nothing has begun."""
        if self._begun is not None and self.now() - self._saved >= every:
            self.study_storage.set_search_seconds(self.seconds)
            self._saved = self.now()
