"""The samples that a federation trains on: a data set's, or the outputs of its network's frozen part for them."""

import functools
from typing import TYPE_CHECKING

from pfl_ops.config.identity import weights_digest
from pfl_ops.data.datasets import Dataset, load
from pfl_ops.data.features import Features, key
from pfl_ops.federation.settings import Execution
from pfl_ops.models import MODELS
from pfl_ops.models.backbone import backbone

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment


def samples(experiment: "Experiment", data_dir: str | None = None, execution: Execution | None = None) -> Dataset:
    """The data set as clients hold it, its test data sealed where only validation data may be seen.

    Args:
        experiment: names data, network and split.
        data_dir: where the data lie; none: as `data.datasets.load` finds them.
        execution: on which device a frozen network runs, where its features are not known yet.
    Raises:
        PflOpsError: data or weights are missing, or the network can't take such samples.
    """
    from pfl_ops.federation.execution import choose

    dataset = load(experiment.data, data_dir=data_dir, sealed=experiment.evaluation.split == "validation")
    frozen = backbone(experiment.model, dataset.shape)
    if frozen is None:
        return dataset
    name = experiment.model.name
    code = [] if name in MODELS.builtin else [MODELS.digest(name)]  # a user's, which may be edited
    device = choose.device(execution or Execution(), "float32")  # whatever the training's: features are kept for all
    return dataset.seen_through(
        Features(
            key=key(dataset.digest, frozen.name, weights_digest(experiment.model), *code),
            width=frozen.width,
            about=f"features of {dataset.name} ({name})",
            open=functools.partial(frozen.open, device.type),
        )
    )
