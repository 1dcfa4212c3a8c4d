"""Networks that a user brings: registered by name, checked once, refused in one line where rows can't hold them."""

import sys
import zipfile
from typing import Annotated

import numpy as np
import pytest
import torch
from pydantic import Field
from safetensors.torch import save_file
from torch import nn

from pfl_ops.errors import PflOpsError
from pfl_ops.models import MODELS, build, check, register, weights
from pfl_ops.models.base import Network

X = torch.linspace(-1, 1, 48).view(3, 16)


class Own(nn.Module):
    """Any module with body and head; 16 features, 3 classes."""

    def __init__(self, *layers):
        super().__init__()
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x))


class LastState(nn.Module):
    """An LSTM over four steps of four features."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 8, batch_first=True)

    def forward(self, x):
        return self.lstm(x.view(len(x), -1, 4))[0][:, -1]


class Branch(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y if self.weight.sum() > 0 else -y


class Residual(nn.Linear):
    def forward(self, x):
        return x + super().forward(x)


@pytest.fixture
def table():
    """Takes out again what a test registers."""
    before = dict(MODELS._found)
    yield
    own = {name: model for name, model in MODELS._found.items() if name in MODELS.builtin}  # imported meanwhile
    MODELS._found.clear()
    MODELS._found.update(before | own)


@pytest.mark.parametrize(
    ("layers", "stackable"),
    [
        ([nn.Linear(16, 8), nn.ReLU()], True),
        ([nn.Linear(16, 8), nn.GroupNorm(2, 8)], True),
        ([nn.Linear(16, 8), Residual(8, 8)], True),  # not a known layer: tried
        ([nn.Linear(16, 8), nn.Dropout(0.5)], False),
        ([nn.Linear(16, 8), nn.Dropout(0.0)], True),
        ([LastState()], False),
        ([nn.Linear(16, 8), Branch(8, 8)], False),
    ],
    ids=["linear", "group norm", "residual", "dropout", "no dropout", "lstm", "branch"],
)
def test_what_can_be_stacked(layers, stackable):
    assert check(Own(*layers), X) is stackable


class TwoNames(nn.Module):
    """Registers its layers both as attributes and in a sequence."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 8)
        self.layers = nn.Sequential(self.first, nn.ReLU())

    def forward(self, x):
        return self.layers(x)


def test_trying_a_layer_of_two_names_leaves_its_parameters():
    model = Own(TwoNames())
    before = [p.clone() for p in model.parameters()]
    assert check(model, X)
    assert all(
        type(p) is nn.Parameter and torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)
    )


def test_checking_changes_nothing():
    model = Own(nn.Linear(16, 8), nn.Dropout(0.5))
    model.body[1].eval()
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    check(model, X)
    assert torch.equal(torch.rand(2), expected)
    assert model.training and model.body[0].training and not model.body[1].training


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x[:, :8]


def frozen():
    model = Own(nn.Linear(16, 8))
    model.body[0].bias.requires_grad_(False)
    return model


def scalar():
    model = Own(nn.Linear(16, 8))
    model.body[0].scale = nn.Parameter(torch.ones(()))
    return model


def outside():
    model = Own(nn.Linear(16, 8))
    model.scale = nn.Parameter(torch.ones(()))
    return model


def tied():
    model = Own(nn.Linear(16, 8), nn.Linear(8, 3), nn.Linear(3, 8))
    model.head.weight = model.body[1].weight
    return model


def headless():
    model = Own(nn.Linear(16, 8))
    model.head = nn.Sequential(model.head)
    return model


class Centred(nn.Linear):
    """Subtracts the mean over the batch, in training alone if `always` is false."""

    def __init__(self, always):
        super().__init__(16, 8)
        self.always = always

    def forward(self, x):
        y = super().forward(x)
        return y - y.mean(dim=0) if self.always or self.training else y


class Cosine(nn.Linear):
    def forward(self, x):
        return super().forward(nn.functional.normalize(x, dim=-1))


def with_head(head):
    model = Own(nn.Linear(16, 8))
    model.head = head
    return model


def hooked_head():
    model = Own(nn.Linear(16, 8))
    model.head.register_forward_hook(lambda layer, given, out: 2 * out)
    return model


class Scaled(Own):
    def forward(self, x):
        return 2 * super().forward(x)


class ScaledInTraining(Own):
    def forward(self, x):
        return super().forward(2 * x if self.training else x)


class TakesLast(Own):
    """A body that gives more than features."""

    def forward(self, x):
        return self.head(self.body(x)[0])


class DropsFeatures(Own):
    """Dropout between body and head, which the engine, computing head(body(x)), would leave out."""

    def forward(self, x):
        return self.head(nn.functional.dropout(self.body(x), 0.5, self.training))


class AlwaysDrops(nn.Module):
    """Draws random numbers in evaluation mode, too."""

    def forward(self, x):
        return nn.functional.dropout(x[:, :8], 0.5)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Own(AlwaysDrops()), r"two passes of one batch in evaluation mode give other scores; .* \(if self\.training\)"),
        (Own(nn.Linear(16, 8), nn.BatchNorm1d(8)), r"layer 'body.1' \(BatchNorm1d\) has statistics .* GroupNorm"),
        (Own(nn.Linear(16, 8), nn.BatchNorm1d(8, track_running_stats=False)), "BatchNorm1d"),  # padding would leak in
        (Own(nn.Linear(16, 8), nn.InstanceNorm1d(8, track_running_stats=True)), "InstanceNorm1d"),
        (Own(Centred(always=True)), "the scores of a sample depend on the other samples of its batch, .*GroupNorm"),
        (Own(Centred(always=False)), "the scores of a sample depend on the other samples of its batch"),
        (Own(Counts()), "buffer 'body.0.calls' changes in a forward pass"),
        (frozen(), "parameter 'body.0.bias' is frozen"),
        (scalar(), "parameter 'body.0.scale' has no dimension"),
        (outside(), "parameter 'scale' is neither in .body nor in .head"),
        (tied(), "body and head share a parameter"),
        (headless(), "needs a .body .* and a .head"),
        (with_head(Cosine(8, 3)), r"\.head must be a plain nn\.Linear, .* got Cosine; move what else .* into \.body"),
        (with_head(nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))), "got ParametrizedLinear"),
        (hooked_head(), "got one with hooks"),
        (Own(nn.Linear(16, 9)), "fails on inputs of shape"),
        (Own(nn.Linear(16, 8), nn.Unflatten(1, (1, 8))), r"scores must have shape \(3, 3\), got \(3, 1, 3\)"),
        (Scaled(nn.Linear(16, 8)), r"scores must be head\(body\(x\)\); move"),
        (ScaledInTraining(nn.Linear(16, 8)), r"scores must be head\(body\(x\)\) in training too"),
        (TakesLast(nn.LSTM(16, 8)), r"\.body's features must have shape \(3, 8\), got tuple"),
        (DropsFeatures(nn.Linear(16, 8)), r"in training too, .* move what else it computes \(dropout\) into \.body"),
        (DropsFeatures(nn.Linear(16, 8), nn.Dropout(0.5)), "in training too"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_what_is_refused(model, words):
    with pytest.raises(PflOpsError, match=f"model '{type(model).__name__}'.*{words}"):
        check(model, X)


class Tokens(nn.Embedding):
    """Numbers of tokens that arrive as floats; those below 0 are no tokens."""

    def forward(self, x):
        return super().forward(x.long()).mean(dim=1)


def test_an_embedding_that_fails_on_the_trial_numbers_says_so():
    """Networks are tried on random numbers around 0: -1 reaches the table, and PyTorch says "index out of range"."""
    with pytest.raises(PflOpsError, match=r"fails on .*\(it is tried on random numbers .*: x.clamp\(min=0\).long"):
        check(Own(Tokens(50, 8)), -torch.ones(2, 16))


def test_a_registered_network_is_built_like_our_own(table):
    @register("own")
    class Wide(Network):
        def __init__(self, shape, n_classes, *, width: Annotated[int, Field(ge=1, description="units")] = 8):
            super().__init__({"fc": nn.Linear(shape[0], width)}, width, n_classes)

    section = MODELS.get("own")(width=4)
    assert section.network is Wide
    assert build(section, (16,), 3, seed=0).head.weight.shape == (3, 4)
    assert "own" in MODELS.names()
    assert MODELS.digest("own") != MODELS.digest("cnn")  # of this file


def test_the_names_of_our_own_are_taken():
    with pytest.raises(PflOpsError, match="'cnn' is already defined"):
        register("cnn")(Scaled)


def test_a_constructor_that_fails_is_one_line(table):
    @register("broken")
    class Broken(Network):
        def __init__(self, shape, n_classes):
            raise IndexError("tuple index out of range")

    with pytest.raises(PflOpsError, match=r"'broken' can't be built for samples of shape \(16,\): IndexError: tuple"):
        build(MODELS.get("broken")(), (16,), 3, seed=0)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("exits", r"'exits' can't be built for samples of shape \(16,\): SystemExit: 0 \(it is called"),
        ("lines", r"'lines' can't be built for samples of shape \(16,\): ValueError: one two \(it is called"),
        ("none", r"^model 'none' gave a NoneType; it builds and returns an nn.Module$"),
        ("leaves", r"^model 'leaves' fails on inputs of shape \(2, 16\): SystemExit: 0$"),
    ],
)
def test_a_constructor_that_ends_the_process_or_gives_none(table, what, message):
    """exit() ended the command with exit code 0 and without a line; None was an internal error."""

    class Leaves(nn.Module):
        def forward(self, x):
            sys.exit(0)

    def make(shape, n_classes):
        if what == "exits":
            sys.exit(0)
        if what == "lines":
            raise ValueError("one\ntwo")
        return Network({"x": Leaves()}, shape[0], n_classes) if what == "leaves" else None

    register(what)(make)
    with pytest.raises(PflOpsError, match=message):
        build(MODELS.get(what)(), (16,), 3, seed=0)


def test_a_head_of_the_wrong_width_is_refused(table):
    @register("narrow")
    class Narrow(Network):
        def __init__(self, shape, n_classes):
            super().__init__({"fc": nn.Linear(shape[0], 4)}, 4, 2)

    for classes in (1, 3):
        with pytest.raises(PflOpsError, match=f"its head has 2 outputs, the data {classes} classes"):
            build(MODELS.get("narrow")(), (16,), classes, seed=0)


def test_first_parameters_that_no_seed_repeats_are_refused(table):
    """One hash stood for other first parameters in each process."""

    @register("by_numpy")
    class ByNumPy(Network):
        """NumPy's global generator draws the body's bias."""

        def __init__(self, shape, n_classes, *, by_torch: bool = False):
            super().__init__({"fc": nn.Linear(shape[0], 4)}, 4, n_classes)
            drawn = torch.randn(4) if by_torch else torch.from_numpy(np.random.randn(4))
            self.body.fc.bias.data.copy_(drawn)

    with pytest.raises(PflOpsError, match=r"model 'by_numpy': 'body.fc.bias' has other values when .* built again; "):
        build(MODELS.get("by_numpy")(), (16,), 3, seed=0)
    one, same = (build(MODELS.get("by_numpy")(by_torch=True), (16,), 3, seed=0) for _ in range(2))
    assert one.body.fc.bias.equal(same.body.fc.bias)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda: nn.LazyLinear(4), r"parameter 'body\.fc\.weight' has no values yet \(a lazy layer, .* give"),
        (lambda: nn.Linear(16, 4, device="meta"), r"parameter 'body\.fc\.weight' has no values yet \("),
        (lambda: nn.Linear(16, 4), r"parameter 'body\.fc\.weight' begins with NaN$"),
    ],
)
def test_parameters_without_values_are_refused(table, body, message):
    """PyTorch's own errors were called internal, and NaN was said to be drawn without the seed."""

    @register("empty")
    class Empty(Network):
        """A layer that has no values."""

        def __init__(self, shape, n_classes):
            super().__init__({"fc": body()}, 4, n_classes)
            if not nn.parameter.is_lazy(self.body.fc.weight) and not self.body.fc.weight.is_meta:
                self.body.fc.weight.data.fill_(float("nan"))

    with pytest.raises(PflOpsError, match=f"^model 'empty': {message}"):
        build(MODELS.get("empty")(), (16,), 3, seed=0)


def test_a_network_whose_parts_were_never_made_is_refused(table):
    @register("bare")
    class Bare(nn.Module):
        """Without a call of super().__init__()."""

        def __init__(self, shape, n_classes): ...

    with pytest.raises(PflOpsError, match=r"^model 'bare' needs a \.body \(a module\) and a \.head"):
        build(MODELS.get("bare")(), (16,), 3, seed=0)


def test_weights_from_a_file(tmp_path):
    section = MODELS.get("cnn_tiny")
    start = build(section(), (8, 8, 1), 10, seed=7)
    good = tmp_path / "start.safetensors"
    save_file(start.state_dict(), good)
    loaded = build(section(weights=str(good)), (8, 8, 1), 10, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(start.parameters(), loaded.parameters(), strict=True))

    torch.save(start.state_dict(), tmp_path / "start.pth")
    again = build(section(weights=str(tmp_path / "start.pth")), (8, 8, 1), 10, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(start.parameters(), again.parameters(), strict=True))

    def refusal(path):
        with pytest.raises(PflOpsError) as error:
            build(section(weights=str(path)), (8, 8, 1), 10, seed=0)
        return str(error.value)

    bad = tmp_path / "bad.safetensors"
    assert "does not exist" in refusal(tmp_path / "none.safetensors")
    bad.write_bytes(b"not a model")
    assert "not a readable .safetensors file" in refusal(bad)
    state = start.state_dict()
    save_file({k: v for k, v in state.items() if k != "body.fc.bias"}, bad)
    assert "lacks the parameter 'body.fc.bias'" in refusal(bad)
    save_file(state | {"more": torch.ones(1)}, bad)
    assert "has, beside those of the model, the parameter 'more'" in refusal(bad)
    save_file(state | {"head.bias": torch.ones(3)}, bad)
    assert "'head.bias' has shape (3,), model 'cnn_tiny' needs (10,)" in refusal(bad)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head.bias": torch.tensor([0.0] * 9 + [torch.inf])}, "'head.bias' has values that are not finite"),
        (
            {"head.bias": torch.zeros(10, dtype=torch.int64)},
            "'head.bias' holds torch.int64, not floating-point numbers",
        ),
        ({"head.bias": torch.zeros(10, dtype=torch.complex64)}, "'head.bias' is no plain tensor of real numbers"),
        ({"head.bias": torch.zeros(10).to_sparse()}, "'head.bias' is no plain tensor of real numbers"),
        ({"head.bias": torch.zeros(10, device="meta")}, "'head.bias' is no plain tensor of real numbers"),
        (
            {"head.bias": torch.zeros(1).expand(10**12)},
            "'head.bias' has the shape (1000000000000,), but the file",
        ),
        ({"head.bias": [1.0]}, "holds no state_dict, which maps names to tensors"),
        ({"n" * 300: torch.zeros(1)}, "has, beside those of the model, the parameter"),
    ],
)
def test_weights_that_are_no_plain_finite_numbers_are_refused(tmp_path, change, message):
    section = MODELS.get("cnn_tiny")
    state = build(section(), (8, 8, 1), 10, seed=7).state_dict()
    torch.save({**state, **change}, tmp_path / "a.pth")
    with pytest.raises(PflOpsError) as error:
        build(section(weights=str(tmp_path / "a.pth")), (8, 8, 1), 10, seed=0)
    assert message in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 500


class RandomFeatures(nn.Module):
    """cos(W x) with a W that is drawn and stays."""

    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.randn(8, 16))
        self.register_buffer("times", torch.tensor(2))

    def forward(self, x):
        return torch.cos(x.flatten(1) @ self.w.T) * self.times


def test_weights_bring_the_buffers_that_they_were_trained_beside(table, tmp_path):
    """With the random features of the run's own seed, trained parameters answer at random; a file without any keeps
    the network's."""
    register("features")(lambda shape, n_classes: Own(RandomFeatures(), nn.Linear(8, 8)))
    section, file = MODELS.get("features"), tmp_path / "trained.pth"
    trained, fresh = (build(section(), (4, 4, 1), 3, seed=seed) for seed in (7, 0))
    state, x = trained.state_dict(), X.view(3, 4, 4)

    def loaded(change):
        torch.save(change, file)
        return build(section(weights=str(file)), (4, 4, 1), 3, seed=0)

    assert loaded(state)(x).equal(trained(x)) and not trained(x).equal(fresh(x))
    without = loaded({key: value for key, value in state.items() if key != "body.0.w"})
    assert without.body[0].w.equal(fresh.body[0].w) and without.head.weight.equal(trained.head.weight)
    for change, message in (
        ({"body.0.w": torch.zeros(8, 4)}, r"'body.0.w' has shape \(8, 4\), model 'features' needs \(8, 16\)"),
        ({"body.0.times": torch.tensor(2.5)}, r"'body.0.times' holds torch.float32, not torch.int64"),
    ):
        with pytest.raises(PflOpsError, match=message):
            loaded({**state, **change})


def test_a_compressed_state_dict_stays_packed(tmp_path):
    """PyTorch would allocate whatever its members declare."""
    torch.save({"a": torch.zeros(1000)}, tmp_path / "a.pth")
    with zipfile.ZipFile(tmp_path / "a.pth") as old, zipfile.ZipFile(tmp_path / "b.pth", "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info), zipfile.ZIP_DEFLATED)
    with pytest.raises(PflOpsError, match="is not a readable state_dict: ValueError: it is compressed"):
        weights.read(tmp_path / "b.pth")


def test_weights_of_another_number_of_classes_give_the_body_and_leave_a_fresh_head(tmp_path):
    section, file = MODELS.get("cnn_tiny"), tmp_path / "pretrained.safetensors"
    pretrained, fresh = build(section(), (8, 8, 1), 7, seed=7), build(section(), (8, 8, 1), 10, seed=0)
    save_file(pretrained.state_dict(), file)
    loaded = build(section(weights=str(file)), (8, 8, 1), 10, seed=0)
    pairs = zip(pretrained.body.parameters(), loaded.body.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert torch.equal(loaded.head.weight, fresh.head.weight) and torch.equal(loaded.head.bias, fresh.head.bias)
    # for other features, or in part: not a classifier of other classes, and refused like any misfit
    start = build(MODELS.get("linear")(), (4,), 7, seed=7).state_dict()
    for change, words in (
        ({"head.weight": torch.zeros(7, 5)}, r"'head.bias' has shape \(7,\)"),
        ({"head.bias": torch.zeros(6)}, r"'head.bias' has shape \(6,\)"),
        ({"head.bias": None}, "lacks the parameter 'head.bias'"),
    ):
        save_file({key: value for key, value in (start | change).items() if value is not None}, file)
        with pytest.raises(PflOpsError, match=words):
            build(MODELS.get("linear")(weights=str(file)), (4,), 10, seed=0)
