"""What the driver does while Ray runs the trials: tracks their rounds, records their failures, tells who watches."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from ray import tune
from ray.tune.experiment import Trial as RayTrial
from ray.tune.stopper import Stopper

from pfl_ops.metrics import summands
from pfl_ops.spaces import Point
from pfl_ops.tuning.ledger import point_of, state_of
from pfl_ops.tuning.search import StudySearch
from pfl_ops.tuning.trial import FAILURE, Failure, ObjectiveMissing, Record

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Event:
    """Something that happened in a study.

    Attributes:
        kind: wait (something slow starts); packing (how many trials run at once is tried, is found); begin (the study,
            or its resumption); start, report, end (of a trial); test, final (a test run starts, is over); study (of a
            benchmark, is over).
        study: its name. wanted, done, running: numbers of trials.
        trial: the reader's number of the trial, or of the test run.
        round, rounds: finished, and of a whole trial. values: of the objective, by metric, with `metrics.summands`.
        state: complete, pruned, diverged or failed. error: why it has no result. params: the trial's point.
        best: (trial, values) of the best so far; None: none yet, or several objectives.
        text: what is waited for, what a packing is, or how a study ended, in one line.
        method, place: of a benchmark's study, "fliu" and "2 of 4"; "": it is no part of one.
    """

    kind: Literal["wait", "packing", "begin", "start", "report", "end", "test", "final", "study"]
    study: str
    wanted: int
    done: int = 0
    running: int = 0
    trial: int | None = None
    round: int = 0
    rounds: int = 0
    values: dict[str, float] = field(default_factory=dict)
    state: str = ""
    error: str = ""
    params: Point = field(default_factory=dict)
    best: tuple[int, dict[str, float]] | None = None
    text: str = ""
    method: str = ""
    place: str = ""


OnEvent: TypeAlias = Callable[[Event], None]


class TrialRun(Protocol):
    """A trial's child run: `tracking.Run` is one."""

    def log(self, records: "Iterable[Record]") -> None: ...
    def tags(self, tags: Mapping[str, object]) -> None: ...
    def text(self, text: str, name: str) -> None: ...
    def complete(self) -> None: ...
    def finish(self, status: str = "FINISHED", patience: float = 30.0) -> bool: ...


OpenRun: TypeAlias = Callable[[int, Point], TrialRun]
"""(number, point) -> the trial's run; one that a killed driver began is found again."""


class Driver(tune.Callback, Stopper):
    """Ray's callback for a study. It runs in the driver, the only process that tracks.

    Args:
        search: the searcher, which knows Optuna's trials and how they end.
        wanted: trials of the whole study.
        open_run: makes a trial's child run.
        on_event: told of everything; may be None.
        on_pruned: called with the point of each trial that was stopped early or diverged; may be None.
        again: True if a trial whose process died before it began gets another one later; see `unbegun`.

    Attributes:
        over: number of trials that ended. unbegun: number of trials still to be run: each was given a process that
            another trial had used and that was dead by then. Ray restarts a process only while its trial runs.
    """

    def __init__(
        self, search: StudySearch, wanted: int, open_run: OpenRun, on_event: OnEvent | None,
        on_pruned: Callable[[Point], None] | None = None, again: bool = False,
    ) -> None:  # fmt: skip
        self.search, self.wanted, self.open_run, self.on_event = search, wanted, open_run, on_event
        self.on_pruned, self.again = on_pruned, again
        self.runs: dict[str, TrialRun] = {}
        self.over = self.unbegun = 0
        self.hopeless: ObjectiveMissing | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Ray pickles callbacks into its own record, which is never read

    # -- Ray's callback: parameter names must be exactly these -------------------------------------------------------

    def on_trial_start(self, iteration: int, trials: list[RayTrial], trial: RayTrial, **info: Any) -> None:
        with self.search.ledger.reading_once():
            number, params = self._number(trial), self._params(trial)
        self.runs[trial.trial_id] = self.open_run(number, params)
        self._tell("start", trial)

    def on_trial_result(
        self, iteration: int, trials: list[RayTrial], trial: RayTrial, result: dict[str, Any], **info: Any
    ) -> None:
        self.runs[trial.trial_id].log(result.pop("records", ()))
        if FAILURE not in result:
            self._tell("report", trial, result)

    def on_trial_complete(self, iteration: int, trials: list[RayTrial], trial: RayTrial, **info: Any) -> None:
        account = trial.last_result.get(FAILURE, "")
        if account:
            self._note_hopeless(failure_in(account))
        self._end(trial, account)

    def on_trial_error(self, iteration: int, trials: list[RayTrial], trial: RayTrial, **info: Any) -> None:
        text = _text(trial)
        failure = failure_in(text)
        trial.run_metadata.pickled_error_filename = None  # else Ray unpickles it for its own table of results
        self._note_hopeless(failure)
        if self.again and trial.trial_id not in self.runs and DIED.search(text):
            self.unbegun += 1
            return
        self.search.fail(trial.trial_id, failure.line)
        self._end(trial, text)

    # -- Ray's stopper -----------------------------------------------------------------------------------------------

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        """Whether going on makes no sense."""
        return self.hopeless is not None

    # -- ours --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the runs that are still open: their trials were cut short, and will be continued."""
        for run in self.runs.values():
            run.finish("KILLED", patience=0)
        self.runs.clear()

    def _note_hopeless(self, failure: Failure) -> None:
        if failure.hopeless:
            self.hopeless = ObjectiveMissing(failure.line)

    def _end(self, trial: RayTrial, traceback: str = "") -> None:
        self.over += 1
        frozen = self._frozen(trial)
        error = str(frozen.user_attrs.get("error", ""))
        state = state_of(frozen)
        run = self.runs.pop(trial.trial_id, None)
        if run is None:  # it died before it began
            run = self.open_run(self._number(trial), point_of(frozen))
        run.tags({"pfl_ops.trial_state": state} | ({"pfl_ops.error": error} if error else {}))
        if traceback:
            run.text(traceback, "error.txt")
        run.finish("FAILED" if error else "FINISHED", patience=0)
        if state in ("pruned", "diverged") and self.on_pruned is not None:
            self.on_pruned(point_of(frozen))
        self._tell("end", trial, trial.last_result, state=state, error=error)

    def _tell(self, kind: Any, trial: RayTrial, result: dict[str, Any] | None = None, **more: Any) -> None:
        if self.on_event is None:
            return
        result = result or {}
        keys = [key for metric in self.search.objective.metrics for key in (metric, *summands(metric))]
        with self.search.ledger.reading_once():
            event = Event(
                kind,
                self.search.ledger.name,
                self.wanted,
                done=self.search.ledger.done(),
                running=len(self.runs),
                trial=self._number(trial),
                round=int(result.get("round", 0)),
                rounds=self.search.rounds,
                values={key: float(result[key]) for key in keys if key in result and FAILURE not in result},
                params=self._params(trial),
                best=best_so_far(self.search),
                **more,
            )
        self.on_event(event)

    def _number(self, trial: RayTrial) -> int:
        return self.search.ledger.number(self.search.optuna_trial(trial.trial_id).number)

    def _frozen(self, trial: RayTrial) -> Any:
        number = self.search.optuna_trial(trial.trial_id).number
        return self.search.ledger.raw()[number]

    def _params(self, trial: RayTrial) -> Point:
        return point_of(self._frozen(trial))


def best_so_far(search: StudySearch) -> tuple[int, dict[str, float]] | None:
    """(number, values) of the best complete trial of a single objective."""
    best = search.ledger.best() if search.objective.single else []
    return (best[0][0], {search.objective.metrics[0]: float(best[0][1].values[0])}) if best else None


DIED = re.compile(r"^The actor\b.*\b(died|dead|unavailable)\b|running low on memory", re.MULTILINE)


def failure_in(text: str) -> Failure:
    """Return why a trial failed, from Ray's account of it.

    The trial's own process states it (`trial.Failure`); without such a line the process died, or Ray could not run it.
    """
    failure = Failure.found_in(text)
    lines = text.strip().splitlines() or ["unknown"]
    if "raised in its creation task" in text:
        return Failure(f"the trial's process did not start: {failure.line if failure else lines[-1]}")
    if failure:
        return failure
    if DIED.search(text):
        return Failure("the trial's process died, perhaps for lack of memory (fewer at once: --concurrency)")
    return Failure(lines[-1])


def _text(trial: RayTrial) -> str:
    """Ray's whole account of a failure, colours removed."""
    text = Path(trial.error_file).read_text(encoding="utf-8") if trial.error_file else ""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
