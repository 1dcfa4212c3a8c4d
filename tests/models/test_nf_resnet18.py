"""The norm-free ResNet-18: its size, its blocks by hand, and the variance that it is made to keep."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from pfl_ops.models import MODELS, build
from pfl_ops.models.nf_resnet18 import RELU_GAIN, Block, ScaledConv, act


def network(shape=(8, 8, 3), n_classes=10, **options):
    return build(MODELS.get("nf_resnet18")(**options), shape, n_classes, seed=0)


def test_number_of_parameters():
    """Convolutions as in ResNet-18 (two 3x3 a block, a 1x1 where the width changes), a bias and a gain a filter."""
    stages = [(64, 64), (64, 128), (128, 256), (256, 512)]
    weights = 9 * 3 * 64 + sum(9 * (i * o + 3 * o * o) + (i * o if i != o else 0) for i, o in stages)
    filters = 64 + sum(4 * o + (o if i != o else 0) for i, o in stages)
    blocks = 8  # one skip gain each
    expected = weights + 2 * filters + blocks + 512 * 10 + 10
    assert expected == 11_173_970
    model = network((32, 32, 3))
    assert sum(p.numel() for p in model.parameters()) == expected
    assert {block.alpha for block in model.body.children() if isinstance(block, Block)} == {0.2}  # Brock et al.


def test_filters_are_standardised_in_each_pass():
    """W has entries 1, 3 twice over: mean 2, and with gain 3 the filter is 3 (∓1, ±1, ...)/√18."""
    layer = ScaledConv(2, 1, 3).double()
    w = torch.tensor([1.0, 3.0]).repeat(9).view(1, 2, 3, 3).double()
    with torch.no_grad():
        layer.weight.copy_(w)
        layer.bias.fill_(0.5)
        layer.gain.fill_(3.0)
    x = torch.randn(1, 2, 5, 5, generator=torch.Generator().manual_seed(0)).double()
    expected = F.conv2d(x, 3 * (w - 2) / math.sqrt(18), padding=1) + 0.5
    assert torch.allclose(layer(x), expected, rtol=1e-5)
    with torch.no_grad():
        layer.weight.mul_(7).add_(4)  # neither scale nor mean of the stored weights acts
    assert torch.allclose(layer(x), expected, rtol=1e-5)
    with torch.no_grad():
        layer.weight.div_(700)  # centred, its square sum is 18/10,000: the filter is still no constant one
    assert torch.allclose(layer(x), expected, rtol=1e-5)


def test_a_block_by_hand():
    """x + α s conv2(act(conv1(act(x / β)))); where the width changes, the shortcut starts from the activated x / β."""
    x = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(1)).double()
    same, wider = Block(4, 4, 1, alpha=0.2, beta=1.5).double(), Block(4, 6, 2, alpha=0.3, beta=2.0).double()
    assert torch.equal(same(x), x)  # s = 0: nothing but the shortcut
    z = RELU_GAIN * F.relu(x / 2.0)
    assert torch.allclose(wider(x), wider.shortcut(z))
    for block in (same, wider):
        nn.init.constant_(block.skip, 0.7)
    z = RELU_GAIN * F.relu(x / 1.5)
    assert torch.allclose(same(x), x + 0.2 * 0.7 * same.conv2(RELU_GAIN * F.relu(same.conv1(z))))
    z = RELU_GAIN * F.relu(x / 2.0)
    expected = wider.shortcut(z) + 0.3 * 0.7 * wider.conv2(RELU_GAIN * F.relu(wider.conv1(z)))
    assert torch.allclose(wider(x), expected)
    assert wider(x).shape == (2, 6, 3, 3)


def test_an_activation_keeps_variance_one():
    """For z ~ N(0, 1): E relu² = 1/2, (E relu)² = 1/(2π), so γ² = 2/(1 - 1/π)."""
    z = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    assert abs(RELU_GAIN**2 * (1 / 2 - 1 / (2 * math.pi)) - 1) < 1e-12
    assert abs(act(z).var().item() - 1) < 0.02


def test_signals_keep_their_variance_at_the_start():
    """With every s = 1 the variance grows by α² a block and starts anew where the width changes, as β expects.

    The zeros around a map take variance away, the more the smaller it is: a tenth a convolution on the last
    stage's 12 x 12. Without standardised weights, γ, β or α a block misses its value by a quarter and more.
    """
    model, alpha = network((96, 96, 3), alpha=0.5), 0.5
    x = torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(2))
    expected = [1.0, *[1 + alpha**2, 1 + 2 * alpha**2] * 4]
    before = 1.0
    with torch.no_grad():
        for (name, layer), variance in zip(list(model.body.named_children())[:-1], expected, strict=True):
            if isinstance(layer, Block):
                assert abs(layer.beta**2 - before) < 1e-9, name  # what comes in is what it is divided by
                layer.skip.fill_(1.0)
            x, before = layer(x), variance
            assert abs(x.var().item() / variance - 1) < (0.15 if "stage4" in name else 0.08), name


def test_every_parameter_learns():
    """At s = 0 only skip gains, shortcuts, stem and head move; after them everything does."""
    model = network(width=8)
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    for moved_all in (False, True):
        loss = F.cross_entropy(model(x), torch.tensor([0, 3, 5, 9]))
        grads = dict(zip(dict(model.named_parameters()), torch.autograd.grad(loss, model.parameters()), strict=True))
        still = {key for key, g in grads.items() if not g.any()}
        assert moved_all == (not still)
        assert all(".conv" in key for key in still)
        with torch.no_grad():
            for key, p in model.named_parameters():
                p.sub_(0.1 * grads[key])
