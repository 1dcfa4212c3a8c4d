"""The results of a run whose rounds are over: final and best scores, a table of clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from pfl_ops import metrics
from pfl_ops.federation.scoring.evaluate import Scorer, Scores
from pfl_ops.federation.state.checkpoint import Record, Table


@dataclass(frozen=True)
class LastRoundResults:
    """The results of the last round.

    Attributes:
        scores: of the full evaluation by stage; None: not asked for. curves: those of the round's record.
        model: G, [P]; None: the method has none that all share.
    """

    scores: Mapping[str, Scores] | None
    curves: Mapping[str, Scores]
    model: Tensor | None


def best(records: Sequence[Record], split: metrics.Split, own_stage: str = "L1") -> dict[str, float]:
    """The keys of the best round: the earliest with the highest Acc of the stage at which the method is judged.

    Args:
        own_stage: that stage; a stage that was not scored is replaced by the first one that was.
    """
    for stage in sorted(metrics.STAGES, key=lambda stage: stage != own_stage):
        for name in (metrics.key(split, stage, "acc"), metrics.key(split, stage, "local", "mean")):
            scored = [r for r in records if name in r.metrics and r.round > 0]
            if scored:
                found = max(scored, key=lambda r: r.metrics[name])
                keys = {k: v for k, v in found.metrics.items() if not k.startswith(("cost/", "train/", "method/"))}
                return {"best/round": float(found.round), **{f"best/{k}": v for k, v in keys.items()}}
    return {}


KEPT_L2 = "kept_l2"
"""Key of a checkpoint's metadata: for each scored client the L2 score of the last round in which it took part."""


def kept_l2(scored: np.ndarray, meta: Mapping[str, Any]) -> np.ndarray:
    """Return the L2 scores that a checkpoint's metadata have kept, [S]; NaN: the client has not taken part yet.

    Args:
        scored: the clients that are scored, int64 [S]. Earlier checkpoints list all N clients.

    >>> kept_l2(np.array([0, 2]), {"kept_l2": [0.5, None]}), kept_l2(np.array([0, 2]), {"kept_l2": [0.5, 0.1, 0.75]})
    (array([0.5, nan]), array([0.5 , 0.75]))
    >>> kept_l2(np.array([0, 2]), {})
    array([nan, nan])
    """
    found = np.array(meta.get(KEPT_L2) or [None] * len(scored), dtype=float)
    return found if len(found) == len(scored) else found[scored]


REACHED = (("local", "mean"), ("local", "worst"), ("global", "mean"))  # views and statistics that targets are for


def reached(records: Sequence[Record], split: metrics.Split, targets: Sequence[float]) -> dict[str, float]:
    """The first round of each target, by stage and view: `reached/test/L2/local/mean_90`; no key: never reached."""
    found: dict[str, float] = {}
    for stage in metrics.STAGES:
        for view, statistic in REACHED:
            name = metrics.key(split, stage, view, statistic)
            curve = {r.round: r.metrics[name] for r in records if name in r.metrics}
            for target in targets:
                first = metrics.rounds_to(curve, target)
                if first is not None:
                    found[f"reached/{name}_{metrics.in_percent(target)}"] = float(first)
    return found


def lost(records: Sequence[Record], final: Mapping[str, float], split: metrics.Split) -> list[str]:
    """Return a line for each stage that some round had and the last one, whose scores the run ends with, had not.

    Args:
        final: keys of the full evaluation.

    >>> lost([Record(1, {"test/G/local/mean": 0.5}, 0), Record(2, {}, 0)], {}, "test")
    ['the last round had no stage G, so the final scores have none; round 1 had one']
    """
    names = {stage: metrics.key(split, stage, "local", "mean") for stage in metrics.STAGES}
    rounds = {stage: [r.round for r in records if r.round > 0 and name in r.metrics] for stage, name in names.items()}
    return [
        f"the last round had no stage {stage}, so the final scores have none; round {rounds[stage][-1]} had one"
        for stage, name in names.items()
        if rounds[stage] and f"final/{name}" not in final
    ]


def table(
    scores: Mapping[str, Scores],
    scorer: Scorer,
    trained: np.ndarray,
    more: Mapping[str, np.ndarray] | None = None,
) -> Table:
    """Column -> values, one line a client and stage: sizes and accuracies of an evaluation, NaN for none.

    Args:
        trained: training samples of each client, int64 [N].
        more: further columns, a value for each of the N clients.
    """
    clients = scorer.clients.numpy()
    nothing = np.full(len(clients), np.nan)
    lines = []
    for stage, s in scores.items():
        given = {name: values[clients] for name, values in {"n_train": trained, **(more or {})}.items()}
        lines.append(
            {"client": clients, "stage": np.full(len(clients), stage)}
            | {"n_train": given.pop("n_train"), "n_held": scorer.sizes}
            | given
            | {"local": s.local, "global": nothing if s.pooled is None else s.pooled}
            | {metrics.synthetic_view(c): s.synthetic.get(c, nothing) for c in scorer.settings.synthetic}
        )
    return {name: np.concatenate([line[name] for line in lines]) for name in (lines[0] if lines else ())}
