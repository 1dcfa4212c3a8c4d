"""Several processes of one thread each that train a cohort together, on rows in shared memory.

On a CPU two processes of one thread are faster than one process of two: small batches keep one core busy, seldom two.
What a client computes depends on its own keys alone, so who computes it makes no difference.
"""

import atexit
import contextlib
import io
import os
import pickle
import signal
import struct
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import torch
from torch import Tensor

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.batch import Keys, Length, Step
from pfl_ops.federation.contract import Loss
from pfl_ops.federation.optim import Rule
from pfl_ops.federation.train import Trainer
from pfl_ops.registry import load_plugin, plugins

SHARED_FROM = 1 << 18  # bytes; smaller tensors travel in the message itself


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


def _pickle(thing: Any, outs: Mapping[int, Shared]) -> tuple[bytes, list[Shared]]:
    """The message, and the shared memory that it names: every large tensor is put there once, `outs` are there already.

    By cloudpickle, because a method's step may be a function inside a function.
    """
    import cloudpickle

    placed: list[Shared] = []

    class Message(cloudpickle.Pickler):
        def reducer_override(self, thing: Any) -> Any:
            if type(thing) is not Tensor or thing.numel() * thing.element_size() < SHARED_FROM:
                shared = outs.get(id(thing))
            else:
                shared = outs.get(id(thing)) or Shared(thing.shape, thing.dtype)
                if id(thing) not in outs:
                    shared.tensor.copy_(thing)
                    placed.append(shared)
            if shared is None:
                return super().reducer_override(thing)
            return _attach, (shared.path, shared.shape, shared.dtype)

    file = io.BytesIO()
    Message(file).dump(thing)
    return file.getvalue(), placed


class PooledTrainer(Trainer):
    """A `Trainer` of the loop way whose clients are trained by several processes.

    Args:
        trainer: what each of them does. workers: how many.
    """

    def __init__(self, trainer: Trainer, workers: int) -> None:
        super().__init__(
            trainer.task, trainer.feed, trainer.rule, trainer.length, None, trainer.bfloat16, trainer.draws
        )
        self.workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []

    # -- the two verbs that are worth it ------------------------------------------------------------------------------

    def train(
        self,
        clients: Sequence[int],
        start: Tensor,
        length: Length,
        keys: Keys,
        rule: Rule,
        *,
        loss: Loss | None = None,
        ctx: Mapping[str, Tensor] | None = None,
        shift: Tensor | None = None,
        pull: tuple[float | Tensor, Tensor] | None = None,
        only: slice | None = None,
    ) -> Tensor:
        """As `Trainer.train`; the rows come back in shared memory."""
        out = Shared((len(clients), start.shape[-1]), start.dtype)
        given = {"loss": loss, "ctx": ctx, "shift": shift, "pull": pull, "only": only}
        job = {"verb": "train", "start": start, "length": length, "keys": keys, "rule": rule, "given": given}
        self._share_out(clients, length, keys, job, {"": out})
        return out.tensor

    def walk(
        self, clients: Sequence[int], carry: Mapping[str, Tensor], step: Step, length: Length, keys: Keys, rule: Rule
    ) -> dict[str, Tensor]:
        """As `Trainer.walk`; the rows come back in shared memory."""
        outs = {name: Shared(value.shape, value.dtype) for name, value in carry.items()}
        job = {"verb": "walk", "carry": dict(carry), "step": step, "length": length, "keys": keys, "rule": rule}
        self._share_out(clients, length, keys, job, outs)
        return {name: out.tensor for name, out in outs.items()}

    def _share_out(
        self, clients: Sequence[int], length: Length, keys: Keys, job: dict[str, Any], outs: Mapping[str, Shared]
    ) -> None:
        """Longest walks first, each to the process with the least to do so far; then wait for all."""
        if not self._processes:
            self._start()
        parts: list[list[int]] = [[] for _ in range(self.workers)]
        load = [0] * self.workers
        steps = [plan.steps for plan in self.plans(clients, length, keys)]
        for i in sorted(range(len(clients)), key=lambda i: -steps[i]):
            least = load.index(min(load))
            parts[least].append(i)
            load[least] += steps[i] + 1
        tensors = {name: shared.tensor for name, shared in outs.items()}
        mine = {id(tensors[name]): shared for name, shared in outs.items()}
        message, placed = _pickle({**job, "clients": list(clients), "outs": tensors, "parts": parts}, mine)
        try:
            for process in self._processes:
                _send(process.stdin, message)
            for answer in [self._answer(process) for process in self._processes]:
                for stream, total, samples in answer:
                    self.meter.add(stream, torch.tensor(total, dtype=torch.float64), samples)
        finally:
            for shared in [*placed, *outs.values()]:
                shared.close()

    # -- processes ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        plain = Trainer(self.task, self.feed, self.rule, self.length, None, self.bfloat16, self.draws)
        code = f"import sys; sys.path[:] = {sys.path!r}; from pfl_ops.federation.workers import serve; serve()"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        atexit.register(self.close)
        for _ in range(self.workers):
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
                )
            )
        message, placed = _pickle(plain, {})
        for number, process in enumerate(self._processes):
            _send(process.stdin, pickle.dumps((number, list(plugins().values()))) + message)
        for process in self._processes:
            self._answer(process)
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
        """End the processes; the next call starts new ones."""
        atexit.unregister(self.close)
        for process in self._processes:
            process.kill()
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # a message that nobody will read
                        pipe.close()
            process.wait()
        self._processes = []

    def __del__(self) -> None:
        if getattr(self, "_processes", None):
            self.close()


def serve() -> None:
    """What a worker process does: answer jobs until its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    torch.set_num_threads(1)
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a print in a user's step must not end up in an answer
    first = _receive(incoming)
    if first is None:
        return
    setup = io.BytesIO(first)
    number, files = pickle.load(setup)
    for file in files:
        load_plugin(file)  # before the trainer, which may hold what they define
    trainer: Trainer = pickle.load(setup)
    _send(outgoing, pickle.dumps((True, None)))
    while (message := _receive(incoming)) is not None:
        try:
            answer: tuple[bool, Any] = (True, _do(trainer, number, pickle.loads(message)))
        except Exception as error:
            answer = (False, (_sendable(error), traceback.format_exc()))
        _send(outgoing, pickle.dumps(answer))


def _do(trainer: Trainer, number: int, job: dict[str, Any]) -> list[tuple[str, float, int]]:
    """Train this process's clients, write their rows where all can see them, and say what the meter counted."""
    rows = torch.tensor(job["parts"][number], dtype=torch.int64)
    clients = [job["clients"][i] for i in rows.tolist()]
    trainer.meter.clear()
    if clients and job["verb"] == "train":
        given = job["given"]
        mine = {
            "loss": given["loss"],
            "ctx": given["ctx"] and {name: value[rows] for name, value in given["ctx"].items()},
            "shift": _rows(given["shift"], rows),
            "pull": given["pull"] and _pull(given["pull"], rows),
            "only": given["only"],
        }
        start = job["start"] if job["start"].dim() == 1 else job["start"][rows]
        job["outs"][""][rows] = trainer.train(clients, start, job["length"], job["keys"], job["rule"], **mine)
    elif clients:
        carry = {name: value[rows] for name, value in job["carry"].items()}
        found = trainer.walk(clients, carry, job["step"], job["length"], job["keys"], job["rule"])
        for name, value in found.items():
            job["outs"][name][rows] = value
    stream = job["length"].stream
    return [(stream, float(trainer.meter.total), trainer.meter.by_stream.get(stream, 0))]


def _rows(value: Tensor | None, rows: Tensor) -> Tensor | None:
    return value if value is None or value.dim() == 1 else value[rows]


def _pull(pull: tuple[float | Tensor, Tensor], rows: Tensor) -> tuple[float | Tensor, Tensor | None]:
    mu, anchor = pull
    return (mu[rows] if isinstance(mu, Tensor) else mu), _rows(anchor, rows)


def _sendable(error: Exception) -> Exception:
    """The error itself where it can travel, else its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _send(pipe: Any, message: Any) -> None:
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
