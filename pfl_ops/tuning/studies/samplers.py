"""Optuna's samplers with values of stepped ranges in decimals."""

from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.trial import FrozenTrial

from pfl_ops.spaces.space import on_step


class _InDecimals(optuna.samplers.BaseSampler):
    """Draws from a stepped range are given in decimals.

    Optuna's 0.1 + 2 · 0.1 = 0.30000000000000004 is another experiment than the 0.3 of a file or a flag, with another
    hash: its finished runs would not be read, and a study could try both. A study keeps the values that it has.
    """

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        drawn = super().sample_relative(study, trial, search_space)  # type: ignore[safe-super]  # the sampler that stands beside it has it
        return {name: _in_decimals(value, search_space[name]) for name, value in drawn.items()}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        drawn = super().sample_independent(study, trial, param_name, param_distribution)  # type: ignore[safe-super]
        return _in_decimals(drawn, param_distribution)


class DecimalTPESampler(_InDecimals, optuna.samplers.TPESampler):
    """Optuna's TPE, in decimals."""


class DecimalRandomSampler(_InDecimals, optuna.samplers.RandomSampler):
    """Random draws, in decimals.

    >>> study = optuna.create_study(sampler=DecimalRandomSampler(seed=0))
    >>> sorted({study.ask().suggest_float("a", 0.1, 0.5, step=0.1) for _ in range(40)})
    [0.1, 0.2, 0.3, 0.4, 0.5]
    """


def _in_decimals(value: Any, of: BaseDistribution) -> Any:
    return on_step(value, of.low, of.step) if isinstance(of, FloatDistribution) and of.step else value
