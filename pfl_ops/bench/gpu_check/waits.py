"""Moments in a training step at which the host waits for the GPU, found by PyTorch's own detector.

A step reaches from a chunk's first batch to its last. `torch.cuda.set_sync_debug_mode` is "warn" there, not "error", so
that a method which waits runs to its end and all places are listed.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pfl_ops.federation.training.chunk import Chunk
from pfl_ops.system.attributes import replace_attributes

SYNC = "synchronizing CUDA operation"

KNOWN: Mapping[str, str] = {"drfa": "drfa.py", "fedala": "fedala.py"}
"""Methods whose steps wait -> the file that does. Each looks at a value to skip work of which most steps have none.

To mend them would change the digest of their code, so that finished runs of theirs would be computed again."""


@contextmanager
def around_steps(begin: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
    """Call `begin` before the first batch of each chunk is taken, and `end` after the last."""

    def marked(batches: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def generator(*args: Any) -> Iterator[Any]:
            begin()
            try:
                yield from batches(*args)
            finally:
                end()

        return generator

    steps = {name: marked(getattr(Chunk, name)) for name in ("batches", "stretches")}
    with replace_attributes(Chunk, **steps):
        yield


@contextmanager
def waits_in_steps(found: Counter[str]) -> Iterator[None]:
    """Add the waits of all steps taken in the block to `found`, by "file:line", when the block is left."""
    mode = torch.cuda.set_sync_debug_mode
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        try:
            with around_steps(lambda: mode("warn"), lambda: mode("default")):
                yield
        finally:
            mode("default")
            found.update(f"{Path(one.filename).name}:{one.lineno}" for one in log if SYNC in str(one.message))
