"""Values that a method notes of its clients in a round: for curves alone, never read back."""

import re

import numpy as np
import torch
from torch import Tensor

from pfl_ops import metrics
from pfl_ops.federation.misuse import MisuseError, kind

NAME = re.compile(r"[a-z][a-z0-9_]*")


class Notes:
    """The notes of one round.

    A note is a copy and a round ends with it: a method that notes computes what it would have computed without.

    Args:
        clients: C, of the round's cohort.
    """

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._values: dict[str, Tensor] = {}

    def add(self, name: str, values: Tensor) -> None:
        """Take a copy of one value a client.

        Raises:
            MisuseError: the name can't be part of a tracked key or was noted already, or the values are not [C].

        >>> notes = Notes(clients=2)
        >>> notes.add("gamma", torch.tensor([0.25, 0.75]))
        >>> notes.add("drift", torch.zeros(3))
        Traceback (most recent call last):
        pfl_ops.federation.misuse.MisuseError: a note has one value a client, [2]; 'drift' is a float32 tensor [3]
        """
        if not NAME.fullmatch(name):
            raise MisuseError(f"a note's name is small letters, digits and underscores, got '{name}'")
        if name in self._values:
            raise MisuseError(f"'{name}' was noted already in this round")
        if not isinstance(values, Tensor) or values.shape != (self._clients,):
            raise MisuseError(f"a note has one value a client, [{self._clients}]; '{name}' is {kind(values)}")
        self._values[name] = values.detach().clone()

    def values(self) -> dict[str, Tensor]:
        """Return name -> copy of its values, [C].

        >>> notes = Notes(clients=2)
        >>> notes.add("gamma", torch.tensor([0.25, 0.75]))
        >>> {name: value.tolist() for name, value in notes.values().items()}
        {'gamma': [0.25, 0.75]}
        """
        return {name: value.clone() for name, value in self._values.items()}

    def keys(self, stragglers: np.ndarray | None = None) -> dict[str, float]:
        """Return their tracked keys; `stragglers`: True for each straggler of the cohort, bool [C].

        >>> notes = Notes(clients=2)
        >>> notes.add("gamma", torch.tensor([0.25, 0.75]))
        >>> found = notes.keys(stragglers=np.array([False, True]))
        >>> found["method/gamma/mean"], found["method/gamma/stragglers/mean"]
        (0.5, 0.75)
        """
        found: dict[str, float] = {}
        for name, value in self._values.items():
            found |= metrics.noted(name, value.to("cpu", torch.float64).numpy(), stragglers)
        return found
