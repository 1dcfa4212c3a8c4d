"""Statistics over clients: from one value a client to the numbers that are tracked. Pure functions on NumPy arrays.

Statistics are unweighted over clients: every client counts once, however much data it has. Accuracies are fractions.
NaN stands for a client that has none: of a local view, because it holds no sample to be scored on. It is left out.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pfl_ops import rng

Split = Literal["val", "validation", "test"]

STAGES = ("L1", "L2", "G")
STATISTICS = ("mean", "std", "worst", "q10", "q50", "q90")
WORST_OF_LARGE = "worst_min10"
SAMPLES, ERROR = "samples", "se"  # of a global view that a part of the pooled samples stands for
SMALLER_IS_BETTER = frozenset({"std", "se", "loss"})
NEUTRAL = frozenset({"lr", "round", "clients", "samples"})
COST_UNITS = ("bytes", "seconds", "mib")
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


def below(values: ArrayLike, eps: float) -> int:
    """Number of clients that are not above ε: those with a value [C], less ρ_ε (FLIU, Fig. 8).

    >>> below([0.94, 0.95, 0.96, float("nan")], eps=0.95)
    2
    """
    return len(_present(values)) - rho(values, eps)


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


def error_key(metric: str) -> str:
    """Return the key of the standard error that a score's pooled samples leave; "": none of them is in the score.

    >>> error_key("val/L1/acc"), error_key("val/G/global/mean"), error_key("val/L1/local/mean")
    ('val/L1/global/se', 'val/G/global/se', '')
    """
    whole = next((end for end in ("/acc", "/global/mean") if metric.endswith(end)), "")
    return f"{metric.removesuffix(whole)}/global/{ERROR}" if whole else ""


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


def summands(key: str) -> tuple[str, ...]:
    """Return the two keys that a sum Acc(L) + Acc(G) is made of; () of any other key.

    >>> summands("val/L1/acc")
    ('val/L1/local/mean', 'val/L1/global/mean')
    """
    start, slash, _ = key.rpartition("/acc")
    return (f"{start}/local/mean", f"{start}/global/mean") if slash and key.endswith("/acc") else ()


def key(split: Split, stage: str, *rest: str, prefix: str = "") -> str:
    """Return a tracked key.

    >>> key("validation", "L1", "local", "mean"), key("test", "G", "acc", prefix="final/")
    ('val/L1/local/mean', 'final/test/G/acc')
    """
    return prefix + "/".join(["val" if split == "validation" else split, stage, *rest])


COSTS = tuple(
    f"cost/{name}"
    for name in ("up_bytes", "down_bytes", "train_seconds", "eval_seconds", "samples_per_second", "peak_mib")
)
"""Tracked costs of a round that can be compared."""


def scores(split: Split, synthetic: Sequence[float] = (), eps: Sequence[float] = (0.95,)) -> list[str]:
    """Return every tracked key of scores that a run may have, as far as names can tell: a method may lack a stage.

    Args:
        split: the data that it is scored on. synthetic: c of its synthetic views. eps: thresholds of ρ.

    >>> [key for key in scores("test") if key.startswith("test/L2/") and key.endswith(("acc", "rho_95"))]
    ['test/L2/local/rho_95', 'test/L2/acc']
    """
    found: dict[str, float] = {}
    for stage in STAGES:
        for view in ("local", "global", *map(synthetic_view, synthetic)):
            found |= tracked(stage, split, view, [0.0], eps, "", [ENOUGH])
    return list(with_acc(found))


_OF_A_STAGE = ("local/mean", "global/mean", "acc")
CURVES = (
    *(f"L1/{name}" for name in _OF_A_STAGE),
    "train/loss",
    *(f"{stage}/{name}" for stage in ("L2", "G") for name in _OF_A_STAGE),
)
"""Keys, without their split, whose course over rounds matters most; the first ones first."""


def place(key: str) -> int:
    """Return the place of a tracked key in a list for people: its index in `CURVES`, else their number.

    >>> sorted(["cost/clients", "test/G/acc", "train/loss", "test/L1/acc", "test/L1/local/mean"], key=place)
    ['test/L1/local/mean', 'test/L1/acc', 'train/loss', 'test/G/acc', 'cost/clients']
    """
    split, _, rest = key.partition("/")
    name = rest if split in ("val", "test") else key
    return CURVES.index(name) if name in CURVES else len(CURVES)


def smaller_is_better(key: str) -> bool:
    """True if a tracked key is a cost, a loss or a spread; others are better the larger they are, or `is_neutral`.

    >>> [smaller_is_better(key) for key in ("train/loss", "test/L1/local/std", "cost/up_bytes", "test/L1/local/worst")]
    [True, True, True, False]
    """
    last = key.rpartition("/")[2]
    return last in SMALLER_IS_BETTER or last.endswith(COST_UNITS)


def is_neutral(key: str) -> bool:
    """True if a tracked key is neither better large nor small: a rate, a round, a number of clients, a method's note.

    >>> [is_neutral(key) for key in ("train/lr", "best/round", "cost/clients", "method/gamma/mean", "test/L1/acc")]
    [True, True, True, True, False]
    """
    return key.rpartition("/")[2] in NEUTRAL or key.startswith("method/")


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


def by_client(correct: ArrayLike, owner: ArrayLike, n_clients: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Accuracy of each model on each client's samples, from one pass over all clients' samples.

    Args:
        correct: 1 if model i is right on sample j, [C, n] or [n] for one model; or any score a sample.
        owner: client of each sample, int [n].
        n_clients: N.
    Returns:
        accuracies [C, N] (or [N]), NaN for clients without a sample, and the clients' numbers of samples, [N].

    >>> accuracy, sizes = by_client(correct=[1, 0, 1, 1], owner=[0, 0, 1, 1], n_clients=3)
    >>> accuracy.tolist(), sizes.tolist()
    ([0.5, 1.0, nan], [2, 2, 0])
    """
    owner = np.asarray(owner)
    values = np.asarray(correct, dtype=np.float64)
    sizes = np.bincount(owner, minlength=n_clients)
    sums = np.stack([np.bincount(owner, weights=row, minlength=n_clients) for row in np.atleast_2d(values)])
    means = np.divide(sums, sizes, out=np.full_like(sums, np.nan), where=sizes > 0)
    return means.reshape(*values.shape[:-1], n_clients), sizes


def companions(client: int, n_clients: int, percent: float, seed: int) -> NDArray[np.int64]:
    """The other clients whose test sets are joined to a client's own: a random `percent` of them, sorted.

    Their number is `percent` of N - 1, rounded to the nearest, halves up (ours). A client's choice depends on (seed,
    client) and nothing else; a smaller percentage takes a part of a larger one's, so that curves over c do not jump.

    >>> [companions(0, n_clients=5, percent=percent, seed=0).tolist() for percent in (0, 25, 50, 100)]
    [[], [3], [1, 3], [1, 2, 3, 4]]
    """
    return np.sort(_in_random_order(client, n_clients, seed)[: _number_of_companions(n_clients, percent)])


def _in_random_order(client: int, n_clients: int, seed: int) -> NDArray[np.int64]:
    """The other clients, int64 [N - 1]."""
    return rng.generator(seed, "synthetic", client).permutation(np.delete(np.arange(n_clients), client))


def _number_of_companions(n_clients: int, percent: float) -> int:
    return int(np.floor(percent / 100 * (n_clients - 1) + 0.5))


KEPT_RANKS = 1 << 26
"""Numbers of 4 bytes that `Companions` keeps at most, beside one client's."""


class Companions:
    """Companions of clients (`companions`) among those with test samples; a client's order of all is drawn once.

    Args:
        n_clients: N. seed: the run's.
        tested: the clients with test samples, ascending, int64 [M].

    >>> some = Companions(5, 0, tested=np.array([1, 3]))
    >>> some.with_own(0, 25).tolist(), some.with_own(3, 100).tolist()  # positions in `tested`, its own last
    ([1], [0, 1])
    """

    def __init__(self, n_clients: int, seed: int, tested: NDArray[np.int64]) -> None:
        self.n_clients, self.seed, self.tested = n_clients, seed, tested
        self._ranks: dict[int, NDArray[np.int32]] = {}

    def with_own(self, client: int, percent: float) -> NDArray[np.int64]:
        """Positions in `tested` of the client's companions, ascending, and of itself."""
        joined = np.flatnonzero(self._rank(client) < _number_of_companions(self.n_clients, percent))
        return np.append(joined, np.flatnonzero(self.tested == client))

    def _rank(self, client: int) -> NDArray[np.int32]:
        """Place of each tested client in the client's random order, int32 [M]; N of itself."""
        if client not in self._ranks:
            ranks = np.full(self.n_clients, self.n_clients, dtype=np.int32)
            ranks[_in_random_order(client, self.n_clients, self.seed)] = np.arange(self.n_clients - 1)
            if (len(self._ranks) + 1) * len(self.tested) > KEPT_RANKS:
                self._ranks.clear()
            self._ranks[client] = ranks[self.tested]
        return self._ranks[client]


def synthetic(
    accuracy: ArrayLike, sizes: ArrayLike, percent: float, *, seed: int, clients: ArrayLike | None = None
) -> NDArray[np.float64]:
    """S-acc(c): each model on its client's own test set joined with those of a random c percent of the other clients.

    S-acc_k = Σ_{j ∈ {k} ∪ R_k} n_j acc_kj / Σ_{j ∈ {k} ∪ R_k} n_j; c = 0 is the local view, c = 100 the global one.

    Args:
        accuracy: of client k's model on client j's samples, [C, N], as `by_client` gives; [N]: one model for all.
        sizes: n_j, number of samples, [N]; `alike(sizes)` where every client's test set is to count the same.
        percent: c, 0 to 100.
        seed: the run's.
        clients: the clients of the rows, int [C]; none: all N in order.
    Returns:
        S-acc of each, [C]; NaN where the joined set is empty.

    >>> accuracy, sizes = [[1.0, 0.5], [0.0, 0.5]], [10, 30]
    >>> [synthetic(accuracy, sizes, percent, seed=0).tolist() for percent in (0, 100)]  # (10 · 1 + 30 · 0.5) / 40
    [[1.0, 0.5], [0.625, 0.375]]

    Source: FedPG's experiments.
    """
    weights = np.asarray(sizes, dtype=np.float64)
    n = len(weights)
    rows = np.arange(n) if clients is None else np.asarray(clients)
    matrix = np.broadcast_to(np.asarray(accuracy, dtype=np.float64), (len(rows), n))
    tested = np.flatnonzero(weights > 0)
    return joined(matrix[:, tested], weights[tested], percent, rows, Companions(n, seed, tested))


def joined(
    accuracy: NDArray[np.float64], sizes: ArrayLike, percent: float, clients: ArrayLike, companions: Companions
) -> NDArray[np.float64]:
    """Return the values of `synthetic` from the accuracies on clients with test samples alone, [C].

    Args:
        accuracy: of each client's model on the samples of each of `companions.tested`, [C, M].
        sizes: their numbers of samples, > 0, [M].
        percent: c, 0 to 100.
        clients: the clients of the rows, int [C].

    >>> some = Companions(5, 0, tested=np.array([1, 3]))
    >>> joined(np.array([[1.0, 0.5]]), [10, 30], 25, [0], some).tolist()  # client 3 alone
    [0.5]
    """
    weights = np.asarray(sizes, dtype=np.float64)
    scores = np.full(len(accuracy), np.nan)
    for i, k in enumerate(np.asarray(clients).tolist()):
        positions = companions.with_own(k, percent)
        if len(positions):
            scores[i] = np.average(accuracy[i, positions], weights=weights[positions])
    return scores


def alike(sizes: ArrayLike) -> NDArray[np.int64]:
    """1 for each client that has samples, [N]: S-acc then weighs test sets as FedPG's, which are cut to one size.

    It is the mean over random cuts to the smallest size, and uses all samples (ours).

    Args:
        sizes: number of samples, [N].

    >>> alike([10, 0, 30]).tolist()
    [1, 0, 1]
    """
    return (np.asarray(sizes) > 0).astype(np.int64)


def pareto(points: ArrayLike) -> NDArray[np.bool_]:
    """True for each point that no other one beats: at least as good everywhere, better somewhere; larger is better.

    Args:
        points: [n, objectives]; a row with NaN is never in the front.
    Returns:
        bool [n]; equal points are all in it, or none.

    >>> pareto([[0.9, 0.1], [0.5, 0.5], [0.4, 0.5]]).tolist()  # the second beats the third
    [True, True, False]
    """
    table = np.asarray(points, dtype=np.float64)
    front: NDArray[np.bool_] = np.logical_not(np.isnan(table).any(axis=1))
    for i in np.flatnonzero(front):
        beaten_by = (table >= table[i]).all(axis=1) & (table > table[i]).any(axis=1)
        front[i] = not beaten_by.any()
    return front


def _present(values: ArrayLike) -> NDArray[np.float64]:
    flat = np.asarray(values, dtype=np.float64).reshape(-1)
    return flat[~np.isnan(flat)]


def completed(name: str, keys: Collection[str], stage: str = "L1") -> str | None:
    """Return the key that a part of it means: at the method's own stage, the mean; None: no key.

    >>> keys = ["val/G/acc", "val/L1/acc", "val/L1/local/std", "val/L1/local/mean"]
    >>> completed("acc", keys), completed("val/L1/local", keys), completed("loss", keys)
    ('val/L1/acc', 'val/L1/local/mean', None)
    """
    bare = name.removeprefix("val/")
    parts = product(("", "val/", f"val/{stage}/"), (bare, bare.casefold()), ("", "/mean"))
    return next((key for key in map("".join, parts) if key in keys), None)


def in_percent(share: float) -> str:
    """A share in names.

    >>> in_percent(0.975), in_percent(0.95)
    ('97.5', '95')
    """
    return f"{100 * share:.6g}"
