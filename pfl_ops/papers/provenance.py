"""Origin of each setting's value at scale full, and departures of a suite from its paper.

A value is stated in the paper, run otherwise than stated, or an assumption.

A suite lists `Source`s. Of those that cover a setting of a cell, the last one counts:

    *stated("Sec. IV-C", {"training.rounds": 100, "training.batch_size": 50}),
    *assumed("not stated: 0", "training.momentum", "training.weight_decay"),
    departed("training.lr_decay", "1e-3", "Sec. 4.1", "1e-3 can be no factor on the rate of a round: none"),

A statement names its value. It covers a setting only while the suite runs that value, so that a suite cannot change a
value and keep the statement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

from pfl_ops.config.experiment import Experiment

SourceKind: TypeAlias = Literal["stated", "departure", "assumption", "no effect"]


@dataclass(frozen=True)
class Source:
    """Origin of one setting's value at scale full.

    Attributes:
        path: of the setting; * stands for any text ("algorithm.*").
        kind: "stated": the paper states this value. "departure": it states another one than is run. "assumption": it
            states none. "no effect": the value changes no result of the cell.
        values: those that the paper states, of kind "stated".
        said: the paper's value in words, of kind "departure".
        place: section, table or caption of the paper.
        reason: for the value that is run; of kind "stated" a remark, "" where there is none.
        when: {path: value} of the full experiments that it is about, a list for several values; empty: all.
    """

    path: str
    kind: SourceKind
    values: Sequence[Any] = ()
    said: str = ""
    place: str = ""
    reason: str = ""
    when: Mapping[str, Any] = field(default_factory=dict)

    def covers(self, path: str, settings: Mapping[str, Any]) -> bool:
        """True if it is about the setting at `path` of an experiment with these settings."""
        if path != self.path and not ("*" in self.path and fnmatchcase(path, self.path)):
            return False
        if any(settings.get(key) not in _listed(value) for key, value in self.when.items()):
            return False
        return self.kind != "stated" or settings[path] in self.values

    @property
    def text(self) -> str:
        """Place and reason in a line: "Sec. IV-C; after each round: the period is not stated"."""
        return "; ".join(filter(None, (self.place, self.reason)))


Sources: TypeAlias = tuple[Source, ...]


@dataclass(frozen=True)
class Departure:
    """A difference between a paper and its suite that no source of a single setting tells.

    Attributes:
        text: the paper's way and ours, in a sentence.
        effect: on results, with figures where they are known; "": not measured.
        of_choice: it says how settings that the paper does not state were chosen; a file of choices replaces it.
        scale: the one that it is about; "": all, or of those `of_choice` all without one of their own.
    """

    text: str
    effect: str = ""
    of_choice: bool = False
    scale: str = ""


STANDARD_SCALING = Departure(
    "How inputs are scaled is not stated: here by mean and deviation of the training data.",
    "not measured for plain SGD",
)


def stated(
    place: str, values: Mapping[str, Any], remark: str = "", *, when: Mapping[str, Any] | None = None
) -> Sources:
    """Return the sources of values that the paper states.

    Args:
        place: section, table or caption.
        values: {path: value}, a list for several that occur.
        remark: about the statement, where it is incomplete.
        when: {path: value} of the experiments that the statement is about.
    """
    return tuple(
        Source(path, "stated", tuple(_listed(value)), place=place, reason=remark, when=when or {})
        for path, value in values.items()
    )


def assumed(reason: str, *paths: str, when: Mapping[str, Any] | None = None) -> Sources:
    """Return the sources of values that the paper does not state.

    Args:
        reason: for the values that are run.
        paths: of the settings.
        when: {path: value} of the experiments that the assumption is about.
    """
    return tuple(Source(path, "assumption", reason=reason, when=when or {}) for path in paths)


def assumed_of(method: str, reason: str, *options: str) -> Sources:
    """Return the sources of a method's options that the paper does not state; see `assumed`."""
    return assumed(reason, *(f"algorithm.{option}" for option in options), when={"algorithm.name": method})


def departed(path: str, said: str, place: str, reason: str, *, when: Mapping[str, Any] | None = None) -> Source:
    """Return the source of a value that is run in place of the one that the paper states.

    Args:
        path: of the setting.
        said: the paper's value, in words.
        place: section, table or caption.
        reason: for running another value.
        when: {path: value} of the experiments that it is about.
    """
    return Source(path, "departure", said=said, place=place, reason=reason, when=when or {})


ENGINE: Sources = (
    *assumed(
        "rounds and samples of the curves; moves neither training nor the scores of the last round",
        "evaluation.every", "evaluation.global_every", "evaluation.subset", "evaluation.stages",
    ),
    *assumed("all test samples count in the last round: nothing else is stated", "evaluation.final"),
    *assumed("of the scores after local training: absent clients train once more before the last: not stated",
             "evaluation.absent"),
    *assumed(
        "adds quantities that are recorded beside the others; moves neither training nor any score",
        "evaluation.eps", "evaluation.targets", "evaluation.synthetic",
    ),
)  # fmt: skip
"""Settings of what is recorded. They count where a suite says nothing of its own about them."""


def sources_of(experiment: Experiment, listed: Sources) -> dict[str, Source | None]:
    """Return the source of each setting of a full experiment, by path; None: there is none.

    Args:
        experiment: of a cell, at scale full.
        listed: the suite's; of those that cover a setting, the last one counts.
    """
    settings = experiment.flat
    idle = {path: Source(path, "no effect", reason=why) for path, why in experiment.without_effect().items()}
    last_first = (*ENGINE, *listed)[::-1]
    return {
        path: idle.get(path) or next((source for source in last_first if source.covers(path, settings)), None)
        for path in settings
    }


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else (value,)
