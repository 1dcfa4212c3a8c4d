"""SIGTERM, as job schedulers and containers send it, ends a command like Ctrl-C; and neither is ever lost."""

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from pfl_ops.cli.output import INTERRUPTED

SIGTERM_CODE = 143


def sigterm_as_ctrl_c(main: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
    """Decorator: SIGTERM does what Ctrl-C does at that moment (rounds are kept, runs are KILLED); exit code 143.

    A signal of either kind that comes in a destructor, or in the callback of a weak reference, is sent once more: there
    Python would print the exception and go on.
    """

    @functools.wraps(main)
    def guarded(*args: Any, **kwargs: Any) -> NoReturn:
        terminated = False

        def interrupt(number: int, frame: FrameType | None) -> None:
            nonlocal terminated
            signal.alarm(0)  # Ray's own handler, if it ran before this one in another thread, would abort in 3 s
            terminated = True
            handler = signal.getsignal(signal.SIGINT)
            # Called, not sent: a shell starts a command in the background with SIGINT ignored
            (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

        def repeat(lost: "sys.UnraisableHookArgs") -> None:
            if lost.exc_type is not KeyboardInterrupt:
                usual(lost)
                return
            again = signal.SIGTERM if terminated else signal.SIGINT
            threading.Timer(0.05, os.kill, (os.getpid(), again)).start()

        if threading.current_thread() is not threading.main_thread():  # only that one may set handlers
            main(*args, **kwargs)
        before, usual = signal.signal(signal.SIGTERM, interrupt), sys.unraisablehook
        sys.unraisablehook = repeat
        try:
            main(*args, **kwargs)
        except SystemExit as end:
            if terminated and end.code == INTERRUPTED:
                sys.exit(SIGTERM_CODE)
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
            sys.unraisablehook = usual

    return guarded
