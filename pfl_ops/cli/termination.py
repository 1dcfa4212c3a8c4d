"""SIGTERM, as job schedulers and containers send it, ends a command like Ctrl-C."""

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

CTRL_C_CODE, SIGTERM_CODE = 130, 143


def sigterm_as_ctrl_c(main: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
    """Decorator: SIGTERM does what Ctrl-C does at that moment (rounds are kept, runs are KILLED); exit code 143."""

    @functools.wraps(main)
    def guarded(*args: Any, **kwargs: Any) -> NoReturn:
        terminated = False

        def interrupt(number: int, frame: FrameType | None) -> None:
            nonlocal terminated
            signal.alarm(0)  # Ray's own handler, if it ran before this one in another thread, would abort in 3 s
            if _swallowed(frame):
                threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
                return
            terminated = True
            handler = signal.getsignal(signal.SIGINT)
            # Called, not sent: a shell starts a command in the background with SIGINT ignored
            (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

        if threading.current_thread() is not threading.main_thread():  # only that one may set handlers
            main(*args, **kwargs)
        before = signal.signal(signal.SIGTERM, interrupt)
        try:
            main(*args, **kwargs)
        except SystemExit as end:
            if terminated and end.code == CTRL_C_CODE:
                sys.exit(SIGTERM_CODE)
            raise
        finally:
            signal.signal(signal.SIGTERM, before)

    return guarded


def _swallowed(frame: FrameType | None) -> bool:
    """Return True in a destructor or a weak reference's callback: Python would print an exception there and go on."""
    while frame is not None:
        if frame.f_code.co_name == "__del__" or Path(frame.f_code.co_filename).name in ("weakref.py", "_weakrefset.py"):
            return True
        frame = frame.f_back
    return False
