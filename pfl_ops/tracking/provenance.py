"""Tags of runs: what they are, and where they came from (code, libraries, machine)."""

import getpass
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING

from pfl_ops import tag_names
from pfl_ops.system.machine import cpu_model

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment

NOT_INSTALLED = "not installed"
LIBRARIES = ("torch", "ray", "optuna", "mlflow", "pfl-ops")


@cache
def version(library: str) -> str:
    """The version installed when this process first asked, or `NOT_INSTALLED`; imports nothing."""
    try:
        return installed(library)
    except PackageNotFoundError:
        return NOT_INSTALLED


def _git(folder: Path, *arguments: str) -> str | None:
    """Return git's output in that folder; None if it fails, is absent or hangs."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def git_revision(folder: Path | None = None) -> str | None:
    """The commit in use, with "-dirty" if tracked files differ from it; None outside a checkout.

    Args:
        folder: a folder in the checkout. None: the package's own checkout if git tracks it, else the working folder's,
            where a user's plug-ins and configurations are.
    """
    if folder is None:
        package = Path(__file__).parent
        folder = package if _git(package, "ls-files", "--error-unmatch", Path(__file__).name) else Path.cwd()
    revision = _git(folder, "rev-parse", "HEAD")
    if revision is None:
        return None
    return revision + ("-dirty" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")


def described(experiment: "Experiment", kind: str) -> dict[str, str]:
    """Return the tags by which runs are grouped and filtered; the only place that names them.

    Args:
        experiment: what is run. kind: run, trial, final, cell or study.
    """
    return {
        tag_names.KIND: kind,
        tag_names.OWN_STAGE: experiment.algorithm.own_stage,
        "algorithm": experiment.algorithm.name,
        "dataset": experiment.data.label,
        "partition": experiment.partition.kind,
        "model": experiment.model.name,
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return "unknown"


def provenance(
    *, experiment: str | None = None, group: str | None = None, partition: str | None = None, device: str | None = None
) -> dict[str, str]:
    """Tags that say what a run was and where it was made.

    Args:
        experiment: the experiment's hash.
        group: its hash without the seed.
        partition: the hash of who holds which samples.
        device: what it was computed on.
    """
    revision = git_revision()
    tags = {
        tag_names.EXPERIMENT_HASH: experiment,
        tag_names.GROUP_HASH: group,
        tag_names.PARTITION_HASH: partition,
        tag_names.DEVICE: device,
        tag_names.CPU: cpu_model(),
        tag_names.GIT_REVISION: revision,
        "version.python": platform.python_version(),
        **{f"version.{library}": version(library) for library in LIBRARIES},
        "mlflow.user": _user(),
        "mlflow.source.name": "pfl-ops",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": revision.removesuffix("-dirty") if revision else None,
    }
    return {key: value for key, value in tags.items() if value is not None}
