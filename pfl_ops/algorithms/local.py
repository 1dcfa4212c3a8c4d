"""local: no federation at all, the lower reference."""

from typing import ClassVar

from pfl_ops.algorithms.base import Algorithm, Models, Round, Rows, Stages, State, Task, Update, register


@register("local")
class Local(Algorithm):
    """Every client trains alone.

        θ_k ← train(θ_k)

    State: theta [N, P], the θ_k, all starting at Θ⁰.
    Stages: L1 and L2 are θ_k; G is the unweighted mean of all N local models.
    Sent: nothing.

    Source: the CLT of the FLIU paper, Tables I and II.
    Deviations: none; that its G is this mean is not said there.
    """

    ignores: ClassVar[tuple[str, ...]] = ("participation.weighting",)

    def init(self, task: Task) -> State:
        return {"theta": task.rows(task.initial)}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        theta = r.train(s["theta"][r.cohort])
        r.sent(up=0, down=0)
        return (
            {"theta": Rows(r.cohort, theta)},
            {"L2": Models(theta, r.cohort), "G": lambda _: Models(s["theta"].mean(r.cohort, theta))},
        )

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["theta"][r.cohort], r.cohort)
