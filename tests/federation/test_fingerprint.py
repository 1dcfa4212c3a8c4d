"""Fingerprints of models: equal for equal bits, whatever the device, the block or the stack."""

import struct

import pytest
import torch
from simulated_device import DEVICE, simulated_device
from torch import Tensor

from pfl_ops.federation.method.contract import Models
from pfl_ops.federation.scoring import fingerprint
from pfl_ops.federation.scoring.fingerprint import digests, fingerprints


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of four numbers, and one row at a time."""
    monkeypatch.setattr(fingerprint, "BLOCK", 4)
    monkeypatch.setattr(fingerprint, "BYTES_AT_ONCE", 1)


@pytest.mark.usefixtures("small_blocks")
def test_digest_is_the_sum_of_its_equation() -> None:
    """Σ_b v_b Σ_i u_i x_bi modulo 2⁶⁴ in Python's own integers: ten numbers are two blocks of four and one of two."""
    rows = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    u, v = (fingerprint._multipliers(count, "cpu").tolist() for count in (4, 3))
    for row, found in zip(rows, digests(rows).tolist(), strict=True):
        bits = [struct.unpack("<i", struct.pack("<f", x))[0] for x in row.tolist()]
        for k in range(2):
            total = sum(v[k][i // 4] * u[k][i % 4] * x for i, x in enumerate(bits))
            assert (total - found[k]) % (1 << 64) == 0


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("column", [0, 3, 4, 7, 8, 9])
def test_digest_of_a_row_with_another_number_differs(column: int) -> None:
    """The last bit of any number, and the sign of zero, make another row."""
    rows = torch.zeros(4, 10)
    rows[1, column] = torch.finfo(torch.float32).smallest_normal
    rows[2, column] = -0.0
    first, other, signed, same = digests(rows).tolist()
    assert first == same and len({tuple(first), tuple(other), tuple(signed)}) == 3


@pytest.mark.parametrize(
    "rows",
    [
        torch.tensor([[True, False], [True, False], [False, True]]),
        torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64),
        torch.tensor([[1, 2], [1, 2], [2, 1]]),
        torch.tensor([[[1.0], [2.0]], [[1.0], [2.0]], [[1.0], [3.0]]], dtype=torch.bfloat16),
        torch.tensor([[1.0, float("nan")], [1.0, float("nan")], [float("nan"), 1.0]]),
    ],
    ids=["bool", "one number", "integers", "bfloat16", "nan"],
)
@pytest.mark.parametrize("device", ["cpu", DEVICE], ids=str)
def test_models_with_equal_bits_have_one_fingerprint(rows: Tensor, device: str) -> None:
    """The first two rows are equal, the third is not; as parameters and as what `predict` needs."""
    same = torch.ones(3, 2)
    with simulated_device():
        for params, ctx in ((rows, {}), (same, {"more": rows})):
            given = {key: value.to(device) for key, value in ctx.items()}
            one, two, three = fingerprints(Models(params.to(device), torch.arange(3), given))
            assert one == two != three


def _predict(net: object, w: Tensor, x: Tensor) -> Tensor:
    return x


def test_models_that_answer_differently_have_different_fingerprints() -> None:
    """Equal parameters, and another function that answers."""
    rows, who = torch.ones(1, 2), torch.tensor([0])
    assert fingerprints(Models(rows, who)) != fingerprints(Models(rows, who, predict=_predict))
