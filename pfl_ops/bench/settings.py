"""The settings of a benchmark. Importing this imports no torch."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, field_validator

from pfl_ops.data.datasets import check_dataset
from pfl_ops.errors import unknown
from pfl_ops.federation.settings import MOST_THREADS, Device, Precision
from pfl_ops.models import MODELS
from pfl_ops.section import MOST_COUNT, Section

Figure: TypeAlias = Literal["train", "evaluate", "round"]

QUICK: dict[str, Any] = {
    "dataset": "digits",
    "model": ("linear", "cnn_tiny"),
    "batch": (20,),
    "clients": 8,
    "repeats": 2,
    "seconds": 0.02,
    "precision": ("float32",),
    "chunk": (4,),
    "workers": (1,),
    "evaluate_models": 8,
    "evaluate_images": 200,
    "rounds": 20,
}
"""`--quick`: whether it works at all, in seconds, without data to download. Its numbers say nothing."""


class BenchSettings(Section):
    """The cases to measure. Lists may be given as text with commas; `none` is the empty list."""

    model: tuple[str, ...] = Field(
        ("linear", "mlp", "cnn", "cnn6", "cnn_cifar"), min_length=1, description="networks, one after the other"
    )
    dataset: str | None = Field(None, description="data set; none: mnist, and cifar10 for cnn_cifar")
    batch: tuple[Annotated[int, Field(ge=1, le=MOST_COUNT)], ...] = Field(
        (50,), min_length=1, title="B", description="samples a step"
    )
    optimiser: Literal["sgd", "adam"] = Field("sgd", description="local optimiser")
    clients: int = Field(20, ge=1, le=MOST_COUNT, description="clients in a round, equal shares of the training data")
    steps: int | None = Field(
        None, ge=1, le=MOST_COUNT, title="J", description="local steps; none: an epoch, fewer of heavy networks"
    )
    precision: tuple[Precision, ...] | None = Field(
        None, description="ours; none: float32, bfloat16, and tf32 where there is a GPU. The plain loop is float32"
    )
    chunk: tuple[Annotated[int, Field(ge=2, le=MOST_COUNT)], ...] = Field(
        (5, 10, 20), description="clients stacked at once"
    )
    workers: tuple[Annotated[int, Field(ge=1, le=MOST_THREADS)], ...] | None = Field(
        None, description="processes that share a cohort (CPU); none: 1, and one a core"
    )
    device: Device = Field("auto", description="auto: CUDA if there is one")
    threads: int | None = Field(
        None, ge=1, le=MOST_THREADS, description="CPU threads of every candidate; none: each its own default"
    )
    measure: tuple[Figure, ...] = Field(("train", "evaluate", "round"), min_length=1, description="which figures")
    evaluate_models: int = Field(20, ge=1, le=MOST_COUNT, description="local models that are evaluated")
    evaluate_images: int = Field(
        500, ge=1, le=MOST_COUNT, description="pooled test images, all of which each model is shown"
    )
    repeats: int = Field(
        5, ge=1, le=MOST_COUNT, title="n", description="measurements of each figure, candidates in turns"
    )
    seconds: float = Field(0.3, gt=0, le=3600, description="a measurement's least length, s")
    rounds: int = Field(
        1_000_000, ge=1, le=MOST_COUNT, title="T", description="rounds of the run for which auto chooses"
    )
    other_load: float = Field(0.0, ge=0, le=1, description="share of one core that another process takes meanwhile")

    @field_validator("model", "batch", "precision", "chunk", "workers", "measure", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        if isinstance(value, int):
            return (value,)
        if not isinstance(value, str):
            return value
        parts = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
        if not parts:
            raise ValueError("needs a value, or several with commas; 'none' is the empty list")
        return () if parts == ("none",) else parts

    @field_validator("model")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in MODELS.names():
                raise unknown("model", name, MODELS.names(), see="pfl-ops list models")
        return names

    @field_validator("dataset")
    @classmethod
    def _there(cls, name: str | None) -> str | None:
        return name if name is None else check_dataset(name)

    def data_of(self, model: str) -> str:
        """The data set on which a network is measured."""
        return self.dataset or ("cifar10" if model == "cnn_cifar" else "mnist")


def settings_of(given: dict[str, Any], *, quick: bool = False, prefix: str = "") -> BenchSettings:
    """BenchSettings from text, as a command line has them.

    Args:
        given: field -> value. quick: start from `QUICK` instead of the defaults. prefix: before a field in messages.
    Raises:
        PflOpsError: a field that does not exist, or a value that is not allowed.
    """
    from pydantic import ValidationError

    from pfl_ops.config.paths import explain

    values = {**(QUICK if quick else {}), **given}
    for name in values:
        if name not in BenchSettings.model_fields:
            raise unknown("setting", name, BenchSettings.model_fields)
    try:
        return BenchSettings.model_validate(values)
    except ValidationError as error:
        raise explain(error, BenchSettings, values, prefix=prefix) from error
