"""An object in a process of its own, whose methods are called through a pipe: cohorts are trained, and probes and
benchmarks measure, in such processes.

The process is a fresh interpreter. It imports from where this process does, loads the user's plug-ins, and ends with
this process, however that ends. Ctrl-C is the parent's business. Whatever is printed there goes to a file, of which the
last line is reported if the process dies, or to this process's standard error.
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.registry import load_plugin, plugins
from pfl_ops.system import child
from pfl_ops.system.memory import out_of_memory

LONGEST = 300  # characters of an error's line
STANDARD_ERROR = 2  # the file descriptor: `sys.stderr` is none in a notebook


class ProcessDeath(PflOpsError):
    """The process is gone."""


class OutOfMemory(PflOpsError):
    """The request does not fit into memory; the process may be gone."""


class ProcessKill(ProcessDeath, OutOfMemory):
    """The process was killed."""


@dataclass(frozen=True)
class AnswerWithWork:
    """A method's answer, and what the process goes on with until the next call.

    Attributes:
        answer: sent at once. step: called again and again.
    """

    answer: Any
    step: Callable[[], object]


class HostedProcess:
    """An object in a process of its own.

    The object is made with the first call, so that several processes may start at once.

    Args:
        factory: what makes the object, `package.module.name`. arguments: for it.
        environment: further variables of the process.
        quiet: True if what it prints goes to a file.
    """

    def __init__(
        self, factory: str, *arguments: Any, environment: Mapping[str, str] | None = None, quiet: bool = True
    ) -> None:
        self.pipe, theirs = Pipe()
        self._said = tempfile.TemporaryFile() if quiet else None  # noqa: SIM115  (closed by kill)
        printed = self._said or STANDARD_ERROR
        try:
            with theirs:
                self._process = subprocess.Popen(
                    child.command("pfl_ops.system.hosting.serve", theirs.fileno()),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=printed,
                    env={**os.environ, **(environment or {})},
                )
        except BaseException:
            self._close()
            raise
        self._send((list(plugins().values()), factory, arguments))

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True until the process has ended."""
        return self._process.poll() is None

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method and return what it returns.

        Raises:
            OutOfMemory: it did not fit. ProcessDeath: it is gone. PflOpsError: what the method raised, in one line.
        """
        self.begin(method, *arguments)
        return self.answer()

    def begin(self, method: str, *arguments: Any) -> None:
        """Call a method without waiting for the answer."""
        self._send((method, arguments))

    def answer(self) -> Any:
        """Wait for the answer; raises as `call`."""
        try:
            kind, value = self.pipe.recv()
        except (EOFError, OSError):  # OSError: in the middle of an answer
            raise self._death() from None
        if kind == "done":
            return value
        raise (OutOfMemory if kind == "memory" else PflOpsError)(value)

    def signal_end(self) -> None:
        """Have the process end, whatever it does at the moment; `kill` waits for it."""
        self._process.kill()

    def kill(self) -> None:
        """End the process, whatever it does at the moment."""
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        self.pipe.close()
        if self._said is not None:
            self._said.close()

    def _send(self, message: object) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # told by the answer that does not come
            self.pipe.send(message)

    def _death(self) -> ProcessDeath:
        if self._process.wait() == -signal.SIGKILL:
            return ProcessKill("a process was killed, as the system does when memory runs out")
        lines: list[str] = []
        if self._said is not None:
            self._said.seek(0)
            lines = self._said.read().decode(errors="replace").strip().splitlines()
        return ProcessDeath(f"a child process died: {lines[-1] if lines else f'exit {self._process.returncode}'}")


def answers(hosted: Sequence[HostedProcess], patience: float) -> list[Any]:
    """Return the answers of several, in their order, to a method that was begun in all of them.

    Args:
        patience: seconds for all of them.
    Raises:
        PflOpsError: as `HostedProcess.call`; or one gave no answer in time.
    """
    found: dict[Any, Any] = {}
    while len(found) < len(hosted):
        ready = wait([one.pipe for one in hosted if one.pipe not in found], patience)
        if not ready:
            raise PflOpsError(f"a child process gave no answer for {patience:.0f} s")
        found |= {one.pipe: one.answer() for one in hosted if one.pipe in ready}
    return [found[one.pipe] for one in hosted]


# -- in such a process -------------------------------------------------------------------------------------------------


def serve(handle: int) -> None:
    """Make the object and answer calls, ("done", value) or ("memory" | "error", line) each, until the parent is gone.

    Args:
        handle: file descriptor of this process's end of the pipe.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = Connection(handle)
    calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, calls), daemon=True).start()
    files, factory, arguments = calls.get()
    made: Any = None
    while True:
        method, given = calls.get()
        try:
            if made is None:
                for file in files:
                    load_plugin(file)
                module, _, name = factory.rpartition(".")
                made = getattr(import_module(module), name)(*arguments)
            value = getattr(made, method)(*given)
            pipe.send(("done", value.answer if isinstance(value, AnswerWithWork) else value))
            while isinstance(value, AnswerWithWork) and calls.empty():
                value.step()
        except BaseException as error:  # a user's code may raise anything
            sys.excepthook(type(error), error, error.__traceback__)
            memory = out_of_memory(error)
            line = " ".join(str(error).split())[:LONGEST] if memory else in_a_line(error, LONGEST)
            pipe.send(("memory" if memory else "error", line))


def _listen(pipe: Connection, calls: "queue.SimpleQueue[Any]") -> None:
    """Hand on calls; when the parent has let go, end at once, in the middle of a computation too."""
    try:
        while True:
            calls.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(1)
