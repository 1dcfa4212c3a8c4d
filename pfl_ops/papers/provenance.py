"""Origin of each setting's value at scale full, and departures of a suite from its paper.

A value is stated in the paper, run otherwise than stated, or an assumption.

A suite lists `Source`s. Of those that cover a setting of a cell, the last one counts:

    *stated("Sec. IV-C", {"training.rounds": 100, "training.batch_size": 50}),
    *assumed("not stated: 0", "training.momentum", "training.weight_decay"),
    departed("training.lr_decay", "1e-3", "Sec. 4.1", "1e-3 can be no factor on the rate of a round: none"),

A statement names its value. It covers a setting only while the suite runs that value, so that a suite cannot change a
value and keep the statement.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

from pfl_ops.config.experiment import Experiment
from pfl_ops.models.backbone import has_backbone

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


def _aligns_in_epochs(settings: Mapping[str, Any]) -> bool:
    """True if FedAS aligns on receipt, with a learning rate of its own."""
    return settings["algorithm.align"] in ("receipt", "global") and settings["algorithm.align_rule"] == "epoch"


OPTIONS: Mapping[str, Mapping[str, tuple[Callable[[Mapping[str, Any]], bool], str]]] = {
    "fedas": {
        "algorithm.align_lr": (_aligns_in_epochs, "no epoch of alignment on receipt"),
        "algorithm.align_weight": (lambda s: s["algorithm.align"] == "parallel", "read with align parallel only"),
        "algorithm.channels.*": (lambda s: s["algorithm.split"] == "channels", "read with split channels only"),
    },
    "fedfomo": {"algorithm.explore_decay": (lambda s: s["algorithm.explore"] > 0, "explore is 0 from the start")},
}
"""Options that another one may switch off: method -> path -> (True if it is read, why it is not)."""


def without_effect(experiment: Experiment) -> dict[str, Source]:
    """Return the sources of the settings that change no result of an experiment, by path.

    The rules: what the method ignores (`Experiment.ignored`), and options that another one switches off (`OPTIONS`);
    the one of local epochs and local steps that is not set;
    the test share without `data.pooled`; the validation share where scores come from test data; roles and records of
    another data set than shakespeare; the scaling of text, and of the inputs of a frozen network; momentum under Adam;
    the way to draw a cohort of all clients uniformly, and the scores of absent ones, which a method with cohorts of
    its own has all the same; the weighting of test sets where no synthetic view is scored.
    """
    settings = experiment.flat
    found = {path: "the method does not read it" for path in experiment.ignored()}
    for pattern, (is_read, why) in OPTIONS.get(experiment.algorithm.name, {}).items():
        if not is_read(settings):
            found |= dict.fromkeys((path for path in settings if fnmatchcase(path, pattern)), why)
    if settings["training.local_epochs"] is None:
        found["training.local_epochs"] = "the length is given in local steps"
    else:
        found["training.local_steps"] = "the length is given in local epochs"
    if not settings["data.pooled"]:
        found["data.test_share"] = "read with data.pooled only"
    if settings["evaluation.split"] == "test":
        found["evaluation.validation_share"] = "scores come from test data"
    if settings["data.name"] == "shakespeare":
        found["data.scaling"] = "text is not scaled"
    else:
        found |= dict.fromkeys(("data.roles", "data.records"), "of data set shakespeare only")
    if has_backbone(experiment.model):
        found["data.scaling"] = "the frozen part of the network scales images itself"
    if settings["training.optimiser"] == "adam":
        found["training.momentum"] = "Adam has none"
    if settings["participation.kind"] == "uniform" and settings["participation.share"] == 1.0:
        own = hasattr(experiment.algorithm, "cohort")
        found["participation.kind"] = "the method draws its own cohorts" if own else "all clients take part"
        if not own:
            found["evaluation.absent"] = "all clients take part"
    if not settings["evaluation.synthetic"]:
        found["evaluation.equal_tests"] = "no synthetic view is scored"
    return {path: Source(path, "no effect", reason=why) for path, why in found.items() if path in settings}


def sources_of(experiment: Experiment, listed: Sources) -> dict[str, Source | None]:
    """Return the source of each setting of a full experiment, by path; None: there is none.

    Args:
        experiment: of a cell, at scale full.
        listed: the suite's; of those that cover a setting, the last one counts.
    """
    settings = experiment.flat
    idle = without_effect(experiment)
    last_first = (*ENGINE, *listed)[::-1]
    return {
        path: idle.get(path) or next((source for source in last_first if source.covers(path, settings)), None)
        for path in settings
    }


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else (value,)
