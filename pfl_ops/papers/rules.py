"""Settings that a paper does not state, chosen for each method on validation data by a rule that was fixed before.

A `ChoiceRule` is data: methods, ranges, budget, objective. `tuning.commands.choosing` runs it
(`reproduce SUITE --choose FILE`) and writes a file of choices, which gives the suites' cells their settings
(`chosen.with_choices`):

    rule: drdm_mnist
    status: chosen
    how: pfl-ops reproduce drdm/table3 --choose FILE
    date: 2026-11-23
    methods:
      drdm: {training.lr: 0.031, algorithm.alpha: 0.7, algorithm.gamma: 0.002}

Of status "looked" are settings that were chosen by hand, after a look at test data. A file with `scale: medium` was
made by the experiments of that scale, which may have another network, and is for it alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias, get_args

from pfl_ops.config import yaml_files
from pfl_ops.errors import PflOpsError, count

Ranges: TypeAlias = Mapping[str, Any]
"""{path: range}, as in a file of a search space."""

Status: TypeAlias = Literal["chosen", "looked"]
ChoiceScale: TypeAlias = Literal["small", "medium", "full"]
"""Scales at which a rule is run."""


@dataclass(frozen=True)
class ChoiceRule:
    """A rule that chooses the settings of several methods: the same for all of them, fixed before the runs.

    Attributes:
        name: of the file of choices, and of the studies.
        suites: names of those whose cells take the choices.
        cells: method's label -> name of the cell of the first suite whose experiment is tuned.
        shared: ranges of settings that all methods have. own: label -> ranges of the method's own settings.
        metric: objective, a score on validation data.
        trials: of each method's search; the first one has the settings of `before`, if there are some.
        confirm, confirm_top: seeds with which the best configurations are run again, and number of these.
        seed: of the trials; the new seeds begin with seed + `SEED_OFFSET`. No suite has one of them, so that no
            partition of a trial is one of the reported runs.
        before: label -> settings that were run before there was a rule.
        remarks: what the rule leaves open, in sentences; the pages of suites with its choices have them.
    """

    name: str
    suites: tuple[str, ...]
    cells: Mapping[str, str]
    shared: Ranges
    metric: str
    trials: int
    confirm: int
    confirm_top: int
    seed: int
    own: Mapping[str, Ranges] = field(default_factory=dict)
    before: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    remarks: str = ""

    def ranges(self, label: str) -> dict[str, Any]:
        """Return the search space of a method, as a file has it."""
        first = {"first": [dict(self.before[label])]} if label in self.before else {}
        return {**self.shared, **self.own.get(label, {}), **first}

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path that the rule chooses for some method."""
        return tuple(dict.fromkeys([*self.shared, *(path for ranges in self.own.values() for path in ranges)]))

    @property
    def budget(self) -> str:
        """The budget of each method in words."""
        return (
            f"{count(self.trials, 'trial')}, then the best {self.confirm_top} again with "
            f"{count(self.confirm, 'other seed')}; "
            f"objective {self.metric}"
        )


@dataclass(frozen=True)
class Choices:
    """A file of choices.

    Attributes:
        rule: its name. status: "chosen" by the rule; "looked": by hand, after a look at test data.
        how: command that made it, or the history of the settings. date: when. budget: of each method.
        scale: of the experiments that were tuned. The choices of full are for every scale, others for their own.
        methods: label -> {path: value}. scores: label -> validation score of the choice, mean over
            the seeds of the confirmation.
    """

    rule: str
    status: Status
    how: str
    date: str
    methods: Mapping[str, Mapping[str, Any]]
    budget: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)
    scale: ChoiceScale = "full"

    def to_yaml(self) -> str:
        """Return the text of its file."""
        values: dict[str, Any] = {
            "rule": self.rule, "status": self.status, "how": self.how, "date": self.date, "budget": self.budget,
            "scale": self.scale,
            "methods": {label: dict(values) for label, values in self.methods.items()},
            "scores": dict(self.scores),
        }  # fmt: skip
        return yaml_files.dump(values)

    @classmethod
    def from_yaml(cls, text: str, source: str) -> "Choices":
        """Read a file of choices.

        Raises:
            PflOpsError: it is none; the message names `source`.
        """
        return cls.from_values(yaml_files.mapping(text, source), source)

    @classmethod
    def from_values(cls, values: Mapping[str, Any], source: str) -> "Choices":
        """Return the choices of a file that was read; errors as of `from_yaml`."""
        try:
            found = cls(**values)
        except TypeError as error:
            raise PflOpsError(f"{source} is no file of choices: {error}") from error
        if found.status not in ("chosen", "looked"):
            raise PflOpsError(f"{source}: status must be chosen or looked")
        if found.scale not in get_args(ChoiceScale):
            raise PflOpsError(f"{source}: scale must be one of {', '.join(get_args(ChoiceScale))}")
        methods: Any = found.methods
        if not isinstance(methods, dict) or not all(isinstance(values, dict) for values in methods.values()):
            raise PflOpsError(
                f"{source}: methods must have the settings of each method, as fedavg: {{training.lr: 0.1}}"
            )
        return found

    @property
    def origin(self) -> str:
        """The reason for the settings, as an assumption has it."""
        if self.status == "looked":
            return f"never mentioned; chosen by hand after a look at test data of this experiment. {self.how}"
        return f"never mentioned; chosen on validation data by rule {self.rule} ({self.how}, {self.date})"


@cache
def load_choices(name: str) -> Choices:
    """Return the choices of `choices/<name>.yaml` in this package."""
    text = files("pfl_ops").joinpath("papers", "choices", f"{name}.yaml").read_text(encoding="utf-8")
    return Choices.from_yaml(text, f"choices/{name}.yaml")
