"""The user's files on their way to other processes: another machine may not have them."""

from pathlib import Path
from typing import TypeAlias

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.config.experiment import Experiment
from pfl_ops.data.partition import PARTITIONS
from pfl_ops.federation.losses import LOSSES
from pfl_ops.files import file_digest, write_whole
from pfl_ops.models import MODELS
from pfl_ops.registry import load_plugin, plugin_source, plugins

Packed: TypeAlias = tuple[str, str, str]
"""A file: digest, path, source text."""


def pack() -> tuple[Packed, ...]:
    """Return the plug-in files that are loaded in this process, with their source as it was loaded."""
    return tuple((digest, str(path), plugin_source(digest).decode()) for digest, path in plugins().items())


def check_shared(experiment: Experiment) -> None:
    """Check that other processes know the method, partition, network and loss of an experiment.

    Raises:
        PflOpsError: a notebook, or the script that runs, defines one of them.
    """
    ALGORITHMS.check_shared(experiment.algorithm.name)
    PARTITIONS.check_shared(experiment.partition.kind)
    MODELS.check_shared(experiment.model.name)
    LOSSES.check_shared(experiment.training.loss)


def load(packed: tuple[Packed, ...]) -> None:
    """Load what `pack` packed: from the same file if it is here and unchanged, else from the text.

    The text is kept in the cache folder, under its digest: a process that is killed leaves no further copy.
    """
    from pfl_ops.data.store import cache_folder

    for digest, name, source in packed:
        if digest in plugins():
            continue
        path = Path(name)
        if not _has(path, digest):
            path = cache_folder() / "plugins" / digest / path.name
            if not _has(path, digest):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, source)
        load_plugin(path)


def _has(path: Path, digest: str) -> bool:
    return path.is_file() and file_digest(path) == digest
