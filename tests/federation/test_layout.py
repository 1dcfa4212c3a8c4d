"""Names <-> columns, and the network as a function of a flat vector."""

import pytest
import torch
from torch import nn

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.network.layout import Layout, initial_extra
from pfl_ops.federation.network.net import Net
from pfl_ops.models.cnn_tiny import CNNTiny
from pfl_ops.models.linear import Linear
from pfl_ops.models.mlp import MLP

BODY = {"body.conv.weight": (4, 3, 2, 5), "body.conv.bias": (4,), "body.fc.weight": (6, 8)}
HEAD = {"head.weight": (2, 6), "head.bias": (2,)}
EXTRA = {"exit": (3, 4), "gate": (3,)}


@pytest.fixture
def layout():
    return Layout(BODY, HEAD, EXTRA)


def test_columns_stand_in_the_order_body_head_extra(layout):
    assert layout.size == 120 + 4 + 48 + 14 + 15
    assert (layout.body, layout.head, layout.net) == (slice(0, 172), slice(172, 186), slice(0, 186))
    assert layout.extra == {"exit": slice(186, 198), "gate": slice(198, 201)}
    assert [b.name for b in layout.blocks] == [*BODY, *HEAD, *EXTRA]


def test_convolutions_lie_as_o_h_w_i(layout):
    """Whatever runs them, the order of P is the same, and the view O, I, H, W is no copy."""
    named = {name: torch.randn(shape) for name, shape in {**BODY, **HEAD, **EXTRA}.items()}
    row = layout.flatten(named)
    conv = named["body.conv.weight"]
    assert row[0] == conv[0, 0, 0, 0] and row[1] == conv[0, 1, 0, 0] and row[3] == conv[0, 0, 0, 1]
    assert row[3 * 5] == conv[0, 0, 1, 0] and row[3 * 5 * 2] == conv[1, 0, 0, 0]
    views = layout.views(row)
    assert list(views) == [*BODY, *HEAD, *EXTRA]
    for name, value in views.items():
        assert (
            torch.equal(value, named[name]) and value.untyped_storage().data_ptr() == row.untyped_storage().data_ptr()
        )
    for name, value in layout.export(row).items():
        assert torch.equal(value, named[name]) and value.is_contiguous()


def test_views_of_many_rows_and_of_a_part(layout):
    rows = torch.randn(3, layout.size)
    views = layout.views(rows)
    assert views["body.conv.weight"].shape == (3, 4, 3, 2, 5)
    head = layout.views(rows[:, layout.head], layout.head)
    assert list(head) == list(HEAD) and torch.equal(head["head.bias"], views["head.bias"])


def test_parts_of_the_network(layout):
    assert layout.layers() == ["body.conv", "body.fc", "head"]
    assert layout.top(1) == layout.head
    assert layout.top(2) == slice(124, 186)
    assert layout.top(3) == layout.net
    with pytest.raises(PflOpsError, match=r"3 layers with parameters, got top\(4\)"):
        layout.top(4)


def test_a_part_never_cuts_a_parameter(layout):
    assert [b.name for b in layout.within(slice(0, 124))] == ["body.conv.weight", "body.conv.bias"]
    assert layout.within(slice(0, 0)) == ()
    with pytest.raises(PflOpsError, match="cut through a parameter"):
        layout.within(slice(0, 123))


def test_what_does_not_fit_is_named(layout):
    named = {name: torch.zeros(shape) for name, shape in {**BODY, **HEAD, **EXTRA}.items()}
    with pytest.raises(PflOpsError, match=r"head.bias should have shape \(2,\), got nothing"):
        layout.flatten({name: value for name, value in named.items() if name != "head.bias"})
    with pytest.raises(PflOpsError, match=r"gate should have shape \(3,\), got \(4,\)"):
        layout.flatten({**named, "gate": torch.zeros(4)})


def test_extra_blocks_start_as_layers_do():
    """Matrices uniform within 1/√fan_in, vectors zero; each by its own name, so that one more moves no other."""
    values = initial_extra({"exit": (30, 16), "bias": (5,)}, seed=3)
    assert values.shape == (485,) and (values[480:] == 0).all()
    assert values[:480].abs().max() <= 0.25 and values[:480].std() == pytest.approx(0.25 / 3**0.5, rel=0.1)
    assert torch.equal(initial_extra({"first": (2, 2), "exit": (30, 16)}, seed=3)[4:], values[:480])
    assert not torch.equal(initial_extra({"exit": (30, 16)}, seed=4), values[:480])


# -- the network -------------------------------------------------------------------------------------------------------


class Mixed(nn.Module):
    """Layers without a form of their own here, nested, one of them with a constant buffer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=2, dilation=2), nn.GroupNorm(2, 4)),
            nn.LeakyReLU(0.2),
            nn.Conv2d(4, 4, 3, groups=2, padding=1, bias=False),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.LayerNorm(16),
            nn.Linear(16, 5, bias=False),
            nn.Tanh(),
        )
        self.head = nn.Linear(5, 3, bias=False)

    def forward(self, x):
        return self.head(self.body(x))


NETWORKS = {
    "linear": (lambda: Linear((8, 8, 3), 4), (3, 8, 8)),
    "mlp": (lambda: MLP((6,), 4, hidden=(5, 7)), (6,)),
    "cnn_tiny": (lambda: CNNTiny((8, 8, 3), 4), (3, 8, 8)),
    "mixed": (Mixed, (3, 8, 8)),
}


@pytest.fixture(params=NETWORKS)
def case(request):
    build, shape = NETWORKS[request.param]
    torch.manual_seed(0)
    return [build().double() for _ in range(3)], torch.randn(3, 6, *shape, dtype=torch.float64)


def test_one_model(case):
    """net(w, x) is the module with these parameters; further columns don't disturb it."""
    networks, x = case
    net = Net(networks[0])
    w = net.layout.flatten(dict(networks[0].named_parameters()))
    expected = networks[0](x[0])
    for row in (w, torch.cat([w, torch.ones(3).double()])):
        torch.testing.assert_close(net(row, x[0]), expected)
    features = net.features(w, x[0])
    torch.testing.assert_close(features, networks[0].body(x[0]))
    torch.testing.assert_close(net.head(w[net.layout.head], features), expected)
    torch.testing.assert_close(net.features(w[net.layout.body], x[0]), features)


def test_many_models(case):
    """Stacked, each on its own inputs, or all on the same ones."""
    networks, x = case
    net = Net(networks[0])
    w = torch.stack([net.layout.flatten(dict(n.named_parameters())) for n in networks])
    own = torch.stack([n(x[k]) for k, n in enumerate(networks)])
    torch.testing.assert_close(net.scores(w, x), own)
    torch.testing.assert_close(net.scores(w[:1], x[:1]), own[:1])
    same = torch.stack([n(x[0]) for n in networks])
    torch.testing.assert_close(net.stacked(net.layout.views(w), x[:1]), same)


def test_gradients_of_many_models(case):
    networks, x = case
    net = Net(networks[0])
    w = torch.stack([net.layout.flatten(dict(n.named_parameters())) for n in networks]).requires_grad_()
    (stacked,) = torch.autograd.grad(net.scores(w, x).square().sum(), w)
    for k, network in enumerate(networks):
        grads = torch.autograd.grad(network(x[k]).square().sum(), list(network.parameters()))
        named = {name: g for (name, _), g in zip(network.named_parameters(), grads, strict=True)}
        torch.testing.assert_close(stacked[k], net.layout.flatten(named))


@pytest.mark.parametrize("name", ["mlp", "cnn_tiny", "mixed"])
def test_a_body_cut_in_two(name):
    """back(front(x)) is the network, wherever it is cut; the front's columns come first, the back's follow."""
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    module = build().double()
    net = Net(module)
    w, x = net.layout.flatten(dict(module.named_parameters())), torch.randn(6, *shape, dtype=torch.float64)
    layers = [step for step in net.steps if step.own]
    for depth in range(1, len(layers) + 1):
        part = net.cut(depth)
        assert [b.name.rpartition(".")[0] for b in net.layout.within(part)][-1].startswith(layers[depth - 1].name)
        torch.testing.assert_close(net.back(w, net.front(w, x, depth), depth), module(x), rtol=0, atol=1e-12)
        unread = torch.cat([w[part], torch.full_like(w[part.stop :], float("nan"))])
        assert net.front(unread, x, depth).isfinite().all(), "the front reads its own columns only"
    assert net.cut(len(layers)) == net.layout.body, "the head alone is a back, too"
    for depth in (0, len(layers) + 1):
        with pytest.raises(PflOpsError, match=r"cut behind one of its body's \d layers with parameters, got"):
            net.cut(depth)


def test_a_network_without_a_body_is_not_cut():
    with pytest.raises(PflOpsError, match="a network without a body can't be cut in two; take model cnn"):
        Net(Linear((8, 8, 3), 4)).cut(1)


def test_a_head_on_a_whole_model_names_its_columns():
    """net.head(w, f) in a loss: the columns of the head are due, and PyTorch's own error named split_with_sizes."""
    network = MLP((8, 8, 1), 10)
    net = Net(network)
    w = net.layout.flatten(dict(network.named_parameters()))
    f = net.features(w, torch.zeros(2, 1, 8, 8))
    assert net.head(w[net.layout.head], f).shape == (2, 10)
    message = r"net.head\(\) needs the head's columns \[2010\], w\[net.layout.head\]; got a float32 tensor \[55210\]"
    with pytest.raises(PflOpsError, match=message):
        net.head(w, f)
