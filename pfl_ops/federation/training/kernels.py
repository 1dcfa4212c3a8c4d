"""Compiled kernels: a library for this processor, built when the user asks for it and kept in the cache folder."""

import ctypes
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pfl_ops.data.store import cache_folder, remember, remembered
from pfl_ops.errors import PflOpsError, echo
from pfl_ops.files import write_whole
from pfl_ops.system.machine import cpu_model, instruction_sets

SOURCE = Path(__file__).with_name("descent.cpp")
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-shared",
    "-fPIC",
    "-pthread",
)
COMPILERS = ("c++", "g++", "clang++")
SECONDS = 300  # that a compiler may take
SEAL = b"\npfl-ops kernels sha256 "  # ends the file, before the digest; a loader ignores what follows a library
NOT_MAPPED = "failed to map segment"  # in a loader's message about a folder that is mounted as noexec
COMMAND = "pfl-ops compile"
AS_FAST = 0.95  # times PyTorch's speed; two readings of one case differ by some percent
LINEAR, MLP = "linear", "mlp"  # the networks whose speeds are noted: of one linear layer, of several


class Case(NamedTuple):
    """Training whose speed is noted: `LINEAR` or `MLP`, sgd, momentum or adam, samples a step."""

    network: str
    optimiser: str
    batch: int

    def __str__(self) -> str:
        return f"{self.network} {self.optimiser} B {self.batch}"


@cache
def key() -> str:
    """Return all that the library depends on: code, flags and processor, as JSON."""
    code = hashlib.sha256(SOURCE.read_bytes()).hexdigest()
    seal = SEAL.decode().strip()
    return json.dumps(
        {"code": code, "flags": FLAGS, "processor": cpu_model(), "sets": instruction_sets(), "seal": seal}
    )


def library_file() -> Path:
    """Return the path of the library for this code and processor, whether or not it is there."""
    return cache_folder() / "kernels" / f"{hashlib.sha256(key().encode()).hexdigest()[:24]}.so"


def built() -> bool:
    """True if the library is there."""
    return library_file().is_file()


def faster(layers: int, optimiser: str) -> bool:
    """True if the library is there, and was faster than PyTorch in some timed case of such a network and optimiser, and
    in none slower by more than readings scatter.

    Args:
        layers: linear layers of the network, 1 or more. optimiser: sgd, momentum or adam.
    """
    speeds = remembered("kernels", key()) if built() else None
    network = LINEAR if layers == 1 else MLP
    noted = speeds if isinstance(speeds, dict) else {}
    own = [speed for case, speed in noted.items() if case.startswith(f"{network} {optimiser} ")]
    return max(own, default=0.0) > 1 and min(own) >= AS_FAST


def note_speeds(speeds: Mapping[Case, float]) -> None:
    """Keep the speeds of the library for `faster`, in multiples of PyTorch's."""
    remember("kernels", key(), {str(case): speed for case, speed in speeds.items()})


def library() -> ctypes.CDLL:
    """Load the library.

    Raises:
        PflOpsError: it is not built, is damaged, or can't be loaded.
    """
    file = library_file()
    if not built():
        raise PflOpsError(f"compiled kernels are not built for this processor; build them: {COMMAND}")
    try:
        return _load(file)
    except OSError as error:
        reason = echo(str(error), 300)
        elsewhere = f"set PFL_OPS_CACHE to a folder whose programs may run, then {COMMAND}"
        then = elsewhere if NOT_MAPPED in reason else f"build them again: {COMMAND}"
        raise PflOpsError(f"can't load the compiled kernels ({reason}); {then}") from None


@cache
def _load(file: Path) -> ctypes.CDLL:
    """Load a library that is as it was written: the process would die of a cut one, by SIGBUS and without a line."""
    content, _, digest = file.read_bytes().rpartition(SEAL)
    if hashlib.sha256(content).hexdigest() != digest.decode("ascii", "replace"):
        raise OSError(f"{file}: its content is not what was written")
    return ctypes.CDLL(str(file))


def compile_library() -> Path:
    """Compile the kernels for this processor, in place of earlier ones.

    Returns:
        The library's path. It appears complete or not at all.
    Raises:
        PflOpsError: there is no C++ compiler, it fails, or the cache folder can't be written.
    """
    compiler = _compiler()
    file = library_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=file.parent) as folder:
            made = Path(folder) / file.name
            _run([compiler, *FLAGS, str(SOURCE), "-o", str(made)])
            content = made.read_bytes()
        write_whole(file, content + SEAL + hashlib.sha256(content).hexdigest().encode())
    except OSError as error:
        reason = error.strerror or str(error)
        raise PflOpsError(f"can't write to {file.parent} ({reason}); set PFL_OPS_CACHE to another folder") from None
    return file


def _compiler() -> str:
    wanted = os.environ.get("CXX")
    found = next(filter(None, map(shutil.which, [wanted] if wanted else COMPILERS)), None)
    if found is None:
        tried = f"CXX={echo(wanted)}" if wanted else f"tried {', '.join(COMPILERS)}"
        raise PflOpsError(f"no C++ compiler found ({tried}); install one (apt install g++), or name one in CXX")
    return found


def _run(command: list[str]) -> None:
    """Run a compiler.

    Raises:
        PflOpsError: it fails; the message has its first error.
    """
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise PflOpsError(f"{name} did not end within {SECONDS} s") from None
    except OSError as error:
        raise PflOpsError(f"can't run {name}: {error.strerror or error}") from None
    if done.returncode:
        lines = done.stderr.splitlines()
        # a linker that finds the disk full says "failed"; its caller then says "error", without the reason
        told = (line for line in lines if "error" in line or "failed" in line)
        first = next(told, lines[0] if lines else f"exit code {done.returncode}")
        raise PflOpsError(f"{name} can't compile the kernels: {echo(first.strip(), 300)}")
