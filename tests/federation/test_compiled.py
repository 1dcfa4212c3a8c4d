"""Compiled kernels: the loop's models within 1e-10, and PyTorch's operators where they are not built."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_equivalence import LOOP, OPTIMISERS, experiment, trained
from torch import Tensor
from torch.nn import functional as F

from pfl_ops.data.clients import Pool
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.network.chain import Chain, Layer
from pfl_ops.federation.network.optim import Rule, after
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
METHODS = ("fedprox", "scaffold", "ditto", "apfl", "fedrep", "fedrod", "feddyn")
ANY_OPTIMISER = ("fedprox", "ditto", "apfl", "fedrep", "fedrod")
CASES = [
    *((model, "fedavg", optimiser) for model in ("linear", "mlp") for optimiser in OPTIMISERS),
    ("linear", "fedprox", "sgd"),
    *(("mlp", method, "sgd") for method in METHODS),
    *(("mlp", method, optimiser) for method in ANY_OPTIMISER for optimiser in ("momentum", "adam")),
]
RULES = {"sgd": Rule("sgd", 0.1), "momentum": Rule("sgd", 0.1, momentum=0.9), "adam": Rule("adam", 0.1)}


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
    note(linear=2.0, mlp=2.0)


def note(batch: int = 10, optimisers: tuple[str, ...] = tuple(RULES), **speeds: float) -> None:
    """Note a speed of each network under these optimisers."""
    kernels.note_speeds({kernels.Case(n, optimiser, batch): s for n, s in speeds.items() for optimiser in optimisers})


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path))
    return tmp_path


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(("model", "method", "optimiser"), CASES)
def test_compiled_kernels_train_what_the_loop_trains(model: str, method: str, optimiser: str) -> None:
    """Clients of unequal sizes, so with padded batches, and moments that are handed on from one call to the next;
    shift, pull, frozen parts and blocks of the method's own."""
    more: dict[str, Any] = {**OPTIMISERS[optimiser], "training.weight_decay": 0.01}
    e = experiment(method, model, **more)
    expected, found = trained(e, LOOP), trained(e, compiled(way="vmap", chunk=3))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.usefixtures("built", "forked_children")
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize(
    "more", [{"way": "vmap", "chunk": 3}, {"way": "vmap", "chunk": 4, "threads": 3}, {"workers": 2}], ids=str
)
def test_compiled_kernels_repeat_bit_for_bit(precision: str, optimiser: str, more: dict[str, Any]) -> None:
    """A client's result depends neither on its stack nor on threads or workers."""
    e = experiment("fedavg", "mlp", **OPTIMISERS[optimiser], **{"training.precision": precision})
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
    g, dtype = torch.Generator().manual_seed(1), more.get("dtype", torch.float64)
    x = x if x.dtype == torch.uint8 else x.to(dtype)
    y = torch.randint(0, sizes[-1], (len(x),), generator=g)
    values = np.ones(x.shape[-1])
    feed = Feed(Pool(x, y, [torch.arange(len(x))]), 0.3 * values, 2.0 + values, torch.device("cpu"), dtype)
    count = len(sizes) - 1
    bias = more.get("bias", True)
    layers = [Layer(f"{i}.w", f"{i}.b" if bias else None, i < count - 1) for i in range(count)]
    w = {
        f"{i}.w": torch.randn(3, sizes[i + 1], sizes[i], generator=g, dtype=torch.float64) / sizes[i]
        for i in range(count)
    }
    b = {f"{i}.b": torch.randn(3, sizes[i + 1], generator=g, dtype=torch.float64) for i in range(count) if bias}
    named = {name: value.to(dtype) for name, value in (w | b).items()}
    moving = [name for name in named if name not in more.get("frozen", ())]
    resting = {name: value[:1].expand(3, *value.shape[1:]) for name, value in named.items() if name not in moving}
    rule = more.get("rule", Rule("sgd", 0.1))
    descent = kind(Chain(layers), moving, [named[n] for n in moving], resting, rule, GradientTerms())
    samples = torch.randint(0, len(x), (4, 3, batch), generator=g)
    if more.get("apart"):  # client k draws from its own third of the samples
        samples = samples % (len(x) // 3) + len(x) // 3 * torch.arange(3)[:, None]
    share = torch.rand(4, 3, batch, generator=g, dtype=torch.float64).to(dtype) if more.get("weighted") else None
    if kind is Descent and not rule.plain:
        return [*stepped(Chain(layers), named | resting, moving, rule, feed, samples, share)]
    losses = descent.run(feed, samples, share)
    return [*(named[name] for name in moving), losses]


def stepped(
    chain: Chain, named: dict[str, Tensor], moving: list[str], rule: Rule, feed: Feed, samples: Tensor,
    share: Tensor | None,
) -> Iterator[Tensor]:  # fmt: skip
    """Parameters and losses after steps by autograd, and by the optimisers' equations (`after`)."""
    first, second = ({name: torch.zeros_like(named[name]) for name in moving} for _ in range(2))
    losses = []
    for j, numbers in enumerate(samples):
        x, y = feed.batch(numbers)
        w = {name: value.clone().requires_grad_() for name, value in named.items()}
        h = x.flatten(2)
        for layer in chain.layers:
            h = h @ w[layer.weight].mT + (0 if layer.bias is None else w[layer.bias][:, None])
            h = h.relu() if layer.relu else h
        losses.append(F.cross_entropy(h.flatten(0, 1), y.flatten(), reduction="none").view(y.shape))
        means = losses[-1].mean(dim=1) if share is None else (losses[-1] * share[j]).sum(dim=1)
        for name, g in zip(moving, torch.autograd.grad(means.sum(), [w[name] for name in moving]), strict=True):
            named[name], first[name], second[name] = after(rule, named[name], g, first[name], second[name], j + 1)
    yield from (named[name] for name in moving)
    yield torch.stack(losses).detach()


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("sizes", [(1, 2), (12, 3), (12, 17, 4), (12, 5, 33, 2)], ids=str)
@pytest.mark.parametrize("batch", [1, 5, 7])
@pytest.mark.parametrize("more", [{}, {"weighted": True}, {"frozen": ("0.w", "0.b")}, {"bias": False}], ids=str)
def test_compiled_kernels_any_shape_as_pytorch(
    rule: str, sizes: tuple[int, ...], batch: int, more: dict[str, Any]
) -> None:
    """Sizes on either side of blocks and vectors, which are padded; shares, a frozen layer, no bias."""
    if len(sizes) == 2 and "frozen" in more:
        more = {"frozen": ("0.b",)}
    x = torch.randn(20, sizes[0], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    more = {**more, "rule": RULES[rule]}
    expected, found = (descended(kind, sizes, x, batch, **more) for kind in (Descent, CompiledDescent))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("rule", RULES)
def test_compiled_kernels_in_float32(rule: str) -> None:
    """Near float64's numbers, though Adam's root and division are estimates there; an input that is always the mean has
    no gradient, and its weights stay as they are."""
    x = torch.randn(20, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[:, 3] = 0.3
    exact = descended(Descent, (12, 17, 4), x, 7, rule=RULES[rule])
    found = descended(CompiledDescent, (12, 17, 4), x, 7, rule=RULES[rule], dtype=torch.float32)
    start = descended(CompiledDescent, (12, 17, 4), x, 7, rule=Rule("sgd", 0.0), dtype=torch.float32)
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=1e-4)
    assert torch.equal(found[0][..., 3], start[0][..., 3]) and not torch.equal(found[0], start[0])


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
@pytest.mark.parametrize("rule", RULES)
def test_compiled_kernels_leave_a_divergence_to_its_client(sizes: tuple[int, ...], bad: float, rule: str) -> None:
    """The first of three clients has absurd inputs; the others, trained after it by the same thread, are as without."""
    x = torch.randn(21, sizes[0], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    absurd = torch.cat([torch.full_like(x[:7], bad), x[7:]])
    expected, found = (descended(CompiledDescent, sizes, data, 5, apart=True, rule=RULES[rule]) for data in (x, absurd))
    for a, b in zip(found[:-1], expected[:-1], strict=True):
        bounded = rule == "adam" and bad == 1e300  # v is infinite, and the step 0
        assert bounded or not a[0].isfinite().all()
        assert torch.equal(a[1:], b[1:])


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
    assert resolved("mlp", auto, **{"training.momentum": 0.9}) == "compiled"
    assert resolved("mlp", auto, **{"training.optimiser": "adam"}) == "compiled"
    assert resolved("cnn_tiny", auto) == "torch"
    assert resolved("mlp", compiled(kernels="torch")) == "torch"


@pytest.mark.usefixtures("built")
def test_auto_goes_by_the_speeds_of_such_a_network() -> None:
    """Linear models by theirs, MLPs by theirs, each by its slowest case."""
    auto = compiled(kernels="auto")
    for linear, mlp in ((2.0, 0.9), (0.9, 2.0)):
        cases = {("linear", 10): 3.0, ("linear", 50): linear, ("mlp", 10): mlp, ("mlp", 50): 3.0}
        kernels.note_speeds({kernels.Case(network, "sgd", batch): s for (network, batch), s in cases.items()})
        assert resolved("linear", auto) == ("compiled" if linear > 1 else "torch")
        assert resolved("mlp", auto) == ("compiled" if mlp > 1 else "torch")
        assert resolved("mlp", compiled()) == "compiled"
    for slower, faster, kind in ((0.97, 1.4, "compiled"), (0.97, 0.99, "torch"), (0.94, 1.4, "torch")):
        kernels.note_speeds({kernels.Case("mlp", "sgd", 10): faster, kernels.Case("mlp", "sgd", 50): slower})
        assert resolved("mlp", auto) == kind, "as fast in one case, but for noise, and faster in the other"
    note(linear=3.0)
    assert resolved("mlp", auto) == "torch", "nothing is known of MLPs"


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_auto_goes_by_the_speeds_of_such_an_optimiser(optimiser: str) -> None:
    note(mlp=2.0, optimisers=(optimiser,))
    found = {each: resolved("mlp", compiled(kernels="auto"), **OPTIMISERS[each]) for each in OPTIMISERS}
    assert found == {each: "compiled" if each == optimiser else "torch" for each in OPTIMISERS}


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
    for model, more in (("cnn_tiny", {}), ("mlp", {"training.precision": "bfloat16"})):
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
    note(linear=2.0, mlp=2.0)
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


@pytest.mark.parametrize("part", ["start", "half", "bit", "all but the digest"])
def test_a_cut_or_changed_library_is_refused(folder: Path, empty: Path, part: str) -> None:
    """A power cut or a full disk leaves a part: its start would end the process by SIGBUS when it is loaded."""
    content = next((folder / "kernels").glob("*.so")).read_bytes()
    middle = len(content) // 2
    changed = bytes([content[middle] ^ 1])
    kernels.library_file().parent.mkdir()
    kernels.library_file().write_bytes(
        {
            "start": content[:4096],
            "half": content[:middle],
            "bit": content[:middle] + changed + content[middle + 1 :],
            "all but the digest": content.partition(kernels.SEAL)[0],
        }[part]
    )
    expected = r"^can't load the compiled kernels \(.*: its content is not what was written\); build them again: pfl-"
    with pytest.raises(PflOpsError, match=expected):
        kernels.library()


def test_building_on_a_full_disk_says_so(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The linker's reason, not its caller's "ld returned 1 exit status"."""
    linker = empty / "c++"
    linker.write_text(
        "#!/bin/sh\n"
        "echo '/usr/bin/ld: final link failed: No space left on device' >&2\n"
        "echo 'collect2: error: ld returned 1 exit status' >&2\n"
        "exit 1\n"
    )
    linker.chmod(0o755)
    monkeypatch.setenv("CXX", str(linker))
    with pytest.raises(PflOpsError, match=r"c\+\+ can't compile the kernels: .*failed: No space left on device$"):
        kernels.compile_library()
    assert not os.listdir(empty / "kernels")


@pytest.mark.usefixtures("built")
def test_a_wrong_library_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels with another learning rate: `compare` refuses them."""
    run = CompiledDescent.run

    def wrong(self: CompiledDescent, *args: Any) -> Tensor:
        self.rule = Rule("sgd", 2e-3)
        return run(self, *args)

    monkeypatch.setattr(CompiledDescent, "run", wrong)
    with pytest.raises(
        PflOpsError, match=r"compiled kernels differ from PyTorch's by .* on linear under sgd; not used"
    ):
        kernel_check.compare()
