"""`pfl-ops list`, `show`, `partition` and `ui`: commands that look, and train nothing."""

import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pfl_ops.cli.checks import check_folder, check_output, check_work_folder
from pfl_ops.cli.names import KINDS, completion, every_name, names_of
from pfl_ops.cli.options import DataDir, Plugins, Sets, TrackingUri, experiment_of, load_plugins, option, with_flags
from pfl_ops.cli.output import err, out, print_whole, say
from pfl_ops.errors import PflOpsError, count

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

Plot = Annotated[Path | None, option("Draw it: a row a client, stacked classes.", metavar="FILE.png", flag="--plot")]

MANY_CLASSES = 20  # more columns than these are not printed one by one
MANY_CLIENTS = 1_000  # nor more rows


def list_(
    kind: Annotated[str, typer.Argument(metavar="|".join(KINDS), autocompletion=completion(lambda: KINDS))],
    *,
    plugin: Plugins = [],  # noqa: B006  (Typer copies it)
) -> None:
    """List what there is."""
    from pfl_ops.cli.show import show_list

    load_plugins(plugin)
    show_list(kind)


def show(
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=completion(every_name))],
    *,
    plugin: Plugins = [],  # noqa: B006
) -> None:
    """Show one thing: source, equation, settings with symbol, default and range, search space."""
    from pfl_ops.cli.show import show_name

    load_plugins(plugin)
    show_name(name)


@with_flags("dataset", "train-size", "clients", "alpha", "seed", helps={"seed": "Seed of the division."})
def partition(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="NAME|file:PATH", autocompletion=completion(names_of("partitions")), help="How to divide."
        ),
    ],
    *,
    sets: Sets = [],  # noqa: B006
    plot: Plot = None,
    save: Annotated[Path | None, option("Write it, to use again as --partition file:FOLDER.", metavar="FOLDER")] = None,
    data_dir: DataDir = None,
    plugin: Plugins = [],  # noqa: B006
    **flags: str | None,
) -> None:
    """Divide a data set over clients, and print who holds what."""
    save = save.expanduser() if save else None
    check_plot(plot)
    check_folder("--save", save)
    # any method will do: only data, partition and seed are used
    experiment = experiment_of("local", {**flags, "partition": kind}, sets=sets, plugins=plugin, data_dir=data_dir)
    clients = experiment.clients(data_dir=data_dir)
    n = count(len(clients.table), "client")
    title = f"{experiment.partition.kind} on {experiment.data.label}, {n}, seed {clients.recorded.about['seed']}"
    show_counts(clients.table, title, plot, f"partition {clients.partition_digest}")
    say(err(), *clients.remarks)
    if save:
        from pfl_ops.data.partition_files import write_partition

        say(out(), f"saved     {write_partition(save, clients.recorded)}  (--partition file:{save})")


def check_plot(plot: Path | None) -> None:
    """Refuse a file of a picture that could not be written."""
    check_output("--plot", plot, (".png", ".svg") if plot and plot.suffix else ())


def show_counts(counts: "np.ndarray", title: str, plot: Path | None, *more: str) -> None:
    """Print the table of a partition, and write its picture if a file is named.

    Args:
        counts: samples of each client and class, int [K, L]. title: above both. more: lines below the table.
    """
    console = out()
    say(console, title)
    table = counts_table(counts)
    wide = console.options.update(max_width=1000)
    table.collapse_padding = console.measure(table, options=wide).maximum > console.width  # one space, not two
    print_whole(console, table, console.measure(table, options=wide).maximum)
    say(console, *more)
    if plot:
        from pfl_ops import figures

        say(console, f"figure    {figures.save(figures.partition(counts, title=title), plot)}")


def counts_table(counts: "np.ndarray") -> "Table":
    """Return the table of a partition: a row a client, with its samples and how many of each class.

    More than `MANY_CLASSES` are summed up: how many classes a client has, and the largest of them. Of more than
    `MANY_CLIENTS` clients the table has quantiles.

    Args:
        counts: samples of each client and class, int [K, L].
    """
    from pfl_ops.cli.terminal_tables import plain_table

    if len(counts) > MANY_CLIENTS:
        return _quantiles(counts)
    many = counts.shape[1] > MANY_CLASSES
    heads = ["classes", "largest class", "its share"] if many else [f"c{label}" for label in range(counts.shape[1])]
    table = plain_table(numbers=["client", "samples", *heads])
    rows = [(str(k), row) for k, row in enumerate(counts)]
    for name, row in [*rows, ("all", counts.sum(axis=0))]:
        n = int(row.sum())
        cells = (
            [str(int((row > 0).sum())), str(int(row.argmax())), f"{100 * row.max() / max(n, 1):.0f} %"]
            if many
            else [str(c) if c else "·" for c in row.tolist()]
        )
        table.add_row(name, str(n), *cells, style="bold" if name == "all" else None)
    return table


def _quantiles(counts: "np.ndarray") -> "Table":
    """A row for each quantile over clients, each column sorted by itself: samples, classes, largest class's share.

    Args:
        counts: samples of each client and class, int [K, L].
    """
    import numpy as np

    from pfl_ops.cli.terminal_tables import plain_table

    samples, classes = counts.sum(axis=1), (counts > 0).sum(axis=1)
    share = counts.max(axis=1) / np.maximum(samples, 1)
    table = plain_table(numbers=["clients", "samples", "classes", "largest class"])
    for at, name in ((0, "least"), (0.1, "10 %"), (0.5, "median"), (0.9, "90 %"), (1, "most")):
        n, of, largest = (np.quantile(values, at) for values in (samples, classes, share))
        table.add_row(name, f"{n:,.0f}", f"{of:.0f}", f"{100 * largest:.0f} %")
    table.add_row("all", f"{samples.sum():,}", str(int((counts.sum(axis=0) > 0).sum())), "", style="bold")
    return table


def ui(
    *,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port on 127.0.0.1.")] = 5000,
    study: Annotated[bool, option("Optuna's dashboard on the studies.", flag="--study")] = False,
    storage: Annotated[str | None, option("Of the studies; with --study.", metavar="URI|FILE.log")] = None,
    tracking_uri: TrackingUri = None,
) -> None:
    """Open MLflow's page, or Optuna's dashboard with --study, on this machine only; Ctrl-C ends it."""
    import subprocess

    if study:
        _serve_studies(port, storage)
        return
    if storage:
        raise PflOpsError("--storage is of studies: pfl-ops ui --study")
    from pfl_ops.system import child
    from pfl_ops.tracking import newest_pages, settle_runs, ui_command

    argv, env = ui_command(tracking_uri=tracking_uri, port=port)
    settle_runs(tracking_uri=tracking_uri)
    _end_like_ctrl_c()
    # A session of its own: Ctrl-C reaches us alone, and the server stops without tracebacks.
    server = subprocess.Popen(
        child.guarded(argv),
        env={"UVICORN_LOG_LEVEL": "warning", "PYTHONWARNINGS": "ignore", **env},
        start_new_session=True,
    )
    address = f"http://127.0.0.1:{port}"
    say(err(), f"{address} in some seconds; Ctrl-C ends it")
    with suppress(Exception):  # where to look first is no reason to fail
        for name, page in newest_pages(tracking_uri=tracking_uri):
            say(err(), f"  {name}: {address}{page}")
    try:
        code = server.wait()
    except KeyboardInterrupt:
        server.terminate()
        server.wait()
        code = 0
    raise typer.Exit(code)


def _end_like_ctrl_c() -> None:
    """Let SIGTERM and a closed terminal do what Ctrl-C does: no server is left behind."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)


def _serve_studies(port: int, storage: str | None) -> None:
    """Serve Optuna's dashboard until Ctrl-C, SIGTERM or a closed terminal."""
    from pfl_ops.tuning.commands.dashboard import FIRST_PAGE, HOST, dashboard

    check_work_folder(storage)
    with dashboard(storage=storage, port=port) as server:
        _end_like_ctrl_c()
        say(err(), f"http://{HOST}:{port}{FIRST_PAGE}; Ctrl-C ends it")
        with suppress(KeyboardInterrupt):
            server.serve_forever()
