"""A benchmark from its settings to its report: one run, candidates in turns."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import TypeAlias

import torch

from pfl_ops.bench.case import Case
from pfl_ops.bench.entrants import CaseCandidates
from pfl_ops.bench.load import other_load
from pfl_ops.bench.measure import Series
from pfl_ops.bench.ours import chosen
from pfl_ops.bench.peak import matmul_rate
from pfl_ops.bench.report import BenchRow, CaseReport, Report, case_report, machine
from pfl_ops.bench.settings import BenchSettings
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.execution import choose
from pfl_ops.federation.loop.estimate import duration
from pfl_ops.federation.settings import Execution, Precision

Say: TypeAlias = Callable[[str], None]


def bench(settings: BenchSettings, *, data_dir: str | None = None, say: Say = lambda line: None) -> Report:
    """Measure every network at every batch size.

    Args:
        settings: what. data_dir: where data sets lie; none: as `data.datasets.load` finds them.
        say: told a line now and then.
    Raises:
        PflOpsError: CUDA is asked for and not there. A case that can't be measured becomes a line of the report.
    """
    began = time.perf_counter()
    threads = torch.get_num_threads()
    report = Report(machine(choose.device(Execution(device=settings.device), "float32")), settings)
    with other_load(settings.other_load):
        for model in settings.model:
            for batch in settings.batch:
                try:
                    report.cases.append(measured(Case(settings, model, batch, data_dir), say))
                except PflOpsError as error:
                    line = f"{model}, B {batch}: " + " ".join(str(error).split())
                    report.skipped.append(line)
                    say("skipped " + line)
                torch.set_num_threads(threads)
    report.seconds = time.perf_counter() - began
    return report


def measured(case: Case, say: Say) -> CaseReport:
    """All candidates of one case: a trial, warm-up, windows in turns."""
    settings = case.settings
    say(f"{case.title}: warm-up")
    auto = chosen(case, settings.threads)
    with closing(CaseCandidates(case, settings.threads, auto)) as entrants:
        entrants.enter()
        peaks: dict[tuple[Precision, int], list[float]] = {
            (label.precision, entrants.threads[label]): [] for label in entrants.labels
        }
        for timed in entrants.everything():
            timed.warm(settings.seconds)
        turn = duration(sum(timed.window.seconds for timed in entrants.everything()))
        say(f"{case.title}: {settings.repeats} turns of about {turn}")
        for repeat in range(settings.repeats):
            for timed in entrants.everything():
                timed.measure()
            for (precision, threads), values in peaks.items():
                values.append(matmul_rate(case.device, precision, threads))
            say(f"{case.title}: {repeat + 1} of {settings.repeats}")
        used = entrants.memory_mib()
    rows = [BenchRow(label, entrants.series(label), used.get(label), label == auto) for label in entrants.labels]
    return case_report(
        case, rows, peaks={key: Series(tuple(values)) for key, values in peaks.items()}, threads=entrants.threads,
        auto=auto, notes=entrants.notes,
    )  # fmt: skip
