"""Options of a check of a GPU: where it runs, how long, and how large its parts are."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch


@dataclass(frozen=True)
class Sizes:
    """Sizes of the checks' parts.

    Attributes:
        networks: name -> batch size B, of the networks whose speed is measured.
        stacks: clients stacked at once. clients: that train. steps: J of each.
        models, images: local models that are scored, and pooled images that each is shown.
        window: seconds of a measurement, at least. processes: side by side.
        rounds: of the published experiment. changes: to its settings; none: the paper's size.
    """

    networks: dict[str, int] = field(default_factory=lambda: {"linear": 50, "mlp": 50, "cnn": 50, "cnn6": 50})
    stacks: tuple[int, ...] = (1, 2, 5, 10, 20, 50, 100)
    clients: int = 100
    steps: int = 4
    models: int = 20
    images: int = 5000
    window: float = 0.3
    processes: tuple[int, ...] = (1, 2, 4, 8)
    rounds: int = 5
    changes: dict[str, object] = field(default_factory=dict)


FULL = Sizes()
QUICK = Sizes(
    networks={"linear": 10, "mlp": 10, "cnn_tiny": 5},
    stacks=(1, 2),
    clients=2,
    steps=1,
    models=2,
    images=20,
    window=0.01,
    processes=(1, 2),
    rounds=2,
    changes={
        "data.train_size": 120, "partition.clients": 3, "training.local_epochs": 1, "training.batch_size": 10,
    },
)  # fmt: skip
"""To see that the checks themselves work, in some 10 s on a CPU. Its figures have no meaning."""


@dataclass(frozen=True)
class Options:
    """Options of a check of a GPU.

    Attributes:
        device: of the checks. sizes: of their parts. data_dir: folder with mnist.npz; small: a small data file.
        end: `time.monotonic()` from which on no step begins. say: takes a line on progress.
    """

    device: Literal["cpu", "cuda"]
    sizes: Sizes
    data_dir: str
    small: str
    end: float
    say: Callable[[str], None]

    @property
    def on(self) -> torch.device:
        """The device, as PyTorch names it."""
        return torch.device(self.device)

    @property
    def is_gpu(self) -> bool:
        """True if the device is a GPU."""
        return self.device == "cuda"

    @property
    def left(self) -> float:
        """Seconds until no further step begins."""
        return self.end - time.monotonic()
