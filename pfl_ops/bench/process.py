"""Each candidate in a process of its own: what one sets for its whole process (threads, PyTorch's switches, how freed
memory is kept) touches no other, and its peak memory is its own. They take their windows in turns."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import traceback
from typing import Any

import torch

from pfl_ops import child
from pfl_ops.bench.candidate import Candidate, Label
from pfl_ops.bench.case import Case
from pfl_ops.bench.settings import Figure
from pfl_ops.bench.stopwatch import Stopwatch, Window
from pfl_ops.errors import PflOpsError
from pfl_ops.federation import choose, memory
from pfl_ops.federation.settings import Execution
from pfl_ops.registry import load_plugin, plugins


class Hosted:
    """A candidate that works in a process of its own.

    Args:
        case: what it works on. label: which. threads: of it; None: its own default.
    Attributes:
        figures: what it has a part in. count: threads with which it computes, its workers together.
    Raises:
        PflOpsError: the engine refuses this execution, or JAX this network; or the process died.
    """

    def __init__(self, case: Case, label: Label, threads: int | None) -> None:
        self.label = label
        argv = child.command("pfl_ops.bench.process.serve")
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        settings = case.settings.model_copy(update={"steps": case.steps})
        try:
            self.figures: tuple[Figure, ...]
            self.figures, self.count = self._ask(
                list(plugins().values()), (settings, case.model, case.batch, case.data_dir), label, threads
            )
        except BaseException:
            self.close()
            raise

    def trial(self, figure: Figure) -> float:
        """As `Stopwatch.trial`."""
        return float(self._ask("trial", figure))

    def warm(self, figure: Figure, least: float) -> Window:
        """As `Stopwatch.warm`."""
        return Window(*self._ask("warm", figure, least))

    def seconds(self, figure: Figure, calls: int) -> float:
        """As `Stopwatch.seconds`."""
        return float(self._ask("seconds", figure, calls))

    def memory_mib(self) -> float | None:
        """MiB at the peak so far: of a GPU what PyTorch allocated there (None: it is not PyTorch that works), else of
        the process, libraries included, and its workers added up."""
        found: float | None = self._ask("memory")
        return found

    def close(self) -> None:
        """End the process, which ends its workers."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, *question: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump(question, self._process.stdin)
            self._process.stdin.flush()
            good, answer = pickle.load(self._process.stdout)
        except (BrokenPipeError, EOFError):
            raise PflOpsError("its process died (out of memory, or killed)") from None
        if not good:
            raise PflOpsError(answer)
        return answer


def make(case: Case, label: Label, threads: int | None) -> Candidate:
    """The candidate of that name.

    Raises:
        PflOpsError: the engine refuses this execution, or JAX this network.
    """
    if label.way == "plain":
        from pfl_ops.bench.plain import PlainLoop

        return PlainLoop(case, threads)
    if label.way in ("jax", "jax-vmap"):
        count = choose.threads(Execution(threads=threads))
        os.environ["NPROC"] = str(count)  # XLA's threads, read when JAX starts
        from pfl_ops.bench.jax_loop import JaxScan  # the extra `peers`

        return JaxScan(case, vmapped=label.way == "jax-vmap", threads=count)
    from pfl_ops.bench.ours import Ours

    return Ours(case, label, threads)


def serve() -> None:
    """What the process does: make its candidate, and time it as it is asked, until its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever is printed must not end up in an answer

    def answer(good: bool, value: Any) -> None:
        pickle.dump((good, value), answers)
        answers.flush()

    candidate: Candidate | None = None
    try:
        files, of_case, label, threads = pickle.load(asked)
        for file in files:
            load_plugin(file)
        case = Case(*of_case)
        candidate = make(case, label, threads)
        watch = Stopwatch(candidate, case.device)
        answer(True, (candidate.figures, candidate.threads))
        while True:
            verb, *given = pickle.load(asked)
            answer(True, _memory(candidate, case.device) if verb == "memory" else getattr(watch, verb)(*given))
    except EOFError:
        pass
    except PflOpsError as error:
        answer(False, str(error))
    except Exception as error:
        traceback.print_exc()
        answer(False, f"{type(error).__name__}: {error}")
    finally:
        if candidate is not None:
            candidate.close()


def _memory(candidate: Candidate, device: torch.device) -> float | None:
    if device.type == "cuda":
        return None if candidate.label.way.startswith("jax") else torch.cuda.max_memory_allocated(device) / 2**20
    return memory.peak() / 2**20
