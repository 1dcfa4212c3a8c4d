"""The package's networks: sizes, order of layers, first parameters, refusals."""

import pickle
import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError
from sample_shapes import SAMPLE_SHAPES
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from pfl_ops.errors import PflOpsError
from pfl_ops.models import MODELS, build, check
from pfl_ops.models.base import example_of

RECURRENT = ["char_lstm"]
NARROW = {"nf_resnet18": {"width": 4}}
"""Options that make a network small where its width does not matter."""


def network(name, shape=(8, 8, 1), n_classes=10, seed=0, **options):
    return build(MODELS.get(name)(**options), shape, n_classes, seed)


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("linear", (28, 28, 1), 784 * 10 + 10),
        ("linear", (5,), 5 * 10 + 10),
        ("mlp", (28, 28, 1), 784 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10),
        ("cnn", (28, 28, 1), 1_663_370),  # the number in McMahan et al.
        ("cnn6", (28, 28, 1), 582_026),  # FC 1024 -> 512, as in PFLlib on MNIST
        ("cnn6", (32, 32, 3), 878_538),  # as in the FedAS code on CIFAR-10
        ("cnn6", (16, 22, 1), 832 + 51_264 + (64 * 1 * 2 * 512 + 512) + 5_130),  # the smallest height: 16, 6, 1
        ("cnn_cifar", (32, 32, 3), 686_090),
        ("cnn_tiny", (8, 8, 1), 9_258),
        ("resnet18_head", (512,), 5_130),
        ("kmnist_cnn", (28, 28, 1), 416 + 12_832 + (32 * 7 * 7 * 128 + 128) + 1_290),
        ("lenet5", (28, 28, 1), 156 + 2_416 + (16 * 4 * 4 * 120 + 120) + (120 * 84 + 84) + 850),
        ("lenet5", (32, 32, 3), 456 + 2_416 + (16 * 5 * 5 * 120 + 120) + (120 * 84 + 84) + 850),
        ("fakelenet5", (32, 32, 3), 4_864 + 102_464 + (64 * 5 * 5 * 384 + 384) + (384 * 192 + 192) + 1_930),
    ],
)
def test_number_of_parameters(name, shape, parameters):
    assert sum(p.numel() for p in network(name, shape).parameters()) == parameters


@pytest.mark.parametrize("name", MODELS.names())
def test_scores_are_the_head_of_the_features(name):
    shape = SAMPLE_SHAPES[name]
    model, x = network(name, shape, n_classes=7, **NARROW.get(name, {})), example_of(shape)
    assert model(x).shape == (2, 7)
    assert torch.equal(model(x), model.head(model.features(x)))
    names = [key for key, _ in model.named_parameters()]
    assert names[-2:] == ["head.weight", "head.bias"]
    assert all(key.startswith("body.") for key in names[:-2])


def test_a_linear_model_has_no_body():
    assert not list(network("linear").body.parameters())


@pytest.mark.parametrize("name", ["cnn", "cnn6", "cnn_cifar", "cnn_tiny", "kmnist_cnn", "fakelenet5", "lenet5"])
def test_pooling_before_relu_is_the_same_function_with_the_same_gradient(name):
    """max(relu(a), relu(b)) = relu(max(a, b)); both hand the gradient to the first largest entry if it is positive."""
    model = network(name, SAMPLE_SHAPES[name], seed=3).double()
    x = torch.randn(5, *example_of(SAMPLE_SHAPES[name]).shape[1:], generator=torch.Generator().manual_seed(0)).double()
    layers = dict(model.body.named_children())
    for i in (1, 2, 3):  # the papers' order
        if f"pool{i}" in layers:
            layers[f"pool{i}"], layers[f"relu{i}"] = layers[f"relu{i}"], layers[f"pool{i}"]
    papers = nn.Sequential(*layers.values())
    ours, theirs = model.head(model.body(x)), model.head(papers(x))
    assert torch.equal(ours, theirs)
    weights = list(model.parameters())
    left = torch.autograd.grad(ours.logsumexp(1).sum(), weights)
    right = torch.autograd.grad(theirs.logsumexp(1).sum(), weights)
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(left, right, strict=True))
    assert all(g.abs().sum() > 0 for g in left)


def test_first_parameters_come_from_the_seed_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    one = network("cnn_tiny", seed=5)
    assert torch.equal(torch.rand(3), expected)  # the process's generator did not move
    again, other = network("cnn_tiny", seed=5), network("cnn_tiny", seed=6)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert not torch.equal(one.head.weight, other.head.weight)


@pytest.mark.parametrize("name", [name for name in MODELS.names() if name not in RECURRENT])
def test_networks_can_be_stacked(name):
    shape, options = SAMPLE_SHAPES[name], NARROW.get(name, {})
    model, x = network(name, shape, **options), example_of(shape)
    assert check(model, x) and check(model)
    rows, buffers = stack_module_state([model, network(name, shape, seed=1, **options)])
    scores = vmap(lambda p: functional_call(model, (p, buffers), (x,)))(rows)
    assert torch.allclose(scores[0], model(x), atol=1e-5)


def test_options_are_fields_with_bounds():
    assert network("mlp", (6,), hidden=(4, 3)).body.fc2.weight.shape == (3, 4)
    assert network("cnn_tiny", hidden=5).head.in_features == 5
    section = MODELS.get("cnn")
    assert section().model_dump() == {"name": "cnn", "weights": None, "hidden": 512}
    for wrong in ({"hidden": 0}, {"widht": 3}, {"name": "mlp"}):
        with pytest.raises(ValidationError):
            section(**wrong)


def test_sections_survive_pickling():
    section = MODELS.get("mlp")(hidden=(7,))
    assert pickle.loads(pickle.dumps(section)) == section


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("cnn", (3, 28, 1), "'cnn' pools 2 times and needs images of at least 4 x 4, got 3 x 28"),
        ("cnn6", (28, 15, 1), "'cnn6' pools 2 times and needs images of at least 16 x 16, got 28 x 15"),
        ("cnn_cifar", (7, 7, 3), "'cnn_cifar' pools 3 times and needs images of at least 8 x 8, got 7 x 7"),
        ("lenet5", (15, 28, 3), "'lenet5' pools 2 times and needs images of at least 16 x 16, got 15 x 28"),
        ("fakelenet5", (15, 28, 3), "'fakelenet5' pools 2 times and needs images of at least 16 x 16, got 15 x 28"),
        ("nf_resnet18", (32, 7, 3), "'nf_resnet18' pools 3 times and needs images of at least 8 x 8, got 32 x 7"),
        ("nf_resnet18", (64,), "'nf_resnet18' needs images, but a sample here is a vector of 64 features"),
        ("char_lstm", (8, 8, 1), "'char_lstm' needs lines of character codes, but a sample here has shape"),
        ("cnn_tiny", (64,), "'cnn_tiny' needs images, but a sample here is a vector of 64 features"),
    ],
)
def test_an_input_that_cannot_be_pooled_is_refused(name, shape, words):
    with pytest.raises(PflOpsError, match=words):
        network(name, shape)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(PflOpsError, match=r"no model named 'cnn_tin'\. Did you mean 'cnn_tiny'"):
        MODELS.get("cnn_tin")


def test_names_are_listed_without_torch():
    code = "import sys; from pfl_ops.models import MODELS; MODELS.names(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
