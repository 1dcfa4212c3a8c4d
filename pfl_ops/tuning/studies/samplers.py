"""Optuna's samplers with values of stepped ranges in decimals."""

from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from pfl_ops.spaces.space import on_step


class DecimalSampler(optuna.samplers.BaseSampler):
    """Another sampler, whose draws from a stepped range are given in decimals.

    Optuna's 0.1 + 2 · 0.1 = 0.30000000000000004 is another experiment than the 0.3 of a file or a flag, with another
    hash: its finished runs would not be read, and a study could try both. A study keeps the values that it has.

    Args:
        sampler: draws.

    >>> study = optuna.create_study(sampler=DecimalSampler(optuna.samplers.RandomSampler(seed=0)))
    >>> sorted({study.ask().suggest_float("a", 0.1, 0.5, step=0.1) for _ in range(40)})
    [0.1, 0.2, 0.3, 0.4, 0.5]
    """

    def __init__(self, sampler: optuna.samplers.BaseSampler) -> None:
        self.sampler = sampler

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self.sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        drawn = self.sampler.sample_relative(study, trial, search_space)
        return {name: _in_decimals(value, search_space[name]) for name, value in drawn.items()}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        drawn = self.sampler.sample_independent(study, trial, param_name, param_distribution)
        return _in_decimals(drawn, param_distribution)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self.sampler.before_trial(study, trial)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self.sampler.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        self.sampler.reseed_rng()


def _in_decimals(value: Any, of: BaseDistribution) -> Any:
    return on_step(value, of.low, of.step) if isinstance(of, FloatDistribution) and of.step else value
