"""Settings that change no result of an experiment, for another setting or the method leaves them unread."""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeAlias

from pfl_ops.models.backbone import has_backbone

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment

Rule: TypeAlias = tuple[Callable[[Mapping[str, Any]], bool], str]


def _is(path: str, *values: Any) -> Callable[[Mapping[str, Any]], bool]:
    return lambda settings: settings[f"algorithm.{path}"] in values


def _aligns_in_epochs(settings: Mapping[str, Any]) -> bool:
    """True if FedAS aligns on receipt, with a learning rate of its own."""
    return settings["algorithm.align"] in ("receipt", "global") and settings["algorithm.align_rule"] == "epoch"


def _chooses(settings: Mapping[str, Any]) -> bool:
    """True if a client of FedFomo may have more candidates than it judges; None: the data have their own clients."""
    clients = settings.get("partition.clients")
    return clients is None or bool(settings["algorithm.candidates"] < clients)


FEDPG: Mapping[str, Rule] = {
    "algorithm.gamma": (_is("drift", True), "read with drift only"),
    **dict.fromkeys(
        ("algorithm.fair", "algorithm.absent", "algorithm.scale"),
        (_is("direction", "common"), "read with direction common only"),
    ),
}
OPTIONS: Mapping[str, Mapping[str, Rule]] = {
    "apfl": {"algorithm.every": (_is("adaptive", True), "read with adaptive only")},
    "cd2_pfed": {"algorithm.beta": (_is("temporal", True), "read with temporal only")},
    "drfa": {"algorithm.gamma_decay": (lambda s: s["algorithm.gamma"] > 0, "gamma is 0 from the start")},
    "fedas": {
        "algorithm.align_rule": (_is("align", "receipt", "global"), "no alignment on receipt"),
        "algorithm.align_lr": (_aligns_in_epochs, "no epoch of alignment on receipt"),
        "algorithm.align_weight": (_is("align", "parallel"), "read with align parallel only"),
        "algorithm.channels.beta": (_is("channels.temporal", True), "read with temporal only"),
        "algorithm.channels.*": (_is("split", "channels"), "read with split channels only"),
        **dict.fromkeys(
            ("algorithm.fisher", "algorithm.normalise", "algorithm.shrink"),
            (_is("synchronize", True), "read with synchronize only"),
        ),
    },
    "fedavg2rep": {"algorithm.warm_up_steps": (lambda s: s["algorithm.warm_up"] != 0, "there is no warm-up")},
    "fedfomo": {
        "algorithm.explore_decay": (lambda s: s["algorithm.explore"] > 0, "explore is 0 from the start"),
        "algorithm.explore*": (_chooses, "every model of a round is a candidate"),
    },
    "fedpg": FEDPG,
    "per_fedavg": {"algorithm.delta": (_is("variant", "hf"), "read with variant hf only")},
    "s_fedpg": FEDPG,
}
"""Options that another one may switch off: method -> path -> (True if it is read, why it is not)."""


def without_effect(experiment: "Experiment") -> dict[str, str]:
    """Return the settings that change no result of an experiment: path -> why.

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
    counted, text = settings["training.local_epochs"] is None, settings["data.name"] == "shakespeare"
    everyone = settings["participation.kind"] == "uniform" and settings["participation.share"] == 1.0
    own = hasattr(experiment.algorithm, "cohort")
    rules = [
        ("training.local_epochs", counted, "the length is given in local steps"),
        ("training.local_steps", not counted, "the length is given in local epochs"),
        ("data.test_share", not settings["data.pooled"], "read with data.pooled only"),
        ("evaluation.validation_share", settings["evaluation.split"] == "test", "scores come from test data"),
        ("data.scaling", text, "text is not scaled"),
        ("data.roles", not text, "of data set shakespeare only"),
        ("data.records", not text, "of data set shakespeare only"),
        ("data.scaling", has_backbone(experiment.model), "the frozen part of the network scales images itself"),
        ("training.momentum", settings["training.optimiser"] == "adam", "Adam has none"),
        ("participation.kind", everyone, "the method draws its own cohorts" if own else "all clients take part"),
        ("evaluation.absent", everyone and not own, "all clients take part"),
        ("evaluation.equal_tests", not settings["evaluation.synthetic"], "no synthetic view is scored"),
    ]
    found |= {path: why for path, holds, why in rules if holds}
    return {path: why for path, why in found.items() if path in settings}
