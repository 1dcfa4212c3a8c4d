"""An experiment and its clients as a notebook shows them, and the settings of an experiment in words."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl_ops.data.datasets import here
from pfl_ops.display import cards
from pfl_ops.display.tables import TableRows
from pfl_ops.errors import count
from pfl_ops.units import exact

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment
    from pfl_ops.data.clients import Clients


TITLED = {
    *("algorithm.name", "data.name", "data.train_size", "partition.kind", "partition.clients", "model.name"),
    *("training.rounds", "evaluation.split"),
}
"""Paths that the texts of `shared` begin with; trials and tests have another split."""


def shared(experiment: "Experiment", apart: Collection[str] = ()) -> dict[str, str]:
    """Return the settings that a page lists as shared, without those of the paths `apart`: term and text."""
    n, most = experiment.partition.clients, experiment.data.train_size
    samples = "all training samples" if most is None else f"at most {most:,} training samples"
    terms = {
        ("method", "algorithm"): experiment.algorithm.name,
        ("data", "data"): f"{experiment.data.label}, {samples}",
        ("partition", "partition"): f"{experiment.partition.kind}, "
        f"{'clients as given' if n is None else count(n, 'client')}",
        ("network", "model"): experiment.model.name,
        ("training", "training"): count(experiment.training.rounds, "round"),
        ("participation", "participation"): "",
        ("evaluation", "evaluation"): "",
    }
    paths = {path for path, value in experiment.flat.items() if value not in (None, ())} | experiment.changed().keys()
    paths -= {*TITLED, *apart}
    more = {section: _of_section(experiment, section, paths) for _, section in terms}
    return {term: ": ".join(filter(None, (text, more[section]))) for (term, section), text in terms.items()}


def _of_section(experiment: "Experiment", section: str, paths: Collection[str]) -> str:
    """Return those settings of a section that are among the paths."""
    return ", ".join(
        f"{path.removeprefix(f'{section}.')} {_text(value)}"
        for path, value in experiment.flat.items()
        if path.startswith(f"{section}.") and path in paths
    )


def _text(value: Any) -> str:
    return exact(list(value) if isinstance(value, tuple) else value)


def experiment_card(experiment: "Experiment") -> str:
    """Return an experiment as HTML: its settings, those that differ from the defaults, and its hash."""
    first, n = experiment.seed, experiment.repetitions
    seeds = f"seed {first}" if n == 1 else f"{n} repetitions, seeds {first} to {first + n - 1}"
    return cards.card(
        lambda: cards.heading(experiment.label, seeds),
        lambda: cards.table(TableRows("", ("part", "settings"), tuple(shared(experiment).items()), frozenset({0, 1}))),
        lambda: cards.table(_changed(experiment)),
        lambda: cards.note(_hash(experiment)),
    )


def _changed(experiment: "Experiment") -> TableRows:
    """Return the settings that differ from the defaults, a row each."""
    about = {setting.path: setting.description for setting in experiment.fields()}
    rows = tuple(
        (path, _text(value), _text(default), about[path]) for path, (value, default) in experiment.changed().items()
    )
    heads = ("setting", "value", "default", "meaning")
    return TableRows("differs from the defaults", heads, rows, frozenset({0, 3}))


def _hash(experiment: "Experiment") -> str:
    if not here(experiment.data.name):
        return f"hash: known once {experiment.data.label} is on this machine"
    return f"hash {experiment.hash}" + (" (of the first repetition)" if experiment.repetitions > 1 else "")


def clients_card(clients: "Clients") -> str:
    """Return the clients' data as HTML: samples and classes of a client, digests, and the picture of the partition."""
    from pfl_ops import figures

    return cards.card(
        lambda: cards.heading(clients.title, f"{len(clients.table):,} clients, {clients.n_classes:,} classes"),
        lambda: cards.table(_numbers(clients)),
        lambda: cards.note(
            f"partition {clients.partition_digest}", f"data set {clients.data_digest}", *clients.remarks
        ),
        lambda: cards.picture(lambda: figures.partition(clients.table), f"Samples of each client: {clients.title}"),
    )


def _numbers(clients: "Clients") -> TableRows:
    """Return the least, median and most of a client's samples and classes."""
    columns = {
        "training samples": (clients.train.sizes.numpy(), len(clients.train)),
        f"{clients.split} samples": (clients.held.sizes.numpy(), len(clients.held)),
        "classes": ((clients.table > 0).sum(axis=1), int((clients.table.sum(axis=0) > 0).sum())),
    }
    rows = tuple(
        (name, f"{values.min():,}", f"{np.median(values):,.0f}", f"{values.max():,}", f"{total:,}")
        for name, (values, total) in columns.items()
    )
    return TableRows("a client has", ("", "least", "median", "most", "all clients"), rows)
