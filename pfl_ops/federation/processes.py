"""Processes of one thread each that hold the same things and answer jobs; large tensors travel as shared memory."""

import contextlib
import io
import os
import pickle
import signal
import struct
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

import torch
from torch import Tensor

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.allocator import keep_freed_memory
from pfl_ops.registry import load_plugin, plugins

SHARED_FROM = 1 << 18  # bytes; smaller tensors travel in the message itself


def possible() -> bool:
    """Whether this system has files without a name, and /proc for other processes to reach them."""
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


class Shared:
    """A tensor in memory that other processes can map; the memory goes with the last mapping."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        self.shape, self.dtype = tuple(shape), dtype
        count = max(torch.Size(shape).numel(), 1)
        self._handle = os.memfd_create("pfl-ops")
        os.ftruncate(self._handle, count * torch.empty((), dtype=dtype).element_size())
        self.path = f"/proc/{os.getpid()}/fd/{self._handle}"
        self.tensor = _attach(self.path, self.shape, dtype)

    def close(self) -> None:
        """No further process may map it; the tensor itself stays as long as somebody holds it."""
        os.close(self._handle)


def _attach(path: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    count = torch.Size(shape).numel()
    return torch.from_file(path, shared=True, size=max(count, 1), dtype=dtype)[:count].view(shape)


def _pickle(thing: Any, outs: Sequence[Shared] = ()) -> tuple[bytes, list[Shared]]:
    """The message, and the shared memory that it names: every large tensor is put there once, `outs` are there already.

    By cloudpickle, because a method's step may be a function inside a function.
    """
    import cloudpickle

    there = {id(shared.tensor): shared for shared in outs}
    placed: list[Shared] = []

    class Message(cloudpickle.Pickler):
        def reducer_override(self, thing: Any) -> Any:
            if type(thing) is not Tensor:
                return super().reducer_override(thing)
            shared = there.get(id(thing))
            if shared is None and thing.numel() * thing.element_size() >= SHARED_FROM:
                shared = Shared(thing.shape, thing.dtype)
                shared.tensor.copy_(thing)
                placed.append(shared)
            if shared is None:
                return super().reducer_override(thing)
            return _attach, (shared.path, shared.shape, shared.dtype)

    file = io.BytesIO()
    Message(file).dump(thing)
    return file.getvalue(), placed


class Processes:
    """Several processes that each hold a copy of some things, and share the memory of their large tensors.

    Args:
        count: how many.
        held: name -> thing, as it is when they start.
    """

    def __init__(self, count: int, held: Mapping[str, Any]) -> None:
        self.count, self.held = count, held
        self.running: list[subprocess.Popen[bytes]] = []
        weakref.finalize(self, _end, self.running)

    def start(self) -> None:
        """Start them, unless they are there."""
        if self.running:
            return
        code = f"import sys; sys.path[:] = {sys.path!r}; from pfl_ops.federation.processes import serve; serve()"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        for _ in range(self.count):
            self.running.append(
                subprocess.Popen(
                    [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
                )
            )
        message, placed = _pickle(dict(self.held))
        self._tell(pickle.dumps(list(plugins().values())) + message, placed)

    def ask(
        self, do: Callable[..., Any], parts: Sequence[Any], given: Mapping[str, Any], outs: Sequence[Shared] = ()
    ) -> list[Any]:
        """What each process answers: `do(held, part, **given)`, one part each.

        Args:
            do: a function of a module. parts: one a process.
            outs: tensors in `given` that they write to.
        Raises:
            PflOpsError: one of them died. Whatever `do` raises there is raised here.
        """
        self.start()
        message, placed = _pickle((do, list(parts), dict(given)), outs)
        return self._tell(message, placed)

    def _tell(self, message: bytes, placed: Sequence[Shared]) -> list[Any]:
        """Send the same message to all, wait for all."""
        try:
            for number, process in enumerate(self.running):
                _send(process.stdin, struct.pack("<Q", number) + message)
            return [self._answer(process) for process in self.running]
        finally:
            for shared in placed:
                shared.close()

    def _answer(self, process: subprocess.Popen[bytes]) -> Any:
        received = _receive(process.stdout)
        if received is None:
            self.close()
            raise PflOpsError("a worker process died (out of memory, or killed); the run goes on from its checkpoint")
        good, value = pickle.loads(received)
        if good:
            return value
        self.close()
        error, trace = value
        error.add_note(trace)
        raise error

    def close(self) -> None:
        """End them; the next job starts new ones."""
        _end(self.running)


def _end(running: list[subprocess.Popen[bytes]]) -> None:
    """Also what happens once nobody holds their `Processes` any more, or this process ends."""
    for process in running:
        process.kill()
    for process in running:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # a message that nobody will read
                    pipe.close()
        process.wait()
    running.clear()


# -- in such a process -------------------------------------------------------------------------------------------------


def serve() -> None:
    """Answer jobs until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    torch.set_num_threads(1)
    keep_freed_memory()
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a print in a user's step must not end up in an answer
    held: dict[str, Any] | None = None
    while (message := _receive(incoming)) is not None:
        number, job = struct.unpack("<Q", message[:8])[0], io.BytesIO(message[8:])
        try:
            if held is None:
                for file in pickle.load(job):
                    load_plugin(file)  # before the things, which may be what they define
                held = pickle.load(job)
                answer: tuple[bool, Any] = (True, None)
            else:
                do, parts, given = pickle.load(job)
                answer = (True, do(held, parts[number], **given))
        except Exception as error:
            answer = (False, (_sendable(error), traceback.format_exc()))
        _send(outgoing, pickle.dumps(answer))


def _sendable(error: Exception) -> Exception:
    """The error itself where it can travel, else its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _send(pipe: Any, message: bytes) -> None:
    try:
        pipe.write(struct.pack("<Q", len(message)))
        pipe.write(message)
        pipe.flush()
    except BrokenPipeError:
        pass  # told by the answer that does not come


def _receive(pipe: BinaryIO | Any) -> bytes | None:
    size = pipe.read(8)
    if len(size) < 8:
        return None
    (length,) = struct.unpack("<Q", size)
    message = pipe.read(length)
    return message if len(message) == length else None
