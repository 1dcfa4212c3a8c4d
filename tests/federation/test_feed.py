"""Samples on the device: bytes until a batch is taken, then normalised, channels first in shape and last in memory."""

import numpy as np
import pytest
import torch

from pfl_ops.data.clients import Pool
from pfl_ops.federation.training.feed import Feed

CPU = torch.device("cpu")


def images(dtype: torch.dtype = torch.float32) -> tuple[Feed, torch.Tensor]:
    x = torch.arange(4 * 2 * 3 * 2, dtype=torch.uint8).view(4, 2, 3, 2)  # [n, H, W, C]
    pool = Pool(x, torch.tensor([0, 1, 2, 1]), [torch.tensor([1, 3]), torch.tensor([0, 2])])
    return Feed(pool, np.array([10.0, 20.0], np.float32), np.array([2.0, 4.0], np.float32), CPU, dtype), x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_images(dtype: torch.dtype) -> None:
    feed, x = images(dtype)
    found, y = feed.batch(torch.tensor([3, 0]))
    assert found.shape == (2, 2, 2, 3) and found.dtype == dtype and y.tolist() == [1, 0]
    for i, sample in enumerate((3, 0)):
        for c, (mean, std) in enumerate(((10, 2), (20, 4))):
            assert found[i, c].tolist() == pytest.approx((x[sample, :, :, c].double() - mean).div(std))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert feed.x.dtype == torch.uint8 and torch.equal(feed.x, x), "the samples stay as they are"


def test_a_batch_of_clients() -> None:
    feed, _ = images()
    numbers = torch.tensor([[0, 1, 2], [3, 3, 0]])
    found, y = feed.batch(numbers)
    assert found.shape == (2, 3, 2, 2, 3) and y.shape == (2, 3)
    for i in range(2):
        assert torch.equal(found[i], feed.inputs(numbers[i]))


def test_features() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    feed = Feed(
        Pool(x, torch.tensor([0, 1]), [torch.arange(2)]), np.array([1, 1]), np.array([1, 2]), CPU, torch.float32
    )
    found, _ = feed.batch(torch.tensor([[1, 0]]))
    assert found.tolist() == [[[2.0, 2.0], [0.0, 0.5]]]
    assert x.tolist() == [[1.0, 2.0], [3.0, 5.0]], "float samples are not normalised in place"
    assert feed.sizes.tolist() == [2] and not feed.images
