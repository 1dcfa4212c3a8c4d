"""Processes of one thread each that hold the same things and answer jobs; large tensors travel as shared memory."""

import io
import os
import pickle
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from pfl_ops.errors import PflOpsError, frames, from_worker
from pfl_ops.system.allocator import keep_freed_memory
from pfl_ops.system.collector import collect_as_usual
from pfl_ops.system.hosting import HostedProcess, ProcessDeath

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
        path: what other processes map. close: no further one may; a tensor in it stays as long as it is referenced.
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


class SharedMemoryPool:
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
        """Mark it as no longer read or written."""
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
            if isinstance(thing, nn.Module) and is_parametrized(thing):  # PyTorch refuses to pickle it
                return _without_state, (type(thing),), vars(thing)
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


def _without_state(kind: type[nn.Module]) -> nn.Module:
    """A module whose attributes pickle is about to set."""
    return kind.__new__(kind)


class Processes:
    """Several processes that each hold a copy of some things, and share the memory of their large tensors.

    Args:
        count: how many.
        held: name -> thing, as it is when they start.
    """

    def __init__(self, count: int, held: Mapping[str, Any]) -> None:
        self.count, self.held = count, held
        self.running: list[HostedProcess] = []
        self._memories = SharedMemoryPool()
        weakref.finalize(self, _end, self.running)

    def start(self) -> None:
        """Start them, unless they are there."""
        if self.running:
            return
        one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        try:
            for number in range(self.count):
                self.running.append(HostedProcess(f"{__name__}.Worker", number, environment=one_thread, quiet=False))
            message, placed = _pickle(dict(self.held), lambda *like: Memory(_bytes(*like), None), {})
        except BaseException:
            self.close()
            raise
        self._tell("hold", message, placed)

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
            answers = self._tell("work", *_pickle(job, self._memories.take, known))
            return answers, {n: t.clone() if memories[n].number else t for n, t in tensors.items()}
        finally:
            for memory in memories.values():
                self._memories.give(memory)

    def _tell(self, method: str, message: bytes, placed: Sequence[Memory]) -> list[Any]:
        """Send the same message to all, wait for all. After any error they are ended: answers may be left unread."""
        try:
            for process in self.running:
                process.begin(method, message)
            return [self._answer(process) for process in self.running]
        except BaseException:
            self.close()
            raise
        finally:
            for memory in placed:
                self._memories.give(memory)

    def _answer(self, process: HostedProcess) -> Any:
        try:
            found = pickle.loads(process.answer())
        except ProcessDeath:
            raise PflOpsError(
                "a worker process died (out of memory, or killed); the run goes on from its checkpoint"
            ) from None
        if isinstance(found, RaisedError):
            found.error.add_note(found.trace)
            raise from_worker(found.error, found.lines)
        return found

    def close(self) -> None:
        """End them; the next job starts new ones."""
        _end(self.running)


def _end(running: list[HostedProcess]) -> None:
    """End them; also called once their `Processes` is no longer referenced, and when this process ends."""
    for process in running:
        process.signal_end()
    for process in running:
        process.kill()
    running.clear()


# -- in such a process -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RaisedError:
    """An error of a job, as it travels.

    Attributes:
        error: itself where it can travel. trace: in words. lines: of its frames: file, number, function, text.
    """

    error: BaseException
    trace: str
    lines: Sequence[tuple[str, int | None, str, str | None]]


class Worker:
    """Answers jobs in a process of one thread.

    Answers are bytes: PyTorch would share the memory of a small tensor on its own way through a pipe.

    Args:
        number: which of the parts of a job is its own.
    """

    def __init__(self, number: int) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        collect_as_usual()
        self.number = number
        self.held: dict[str, Any] = {}

    def hold(self, message: bytes) -> bytes:
        """Keep the things of a message for all jobs. Returns None, or the error that it ended with."""
        try:
            self.held = pickle.loads(message)
            return pickle.dumps(None)
        except Exception as error:
            return pickle.dumps(raised(error))

    def work(self, message: bytes) -> bytes:
        """Do this process's part of a job. Returns the result, or the error that it ended with."""
        try:
            do, parts, given = pickle.loads(message)
            return pickle.dumps(do(self.held, parts[self.number], **given))
        except BaseException as error:  # a user's loss or step may raise anything
            return pickle.dumps(raised(error))


def raised(error: BaseException) -> RaisedError:
    """Return an error as it travels: as text where it can't itself."""
    lines = [(f.filename, f.lineno, f.name, f.line) for f in frames(error)]
    trace = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return RaisedError(error, trace, lines)
