"""Features of samples: computed once, only those that are asked for, and kept whatever happens meanwhile."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from full_disk import full_disk

from pfl_ops.data import features
from pfl_ops.data.datasets import DataSection, Dataset, TestDataSealed, load
from pfl_ops.data.features import Features
from pfl_ops.data.npz import DataError


class Extractor:
    """[mean, largest] of an image; remembers how many samples it saw, and when to fail."""

    def __init__(self, fails_after: int | None = None) -> None:
        self.seen, self.opened, self.fails_after = 0, 0, fails_after

    def open(self) -> "Extractor":
        self.opened += 1
        return self

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if self.fails_after is not None and self.seen >= self.fails_after:
            raise KeyboardInterrupt
        self.seen += len(x)
        return expected(x)


def expected(x: np.ndarray) -> np.ndarray:
    flat = x.reshape(len(x), -1)
    return np.stack([flat.mean(1), flat.max(1)], 1).astype(np.float32)


def digits(extractor: Extractor, train_size: int | None = None, sealed: bool = False, **data: object) -> Dataset:
    dataset = load(DataSection(train_size=train_size, **data), sealed=sealed)
    return dataset.seen_through(Features("k", 2, "features of digits", extractor.open))


def test_features_stand_in_the_place_of_samples() -> None:
    plain, seen = load(DataSection(train_size=300)), digits(Extractor(), 300)
    assert np.array_equal(seen.train.x, expected(plain.train.x))
    assert np.array_equal(seen.test.x, expected(plain.test.x))
    assert np.array_equal(seen.train.y, plain.train.y) and np.array_equal(seen.rows(), plain.rows())
    assert (seen.shape, seen.digest, seen.mean.tolist(), seen.std.tolist()) == ((2,), plain.digest, [0, 0], [1, 1])
    assert seen.train.x.dtype == np.float32


def test_only_what_is_asked_for_is_computed_and_only_once() -> None:
    first = Extractor()
    dataset = digits(first, 300)
    assert first.opened == 0  # nothing yet
    _ = dataset.train
    assert first.seen == 300
    again, more = Extractor(), Extractor()
    _ = digits(again, 300).train
    assert again.opened == 0
    whole = digits(more).train.x
    n = len(whole)
    assert more.seen == n - 300  # the cut is part of the whole
    assert np.array_equal(whole, expected(load(DataSection(train_size=None)).train.x))


def test_sealed_test_data_are_never_looked_at(cache: Path) -> None:
    dataset = digits(Extractor(), 300, sealed=True)
    _ = dataset.train
    with pytest.raises(TestDataSealed):
        _ = dataset.test
    assert not (cache / "features" / "k" / "x_test.npy").exists()


def test_pooled_data() -> None:
    plain = load(DataSection(train_size=300, pooled=True))
    assert np.array_equal(digits(Extractor(), 300, pooled=True).train.x, expected(plain.train.x))


def test_what_was_computed_before_an_interruption_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "BATCH", 100)
    with pytest.raises(KeyboardInterrupt):
        _ = digits(Extractor(fails_after=200), 350).train
    rest = Extractor()
    assert np.array_equal(digits(rest, 350).train.x, expected(load(DataSection(train_size=350)).train.x))
    assert rest.seen == 150


KILLED = """
import os
from pfl_ops.data import features
from pfl_ops.data.datasets import DataSection, load
import numpy as np

features.BATCH = 100
seen = 0

def extract(x):
    global seen
    if seen >= 200:
        os.kill(os.getpid(), 9)
    seen += len(x)
    flat = x.reshape(len(x), -1)
    return np.stack([flat.mean(1), flat.max(1)], 1).astype(np.float32)

load(DataSection(train_size=350)).seen_through(features.Features("k", 2, "f", lambda: extract)).train
"""


def test_a_killed_process_loses_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED], env=os.environ, check=False).returncode == -9
    rest = Extractor()
    assert np.array_equal(digits(rest, 350).train.x, expected(load(DataSection(train_size=350)).train.x))
    assert rest.seen == 150


@pytest.mark.parametrize("name", ["x_train", "sha256_train"])
def test_a_damaged_file_is_computed_again(cache: Path, name: str) -> None:
    _ = digits(Extractor(), 300).train
    file = cache / "features" / "k" / f"{name}.npy"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    again = Extractor()
    assert np.array_equal(digits(again, 300).train.x, expected(load(DataSection(train_size=300)).train.x))
    assert again.seen == 300


def test_rows_overwritten_in_place_are_computed_again(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two rows; the file keeps its size."""
    dataset = digits(Extractor(), 300)
    _ = dataset.train
    file = cache / "features" / "k" / "x_train.npy"
    rows = dataset.rows()[[4, 200]]
    kept = np.load(file, mmap_mode="r+")
    kept[rows] += 1
    kept.flush()
    again = Extractor()
    assert np.array_equal(digits(again, 300).train.x, expected(load(DataSection(train_size=300)).train.x))
    assert again.seen == 2
    line = capsys.readouterr().err
    assert line == f"features of digits, train: 2 samples were damaged in {file.parent}, and are computed again\n"


def test_a_full_cache_is_one_line_and_keeps_whole_rows(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a mapped file a full disk would end the process by SIGBUS. Rows are 8 bytes, the file has its size at once."""
    monkeypatch.setattr(features, "BATCH", 100)
    with pytest.raises(KeyboardInterrupt):
        _ = digits(Extractor(fails_after=100), 300).train
    with full_disk(after=5_000), pytest.raises(DataError) as error:
        _ = digits(Extractor(), 300).train
    assert str(error.value).startswith("cannot write the cache folder ") and "(File too large)" in str(error.value)
    rest = Extractor()
    assert np.array_equal(digits(rest, 300).train.x, expected(load(DataSection(train_size=300)).train.x))
    assert rest.seen == 200


def test_features_that_are_there_need_no_cache_that_can_be_written() -> None:
    _ = digits(Extractor(), 300).train
    again = Extractor()
    with full_disk():
        assert len(digits(again, 300).train.x) == 300
    assert again.opened == 0


def test_who_comes_second_waits() -> None:
    extractor = Extractor()
    dataset = digits(extractor, 300)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: dataset.train.x, range(4)))
    assert extractor.seen == 300
    assert all(np.array_equal(found[0], x) for x in found)


def test_a_cache_that_cannot_be_written(cache: Path) -> None:
    dataset = digits(Extractor(), 300)
    (cache / "features").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot write the cache folder .*set PFL_OPS_CACHE"):
        _ = dataset.train


def test_long_work_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(features, "BATCH", 100)
    _ = digits(Extractor(), 150).train
    assert not capsys.readouterr().err  # quick work is silent
    monkeypatch.setattr(features, "EVERY", 0.0)
    dataset = digits(Extractor(), 300)
    _ = replace(dataset, features=Features("other", 2, "features of digits (net)", Extractor().open)).train
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("features of digits (net), train: 100 of 300 samples, ")
    assert lines[2].startswith("features of digits (net), train: 300 of 300 samples, ")


def test_keys_tell_all_parts_apart() -> None:
    keys = {features.key("a", "b"), features.key("ab", ""), features.key("b", "a"), features.key("a", None)}
    assert len(keys) == 4
