"""Child processes, most of which end with their parent, whatever ends it.

A parent that is killed can't end its children, and a child in the middle of a long computation does not read the pipe
from which it could learn. So a thread in the child asks the system for its parent's number: it changes when the parent
dies. Linux's parent-death signal would be sent as soon as the *thread* that started the child ends; a pipe stays open
as long as any other process has inherited its end.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

LOOK_EVERY = 0.25  # seconds


def command(function: str, *arguments: int | str) -> list[str]:
    """Return the command line of a fresh Python process that calls a function and ends with this process.

    The process imports modules from the same folders as this one.

    Args:
        function: its full name, `package.module.function`.
        arguments: what to call it with; plain numbers and strings, which any user of the machine can read.
    """
    return _python(f"from pfl_ops.system.child import end_with; end_with({os.getpid()}); {_call(function, arguments)}")


def lasting_command(function: str, *arguments: int | str) -> list[str]:
    """Return the command line of a fresh Python process that calls a function and may outlive this process."""
    return _python(_call(function, arguments))


def _call(function: str, arguments: Sequence[int | str]) -> str:
    module, _, name = function.rpartition(".")
    return f"from {module} import {name}; {name}({', '.join(map(repr, arguments))})"


def end_with(parent: int) -> None:
    """End this process at once, in the middle of a computation too, when its parent is gone.

    Args:
        parent: the parent's process number. A parent that died before this call counts as gone.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_EVERY)
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def lower_priority(niceness: int) -> None:
    """Make the system prefer other processes to this one, and to its session if it has one of its own.

    Linux shares the cores among sessions first, and heeds a process's niceness within its session alone.

    Args:
        niceness: 0 to 19.
    """
    os.nice(niceness)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # another system, or a kernel that does not group by session
            Path("/proc/self/autogroup").write_text(str(niceness), encoding="ascii")


def restore_priority(process: int) -> None:
    """Give another process, and its session, the priority of this one, as far as the system allows it.

    Without privileges Linux lets a session become as urgent as others again, and a process's niceness stay.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process, os.nice(0))
    with contextlib.suppress(OSError):
        group = Path("/proc/self/autogroup").read_text(encoding="ascii").split()  # "/autogroup-63 nice 0"
        mine = group[-1] if group else "0"  # the first session since the start of the system has no group
        Path(f"/proc/{process}/autogroup").write_text(mine, encoding="ascii")


def guarded(argv: Sequence[str]) -> list[str]:
    """Return a command line that runs another program, which ends, with its own children, when this process is gone.

    The exit code is the program's. SIGTERM and Ctrl-C are passed on to it.
    """
    return [*_python(f"from pfl_ops.system.child import guard; guard({os.getpid()})"), *argv]


def guard(parent: int) -> None:
    """Run the program of `guarded`, in a process group of its own."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    program: subprocess.Popen[bytes] | None = None
    early = []  # signals that came before there was a program

    def pass_on(number: int, frame: FrameType | None) -> None:
        if program is None:
            early.append(number)
        else:
            program.send_signal(number)

    for passed in (signal.SIGTERM, signal.SIGINT):
        signal.signal(passed, pass_on)
    program = subprocess.Popen(sys.argv[1:])
    for number in early:
        program.send_signal(number)
    while os.getppid() == parent:
        with contextlib.suppress(subprocess.TimeoutExpired):
            sys.exit(program.wait(LOOK_EVERY))
    os.killpg(0, signal.SIGKILL)


def _python(code: str) -> list[str]:
    """Return the command line that runs code where modules are imported from the same folders as here."""
    start = "from pfl_ops.system.collector import collect_rarely; collect_rarely()"
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {start}; {code}"]
