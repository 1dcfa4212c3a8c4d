"""Ray: started quietly or joined, and what a job may use of it."""

import contextlib
import functools
import logging
import math
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Execution
from pfl_ops.system import cores
from pfl_ops.system.scratch import scratch

# Ray reads these when it is imported or started. They are defaults: a value that the user has set is kept.
for _name, _value in {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_register_timeout_seconds": "3600",  # after 60 s Ray ends a process that is slow to start, and waits on
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # Ray's own record of the study is never read
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # events have them
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # of jobs that are no trials
}.items():
    os.environ.setdefault(_name, _value)
logging.getLogger("ray.widgets").setLevel(logging.WARNING)  # in notebooks it asks for ipywidgets, which nothing needs

import ray  # noqa: E402
from ray.exceptions import AuthenticationError  # noqa: E402

from pfl_ops.jobs import ray_instance  # noqa: E402
from pfl_ops.probe.memory import release  # noqa: E402

P = ParamSpec("P")
T = TypeVar("T")

LEAST_SHARE = 0.01  # of a CPU or a GPU that a trial can have; Ray counts in steps of 0.0001
JOBS_ON_A_GPU = 4  # at most, where nothing is said
LOGICAL_GPUS = "PFL_OPS_LOGICAL_GPUS"
"""Environment variable: tell Ray of so many GPUs, whatever the machine has. For tests of scheduling."""

ADDRESS = re.compile(r"(?:ray://)?(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+):(?P<port>\d{1,5})")

ONE_ATTEMPT = {"RAY_gcs_server_port_wait_time_s": "1", "RAY_py_gcs_connect_timeout_s": "10"}
"""Ray's own settings for joining a cluster: one attempt of some 10 s, instead of twenty of 30 s each."""


@dataclass(frozen=True)
class ResourceShare:
    """Resources of each job.

    Attributes:
        cpus, gpus: a trial's; fractions are bookkeeping, memory of a GPU is capped in the trial.
        concurrency: trials at once.
    """

    cpus: float
    gpus: float
    concurrency: int

    @property
    def threads(self) -> int:
        """CPU threads of one trial."""
        return max(1, math.floor(self.cpus))

    def execution(self, asked: Execution) -> Execution:
        """Return a job's execution: on the CPU if it has no GPU, with its own threads unless some are asked for."""
        device = asked.device if self.gpus else "cpu"
        return asked.model_copy(update={"device": device, "threads": asked.threads or self.threads})


@contextlib.contextmanager
def cluster(address: str | None) -> Iterator[Path]:
    """Yield a folder for Ray's own files while a Ray runs: one of ours, or one that is joined.

    Ours is stopped at the end. The folder is removed then. What this process no longer uses of a GPU, after an estimate
    for example, is given back first: jobs share all of it.

    Args:
        address: of a cluster to join ("auto", "HOST:PORT"); none: start one on this machine, see `ray_instance`.
            A Ray that this process has started or joined already is used as it is.
    Raises:
        PflOpsError: see `joined`.
    """
    release()
    with contextlib.ExitStack() as opened:
        opened.enter_context(joined(address))
        if ray.is_initialized():
            yield opened.enter_context(scratch(ray_instance.short_folder()))
        else:
            machine = nodes()[0]
            yield opened.enter_context(ray_instance.started(int(machine["CPU"]), int(machine["GPU"])))


@contextlib.contextmanager
def joined(address: str | None) -> Iterator[None]:
    """Join the Ray cluster at an address, and leave it at the end, unless this process has a Ray already.

    The cluster's own authentication holds: Ray reads its token from `RAY_AUTH_TOKEN`, `RAY_AUTH_TOKEN_PATH` or
    ~/.ray/auth_token.

    Args:
        address: "auto" or "HOST:PORT"; none: nothing is joined.
    Raises:
        PflOpsError: not an address, no cluster answers there, or it refuses the token.
    """
    if address is not None:
        check_address(address)
    if address is None or ray.is_initialized():
        yield
        return
    try:
        with ray_instance.environment(ONE_ATTEMPT), ray_instance.same_sigterm(), _silent_stderr():
            ray_instance.reload_settings()
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (AuthenticationError, ConnectionError, RuntimeError, ValueError) as error:
        if _refused(error):
            raise PflOpsError(
                f"the Ray cluster at '{address}' refuses this user's token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN "
                "to what `ray get-auth-token` prints on the cluster's first machine, or RAY_AUTH_TOKEN_PATH to a file "
                "with it"
            ) from None
        raise _no_cluster(address, str(error).splitlines()[0]) from None
    try:
        yield
    finally:
        ray.shutdown()
        ray_instance.handle_sigterm_again()


def joining(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function with a keyword `address` run while that cluster is joined: a wrong one is refused at once."""

    @functools.wraps(function)
    def join(*args: P.args, **kwargs: P.kwargs) -> T:
        address = kwargs.get("address")
        with joined(address if isinstance(address, str) else None):
            return function(*args, **kwargs)

    return join


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Send standard error nowhere: Ray's C++ parts write warnings to it that no setting of Ray switches off."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def check_address(address: str) -> None:
    """Refuse a malformed address, and one where nothing listens: Ray itself would try for minutes.

    Raises:
        PflOpsError: see above.
    """
    if address == "auto":
        return  # Ray knows where it was started
    parts = ADDRESS.fullmatch(address)
    if parts is None or not 1 <= int(parts["port"]) <= 65535:
        raise PflOpsError(f"--address is auto or HOST:PORT, with a port from 1 to 65535, got '{address}'")
    try:
        socket.create_connection((parts["host"].strip("[]"), int(parts["port"])), timeout=10).close()
    except (OSError, UnicodeError) as error:
        raise _no_cluster(address, str(error)) from None


def _refused(error: BaseException | None) -> bool:
    """True if authentication is at the root of an error: Ray wraps it in others, which hold its text."""
    if error is None:
        return False
    return isinstance(error, AuthenticationError) or "InvalidAuthToken" in str(error) or _refused(error.__context__)


def _no_cluster(address: str, reason: str) -> PflOpsError:
    return PflOpsError(
        f"no Ray cluster answers at '{address}' ({reason}); start one with `ray start --head`, or leave out --address"
    )


def is_running() -> bool:
    """True if this process has started or joined a Ray."""
    return bool(ray.is_initialized())


def nodes() -> list[dict[str, float]]:
    """Return the resources of each machine of the running Ray; while none runs, those of this machine alone."""
    if ray.is_initialized():
        return [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [{"CPU": float(cores.usable()), "GPU": float(_gpus())}]


def most_cpus() -> float:
    """Return the CPUs of the largest machine: more than that no job can have."""
    return max((node.get("CPU", 0.0) for node in nodes()), default=0.0)


def _gpus() -> int:
    import torch

    return int(os.environ.get(LOGICAL_GPUS) or torch.cuda.device_count())


def share(
    cpus_per_trial: float | None,
    gpus_per_trial: float | None,
    concurrency: int | None,
    trials: int,
    device: str = "auto",
    unit: str = "trial",
) -> ResourceShare:
    """Return the share of each trial of the running Ray, or of the one that would be started here.

    Args:
        cpus_per_trial, gpus_per_trial: see `ResourceRequest`, once they are numbers; no CPUs said: one, or on a
            GPU the cores that go with the share of it. No GPUs said: a quarter if there is one and the device allows
            it, else 0.
        concurrency: trials at once; none: as many as fit.
        trials: more than these are never needed.
        device: the execution's. unit: the word for a trial in the flags, see `ResourceRequest`.
    Raises:
        PflOpsError: more than Ray has; the message says what to use.
    """
    machines, where = nodes(), "this Ray" if ray.is_initialized() else "this machine"
    there = int(sum(machine.get("GPU", 0.0) for machine in machines))
    if gpus_per_trial is None:
        gpus_per_trial = 1 / JOBS_ON_A_GPU if there >= 1 and device != "cpu" else 0.0
    if device == "cuda" and not gpus_per_trial:
        mend = f"needs a share of a GPU: --gpus-per-{unit} 0.25 (or --device cpu)"
        raise PflOpsError(f"device cuda {mend if there else f'is not there: {where} has no GPU; use --device cpu'}")
    if gpus_per_trial and device == "cpu":
        raise PflOpsError(f"device cpu and --gpus-per-{unit} {gpus_per_trial:g} contradict each other; leave one out")
    if gpus_per_trial > there:
        has = f"{there} GPU{'s' if there != 1 else ''}" if there else "no GPU"
        raise PflOpsError(
            f"--gpus-per-{unit} {gpus_per_trial:g}: {where} has {has}; leave it out (or give 0) to train on the CPU, "
            f"with --cpus-per-{unit} and --concurrency to share it out"
        )
    if gpus_per_trial and not any(_fit(machine, LEAST_SHARE, gpus_per_trial) for machine in machines):
        raise PflOpsError(
            f"--gpus-per-{unit} {gpus_per_trial:g}: no machine of {where} has so many GPUs; a {unit} computes on one: "
            "use 1 or a share of it"
        )
    if cpus_per_trial is None:
        cpus_per_trial = _cpus_beside(machines, gpus_per_trial) if gpus_per_trial else 1.0
    fit = sum(_fit(machine, cpus_per_trial, gpus_per_trial) for machine in machines)
    if fit < 1:
        has = f"no machine of {where} has" if ray.is_initialized() else f"{where} does not have"
        raise PflOpsError(
            f"{has} {cpus_per_trial:g} CPUs for one {unit}; use --cpus-per-{unit} {most_cpus():g} or less"
        )
    return ResourceShare(cpus_per_trial, gpus_per_trial, max(1, min(concurrency or fit, fit, trials)))


def gpu_share(jobs: int, device: str) -> float | None:
    """Return the share of a GPU that so many jobs at once can have each, a quarter or more; None: there is no GPU.

    Args:
        jobs: at once. device: the execution's.
    """
    there = int(sum(machine.get("GPU", 0.0) for machine in nodes()))
    if not there or device == "cpu":
        return None
    return 1 / min(JOBS_ON_A_GPU, math.ceil(jobs / there))


def _cpus_beside(machines: list[dict[str, float]], gpus: float) -> float:
    """Return the whole CPUs that every machine with GPUs has for such a share of one; at least 1."""
    each = [machine.get("CPU", 0.0) / machine["GPU"] for machine in machines if machine.get("GPU")]
    return max(1.0, gpus * min(each) // 1)


def _fit(node: dict[str, float], cpus: float, gpus: float) -> int:
    """Return the number of jobs that fit on a node; a share of a GPU must lie on one GPU."""
    by_cpu = math.floor(node.get("CPU", 0.0) / cpus + 1e-9)
    if not gpus:
        return by_cpu
    whole = node.get("GPU", 0.0)
    by_gpu = math.floor(whole / gpus) if gpus >= 1 else math.floor(whole) * math.floor(1 / gpus + 1e-9)
    return min(by_cpu, by_gpu)
