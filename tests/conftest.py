"""What tests of all parts share: skipping those whose real data set is not here, and one real study."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from end_to_end import Tuned


def pytest_runtest_setup(item: pytest.Item) -> None:
    """`@pytest.mark.needs_data("mnist")`: run only where a folder of PFL_OPS_DATA has mnist.npz.

    A name with a dot is a file's own.
    """
    folders = [Path(f) for f in os.environ.get("PFL_OPS_DATA", "").split(os.pathsep) if f]
    for mark in item.iter_markers("needs_data"):
        for name in mark.args:
            file = name if "." in name else f"{name}.npz"
            if not any((folder / file).is_file() for folder in folders):
                where = f"in {os.environ['PFL_OPS_DATA']}" if folders else "because PFL_OPS_DATA is not set"
                pytest.skip(f"needs {file}, which is not found {where}")


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> "Tuned":
    """A small study, run once for all slow tests that look at it; they may add runs of other methods than FedAvg."""
    from end_to_end import Tuned

    return Tuned(tmp_path_factory.mktemp("study"))
