"""The time, memory and disk that a run will take, from one real round of a few clients."""

import re
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from pfl_ops.federation.execution import choose
from pfl_ops.federation.loop.simulate import Simulation, commit
from pfl_ops.federation.method.contract import ClientRows, Models, Stages, State, Update
from pfl_ops.federation.method.round import Round
from pfl_ops.federation.scoring.evaluate import Scores
from pfl_ops.federation.scoring.stages import made
from pfl_ops.federation.state import snapshot
from pfl_ops.system import machine

T = TypeVar("T")

LIBRARIES_MIB = 750  # the interpreter with PyTorch and MLflow, before any model
LONG = 5  # seconds of something measured, above which it is measured once
FEW = 5  # clients, at most, that are measured where training stacks none
SAMPLE_BYTES = 70  # of a sample beside x: its class, owner and number in several orders, as the clients are made
CELL_BYTES = 16  # of a client and class: counts of the training data, for the method and for the record
AROUND = 64 << 10  # bytes that the kernel maps around a page of a file that is read (Linux)
WORKER_MIB = choose.WORKER / 2**20
COURIER_MIB = 430  # of the courier, beside the libraries' files that it shares: 428 to 476 measured after 30 rounds
TRACKING_SECONDS = 4.0  # to import MLflow and open its database: 3.9 to 5.4 measured on two cores of an AMD EPYC
CHECKPOINT_SECONDS = 0.02
"""To write a checkpoint. Beside training and evaluation a round took 21 ms in the median of 1,009 runs, 26 ms in the
mean (150 rounds, linear model, two at once on two cores of an AMD EPYC with other work); 2 ms without a checkpoint."""
RUN_SECONDS = 0.7
"""Of a run in a study beside its rounds: to record it, and to start the next. 0.72 measured on the same machine, and
between 1,009 runs of `reproduce` 0.94 in the mean, 0.28 in the median."""
BUSY = 0.25  # share of the machine's processors that others took, from which on a measured time says so


@dataclass(frozen=True)
class Estimate:
    """The cost of a run.

    Attributes:
        seconds: from the first round that is left to the last, with their checkpoints. train_seconds: of training in
            one round. eval_seconds: of all evaluation that is left.
        rounds: that are left: T, less those of a checkpoint. memory_mib, disk_mib: MiB at the peak, of all processes
            together.
        hints: what else the user may want to know before it starts.
        startup_seconds: from the start of the process to the first round; 0: not counted, see `with_startup`.
        samples: gradient samples, each counted. sent_bytes: by all clients, up and down, if all rounds send as much as
            the measured one. 0: not estimated.
        done: rounds that a checkpoint has.
    """

    seconds: float
    train_seconds: float
    eval_seconds: float
    rounds: int
    memory_mib: float
    disk_mib: float
    hints: tuple[str, ...] = ()
    startup_seconds: float = 0.0
    samples: int = 0
    sent_bytes: float = 0.0
    done: int = 0

    def with_startup(self, tracking: bool = True) -> "Estimate":
        """Return the estimate for this process, whose age is its start-up.

        For commands only. A notebook's process may be hours old.

        Args:
            tracking: True adds the time to import MLflow and to open its database, if this process has not; False the
                memory of the courier, the process that tracks instead.
        """
        to_come = TRACKING_SECONDS if tracking and "mlflow" not in sys.modules else 0.0
        memory = self.memory_mib + COURIER_MIB * (not tracking)
        return replace(self, startup_seconds=machine.process_age() + to_come, memory_mib=memory)

    def of_trials(self, number: int, at_once: int) -> float:
        """Return the seconds of so many trials of one run, `at_once` of them at once.

        Start-up counts twice: of this process, and of the trials' processes, which load the same libraries and data.
        """
        return 2 * self.startup_seconds + self.of_runs(number).seconds / at_once

    def of_runs(self, number: int) -> "Estimate":
        """Return the time and cost of so many runs one after another in a study; memory and disk stay those of one."""
        seconds = (self.seconds + RUN_SECONDS) * number
        return replace(self, seconds=seconds, samples=self.samples * number, sent_bytes=self.sent_bytes * number)

    @property
    def cost(self) -> str:
        """The cost that does not depend on the machine: "120,000 samples, 3.2 MiB sent"; "": not estimated."""
        return f"{self.samples:,} samples, {self.sent_bytes / 2**20:,.1f} MiB sent" if self.samples else ""

    def __str__(self) -> str:
        each = f"{'more ' * bool(self.done)}round{'s' * (self.rounds != 1)} of"
        startup = f"start-up {duration(self.startup_seconds)}, " if self.startup_seconds else ""
        of_each = (self.seconds - self.eval_seconds) / max(self.rounds, 1)
        return (
            f"about {duration(self.startup_seconds + self.seconds)} ({startup}{self.rounds} {each} "
            f"{duration(of_each)}, "
            f"evaluation {duration(self.eval_seconds)}), memory {size(self.memory_mib)}, disk {size(self.disk_mib)}"
        )


def duration(seconds: float) -> str:
    """Seconds as a person says them: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def size(mib: float) -> str:
    """MiB as a person says them: under 1 MiB, 12 MiB, 1.2 GiB."""
    if mib >= 1024:
        return f"{mib / 1024:.1f} GiB"
    return f"{mib:.0f} MiB" if mib >= 1 else "under 1 MiB"


def estimate(simulation: Simulation) -> Estimate:
    """Measure a round of a few clients of average size, evaluate a few of their models, and multiply.

    Where clients keep a state, the round is their second one, or the third if the second takes much longer than the
    first: FedAS aligns what a client receives to what it had from then on, and FedALA learns weights, in the second
    round the longest. The simulation's state does not change, and nothing is written. One of the hints says if the
    machine was busy meanwhile.

    Raises:
        MethodError: the round gives something else the second time (on a CPU; one of more than 5 s is run once).
    """
    load = machine.OtherLoad()
    sizes, task, rounds = simulation.feed.sizes, simulation.task, simulation.training.rounds
    left = rounds - simulation.finished_rounds
    cohort, s = task.cohort_size, simulation.state
    workers = simulation.resolved.workers
    few = min(simulation.trainer.chunk or min(simulation.scorer.stack, FEW), cohort)
    simulation.start()
    measured = min(few * workers, cohort)  # as many for each worker: they take whole stacks
    average = torch.from_numpy(abs(sizes - sizes.mean()).argsort(kind="stable")[:measured].copy())
    played = _played(simulation, average)
    r, seconds, seen = played.r, played.seconds, played.samples
    counted = simulation.training.local_steps is not None  # steps: every client trains as long, whatever its size
    clients = measured if counted else max(float(sizes[average.numpy()].sum()), 1.0) / sizes.mean()  # of average size
    a_client = seconds / clients
    train = seconds if r.pooling else a_client * cohort
    samples = seen if r.pooling else seen / clients * cohort
    sent = (r.traffic.up + r.traffic.down) * task.initial.element_size() * cohort

    evaluation = _evaluation(simulation, played, a_client)
    p = task.initial.numel() * task.initial.element_size() / 2**20
    drawn = min(len(sizes), cohort * rounds)
    rows = {name: v.row_bytes / 2**20 * drawn for name, v in s.items() if isinstance(v, ClientRows)}
    in_file = sum(mib for name, mib in rows.items() if s[name].in_file)
    state = sum(rows.values()) + sum(v.numel() * v.element_size() / 2**20 for k, v in s.items() if k not in rows)
    part = min(state, snapshot.PART / 2**20)

    data = _data_mib(simulation, drawn)
    memory = LIBRARIES_MIB + data + sum(rows.values()) - in_file + p * (2.5 * cohort + 8 * few) + 4 * part
    tracked = 0.0
    if simulation.with_final:
        l1 = simulation.method.personal(s, r)
        tracked = p * (2 + (drawn if l1 is not None and l1.clients is not None else 0))
    disk = max(3 * state, state + tracked) + in_file  # a base, deltas as large, and the next base; then the models
    if workers > 1:
        memory += workers * WORKER_MIB + data + 2 * p * cohort  # they share a copy of the data, and rows on their way
    hints = (*simulation.clients.remarks, *simulation.hints, *busy_hint(load.share()))
    return Estimate(
        left * train + evaluation + CHECKPOINT_SECONDS * left / simulation.execution.checkpoint_every,
        train,
        evaluation,
        left,
        memory,
        disk,
        hints,
        samples=round(left * samples),
        sent_bytes=float(left * sent),
        done=simulation.finished_rounds,
    )


def distinct_hints(hints: Iterable[str]) -> list[str]:
    """Return the hints of several estimates; of those that differ in numbers alone the last.

    >>> distinct_hints(["the machine was busy (30 %)", "stacks are faster", "the machine was busy (40 %)"])
    ['the machine was busy (40 %)', 'stacks are faster']
    """
    return list({re.sub(r"\d+", "0", hint): hint for hint in hints}.values())


def busy_hint(share: float) -> tuple[str, ...]:
    """Return the line that says how busy the machine was, if it was.

    Args:
        share: of all processors, taken by other processes while a round was measured.
    """
    if share < BUSY:
        return ()
    return (
        f"the machine was busy (other processes took about {100 * share:.0f} % of it): the estimate may be too high",
    )


@dataclass(frozen=True)
class _Played:
    """A measured round: the state `s` in which it began, what it gave, its seconds, and its gradient samples."""

    s: State
    r: Round
    update: Update
    stages: Stages
    seconds: float
    samples: int


def _played(simulation: Simulation, clients: Tensor) -> _Played:
    """Measure the first round of these clients, or where they keep a state a later one, see `estimate`."""

    def play(s: State, t: int) -> _Played:
        simulation.trainer.meter.clear()
        simulation.wait()
        start = time.perf_counter()
        # a new one: methods note a value once a round
        r = simulation.round_at(t, clients, purpose="estimate", kept=False)
        update, stages = simulation.method.round(s, r)
        simulation.wait()
        seconds, seen = time.perf_counter() - start, sum(simulation.trainer.meter.by_stream.values())
        return _Played(s, r, update, stages, seconds, seen)

    s, task, rounds = simulation.state, simulation.task, simulation.training.rounds
    tries = [play(s, 0)]
    if tries[0].seconds <= LONG:  # the first go pays for what is made once
        tries.append(play(s, 0))
    if task.initial.device.type == "cpu":  # some kernels of GPUs do not repeat their sums
        simulation.method.check_repeats([one.update for one in tries])
    found = replace(tries[-1], seconds=min(one.seconds for one in tries))
    rows = [v for v in s.values() if isinstance(v, ClientRows)]
    twice = any(v.on_device for v in rows)  # a GPU would have to hold the rows of two states
    if not rows or twice or simulation.finished_rounds or rounds < 3:
        return found
    first, later = found.seconds, simulation.method.init(task)
    for t in (1, 2):
        commit(later, found.update)
        try:
            found = play(later, t)
        except Exception:  # the run will say so, with its finished rounds kept
            break
        if found.seconds < 2 * first:  # else it may be the longest of all, as FedALA's second one
            break
    return found


def _evaluation(simulation: Simulation, played: _Played, a_client: float) -> float:
    """Seconds of the evaluation that is left: what it costs to get a stage's models, and each answer, of which none is
    given twice."""
    s, r, update, stages = played.s, played.r, played.update, played.stages
    e, rounds, scorer, cohort = simulation.evaluation, simulation.training.rounds, simulation.scorer, len(r.cohort)
    done = simulation.finished_rounds
    scored, typical = len(scorer.clients), float(simulation.feed.sizes.mean()) / max(float(r.n.mean()), 1.0)
    found: dict[str, Models | None] = {}
    getting = {"L1": 0.0, "L2": 0.0}  # seconds a client, where a stage's models must be trained or mixed first
    if "L1" in simulation.wanted:
        seconds, found["L1"] = _timed(simulation, lambda: simulation.method.personal(s, r))
        own = found["L1"] is not None and found["L1"].clients is not None
        getting["L1"] = seconds * typical / cohort if own else 0.0
    l2 = stages.get("L2")
    if "L2" in simulation.wanted and l2 is not None:
        seconds, found["L2"] = _timed(simulation, lambda: made(l2, r.cohort))
        getting["L2"] = 0.0 if isinstance(l2, Models) else seconds * typical / cohort
    if "G" in simulation.wanted and "G" in stages:
        g = stages["G"]
        found["G"] = g if isinstance(g, Models) else Models(simulation.task.initial)  # one model for all
    models = {stage: m for stage, m in found.items() if m is not None}
    if not models:
        return 0.0
    some = next((m for m in models.values() if m.clients is not None), next(iter(models.values())))
    some = _scored(some, scorer.clients)

    def ask() -> Scores:
        scorer.forget()
        return scorer.score([some], pooled=True)

    an_answer = _timed(simulation, ask)[0] / scorer.answers([some])

    local = float(scorer.feed.sizes[scorer.clients.numpy()].sum())
    everything, subset, last = (float(len(some)) for some in (scorer.everything, scorer.subset, scorer.final))
    intervals = e.every, e.full_every
    evaluated, pooled = (-(-rounds // each) - done // each for each in intervals)  # and the last
    during = {*e.stages}
    if "G" in during and "L1" in models and models["L1"].clients is None:
        during.add("L1")  # one model, which is asked once
    start = not simulation.records and "L1" in models and "L1" in during
    total = an_answer * min(local + subset, everything) if start else 0.0
    always = evaluated, pooled
    for stage, m in models.items():
        evaluated, pooled = always if stage in during else (0, 0)
        share = min(simulation.task.cohort_size / len(scorer.feed.sizes), 1.0) if stage == "L2" else 1.0
        if stage == "G" and m.clients is None and "L1" in models and models["L1"].clients is None:
            continue  # the model that was just asked
        if m.clients is None:
            shown = (evaluated * min(local + subset, everything), simulation.with_final * min(local + last, everything))
            total += an_answer * sum(shown)
            continue
        total += evaluated * share * getting[stage] * scored
        if simulation.with_final:
            total += getting[stage] * scored
            total += (1 - share) * scored * a_client if isinstance(stages.get(stage), Models) else 0.0
        if stage == "L2" and _same_as_l1(simulation, r, update, m):
            continue
        total += share * an_answer * (evaluated * local + pooled * scored * subset)
        if simulation.with_final:
            still = 1 - share if subset == last else 1.0  # who was not asked the same a moment before
            total += still * an_answer * (local + scored * last)
    return total


def _data_mib(simulation: Simulation, drawn: int) -> float:
    """MiB of the data at the peak of a run in which so many clients train, and so many are scored as always.

    Of samples that are mapped from a file only those that are read become resident, with the pages around them.
    """
    shown = len(simulation.scorer.clients) + len(simulation.scorer.final)
    found = 0.0
    for feed, reads in ((simulation.feed, drawn), (simulation.scorer.feed, shown)):
        x = feed.x.numel() * feed.x.element_size()
        own = x / max(len(feed.sizes), 1)
        found += min(x, reads * (own + AROUND)) if feed.mapped else x
        found += SAMPLE_BYTES * len(feed.y)
    return (found + CELL_BYTES * simulation.task.class_counts.numel()) / 2**20


def _scored(models: Models, clients: Tensor) -> Models:
    """The models of clients as if they were models of scored clients, so that each has samples to be asked about."""
    if models.clients is None or bool(torch.isin(models.clients.cpu(), clients).all()):
        return models
    n = min(len(models.clients), len(clients))
    ctx = {name: value[:n] for name, value in models.ctx.items()}
    return replace(models, params=models.params[:n], clients=clients[:n], ctx=ctx)


def _same_as_l1(simulation: Simulation, r: Round, update: Update, l2: Models) -> bool:
    """True if a client's models of both stages are one, once the round is over."""
    after = simulation.method.init(simulation.task)
    commit(after, update)
    l1 = simulation.method.personal(after, r)
    if l1 is None or l1.params.shape != l2.params.shape or l1.ctx.keys() != l2.ctx.keys():
        return False
    return torch.equal(l1.params, l2.params) and all(torch.equal(l1.ctx[key], l2.ctx[key]) for key in l1.ctx)


def _timed(simulation: Simulation, run: Callable[[], T]) -> tuple[float, T]:
    """Seconds of a second go, the first one pays for what is made once; and what it gave."""

    def go() -> tuple[float, T]:
        simulation.wait()
        start = time.perf_counter()
        found = run()
        simulation.wait()
        return time.perf_counter() - start, found

    first, found = go()
    if first > LONG:
        return first, found
    second, found = go()
    return min(first, second), found
