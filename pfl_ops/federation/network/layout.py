"""Names of parameters <-> columns of P.

The columns stand in the order body, head, extra blocks, so that every part is a slice. Convolution weights are stored
as O, H, W, I: their order does not depend on how a run is executed, and the view O, I, H, W is what channels_last
kernels want.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_ops import rng
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.misuse import MisuseError


@dataclass(frozen=True)
class LayoutBlock:
    """One named parameter: its shape in the network and its columns."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape in the row: O, H, W, I for a convolution's weight."""
        return (self.shape[0], *self.shape[2:], self.shape[1]) if len(self.shape) == 4 else self.shape

    def view(self, stored: Tensor) -> Tensor:
        """[..., *stored] as the network sees it, [..., *shape]; never a copy."""
        return stored.movedim(-1, -3) if len(self.shape) == 4 else stored


class Layout:
    """Columns of one model's row.

    Attributes:
        blocks: every parameter, in the order of their columns. size: P.
        body, head: slices of the feature extractor and of the last linear layer; net: both.
        extra: name -> slice, blocks that a method added.

    >>> layout = Layout({"fc.weight": (2, 3), "fc.bias": (2,)}, {"head.weight": (1, 2)}, extra={"gate": (1,)})
    >>> layout.size, layout.body, layout.head, layout.extra["gate"]
    (11, slice(0, 8, None), slice(8, 10, None), slice(10, 11, None))
    """

    def __init__(
        self,
        body: Mapping[str, tuple[int, ...]],
        head: Mapping[str, tuple[int, ...]],
        extra: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        extra = extra or {}
        blocks, ends, at = [], [], 0
        for part in (body, head, extra):
            for name, shape in part.items():
                block = LayoutBlock(name, tuple(shape), at, at + int(torch.Size(shape).numel()))
                blocks.append(block)
                at = block.stop
            ends.append(at)
        self.blocks: tuple[LayoutBlock, ...] = tuple(blocks)
        self.size = at
        self.body = slice(0, ends[0])
        self.head = slice(ends[0], ends[1])
        self.net = slice(0, ends[1])
        self.extra = {block.name: slice(block.start, block.stop) for block in blocks if block.name in extra}

    def within(self, part: slice | None) -> tuple[LayoutBlock, ...]:
        """Return the blocks of a slice; a slice that cuts through a block is an error.

        >>> layout = Layout({"fc.weight": (2, 3)}, {"head.weight": (1, 2)})
        >>> [(block.name, block.start, block.stop) for block in layout.within(layout.head)]
        [('head.weight', 6, 8)]
        >>> layout.within(slice(0, 4))
        Traceback (most recent call last):
        pfl_ops.federation.misuse.MisuseError: columns 0:4 cut through a parameter (fc.weight … fc.weight); ...
        """
        if part is None:
            return self.blocks
        start, stop, _ = part.indices(self.size)
        blocks = tuple(b for b in self.blocks if b.start < stop and b.stop > start)
        if blocks and (blocks[0].start < start or blocks[-1].stop > stop):
            raise MisuseError(
                f"columns {start}:{stop} cut through a parameter ({blocks[0].name} … {blocks[-1].name}); take whole "
                "rows, or a slice of r.layout: body, head, top(layers)"
            )
        return blocks

    def layers(self) -> list[str]:
        """Names of the network's layers that have parameters, from input to output.

        >>> Layout({"fc.weight": (2, 3), "fc.bias": (2,)}, {"head.weight": (1, 2)}).layers()
        ['fc', 'head']
        """
        return list(OrderedDict.fromkeys(b.name.rpartition(".")[0] for b in self.within(self.net)))

    def top(self, layers: int) -> slice:
        """Return the columns of the last `layers` layers of the network; the head is the last.

        >>> layout = Layout({"fc1.weight": (2, 3), "fc2.weight": (2, 2)}, {"head.weight": (1, 2)})
        >>> layout.top(1), layout.top(2)
        (slice(10, 12, None), slice(6, 12, None))
        """
        names = self.layers()
        if not 1 <= layers <= len(names):
            raise MisuseError(f"the network has {len(names)} layers with parameters, got top({layers})")
        first = names[-layers]
        return slice(next(b.start for b in self.blocks if b.name.rpartition(".")[0] == first), self.net.stop)

    def views(self, w: Tensor, part: slice | None = None) -> dict[str, Tensor]:
        """Return flat `w` [..., Q], the columns of `part` (default all), as name -> [..., *shape] without copying.

        >>> layout = Layout({"fc.weight": (2, 1)}, {"head.weight": (1, 2)})
        >>> {name: view.tolist() for name, view in layout.views(torch.arange(4.0)).items()}
        {'fc.weight': [[0.0], [1.0]], 'head.weight': [[2.0, 3.0]]}
        """
        blocks = self.within(part)
        pieces = w.split([b.stop - b.start for b in blocks], dim=-1)
        return {b.name: b.view(p.unflatten(-1, b.stored)) for b, p in zip(blocks, pieces, strict=True)}

    def flatten(self, named: Mapping[str, Tensor]) -> Tensor:
        """Join name -> tensor to one row [P]; every block must be there in its shape.

        >>> layout = Layout({"fc.weight": (2, 1)}, {"head.weight": (1, 2)})
        >>> named = {"head.weight": torch.tensor([[2.0, 3.0]]), "fc.weight": torch.tensor([[0.0], [1.0]])}
        >>> layout.flatten(named).tolist()
        [0.0, 1.0, 2.0, 3.0]
        """
        pieces = []
        for block in self.blocks:
            if block.name not in named or tuple(named[block.name].shape) != block.shape:
                got = tuple(named[block.name].shape) if block.name in named else "nothing"
                raise PflOpsError(f"parameter {block.name} should have shape {block.shape}, got {got}")
            value = named[block.name].detach()
            pieces.append((value.movedim(1, -1) if len(block.shape) == 4 else value).reshape(-1))
        return torch.cat(pieces)

    def export(self, w: Tensor) -> dict[str, Tensor]:
        """Return one row [P] as contiguous tensors by name, for a file.

        >>> layout = Layout({"conv.weight": (1, 2, 1, 1)}, {"head.weight": (1, 2)})
        >>> {name: tuple(value.shape) for name, value in layout.export(torch.arange(4.0)).items()}
        {'conv.weight': (1, 2, 1, 1), 'head.weight': (1, 2)}
        """
        return {name: value.contiguous() for name, value in self.views(w).items()}


def initial_extra(extra: Mapping[str, tuple[int, ...]], seed: int) -> Tensor:
    """First values of a method's extra blocks, float64 [their P]: matrices as PyTorch's `nn.Linear`, vectors zero.

    >>> values = initial_extra({"exit.weight": (2, 4), "exit.bias": (2,)}, seed=0)
    >>> len(values), bool((values[:8].abs() <= 0.5).all()), values[8:].any().item()  # within ± 1 / √4, and zeros
    (10, True, False)
    """
    pieces = []
    for name, shape in extra.items():
        fan_in = int(torch.Size(shape[1:]).numel())
        uniform = rng.generator(seed, "extra", name).uniform(-1, 1, shape) / fan_in**0.5
        pieces.append(torch.from_numpy(uniform if len(shape) > 1 else 0 * uniform).reshape(-1))
    return torch.cat(pieces)
