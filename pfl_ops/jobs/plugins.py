"""The user's files on their way to other processes: another machine may not have them."""

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.config.experiment import Experiment
from pfl_ops.data.partition import PARTITIONS
from pfl_ops.federation.losses import LOSSES
from pfl_ops.models import MODELS
from pfl_ops.registry import Packed, load_packed


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
    """Load what `packed_plugins` packed; sources are kept in the cache folder."""
    from pfl_ops.data.store import cache_folder

    load_packed(packed, cache_folder() / "plugins")
