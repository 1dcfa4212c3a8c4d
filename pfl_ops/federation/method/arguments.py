"""Arguments of the verbs of a round: those are refused that would be computed with, and give a wrong number."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from torch import Tensor

from pfl_ops.federation.method.contract import ClientRows, Share
from pfl_ops.federation.method.walk import Length
from pfl_ops.federation.misuse import MisuseError, captured, kind, name_of
from pfl_ops.federation.network.optim import Rule

ROUNDING = 1e-9  # of the ends of a share


def length_of(
    epochs: int | None, steps: int | None, batch: int | None, share: Share | None, stream: str = "", batches: int = 1
) -> Length:
    """Return the length of a walk.

    Raises:
        MisuseError: both epochs and steps, a number that is none, or as for `check_share`.
    """
    if epochs is not None and steps is not None:
        raise MisuseError("give epochs or steps, one of them")
    check_share(share)
    numbers: list[tuple[str, object, int]] = [("epochs", epochs, 0), ("steps", steps, 0), ("batch", batch, 1)]
    for name, value, least in numbers:
        if value is not None and (not isinstance(value, int | np.integer) or value < least):
            raise MisuseError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return Length(epochs, steps, batch, share, stream, batches)


def changed(
    rule: Rule,
    optimiser: Literal["sgd", "adam"] | None,
    *,
    lr: float | None,
    momentum: float | None,
    weight_decay: float | None,
) -> Rule:
    """Return a rule with other values, those that are given; another optimiser begins without momentum.

    Raises:
        MisuseError: there is no such optimiser, or a value that it does not take.
    """
    if optimiser not in (None, "sgd", "adam"):
        raise MisuseError(f"optimiser must be 'sgd' or 'adam', got {optimiser!r}")
    if optimiser is not None and optimiser != rule.kind:
        rule = replace(rule, kind=optimiser, momentum=0.0)
    if lr is not None:
        check_rate("lr", lr)
    if momentum and rule.kind == "adam":
        raise MisuseError(f"momentum belongs to optimiser sgd, not adam; got momentum={momentum}")
    if momentum is not None and not 0 <= momentum < 1:
        raise MisuseError(f"momentum must be a number in [0, 1), got {momentum}")
    if weight_decay is not None and not weight_decay >= 0:
        raise MisuseError(f"weight_decay must be 0 or more, got {weight_decay}")
    given: dict[str, Any] = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
    return replace(rule, **{name: value for name, value in given.items() if value is not None})


def check_rows(what: str, value: object, n: int, *, or_one: bool = False, width: int | None = None) -> None:
    """Refuse what has no row for each client of a cohort: rows of all N clients would go to the wrong ones.

    Args:
        what: the argument, in the message. n: clients in the cohort. or_one: one row [Q] for all is right, too.
        width: Q; None: any.
    """
    if not isinstance(value, Tensor) or value.dim() == 0 or (len(value) != n and not (or_one and value.dim() == 1)):
        more = isinstance(value, Tensor) and value.dim() > 0 and len(value) > n
        hint = "; take s[...][r.cohort]" if isinstance(value, ClientRows) or more else ""
        raise MisuseError(
            f"{what} needs one row for each client{' or one row [Q] for all' * or_one}: {n} clients, "
            f"got {kind(value)}{hint}"
        )
    if width is not None and value.shape[-1] != width:
        raise MisuseError(f"{what} needs rows as long as those of start, {width}; got {kind(value)}")


def check_context(ctx: Mapping[str, Tensor] | None, n: int) -> None:
    """Refuse rows for a loss that are not one for each of n clients."""
    for name, value in (ctx or {}).items():
        check_rows(f"ctx {name!r}", value, n)


def check_pull(pull: object, n: int, width: int) -> None:
    """Refuse what is no (μ, anchor) for n clients and rows of `width` numbers."""
    if not isinstance(pull, tuple) or len(pull) != 2:
        raise MisuseError(f"pull needs a pair (μ, anchor), got {kind(pull)}")
    mu, anchor = pull
    if not isinstance(mu, int | float | np.number) and not (isinstance(mu, Tensor) and mu.shape == (n,)):
        raise MisuseError(f"μ of pull needs a number, or one for each client: {n} clients, got {kind(mu)}")
    check_rows("the anchor of pull", anchor, n, or_one=True, width=width)


def check_share(share: object) -> None:
    """Refuse a share that is none, or is not within 0 and 1: percents would be all of the data."""
    if share is None:
        return
    if not isinstance(share, Share):
        raise MisuseError(f"share needs Share(low, high), got {kind(share)}")
    if not -ROUNDING <= share.low <= share.high <= 1 + ROUNDING:
        raise MisuseError(f"share needs fractions 0 <= low <= high <= 1, got Share({share.low}, {share.high})")


def check_rate(name: str, value: object) -> None:
    """Refuse an η that climbs the loss. One that is not finite is left: the run ends as diverged, as its loss does."""
    number = _number(value)
    if number is None or number < 0:
        raise MisuseError(f"{name} needs one number, 0 or more; got {kind(value) if number is None else number}")


def scalars(name: str, value: object) -> float:
    """Return a number of scalars that a client sends or receives.

    Raises:
        MisuseError: it is none, or negative.
    """
    number = _number(value)
    if number is None or not 0 <= number < math.inf:
        got = kind(value) if number is None else number
        raise MisuseError(f"sent({name}=...) needs one number of scalars a client, 0 or more; got {got}")
    return number


def check_free_of(type_: type, function: Callable[..., Any]) -> None:
    """Refuse a function that uses the round: it may run in another process, for other clients than the round's.

    Args:
        type_: the round's.
    """
    if any(isinstance(thing, type_) for thing in captured(function)):
        raise MisuseError(
            f"{name_of(function)}() must not use the round (r): pass rows through `carry` or `ctx`, and bind what all "
            "clients share to a name before (lr = r.lr)",
            function,
        )


def _number(value: object) -> float | None:
    """A number, or a tensor's only one; None: it is something else."""
    number = value.item() if isinstance(value, Tensor) and value.dim() == 0 else value
    if isinstance(number, int | float):
        return number
    return float(number) if isinstance(number, np.number) else None
