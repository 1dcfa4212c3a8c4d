"""A toy method, a fake simulation, and one Ray for the tests of a module."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import fork_server
import pytest
import ray
from ray._private import ray_constants

sys.path.insert(0, str(Path(__file__).parent))  # `tuning_fake` is imported by Ray's processes too

from tuning_fake import toy

from pfl_ops.config.experiment import Experiment
from pfl_ops.jobs import ray_instance


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data cache of Ray's processes."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def one_ray(cache: Path, shared: contextlib.ExitStack) -> None:
    """A Ray with four CPUs and one logical GPU, whatever the machine has; one for all files that run together."""
    if not ray.is_initialized():
        patch = shared.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("PFL_OPS_CACHE", str(cache))
        patch.setattr(ray_constants, "SETUP_WORKER_FILENAME", fork_server.ray_worker())
        shared.enter_context(ray_instance.started(4, 1))


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory, furnish: Callable[[Path], Path]) -> Path:
    """A work folder for all."""
    return furnish(tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True)
def _blank_pictures(blank_pictures: None) -> None:
    """Tests that look at pictures are marked with `real_pictures`."""


@pytest.fixture
def experiment() -> Experiment:
    return toy()
