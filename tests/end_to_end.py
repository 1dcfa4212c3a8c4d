"""Commands as a user starts them, a study among them, and what MLflow has of it: shared by the tests that look."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import fork_server
import mlflow
from mlflow.tracking import MlflowClient
from typer.testing import CliRunner

SMALL = ["--clients", "4", "--set", "evaluation.global_every=2", "--set", "training.local_epochs=1"]


def pfl_ops(*words: str, home: Path, env: Mapping[str, str] | None = None) -> str:
    """Run the command in a process of the fork server and a folder of its own; its standard output."""
    code = "from pfl_ops.cli import main; main()"
    done = subprocess.run(
        [*fork_server.python(), "-c", code, *words],
        cwd=home,
        env={**os.environ, "PFL_OPS_HOME": str(home / "mlruns"), **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"pfl-ops {' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def pfl_ops_here(*words: str, home: Path) -> str:
    """Run the command in this process, which has imported all that it takes; its standard output."""
    from pfl_ops.cli import app

    done = CliRunner().invoke(app, list(words), env={"PFL_OPS_HOME": str(home / "mlruns"), "MLFLOW_TRACKING_URI": None})
    assert done.exit_code == 0, f"pfl-ops {' '.join(words)}\n{done.output[-4000:]}"
    return done.stdout


class Tuned:
    """A finished study and what MLflow says of it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.words = ["tune", "fliu", "--dataset", "digits", "--trials", "3", "--rounds", "4", *SMALL]
        self.output = pfl_ops(*self.words, home=home)
        self.client = MlflowClient(f"sqlite:///{home}/mlruns/mlflow.db")
        self.runs = self.client.search_runs([e.experiment_id for e in self.client.search_experiments()])

    def of_kind(self, kind: str) -> list[mlflow.entities.Run]:
        """Return the runs whose tag `pfl_ops.kind` is `kind`, by name."""
        found = (run for run in self.runs if run.data.tags["pfl_ops.kind"] == kind)
        return sorted(found, key=lambda run: str(run.info.run_name))
