"""The engine trains and scores the network that it is given: registered ones, and layers that are no plain ones."""

from collections.abc import Callable

import pytest
import torch
from sample_shapes import SAMPLE_SHAPES
from torch import Tensor, nn
from torch.nn import functional as F

from pfl_ops.algorithms.fedavg import FedAvg
from pfl_ops.data.clients import Pool
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.network import fisher
from pfl_ops.federation.network.agreement import check_scores
from pfl_ops.federation.network.chain import Chain
from pfl_ops.federation.network.net import Net
from pfl_ops.federation.settings import Training
from pfl_ops.models import MODELS, build, check
from pfl_ops.models.base import Network, example_of
from pfl_ops.testing import Federation, MethodSimulation

SMALL = {"nf_resnet18": {"width": 4}, "char_lstm": {"hidden": 16}}
LABELS = torch.tensor([2, 0, 1])


class Residual(nn.Sequential):
    """x + f(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Cosine(nn.Linear):
    """Cosines of the input's and the rows' angles."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(F.normalize(input, dim=-1), F.normalize(self.weight, dim=-1), self.bias)


class Standardised(nn.Conv2d):
    """Filters of mean 0."""

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)


class StandardisedView(nn.Conv2d):
    """The same, written with rows of the weight."""

    def forward(self, input: Tensor) -> Tensor:
        rows = self.weight.view(len(self.weight), -1)
        weight = (rows - rows.mean(1, keepdim=True)).view(self.weight.shape)
        return self._conv_forward(input, weight, self.bias)


class Viewing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1)


class LargestAbsolute(nn.MaxPool2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.abs())


class Leaky(nn.ReLU):
    def forward(self, input: Tensor) -> Tensor:
        return torch.where(input > 0, input, 0.5 * input)


class Halves(nn.Flatten):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) / 2


class Overwriting(nn.Module):
    """ReLU that writes into its input, without saying so by an attribute."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(x)


def hooked() -> list[nn.Module]:
    layers = [nn.Linear(6, 8), nn.ReLU()]
    layers[0].register_forward_hook(lambda layer, given, out: 2 * out)
    return layers


def hooked_body() -> nn.Module:
    body = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
    body.register_forward_hook(lambda layer, given, out: 2 * out)
    return body


def own_forward() -> list[nn.Module]:
    layer = nn.Linear(6, 8)
    layer.forward = lambda x: F.linear(x, layer.weight.square(), layer.bias)  # type: ignore[method-assign]
    return [layer]


def constant_weight() -> list[nn.Module]:
    """As `check` advises for parameters that are not to be trained."""
    layer, weight = nn.Linear(6, 8), torch.linspace(-1, 1, 48).view(8, 6)
    del layer.weight
    layer.register_buffer("weight", weight)
    return [layer, nn.ReLU()]


def constant_bias() -> list[nn.Module]:
    layer = nn.Linear(6, 8)
    del layer.bias
    layer.register_buffer("bias", torch.linspace(-1, 1, 8))
    return [layer, nn.ReLU()]


def used_twice() -> list[nn.Module]:
    act = nn.ReLU()
    return [nn.Linear(6, 8), act, nn.Linear(8, 8), act]


def shared_weights() -> list[nn.Module]:
    layer = nn.Linear(8, 8)
    return [nn.Linear(6, 8), nn.Tanh(), layer, nn.Tanh(), layer]


def tied_weights() -> list[nn.Module]:
    layers = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)]
    layers[4].weight = layers[2].weight
    return layers


class TwoNames(nn.Module):
    """Its first layer is registered twice, as in much code of users."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.layers = nn.Sequential(self.first, nn.Tanh(), nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def shared_across_blocks() -> list[nn.Module]:
    layer = nn.Linear(8, 8)
    return [nn.Linear(6, 8), nn.Sequential(nn.Tanh(), layer), nn.Sequential(layer, nn.Linear(8, 8))]


VECTORS: dict[str, Callable[[], list[nn.Module] | nn.Module]] = {
    "one ReLU used twice": used_twice,
    "residual blocks": lambda: [nn.Linear(6, 8), Residual(nn.Linear(8, 8), nn.ReLU()), Residual(nn.Linear(8, 8))],
    "a residual body": lambda: Residual(nn.Linear(6, 6), nn.ReLU()),
    "a subclass of Linear": lambda: [Cosine(6, 8), nn.ReLU()],
    "a subclass of ReLU": lambda: [nn.Linear(6, 8), Leaky(), nn.Linear(8, 8)],
    "hooks": hooked,
    "a hook on the body": hooked_body,
    "a forward of its own": own_forward,
    "weight normalised": lambda: [nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.ReLU()],
    "old weight normalisation": lambda: [nn.utils.weight_norm(nn.Linear(6, 8)), nn.ReLU()],
    "a constant weight": constant_weight,
    "a constant bias": constant_bias,
    "shared weights": shared_weights,
    "tied weights": tied_weights,
    "a layer of two names": lambda: [TwoNames()],
    "weights shared across blocks": shared_across_blocks,
    "writes into its input": lambda: [nn.Linear(6, 8), Overwriting(), nn.Linear(8, 8)],
    "a block that writes into its input": lambda: [nn.Linear(6, 8), Residual(nn.ReLU(inplace=True))],
}
IMAGES: dict[str, Callable[[], list[nn.Module]]] = {
    "a subclass of Conv2d": lambda: [Standardised(2, 3, 3), nn.ReLU(), nn.Flatten()],
    "a view of the weight": lambda: [StandardisedView(2, 3, 3), nn.ReLU(), nn.Flatten()],
    "a view of hidden images": lambda: [nn.Conv2d(2, 4, 3), nn.ReLU(), Viewing(), nn.Linear(64, 5)],
    "a subclass of MaxPool2d": lambda: [nn.Conv2d(2, 3, 3), LargestAbsolute(2), nn.Flatten()],
    "a subclass of Flatten": lambda: [Halves()],
    "reflecting": lambda: [nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), nn.Flatten()],
    "rows are flattened first": lambda: [nn.Flatten(2), nn.Linear(36, 4), nn.ReLU(), nn.Flatten()],
    "channels are flattened first": lambda: [nn.Flatten(1, 2), nn.Linear(6, 4), nn.ReLU(), nn.Flatten()],
}


def network(kind: str) -> tuple[nn.Module, Tensor]:
    """A float64 network of this kind with three classes, and three samples."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shape = (6,) if kind in VECTORS else (2, 6, 6)
        made = VECTORS[kind]() if kind in VECTORS else nn.Sequential(*IMAGES[kind]())
        body = made if isinstance(made, nn.Module) else nn.Sequential(*made)
        x = torch.randn(3, *shape, dtype=torch.float64)
        found = Network({}, body.double()(x.clone()).shape[1], 3).double()
        found.body = body
    return found, x


def write(given: nn.Module, values: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, p in given.named_parameters():
            p.copy_(values[name])


def assert_same(given: nn.Module, x: Tensor, y: Tensor, *, stackable: bool, rtol: float, atol: float) -> Net:
    """Scores and gradients of the engine are those of PyTorch on the network, one model at a time and two stacked."""
    own = {name: p.detach().clone() for name, p in given.named_parameters()}
    other = {name: p + 0.1 * torch.arange(p.numel()).cos().view(p.shape) for name, p in own.items()}
    net, models, inputs = Net(given), [own, other], [x, x.flip(0)]
    rows = torch.stack([net.layout.flatten(p) for p in models])
    scores, gradients = [], []
    for model, sample in zip(models, inputs, strict=True):
        write(given, model)
        scores.append(given(sample.clone()))
        grads = torch.autograd.grad(F.cross_entropy(scores[-1], y), list(given.parameters()))
        gradients.append(net.layout.flatten(dict(zip(model, grads, strict=True))))
    write(given, own)
    expected = torch.stack(scores).detach(), torch.stack(gradients)

    def engine(take: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        w = rows.clone().requires_grad_()
        found = take(w)
        loss = F.cross_entropy(found.flatten(0, 1), y.repeat(2)) * 2
        return found.detach(), torch.autograd.grad(loss, w)[0]

    alone = engine(lambda w: torch.stack([net(w[i], inputs[i].clone()) for i in range(2)]))
    torch.testing.assert_close(alone, expected, rtol=rtol, atol=atol)
    if stackable:
        together = engine(lambda w: net.scores(w, torch.stack(inputs)))
        torch.testing.assert_close(together, expected, rtol=rtol, atol=atol)
    return net


def lengths(given: nn.Module, x: Tensor, y: Tensor) -> list[float]:
    """‖∇‖² of each sample by PyTorch on the network."""
    found = []
    for i in range(len(x)):
        grads = torch.autograd.grad(F.cross_entropy(given(x[i : i + 1].clone()), y[i : i + 1]), given.parameters())
        found.append(sum(float(g.square().sum()) for g in grads))
    return found


@pytest.mark.parametrize("name", MODELS.names())
def test_registered_network_in_the_engine_is_itself(name: str) -> None:
    given = build(MODELS.get(name)(**SMALL.get(name, {})), SAMPLE_SHAPES[name], 5, seed=0).double()
    x = 2 * example_of(SAMPLE_SHAPES[name]).double() if name != "char_lstm" else torch.arange(12.0).view(2, 6).double()
    y = torch.tensor([3, 1])
    net = assert_same(given, x, y, stackable=check(given, x), rtol=1e-9, atol=1e-10)
    w = net.layout.flatten(dict(given.named_parameters()))
    assert fisher.square_lengths(net, w, x, y).tolist() == pytest.approx(lengths(given, x, y), rel=1e-6)


@pytest.mark.parametrize("kind", [*VECTORS, *IMAGES])
def test_layer_of_a_user_in_the_engine_is_itself(kind: str) -> None:
    given, x = network(kind)
    own = {key: p.detach().clone() for key, p in given.named_parameters()}
    stackable = check(given, x.clone())
    net = assert_same(given, x, LABELS, stackable=stackable, rtol=1e-10, atol=1e-12)
    w = net.layout.flatten(dict(given.named_parameters()))
    assert fisher.square_lengths(net, w, x.clone(), LABELS).tolist() == pytest.approx(lengths(given, x, LABELS))
    check_scores(net, x[:2], stackable)
    assert all(type(p) is nn.Parameter and torch.equal(p, own[key]) for key, p in given.named_parameters())


def test_one_relu_used_twice_acts_twice() -> None:
    """v = 1, then ReLU, then u = −1, then ReLU, head 1: x = 2 gives relu(−relu(2)) = 0, without the second ReLU −2."""
    act = nn.ReLU()
    layers = {"fc1": nn.Linear(1, 1, bias=False), "act1": act, "fc2": nn.Linear(1, 1, bias=False), "act2": act}
    net = Net(Network(layers, 1, 1))
    w = torch.tensor([1.0, -1.0, 1.0, 0.0])
    assert net(w, torch.tensor([[2.0]])).item() == 0.0
    chain = Chain.of(net)
    assert chain is not None and [layer.relu for layer in chain.layers] == [True, True, False]


def test_residual_block_keeps_its_skip_connection() -> None:
    """x + v x with v = 3, head 1: x = 2 gives 8, without the skip 6."""
    net = Net(Network({"block": Residual(nn.Linear(1, 1, bias=False))}, 1, 1))
    assert net(torch.tensor([3.0, 1.0, 0.0]), torch.tensor([[2.0]])).item() == 8.0
    assert Chain.of(net) is None


@pytest.mark.parametrize("stack", [None, 2])
@pytest.mark.parametrize("kind", ["one ReLU used twice", "residual blocks", "a subclass of Linear", "shared weights"])
def test_step_of_sgd_is_that_of_the_network(kind: str, stack: int | None) -> None:
    """Two clients with the same three samples take w − η ∇ of the network's own loss, η = 0.5, which is their mean."""
    given, x = network(kind)
    pool = Pool(torch.cat([x, x]), torch.cat([LABELS, LABELS]), [torch.arange(3), torch.arange(3, 6)])
    training = Training(rounds=1, local_epochs=None, local_steps=1, batch_size=None, lr=0.5, precision="float64")
    play = MethodSimulation(Federation(given, pool, 3), FedAvg(), training, stack=stack)
    own = dict(given.named_parameters())
    grads = torch.autograd.grad(F.cross_entropy(given(x), LABELS), list(own.values()))
    expected = play.task.layout.flatten({k: p - 0.5 * g for (k, p), g in zip(own.items(), grads, strict=True)})
    assert torch.allclose(play.round()["state/central"], expected, rtol=1e-10, atol=1e-12)


class Cached(nn.Linear):
    """Holds its weight where nothing can replace it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.held = [self.weight]

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.held[0], self.bias)


def test_layer_that_ignores_the_parameters_it_is_given_is_refused() -> None:
    """With its own parameters it gives the network's scores, with others those of the first."""
    given = Network({"fc": Cached(6, 8), "drop": nn.Dropout(0.5)}, 8, 3)
    before, modes = {k: v.clone() for k, v in given.state_dict().items()}, [m.training for m in given.modules()]
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    with pytest.raises(PflOpsError, match="model 'Network': models that are trained one at a time have other scores"):
        check_scores(Net(given), example_of((6,)), stackable=False)
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(v, before[k]) for k, v in given.state_dict().items())
    assert [m.training for m in given.modules()] == modes


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.abs() if float(x.sum()) > 0 else x.square()


def test_branches_in_a_body_without_parameters_are_scored_alone() -> None:
    """One model at a time, too, was scored through vmap, which refuses them: an internal error."""
    net = Net(Network({"branches": Branches()}, 6, 3))
    w, x = net.layout.flatten(dict(net.network.named_parameters()))[None], example_of((6,))[None]
    assert torch.equal(net.scores(w, x)[0], net.network.head(Branches()(x[0])))


class AlwaysDrops(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5)


def test_layer_that_draws_when_it_answers_is_refused() -> None:
    """The message said that models have other scores when they are trained, of the network itself too."""
    for inactive in (nn.Dropout(0.5), nn.RReLU()):
        check_scores(Net(Network({"fc": nn.Linear(6, 8), "drop": inactive}, 8, 3)), example_of((6,)), stackable=False)
    given = Network({"fc": nn.Linear(6, 8), "drop": AlwaysDrops()}, 8, 3)
    with pytest.raises(PflOpsError, match=r"^model 'Network' gives other scores in each call.*self\.training\)$"):
        check_scores(Net(given), example_of((6,)), stackable=False)


class Counting(nn.Module):
    """Another function where samples have one dimension more, as it might see under vmap."""

    def forward(self, x: Tensor) -> Tensor:
        return x if torch._C._functorch.maybe_get_level(x) < 0 else 2 * x


def test_layer_that_is_another_one_when_stacked_is_refused() -> None:
    given = Network({"fc": nn.Linear(6, 8), "counting": Counting()}, 8, 3)
    check_scores(Net(given), example_of((6,)), stackable=False)
    with pytest.raises(PflOpsError, match=r"models that are trained stacked have other scores .* by "):
        check_scores(Net(given), example_of((6,)), stackable=True)


class Fails(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        if not isinstance(self.weight, nn.Parameter):
            raise TypeError("no parameter")
        return super().forward(input)


def test_layer_that_fails_in_the_engine_is_one_line() -> None:
    with pytest.raises(PflOpsError, match="model 'Network' fails on samples of the data: TypeError: no parameter"):
        check_scores(Net(Network({"fc": Fails(6, 8)}, 8, 3)), example_of((6,)), stackable=False)
