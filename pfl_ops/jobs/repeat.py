"""Repetitions of an experiment, side by side."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from pfl_ops import runs
from pfl_ops.config.arguments import checked
from pfl_ops.config.experiment import Experiment
from pfl_ops.config.identity import check_planned
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.loop.diverged import Diverged
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs.job import Job, SharedPaths
from pfl_ops.jobs.resources import cluster, gpu_share, joining, most_cpus, nodes, share
from pfl_ops.jobs.runner import JobEvent, JobList, Runner
from pfl_ops.jobs.tracking_queue import TrackingQueue
from pfl_ops.registry import load_plugin
from pfl_ops.results import Result
from pfl_ops.tracking.runs.store import Store

OnSeed: TypeAlias = Callable[[int, Record], None]
"""Called with a seed and a round that it has finished."""


@dataclass(frozen=True)
class Repeated:
    """Repetitions of an experiment.

    Attributes:
        results: those that ended well, in the order of their seeds. diverged: {seed: how} of the others.
    """

    results: list[Result] = field(default_factory=list)
    diverged: dict[int, str] = field(default_factory=dict)


@checked
@joining
def repeat(
    experiment: Experiment,
    *,
    concurrency: int | None = None,
    address: str | None = None,
    home: Path | str | None = None,
    tracking_uri: str | None = None,
    data_dir: str | None = None,
    execution: Execution | None = None,
    plugins: Iterable[Path | str] = (),
    on_record: OnSeed | None = None,
) -> Repeated:
    """Run all repetitions, several at once, each on its share of the CPUs; tracked as `run` tracks them.

    One that was begun goes on, and one that is finished is read.

    Args:
        experiment: its seeds are seed, seed + 1, ..., `repetitions` of them.
        concurrency: at once; none: as many as there are CPUs. With fewer, each has several CPUs.
        address: of a Ray cluster to join. There, the work folder must be shared, or results are computed again here.
        home, tracking_uri, data_dir, execution: see `runs.run`; threads follow the share. A GPU is shared by as many as
            have to, and by four at most.
        plugins: Python files that define methods, networks or partitions; those already loaded count too.
        on_record: told of each round.
    Raises:
        KeyboardInterrupt: Ctrl-C; the same call goes on.
        PflOpsError: as for `runs.run`; or a repetition's process died twice.
    """
    for file in plugins:
        load_plugin(file)
    asked = execution or Execution()
    each = [experiment.repetition(i) for i in range(experiment.repetitions)]
    planned = [one.digest(data_dir) for one in each]
    queue: TrackingQueue[Result] = TrackingQueue()
    with Store.open(home, tracking_uri, offline=True) as store, queue:

        def tracked(i: int, computed: bool) -> Result:
            check_planned(f"seed {each[i].seed}", each[i].digest(data_dir), planned[i])
            return runs.run(
                each[i], home=home, data_dir=data_dir, execution=asked, progress=False, store=store, computed=computed
            )

        def track(i: int, computed: bool) -> None:
            queue.submit(i, lambda: tracked(i, computed))

        def take(event: JobEvent) -> None:
            i = event.job.number
            if on_record is not None:
                for record in event.records:
                    on_record(each[i].seed, record)
            if event.kind != "ended":
                return
            if event.failure and event.failure.died:
                queue.fail(i, PflOpsError(f"seed {each[i].seed}: {event.failure.line}"))
            else:  # one that raised raises again where it is tracked, as itself
                track(i, True)

        missing = []
        for i, one in enumerate(each):
            if runs.is_finished(one, home=store.home.root, data_dir=data_dir):
                track(i, False)
            else:
                missing.append(i)
        if missing:
            with cluster(address) as folder:
                there = sum(node.get("CPU", 0.0) for node in nodes())
                at_once = min(len(missing), concurrency or len(missing))
                gpus = gpu_share(at_once, asked.device)
                cpus = None if gpus else min(max(1.0, there // at_once), most_cpus())  # None: those beside the GPU
                part = share(cpus, gpus, concurrency, len(missing), asked.device)
                how = part.execution(asked)
                jobs = [
                    Job.of("repetition", f"seed {each[i].seed}", i, each[i], data_dir, how, part, planned=planned[i])
                    for i in missing
                ]
                place = SharedPaths(str(store.home.root), data_dir, address is not None)
                Runner(place, part.concurrency, take, queue=queue).run(JobList(jobs), folder, "repetitions")
        found = Repeated()
        for i, one in enumerate(each):
            try:
                found.results.append(queue.result(i))
            except Diverged as error:
                found.diverged[one.seed] = str(error)
        return found
