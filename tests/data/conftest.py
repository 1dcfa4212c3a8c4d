"""A cache of its own for every test, small data files, and the labels of the real data sets where they are at hand."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import arrays


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder; no data folder unless a test names one."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PFL_OPS_CACHE", str(folder))
    monkeypatch.delenv("PFL_OPS_DATA", raising=False)
    return folder


REAL = os.environ.get("PFL_OPS_DATA", "")  # before the fixture hides it


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests on real data: unpacking takes seconds."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch, shared_cache: Path) -> Callable[[str], Path]:
    """real_data("mnist"): that .npz, or any file by its name, in PFL_OPS_DATA, which is set for the test; skips where
    there is none."""

    def find(name: str) -> Path:
        for folder in filter(None, REAL.split(os.pathsep)):
            path = Path(folder).expanduser() / (name if "." in name else f"{name}.npz")
            if path.exists():
                monkeypatch.setenv("PFL_OPS_DATA", REAL)
                monkeypatch.setenv("PFL_OPS_CACHE", str(shared_cache))
                return path
        pytest.skip(f"{name} is in no folder of PFL_OPS_DATA")

    return find


@pytest.fixture
def npz(tmp_path: Path) -> Callable[..., Path]:
    """npz(x_train=...): a file like `arrays(...)`, uncompressed."""

    def write(name: str = "mine", **changes: Any) -> Path:
        path = tmp_path / f"{name}.npz"
        np.savez(path, **arrays(**changes))
        return path

    return write
