"""The models of a stage, L1, L2 or G: asked of the method a few clients at a time, handed on to the scorer."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from pfl_ops import metrics
from pfl_ops.federation.method.checked import MethodError
from pfl_ops.federation.method.contract import Models, Stage, Stages, State
from pfl_ops.federation.method.method import Method
from pfl_ops.federation.method.round import Round
from pfl_ops.federation.misuse import MisuseError
from pfl_ops.federation.scoring.evaluate import Scorer, Scores

MODELS_AT_ONCE = 50  # models that a method is asked for at a time, at most
BYTES_AT_ONCE = 16 << 20  # and of what size, where nothing is stacked: memory that the C library keeps for the next


RoundAt: TypeAlias = Callable[..., Round]
"""`round_at(t, clients, purpose="train", kept=True)` makes round t of some clients, int64 [C], whose duplicates count
as draws; each purpose has generators of its own."""


class StageScores:
    """Scores of a round's stages.

    Args:
        method: the algorithm. scorer: what scores its models. round_at: makes rounds.
        wanted: the stages to score. during: those of them to score before the last round.
        stack: clients stacked at once; 1: none. row_bytes: size of one model.
    """

    def __init__(
        self, method: Method, scorer: Scorer, round_at: RoundAt, wanted: Collection[str], stack: int, row_bytes: int,
        during: Collection[str] = metrics.STAGES,
    ) -> None:  # fmt: skip
        self.method, self.scorer, self.round_at, self.wanted = method, scorer, round_at, frozenset(wanted)
        self.during = self.wanted & frozenset(during)
        self.at_once = max(stack, min(MODELS_AT_ONCE, BYTES_AT_ONCE // max(row_bytes, 1)), 1)

    def start(self, s: State) -> dict[str, Scores]:
        """L1 before round 1. Where clients start from the same models, as nearly always, one speaks for all.

        Two clients are compared first: of models that are trained for the start, the others are then made once.
        """
        if "L1" not in self.during:
            return {}
        everyone = self.round_at(0, self.scorer.clients, purpose="start")
        largest = everyone.n.argsort(descending=True, stable=True)[:2].cpu()
        models = self.method.personal(s, self.round_at(0, everyone.cohort[largest], purpose="start"))
        if models is None:
            return {}
        if models.clients is None:
            return {"L1": self._score([models], pooled=True)}
        one = replace(models, params=models.params[0], clients=None, ctx={k: v[0] for k, v in models.ctx.items()})
        if _is_copied(one, models) and all(_is_copied(one, some) for some in self._personal(s, 0, "start") or ()):
            return {"L1": self._score([one], pooled=True)}
        each = self._personal(s, 0, "start")
        return {} if each is None else {"L1": self._score(each, pooled=True)}

    def check_l1(self, s: State) -> None:
        """Refuse a method whose round returned no stage, unless it has L1.

        Raises:
            MethodError: nothing of it could be scored.
        """
        if self.method.personal(s, self.round_at(0, self.scorer.clients[:1], purpose="start")) is None:
            raise MethodError(
                f"method '{self._label}': round() returned no stage and personal() None, so that no model can be "
                "scored; expected Models from one of them, as {'L2': Models(theta, r.cohort), 'G': Models(central)}"
            )

    def curves(self, s: State, r: Round, stages: Stages, *, pooled: bool) -> dict[str, Scores]:
        """Scores once round `r` is committed to `s`: L2 of the cohort, L1 of all scored clients."""
        l2 = self._l2(stages, r.cohort) if "L2" in self.during else None
        return self._all(s, r, stages, l2, self.during, pooled=pooled, full=False)

    def last(self, s: State, r: Round, stages: Stages, absent: Scores | None) -> dict[str, Scores]:
        """As `curves`, on all pooled samples and with L2 of all clients; `absent`: L2 as `absent_l2` found it."""
        l2 = None if absent is not None else self._l2(stages, self.scorer.clients)
        found = self._all(s, r, stages, l2, self.wanted, pooled=True, full=True)
        if absent is not None:
            found["L2"] = absent
        return {stage: found[stage] for stage in metrics.STAGES if stage in found}

    def absent_l2(self, s: State, r: Round, stages: Stages) -> Scores | None:
        """L2 of all clients, before round `r` is committed to `s`, where that stage holds models of the cohort.

        The others repeat the round from the same state under the same keys, a cohort's size at a time; what they would
        change is dropped. A stage given as a function is asked for them instead, later: None.
        """
        stage = stages.get("L2")
        if "L2" not in self.wanted or not isinstance(stage, Models):
            return None
        everyone = self.scorer.clients
        absent = everyone[~torch.isin(everyone, r.cohort)]

        def chunks() -> Iterator[Models]:
            yield stage
            for some in absent.split(max(len(r.cohort), 1)) if len(absent) else ():
                again = self.method.round(s, self.round_at(r.t, some, kept=False))[1].get("L2")
                if isinstance(again, Models):
                    yield again

        return self._score(chunks(), pooled=True, full=True)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _score(self, models: Iterable[Models], *, pooled: bool, full: bool = False) -> Scores:
        """`Scorer.score`; a `predict` that fails is the method's fault."""
        try:
            return self.scorer.score(models, pooled=pooled, full=full)
        except MisuseError as error:
            raise MethodError(f"method '{self._label}': {error}") from error

    @property
    def _label(self) -> str:
        return str(getattr(self.method, "label", type(self.method).__name__))

    def _all(
        self, s: State, r: Round, stages: Stages, l2: Iterator[Models] | None, wanted: Collection[str], *,
        pooled: bool, full: bool,
    ) -> dict[str, Scores]:  # fmt: skip
        models: dict[str, Iterator[Models] | None] = {
            "L1": self._personal(s, r.t, "evaluate") if "L1" in wanted else None,
            "L2": l2,
            "G": iter([made(stages["G"], self.scorer.clients)]) if "G" in stages and "G" in wanted else None,
        }
        return {
            stage: self._score(each, pooled=pooled, full=full) for stage, each in models.items() if each is not None
        }

    def _personal(self, s: State, t: int, purpose: str) -> Iterator[Models] | None:
        """L1 in chunks of clients; a model that all share comes once; None: no such stage."""
        first, *rest = self.scorer.clients.split(self.at_once)
        models = self.method.personal(s, self.round_at(t, first, purpose=purpose))
        if models is None:
            return None

        def chunks() -> Iterator[Models]:
            yield models
            for some in rest if models.clients is not None else ():
                more = self.method.personal(s, self.round_at(t, some, purpose=purpose))
                if more is None or more.clients is None:
                    raise MethodError(
                        f"method '{self._label}': personal() returned a model each for some clients and "
                        f"{'None' if more is None else 'one model for all'} for others; expected "
                        "Models(rows, r.cohort) for all of them"
                    )
                yield more

        return chunks()

    def _l2(self, stages: Stages, clients: Tensor) -> Iterator[Models] | None:
        """L2 of those of `clients` who are scored."""
        stage = stages.get("L2")
        if "L2" not in self.wanted or stage is None:
            return None
        if isinstance(stage, Models):
            return iter([stage])
        scored = self.scorer.clients[torch.isin(self.scorer.clients, clients)]
        chunks = scored.split(self.at_once) if len(scored) else ()
        return (made(stage, some) for some in chunks)


def repeatable(r: Round, stages: Stages) -> Stages:
    """Stages whose functions answer the same however often they are asked: walks count on from the round's end."""
    end = r.calls()

    def again(stage: Callable[[Tensor], Models]) -> Callable[[Tensor], Models]:
        def ask(clients: Tensor) -> Models:
            r.rewind(end)
            return stage(clients)

        return ask

    return {name: stage if isinstance(stage, Models) else again(stage) for name, stage in stages.items()}


def made(stage: Stage, clients: Tensor) -> Models:
    """Return a stage's models, [C, P] or [P]; a stage that is a function is called with `clients`, int64 [C]."""
    return stage if isinstance(stage, Models) else stage(clients)


def _is_copied(one: Models, models: Models) -> bool:
    """True if a model [P] is that of each client, [C, P], with what `predict` needs."""
    if one.ctx.keys() != models.ctx.keys():
        return False
    pairs = [(one.params, models.params), *((one.ctx[name], models.ctx[name]) for name in one.ctx)]
    return all(bool((rows == row).all()) for row, rows in pairs)


def keys(
    scores: Mapping[str, Scores], split: metrics.Split, eps: Sequence[float], sizes: np.ndarray, prefix: str = ""
) -> dict[str, float]:
    """The tracked keys of these scores; `sizes`: held-out samples of each client that is scored, [S]."""
    found: dict[str, float] = {}
    for stage, s in scores.items():
        found |= metrics.tracked(stage, split, "local", s.local, eps, prefix, sizes)
        if s.pooled is not None:
            found |= metrics.tracked(stage, split, "global", s.pooled, eps, prefix)
            if s.samples and metrics.key(split, stage, "global", "mean", prefix=prefix) in found:
                found |= metrics.sampled(stage, split, s.samples, s.error, prefix)
        for c, values in s.synthetic.items():
            found |= metrics.tracked(stage, split, metrics.synthetic_view(c), values, eps, prefix)
    return metrics.with_acc(found)
