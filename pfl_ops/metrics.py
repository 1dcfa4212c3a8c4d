"""Statistics over clients: from one value a client to the numbers that are tracked. Pure functions on NumPy arrays.

Statistics are unweighted over clients: every client counts once, however much data it has. Accuracies are fractions.
NaN stands for a client that has none: of a local view, because it holds no sample to be scored on. It is left out.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Split = Literal["val", "validation", "test"]

STAGES = ("L1", "L2", "G")
STATISTICS = ("mean", "std", "worst", "q10", "q50", "q90")
WORST_OF_LARGE = "worst_min10"
SAMPLES, ERROR = "samples", "se"  # of a global view that a part of the pooled samples stands for
SWEEP = (0, 1, 10, 30, 50, 70, 100)
"""c of FedPG's curves of S-acc (third seed, Fig. 4)."""

ENOUGH = 10
"""Held-out samples: with fewer, a client's accuracy is a matter of chance, and so is the worst of all clients."""

ROUNDING = 1e-7  # 0.8 as a float32 is 0.800000012, and 4 of 5 right is not above 0.8


def summarise(values: ArrayLike) -> dict[str, float]:
    """Mean, spread and quantiles over clients.

    Args:
        values: one accuracy a client, [C]; NaN: left out.
    Returns:
        mean; std, of the clients at hand (population: divided by their number, not by one less); worst, the smallest;
        q10, q50, q90, with linear interpolation. Empty where no value is left.

    >>> summarise([0.5, 1.0, float("nan"), 0.75])
    {'mean': 0.75, 'std': 0.204..., 'worst': 0.5, 'q10': 0.55, 'q50': 0.75, 'q90': 0.95}
    """
    present = _present(values)
    if not len(present):
        return {}
    q10, q50, q90 = np.quantile(present, [0.1, 0.5, 0.9])
    found = (present.mean(), present.std(), present.min(), q10, q50, q90)
    return dict(zip(STATISTICS, map(float, found), strict=True))


def rho(values: ArrayLike, eps: float) -> int:
    """ρ_ε: the number of clients strictly above ε, of values [C]; NaN is not.

    >>> rho([0.94, 0.95, 0.96, float("nan")], eps=0.95)
    1
    """
    return int((_present(values) > eps + ROUNDING).sum())


def rounds_to(curve: Mapping[int, float], target: float) -> int | None:
    """R: the first round in which a tracked value is the target or more (FLIU, Fig. 7; DRDM).

    Args:
        curve: round -> value; NaN, or no entry: not evaluated in that round.
        target: the value to reach.
    Returns:
        the round, 0 being the start; None: never.

    >>> curve = {0: 0.1, 1: 0.7, 2: float("nan"), 3: 0.9}
    >>> rounds_to(curve, 0.7), rounds_to(curve, 0.8), rounds_to(curve, 0.95)
    (1, 3, None)
    """
    return min((t for t, value in curve.items() if value >= target - ROUNDING), default=None)


def acc_sum(local: float, pooled: float) -> float:
    """Acc = Acc(L) + Acc(G), between 0 and 2: the FLIU paper's single number for a stage.

    >>> acc_sum(local=0.75, pooled=0.5)
    1.25
    """
    return local + pooled


def tracked(
    stage: str,
    split: Split,
    view: str,
    values: ArrayLike,
    eps: float | Sequence[float] = 0.95,
    prefix: str = "",
    sizes: ArrayLike | None = None,
) -> dict[str, float]:
    """The tracked keys of one stage and view.

    Args:
        stage: L1, L2 or G.
        split: the source of the samples; "validation" is written "val".
        view: local, global, or `synthetic_view(c)`.
        values: one accuracy a client, [C], or the single one of a model that all share.
        eps: threshold of rho, or several, in the local view.
        prefix: "final/" or "best/".
        sizes: held-out samples of each client, [C]; None: not known.
    Returns:
        `val/L1/local/mean`, ... for every statistic, and in the local view `val/L1/local/rho_95` and
        `val/L1/local/clients`, the number of clients behind them, and with sizes `val/L1/local/worst_min10`, the worst
        among the clients with at least `ENOUGH` samples. Empty where no client has a value: absent, not zero.

    >>> found = tracked("L1", "validation", "local", [0.5, 1.0], sizes=[3, 12])
    >>> {key: value for key, value in found.items() if "q" not in key}
    {'val/L1/local/mean': 0.75, 'val/L1/local/std': 0.25, 'val/L1/local/worst': 0.5, 'val/L1/local/rho_95': 1.0,
     'val/L1/local/clients': 2.0, 'val/L1/local/worst_min10': 1.0}
    """
    start = key(split, stage, view, prefix=prefix)
    keys = {f"{start}/{name}": value for name, value in summarise(values).items()}
    if keys and view == "local":
        for threshold in eps if isinstance(eps, Sequence) else [eps]:
            keys[f"{start}/{rho_name(threshold)}"] = float(rho(values, threshold))
        keys[f"{start}/clients"] = float(len(_present(values)))
        if sizes is not None and len(large := _present(np.asarray(values)[np.asarray(sizes) >= ENOUGH])):
            keys[f"{start}/{WORST_OF_LARGE}"] = float(large.min())
    return keys


def standard_error(values: ArrayLike, population: int) -> float:
    """The standard error of a mean over values drawn without replacement: sqrt((1 − n/N) · s²/n).

    Classes have their shares among the drawn samples, so that the true error is rather smaller.

    Args:
        values: of n drawn samples, [n]. population: N.
    Returns:
        NaN for fewer than two values.

    >>> round(standard_error([0.0, 1.0, 1.0, 1.0], 8), 4)  # s² = 1/4; sqrt(1/2 · 1/16)
    0.1768
    """
    drawn = np.asarray(values, dtype=np.float64)
    n = len(drawn)
    return float(np.sqrt(max(1 - n / population, 0.0) * drawn.var(ddof=1) / n)) if n > 1 else float("nan")


def sampled(stage: str, split: Split, samples: int, error: float, prefix: str = "") -> dict[str, float]:
    """The tracked keys of a global view that a part of the pooled samples stands for.

    Without a prefix, that is in the curves, the number of samples is left out: it is the same in every round.

    >>> sampled("G", "test", 100, 0.02, "final/")
    {'final/test/G/global/samples': 100.0, 'final/test/G/global/se': 0.02}
    """
    start = key(split, stage, "global", prefix=prefix)
    found = {SAMPLES: float(samples)} if prefix else {}
    if not math.isnan(error):
        found[ERROR] = error
    return {f"{start}/{name}": value for name, value in found.items()}


def noted(name: str, values: ArrayLike, stragglers: ArrayLike | None = None) -> dict[str, float]:
    """The tracked keys of values that a method notes of each client in a round.

    Args:
        name: of the note. values: one a client of the cohort, [C]; NaN: left out.
        stragglers: True for each straggler, bool [C]; none: no client is known to be one.
    Returns:
        `method/<name>/mean`, std, min, q10, q50, q90 and max, and with stragglers `method/<name>/online/mean` and
        `method/<name>/stragglers/mean`. Empty where no client has a value: absent, not zero.

    >>> found = noted("gamma", [0.25, 0.5, 0.75], stragglers=[False, False, True])
    >>> found["method/gamma/mean"], found["method/gamma/max"], found["method/gamma/online/mean"]
    (0.5, 0.75, 0.375)
    """
    start, each = f"method/{name}", np.asarray(values, dtype=np.float64)
    found = summarise(each)
    if found:
        found |= {"min": found.pop("worst"), "max": float(_present(each).max())}
    keys = {f"{start}/{statistic}": value for statistic, value in found.items()}
    if stragglers is not None:
        late = np.asarray(stragglers, dtype=bool)
        for group, those in (("online", each[~late]), ("stragglers", each[late])):
            keys |= {f"{start}/{group}/mean": summarise(those)["mean"]} if len(_present(those)) else {}
    return keys


def with_acc(metrics: Mapping[str, float]) -> dict[str, float]:
    """Add `{split}/{stage}/acc` for every stage that has a mean in both views.

    >>> with_acc({"val/L1/local/mean": 0.75, "val/L1/global/mean": 0.5, "val/L2/local/mean": 0.9})["val/L1/acc"]
    1.25
    """
    found = dict(metrics)
    for name, local in metrics.items():
        start, slash, _ = name.rpartition("/local/mean")
        if slash and f"{start}/global/mean" in metrics:
            found[f"{start}/acc"] = acc_sum(local, metrics[f"{start}/global/mean"])
    return found


def key(split: Split, stage: str, *rest: str, prefix: str = "") -> str:
    """Return a tracked key.

    >>> key("validation", "L1", "local", "mean"), key("test", "G", "acc", prefix="final/")
    ('val/L1/local/mean', 'final/test/G/acc')
    """
    return prefix + "/".join(["val" if split == "validation" else split, stage, *rest])


def rho_name(eps: float) -> str:
    """The statistic's name in keys.

    >>> rho_name(0.95), rho_name(0.975)
    ('rho_95', 'rho_97.5')
    """
    return f"rho_{in_percent(eps)}"


def synthetic_view(percent: float) -> str:
    """The view's name in keys.

    >>> synthetic_view(50), synthetic_view(12.5)
    ('synthetic_50', 'synthetic_12.5')
    """
    return f"synthetic_{percent:g}"


def _present(values: ArrayLike) -> NDArray[np.float64]:
    flat = np.asarray(values, dtype=np.float64).reshape(-1)
    return flat[~np.isnan(flat)]


def in_percent(share: float) -> str:
    """A share in names.

    >>> in_percent(0.975), in_percent(0.95)
    ('97.5', '95')
    """
    return f"{100 * share:.6g}"
