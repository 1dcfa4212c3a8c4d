"""Numbers of a choice at an end of their range."""

import pytest

from pfl_ops import spaces
from pfl_ops.config.experiment import Experiment

SPACE = spaces.parse("""
training.lr: {float: [1.0e-3, 5.0e-1], log: true}
training.lr_decay: {float: [0.95, 1.0]}
training.local_epochs: {int: [1, 3]}
training.momentum: {float: [0.0, 0.0]}
participation.weighting: {choice: [samples, uniform]}
""")


@pytest.mark.parametrize(
    ("lr", "decay", "epochs", "told"),
    [
        (0.05, 0.97, 2, ()),
        (0.45, 0.97, 2, ("training.lr=0.45 in 0.001 to 0.5 (log)",)),  # ln(0.5/0.45)/ln 500 = 0.017
        (0.44, 0.97, 2, ()),  # 0.0206
        (0.001, 1.0, 3, ("training.lr=0.001 in 0.001 to 0.5 (log)", "training.local_epochs=3 in 1 to 3")),
        (0.05, 0.95, 1, ("training.lr_decay=0.95 in 0.95 to 1",)),  # fewer than one epoch, or a decay above 1, can't be
    ],
)
def test_numbers_at_an_end_that_the_field_allows_to_pass(lr, decay, epochs, told):
    """At most 2 % of the range from an end, in the logarithm where it is drawn so; a fixed number has no end."""
    point = {"training.lr": lr, "training.lr_decay": decay, "training.local_epochs": epochs, "training.momentum": 0.0}
    point["participation.weighting"] = "samples"
    assert spaces.at_ends(SPACE, Experiment.of("fedavg").override(point), point) == told
