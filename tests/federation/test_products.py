"""Linear layers of several models by oneDNN and by PyTorch's operators, beside their sums in float64."""

import pytest
import torch

from pfl_ops.federation.network import products
from pfl_ops.federation.network.products import linear, linears


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the products that are left to oneDNN, which is taken for the faster one here."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    found, takes = [], products._takes

    def noted(x: torch.Tensor, weight: torch.Tensor) -> bool:
        if takes(x, weight):
            found.append((*x.shape, len(weight)))
        return takes(x, weight)

    monkeypatch.setattr(products, "_is_faster", lambda: True)
    monkeypatch.setattr(products, "_takes", noted)
    return found


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    ("inputs", "models", "shapes"), [(1, 1, {(100, 50, 300)}), (1, 3, {(100, 50, 900)}), (3, 3, {(100, 50, 300)})]
)
def test_products_are_those_of_float64(inputs, models, shapes, biased, calls) -> None:
    """2 · 100 · 50 · 300 operations a model: enough for oneDNN."""
    g = torch.Generator().manual_seed(0)
    x, weight = torch.randn(inputs, 100, 50, generator=g), torch.randn(models, 300, 50, generator=g)
    bias = torch.randn(models, 300, generator=g) if biased else None
    exact = torch.einsum("cbi,coi->cbo", x.double().expand(models, -1, -1), weight.double())
    exact = exact if bias is None else exact + bias.double()[:, None]
    assert not calls
    for context in (torch.no_grad, torch.enable_grad):
        with context():
            found = linears(x, weight, bias)
        assert found.shape == (models, 100, 300)
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-4)
    assert set(calls) == shapes  # without gradients alone
    with torch.no_grad():
        one = linear(x[0], weight[0], None if bias is None else bias[0])
    torch.testing.assert_close(one.double(), exact[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("strided", ["x", "weight", "bias"])
@pytest.mark.parametrize("how", ["every second", "transposed", "repeated"])
def test_any_strides(strided, how, calls) -> None:
    """Numbers that do not lie side by side, of one model and of three."""
    g = torch.Generator().manual_seed(0)
    given = {
        "x": torch.randn(3, 100, 50, generator=g),
        "weight": torch.randn(3, 300, 50, generator=g),
        "bias": torch.randn(3, 300, generator=g),
    }
    values = given[strided]
    given[strided] = {
        "every second": values.repeat_interleave(2, -1)[..., ::2],
        "transposed": values.mT.contiguous().mT,
        "repeated": values[..., :1].expand_as(values),
    }[how]
    x, weight, bias = given.values()
    exact = torch.einsum("cbi,coi->cbo", x.double(), weight.double()) + bias.double()[:, None]
    with torch.no_grad():
        found = [linears(x, weight, bias), linears(x[:1], weight, bias)[:1], linear(x[0], weight[0], bias[0])[None]]
    assert (100, 50, 300) in calls and (100, 50, 900) in calls
    for scores in found:
        torch.testing.assert_close(scores.double(), exact[: len(scores)], rtol=0, atol=1e-4)


def test_onednn_has_large_products_in_float32_without_gradients_and_no_others(calls) -> None:
    x, weight = torch.ones(1, 100, 50), torch.ones(1, 300, 50)
    with torch.no_grad():
        linears(x.double(), weight.double(), None)
        linears(x[:, :50], weight, None)  # 1.5 million operations
        linears(x.to("meta"), weight.to("meta"), None)
        with torch.autocast("cpu", torch.bfloat16):
            linears(x, weight, None)
        assert not calls
        linears(x, weight, None)
    linears(x, weight, None)
    assert calls == [(100, 50, 300)] * 2  # asked by `linears`, and by `linear`


@pytest.mark.parametrize("there", [True, False])
def test_it_is_faster_where_pytorch_has_it_on_amds_processors_of_full_width(there, monkeypatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: there)
    for wide in (True, False):
        monkeypatch.setattr(products, "is_amd_of_full_width", lambda wide=wide: wide)
        assert products._is_faster.__wrapped__() is (there and wide)
