"""Samples with the same values, as published: on both sides of a cut, a score says nothing of new data."""

import hashlib

import numpy as np

from pfl_ops.data import store
from pfl_ops.data.datasets import Dataset


def copies_remark(dataset: Dataset, split: str) -> str:
    """Return a line on samples that may be scored and trained on at once, since others have the same values; "": none.

    With a test set of its own, these are test samples that are training samples too; for validation, and with
    `pooled`, samples that occur more than once in the data that are divided. They are counted once for each content of
    a data set, before a cut to `train_size`. Overlapping samples (windows of a text) are kept apart by other means.
    """
    if dataset.overlap:
        return ""
    parts = "train and test" if dataset.pooled else "test in train" if split == "test" else "train"
    key = f"{dataset.digest} {parts}"
    found = store.remembered("copies", key)
    if not isinstance(found, list) or len(found) != 2:
        found = _counted(dataset, parts)
        store.remember("copies", key, found)
    copies, n = found
    if not copies:
        return ""
    if parts == "test in train":
        return f"{copies:,} of {n:,} test samples have the values of a training sample: they are no test of new data"
    held = "test" if split == "test" else "validation"
    return f"{copies:,} of {n:,} samples have the values of another one: {held} samples may be among those trained on"


def _counted(dataset: Dataset, parts: str) -> list[int]:
    """Return [samples with the values of another one, all samples]."""
    train = _digests(dataset.files.array("x_train"))
    test = train[:0] if parts == "train" else _digests(dataset.files.array("x_test"))
    if parts == "test in train":
        return [int(np.isin(test, train).sum()), len(test)]
    _, counts = np.unique(np.concatenate([train, test]), return_counts=True)
    return [int(counts[counts > 1].sum()), len(train) + len(test)]


def _digests(x: np.ndarray) -> np.ndarray:
    """Return a digest of each sample's values, uint64 [n]."""
    rows = (int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little") for row in x)
    return np.fromiter(rows, dtype=np.uint64, count=len(x))
