"""`pfl-ops run`: one tracked simulation, or several repetitions of it."""

import os
import shlex
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from pfl_ops.cli import options
from pfl_ops.cli.names import completion, names_of
from pfl_ops.cli.options import Config, DataDir, DryRun, Plugins, Preset, Sets, TrackingUri, option, with_flags
from pfl_ops.cli.output import INTERRUPTED, err, out, say
from pfl_ops.errors import PflOpsError, echo
from pfl_ops.redaction import redact_address

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment
    from pfl_ops.federation.loop.estimate import Estimate
    from pfl_ops.results import Result

Outcome: TypeAlias = "tuple[list[Result], dict[int, str]]"
WORTH_RAY = 60.0  # seconds of all repetitions from which they run side by side; measured: 43 s take as long either way
PAGE = "http://127.0.0.1:5000"  # where pfl-ops ui serves it unless told otherwise
ALGORITHM = typer.Argument(
    metavar="ALGORITHM",
    autocompletion=completion(names_of("algorithms")),
    help="The method: pfl-ops list algorithms. It may stand in --config instead.",
)


@with_flags()
def run(
    algorithm: Annotated[str | None, ALGORITHM] = None,
    *,
    config: Config = None,
    preset: Preset = None,
    sets: Sets = [],  # noqa: B006  (Typer copies it)
    dry_run: DryRun = False,
    resume: Annotated[
        bool,
        option("Go on from the last checkpoint of the same run, if there is one.", "yes", flag="--resume/--no-resume"),
    ] = True,
    concurrency: Annotated[
        int | None, option("Repetitions at once.", "one a CPU if they take long, else 1", "INT", 1, 10_000)
    ] = None,
    address: Annotated[str | None, option("A Ray cluster to join, for repetitions.", metavar="auto|HOST:PORT")] = None,
    data_dir: DataDir = None,
    tracking_uri: TrackingUri = None,
    plugin: Plugins = [],  # noqa: B006
    **flags: str | None,
) -> None:
    """Simulate a federation, once or with several seeds, tracked in MLflow.

    Defaults are the general ones; a method may recommend others (pfl-ops show NAME).
    """
    if algorithm and "," in algorithm:
        raise PflOpsError(f"run takes one method; several are compared by: pfl-ops tune {shlex.quote(echo(algorithm))}")
    experiment = options.experiment_of(
        algorithm, flags, config=config, preset=preset, sets=sets, plugins=plugin, data_dir=data_dir
    )
    execution = options.execution_of(flags)

    from pfl_ops import runs  # heavy; mistakes are told before
    from pfl_ops.cli.terminal_tables import print_scores
    from pfl_ops.config.precedence import assignments
    from pfl_ops.tracking.descriptions.notes import experiment_name
    from pfl_ops.tracking.home import WorkFolder, check_places
    from pfl_ops.tracking.runs.earlier import SHORT
    from pfl_ops.tracking.spools import requests

    check_places(tracking_uri)
    for flag, given in (("--address", address is not None), ("--concurrency", (concurrency or 1) > 1)):
        if given and not resume:
            raise PflOpsError(f"--no-resume runs the repetitions one after another, here; leave it or {flag} out")
    where: dict[str, Any] = {"data_dir": data_dir, "execution": execution}
    stated = [*options.settings_of(options.EXPERIMENT, flags), *assignments(sets), *options.of_file(config, experiment)]
    idle = options.unread(experiment, stated)
    say(err(), options.without_effect({experiment.algorithm.name: idle}))
    if dry_run:
        if address is not None:
            from pfl_ops.jobs.resources import check_address

            check_address(address)
        _tell_cost(experiment, resume, not requests.is_possible(WorkFolder.at(), tracking_uri), where)
        return

    split = "val" if experiment.evaluation.split == "validation" else "test"
    try:
        if resume and _side_by_side(experiment, concurrency, address, where):
            results, diverged = _repeat(experiment, concurrency, address, where | {"tracking_uri": tracking_uri})
        else:
            results, diverged = _one_by_one(experiment, resume, where | {"tracking_uri": tracking_uri})
    except KeyboardInterrupt:
        say(err(), "stopped; the same command goes on from the last checkpoint")
        raise typer.Exit(INTERRUPTED) from None
    say(err(), *(line for result in results for line in (*result.complaints, result.origin)))
    console = out()
    if not diverged:  # the mean over the seeds that are left would flatter
        print_scores(console, results, split)
    say(console, *(f"run {result.hash[:SHORT]}  (seed {result.experiment.seed})" for result in results))
    if results:
        say(console, look_closer(tracking_uri, results[-1].page, "experiment", experiment_name(results[-1].experiment)))
    say(err(), *requests.problems(WorkFolder.at()), *(f"seed {seed}: {how}" for seed, how in diverged.items()))
    if diverged:
        raise typer.Exit(runs.Diverged.exit_code)


def _tell_cost(experiment: "Experiment", resume: bool, tracking: bool, where: dict[str, Any]) -> None:
    """Say what the repetitions that are not finished would take, each."""
    from pfl_ops import runs
    from pfl_ops.tracking.home import WorkFolder

    n = experiment.repetitions
    left = [experiment.repetition(i) for i in range(n)]
    if resume and WorkFolder.at().root.exists():
        left = [one for one in left if not runs.is_finished(one, data_dir=where["data_dir"])]
    finished = f"{n - len(left)} of {n} repetitions are finished"
    if not left:
        say(out(), "finished before: the results would be read, and nothing computed" if n == 1 else finished)
        return
    found = runs.estimate(left[0], **where).with_startup(tracking=tracking)
    each = f"{finished}; each other one: " if len(left) < n else f"each of {n} repetitions: " if n > 1 else ""
    say(out(), f"{each}{found}", *found.hints)


def _side_by_side(
    experiment: "Experiment", concurrency: int | None, address: str | None, where: dict[str, Any]
) -> bool:
    """True if repetitions run at once: where a flag asks for it, or where it saves more than Ray's start."""
    from pfl_ops import runs
    from pfl_ops.system import cores

    n = experiment.repetitions
    if address is not None or n == 1 or concurrency is not None:
        return address is not None or (n > 1 and concurrency != 1)
    if cores.usable() < 2 or all(
        runs.is_finished(experiment.repetition(i), data_dir=where["data_dir"]) for i in range(n)
    ):
        return False
    found = runs.estimate(experiment, **where)
    if n * found.seconds < WORTH_RAY:
        return False
    say(err(), f"each of {n} repetitions: {found.with_startup()}", *found.hints)
    return True


def _repeat(experiment: "Experiment", concurrency: int | None, address: str | None, where: dict[str, Any]) -> Outcome:
    """Run the repetitions at once, in Ray's processes."""
    from pfl_ops.display.progress import SeveralProgress
    from pfl_ops.jobs.repeat import repeat

    say(err(), "opening MLflow's store, starting Ray ...")
    with SeveralProgress.of(experiment) as lines:
        found = repeat(experiment, concurrency=concurrency, address=address, on_record=lines.record, **where)
    return found.results, found.diverged


def _one_by_one(experiment: "Experiment", resume: bool, where: dict[str, Any]) -> Outcome:
    """Run the repetitions in this process; the first one says what it will take."""
    from pfl_ops import runs
    from pfl_ops.config.identity import check_planned
    from pfl_ops.display.progress import RunProgress
    from pfl_ops.tracking.home import WorkFolder
    from pfl_ops.tracking.spools import requests

    apart = requests.is_possible(WorkFolder.at(), where["tracking_uri"])

    def tell(found: "Estimate") -> None:
        each = f"each of {experiment.repetitions} repetitions: " if experiment.repetitions > 1 else ""
        opening = "" if apart else "opening MLflow's store ..."
        say(err(), f"{each}{found.with_startup(tracking=not apart)}", *found.hints, opening)

    results: list[Result] = []
    diverged: dict[int, str] = {}
    planned = experiment.digest(where["data_dir"], seed=False)
    for i in range(experiment.repetitions):
        one = experiment.repetition(i)
        check_planned(f"seed {one.seed}", one.digest(where["data_dir"], seed=False), planned)
        with RunProgress.of(one) as line:
            try:
                on_estimate = None if results or diverged else tell
                results.append(
                    runs.run(one, resume=resume, on_record=line, on_estimate=on_estimate, wait=False, **where)
                )
            except runs.Diverged as error:
                diverged[one.seed] = str(error)
    return results, diverged


def served(tracking_uri: str | None) -> str:
    """The address of the MLflow server that keeps the runs, without a password; "": they lie in a file."""
    place = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")
    return redact_address(place.rstrip("/")) if place.startswith("http") else ""


def look_closer(tracking_uri: str | None, page: str | None, kind: str, name: str) -> str:
    """Return the last words of a command: where MLflow's page shows what was recorded.

    `pfl-ops ui` serves short addresses. A tracking server's link is long, and stands on a line of its own.

    Args:
        page: the address behind the server's; None: not known. kind, name: see `tracking.page.short`.
    """
    from pfl_ops.tracking.page.short import short_address

    if served(tracking_uri):
        return f"look closer ({kind} {name}):\n{ui_hint(tracking_uri, page)}"
    return f"look closer: {ui_hint(tracking_uri, page and short_address(kind, name))}"


def ui_hint(tracking_uri: str | None, page: str | None = None) -> str:
    """Return how to open MLflow's page; `page`: the address behind the server's."""
    if server := served(tracking_uri):
        return server + (page or "")
    command = "pfl-ops ui" + (f" --tracking-uri {shlex.quote(redact_address(tracking_uri))}" if tracking_uri else "")
    return f"{command}, then {PAGE}{page}" if page else command
