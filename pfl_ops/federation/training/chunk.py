"""Chunks of a cohort: some clients' whole walk as rectangles of samples.

Clients are sorted by their number of steps, so that those still at work are always the first rows of a chunk: there is
no step mask, and an optimiser's step count is shared. Rows are padded with real samples to a rectangle; the padding
carries weight zero in the mean.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pfl_ops.federation.method.batch import Batch, Walk
from pfl_ops.federation.training import plan
from pfl_ops.federation.training.feed import Feed

STRETCH = 1 << 19  # bytes of inputs that are made ready at once: they stay in the processor's cache


@dataclass(frozen=True)
class StepBlock:
    """Consecutive steps of a chunk by the same clients with batches of one width.

    Attributes:
        active: clients at work, c. total: real samples.
        samples: sample numbers, [J, c, B].
        real: 1 on real samples, 0 on padding, [J, c, B]; share: the same over the batch's size. None: no padding.
    """

    active: int
    total: int
    samples: Tensor
    real: Tensor | None
    share: Tensor | None


class Chunk:
    """Some clients' whole walk as rectangles, longest walk first.

    Attributes:
        rows: positions of these clients in the cohort, longest walk first.
        samples: sample numbers, [J, c, B]; short batches repeat their first sample.
        counts: real samples, int64 [J, c] on the host; 0 once a client has ended. n: the same on the device.
        epoch: number of each step's epoch, int64 [J, c]; ends: last batch of it, bool [J, c]; both on the device, so
            that no step waits for a copy.
        active: clients still at work, [J]. width: samples of the longest batch, [J]. total: of all batches, [J].
        padded: whether any row is padded, [J].
    """

    def __init__(self, feed: Feed, clients: Sequence[int], rows: list[int], plans: Sequence[plan.Plan]) -> None:
        self.rows = rows
        steps = max((plans[i].steps for i in rows), default=0)
        self.counts = np.zeros((steps, len(rows)), np.int64)
        for column, i in enumerate(rows):
            self.counts[: plans[i].steps, column] = np.diff(plans[i].bounds)
        width = int(self.counts.max(initial=0))
        # all clients' places are found on the host and looked up at once: on a GPU each call costs more than its work
        places = np.zeros((steps, len(rows), width), np.int64)
        epoch, ends = np.zeros((steps, len(rows)), np.int64), np.zeros((steps, len(rows)), bool)
        for column, i in enumerate(rows):
            p = plans[i]
            if not p.steps:
                continue
            at = p.bounds[:-1, None] + np.arange(width)
            at = np.where(at < p.bounds[1:, None], at, p.bounds[:-1, None])
            places[: p.steps, column] = feed.index.offsets[clients[i]] + p.order[at]
            epoch[: p.steps, column] = p.epoch
            ends[: p.steps, column] = p.ends
        places_there, self.epoch, self.ends = (
            torch.from_numpy(values).to(feed.device) for values in (places, epoch, ends)
        )
        self.samples = feed.index.samples[places_there]
        at_work = self.counts > 0
        self.active = at_work.sum(axis=1).tolist()
        self.width = self.counts.max(axis=1, initial=0).tolist()
        self.total = self.counts.sum(axis=1).tolist()
        self.padded = ((self.counts != self.counts.max(axis=1, initial=0)[:, None]) & at_work).any(axis=1).tolist()
        self.n = torch.from_numpy(self.counts).to(feed.device, feed.dtype)

    def stretches(self, feed: Feed, limit: int = STRETCH) -> Iterator[StepBlock]:
        """The steps in stretches of which each has at most `limit` bytes of inputs, but at least one step."""
        sample = feed.x[0].numel() * torch.empty((), dtype=feed.dtype).element_size()
        first, steps = 0, len(self.active)
        while first < steps:
            kind = self.active[first], self.width[first], self.padded[first]
            active, width, padded = kind
            end, most = first + 1, first + max(1, limit // max(sample * active * width, 1))
            while end < min(steps, most) and (self.active[end], self.width[end], self.padded[end]) == kind:
                end += 1
            real = share = None
            if padded:
                n = self.n[first:end, :active, None]
                real = (torch.arange(width, device=n.device) < n).to(n.dtype)
                share = real / n
            yield StepBlock(active, sum(self.total[first:end]), self.samples[first:end, :active, :width], real, share)
            first = end

    def batches(self, feed: Feed, walk: Walk) -> Iterator[Batch]:
        """One `Batch` a step, over the clients still at work."""
        for j, active in enumerate(self.active):
            x, y = feed.batch(self.samples[j, :active, : self.width[j]])
            yield Batch(walk, self, j, active, x, y)
