"""Batch plans: every epoch sees each sample once, whatever the sizes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_ops import rng
from pfl_ops.federation.method.contract import Share
from pfl_ops.federation.training.plan import draw, part


def generator(*parts):
    return rng.generator(0, "plan", *parts)


def batches(plan):
    return [plan.order[a:b].tolist() for a, b in zip(plan.bounds, plan.bounds[1:], strict=False)]


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 40), batch=st.one_of(st.none(), st.integers(1, 50)), epochs=st.integers(1, 4))
def test_epochs_see_each_sample_once(n, batch, epochs):
    plan = draw(n, batch=batch, epochs=epochs, steps=None, rng=generator(n))
    size = min(batch or n, n)
    a_pass = -(-n // size)
    assert plan.steps == epochs * a_pass
    for e in range(epochs):
        mine = [b for b, epoch in zip(batches(plan), plan.epoch, strict=True) if epoch == e]
        assert sorted(i for b in mine for i in b) == list(range(n))
        assert [len(b) for b in mine[:-1]] == [size] * (a_pass - 1) and len(mine[-1]) == n - size * (a_pass - 1)
    assert plan.ends.tolist() == ([False] * (a_pass - 1) + [True]) * epochs


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 40), batch=st.one_of(st.none(), st.integers(1, 50)), steps=st.integers(1, 25))
def test_steps_go_on_through_epochs(n, batch, steps):
    """J steps are the first J of as many epochs as they need; the plan ends with them."""
    plan = draw(n, batch=batch, epochs=None, steps=steps, rng=generator(n))
    size = min(batch or n, n)
    whole = draw(n, batch=batch, epochs=-(-steps // -(-n // size)), steps=None, rng=generator(n))
    assert plan.steps == steps
    assert batches(plan) == batches(whole)[:steps]
    assert (plan.epoch == whole.epoch[:steps]).all() and (plan.ends == whole.ends[:steps]).all()
    assert len(plan.order) == plan.bounds[-1]


def test_each_epoch_is_another_permutation():
    plan = draw(9, batch=9, epochs=3, steps=None, rng=generator())
    assert len({tuple(b) for b in batches(plan)}) == 3


def test_a_client_without_samples_takes_no_step():
    for length in ({"epochs": 2, "steps": None}, {"epochs": None, "steps": 3}):
        plan = draw(0, batch=4, rng=generator(), **length)
        assert plan.steps == 0 and len(plan.order) == 0 and plan.bounds.tolist() == [0]


def test_no_steps_at_all():
    assert draw(5, batch=2, epochs=None, steps=0, rng=generator()).steps == 0


def test_pinned():
    """The draws of this key, so that a change of keys or of the order of draws does not go unseen."""
    plan = draw(7, batch=3, epochs=2, steps=None, rng=rng.generator(5, "train", 2, 4, "personal", 1))
    assert batches(plan) == [[5, 1, 2], [0, 3, 6], [4], [2, 3, 5], [1, 0, 4], [6]]


@settings(max_examples=80, deadline=None)
@given(n=st.integers(1, 60), cut=st.floats(0.01, 0.99))
def test_a_cut_leaves_both_sides_a_sample(n, cut):
    low, high = part(n, Share(0, cut), generator(n)), part(n, Share(cut, 1), generator(n))
    assert sorted([*low, *high]) == list(range(n))
    if n >= 2:
        assert len(low) == min(max(round(cut * n), 1), n - 1)
    else:
        assert len(low) == 1 and len(high) == 0


def test_shares_of_one_permutation():
    thirds = [part(12, Share(i / 3, (i + 1) / 3), generator()) for i in range(3)]
    assert [len(p) for p in thirds] == [4, 4, 4] and len(np.unique(np.concatenate(thirds))) == 12
    assert sorted(part(12, Share(), generator())) == list(range(12))


@pytest.mark.parametrize("other", [(6, "train", 2, 4, "personal", 1), (5, "evaluate", 2, 4, "personal", 1),
                                   (5, "train", 3, 4, "personal", 1), (5, "train", 2, 3, "personal", 1),
                                   (5, "train", 2, 4, "", 1), (5, "train", 2, 4, "personal", 0)])  # fmt: skip
def test_every_part_of_the_key_counts(other):
    """Seed, purpose, round, client, stream, call."""
    plan = draw(20, batch=5, epochs=1, steps=None, rng=rng.generator(*other))
    assert batches(plan) != batches(
        draw(20, batch=5, epochs=1, steps=None, rng=rng.generator(5, "train", 2, 4, "personal", 1))
    )
