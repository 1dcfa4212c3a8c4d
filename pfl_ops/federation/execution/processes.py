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

from pfl_ops.errors import PflOpsError, frames, from_worker
from pfl_ops.registry import load_plugin, plugins
from pfl_ops.system import child
from pfl_ops.system.allocator import keep_freed_memory

SHARED_FROM = 1 << 18  # bytes; smaller tensors travel in the message itself
KEPT_UP_TO = 1 << 28  # bytes; larger memory is not kept for the next message


def possible() -> bool:
    """True if this system has files without a name, and /proc for other processes to reach them."""
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


class Memory:
    """Memory that other processes can map. It goes with the last mapping of it.

    Args:
        size: bytes. number: what those call it who map it once and for all; None: they map it for one message.

    Attributes:
        path: what other processes map. close: no further one may; a tensor in it stays as long as somebody holds that.
    """

    def __init__(self, size: int, number: int | None) -> None:
        self.size, self.number = max(size, 1), number
        handle = os.memfd_create("pfl-ops")
        self.close = weakref.finalize(self, os.close, handle)
        os.ftruncate(handle, self.size)
        self.path = f"/proc/{os.getpid()}/fd/{handle}"
        self._mapped = torch.from_file(self.path, shared=True, size=self.size, dtype=torch.uint8)

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a tensor of this shape at the start of the memory; it is shared, not copied."""
        return _view(self._mapped, shape, dtype)


class Memories:
    """Shared memory to take and to give back: fetching it anew from the system is ten times as slow as filling it."""

    def __init__(self) -> None:
        self._made = 0
        self._free: list[Memory] = []

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Memory:
        """Memory for such a tensor; what it holds is left from before."""
        size = _bytes(shape, dtype)
        if size > KEPT_UP_TO:
            return Memory(size, None)
        large_enough = [m for m in self._free if size <= m.size <= 4 * size]
        if large_enough:
            found = min(large_enough, key=lambda m: m.size)
            self._free.remove(found)
            return found
        self._made += 1
        return Memory(size, self._made)

    def give(self, memory: Memory) -> None:
        """Nobody reads or writes it any more."""
        if memory.number is None:
            memory.close()
        else:
            self._free.append(memory)


def _view(memory: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return memory[: _bytes(shape, dtype)].view(dtype).view(tuple(shape))


def _bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    return torch.Size(shape).numel() * dtype.itemsize


_mapped: dict[int, Tensor] = {}
"""The parent's memories by number, in a worker process."""


def _attach(path: str, size: int, number: int | None, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    found = None if number is None else _mapped.get(number)
    if found is None:
        found = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
    if number is not None:
        _mapped[number] = found
    return _view(found, shape, dtype)


def _pickle(thing: Any, take: Callable[..., Memory], outs: Mapping[int, Memory]) -> tuple[bytes, list[Memory]]:
    """The message, and the memory that it names: every large tensor is put into some once.

    By cloudpickle, because a method's step may be a function inside a function.

    Args:
        take: gives memory. outs: tensors (by their id) that are in shared memory already.
    """
    import cloudpickle

    placed: list[Memory] = []

    class Message(cloudpickle.Pickler):
        def reducer_override(self, thing: Any) -> Any:
            if type(thing) is not Tensor:
                return super().reducer_override(thing)
            memory = outs.get(id(thing))
            if memory is None and thing.numel() * thing.element_size() >= SHARED_FROM:
                memory = take(thing.shape, thing.dtype)
                memory.tensor(thing.shape, thing.dtype).copy_(thing)
                placed.append(memory)
            if memory is None:
                return super().reducer_override(thing)
            return _attach, (memory.path, memory.size, memory.number, tuple(thing.shape), thing.dtype)

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
        self._memories = Memories()
        weakref.finalize(self, _end, self.running)

    def start(self) -> None:
        """Start them, unless they are there."""
        if self.running:
            return
        argv = child.command("pfl_ops.federation.execution.processes.serve")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        for _ in range(self.count):
            self.running.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment))
        message, placed = _pickle(dict(self.held), lambda *like: Memory(_bytes(*like), None), {})
        self._tell(pickle.dumps(list(plugins().values())) + message, placed)

    def ask(
        self,
        do: Callable[..., Any],
        parts: Sequence[Any],
        given: Mapping[str, Any],
        outs: Mapping[str, tuple[Sequence[int], torch.dtype]],
    ) -> tuple[list[Any], dict[str, Tensor]]:
        """Call `do(held, part, outs=outs, **given)` in each process, one part each.

        Args:
            do: a function of a module. parts: one a process.
            outs: name -> shape and type of a tensor that they fill together.
        Returns:
            The results in the order of the parts, and the tensors [*shape] by name.
        Raises:
            PflOpsError: one of them died. Whatever `do` raises there is raised here.
        """
        self.start()
        memories = {name: self._memories.take(*like) for name, like in outs.items()}
        tensors = {name: memory.tensor(*outs[name]) for name, memory in memories.items()}
        try:
            known = {id(tensors[name]): memory for name, memory in memories.items()}
            job = (do, list(parts), {**given, "outs": tensors})
            answers = self._tell(*_pickle(job, self._memories.take, known))
            return answers, {n: t.clone() if memories[n].number else t for n, t in tensors.items()}
        finally:
            for memory in memories.values():
                self._memories.give(memory)

    def _tell(self, message: bytes, placed: Sequence[Memory]) -> list[Any]:
        """Send the same message to all, wait for all."""
        try:
            for number, process in enumerate(self.running):
                _send(process.stdin, struct.pack("<Q", number) + message)
            return [self._answer(process) for process in self.running]
        finally:
            for memory in placed:
                self._memories.give(memory)

    def _answer(self, process: subprocess.Popen[bytes]) -> Any:
        received = _receive(process.stdout)
        if received is None:
            self.close()
            raise PflOpsError("a worker process died (out of memory, or killed); the run goes on from its checkpoint")
        good, value = pickle.loads(received)
        if good:
            return value
        self.close()
        error, trace, lines = value
        error.add_note(trace)
        raise from_worker(error, lines)

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
    """Answer jobs until the parent closes the pipe. Where it dies, `child.command` has this process end at once."""
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
            lines = [(f.filename, f.lineno, f.name, f.line) for f in frames(error)]
            answer = (False, (_sendable(error), traceback.format_exc(), lines))
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
