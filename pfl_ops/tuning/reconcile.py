"""Each trial's run in MLflow as the study on disk says: what a kill cut off between the two is made up for."""

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial, TrialState

from pfl_ops.config.experiment import Experiment
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.tuning.baselines import baseline_objective
from pfl_ops.tuning.ledger import ERROR, PARTS, STATE, point_of, state_of
from pfl_ops.tuning.parts import PartResult, TrialPart

if TYPE_CHECKING:
    from pfl_ops.tuning.session import Session


def reconcile(session: "Session") -> list[int]:
    """Finish the runs of trials that the study has as over and MLflow has not.

    Rounds that a run misses come from the trial's checkpoint, or if that is gone, from the study. If the tracking
    server does not answer, nothing is done: a later start reconciles.

    Runs that confirm the choice, and those of FedAvg in environments, are finished likewise.

    Returns:
        the numbers of the trials whose runs were completed.
    """
    store, ledger = session.store, session.ledger
    over = [(number, trial) for number, trial in ledger.trials() if trial.state.is_finished()]
    parts = [(number, trial) for number, trial in ledger.trials() if PARTS in trial.user_attrs]
    if not (over or parts or ledger.baselines()) or not store.deliver() or not store.reachable:
        return []
    runs = {run.identity: run for run in store.runs(session.parent.experiment, parent=session.parent)}
    mended = []
    for number, trial in parts:
        if _reconcile_parts(session, number, trial, runs):
            mended.append(number)
    for number, trial in over if session.settings.combination is None else ():
        state = state_of(trial)
        status = "FAILED" if state in ("failed", "diverged") else "FINISHED"
        found = runs.get(session.trial_identity(number, point_of(trial)))
        if found and found.status == status and found.tags.get(STATE) == state:
            continue
        run = session.open_run(number, point_of(trial))
        run.log(_rounds(session, trial))
        error = str(trial.user_attrs.get(ERROR, ""))
        run.tags({STATE: state} | ({"pfl_ops.error": error} if error else {}))
        run.complete()
        run.finish(status, patience=0)
        if trial.state is TrialState.PRUNED:
            session.forget(point_of(trial))
        mended.append(number)
    for record in ledger.confirmations():
        status = "FAILED" if record["error"] else "FINISHED"
        where = record.get("environment", "")
        found = runs.get(session.confirmation_identity(record["params"], record["seed"], where))
        if found and found.status == status:
            continue
        run = session.open_confirmation(record["trial"], record["params"], record["seed"], where)
        run.log(_kept(session, session.experiment_in(record["params"], TrialPart(record["seed"], where))))
        if record["error"]:
            run.tags({"pfl_ops.error": record["error"]})
        run.complete()
        run.finish(status, patience=0)
    for record in ledger.baselines():
        part = TrialPart(record["seed"], record["environment"])
        found = runs.get(session.baseline_identity(part))
        if not (found and found.status == "FINISHED"):
            run = session.open_baseline(part)
            run.log(_kept(session, session.baseline_at(part), baseline_objective(session.settings.objective).stages))
            run.complete()
            run.finish("FINISHED", patience=0)
    store.deliver()
    return mended


def _reconcile_parts(session: "Session", number: int, trial: FrozenTrial, runs: Mapping[Any, Any]) -> bool:
    """Finish the runs of the parts of a trial that have ended; True: there was one.

    Args:
        runs: identity -> run, as MLflow has it.
    """
    combination, point, mended = session.settings.combination, point_of(trial), False
    assert combination is not None
    for result in map(PartResult.from_dict, trial.user_attrs[PARTS]):
        part = combination.parts.index(result.part)
        status, state = ("FAILED", "diverged") if result.error else ("FINISHED", "complete")
        found = runs.get(session.trial_identity(number, point, part))
        if found and found.status == status and found.tags.get(STATE) == state:
            continue
        run, mended = session.open_run(number, point, part), True
        run.log(_kept(session, session.experiment_at(point, part)))
        run.tags({STATE: state} | ({"pfl_ops.error": result.error} if result.error else {}))
        run.complete()
        run.finish(status, patience=0)
    if mended and state_of(trial) == "diverged":
        session.forget(point)
    return mended


def _kept(session: "Session", experiment: Experiment, stages: Collection[str] | None = None) -> list[Record]:
    """The rounds in the checkpoint of an experiment; `stages`: that it scored; None: those of a trial."""
    from pfl_ops import runs

    stages = session.settings.objective.stages if stages is None else stages
    return runs.kept_records(experiment, home=session.store.home.root, data_dir=session.data_dir, stages=stages)


def _rounds(session: "Session", trial: FrozenTrial) -> Iterator[Record]:
    """The rounds that the study was told of; a checkpoint may hold later ones, of a trial that was stopped."""
    goal = session.settings.objective
    last = int(trial.user_attrs.get("rounds", 0))
    kept = _kept(session, session.experiment_at(point_of(trial)))
    if kept:
        yield from (record for record in kept if record.round <= last or trial.state is TrialState.FAIL)
        return
    time = int(1000 * (trial.datetime_complete or trial.datetime_start).timestamp())  # type: ignore[union-attr]
    points = {step: {goal.metrics[0]: value} for step, value in trial.intermediate_values.items()}
    if trial.state is TrialState.COMPLETE:
        points[last] = dict(zip(goal.metrics, trial.values, strict=True))
    yield from (Record(step, values, time) for step, values in sorted(points.items()))
