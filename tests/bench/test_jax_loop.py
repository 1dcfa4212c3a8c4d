"""The JAX peer learns what we learn: the same parameters from the same batches."""

import pytest
import torch
from bench_case import small

from pfl_ops.bench.candidate import Label
from pfl_ops.bench.ours import EngineCandidate
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.network.net import Net

pytest.importorskip("jax", reason="needs the extra `peers`")


@pytest.mark.parametrize("vmapped", [False, True], ids=["scan", "vmapped scan"])
@pytest.mark.parametrize(("optimiser", "tolerance"), [("sgd", 1e-4), ("adam", 1e-2)])
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_same_parameters_as_ours(model, optimiser, tolerance, vmapped):
    """Two rounds, whose batches differ. In float32 the last digits are each one's own, and Adam divides by them."""
    from pfl_ops.bench.jax_loop import JaxScan

    case = small(model, optimiser=optimiser, steps=6)
    layout = Net(case.network).layout
    start = layout.flatten(dict(case.network.named_parameters()))
    peer, ours = JaxScan(case, vmapped), EngineCandidate(case, Label("loop"))
    for _ in range(2):
        theirs = torch.stack([rows(parameters, layout) for parameters in peer.train()])
        mine = ours.train()
        moved = (mine - start).abs().max()
        assert (mine - theirs).abs().max() < tolerance * moved


def rows(parameters, layout):
    """JAX's layers as one of our rows [P]."""
    arrays = [torch.tensor(array.__array__()) for layer in parameters for array in layer]
    return layout.flatten({block.name: array for block, array in zip(layout.blocks, arrays, strict=True)})


def test_other_networks_are_left_out(tiny):
    from pfl_ops.bench.jax_loop import JaxScan

    with pytest.raises(PflOpsError, match="on linear and mlp only"):
        JaxScan(tiny, vmapped=False)
