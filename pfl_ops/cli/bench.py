"""`pfl-ops bench`: how fast the engine is on this machine, beside a plain loop."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pfl_ops.cli.checks import check_data_dir, check_output
from pfl_ops.cli.names import names_of
from pfl_ops.cli.options import DataDir, Flag, Plugins, TrackingUri, load_plugins, settings_of, with_flags
from pfl_ops.cli.output import err, out, say
from pfl_ops.errors import PflOpsError

BENCH = (
    Flag("model", "model", "NAMES", "linear,mlp,cnn,cnn6,cnn_cifar", "Networks, with commas.", names_of("models")),
    Flag(
        "dataset",
        "dataset",
        "NAME|FILE",
        "mnist, cifar10 for cnn_cifar",
        "Data set, or a file: .npz, .csv, .parquet.",
        names_of("datasets"),
    ),
    Flag("batch", "batch", "INTS", "50", "Samples a step, with commas."),
    Flag("optimiser", "optimiser", "sgd|adam", "sgd", "Local optimiser."),
    Flag("clients", "clients", "INT", "20", "Clients in a round."),
    Flag("steps", "steps", "INT", "an epoch, less where heavy", "Local steps a round."),
    Flag("precision", "precision", "NAMES", "float32,bfloat16, on a GPU tf32 too", "Ours; the plain loop is float32."),
    Flag("chunk", "chunk", "INTS|none", "5,10,20", "Clients stacked at once."),
    Flag("workers", "workers", "INTS", "1 and one a core", "Processes that share a cohort (CPU)."),
    Flag("device", "device", "auto|cpu|cuda", "auto", "Where it computes."),
    Flag("threads", "threads", "INT", "each candidate's own", "CPU threads."),
    Flag("measure", "measure", "NAMES", "train,evaluate,round", "Which figures."),
    Flag("evaluate-models", "evaluate_models", "INT", "20", "Local models that are evaluated."),
    Flag("evaluate-images", "evaluate_images", "INT", "500", "Pooled test images that each of them is shown."),
    Flag("repeats", "repeats", "INT", "5", "Measurements of each figure."),
    Flag("seconds", "seconds", "FLOAT", "0.3", "A measurement's least length."),
    Flag("rounds", "rounds", "INT", "1000000", "Rounds of the run for which auto chooses."),
    Flag("other-load", "other_load", "FLOAT", "0.0", "Share of a core that another process takes meanwhile."),
)
"""Fields of `bench.settings.BenchSettings`."""


@with_flags(panels={"What": BENCH})
def bench(
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only whether it works: digits, seconds; the numbers say nothing.")
    ] = False,
    to: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write every measurement.")] = None,
    track: Annotated[bool, typer.Option("--track/--no-track", help="Keep it as an MLflow run.")] = True,
    data_dir: DataDir = None,
    tracking_uri: TrackingUri = None,
    plugin: Plugins = [],  # noqa: B006  (Typer copies it)
    **flags: str | None,
) -> None:
    """Measure training, evaluation, rounds and memory beside a plain PyTorch loop, side by side in one run.

    About ten minutes on two cores with the defaults; --model and --measure do a part of it. The same command runs on a
    GPU. With the extra 'peers' a jitted JAX loop runs along.
    """
    from pfl_ops.bench.settings import settings_of as checked
    from pfl_ops.files import write_named
    from pfl_ops.tracking.home import check_places

    if track:
        check_places(tracking_uri)
    check_output("--json", to)
    check_data_dir(data_dir)
    load_plugins(plugin)
    settings = checked(settings_of(BENCH, flags), quick=quick, prefix="--")

    from pfl_ops.bench.session import bench as run  # heavy; mistakes are told before
    from pfl_ops.bench.table import render

    report = run(settings, data_dir=data_dir, say=lambda line: say(err(), line))
    if not report.cases:
        raise PflOpsError("nothing was measured: no network and batch size could be")
    out().print(render(report), highlight=False)
    failed: PflOpsError | None = None
    if to:
        try:
            say(out(), f"numbers  {write_named(to, json.dumps(report.to_dict(), indent=1))}")
        except PflOpsError as error:  # minutes of measurement: they are still tracked
            failed = error
    if track:
        from pfl_ops.bench.record import EXPERIMENT, record

        run_id = record(report, tracking_uri=tracking_uri)
        say(out(), f"run      {run_id or 'not sent yet'}  (experiment {EXPERIMENT})")
    if failed:
        raise failed
