"""The identity of an experiment, independent of its user and of where files lie: canonical JSON, and its SHA-256."""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.config.fields import Tree
from pfl_ops.config.final_samples import final_samples
from pfl_ops.data.datasets import BUILTIN, DATASETS, Dataset, load
from pfl_ops.data.partition import PARTITIONS
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.losses import LOSSES
from pfl_ops.federation.settings import STAGES
from pfl_ops.files import as_pinned, file_digest
from pfl_ops.models import MODELS, ModelSection
from pfl_ops.models.backbone import weights_file
from pfl_ops.results_version import RESULTS_VERSION, SAMPLING_VERSION

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment

CODE, VERSION = "code", "version"
"""Keys of an identity that say by what code the settings are run."""

OPERATORS = "as-given-learning"
"""The engine's rule for networks of users. Runs before have no such entry: their engine could replace a subclass of a
layer by the layer, or leave out the second use of a module, and so train another network than the given one. Those
with "as-given" gave a layer of a user its images with the channels last, which is rounded otherwise; those with
"as-given-contiguous" trained without dropout in worker processes."""

BEST_ROUND = "own-stage"
"""The engine's rule for the best round of methods that are judged at L2. Runs before have no such entry: their `best/`
keys are those of the best round at L1. A method that is judged at G has no other stage."""

PULL = "difference"
"""The engine's rule for the pull μ (w − anchor) of `Round.train` under Adam: the difference is taken first. Runs before
have no such entry: their engine added μ w and took μ anchor away, so that the pull of a weight at its anchor was a
rounding error, which Adam made into steps of up to η. Methods of users may have a pull."""
PULLED = ("ditto", "fedamp", "feddyn", "fedprox", "fedprox_ft")

HELD_OUT = "on-average"
"""The rule by which the test data, or held-out samples, are divided among clients. Before, largest remainders seldom
tested clients on their rare classes. Data with clients of their own need no such rule."""

EVEN_CLASSES = 10  # of a built-in data set, at most, for every class to be in each drawn sample


def identity(experiment: "Experiment", data_dir: str | None = None, *, data: Dataset | None = None) -> Tree:
    """All that decides the result of a run, as plain values.

    Every setting but `repetitions`; for files (a data set's, a partition's, weights) the SHA-256 of what is in them,
    never where they lie; the code of method, network and partition by `code.digest`, the engine by `RESULTS_VERSION`,
    the rules by which uneven data are cut and drawn by `SAMPLING_VERSION`, the engine's operators for networks of users
    by `OPERATORS`, its rule for the best round by `BEST_ROUND`, and that for a pull under Adam by `PULL`.
    A data set that the package knows keeps its name too: its published mean and deviation go with it. Of the input
    scaling the numbers count, where they are not the published ones; of `evaluation.final` the number that it means.

    Args:
        experiment: the experiment.
        data_dir: where the data lie; none: as `data.datasets.load` finds them.
        data: the experiment's data set; none: it is loaded.
    Raises:
        PflOpsError: a file can't be read.
    """
    tree = experiment.resolved
    del tree["repetitions"]
    if experiment.data.name not in DATASETS:
        del tree["data"]["name"]
    if data is None:
        data = load(experiment.data, data_dir=data_dir)
    tree["data"]["digest"] = data.digest
    del tree["data"]["scaling"]
    if data.scaled_by is not None:
        tree["data"]["scaling"] = {"mean": data.scaled_by.mean.tolist(), "std": data.scaled_by.std.tolist()}
    stages, final = sorted(tree["evaluation"]["stages"]), final_samples(experiment, data)
    evaluation = tree["evaluation"] | {"stages": stages, "final": final}
    tree["evaluation"] = _without(evaluation, {"stages": sorted(STAGES["all"]), "absent": "train", "final": None})
    tree["algorithm"] = _without(tree["algorithm"], experiment.algorithm.added)
    tree["partition"] = experiment.partition.identity()
    tree["model"]["weights"] = weights_digest(experiment.model)
    tree[CODE] = {
        "algorithm": ALGORITHMS.digest(experiment.algorithm.name),
        "partition": PARTITIONS.digest(experiment.partition.kind),
        "model": MODELS.digest(experiment.model.name),
    }
    if experiment.model.name not in MODELS.builtin:
        tree[CODE]["operators"] = OPERATORS
    if experiment.algorithm.own_stage == "L2":
        tree[CODE]["best"] = BEST_ROUND
    method = experiment.algorithm.name
    if experiment.training.optimiser == "adam" and (method in PULLED or method not in ALGORITHMS.builtin):
        tree[CODE]["pull"] = PULL
    if experiment.training.loss not in LOSSES.builtin:  # those are the engine's
        tree[CODE]["loss"] = LOSSES.digest(experiment.training.loss)
    if _is_divided(experiment, data):
        tree[CODE]["held_out"] = HELD_OUT
    if _is_uneven(experiment, data, scored_on_all=final is None):
        tree[CODE]["sampling"] = SAMPLING_VERSION
    return {VERSION: RESULTS_VERSION, **tree}


def _without(section: Tree, former: Mapping[str, Any]) -> Tree:
    """Return a section without the fields that have the value by which all runs of earlier versions went."""
    return {name: value for name, value in section.items() if name not in former or value != former[name]}


def _is_divided(experiment: "Experiment", data: Dataset) -> bool:
    """True unless the samples that clients are scored on are their own as published, or the end of their texts."""
    if experiment.partition.kind != "natural":
        return True
    return not data.overlap and (experiment.data.pooled or experiment.evaluation.split == "validation")


def _is_uneven(experiment: "Experiment", data: Dataset, *, scored_on_all: bool) -> bool:
    """True if `SAMPLING_VERSION` can move a number of the run.

    Not so for built-in data sets of ten classes: their classes are equally large up to a quarter, and each has its
    share in every sample that is drawn. With a hundred classes only a drawn sample can lack some.

    Args:
        experiment: names the data. data: the same, loaded.
        scored_on_all: the last round is scored on all pooled samples.
    """
    if experiment.data.name not in BUILTIN or data.overlap:
        return True
    return data.n_classes > EVEN_CLASSES and not (scored_on_all and experiment.evaluation.subset is None)


def differing_code(mine: str, theirs: str) -> str:
    """Return the parts in which two `code_line`s differ, "method and network"; "": none, or `theirs` is empty."""
    names = {"algorithm": "method", "model": "network", "sampling": "rules of sampling"}
    names |= {"operators": "engine's operators", "best": "rule for the best round", VERSION: "engine's results version"}
    names |= {"pull": "rule for a pull under Adam", "held_out": "rule for dividing test data"}
    differing = [part.partition("=")[0] for part in mine.split() if part not in theirs.split()]
    return " and ".join(names.get(part, part) for part in differing) if theirs else ""


def code_line(identity: Tree) -> str:
    """The code of an identity in a line: "algorithm=1f2e... model=... partition=... version=2"."""
    parts = {**{kind: digest[:16] for kind, digest in identity[CODE].items()}, VERSION: identity[VERSION]}
    return " ".join(f"{part}={value}" for part, value in sorted(parts.items()))


def content_line(identity: Tree) -> str:
    """The content of the files of an identity in a line, by their digests: "data=1f2e... weights=..."."""
    parts = {"data": identity["data"]["digest"], "weights": identity["model"]["weights"]}
    return " ".join(f"{part}={digest[:16]}" for part, digest in parts.items() if digest)


def canonical(identity: Tree, without: Collection[str] = ()) -> str:
    """JSON with sorted keys, no spaces and no negative zero; `without`: top keys that are left out."""
    kept = {key: _without_negative_zero(value) for key, value in identity.items() if key not in without}
    return json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _without_negative_zero(value: Any) -> Any:
    if isinstance(value, float):
        return value + 0.0  # 0.0 of -0.0, which equals it
    if isinstance(value, dict):
        return {key: _without_negative_zero(one) for key, one in value.items()}
    return [_without_negative_zero(one) for one in value] if isinstance(value, list | tuple) else value


def fingerprint(identity: Tree, without: Collection[str] = ()) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical(identity, without).encode()).hexdigest()


def check_shared(experiment: "Experiment") -> None:
    """Check that other processes know the method, partition, network and loss of an experiment.

    Raises:
        PflOpsError: a notebook, or the script that runs, defines one of them, or has set a value that it uses.
    """
    ALGORITHMS.check_shared(experiment.algorithm.name)
    PARTITIONS.check_shared(experiment.partition.kind)
    MODELS.check_shared(experiment.model.name)
    LOSSES.check_shared(experiment.training.loss)


def check_planned(name: str, digest: str, planned: str) -> None:
    """Refuse a run whose digest is not that of the beginning of the command: it would stand beside those of other data.

    Args:
        name: of the run, for the message.
    Raises:
        PflOpsError: the digests differ.
    """
    if digest != planned:
        raise PflOpsError(
            f"{name}: the data, the partition or the weights were replaced since the command began; finished runs "
            "are kept: put the former files back and repeat the command"
        )


def weights_digest(section: ModelSection) -> str | None:
    """SHA-256 of the file that a network's parameters come from, its frozen part's included; None: there is none."""
    path = weights_file(section)
    if path is None:
        return None
    try:
        return file_digest(as_pinned(path))
    except OSError as error:
        raise PflOpsError(f"model.weights: can't read {path}: {error.strerror}") from error
