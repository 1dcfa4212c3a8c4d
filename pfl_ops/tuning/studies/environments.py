"""Environments: named settings of data, partition and participation in which one configuration has to do well.

A name says what it sets: `path` (a partition), `mnist` (a data set), `participation.share=0.5`, or several of these,
joined by "+": `path+participation.share=0.5`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, TypeAlias

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.config import fields, yaml_files
from pfl_ops.config.experiment import Experiment
from pfl_ops.data.datasets import DATASETS, model_for
from pfl_ops.data.partition import PARTITIONS
from pfl_ops.errors import PflOpsError, echo, unknown
from pfl_ops.metrics import STAGES
from pfl_ops.tuning.studies.objective import Objective

Aggregate: TypeAlias = Literal["mean", "worst"]
"""The value over environments: their mean, or that of the worst one."""

SECTIONS = ("data.", "partition.", "participation.")
MOST_ENVIRONMENTS = 100
JOINT = "+"
BASELINE = "fedavg"
SAME_TERMS = ("data", "partition", "model", "participation", "evaluation", "seed")


@dataclass(frozen=True)
class Environment:
    """Settings in which a configuration is scored.

    Attributes:
        name: unique in a study. changes: path -> value, over the study's experiment.
    """

    name: str
    changes: Mapping[str, Any]

    def of(self, experiment: Experiment) -> Experiment:
        """Return an experiment in this environment.

        With pooled data the partition is fixed, as in a study: else a trial would see samples that tests are scored on.
        """
        changed = experiment.override(self.changes)
        if changed.data.pooled and changed.partition.seed is None:
            changed = changed.override({"partition.seed": experiment.seed})
        return changed


def environments_of(
    base: Experiment, names: Sequence[str], vary: Mapping[str, Sequence[Any]] | None = None, hold: Collection[str] = ()
) -> tuple[Environment, ...]:
    """Return the environments of some names, each with every combination of the values that vary.

    Args:
        base: the study's experiment. names: see above; none: the base alone. vary: path -> values. hold: see `parse`.
    Raises:
        PflOpsError: a name, path or value that does not exist, or two environments that are the same.

    >>> base = Experiment.of("fedavg", dataset="digits")
    >>> [one.name for one in environments_of(base, ["path", "iid"], {"participation.share": [0.5, 1.0]})]
    ['path+participation.share=0.5', 'path+participation.share=1.0', 'iid+participation.share=0.5', ...]
    >>> environments_of(base, ["pathh"])
    Traceback (most recent call last):
    pfl_ops.errors.PflOpsError: no environment named 'pathh'. Did you mean 'path'? (pfl-ops list partitions)
    """
    for path, values in (vary or {}).items():
        if not values:
            raise PflOpsError(f"--vary {echo(path)} needs values, as in partition.alpha=0.1,0.5")
    axes = [[f"{path}={value}" for value in values] for path, values in (vary or {}).items()]
    if not names and not axes:
        return ()
    whole = [JOINT.join(parts) for parts in product(names or [""], *axes)]
    if len(whole) > MOST_ENVIRONMENTS:
        raise PflOpsError(f"at most {MOST_ENVIRONMENTS} environments, got {len(whole)}")
    found = tuple(parse(base, name.removeprefix(JOINT), hold) for name in whole)
    check_different(base, found)
    return found


def tuned_and_held_out(
    base: Experiment,
    names: Sequence[str],
    vary: Mapping[str, Sequence[Any]] | None,
    held_out: Sequence[str],
    hold: Collection[str],
) -> tuple[tuple[Environment, ...], tuple[Environment, ...]]:
    """Return the environments of a study that trials run in, and those in which its choice alone is tested.

    Args:
        names, vary: see `environments_of`. held_out: names. hold: see `parse`.
    Raises:
        PflOpsError: as for `environments_of`, `parse`, `check_different` and `check_effect`.
    """
    tuned, apart = environments_of(base, names, vary, hold), tuple(parse(base, name, hold) for name in held_out)
    check_different(base, tuned, apart)
    check_effect(base, (*tuned, *apart), hold)
    return tuned, apart


def parse(base: Experiment, name: str, hold: Collection[str] = ()) -> Environment:
    """Return the environment of a name.

    Args:
        hold: paths whose values in `base` were given by hand. They stay, where the environment has the field and does
            not set it itself: another partition would have its own default, another data set its network.
    Raises:
        PflOpsError: no such partition, data set or path, a value that is not allowed, or a path of another section.
    """
    changes: dict[str, Any] = {}
    for part in name.split(JOINT):
        for path, value in _changes(part.strip()).items():
            if path in changes:
                raise PflOpsError(f"environment '{echo(name)}' sets {path} twice")
            changes[path] = value
    data, by_hand = changes.get("data.name"), any(path.partition(".")[0] == "model" for path in hold)
    if data is not None and not by_hand and base.model.name == model_for(base.data.name):  # recommended for the data
        changes["model.name"] = model_for(str(data))
    try:
        found = Environment(name, {**changes, **_held(base, changes, hold)})
        found.of(base)
    except PflOpsError as error:
        raise PflOpsError(f"environment '{echo(name)}': {error}") from error
    return found


def parse_values(
    texts: Sequence[str], flag: str = "--vary", example: str = "partition.alpha=0.1,0.5"
) -> dict[str, list[Any]]:
    """Return {path: values} of `--vary PATH=V1,V2`.

    Args:
        texts: those that the flag was given. flag, example: for messages.
    Raises:
        PflOpsError: a text without "=" or values, or a path that is given twice.

    >>> parse_values(["partition.alpha=0.1,0.5", "participation.share=0.5"])
    {'partition.alpha': [0.1, 0.5], 'participation.share': [0.5]}
    """
    found: dict[str, list[Any]] = {}
    for text in texts:
        path, equals, values = (part.strip() for part in text.partition("="))
        parts = [value.strip() for value in values.split(",")]
        if not (equals and path and all(parts)):
            raise PflOpsError(f"{flag} needs PATH=V1,V2, as in {example}; got '{echo(text)}'")
        if path in found:
            raise PflOpsError(f"{flag} {echo(path)} is given twice; give it once, with all values")
        found[path] = [yaml_files.scalar(part) for part in parts]
    return found


def names_given(given: str | Sequence[str] | None, what: str) -> tuple[str, ...]:
    """Return names that are given as a sequence, or as text with commas between them; None: none.

    Args:
        what: the flag or argument, for messages.
    Raises:
        PflOpsError: one is empty.

    >>> names_given("path, ls", "--environments"), names_given(["iid"], "held_out"), names_given(None, "--held-out")
    (('path', 'ls'), ('iid',), ())
    """
    names = [name.strip() for name in (given.split(",") if isinstance(given, str) else given or ())]
    if not all(names):
        raise PflOpsError(f"{what} needs names with commas between them, as in path,ls; got '{echo(given)}'")
    return tuple(names)


def check_environments(
    environments: Sequence[str],
    vary: Mapping[str, Sequence[Any]] | None,
    held_out: Sequence[str],
    aggregate: str | None,
) -> None:
    """Refuse arguments that mean nothing without environments.

    Raises:
        PflOpsError: held-out environments or a rule over environments without environments to tune on; no such rule.
    """
    if aggregate not in (None, "mean", "worst"):
        raise PflOpsError(f"--aggregate must be mean or worst, got '{echo(aggregate)}'")
    if not environments and not vary and (held_out or aggregate):
        flag = "--held-out" if held_out else "--aggregate"
        raise PflOpsError(f"{flag} needs environments to tune on: --environments path,ls or --vary PATH=V1,V2")


def check_different(base: Experiment, tuned: Sequence[Environment], held_out: Sequence[Environment] = ()) -> None:
    """Refuse environments that are the same, whatever their names.

    Raises:
        PflOpsError: two tuned ones, two held-out ones, or a held-out one that is tuned on.
    """
    known: dict[str, str] = {}
    for one in (*tuned, *held_out):
        what = one.of(base).to_yaml()
        if what in known:
            if one in held_out and any(other.name == known[what] for other in tuned):
                raise PflOpsError(f"held-out environment '{one.name}' is tuned on, too (as '{known[what]}')")
            raise PflOpsError(f"environments '{known[what]}' and '{one.name}' are the same")
        known[what] = one.name


def check_tests_apart(base: Experiment, environments: Sequence[Environment]) -> None:
    """Refuse environments of one data set of which one is tested on samples that trials in another train on.

    With pooled data a test set is a share of each client's samples, so that each partition has another one.

    Args:
        environments: tuned and held-out ones.
    Raises:
        PflOpsError: there are two such environments.
    """
    first: dict[str, Environment] = {}
    for one in environments:
        other = first.setdefault(one.of(base).data.name, one)
        if not tests_apart(other.of(base).resolved, one.of(base).resolved):
            raise PflOpsError(
                f"environments '{other.name}' and '{one.name}' divide the pooled data otherwise: trials in one would "
                "train on samples that the other is tested on; leave out data.pooled, or vary participation alone"
            )


def tests_apart(one: fields.Tree, other: fields.Tree) -> bool:
    """False if test samples of one experiment are training samples of the other.

    That is where both divide one data set, each in another way, and one has its tests from the pooled data.

    Args:
        one, other: resolved experiments.
    """
    data, others = one["data"], other["data"]
    if data["name"] != others["name"] or not (data["pooled"] or others["pooled"]):
        return True
    return {**data, "scaling": None} == {**others, "scaling": None} and one["partition"] == other["partition"]


def check_effect(base: Experiment, environments: Sequence[Environment], hold: Collection[str]) -> None:
    """Refuse a value that was given by hand and that no environment has: it would change nothing.

    Args:
        environments: tuned and held-out ones; none: nothing is checked. hold: see `parse`.
    Raises:
        PflOpsError: there is such a value.
    """
    for path in hold if environments else ():
        value = base.flat.get(path) if path.startswith(SECTIONS) else None
        if value is not None and all(one.of(base).flat.get(path) != value for one in environments):
            raise PflOpsError(
                f"{path}={fields.show(value)} (a flag or --set) is in none of the environments "
                f"{', '.join(one.name for one in environments)}: leave it out, or name an environment that has it"
            )


def baseline(experiment: Experiment) -> Experiment:
    """Return FedAvg with the package's default settings, on the data, clients, network, rounds and seed of an
    experiment.

    >>> tuned = Experiment.of("fliu", dataset="digits", partition="path", rounds=3, lr=0.5)
    >>> one = baseline(tuned)
    >>> one.algorithm.name, one.partition.kind, one.training.rounds, one.training.lr, one.training.optimiser
    ('fedavg', 'path', 3, 0.05, 'sgd')
    """
    tree = experiment.resolved
    training = {"rounds": experiment.training.rounds, "loss": experiment.training.loss}
    kept = {name: tree[name] for name in SAME_TERMS}
    return Experiment.model_validate({**kept, "training": training, "algorithm": {"name": BASELINE}})


def baseline_metric(metric: str) -> str:
    """Return the key of FedAvg's own stage for a score of another stage; any other key as it is.

    >>> baseline_metric("val/L2/acc"), baseline_metric("train/loss")
    ('val/L1/acc', 'train/loss')
    """
    stage = ALGORITHMS.get(BASELINE).own_stage
    return "/".join(stage if part in STAGES else part for part in metric.split("/"))


def baseline_objective(objective: Objective) -> Objective:
    """Return an objective, at FedAvg's own stage."""
    return Objective(tuple(map(baseline_metric, objective.metrics)), objective.modes)


def _held(base: Experiment, changes: Mapping[str, Any], hold: Collection[str]) -> dict[str, Any]:
    """{path: value} of fields that are held, and that the changes alone would reset."""
    new = base.override(changes).flat
    return {
        path: value
        for path, value in base.flat.items()
        if path.startswith(SECTIONS) and path not in changes and new.get(path, value) != value
        if any(path == one or path.startswith(f"{one}.") for one in hold)
    }


def _changes(part: str) -> dict[str, Any]:
    """{path: value} of a part of a name."""
    if "=" in part:
        path, _, value = (text.strip() for text in part.partition("="))
        if not path.startswith(SECTIONS) or not value:
            raise PflOpsError(
                f"environment '{echo(part)}': it gives data.PATH, partition.PATH or participation.PATH a value, as "
                "partition.alpha=0.5 does"
            )
        return {path: yaml_files.scalar(value)}
    if part in PARTITIONS.names() or part.startswith("file:"):
        return {"partition.kind": part}
    if part in DATASETS:
        return {"data.name": part}
    raise unknown("environment", part, [*PARTITIONS.names(), *DATASETS], "pfl-ops list partitions")
