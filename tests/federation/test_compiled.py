"""Compiled kernels: the loop's models within 1e-10, and PyTorch's operators where they are not built."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_equivalence import LOOP, experiment, trained
from torch import Tensor

from pfl_ops.data.clients import Pool
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.network.chain import Chain, Layer
from pfl_ops.federation.network.optim import Rule
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.training import kernel_check, kernels
from pfl_ops.federation.training.compiled import CompiledDescent
from pfl_ops.federation.training.descent import Descent
from pfl_ops.federation.training.feed import Feed
from pfl_ops.federation.training.leaves import GradientTerms
from pfl_ops.recording import run_tags

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, kernels.COMPILERS)), reason="needs a C++ compiler (g++ or clang++)"
)
METHODS = ("fedavg", "fedprox", "scaffold", "ditto", "apfl", "fedrep", "fedrod", "feddyn")
CASES = [("linear", "fedavg"), ("linear", "fedprox"), *(("mlp", method) for method in METHODS)]


def compiled(**more: Any) -> Execution:
    """Compiled kernels; one client at a time on one thread unless said otherwise."""
    return Execution(**{"device": "cpu", "way": "loop", "threads": 1, "workers": 1, "kernels": "compiled", **more})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder in which the kernels are built."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PFL_OPS_CACHE", str(cache))
        kernels.compile_library()
    return cache


@pytest.fixture
def built(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_OPS_CACHE", str(folder))
    kernels.note_speeds({"linear": 2.0, "mlp": 2.0})


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path))
    return tmp_path


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(("model", "method"), CASES)
def test_compiled_kernels_train_what_the_loop_trains(model: str, method: str) -> None:
    """Clients of unequal sizes, so with padded batches; shift, pull, frozen parts and blocks of the method's own."""
    e = experiment(method, model, **{"training.weight_decay": 0.01})
    expected, found = trained(e, LOOP), trained(e, compiled(way="vmap", chunk=3))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.usefixtures("built", "forked_children")
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(
    "more", [{"way": "vmap", "chunk": 3}, {"way": "vmap", "chunk": 4, "threads": 3}, {"workers": 2}], ids=str
)
def test_compiled_kernels_repeat_bit_for_bit(precision: str, more: dict[str, Any]) -> None:
    """A client's result depends neither on its stack nor on threads or workers."""
    e = experiment("fedavg", "mlp", **{"training.precision": precision})
    alone, found = trained(e, compiled()), trained(e, compiled(**more))
    assert all(torch.equal(found[name], value) for name, value in alone.items())


@pytest.mark.usefixtures("built")
def test_compiled_kernels_take_all_steps_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six equal clients, all stacked, one round: one call for all their steps."""
    shapes = []
    run = CompiledDescent.run

    def counted(self: CompiledDescent, feed: Feed, samples: Tensor, share: Tensor | None) -> Tensor:
        shapes.append(tuple(samples.shape))
        return run(self, feed, samples, share)

    monkeypatch.setattr(CompiledDescent, "run", counted)
    more = {"training.local_epochs": 2, "participation.share": 1.0, "partition": {"kind": "iid", "clients": 6}}
    trained(experiment("fedavg", "mlp").override({**more, "training.rounds": 1}), compiled(way="vmap", chunk=6))
    assert len(shapes) == 1 and shapes[0][0] > 1 and shapes[0][1:] == (6, 10)


def descended(kind: type[Descent], sizes: tuple[int, ...], x: Tensor, batch: int, **more: Any) -> list[Tensor]:
    """Leaves and losses after four steps of three clients."""
    g = torch.Generator().manual_seed(1)
    y = torch.randint(0, sizes[-1], (len(x),), generator=g)
    values = np.ones(x.shape[-1])
    feed = Feed(Pool(x, y, [torch.arange(len(x))]), 0.3 * values, 2.0 + values, torch.device("cpu"), torch.float64)
    count = len(sizes) - 1
    bias = more.get("bias", True)
    layers = [Layer(f"{i}.w", f"{i}.b" if bias else None, i < count - 1) for i in range(count)]
    w = {f"{i}.w": torch.randn(3, sizes[i + 1], sizes[i], generator=g, dtype=torch.float64) for i in range(count)}
    b = {f"{i}.b": torch.randn(3, sizes[i + 1], generator=g, dtype=torch.float64) for i in range(count) if bias}
    named = {**w, **b}
    moving = [name for name in named if name not in more.get("frozen", ())]
    resting = {name: value[:1].expand(3, *value.shape[1:]) for name, value in named.items() if name not in moving}
    descent = kind(Chain(layers), moving, [named[n] for n in moving], resting, Rule("sgd", 0.1), GradientTerms())
    samples = torch.randint(0, len(x), (4, 3, batch), generator=g)
    if more.get("apart"):  # client k draws from its own third of the samples
        samples = samples % (len(x) // 3) + len(x) // 3 * torch.arange(3)[:, None]
    share = torch.rand(4, 3, batch, generator=g, dtype=torch.float64) if more.get("weighted") else None
    losses = descent.run(feed, samples, share)
    return [*(named[name] for name in moving), losses]


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("sizes", [(1, 2), (12, 3), (12, 17, 4), (12, 5, 33, 2)], ids=str)
@pytest.mark.parametrize("batch", [1, 5, 7])
@pytest.mark.parametrize("more", [{}, {"weighted": True}, {"frozen": ("0.w", "0.b")}, {"bias": False}], ids=str)
def test_compiled_kernels_any_shape_as_pytorch(sizes: tuple[int, ...], batch: int, more: dict[str, Any]) -> None:
    """Sizes on either side of blocks and vectors, which are padded; shares, a frozen layer, no bias."""
    if len(sizes) == 2 and "frozen" in more:
        more = {"frozen": ("0.b",)}
    x = torch.randn(20, sizes[0], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected, found = (descended(kind, sizes, x, batch, **more) for kind in (Descent, CompiledDescent))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("channels", [1, 3])
def test_compiled_kernels_images_channels_first(channels: int) -> None:
    """Images are stored H, W, C as bytes; a layer's inputs are counted C, H, W."""
    x = torch.randint(0, 9, (20, 3, 2, channels), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected, found = (descended(kind, (6 * channels, 5, 4), x, 6) for kind in (Descent, CompiledDescent))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_compiled_kernels_show_a_divergence(bad: float) -> None:
    """A value that is not finite reaches the loss, as with PyTorch."""
    x = torch.randn(20, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[:, 2] = bad
    *_, losses = descended(CompiledDescent, (6, 5, 4), x, 6)
    assert not losses.isfinite().any()


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("sizes", [(12, 3), (12, 5, 33, 2)], ids=str)
@pytest.mark.parametrize("bad", [float("inf"), 1e300])
def test_compiled_kernels_leave_a_divergence_to_its_client(sizes: tuple[int, ...], bad: float) -> None:
    """The first of three clients has absurd inputs; the others, trained after it by the same thread, are as without."""
    x = torch.randn(21, sizes[0], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    absurd = torch.cat([torch.full_like(x[:7], bad), x[7:]])
    expected, found = (descended(CompiledDescent, sizes, data, 5, apart=True) for data in (x, absurd))
    for a, b in zip(found[:-1], expected[:-1], strict=True):
        assert not a[0].isfinite().all() and torch.equal(a[1:], b[1:])


# -- which kernels ----------------------------------------------------------------------------------------------------


def resolved(model: str, execution: Execution, **more: Any) -> str:
    e = experiment("fedavg", model, **more)
    return str(e.build(execution=execution, stages=(), final=False).resolved.kernels)


@pytest.mark.usefixtures("built")
def test_auto_compiled_where_covered_and_faster() -> None:
    auto = compiled(kernels="auto")
    assert resolved("mlp", auto) == "compiled"
    assert resolved("mlp", auto, **{"training.weight_decay": 0.1}) == "compiled"
    assert resolved("mlp", auto, **{"training.precision": "bfloat16"}) == "torch"
    assert resolved("mlp", auto, **{"training.momentum": 0.9}) == "torch"
    assert resolved("mlp", auto, **{"training.optimiser": "adam"}) == "torch"
    assert resolved("cnn_tiny", auto) == "torch"
    assert resolved("mlp", compiled(kernels="torch")) == "torch"


@pytest.mark.usefixtures("built")
def test_auto_goes_by_the_speeds_of_such_a_network() -> None:
    """Linear models by theirs, MLPs by theirs, each by its slowest case."""
    auto = compiled(kernels="auto")
    for linear, mlp in ((2.0, 0.9), (0.9, 2.0)):
        kernels.note_speeds({"linear B 10": 3.0, "linear B 50": linear, "mlp B 10": mlp, "mlp B 50": 3.0})
        assert resolved("linear", auto) == ("compiled" if linear > 1 else "torch")
        assert resolved("mlp", auto) == ("compiled" if mlp > 1 else "torch")
        assert resolved("mlp", compiled()) == "compiled"
    kernels.note_speeds({"linear B 10": 3.0})
    assert resolved("mlp", auto) == "torch", "nothing is known of MLPs"


@pytest.mark.usefixtures("built")
def test_kernels_are_a_tag_of_the_run() -> None:
    e = experiment("fedavg", "mlp")
    for kind in ("torch", "compiled"):
        simulation = e.build(execution=compiled(kernels=kind), stages=(), final=False)
        assert run_tags(e, simulation, "0", None)["pfl_ops.kernels"] == kind


def test_auto_torch_where_not_built(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler is started: only `pfl-ops compile` does that."""
    monkeypatch.setattr(kernels.subprocess, "run", None)
    assert resolved("mlp", compiled(kernels="auto")) == "torch"
    assert not (empty / "kernels").exists()


def test_compiled_refused_where_not_built(empty: Path) -> None:
    with pytest.raises(PflOpsError, match=r"^compiled kernels are not built for this processor; .*: pfl-ops compile$"):
        resolved("mlp", compiled())


@pytest.mark.usefixtures("built")
def test_compiled_refused_where_not_covered() -> None:
    for model, more in (("cnn_tiny", {}), ("mlp", {"training.momentum": 0.9})):
        with pytest.raises(PflOpsError, match=r"linear layers and ReLU.*; use --kernels auto$"):
            resolved(model, compiled(), **more)


def test_a_resumed_run_keeps_its_kernels(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begun with PyTorch's, then built: goes on with PyTorch's. Begun with compiled ones, then removed: refused."""
    e = experiment("fedavg", "mlp")

    def begun(name: str, execution: Execution) -> Any:
        return e.build(execution=execution, stages=(), final=False, folder=tmp_path / name)

    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path / "cache"))
    rounds = begun("torch", compiled(kernels="auto")).run()
    next(rounds), next(rounds)
    monkeypatch.setenv("PFL_OPS_CACHE", str(folder))
    kernels.note_speeds({"linear": 2.0, "mlp": 2.0})
    again = begun("torch", compiled(kernels="auto"))
    assert again.resumed_from == 1 and again.resolved.kernels == "torch" and not again.complaints
    again = begun("torch", compiled())
    assert again.complaints == ["keeps kernels torch, as it was begun, not compiled; --no-resume starts again"]

    rounds = begun("compiled", compiled(kernels="auto")).run()
    next(rounds), next(rounds)
    again = begun("compiled", compiled(kernels="auto"))
    assert again.resolved.kernels == "compiled" and str(again.resolved).endswith(", compiled kernels")
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(PflOpsError, match="not built for this processor"):
        begun("compiled", compiled(kernels="auto"))


# -- building ---------------------------------------------------------------------------------------------------------


def test_building_without_a_compiler(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(PflOpsError, match=r"^no C\+\+ compiler found \(CXX=no-such-compiler\); install one"):
        kernels.compile_library()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(empty))
    with pytest.raises(PflOpsError, match=r"^no C\+\+ compiler found \(tried c\+\+, g\+\+, clang\+\+\)"):
        kernels.compile_library()
    assert not os.listdir(empty)


def test_building_fails_in_one_line(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's first error; nothing is left behind."""
    source = empty / "broken.cpp"
    source.write_text("int main( {\n")
    monkeypatch.setattr(kernels, "SOURCE", source)
    with pytest.raises(PflOpsError, match=r"can't compile the kernels: .*error: [^\n]*$"):
        kernels.compile_library()
    assert not os.listdir(empty / "kernels")


def test_a_damaged_library_is_refused(empty: Path) -> None:
    kernels.library_file().parent.mkdir()
    kernels.library_file().write_bytes(b"no library")
    with pytest.raises(PflOpsError, match=r"^can't load the compiled kernels \(.*\); build them again: "):
        resolved("mlp", compiled())


@pytest.mark.usefixtures("built")
def test_a_wrong_library_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels with another learning rate: `compare` refuses them."""
    run = CompiledDescent.run

    def wrong(self: CompiledDescent, *args: Any) -> Tensor:
        self.rule = Rule("sgd", 2e-3)
        return run(self, *args)

    monkeypatch.setattr(CompiledDescent, "run", wrong)
    with pytest.raises(PflOpsError, match=r"compiled kernels differ from PyTorch's by .* on linear; not used"):
        kernel_check.compare()
