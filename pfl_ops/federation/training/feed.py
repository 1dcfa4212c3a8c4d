"""Clients' samples on the device, and batches of them as the network wants to see them."""

from copy import copy

import numpy as np
import torch
from torch import Tensor

from pfl_ops.data.by_client import ByClient
from pfl_ops.data.clients import Pool


class Feed:
    """Samples resident on a device, images as the bytes they are; normalised when a batch is taken.

    Args:
        pool: samples and who owns which.
        mean, std: per channel (images) or feature, in units of the stored values.
        device: where samples live and batches come out.
        dtype: floating type of the batches.
    """

    def __init__(self, pool: Pool, mean: np.ndarray, std: np.ndarray, device: torch.device, dtype: torch.dtype) -> None:
        self.x = pool.x.to(device, dtype) if pool.x.is_floating_point() else pool.x.to(device)
        self.y = pool.y.to(device)
        self.index = ByClient(pool.by_client.samples.to(device), pool.by_client.offsets)
        self.sizes = self.index.sizes
        self.mapped = pool.mapped and self.x.data_ptr() == pool.x.data_ptr()
        self.device, self.dtype = device, dtype
        self.images = self.x.dim() == 4
        self.mean = self._fit(torch.as_tensor(mean, dtype=dtype, device=device))
        self.scale = self._fit(1 / torch.as_tensor(std, dtype=dtype, device=device))

    def _fit(self, values: Tensor) -> Tensor:
        """One number for all, or one a stored value: kernels are slow where they must repeat a few channels."""
        return values if values.numel() == 1 else values.expand(self.x.shape[1:]).contiguous()

    def as_one(self) -> "Feed":
        """The same samples, all of them with client 0."""
        one = copy(self)
        one.index = ByClient(self.index.samples.sort().values, self.index.offsets[[0, -1]])
        one.sizes = one.index.sizes
        return one

    def inputs(self, samples: Tensor) -> Tensor:
        """Normalised inputs of sample numbers [...]: [..., C, H, W], channels last in memory, or [..., d]."""
        # taken as stored, and converted while the mean is subtracted: a quarter of the time of one after the other
        x = torch.sub(self.x.index_select(0, samples.reshape(-1)), self.mean).mul_(self.scale)
        if self.images:
            x = x.movedim(-1, -3)
        return x.unflatten(0, samples.shape) if samples.dim() != 1 else x

    def batch(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [..., C, H, W] or [..., d] and labels, int64 [...], of sample numbers [...]."""
        return self.inputs(samples), self.y[samples]
