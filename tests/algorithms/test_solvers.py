import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_ops.algorithms.solvers import gram, min_norm, project_to_simplex, square_distances
from pfl_ops.errors import PflOpsError


def violation(g, lam, low, high):
    """The distance of λ from optimal: ½ λᵀGλ on Σ λ = 1, low <= λ <= high is least where one ν parts the gradients Gλ:

    (Gλ)_k = ν inside the bounds, >= ν at the lower one, <= ν at the upper one.
    """
    slope = g @ lam
    at_low, at_high = lam <= low + 1e-9, lam >= high - 1e-9
    least = max((slope[k] for k in range(len(lam)) if not at_low[k]), default=-np.inf)  # all of these are <= ν
    most = min((slope[k] for k in range(len(lam)) if not at_high[k]), default=np.inf)  # and all of these >= ν
    return max(least - most, 0.0) / max(abs(g).max(), 1e-300)


def test_projection_by_hand():
    """(0.9, 0.5, −1): with τ = 0.2 the first two become 0.7 and 0.3, the third 0."""
    assert project_to_simplex(torch.tensor([0.9, 0.5, -1.0], dtype=torch.float64)).tolist() == pytest.approx(
        [0.7, 0.3, 0]
    )
    assert project_to_simplex(torch.tensor([5.0])).tolist() == [1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=1, max_size=12))
def test_a_projection_is_the_nearest_point(values):
    """λ = max(v − τ, 0) for one τ is the optimum's condition."""
    v = torch.tensor(values, dtype=torch.float64)
    lam = project_to_simplex(v)
    assert lam.min() >= 0 and float(lam.sum()) == pytest.approx(1, abs=1e-12)
    tau = (v - lam)[lam > 0]
    assert float(tau.max() - tau.min()) < 1e-9
    assert ((v - lam)[lam == 0] <= tau.min() + 1e-9).all()


def test_projection_keeps_type_and_what_lies_on_the_simplex():
    lam = torch.tensor([0.25, 0.75, 0.0])
    assert torch.equal(project_to_simplex(lam), lam)
    assert project_to_simplex(torch.tensor([1e20, 1e20, 0.0])).tolist() == [0.5, 0.5, 0]


def test_shortest_vector_of_a_segment():
    """Between a = (2, 0) and b = (0, 1): λ a + (1 − λ) b is shortest for λ = b·(b − a)/‖b − a‖² = 1/5."""
    rows = torch.tensor([[2.0, 0], [0, 1]], dtype=torch.float64)
    assert min_norm(rows @ rows.T).tolist() == pytest.approx([0.2, 0.8])
    assert min_norm(rows @ rows.T, high=torch.tensor([1.0, 0.7])).tolist() == pytest.approx([0.3, 0.7])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 15), st.integers(1, 8), st.sampled_from([1e-8, 1.0, 1e8]))
def test_the_shortest_vector_meets_its_conditions(seed, m, p, scale):
    rows = np.random.default_rng(seed).normal(size=(m, p)) * scale
    g = rows @ rows.T
    lam = min_norm(torch.from_numpy(g)).numpy()
    assert lam.min() >= 0 and lam.sum() == pytest.approx(1, abs=1e-12)
    assert violation(g, lam, np.zeros(m), np.ones(m)) < 1e-9


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12), st.floats(0.001, 0.3))
def test_within_bounds_too(seed, m, eps):
    draws = np.random.default_rng(seed)
    rows = draws.normal(size=(m, 6))
    g, around = rows @ rows.T, draws.dirichlet(np.ones(m))
    low, high = np.maximum(around - eps, 0), np.minimum(around + eps, 1)
    lam = min_norm(torch.from_numpy(g), torch.from_numpy(low), torch.from_numpy(high)).numpy()
    assert lam.sum() == pytest.approx(1, abs=1e-9)
    assert (lam >= low).all() and (lam <= high).all()
    assert violation(g, lam, low, high) < 1e-6


def test_a_hundred_clients():
    """Both problems are solved to their conditions at the size of a large cohort."""
    draws = np.random.default_rng(0)
    rows = draws.normal(size=(100, 50)) + draws.normal(size=50)
    g, around = rows @ rows.T, np.full(100, 0.01)
    assert violation(g, min_norm(torch.from_numpy(g)).numpy(), np.zeros(100), np.ones(100)) < 1e-9
    low, high = around - 0.005, around + 0.005
    found = min_norm(torch.from_numpy(g), torch.from_numpy(low), torch.from_numpy(high)).numpy()
    assert violation(g, found, low, high) < 1e-6


def test_what_has_no_solution_is_refused():
    g = torch.eye(3, dtype=torch.float64)
    with pytest.raises(PflOpsError, match=r"they lie between 0 and 0\.9"):
        min_norm(g, high=0.3)
    with pytest.raises(PflOpsError, match="not finite"):
        min_norm(g * float("nan"))
    assert min_norm(torch.zeros(2, 2)).sum() == 1, "all rows zero: any weights will do"


def test_distances_of_near_models():
    """float32 rows that differ in the fourth digit: as exact as their own rounding allows."""
    base = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    apart = 1e-4 * torch.randn(3, 200_000, generator=torch.Generator().manual_seed(1))
    rows = base + apart
    exact = (rows.double()[:, None] - rows.double()[None]).square().sum(-1)
    found = square_distances(rows, rows)
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-6 * float(exact.max()))
    torch.testing.assert_close(square_distances(rows[:2], rows), exact[:2], rtol=1e-5, atol=1e-6 * float(exact.max()))
    assert gram(rows).dtype == torch.float64
