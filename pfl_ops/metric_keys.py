"""The tracked keys as their readers need them: those that exist, and what a key says of its values.

`metrics` and the round loop write them.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product

from pfl_ops.metrics import ENOUGH, ERROR, STAGES, Split, synthetic_view, tracked, with_acc

FINAL_PREFIXES = ("final/", "best/", "reached/")
"""Beginnings of the keys that are computed once, when a run is over."""

TIME_COSTS = ("cost/train_seconds", "cost/eval_seconds")
TRAFFIC_COSTS = ("cost/up_bytes", "cost/down_bytes")
"""Costs of a round: training and evaluation; sent by all clients, and to all of them."""
COSTS = (*TRAFFIC_COSTS, *TIME_COSTS, "cost/samples_per_second", "cost/peak_mib")
"""Tracked costs of a round that can be compared."""
SUMMED_COSTS = (*TRAFFIC_COSTS, *TIME_COSTS)
"""Costs that are compared by their sum over all rounds."""
TOTAL_PREFIX = "total/"
"""Beginning of the keys of these sums, which a run gets once, when it is over: total/cost/up_bytes."""

TARGET_MARK, ROUND_MARK, HIGHEST = "@", "#", "best"
"""Behind a key: …@90, the first round that reaches 90; …#20, the value of round 20; …#best, the highest one."""

_OF_A_STAGE = ("local/mean", "global/mean", "acc")
CURVES = (
    *(f"L1/{name}" for name in _OF_A_STAGE),
    "train/loss",
    *(f"{stage}/{name}" for stage in ("L2", "G") for name in _OF_A_STAGE),
)
"""Keys, without their split, whose course over rounds matters most; the first ones first."""

SMALLER_IS_BETTER = frozenset({"std", "se", "loss"})
COST_UNITS = ("bytes", "seconds", "mib")
NEUTRAL = frozenset({"lr", "round", "clients", "samples"})
"""Last parts of keys: better the smaller they are, as all costs of a unit; neither better large nor small."""


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


def split_mark(key: str) -> tuple[str, str, str]:
    """Return a tracked key, the mark behind it ("": the last value is meant), and the target or the round.

    >>> split_mark("test/L1/acc@90"), split_mark("test/L1/acc#best"), split_mark("train/loss")
    (('test/L1/acc', '@', '90'), ('test/L1/acc', '#', 'best'), ('train/loss', '', ''))
    """
    mark = next((mark for mark in (TARGET_MARK, ROUND_MARK) if mark in key), "")
    name, _, number = key.partition(mark) if mark else (key, "", "")
    return name, mark, number


def completed(name: str, keys: Collection[str], stage: str = "L1") -> str | None:
    """Return the key that a part of it means: at the method's own stage, the mean; None: no key.

    >>> keys = ["val/G/acc", "val/L1/acc", "val/L1/local/std", "val/L1/local/mean"]
    >>> completed("acc", keys), completed("val/L1/local", keys), completed("loss", keys)
    ('val/L1/acc', 'val/L1/local/mean', None)
    """
    bare = name.removeprefix("val/")
    parts = product(("", "val/", f"val/{stage}/"), (bare, bare.casefold()), ("", "/mean"))
    return next((key for key in map("".join, parts) if key in keys), None)


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


def summands(key: str) -> tuple[str, ...]:
    """Return the two keys that a sum Acc(L) + Acc(G) is made of; () of any other key.

    >>> summands("val/L1/acc")
    ('val/L1/local/mean', 'val/L1/global/mean')
    """
    start, slash, _ = key.rpartition("/acc")
    return (f"{start}/local/mean", f"{start}/global/mean") if slash and key.endswith("/acc") else ()


def parts_of_below(key: str) -> tuple[str, ...]:
    """Return the two keys that a number of clients at or below ε is counted from: scored, and above ε; () of any other.

    >>> parts_of_below("test/L1/local/below_95")
    ('test/L1/local/clients', 'test/L1/local/rho_95')
    """
    start, _, last = key.rpartition("/")
    return (f"{start}/clients", f"{start}/{last.replace('below', 'rho')}") if last.startswith("below_") else ()


def error_key(metric: str) -> str:
    """Return the key of the standard error that a score's pooled samples leave; "": none of them is in the score.

    >>> error_key("val/L1/acc"), error_key("val/G/global/mean"), error_key("val/L1/local/mean")
    ('val/L1/global/se', 'val/G/global/se', '')
    """
    whole = next((end for end in ("/acc", "/global/mean") if metric.endswith(end)), "")
    return f"{metric.removesuffix(whole)}/global/{ERROR}" if whole else ""


def totals(rounds: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sums of the costs of these rounds by their tracked keys.

    >>> totals([{"cost/up_bytes": 8.0, "train/lr": 0.1}, {"cost/up_bytes": 4.0}])
    {'total/cost/up_bytes': 12.0}
    """
    each = list(rounds)
    spent = {key: [values[key] for values in each if key in values] for key in SUMMED_COSTS}
    return {f"{TOTAL_PREFIX}{key}": math.fsum(values) for key, values in spent.items() if values}


def tracked_as(key: str, stages: Mapping[str, str]) -> str:
    """Return the tracked key of a measure where stages have names of a suite's own.

    >>> tracked_as("test/P/local/mean", {"P": "L2"})
    'test/L2/local/mean'
    """
    parts = key.split("/")
    return "/".join(stages.get(part, part) if i == 1 else part for i, part in enumerate(parts))
