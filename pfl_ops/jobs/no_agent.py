"""In place of a Ray agent that serves no job (see `ray_instance`): a process that ends as soon as Ray's raylet has.

Started with this file's path by Python alone: it imports nothing of the package.
"""

import os
import time

PAUSE = 0.5  # seconds between two looks at the parent


def wait_for_parent() -> None:
    """Return when the process that has started this one is gone."""
    parent = os.getppid()
    while os.getppid() == parent != 1:  # 1: it was gone before
        time.sleep(PAUSE)


if __name__ == "__main__":
    wait_for_parent()
