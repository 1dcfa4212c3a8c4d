"""A plug-in method whose hyper-parameters say how its fake trials go."""

from typing import Literal

from pfl_ops.algorithms.base import Algorithm, Field, Round, Stages, State, Task, Update, register


@register("toy")
class Toy(Algorithm):
    """Nothing is trained: `tuning_fake.records` makes its curves from x."""

    x: float = Field(0.5, ge=0, le=1)
    kind: Literal["plain", "bent"] = "plain"
    bend: float | None = Field(None, ge=0, le=1)
    behaviour: Literal["ok", "raise", "nan", "die", "silent", "meet"] = "ok"
    pause: float = Field(0.0, ge=0)

    def init(self, task: Task) -> State:
        return {"central": task.initial}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        return {}, {}
