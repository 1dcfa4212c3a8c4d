"""The command line. The only importer of Typer; commands import the heavy parts when they need them.

app      the application: errors, --debug, --version
options  flags and what they set
run, tune, tabulate, reproduce, compare, bench, compile, browse, import_data   the commands
benchmark   tune with several methods
compare_tables, reproduce_results, reproduce_watch   what these commands print
show     what `list` and `show` print
live     progress and tables
output   where it is printed
"""

from pfl_ops.cli import browse
from pfl_ops.cli.app import Command, app
from pfl_ops.cli.bench import bench
from pfl_ops.cli.compare import compare
from pfl_ops.cli.compile import compile_
from pfl_ops.cli.import_data import import_data
from pfl_ops.cli.reproduce import reproduce
from pfl_ops.cli.run import run
from pfl_ops.cli.tabulate import replay, tabulate
from pfl_ops.cli.tune import tune
from pfl_ops.system.collector import collect_rarely

app.command(cls=Command)(run)
app.command(cls=Command)(tune)
app.command(cls=Command)(reproduce)
app.command(cls=Command)(compare)
app.command(cls=Command)(bench)
app.command("compile", cls=Command)(compile_)
app.command(cls=Command)(tabulate)
app.command(cls=Command)(replay)
app.command(cls=Command)(browse.partition)
app.command("partition import", cls=Command)(import_data)
app.command("list", cls=Command)(browse.list_)
app.command(cls=Command)(browse.show)
app.command(cls=Command)(browse.ui)


def main() -> None:
    """The `pfl-ops` command."""
    collect_rarely()
    app()


__all__ = ["app", "main"]
