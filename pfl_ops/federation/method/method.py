"""The three functions of a method."""

from typing import Protocol

from pfl_ops.federation.method.contract import Models, Stages, State, Task, Update
from pfl_ops.federation.method.round import Round


class Method(Protocol):
    """A federated method. `round` is pure: it never writes into the state it is given.

    What it says of a round beside its results, by `r.sent` and `r.note`, is tracked and never comes back to it.
    """

    def init(self, task: Task) -> State: ...

    def round(self, s: State, r: Round) -> tuple[Update, Stages]: ...

    def personal(self, s: State, r: Round) -> Models | None:
        """L1 for the clients in `r.cohort`, any chunk of all: the models that they keep or start to train from.

        It may train (fedas, fedala), by every verb of `r`; it never changes state, and its draws move no training.
        """
        ...

    # optional:
    #   cohort(s, task, generator) -> int64 [C], duplicates allowed
    #   extra(task) -> {name: shape}: blocks added to the layout before init
