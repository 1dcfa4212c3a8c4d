"""A run as MLflow has it, and the tags by which it is found."""

from dataclasses import dataclass

from pfl_ops import tag_names

PARENT = "mlflow.parentRunId"


@dataclass(frozen=True)
class RunInfo:
    """A tracked run as the store has it.

    Attributes:
        experiment: name of its MLflow experiment. experiment_id: MLflow's.
        metrics: the last value of each.
        start, end: ms since the epoch; end is None while it runs.
        artifacts: address of the folder of its artifacts.
    """

    run_id: str
    name: str
    experiment: str
    status: str
    tags: dict[str, str]
    params: dict[str, str]
    metrics: dict[str, float]
    start: int
    end: int | None
    experiment_id: str = ""
    artifacts: str = ""

    @property
    def identity(self) -> str | None:
        """The identity by which `Store.run` finds it again."""
        return self.tags.get(tag_names.IDENTITY)

    @property
    def parent(self) -> str | None:
        """Id of the run above it."""
        return self.tags.get(PARENT)
