"""`pfl-ops run`: one tracked simulation, or several repetitions of it."""

import os
import shlex
from typing import Annotated

import typer

from pfl_ops.addresses import redact_address
from pfl_ops.cli.names import completion, names_of
from pfl_ops.cli.options import (
    Config,
    DataDir,
    DryRun,
    Plugins,
    Preset,
    Sets,
    TrackingUri,
    execution_of,
    experiment_of,
    with_default,
    with_flags,
)

PAGE = "http://127.0.0.1:5000"  # where pfl-ops ui serves it unless told otherwise
ALGORITHM = typer.Argument(
    metavar="ALGORITHM",
    show_default=False,
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
        typer.Option(
            "--resume/--no-resume",
            help=with_default("Go on from the last checkpoint of the same run, if there is one.", "yes"),
            show_default=False,
        ),
    ] = True,
    data_dir: DataDir = None,
    tracking_uri: TrackingUri = None,
    plugin: Plugins = [],  # noqa: B006
    **flags: str | None,
) -> None:
    """Simulate a federation once, tracked in MLflow.

    Defaults are the general ones; a method may recommend others (pfl-ops show NAME).
    """
    experiment = experiment_of(
        algorithm, flags, config=config, preset=preset, sets=sets, plugins=plugin, data_dir=data_dir
    )
    execution = execution_of(flags)

    from pfl_ops import runs  # heavy; mistakes are told before
    from pfl_ops.cli.live import results_notes, results_table
    from pfl_ops.cli.output import err, out, say
    from pfl_ops.display.progress import RunProgress
    from pfl_ops.tracking.home import check_places

    check_places(tracking_uri)
    estimate = runs.estimate(experiment, data_dir=data_dir, execution=execution).with_startup()
    for told in (str(estimate), *estimate.hints):
        say(out() if dry_run else err(), told)
    if dry_run:
        return

    say(err(), "opening MLflow's store ...")
    split = "val" if experiment.evaluation.split == "validation" else "test"
    results: list[runs.Result] = []
    diverged: list[str] = []
    try:
        for i in range(experiment.repetitions):
            one = experiment.repetition(i)
            with RunProgress.of(one) as line:
                try:
                    results.append(
                        runs.run(
                            one,
                            tracking_uri=tracking_uri,
                            data_dir=data_dir,
                            execution=execution,
                            resume=resume,
                            on_record=line.record,
                        )
                    )
                except runs.Diverged as error:
                    diverged.append(f"seed {one.seed}: {error}")
    except KeyboardInterrupt:
        say(err(), "stopped; the same command goes on from the last checkpoint")
        raise typer.Exit(130) from None
    for told in [each for result in results for each in (*result.complaints, result.origin) if each]:
        say(err(), told)
    console = out()
    if not diverged:  # the mean over the seeds that are left would flatter
        console.print(results_table(results, split))
        for note in results_notes(results, split):
            say(console, note)
    for result in results:
        say(console, f"run {result.run_id or 'not sent yet'}  (seed {result.experiment.seed})")
    if results:
        from pfl_ops.tracking.notes import experiment_name

        say(console, look_closer(tracking_uri, results[-1].page, "experiment", experiment_name(results[-1].experiment)))
    for seed in diverged:
        say(err(), seed)
    if diverged:
        raise typer.Exit(runs.Diverged.exit_code)


def served(tracking_uri: str | None) -> str:
    """The address of the MLflow server that keeps the runs, without a password; "": they lie in a file."""
    place = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")
    return redact_address(place.rstrip("/")) if place.startswith("http") else ""


def look_closer(tracking_uri: str | None, page: str | None, kind: str, name: str) -> str:
    """Return the last words of a command: where MLflow's page shows what was recorded.

    `pfl-ops ui` serves short addresses. A tracking server's link is long, and stands on a line of its own.

    Args:
        page: the address behind the server's; None: not known. kind, name: see `tracking.short`.
    """
    from pfl_ops.tracking.short import short_address

    if served(tracking_uri):
        return f"look closer ({kind} {name}):\n{ui_hint(tracking_uri, page)}"
    return f"look closer: {ui_hint(tracking_uri, page and short_address(kind, name))}"


def ui_hint(tracking_uri: str | None, page: str | None = None) -> str:
    """How to see the runs in MLflow's page; `page`: where in it, behind the server's address."""
    if server := served(tracking_uri):
        return server + (page or "")
    command = "pfl-ops ui" + (f" --tracking-uri {shlex.quote(redact_address(tracking_uri))}" if tracking_uri else "")
    return f"{command}, then {PAGE}{page}" if page else command
