"""The two forms of an optimiser against PyTorch's own, step by step."""

import pytest
import torch

from pfl_ops.federation.network.optim import Leaves, Rowwise, Rule

RULES = {
    "sgd": Rule("sgd", 0.1),
    "decay": Rule("sgd", 0.1, weight_decay=0.3),
    "momentum": Rule("sgd", 0.1, momentum=0.9, weight_decay=0.3),
    "adam": Rule("adam", 0.1),
    "adam with decay": Rule("adam", 0.1, weight_decay=0.3),
}


@pytest.fixture(params=RULES)
def rule(request):
    return RULES[request.param]


@pytest.fixture
def grads():
    torch.manual_seed(0)
    return torch.randn(5, 3, 4, dtype=torch.float64)


def reference(rule, start, grads):
    """PyTorch's optimiser object on one parameter."""
    w = start.clone().requires_grad_()
    how = {"lr": rule.lr, "weight_decay": rule.weight_decay}
    optimiser = (
        torch.optim.Adam([w], **how) if rule.kind == "adam" else torch.optim.SGD([w], momentum=rule.momentum, **how)
    )
    for g in grads:
        w.grad = g.clone()
        optimiser.step()
    return w.detach()


def test_rowwise(rule, grads):
    start = torch.ones(3, 4, dtype=torch.float64)
    w, optimiser = start, Rowwise(rule)
    for g in grads:
        before = w.clone(), g.clone()
        new = optimiser.step(w, g)
        assert torch.equal(w, before[0]) and torch.equal(g, before[1])  # pure
        w = new
    torch.testing.assert_close(w, reference(rule, start, grads), rtol=0, atol=1e-12)


def test_leaves(rule, grads):
    start = torch.ones(3, 4, dtype=torch.float64)
    leaves = [start[:, :1].clone(), start[:, 1:].clone()]
    optimiser = Leaves(rule, leaves)
    for g in grads:
        optimiser.step(leaves, [g[:, :1].contiguous(), g[:, 1:].contiguous()])
    torch.testing.assert_close(torch.cat(leaves, dim=1), reference(rule, start, grads), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["leaves", "rowwise"])
def test_rows_that_end_leave_the_others_alone(rule, grads, form):
    """Three rows for two steps, two rows for one more, one row to the end: each as if it had been alone."""
    active = [3, 3, 2, 1, 1]
    w = torch.ones(3, 4, dtype=torch.float64)
    leaf, leaves, rowwise = w.clone(), None, Rowwise(rule)
    leaves = Leaves(rule, [leaf])
    at_work = 3
    for g, rows in zip(grads, active, strict=True):
        if form == "leaves":
            if rows < at_work:
                at_work = rows
                leaves.shrink(rows)
            leaves.step([leaf[:rows]], [g[:rows].contiguous()])
        else:
            w = torch.cat([rowwise.step(w[:rows], g[:rows]), w[rows:]])
    got = leaf if form == "leaves" else w
    for row, steps in enumerate((5, 3, 2)):
        alone = reference(rule, torch.ones(1, 4, dtype=torch.float64), grads[:steps, row : row + 1])
        torch.testing.assert_close(got[row : row + 1], alone, rtol=0, atol=1e-12)
