"""The round loop: draws cohorts, lets the method train them, has the stages scored, keeps checkpoints.

It knows nothing of tracking or tuning.
"""

import math
import os
import time
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pfl_ops import metrics
from pfl_ops.data.clients import Clients
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.execution import choose
from pfl_ops.federation.execution.review import PROCESSOR
from pfl_ops.federation.execution.workers import PooledScorer, PooledTrainer
from pfl_ops.federation.loop import cohort, diverged, engine, finish
from pfl_ops.federation.loop.build import constant_buffers, make_task, make_trainer
from pfl_ops.federation.loop.choosing import executions_of, place_of
from pfl_ops.federation.loop.diverged import Diverged
from pfl_ops.federation.loop.finish import LastRoundResults
from pfl_ops.federation.method.checked import CheckedMethod, MethodError, check_update
from pfl_ops.federation.method.contract import ClientRows, Models, Rows, Stages, State, Update
from pfl_ops.federation.method.method import Method
from pfl_ops.federation.method.round import Round
from pfl_ops.federation.network.agreement import check_scores
from pfl_ops.federation.network.net import Net
from pfl_ops.federation.scoring.evaluate import Scorer, Scores
from pfl_ops.federation.scoring.stages import RoundAt, StageScores, keys, made, repeatable
from pfl_ops.federation.settings import Evaluation, Execution, Participation, Training
from pfl_ops.federation.state.checkpoint import Checkpoints, Record, Results, Table
from pfl_ops.federation.state.rows import RowStore
from pfl_ops.federation.training.feed import Feed
from pfl_ops.system import memory
from pfl_ops.system.machine import OtherLoad

ENGINE, DIVERGED = "engine", "diverged"
"""In a checkpoint: the digest of the code that wrote it; the `Diverged` of a run that was to go on all the same."""


class Simulation:
    """One run of one method on one federation.

    Args:
        network: body and head with their first parameters.
        method: the algorithm.
        clients: training and held-out samples by client.
        training, participation, evaluation: the experiment's sections. seed: the run's seed.
        execution: where and how; what it leaves open is chosen here, by timing.
        stackable: False where the network can't be stacked (dropout, recurrent layers).
        folder: where checkpoints go; None: nowhere, and the run can't be resumed.
        identity: the experiment's hash; a folder of another experiment is refused.
        stages: the stages to score; None: all. final: score everything in full once the rounds are over.
        resume: go on from the folder's checkpoints; False: what it holds is thrown away when `run` starts.
        adapt: compare a timed choice of execution with the first rounds, and choose again where it was wrong.

    Attributes:
        records: one for the start and one a round, those of the checkpoint included.
        final: `final/…`, `best/…` and `reached/…` keys, once the run is over.
        client_table: column -> values of the full evaluation; without one, of the last round's.
        complaints: lines about damaged checkpoints that were passed over, about what a resumed run keeps, about an
            execution that was chosen again, and about stages that the last round lacks.
        hints: a line where another precision would be much faster here.
        resolved: the execution with nothing left open; executions: all that the run has had.
        resumed_from: the round of the checkpoint that it goes on from; None: it starts.
        read: whether the run was over before, so that nothing is computed.
        diverged: set by the first round with a value that is not finite, where `execution.diverged` is "continue"; else
            `run` raises it.
        same_engine: whether the checkpoint was written by an engine with the same code.
    """

    def __init__(
        self, network: nn.Module, method: Method, clients: Clients, training: Training, participation: Participation,
        evaluation: Evaluation, *, seed: int = 0, execution: Execution | None = None, stackable: bool = True,
        folder: Path | None = None, identity: str = "", stages: Collection[str] | None = None, final: bool = True,
        resume: bool = True, adapt: bool = False,
    ) -> None:  # fmt: skip
        self.method, self.clients, self.folder, self.identity = CheckedMethod(method), clients, folder, identity
        self.training, self.participation, self.evaluation = training, participation, evaluation
        self.execution = execution or Execution()
        self.wanted = frozenset(metrics.STAGES if stages is None else stages)
        self.with_final = final
        self.records: list[Record] = []
        self.final: dict[str, float] = {}
        self.client_table: Table = {}
        self.complaints: list[str] = []
        self.diverged: Diverged | None = None
        self._ending: LastRoundResults | None = None
        self._global: Tensor | None = None
        self._kept_l2: np.ndarray | None = None
        self._free_cores = math.inf
        self._ahead = False  # from the commit of a round until its record is kept: the state is that of the next round

        found = None
        self._checkpoints: Checkpoints | None = None
        if folder is not None:
            self._checkpoints = Checkpoints(folder, identity, resume=resume)
            found, self.complaints = self._checkpoints.latest, list(self._checkpoints.complaints)
        if found is not None and found.results is not None and final and not found.results.full:
            found = None  # only its scores were kept, and more is asked for
        over = found is not None and found.results is not None
        self._device, where = place_of(self.execution, training.precision, over)
        dtype = torch.float64 if training.precision == "float64" else torch.float32
        self.feed = Feed(clients.train, clients.mean, clients.std, self._device, dtype)
        two = torch.tensor([0, len(clients.train.y) - 1], device=self._device)
        check_scores(Net(network), self.feed.inputs(two), stackable)
        self._buffers = constant_buffers(network)
        self.task = make_task(
            network.to(self._device, dtype), self.method, clients, self.feed, training, participation, seed,
            RowStore(where, folder),
        )  # fmt: skip
        self._probabilities = cohort.probabilities(participation, self.task.n_clients, seed)
        self._stragglers = cohort.stragglers(participation, self.task.n_clients, seed)
        self._held = Feed(clients.held, clients.mean, clients.std, self._device, dtype)
        self._seed, self._draws = seed, not stackable
        self.executions, lines, self.hints = executions_of(
            self.task, self.feed, training, self.execution, found, stackable=stackable, adapt=adapt
        )
        self.complaints += lines
        self._use(self.executions.taken[-1][1])
        self._state: State = self.method.init(self.task)
        if evaluation.absent == "last":
            self._kept_l2 = finish.kept_l2(self.scorer.clients.numpy(), found.meta if found is not None else {})
        self._unread = found
        if found is not None:
            self.records = found.records
            if found.results is None:
                self._read()
        self.resumed_from = found.round if found is not None else None
        if found is not None and DIVERGED in found.meta:
            self.diverged = Diverged(*found.meta[DIVERGED])
        self.read = found is not None and found.results is not None and found.results.full >= final
        self.same_engine = found is None or found.meta.get(ENGINE) == engine.digest()
        if not (self.read or self.same_engine):
            self.complaints.append(
                f"goes on from round {found.round if found else 0}, which was computed by an engine with other code of "
                "the same results version; --no-resume computes all of it anew"
            )

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> Iterator[Record]:
        """Records of all rounds, first those that a checkpoint already holds; one is yielded after it was kept.

        Raises:
            PflOpsError: a former call ended within a round, after its training: it can't be run again from that state.
        """
        yield from list(self.records)
        if not self.records:
            if self._checkpoints is not None:
                self._checkpoints.clear()
            start = self._record(0, self._scores.start(self.state), {})
            self._keep(start)
            yield start
        for t in range(self.records[-1].round, self.training.rounds):
            if self._ahead:
                raise PflOpsError(
                    f"round {t + 1} was interrupted after its training, which would be repeated; build the simulation "
                    "again (with a folder it goes on from the last checkpoint)"
                )
            try:
                record = self._round(t)
            except MethodError:
                if t == 0 and self._checkpoints is not None:
                    self._checkpoints.remove()
                raise
            line = None
            if self.executions.promised:
                line = self.executions.review(record, self.training.rounds, self._free_cores)
                self.complaints += [line] if line else []
            self._keep(record, at_once=line is not None)
            yield record
        self._finish()
        if self.with_final:
            self.complaints += finish.lost(self.records, self.final, self.evaluation.split)

    def start(self) -> None:
        """Start the worker processes, if there are to be any; else the first round does."""
        if isinstance(self.trainer, PooledTrainer):
            self.trainer.start()

    def close(self) -> None:
        """End the worker processes, if there are any."""
        trainer = getattr(self, "trainer", None)  # None: while the first one is made
        if isinstance(trainer, PooledTrainer):
            trainer.close()

    def wait(self) -> None:
        """Wait until a GPU has done what it was given: calls return before, so that a clock would be read too early."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    @property
    def finished_rounds(self) -> int:
        """Rounds that have a record."""
        return self.records[-1].round if self.records else 0

    @property
    def state(self) -> State:
        """The method's state; that of a finished run is read when it is first needed.

        Raises:
            PflOpsError: the run was over before, and was not to be scored in full: it has kept its scores alone.
        """
        self._read()
        return self._state

    def _read(self) -> None:
        found = self._unread
        if found is not None and not found.holds_state:
            raise PflOpsError("this run kept its scores and no models; start it again with a final evaluation")
        if found is not None:
            self._state = found.restore(self._state)
        self._unread = None

    def _round(self, t: int) -> Record:
        if self.executions.at(t) != self.resolved:
            self._use(self.executions.at(t))
        self._set_switches()
        last = t + 1 == self.training.rounds
        drawn = cohort.draw(self.method, self.state, self.task, self._probabilities, t)
        r = self.round_at(t, drawn)
        self.trainer.meter.clear()
        load = OtherLoad() if self.executions.promised and self._device.type == "cpu" else None
        started = time.perf_counter()
        update, stages = self._step(r, t + 1, started)
        self.wait()
        trained = time.perf_counter()
        if t == 0 and not stages:
            self._scores.check_l1(self.state)
        self._free_cores = math.inf if load is None else (1 - load.share()) * (os.cpu_count() or 1)
        cost = self._cost(r, trained - started)
        noted = r.notes.keys(None if self._stragglers is None else self._stragglers[r.cohort.cpu().numpy()])
        self._note_divergence(
            self.diverged or diverged.check(t + 1, r.lr, self.trainer.meter.mean, update, stages), cost
        )
        stages = repeatable(r, stages)
        if r.pooling:  # on all data as one client's, of which nothing was timed
            self.executions.settle()

        again = last and self.with_final and self._kept_l2 is None
        absent = self._scores.absent_l2(self.state, r, stages) if again else None
        self._ahead = True
        commit(self.state, update)
        del update  # rows of the whole cohort, which evaluation has no use for
        scores: dict[str, Scores] = {}
        if last or (t + 1) % self.evaluation.every == 0:
            pooled = last or (t + 1) % self.evaluation.global_every == 0
            scores = self._scores.curves(self.state, r, stages, pooled=pooled)
        if self._kept_l2 is not None and "L2" in scores:
            self._kept_l2 = np.where(np.isnan(scores["L2"].local), self._kept_l2, scores["L2"].local)
            absent = Scores(self._kept_l2)
        scored = list(scores.values())
        if last:
            full = self._scores.last(self.state, r, stages, absent) if self.with_final else None
            g = made(stages["G"], self.scorer.clients) if "G" in stages else None
            shared = g is not None and g.clients is None
            self._ending = LastRoundResults(
                full, scores, g.params.detach().cpu().clone() if g is not None and shared else None
            )
            scored += (full or {}).values()
        self._note_divergence(self.diverged or diverged.check_scored(t + 1, r.lr, scored), cost)
        self.wait()
        cost["cost/eval_seconds"] = time.perf_counter() - trained
        return self._record(t + 1, scores, noted | cost)

    def _step(self, r: Round, round_: int, started: float) -> tuple[Update, Stages]:
        """The method's round. An error that follows a loss that is not finite is divergence: a projection or a solver
        of the method can't go on from it, whatever `execution.diverged` asks for."""
        try:
            return self.method.round(self.state, r)
        except MethodError:
            raise
        except Exception as error:
            if self.trainer.meter.finite:
                raise
            raise Diverged(round_, r.lr, cost=self._cost(r, time.perf_counter() - started)) from error

    def _note_divergence(self, found: Diverged | None, cost: Mapping[str, float]) -> None:
        """Raise it, or keep it where the run is to go on all the same; `cost`: of the round."""
        if found is not None and self.execution.diverged == "stop":
            found.cost = cost
            try:
                raise found
            finally:
                del found  # else its traceback and this frame, which has the simulation, hold each other
        self.diverged = found

    def _record(self, round_: int, scores: Mapping[str, Scores], more: Mapping[str, float]) -> Record:
        scored = keys(scores, self.evaluation.split, self.evaluation.eps, self.scorer.sizes)
        return Record(round_, {**scored, **more}, time.time_ns() // 1_000_000)

    def _keep(self, record: Record, at_once: bool = False) -> None:
        self.records.append(record)
        self._ahead = False
        if self._checkpoints is None:
            return
        if at_once or record.round % self.execution.checkpoint_every == 0 or record.round == self.training.rounds:
            self._checkpoints.save(record.round, self.state, self.records, self._about())

    def _cost(self, r: Round, seconds: float) -> dict[str, float]:
        size = self.task.initial.element_size() * len(r.cohort)
        seen = sum(self.trainer.meter.by_stream.values())
        cost = {
            "train/lr": r.lr,
            "cost/up_bytes": r.traffic.up * size,
            "cost/down_bytes": r.traffic.down * size,
            "cost/clients": float(len(r.cohort)),
            "cost/train_seconds": seconds,
            "cost/samples_per_second": seen / seconds if seconds > 0 else 0.0,
            "cost/peak_mib": self._peak(),
        }
        loss = self.trainer.meter.mean
        return cost if loss is None else {"train/loss": loss, **cost}

    def _peak(self) -> float:
        """Peak memory in MiB: on a GPU of what PyTorch allocated there, else as `memory.peak` has it."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) / 2**20
        return memory.peak() / 2**20

    # -- the end ------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Final and best scores; read from the folder where a finished run is asked for again."""
        there = self._checkpoints.latest if self._checkpoints is not None else None
        if there is not None and there.results is not None and there.results.full >= self.with_final:
            self.final, self.client_table, self._global = there.results.final, there.clients(), there.model()
            assert self._checkpoints is not None
            self._checkpoints.tidy()
            return
        if self._ending is None:
            self._again()
        assert self._ending is not None
        self._global = self._ending.model
        scores = self._ending.scores or {}
        self.final = keys(scores, self.evaluation.split, self.evaluation.eps, self.scorer.sizes, "final/")
        shown = scores if self.with_final else self._ending.curves
        self.client_table = finish.table(shown, self.scorer, self.task.sizes.cpu().numpy(), self._chances())
        self.final |= finish.best(self.records, self.evaluation.split, getattr(self.method, "own_stage", "L1"))
        self.final |= finish.reached(self.records, self.evaluation.split, self.evaluation.targets)
        if self._checkpoints is not None:
            self._checkpoints.finish(
                self.training.rounds, self.state if self.with_final else None, self.records,
                self._about(), Results(self.with_final, self.final), self.client_table, self._global,
            )  # fmt: skip

    def _about(self) -> dict[str, Any]:
        """Return the metadata of a checkpoint: how it was computed."""
        noted = {DIVERGED: self.diverged.as_list()} if self.diverged else {}
        if self._kept_l2 is not None:
            noted[finish.KEPT_L2] = [None if np.isnan(score) else score for score in self._kept_l2.tolist()]
        here = choose.processor(self._device)
        return {**self.executions.to_meta(), ENGINE: engine.digest(), PROCESSOR: here, **noted}

    def _chances(self) -> dict[str, np.ndarray]:
        """Columns of the client table where not all clients are alike: probability in a draw, who is a straggler."""
        found = {"probability": self._probabilities, "straggler": self._stragglers}
        return {name: values for name, values in found.items() if values is not None}

    def _again(self) -> None:
        """Killed between the last checkpoint and the end: the last round is run again for final scores, the table of
        clients and the global model.

        The checkpoint before the last is the state to start from; without it the run starts over.
        """
        assert self._checkpoints is not None
        before = self._checkpoints.before(self.training.rounds)
        self._state = {}  # its rows go before there are others
        self._state = self.method.init(self.task)
        first = 0
        if before is not None:
            self._state, first = before.restore(self._state), before.round
        if self._kept_l2 is not None:
            self._kept_l2 = finish.kept_l2(self.scorer.clients.numpy(), before.meta if before is not None else {})
        for t in range(first, self.training.rounds):
            self._round(t)
        self._ahead = False

    @property
    def participants(self) -> Tensor:
        """Clients with a row that was ever written, int64 [M], ascending; all N if the state has no rows."""
        rows = [value.written for value in self.state.values() if isinstance(value, ClientRows)]
        return torch.stack(rows).any(dim=0).nonzero()[:, 0] if rows else torch.arange(self.task.n_clients)

    @property
    def state_place(self) -> str:
        """The place of clients' rows: file, where some did not fit into memory; device, where they are on a GPU."""
        rows = [value for value in self._state.values() if isinstance(value, ClientRows)]
        if any(value.in_file for value in rows):
            return "file"
        return "device" if any(value.on_device for value in rows) else "memory"

    def global_model(self) -> dict[str, Tensor] | None:
        """G of the last round as a state dict; None if a method has no global model, or the run is not over."""
        return None if self._global is None else {**self.task.layout.export(self._global), **self._buffers}

    def named(self, models: Models, row: int = 0) -> dict[str, Tensor]:
        """Return one of `personal_models` as a network's state dict, with what `predict` needs beside it."""
        return {**models.named(self.task.layout, row), **{name: b.clone() for name, b in self._buffers.items()}}

    def personal_models(self, clients: Tensor | None = None) -> Models | None:
        """L1 as the clients hold it now: rows [C, P] (or one [P] for all) with what `predict` needs; see `state`."""
        who, t = torch.arange(self.task.n_clients) if clients is None else clients, max(self.finished_rounds - 1, 0)
        return self.method.personal(self.state, self.round_at(t, who, purpose="evaluate"))

    # -- where and how ------------------------------------------------------------------------------------------------

    def _use(self, resolved: choose.Resolved) -> None:
        """Train and score with this execution from now on."""
        self.close()
        self.resolved = resolved
        self._set_switches()
        compiled = resolved.kernels == "compiled"
        self.trainer = make_trainer(self.task, self.feed, self.training, resolved.stack, self._draws, compiled)
        if resolved.workers > 1:
            self.trainer = PooledTrainer(self.trainer, resolved.workers)
            self.scorer: Scorer = PooledScorer(self.trainer, self.clients.held, self._held, self.evaluation, self._seed)
        else:
            self.scorer = Scorer(self.trainer, self.clients.held, self._held, self.evaluation, self._seed)
        # not a method: what makes rounds for the scores must not hold the simulation, whose models would else stay in
        # memory until the next garbage collection
        lr_decay, weighting = self.training.lr_decay, self.participation.weighting
        self.round_at: RoundAt = partial(Round, self.trainer, weighting=weighting, lr_decay=lr_decay)
        row = self.task.initial
        self._scores = StageScores(
            self.method, self.scorer, self.round_at, self.wanted, resolved.chunk, row.numel() * row.element_size(),
            self.evaluation.stages,
        )  # fmt: skip

    def _set_switches(self) -> None:
        """Set what PyTorch has once a process; before each round, for another simulation may have set its own."""
        torch.set_num_threads(self.resolved.threads)
        if self._device.type == "cuda":
            choose.switch(self.training.precision)


def commit(s: State, update: Update) -> None:
    """Take over what a round changed; only here is state ever written.

    Raises:
        PflOpsError: as for `check_update`.
    """
    check_update(s, update)
    for name, value in update.items():
        if isinstance(value, Rows):
            s[name].write(value.clients, value.values)
        else:
            s[name] = value.detach()
