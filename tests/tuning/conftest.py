"""A toy method, a fake simulation, and one Ray for the tests of a module."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # `tuning_fake` is imported by Ray's processes too

from tuning_fake import toy

from pfl_ops.experiment import Experiment
from pfl_ops.tuning import resources


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data cache of Ray's processes."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def one_ray(cache: Path) -> Iterator[None]:
    """A Ray with four CPUs and one logical GPU, whatever the machine has; started once."""
    import ray

    folder = resources._short_folder()
    with resources._same_modules(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("PFL_OPS_CACHE", str(cache))
        ray.init(num_cpus=4, num_gpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=str(folder))
        yield
        ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory, furnish: Callable[[Path], Path]) -> Path:
    """A work folder for all."""
    return furnish(tmp_path_factory.mktemp("home"))


@pytest.fixture
def experiment() -> Experiment:
    return toy()
