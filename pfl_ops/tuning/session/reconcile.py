"""The runs of a study in MLflow as the study on disk has them: after a kill between the two."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optuna.trial import FrozenTrial, TrialState

from pfl_ops import tag_names
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.tuning.session.children import ChildRun
from pfl_ops.tuning.studies.parts import PartResult, TrialPart
from pfl_ops.tuning.studies.study_storage import ERROR, PARTS, point_of, state_of

if TYPE_CHECKING:
    from pfl_ops.tuning.session.session import Session


@dataclass(frozen=True)
class _Ended:
    """A run that the study has as over.

    Attributes:
        run: the run. failed: True if it has no value. error: why. state: of a trial; "": it is none.
        trial: number and storage of the trial to which it belongs, if it is one.
    """

    run: ChildRun
    failed: bool
    error: str
    state: str = ""
    trial: tuple[int, FrozenTrial] | None = None

    @property
    def status(self) -> str:
        """As MLflow has it."""
        return "FAILED" if self.failed else "FINISHED"


def reconcile(session: "Session") -> list[int]:
    """Finish the runs that the study has as over and MLflow has not: trials and their parts, runs that confirm the
    choice, and those of FedAvg in environments.

    Rounds that a run misses come from its checkpoint, or if that is gone, for a trial, from the study. If the tracking
    server does not answer, nothing is done: a later start reconciles.

    Returns:
        the numbers of the trials whose runs were completed.
    """
    store, over = session.store, _ended(session)
    first = next(over, None)  # the others take time: an experiment each
    if first is None or not store.deliver() or not store.reachable:
        return []
    runs = {run.identity: run for run in store.runs(session.parent.experiment, parent=session.parent)}
    mended = {}
    for ended in (first, *over):
        found = runs.get(ended.run.identity)
        if found and found.status == ended.status and found.tags.get(tag_names.TRIAL_STATE, "") == ended.state:
            continue
        run = ended.run.open(is_over=True)
        run.log(_rounds(session, ended))
        run.tags(
            {key: text for key, text in ((tag_names.TRIAL_STATE, ended.state), (tag_names.ERROR, ended.error)) if text}
        )
        run.complete()
        run.finish(ended.status, patience=0)
        if ended.trial:
            mended[ended.trial[0]] = ended.trial[1]
    for trial in mended.values():
        if trial.state is TrialState.PRUNED:
            session.children.forget(point_of(trial))
    store.deliver()
    return list(mended)


def _ended(session: "Session") -> Iterator[_Ended]:
    """The runs that have ended, as the study says."""
    study_storage, children, combination = session.study_storage, session.children, session.settings.combination
    for number, trial in study_storage.trials():
        point = point_of(trial)
        for result in map(PartResult.from_dict, trial.user_attrs.get(PARTS, ()) if combination else ()):
            assert combination is not None
            run = children.trial(number, point, combination.parts.index(result.part))
            state = "diverged" if result.error else "complete"
            yield _Ended(run, bool(result.error), result.error, state, (number, trial))
        if combination is None and trial.state.is_finished():
            state, error = state_of(trial), str(trial.user_attrs.get(ERROR, ""))
            failed = state in ("failed", "diverged")
            yield _Ended(children.trial(number, point), failed, error, state, (number, trial))
    for record in study_storage.confirmations():
        run = children.confirmation(record["trial"], record["params"], TrialPart.of_record(record))
        yield _Ended(run, bool(record["error"]), record["error"])
    for record in study_storage.baselines():
        yield _Ended(children.baseline(TrialPart.of_record(record)), False, "")


def _rounds(session: "Session", ended: _Ended) -> Iterator[Record]:
    """The rounds of a run; of a trial those that the study was told of, for a checkpoint may hold later ones."""
    kept = ended.run.records()
    if ended.trial is None or session.settings.combination is not None:
        yield from kept
        return
    goal, trial = session.settings.objective, ended.trial[1]
    last = int(trial.user_attrs.get("rounds", 0))
    if kept:
        yield from (record for record in kept if record.round <= last or trial.state is TrialState.FAIL)
        return
    time = int(1000 * (trial.datetime_complete or trial.datetime_start).timestamp())  # type: ignore[union-attr]
    points = {step: {goal.metrics[0]: value} for step, value in trial.intermediate_values.items()}
    if trial.state is TrialState.COMPLETE:
        points[last] = dict(zip(goal.metrics, trial.values, strict=True))
    yield from (Record(step, values, time) for step, values in sorted(points.items()))
