"""The command line. The only importer of Typer; commands import the heavy parts when they need them.

app      the application: errors, --debug, --version
options  flags and what they set
run, tune, reproduce, compare, bench, browse   the commands
benchmark   tune with several methods
show     what `list` and `show` print
live     progress and tables
output   where it is printed
"""

from pfl_ops.cli import browse
from pfl_ops.cli.app import app
from pfl_ops.cli.bench import bench
from pfl_ops.cli.compare import compare
from pfl_ops.cli.reproduce import reproduce
from pfl_ops.cli.run import run
from pfl_ops.cli.tune import tune

app.command()(run)
app.command()(tune)
app.command()(reproduce)
app.command()(compare)
app.command()(bench)
app.command()(browse.partition)
app.command("list")(browse.list_)
app.command()(browse.show)
app.command()(browse.ui)


def main() -> None:
    """The `pfl-ops` command."""
    app()


__all__ = ["app", "main"]
