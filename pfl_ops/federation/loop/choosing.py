"""The execution of a run: where its rows are, and how it computes, as its checkpoint has it or by timing real steps."""

import math

import torch

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.execution import choose
from pfl_ops.federation.execution.decide import LONG, TrainingWork
from pfl_ops.federation.execution.review import Executions, kept
from pfl_ops.federation.execution.stackable import stacks
from pfl_ops.federation.execution.timing import Candidate, Go
from pfl_ops.federation.loop.build import make_trainer, rule_of
from pfl_ops.federation.losses import LOSSES
from pfl_ops.federation.method.contract import Task
from pfl_ops.federation.method.round import Round
from pfl_ops.federation.network.chain import Chain
from pfl_ops.federation.network.cross_entropy import cross_entropy
from pfl_ops.federation.settings import Execution, Precision, StatePlace, Training
from pfl_ops.federation.state.checkpoint import Checkpoint
from pfl_ops.federation.training.compiled import takes
from pfl_ops.federation.training.feed import Feed


def place_of(execution: Execution, precision: Precision, over: bool) -> tuple[torch.device, StatePlace]:
    """Return the device, and the place of clients' rows.

    Args:
        over: whether the run has all its rounds: it may be read anywhere, on the CPU if this machine lacks what it was
            computed on.
    Raises:
        PflOpsError: this machine does not have what is asked for.
    """
    try:
        device = choose.device(execution, precision)
    except PflOpsError:
        if not over:
            raise
        device = torch.device("cpu")
    if execution.state != "device" or device.type != "cpu":
        return device, execution.state
    if not over:
        raise PflOpsError("state 'device' is a GPU's memory, and this run computes on the CPU; use --state memory")
    return device, "auto"


def executions_of(
    task: Task, feed: Feed, training: Training, asked: Execution, found: Checkpoint | None, *, stackable: bool,
    adapt: bool,
) -> tuple[Executions, list[str], list[str]]:  # fmt: skip
    """Return the executions of a run: as the checkpoint has them, as asked for, or by timing steps of each candidate.

    Args:
        found: its checkpoint. stackable: False where the network can't be stacked (dropout, recurrent layers).
        adapt: compare a timed choice with the first rounds of a long run.
    Returns:
        the executions; a line for each wish that a checkpoint does not meet; hints, see `choose.Chosen`.
    """
    mapped = stacks(training.loss, lambda n: make_trainer(task, feed, training, n, not stackable))
    if found is not None:
        executions, lines = kept(found.meta, asked, feed.device, over=found.results is not None)
        return executions if adapt and not lines else Executions(executions.taken), lines, []
    work = _work_of(task, feed, training)
    kernels = choose.kernels(asked, feed.device, _coverable_layers(task, feed, training), rule_of(training).name)
    loss = LOSSES.digest(training.loss)  # None: the package's own, of which timings may be kept already
    chosen = choose.resolve(
        asked, feed.device, training.precision, stackable=stackable and mapped,
        work=work,
        shapes={
            "layout": [b.stored for b in task.layout.blocks], "optimiser": training.optimiser,
            "sample": list(feed.x.shape[1:]), **({"momentum": True} if training.momentum else {}),
            **({} if loss is None else {"loss": loss}),
        },
        prepare=lambda candidate: _timed_steps(task, feed, training, candidate, kernels == "compiled"),
        kernels=kernels,
    )  # fmt: skip
    seconds = work.rounds * work.samples / chosen.promised.get(chosen.resolved, math.inf)
    promised = dict(chosen.promised) if adapt and seconds >= LONG else {}
    return Executions([(0, chosen.resolved)], promised), [], chosen.hints


def _work_of(task: Task, feed: Feed, training: Training) -> TrainingWork:
    """Return the work of a run with this training section, as if all clients were of average size."""
    own = float(feed.sizes.mean())
    batch = max(min(training.batch_size or own, own), 1.0)
    a_pass = max(math.ceil(own / batch), 1)
    steps = training.local_steps or a_pass * (training.local_epochs or 1)
    return TrainingWork(task.cohort_size, training.rounds, task.cohort_size * own * steps / a_pass, batch, steps)


def _coverable_layers(task: Task, feed: Feed, training: Training) -> int:
    """Count the linear layers of a network that compiled kernels cover with this loss, precision and kind of data; 0 if
    they don't."""
    exact = training.precision in ("float32", "float64")
    chain = Chain.of(task.net) if exact and task.loss is cross_entropy and takes(feed) else None
    return len(chain.layers) if chain else 0


def _timed_steps(task: Task, feed: Feed, training: Training, candidate: Candidate, compiled: bool = False) -> Go:
    """Real steps of a candidate on clients of average size; the run itself sees nothing of them."""
    trainer = make_trainer(
        task, feed, training.model_copy(update={"precision": candidate.precision}), candidate.stack, draws=False,
        compiled=compiled,
    )  # fmt: skip
    some = abs(feed.sizes - feed.sizes.mean()).argsort(kind="stable")[: candidate.stack or 1]
    r = Round(trainer, 0, torch.from_numpy(some.copy()), weighting="uniform", purpose="timing")

    def go(steps: int) -> int:
        choose.switch(candidate.precision)
        trainer.meter.clear()
        r.train(task.initial, steps=steps)
        return sum(trainer.meter.by_stream.values())

    return go
