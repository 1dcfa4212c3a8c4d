"""Python's collector of cyclic garbage, which looks at all objects again and again.

Libraries make several 100,000 objects when they are imported, nearly all of which stay. By default a third of the CPU
time of a short command goes into looking at them: during the imports, and once more when Python ends.
"""

import atexit
import gc
import sys

USUAL = gc.get_threshold()
WHILE_IMPORTING = 1_000_000  # new objects between two collections; Python's default is 700 to 2,000


def collect_rarely() -> None:
    """Nearly stop collections, until `collect_as_usual`; leave them out when Python ends. For processes of our own."""
    gc.set_threshold(WHILE_IMPORTING)
    atexit.register(_leave_out)


def collect_as_usual() -> None:
    """Undo `collect_rarely` before training or drawing; objects that are there by now are never looked at again.

    Does nothing in a process that has not called `collect_rarely`, such as a user's own.
    """
    if gc.get_threshold()[0] == WHILE_IMPORTING:
        gc.freeze()
        gc.set_threshold(*USUAL)


def _leave_out() -> None:
    if "triton" not in sys.modules:  # it prints a page about each object of its own that is left
        gc.freeze()
