"""Lines on a data set that its user should read: whatever may be a mistake, and is not refused."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pfl_ops.data import owners
from pfl_ops.data.datasets import Dataset

SHIFT = 0.03
"""Share of the training samples that a cut may give to other clients, or classes, without a remark."""

NUMBERS_SHOWN = 5
"""Classes that a remark lists."""

MOST_COLOURS = 4
"""Channels of a picture at most; more are no colours."""


def dataset_remarks(dataset: Dataset) -> tuple[str, ...]:
    """Return the lines on owners under another name, images that may have their channels first, a cut, and classes
    without training samples."""
    own: tuple[str, ...] = ()
    if dataset.source is not None:
        own = owners.remarks(dataset.source, dataset.name, clients=dataset.has_clients)
        own += _on_shape(dataset.files.meta["shape"])
    return (*own, *_on_cut(dataset), *_on_classes(dataset))


def _on_shape(shape: Sequence[int]) -> tuple[str, ...]:
    """A line if images of a file of one's own have a height of 1 or 3 and many channels, as those with channels first
    do; square ones are refused when they are read. Signals of several sensors have this form, too."""
    if len(shape) != 3 or shape[0] not in (1, 3) or min(shape[1:]) <= MOST_COLOURS:
        return ()
    height, width, channels = shape
    return (
        f"images are {height} x {width} with {channels} channels; if {height} is the number of channels: "
        "np.moveaxis(x, 1, -1)",
    )


def _on_cut(dataset: Dataset) -> tuple[str, ...]:
    """Lines on the cut to `train_size`: how many samples of a file of one's own are used, by default a large one in
    part, and shares of clients or classes that change by more than `SHIFT` of the data.

    The shares change where many of them are smaller than one sample.
    """
    apart = replace(dataset, pooled=False)
    published = [dataset.files.meta[f"n_{part}"] for part in ("train", "test")]
    if apart.sizes[0] == published[0]:
        return ()
    train, test = (f"{used:,} of {n:,}" for used, n in zip(apart.sizes, published, strict=True))
    told = (
        f"{train} training and {test} test samples are used (data.train_size={dataset.train_size}; none: all)"
        if dataset.source is not None
        else ""
    )
    return tuple(filter(None, (told, _on_shares(apart))))


def _on_shares(apart: Dataset) -> str:
    kept = apart.rows()
    _, stratum, counts = np.unique(apart.strata("train"), return_inverse=True, return_counts=True)
    taken = np.bincount(stratum[kept], minlength=len(counts))
    before, after = counts / len(stratum), taken / len(kept)
    if np.maximum(after - before, 0).sum() <= SHIFT:
        return ""
    small, what = after > before, "clients" if apart.has_clients else "classes"
    lost = int((taken == 0).sum())
    return (
        f"data.train_size={apart.train_size} changes the shares of {what}: {small.sum():,} of {len(counts):,} have "
        f"{100 * after[small].sum():.0f} % of the samples instead of {100 * before[small].sum():.0f} %"
        f"{f', {lost:,} have none' if lost else ''}; data.train_size=none takes all samples"
    )


def _on_classes(dataset: Dataset) -> tuple[str, ...]:
    """A line if some classes below the highest label have no training sample as published, as with the labels 0, 10,
    20: a network has an output for each. Characters of a text that do not occur are no mistake."""
    if dataset.overlap:
        return ()
    labels = [dataset.files.array(f"y_{part}") for part in (("train", "test") if dataset.pooled else ("train",))]
    counts = sum(np.bincount(y, minlength=dataset.n_classes) for y in labels)
    absent = np.flatnonzero(counts == 0).tolist()
    if not absent:
        return ()
    shown = ", ".join([*map(str, absent[:NUMBERS_SHOWN]), *["..."] * (len(absent) > NUMBERS_SHOWN)])
    have = "has" if len(absent) == 1 else "have"
    return (
        f"{len(absent):,} of {dataset.n_classes:,} classes {have} no training sample ({shown}), and networks an "
        "output for each; classes are numbered from 0, without gaps",
    )
