"""Steps of an optimiser on fully connected networks by compiled kernels: all steps of some clients in one call.

PyTorch's operators take as long to call as a small product, and write each intermediate result to memory. The kernels
(descent.cpp) keep a client's weights in the processor's cache for all its steps. Their sums have another order than
PyTorch's: results are equal within 1e-10 in float64, and bit for bit the same for every stack, worker and thread.
"""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_double, c_int64, c_void_p
from functools import cache

import torch
from torch import Tensor

from pfl_ops.federation.network.optim import BETA_1, BETA_2, EPS
from pfl_ops.federation.training import kernels
from pfl_ops.federation.training.descent import Descent
from pfl_ops.federation.training.feed import Feed

FUNCTIONS = {torch.float32: "descend_float32", torch.float64: "descend_float64"}
PLAIN, MOMENTUM, ADAM = range(3)  # `Optimiser` of descent.cpp


class LeafArguments(Structure):
    """`Leaf` of descent.cpp."""

    _fields_ = (
        ("values", c_void_p), ("stride", c_int64), ("moves", c_int64), ("offset", c_void_p), ("offset_stride", c_int64),
        ("first", c_void_p), ("second", c_void_p),
    )  # fmt: skip


class LayerArguments(Structure):
    """`Layer` of descent.cpp."""

    _fields_ = (
        ("in", c_int64), ("out", c_int64), ("relu", c_int64), ("weight", LeafArguments), ("bias", LeafArguments),
    )  # fmt: skip


class StepArguments(Structure):
    """`Steps` of descent.cpp."""

    _fields_ = (
        ("count", c_int64), ("clients", c_int64), ("batch", c_int64), ("threads", c_int64),
        ("samples", c_void_p), ("step_stride", c_int64), ("client_stride", c_int64),
        ("x", c_void_p), ("bytes", c_int64), ("channels", c_int64), ("mean", c_void_p), ("scale", c_void_p),
        ("y", c_void_p), ("share", c_void_p), ("keep", c_void_p), ("losses", c_void_p), ("rate", c_double),
        ("optimiser", c_int64), ("taken", c_int64), ("first_decay", c_double), ("second_decay", c_double),
        ("eps", c_double),
    )  # fmt: skip


def takes(feed: Feed) -> bool:
    """True if the kernels can read these samples: bytes or the run's own number format, in the CPU's memory."""
    stored = feed.x.dtype in (torch.uint8, feed.dtype) and feed.x.is_contiguous() and feed.y.dtype == torch.int64
    return stored and feed.dtype in FUNCTIONS and feed.device.type == "cpu"


class CompiledDescent(Descent):
    """`Descent` by compiled kernels, under any optimiser; the arguments are the same."""

    def run(self, feed: Feed, samples: Tensor, share: Tensor | None) -> Tensor:
        """Some steps, one after the other; see `Descent.run`."""
        steps, clients, batch = samples.shape
        samples = samples if samples.stride(-1) == 1 else samples.contiguous()
        share = None if share is None else share.contiguous()
        losses = torch.empty(samples.shape, dtype=feed.dtype)
        mean, scale = (v.expand(feed.x.shape[1:]).contiguous() for v in (feed.mean, feed.scale))
        keep, offsets = self._terms(clients)
        layers = (LayerArguments * len(self.layers))()
        for to, layer in zip(layers, self.layers, strict=True):
            weight, bias = layer.moves
            setattr(to, "in", layer.weight.shape[2])
            to.out, to.relu = layer.weight.shape[1], layer.relu
            to.weight = self._leaf(layer.weight, weight, offsets)
            if layer.bias is not None:
                to.bias = self._leaf(layer.bias, bias, offsets)
        arguments = StepArguments(
            steps, clients, batch, torch.get_num_threads(), _at(samples), samples.stride(0), samples.stride(1),
            _at(feed.x), feed.x.dtype == torch.uint8, feed.x.shape[-1] if feed.images else 1, _at(mean), _at(scale),
            _at(feed.y), _at(share), _at(keep), _at(losses), self.rule.lr,
            self._optimiser, self.moments.taken, BETA_1 if self.moments.second else self.rule.momentum, BETA_2, EPS,
        )  # fmt: skip
        _function(feed.dtype)(layers, len(layers), ctypes.byref(arguments))
        self.moments.taken += steps
        for _ in range(steps):
            for i in self.unseen:  # blocks of a method's own: no loss, but decay, shift and pull
                self.terms.descend(i, self.leaves[i], self.rule)
        return losses

    def _leaf(self, values: Tensor, place: int | None, offsets: Sequence[Tensor | None]) -> LeafArguments:
        """A parameter; `place`: of its leaf, None where it stays."""
        if not values[0].is_contiguous():
            raise ValueError("each client's values of a parameter must be contiguous")
        if place is None:
            return LeafArguments(_at(values), _stride(values), False)
        first, second = (m[place] if m else None for m in (self.moments.first, self.moments.second))
        offset = offsets[place]
        return LeafArguments(_at(values), _stride(values), True, _at(offset), _stride(offset), _at(first), _at(second))

    @property
    def _optimiser(self) -> int:
        """The rule as one of descent.cpp's."""
        return PLAIN if self.rule.plain else ADAM if self.moments.second else MOMENTUM

    def _terms(self, clients: int) -> tuple[Tensor | None, Sequence[Tensor | None]]:
        """Terms that join the gradient, keep · w + offset: keep [c] and an offset for each leaf.

        A plain step w − η (g + terms) gets keep = 1 − η (λ + μ) and offset = −η (shift − μ anchor), others λ + μ and
        shift − μ anchor. Both are None without terms; an offset is [1 or c, *shape], or None for no such term.
        """
        if not self.terms_apply:
            return None, [None] * len(self.leaves)
        terms, rule = self.terms, self.rule
        start, scale = (1.0, -rule.lr) if rule.plain else (0.0, 1.0)
        pulls = terms.anchor is not None
        decay = torch.as_tensor(rule.weight_decay + (terms.mu if pulls else 0.0), dtype=self.leaves[0].dtype)
        keep = (start + scale * decay).expand(clients).contiguous()
        offsets: list[Tensor | None] = []
        for i, leaf in enumerate(self.leaves):
            offset = None
            if terms.anchor is not None:
                mu = terms.mu.view(-1, *(1,) * (leaf.dim() - 1)) if isinstance(terms.mu, Tensor) else terms.mu
                offset = -scale * mu * terms.anchor[i]
            if terms.shift is not None:
                offset = scale * terms.shift[i] if offset is None else offset + scale * terms.shift[i]
            offsets.append(None if offset is None else offset.contiguous())
        return keep, offsets


@cache
def _function(dtype: torch.dtype) -> Callable[..., None]:
    """The library's function for a number format; once found, a training never looks for the file again."""
    function = getattr(kernels.library(), FUNCTIONS[dtype])
    function.argtypes, function.restype = (POINTER(LayerArguments), c_int64, POINTER(StepArguments)), None
    return function


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _stride(tensor: Tensor | None) -> int:
    """Elements from one client's values to the next; 0: one for all."""
    return 0 if tensor is None or len(tensor) == 1 else tensor.stride(0)
