"""Ray: started quietly or joined, and what a trial may use of it."""

import contextlib
import logging
import math
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pfl_ops.errors import PflOpsError

# Ray reads these when it is imported or started. Defaults: whoever sets them keeps their own.
for _name, _value in {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # Ray's own record of the study is never read
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # the study has them
}.items():
    os.environ.setdefault(_name, _value)

import ray  # noqa: E402

LOGICAL_GPUS = "PFL_OPS_LOGICAL_GPUS"
"""Environment variable: tell Ray of so many GPUs, whatever the machine has. For tests of scheduling."""

SOCKET_PATH = 107  # bytes that Linux allows
SESSION = len("/session_2025-01-01_00-00-00_000000_0000000/sockets/plasma_store")


@dataclass(frozen=True)
class Share:
    """What each trial gets.

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


@contextlib.contextmanager
def cluster(address: str | None = None) -> Iterator[Path]:
    """A running Ray, ours or a joined one; ours is stopped and its files are removed at the end.

    Args:
        address: of a cluster to join ("auto", "HOST:PORT"); none: start one on this machine, reachable from it only.
            A Ray that this process has started or joined already is used as it is.
    Yields:
        a folder for Ray's own files, gone afterwards.
    Raises:
        PflOpsError: there is no cluster at that address.
    """
    folder = _short_folder()
    started = not ray.is_initialized()
    try:
        if started and address:
            _answers(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError) as error:
                reason = str(error).splitlines()[0]
                raise _no_cluster(address, reason) from None
        elif started:
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # else a token file in the user's home; loopback only
            gpus = os.environ.get(LOGICAL_GPUS)
            with _same_modules():
                ray.init(
                    num_gpus=int(gpus) if gpus else None,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _temp_dir=str(folder),
                    _node_ip_address="127.0.0.1",
                )
        yield folder
    finally:
        if started and ray.is_initialized():
            ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _same_modules() -> Iterator[None]:
    """Processes started meanwhile import from where this one does: a checkout, a notebook's folder."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _answers(address: str) -> None:
    """Refuse an address where nobody listens; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return  # "auto": Ray knows where it was started
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise _no_cluster(address, str(error)) from None


def _no_cluster(address: str, reason: str) -> PflOpsError:
    return PflOpsError(
        f"no Ray cluster answers at '{address}' ({reason}); start one with `ray start --head`, or leave out --address"
    )


def check_gpus(gpus: float | str | None, address: str | None) -> None:
    """Refuse a share of a GPU that isn't there, before Ray starts: it would wait for one for ever."""
    if not isinstance(gpus, float) or not gpus or address or ray.is_initialized() or os.environ.get(LOGICAL_GPUS):
        return
    import torch

    if not torch.cuda.is_available():
        raise _no_gpu(gpus, "this machine")


def share(
    cpus_per_trial: float, gpus_per_trial: float | None, concurrency: int | None, trials: int, device: str = "auto"
) -> Share:
    """What each trial gets of the running Ray.

    Args:
        cpus_per_trial, gpus_per_trial: see `asked.Asked`, once they are numbers; no GPUs said: a quarter where there is
            one and the device allows it, else 0.
        concurrency: trials at once; none: as many as fit.
        trials: more than these are never needed.
        device: the execution's.
    Raises:
        PflOpsError: more than Ray has; the message says what to use.
    """
    has = ray.cluster_resources()
    nodes = [n["Resources"] for n in ray.nodes() if n["Alive"]]
    if gpus_per_trial is None:
        gpus_per_trial = 0.25 if has.get("GPU", 0) >= 1 and device != "cpu" else 0.0
    if device == "cuda" and not gpus_per_trial:
        raise PflOpsError("device cuda needs a share of a GPU: --gpus-per-trial 0.25 (or --device cpu)")
    if gpus_per_trial and device == "cpu":
        raise PflOpsError(f"device cpu and --gpus-per-trial {gpus_per_trial:g} contradict each other; leave one out")
    if gpus_per_trial > has.get("GPU", 0):
        raise _no_gpu(gpus_per_trial, "this Ray", int(has.get("GPU", 0)))
    fit = sum(_fit(n, cpus_per_trial, gpus_per_trial) for n in nodes)
    if fit < 1:
        most = max((n.get("CPU", 0.0) for n in nodes), default=0.0)
        raise PflOpsError(
            f"no machine of this Ray has {cpus_per_trial:g} CPUs for one trial; use --cpus-per-trial {most:g} or less"
        )
    return Share(cpus_per_trial, gpus_per_trial, max(1, min(concurrency or fit, fit, trials)))


def _fit(node: dict[str, float], cpus: float, gpus: float) -> int:
    """How many trials fit on a node; a share of a GPU must lie on one GPU."""
    by_cpu = math.floor(node.get("CPU", 0.0) / cpus + 1e-9)
    if not gpus:
        return by_cpu
    whole = node.get("GPU", 0.0)
    by_gpu = math.floor(whole / gpus) if gpus >= 1 else math.floor(whole) * math.floor(1 / gpus + 1e-9)
    return min(by_cpu, by_gpu)


def _no_gpu(gpus: float, where: str, found: int = 0) -> PflOpsError:
    has = f"{found} GPU{'s' if found != 1 else ''}" if found else "no GPU"
    return PflOpsError(
        f"--gpus-per-trial {gpus:g}: {where} has {has}; leave it out (or give 0) to train on the CPU, "
        "with --cpus-per-trial and --concurrency to share it out"
    )


def _short_folder() -> Path:
    """A new folder whose sockets stay within the system's limit on their paths; long temporary folders break Ray."""
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if os.access(parent, os.W_OK) and len(os.fsencode(parent)) + len("/pfl-12345678") + SESSION <= SOCKET_PATH:
            return Path(tempfile.mkdtemp(prefix="pfl-", dir=parent))
    raise PflOpsError("no temporary folder with a short enough path for Ray's sockets; set TMPDIR=/tmp")
