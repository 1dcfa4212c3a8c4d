"""Ray's side of a job: it runs in Ray's processes, which may live on another machine."""

import gc
import math
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from ray import tune

from pfl_ops.errors import ended_by_signal, nearest
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs import plugins, report
from pfl_ops.jobs.job import Payload, SharedPaths
from pfl_ops.jobs.work import Work
from pfl_ops.metric_keys import error_key, summands
from pfl_ops.probe.memory import keep_within

JOB = "job"  # key of a configuration: the `Payload`
IDLE = "idle"  # or, for a process without a job, the `ResourceShare` that it keeps
SECONDS = 0.5  # between reports where none has to hold anything
PAUSES = (0.05, 1.0)  # shortest and longest between reports of a process without a job


class JobProcess(tune.Trainable):
    """A process that does one job after another; a step goes on to the next report.

    Between jobs it reports now and then, so that it can be given the next one. The report of a trial holds its
    objective: a step runs on to the next round in which all of it was evaluated.
    """

    def setup(self, config: dict[str, Any], place: SharedPaths | None = None, work: Work | None = None) -> None:
        assert place is not None and work is not None
        self.place, self.work = place, work
        self.records: Iterator[Record] = iter(())
        with report.failing_as_text():
            plugins.load(place.plugins)
            self._take(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take another job in the same process: nothing of the last one stays."""
        with report.failing_as_text():
            self.cleanup()
            if self.failed:
                gc.collect()  # an error's traceback may hold models in a cycle
            self._take(new_config)
        return True

    def _take(self, config: dict[str, Any]) -> None:
        self.failed = False
        self.idle_since = time.monotonic() if IDLE in config else None
        if self.idle_since is not None:
            return
        self.payload: Payload = config[JOB]
        self.losses: tuple[float, ...] = ()
        self.round, self.samples, self.sent_bytes = 0, 0, 0.0  # so far
        keep_within(self.payload.execution.threads or self.payload.share.threads, self.payload.share.gpus)
        self.records = self.work(self.payload, self.place)

    def step(self) -> dict[str, Any]:
        """Return the next report, or the job's failure as its last one; without a job, an empty one after a pause.

        An error is reported and not raised: an error that Ray sees is the process's own.
        """
        if self.idle_since is not None:
            shortest, longest = PAUSES
            time.sleep(min(longest, max(shortest, (time.monotonic() - self.idle_since) / 10)))
            return {report.ROUND: 0, "done": False}
        since: list[Record] = []
        try:
            return self._step(since)
        except BaseException as error:  # a user's loss or network may raise anything
            if ended_by_signal(error):
                raise
            self.failed = True
            values = dict.fromkeys(self.payload.metrics, math.nan)
            account = "".join(traceback.format_exception(error)) + str(report.Failure.of(error))
            self._count(getattr(error, "cost", {}))  # of a round that diverged, which has no record
            return {**values, report.FAILURE: account, **self._so_far(since), "done": True}

    def _step(self, since: list[Record]) -> dict[str, Any]:
        metrics, begun = self.payload.metrics, time.monotonic()
        for record in self.records:
            since.append(record)
            self.round = record.round
            if "train/loss" in record.metrics:
                self.losses = (*self.losses[:1], float(record.metrics["train/loss"]))
            self._count(record.metrics)
            last = record.round >= self.payload.rounds
            if not (last or metrics) and time.monotonic() - begun < SECONDS:
                continue
            if all(metric in record.metrics for metric in metrics):
                if last:
                    self.cleanup(to_the_end=True)
                over = last or not all(math.isfinite(record.metrics[metric]) for metric in metrics)
                keys = [key for metric in metrics for key in (metric, *summands(metric)) if key in record.metrics]
                values = {key: float(record.metrics[key]) for key in keys}
                errors = {m: float(record.metrics[key]) for m in metrics if (key := error_key(m)) in record.metrics}
                told = {report.LOSSES: self.losses, report.ERRORS: errors, "done": over}
                return {**values, **told, **self._so_far(since)}
            self._expect(record)
        raise RuntimeError(f"the simulation ended after round {self.round}")

    def _so_far(self, since: list[Record]) -> dict[str, Any]:
        """The part that all reports have; `since`: records since the last one."""
        spent = {report.SAMPLES: self.samples, report.SENT_BYTES: self.sent_bytes}
        return {report.ROUND: self.round, report.RECORDS: since, **spent}

    def _count(self, metrics: Mapping[str, float]) -> None:
        """Add the cost of a round."""
        self.samples += samples_seen(metrics)
        self.sent_bytes += bytes_sent(metrics)

    def _expect(self, record: Record) -> None:
        """Fail at the first full evaluation without the objective rather than after the last round."""
        every, last = self.payload.full_every, record.round >= self.payload.rounds
        if last or (record.round and record.round % every == 0):
            missing = next(m for m in self.payload.metrics if m not in record.metrics)
            if self._is_of_cohort(missing):
                if not last:
                    return
                raise report.ObjectiveMissing(
                    f"'{missing}' has no value in round {record.round}: L2 is that of the round's cohort, of which no "
                    "client with validation samples is scored, or the method has no L2; score more clients "
                    "(evaluation.clients, by default 200), let more take part (--participation), or take another "
                    "metric, such as val/L1/acc"
                )
            lacking = f"'{missing}' is not measured in this experiment (round {record.round} has no such value)"
            why = self._no_stage(missing, record)
            if why:
                raise report.ObjectiveMissing(f"{lacking}: {why}; mend the method, or take a metric of another stage")
            close = nearest(missing, record.metrics)
            raise report.ObjectiveMissing(lacking + (f"; did you mean '{close}'?" if close else ""))

    def _no_stage(self, metric: str, record: Record) -> str:
        """Return why a round has no score of a metric's stage; "": it has one, or the stage was not asked for."""
        why = {"L1": "personal() returned no models", "G": "round() returned no stage 'G'"}
        stage = metric.split("/")[1] if metric.startswith("val/") else ""
        asked_for = self.payload.experiment.get("evaluation", {}).get("stages", tuple(why))
        there = any(key.startswith(f"val/{stage}/") for key in record.metrics)
        return "" if there or stage not in asked_for else why.get(stage, "")

    def _is_of_cohort(self, metric: str) -> bool:
        """True for a score at L2 if not all clients take part: rounds whose cohort has no scored client lack it."""
        return metric.startswith("val/L2/") and self.payload.experiment["participation"]["share"] < 1

    def cleanup(self, to_the_end: bool = False) -> None:
        for _ in self.records if to_the_end else ():  # the simulation closes its checkpoint
            pass
        close = getattr(self.records, "close", None)
        if close is not None:  # a generator: it lets go of its locks and files
            close()
        self.records = iter(())


def samples_seen(values: Mapping[str, float]) -> int:
    """Samples on which gradients were taken in a round, each time counted."""
    return round(values.get("cost/samples_per_second", 0.0) * values.get("cost/train_seconds", 0.0))


def bytes_sent(values: Mapping[str, float]) -> float:
    """Bytes that all clients sent and received in a round."""
    return sum(values.get(f"cost/{way}_bytes", 0.0) for way in ("up", "down"))
