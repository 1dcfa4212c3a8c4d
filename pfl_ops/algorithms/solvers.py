"""Small dense convex problems of the server: projections and minima on the simplex, always in float64.

None of them sees a model: methods hand over the Gram matrix of their rows, m x m whatever P is.
"""

import numpy as np
import torch
from scipy.optimize import Bounds, LinearConstraint, minimize, nnls
from torch import Tensor

from pfl_ops.errors import PflOpsError

EDGE = 1e-7
"""A weight this near to a bound lies on it."""


def project_to_simplex(v: Tensor) -> Tensor:
    """argmin_λ ‖λ − v‖ over λ >= 0, Σ λ = 1: λ = max(v − τ, 0), τ found by sorting.

    Args:
        v: [m], m >= 1.
    Returns:
        [m], in the type of `v`.

    >>> project_to_simplex(torch.tensor([1.5, 0.5, -2.0])).tolist()  # τ = ½
    [1.0, 0.0, 0.0]
    >>> project_to_simplex(torch.tensor([0.5, 0.0, 0.25])).tolist()  # τ = −1/12
    [0.583..., 0.083..., 0.333...]

    Source: Held, Wolfe, Crowder 1974; Duchi et al., ICML 2008.
    """
    near = v.double() - v.max()  # the same projection, and no digits lost where v is large
    high = near.sort(descending=True).values
    above = (high.cumsum(0) - 1) / torch.arange(1, len(v) + 1, dtype=torch.float64, device=v.device)
    kept = int((high > above).sum())
    return (near - above[kept - 1]).clamp(min=0).to(v)


def gram(rows: Tensor) -> Tensor:
    """Inner products of rows [m, P] with each other, float64 [m, m], on the CPU.

    Taken in float64, some columns at a time so that these stay in the cache: in float32 the length of a sum of rows,
    a root of such products, is known to three digits only. 100 rows of a million numbers take 0.6 s on one core.

    >>> gram(torch.tensor([[1.0, 2.0], [3.0, 0.0]])).tolist()
    [[5.0, 3.0], [3.0, 9.0]]
    """
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for columns in rows.split(1 << 12 if rows.device.type == "cpu" else 1 << 16, dim=1):
        wide = columns.double()
        total += wide @ wide.T
    return total.cpu()


def square_distances(a: Tensor, b: Tensor) -> Tensor:
    """‖a_i − b_j‖², float64 [m, n] on the CPU, of rows [m, P] and [n, P].

    Rows are centred first: near models differ in digits that ‖a‖² + ‖b‖² − 2⟨a, b⟩ of the rows as they are has lost.

    >>> square_distances(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 2.0]])).round(decimals=9).tolist()
    [[25.0, 4.0]]
    """
    centre = torch.cat([a, b]).mean(dim=0)
    both = gram(torch.cat([a - centre, b - centre]))
    square = both.diagonal()
    m = len(a)
    return (square[:m, None] + square[None, m:] - 2 * both[:m, m:]).clamp(min=0)


def min_norm(products: Tensor, low: float | Tensor = 0.0, high: float | Tensor = 1.0) -> Tensor:
    """argmin_λ ½ λᵀ G λ over Σ λ = 1 and low <= λ <= high: the shortest vector in (a part of) a convex hull.

    On the whole simplex exactly, by non-negative least squares: with G = AᵀA, y minimises ‖A y‖² + (Σ y − 1)² over
    y >= 0, and λ = y / Σ y. Within narrower bounds by sequential least squares, which finds the bounds that
    hold, and the linear equations that are left.

    Args:
        products: G, symmetric and positive semidefinite, [m, m].
        low, high: bounds of each λ, numbers or [m]; 0 <= low <= high.
    Returns:
        λ, float64 [m] on the CPU.
    Raises:
        PflOpsError: G is not finite, or no λ lies within the bounds.

    >>> rows = torch.tensor([[2.0, 0.0], [0.0, 1.0]])  # the segment's nearest point to 0 is (0.4, 0.8)
    >>> min_norm(gram(rows)).round(decimals=9).tolist()
    [0.2, 0.8]
    >>> min_norm(gram(rows), low=0.25).round(decimals=9).tolist()
    [0.25, 0.75]

    Source: Lawson, Hanson, "Solving Least Squares Problems", 1974, chapter 23 (NNLS); Kraft 1988 (SLSQP).
    """
    g = products.detach().double().cpu().numpy()
    if not np.isfinite(g).all():
        raise PflOpsError("the products of the clients' gradients are not finite; use a smaller training.lr")
    m = len(g)
    lowest, highest = (np.broadcast_to(np.asarray(bound, dtype=np.float64), m) for bound in (low, high))
    if lowest.sum() > 1 + 1e-12 or highest.sum() < 1 - 1e-12 or (lowest > highest).any():
        raise PflOpsError(
            f"no weights within these bounds sum to 1: they lie between {lowest.sum():g} and {highest.sum():g}"
        )
    g = (g + g.T) / (2 * max(float(np.abs(g).max()), np.finfo(float).tiny))
    if (lowest <= 0).all() and (highest >= 1).all():
        # torch's, not numpy's: on a busy machine numpy's threads waited for one another, 250 ms against 5 at m = 100
        values, vectors = torch.linalg.eigh(torch.from_numpy(g))
        root = (values.clamp(min=0).sqrt()[:, None] * vectors.mT).numpy()
        y, _ = nnls(np.vstack([root, np.ones(m)]), np.append(np.zeros(m), 1.0), maxiter=100 * m)
        return torch.from_numpy(y / y.sum())
    room = highest - lowest
    start = lowest + room * ((1 - lowest.sum()) / max(room.sum(), np.finfo(float).tiny))
    found = minimize(  # type: ignore[call-overload]  # its stubs take no lambda
        lambda x: float(0.5 * x @ g @ x), start, jac=lambda x: g @ x, method="SLSQP", bounds=Bounds(lowest, highest),
        constraints=LinearConstraint(np.ones((1, m)), 1, 1), options={"ftol": 1e-15, "maxiter": 1000},
    )  # fmt: skip
    near = torch.from_numpy(np.clip(found.x, lowest, highest))
    return _polished(torch.from_numpy(g), near, torch.from_numpy(lowest.copy()), torch.from_numpy(highest.copy()))


def _polished(g: Tensor, near: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The optimum whose bounds `near` has found: (Gλ)_k equal for all k between their bounds, which is linear.

    What the iterations left depends on the number of BLAS threads in its last digits; this does not.
    """
    at_low, at_high = near <= low + EDGE, near >= high - EDGE
    free = (~(at_low | at_high)).nonzero()[:, 0]
    lam = torch.where(at_low, low, high).index_fill(0, free, 0.0)
    lam[free] = (1 - lam.sum()) / max(len(free), 1)
    ones = torch.ones(1, len(free), dtype=g.dtype)
    system = torch.cat([torch.cat([g[free][:, free], ones.mT], 1), torch.cat([ones, ones.new_zeros(1, 1)], 1)])
    wanted = torch.cat([-(g @ lam)[free], (1 - lam.sum())[None]])
    change = torch.linalg.lstsq(system, wanted, driver="gelsd").solution[:-1]
    exact = lam.index_add(0, free, change)
    within = bool(((exact >= low) & (exact <= high)).all()) and abs(float(exact.sum()) - 1) < EDGE
    return exact if len(free) and within else near


__all__ = ["gram", "min_norm", "project_to_simplex", "square_distances"]
