"""Plug-in methods whose hyper-parameters say how their fake trials go."""

from typing import ClassVar, Literal

from pfl_ops.algorithms.base import (
    Algorithm,
    Field,
    Models,
    Round,
    StageName,
    Stages,
    State,
    Task,
    Update,
    register,
)


@register("toy")
class Toy(Algorithm):
    """Nothing is trained: `tuning_fake.records` makes its curves from x."""

    x: float = Field(0.5, ge=0, le=1)
    kind: Literal["plain", "bent"] = "plain"
    bend: float | None = Field(None, ge=0, le=1)
    behaviour: Literal["ok", "raise", "nan", "die", "die_once", "silent", "meet", "pair", "diverge"] = "ok"
    pause: float = Field(0.0, ge=0)

    def init(self, task: Task) -> State:
        return {"central": task.initial}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        return {}, {}

    def personal(self, s: State, r: Round) -> Models | None:
        return Models(s["central"])


@register("rival")
class Rival(Toy):
    """Another one, with a setting that toy lacks."""

    edge: float = Field(0.0, ge=0, le=1)


@register("late")
class Late(Toy):
    """One whose clients fine-tune a copy."""

    own_stage: ClassVar[StageName] = "L2"
