"""`benchmark`: several methods under one budget, and one leaderboard.

Every method gets the same number of trials, of rounds, and the same seeds: the same partition, validation share and
first network in its trials, and in each test run the same as all others with that seed. Its configuration is chosen on
validation data by one rule, the score of the last round; then it is tested with n seeds, once.

The rule without a metric: Acc(L) + Acc(G) of the models that a method's clients would use, which is L1 for most, L2 for
those whose clients fine-tune a copy that they don't keep, G where there are no clients (`Algorithm.own_stage`). One
stage for all would score FedAvg with fine-tuning before it fine-tunes. The leaderboard says where each was scored, and
a metric such as val/L1/acc puts all on one stage.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import pandas as pd

from pfl_ops import metric_keys, tag_names
from pfl_ops.comparison import Line
from pfl_ops.config.arguments import checked
from pfl_ops.config.experiment import Experiment
from pfl_ops.csv_text import to_csv
from pfl_ops.display import live
from pfl_ops.errors import PflOpsError, in_a_line, together
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs.resources import cluster, joining
from pfl_ops.registry import load_plugin
from pfl_ops.spaces import Space
from pfl_ops.tracking import Run, Store, provenance
from pfl_ops.tracking.descriptions import notes
from pfl_ops.tracking.runs.run import now
from pfl_ops.tuning.commands.planning import benchmark_plans, check_benchmark, members_in
from pfl_ops.tuning.commands.terms import COMMON, check_build
from pfl_ops.tuning.commands.tune_study import conduct
from pfl_ops.tuning.findings import costs, leaderboard, leaderboard_notes
from pfl_ops.tuning.findings.leaderboard import MethodStudy
from pfl_ops.tuning.findings.presented import trials_view
from pfl_ops.tuning.findings.show import StudyProgress
from pfl_ops.tuning.findings.study import Study
from pfl_ops.tuning.resources.resource_request import Amount, ResourceRequest
from pfl_ops.tuning.session.begin import PreparedStudy, StudyOptions, check, readable
from pfl_ops.tuning.session.events import Event, OnEvent
from pfl_ops.tuning.session.session import StudyInterrupted
from pfl_ops.tuning.studies import study_database
from pfl_ops.tuning.studies.budget import goes_on
from pfl_ops.tuning.studies.limits import StudyLimits, trials_done
from pfl_ops.tuning.studies.parts import check_seeds
from pfl_ops.tuning.studies.settings import Settings
from pfl_ops.tuning.studies.study_storage import StudyStorage, recorded


@dataclass(frozen=True)
class Benchmark:
    """The result of a benchmark.

    Attributes:
        name: of the MLflow experiment that holds all of it. run_id: of its run.
        studies: of each method that has a result. failures: why the others have none.
        table: the leaderboard, see `leaderboard.leaderboard`. traces: one row a trial. tests: one row a test run.
        costs: best validation scores of the searches at equal cost, see `costs.equal_cost`.
        notes: what has to be said with the table.
        lines: the test runs of each method, the best first, as `compare` has them: `lines[0].runs[0].model(3)`.
        page: where MLflow's page shows its tests, behind the server's address; None: it was never reached.
    """

    name: str
    run_id: str | None
    studies: dict[str, Study]
    failures: dict[str, str]
    table: pd.DataFrame
    traces: pd.DataFrame
    tests: pd.DataFrame
    notes: tuple[str, ...]
    page: str | None = None
    costs: pd.DataFrame = field(default_factory=pd.DataFrame)
    lines: tuple[Line, ...] = field(default=(), repr=False)

    def __repr__(self) -> str:
        has_rank = self.table["rank"].notna()
        ranked, others = (", ".join(self.table["method"][rows]) for rows in (has_rank, ~has_rank))
        return f"Benchmark({self.name}: {ranked}{f'; without a rank: {others}' if others else ''})"

    @property
    def _has_best(self) -> bool:
        """True if the test tells the first method apart from all others that have a test score."""
        smaller = metric_keys.smaller_is_better(self.table["metric"].iloc[0])
        others = [line for line in self.lines if line.difference]
        return bool(others) and all(line.is_behind(smaller=smaller) for line in others)

    def _repr_html_(self) -> str:
        """Its tables; the first row is bold if its method is the best, not if it has the highest mean alone."""
        from pfl_ops.display import cards, tables

        def ranking() -> str:
            rows = tables.leaderboard(self.table, self.name)
            return cards.table(rows if self._has_best else replace(rows, chosen=None))

        return cards.card(
            ranking,
            lambda: cards.table(tables.equal_cost(self.costs, self.table["metric"].iloc[0])) if len(self.costs) else "",
            lambda: cards.table(tables.choices(self.table)),
            lambda: cards.note(*self.notes),
        )


Report: TypeAlias = Callable[[Benchmark], Path | None]
"""Writes a report somewhere and says into which folder: what lies there is kept with the benchmark's run."""


@checked
@joining
def benchmark(
    experiments: Sequence[Experiment] | None = None,
    *,
    space: Space | str | Path | None = None,
    trials: int | None = None,
    hours: float | None = None,
    samples: float | None = None,
    terminate: int | None = None,
    seeds_per_trial: int | None = None,
    metric: str | Sequence[str] | None = None,
    mode: str | None = None,
    scheduler: str | None = None,
    cpus_per_trial: Amount = None,
    gpus_per_trial: Amount = None,
    concurrency: int | None = None,
    storage: str | None = None,
    name: str | None = None,
    resume: bool = False,
    address: str | None = None,
    home: str | Path | None = None,
    tracking_uri: str | None = None,
    data_dir: str | None = None,
    execution: Execution | None = None,
    final_repetitions: int | None = None,
    confirm: int | None = None,
    confirm_top: int | None = None,
    hold: Collection[str] = (),
    plugins: Iterable[Path | str] = (),
    on_event: OnEvent | None = None,
    progress: bool | None = None,
    report: Report | None = None,
) -> Benchmark:
    """Tune several methods under one budget, test each one's choice, and rank them.

    Each method has a study, <name>.<method>; `tune_study.tune` describes it, and the arguments not named here. A
    benchmark that was stopped goes on: finished studies are read. A method whose study fails is in the leaderboard with
    its reason. More methods may be added to a named benchmark later.

    Args:
        experiments: one a method, alike in data, partition, network, participation, evaluation, seed and rounds; none:
            those of the benchmark `name`, which is resumed.
        space: for all; a folder has a file for each method, and common.yaml for what they share (`spaces.share`); none:
            the package's own.
        trials, hours, samples, terminate: budgets of each method's search, see `tune_study.tune`.
        seeds_per_trial: of each method's trials, see `tune_study.tune`. None: 1, or as the benchmark was begun.
        metric: one validation score for all; none: see above.
        name: of the benchmark; none: benchmark-<dataset>-<partition>-<hash>.
        final_repetitions: test runs of each method's choice, with the seeds seed, seed + 1, ... None: the experiments'
            `repetitions`, or as in the last call if `experiments` is none.
        confirm, confirm_top: of each method, see `tune_study.tune`. None: 3 and 2, or as the benchmark was begun.
        report: called with the result, while its run is open.
    Raises:
        PflOpsError: settings that can't work, for any of the methods, before the first trial of the first; or no method
            has a result.
        StudyInterrupted: Ctrl-C; the message says how to go on.

    >>> benchmark(experiments, space=space, trials=1, name="both", final_repetitions=2)
    Benchmark(both: toy, late)
    """
    for file in plugins:
        load_plugin(Path(file))
    check(final_repetitions, name)
    check_seeds(seeds_per_trial)
    limits = StudyLimits(trials, hours, samples, terminate, confirm, confirm_top)
    asked = ResourceRequest.of(cpus_per_trial, gpus_per_trial, concurrency)
    options = StudyOptions.of(home, storage, data_dir, asked, execution, address, on_event)
    plans = benchmark_plans(
        experiments,
        studies=options.studies,
        data_dir=options.data_dir,
        space=space,
        limits=limits,
        metric=metric,
        mode=mode,
        scheduler=scheduler,
        hold=hold,
        seeds_per_trial=seeds_per_trial,
        name=name,
        resume=resume,
        final_repetitions=final_repetitions,
    )
    for plan in plans:
        check_build(plan.settings.experiment, options.data_dir, options.execution, plan.method)
    name, trials = plans[0].benchmark, plans[0].settings.trials

    with study_database.lock(options.home.root, name), live.watching(StudyProgress, on_event, progress) as tell:
        options = replace(options, on_event=tell)
        begun = _begin(plans, options, resume)
        options.wait(name, trials, "opening MLflow's store ...")
        with Store.open(home, tracking_uri, offline=True) as tracking, _run(tracking, name, plans) as run:
            try:
                missing = any(goes_on(plan.settings, study_storage) for plan, study_storage in begun)
                if missing:
                    options.wait(name, trials, "starting Ray ...")
                with cluster(address) if missing else nullcontext():  # one Ray for all of them
                    entries = [
                        _run_study(i, plan, study_storage, len(begun), options, tracking, run)
                        for i, (plan, study_storage) in enumerate(begun)
                    ]
                return _finish(name, entries, run, report)
            except (KeyboardInterrupt, StudyInterrupted):
                run.finish("KILLED", patience=5)
                raise StudyInterrupted(_go_on(begun, name, options)) from None


def members(name: str, *, home: str | Path | None = None, storage: str | None = None) -> dict[str, Settings]:
    """The settings of each method of a benchmark that exists, by method, in the order in which they were begun."""
    return members_in(readable(storage, home), name)


def _begin(
    plans: Sequence[PreparedStudy], options: StudyOptions, resume: bool
) -> list[tuple[PreparedStudy, StudyStorage]]:
    """Every study on disk; those that exist are looked at first, so that a refusal leaves nothing behind."""
    known = recorded(options.studies)
    check_benchmark(plans, known, resume)
    begun = {}
    for plan in sorted(plans, key=lambda plan: plan.name not in known):
        study_storage = plan.begin(options, resume and plan.name in known)
        begun[plan.name] = plan.wanting(study_storage, plan.settings.limits), study_storage
    return [begun[plan.name] for plan in plans]


def _run(store: Store, name: str, plans: Sequence[PreparedStudy]) -> Run:
    """The benchmark's own run: what all methods share are its parameters."""
    settings, methods = plans[0].settings, ", ".join(plan.method for plan in plans)
    shared = {path: value for path, value in settings.same_in_all.items() if path.startswith(COMMON)}
    tags = {tag_names.KIND: "benchmark", tag_names.BENCHMARK: name, "pfl_ops.methods": methods}
    budget = {"trials": settings.trials, "budget": settings.budget_text, "repetitions": plans[0].finals}
    tags |= provenance() | {f"pfl_ops.benchmark.{key}": str(value) for key, value in budget.items()}
    return store.run(name, "benchmark", identity=f"benchmark:{name}", params=shared, tags=tags)


def _run_study(
    i: int, plan: PreparedStudy, study_storage: StudyStorage, of: int, options: StudyOptions, tracking: Store, run: Run
) -> MethodStudy:
    """One method's study; whatever ends it but Ctrl-C is its own affair."""
    place = f"{i + 1} of {of}"
    tell = options.on_event

    def told(event: Event) -> None:
        if tell:
            tell(replace(event, method=plan.method, place=place))

    try:
        study = conduct(plan, study_storage, replace(options, on_event=told), tracking, run)
        entry = MethodStudy(plan, study_storage, study)
        scores = leaderboard.summary(entry)
    except StudyInterrupted:
        raise
    except Exception as error:
        entry = MethodStudy(plan, study_storage, error=in_a_line(error))
        scores = f"failed: {entry.error}"
    told(Event("study", plan.name, plan.settings.trials, study_storage.done(), text=scores))
    return entry


def _finish(name: str, entries: Sequence[MethodStudy], run: Run, report: Report | None) -> Benchmark:
    """The leaderboard, on disk and in the benchmark's run.

    Raises:
        PflOpsError: every method failed.
    """
    failures = {entry.plan.method: entry.error for entry in entries if entry.error}
    if len(failures) == len(entries):
        raise PflOpsError(f"no method of benchmark '{name}' has a result\n{together(failures)}")
    table = leaderboard.leaderboard(entries)
    at_equal_cost = costs.equal_cost(entries)
    made = Benchmark(
        name,
        run.run_id,
        {entry.plan.method: entry.study for entry in entries if entry.study},
        failures,
        table,
        leaderboard.traces(entries),
        leaderboard.tests(entries),
        (*leaderboard_notes.notes(entries, table), *costs.notes(at_equal_cost)),
        run.page("tests"),
        at_equal_cost,
        leaderboard.compared(entries),
    )
    kept_tables = {"leaderboard": table, "traces": made.traces, "tests": made.tests, "equal_cost": made.costs}
    for file, kept in kept_tables.items():
        run.text(to_csv(kept), f"{file}.csv")
    links = [notes.charts("tests", "charts of the tests")]
    links += [notes.charts(trials_view(method, shared=True), f"{method}'s trials") for method in made.studies]
    run.note(f"**Benchmark {name}**: {', '.join(links)}.\n\n{leaderboard.markdown(made.table, made.notes)}")
    run.log(_searches(made))
    for row in table.to_dict("records"):
        run.set_metrics(row["n"], {f"tested/{row['method']}": row["test"]})
    if report and (folder := report(made)):
        run.contents(folder, "report")
    return made


def _searches(made: Benchmark) -> list[Record]:
    """A key a method, for MLflow's charts: the best value so far over trials."""
    points: dict[int, dict[str, float]] = {}
    for row in made.traces.to_dict("records"):
        if not math.isnan(row["best"]):
            points.setdefault(int(row["trial"]), {})[f"search/{row['method']}"] = row["best"]
    return [Record(step, found, now()) for step, found in sorted(points.items())]


def _go_on(begun: Sequence[tuple[PreparedStudy, StudyStorage]], name: str, options: StudyOptions) -> str:
    methods = ",".join(plan.method for plan, _ in begun)
    done = sum(study_storage.done() for _, study_storage in begun)
    wanted = sum(plan.settings.trials for plan, _ in begun)
    command = f"pfl-ops tune {methods} --name {name}{options.repeated(begun[0][0].finals)} --resume"
    return f"stopped with {trials_done(done, wanted)} done; go on with: {command}"
