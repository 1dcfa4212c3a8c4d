"""The sections of an experiment that the engine reads, and how it is executed."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pfl_ops.federation.losses import CROSS_ENTROPY, known
from pfl_ops.metrics import SWEEP
from pfl_ops.section import MOST_COUNT, Section

Device = Literal["auto", "cpu", "cuda"]
Way = Literal["auto", "loop", "vmap"]
Kernels = Literal["torch", "compiled"]
StatePlace = Literal["auto", "memory", "file", "device"]
Precision = Literal["float32", "tf32", "bfloat16", "float64"]

MOST_THREADS = max(64, 4 * (os.cpu_count() or 1))
"""Threads, and worker processes, that can be asked for. More than the machine has repeat the results of a larger
machine, digit for digit; tens of thousands end the process inside PyTorch."""


class Training(Section):
    """A client's training in one round. Local epochs or local steps, never both."""

    rounds: int = Field(20, ge=1, le=MOST_COUNT, title="T", description="communication rounds")
    local_epochs: int | None = Field(1, ge=1, le=10_000, title="E", description="passes over the client's data a round")
    local_steps: int | None = Field(
        None, ge=1, le=MOST_COUNT, title="J", description="minibatch steps a round, instead of epochs"
    )
    batch_size: int | None = Field(
        50, ge=1, le=MOST_COUNT, title="B", description="samples a step; none: all of the client's"
    )
    optimiser: Literal["sgd", "adam"] = Field("sgd", description="fresh in every round")
    lr: float = Field(0.05, gt=0, le=1_000_000, title="η", description="local learning rate of the first round")
    lr_decay: float = Field(1.0, gt=0, le=1, description="factor on the learning rate after each round")
    momentum: float = Field(0.0, ge=0, lt=1, description="SGD's momentum")
    weight_decay: float = Field(0.0, ge=0, description="added to the gradient as weight_decay * w")
    precision: Precision = Field("float32", description="number format of training; changes results")
    loss: Annotated[str, AfterValidator(known)] = Field(
        CROSS_ENTROPY, description="what clients minimise (pfl-ops list losses); scores are accuracies whatever it is"
    )

    @model_validator(mode="after")
    def _one_length(self) -> "Training":
        if (self.local_epochs is None) == (self.local_steps is None):
            raise ValueError("give local_epochs or local_steps, one of them")
        if self.optimiser == "adam" and self.momentum:
            raise ValueError("momentum belongs to optimiser sgd, not adam")
        return self


class _Participation(Section):
    share: float = Field(1.0, gt=0, le=1, description="share of the clients in a round, at least one client")
    weighting: Literal["samples", "uniform"] = Field(
        "samples", title="p_k", description="aggregation weight: n_k / Σ n over the cohort, or 1/C"
    )


class UniformParticipation(_Participation):
    """Every client is equally likely; drawn without replacement, anew each round."""

    kind: Literal["uniform"] = "uniform"


class DirichletParticipation(_Participation):
    """Client probabilities ~ Dir(γ), drawn once; successive draws without replacement (FedAvg2Rep, Sec. 4)."""

    kind: Literal["dirichlet"] = "dirichlet"
    gamma: float = Field(
        1.0, gt=0, le=1e100, title="γ", description="concentration; smaller: fewer clients do most rounds"
    )


class StragglerParticipation(_Participation):
    """Some clients seldom take part, always the same ones; successive draws without replacement (FedAS, Fig. 4a; how
    they are drawn is ours)."""

    kind: Literal["stragglers"] = "stragglers"
    stragglers: float = Field(0.5, gt=0, lt=1, description="share of the clients that are stragglers, drawn once")
    chance: float = Field(0.1, ge=0, le=1, description="probability of a straggler in a draw, as a share of another's")


Participation = Annotated[
    UniformParticipation | DirichletParticipation | StragglerParticipation, Field(discriminator="kind")
]


def _listed(words: Mapping[str, tuple[Any, ...]] = {}) -> BeforeValidator:
    """A list may be given as its only entry, or by a word."""

    def several(value: Any) -> Any:
        if isinstance(value, str):
            value = words.get(value, value)
        return (value,) if isinstance(value, int | float) and not isinstance(value, bool) else value

    return BeforeValidator(several)


def _each_once(order: Sequence[Any] = ()) -> AfterValidator:
    """Lists of the same entries are one setting, which has one hash: each entry once, ascending or in an order."""
    return AfterValidator(lambda given: tuple(sorted(set(given), key=order.index if order else None)))


Fraction = Annotated[float, Field(gt=0, lt=1)]


STAGES: Mapping[str, tuple[str, ...]] = {"L1": ("L1",), "L2": ("L2",), "G": ("G",), "all": ("L1", "L2", "G")}
ALL_UP_TO = 200
"""Clients that are all scored by default; of more, as many are drawn."""


class Evaluation(Section):
    """The evaluation: models, data, how often. No setting here can move training."""

    split: Literal["validation", "test"] = Field("test", description="data that scores come from; tuning: validation")
    validation_share: float = Field(0.2, gt=0, lt=1, description="share of each client's training data held out")
    every: int = Field(1, ge=1, le=MOST_COUNT, description="rounds between evaluations of the local view and of G")
    global_every: int = Field(
        5, ge=1, le=MOST_COUNT, description="rounds between evaluations of N models on pooled data"
    )
    subset: Annotated[int, Field(ge=1, le=MOST_COUNT)] | Literal["auto"] | None = Field(
        "auto", description="pooled samples, stratified, behind the curves; auto: n/60 of n for training, 100 to 1000"
    )
    stages: Annotated[
        tuple[Literal["L1", "L2", "G"], ...], _listed(STAGES), _each_once(STAGES["all"]), Field(min_length=1)
    ] = Field(
        ("L1", "L2", "G"),
        description="stages scored during the run, one, several or all; the last round has all of them",
    )
    final: Annotated[int, Field(ge=1, le=MOST_COUNT)] | Literal["auto", "all"] = Field(
        "auto", description="pooled samples behind the last round's global view; auto: a tenth of training, >= 1000"
    )
    clients: int | None = Field(
        None, ge=1, le=MOST_COUNT, description="clients scored, drawn once; none: all up to 200, else 200"
    )
    eps: Annotated[tuple[Fraction, ...], _listed(), _each_once()] = Field(
        (0.95,), title="ε", description="rho counts the clients above it; one or several"
    )
    targets: Annotated[tuple[Fraction, ...], _listed(), _each_once()] = Field(
        (), description="accuracies whose first round is printed at the end, reached/…/mean_90"
    )
    synthetic: Annotated[tuple[Annotated[int, Field(ge=0, le=100)], ...], _listed({"sweep": SWEEP}), _each_once()] = (
        Field((), title="c", description=f"percent of the others' data joined to a client's own; sweep: {list(SWEEP)}")
    )
    equal_tests: bool = Field(
        False, description="synthetic views count every client's test set alike, as if cut to one size (FedPG)"
    )
    absent: Literal["train", "last"] = Field(
        "train", description="L2 of the last round's absent clients: train once more, or the score of their last round"
    )

    @property
    def full_every(self) -> int:
        """Rounds between evaluations of every view: those with clients' own models on pooled data."""
        return math.lcm(self.every, self.global_every)

    @model_validator(mode="after")
    def _last_scores_are_known(self) -> Self:
        if self.absent == "last" and (self.every != 1 or "L2" not in self.stages):
            raise ValueError("absent=last needs every=1 and L2 in stages: it takes scores of earlier rounds")
        return self


class Execution(Section):
    """The device and the way in which the engine computes. Never part of an experiment's identity."""

    device: Device = Field("auto", description="auto: CUDA if there is one")
    way: Way = Field("auto", description="one client at a time, or stacked; auto: the fastest when timed")
    chunk: int | None = Field(None, ge=1, le=MOST_COUNT, description="clients stacked at once (vmap); none: timed")
    workers: int | None = Field(
        None, ge=1, le=MOST_THREADS, description="processes that share a cohort (CPU); none: timed"
    )
    threads: int | None = Field(
        None, ge=1, le=MOST_THREADS, description="CPU threads; none: all that this process may use"
    )
    kernels: Kernels | Literal["auto"] = Field(
        "auto", description="PyTorch's, or compiled ones (pfl-ops compile); auto: compiled where built and faster"
    )
    diverged: Literal["stop", "continue"] = Field(
        "stop", description="what a loss or parameter that is not finite does to a run, which is FAILED either way"
    )
    state: StatePlace = Field(
        "auto", description="where clients' rows are; auto: memory, unless they may outgrow it; device: the GPU's"
    )
    checkpoint_every: int = Field(1, ge=1, le=MOST_COUNT, description="rounds between checkpoints")
