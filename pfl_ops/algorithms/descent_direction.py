"""One direction that descends for every client, and the drift from it that each client is allowed: FedPG's problems.

Both see the Gram matrix of the gradients only, m x m in float64 whatever P is. A vector of P numbers is named by its
weights [m] over the rows [m, P] that the matrix was taken of: first the gradients of the C clients that are online,
then older ones of clients that are not.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pfl_ops.algorithms.solvers import min_norm

NOTHING = 1e-6
"""A sum of rows is zero where it is shorter than this share of what it is made of: half of float64's digits, for
lengths are roots of the Gram matrix's entries."""


@dataclass(frozen=True)
class Direction:
    """A direction d, and the problem that it solves.

    Attributes:
        products: Gram matrix of the rows, float64 [m, m]. losses: L_k of the C clients online, float64 [C].
        weights: d = weights @ rows, [m]; zero where no direction descends for all.
        problem: weights of the rows q of Q, as last solved, [q, m]; no rows: nothing was solved.
        sigma: σ = ‖mean g‖ / ‖Qᵀλ‖.
        fair: weights of ∇F, [m]; None where it was no row of the Q last solved.

    >>> gradients = torch.tensor([[3.0, 0.0], [0.0, 1.0], [0.0, 0.0]]).double()
    >>> way = mean_descent(gradients @ gradients.T, torch.ones(3).double())
    >>> way.kept.tolist(), way.slopes.tolist()  # d = −(1.5, 0.5)
    ([True, True, False], [-4.5, -0.5, 0.0])
    """

    products: Tensor
    losses: Tensor
    weights: Tensor
    problem: Tensor
    sigma: float = 1.0
    fair: Tensor | None = None

    @property
    def kept(self) -> Tensor:
        """True for each client online whose gradient is not zero, bool [C]."""
        return self.products.diagonal()[: len(self.losses)] != 0

    @property
    def slopes(self) -> Tensor:
        """d · g_k of the clients online, [C]."""
        return self.products[: len(self.losses)] @ self.weights


def common_descent(
    products: Tensor, losses: Tensor, *, fair: bool = True, scale: Literal["code", "paper"] = "code"
) -> Direction:
    """Return the negative of the shortest vector in the convex hull of all rows, as long as the mean gradient.

        λ = argmin ½ ‖Qᵀλ‖² on the simplex;  d = −σ Qᵀλ, σ = ‖mean g‖ / ‖Qᵀλ‖;  d · q <= −σ ‖Qᵀλ‖² for all rows q

    Args:
        products, losses: as in `Direction`.
        fair: whether ∇F is a row of Q.
        scale: `code`: every row of Q is scaled to μ, the mean length of the gradients; `paper`: those of clients
            online only.

    >>> gradients = torch.tensor([[3.0, 0.0], [0.0, 1.0]]).double()
    >>> way = common_descent(gradients @ gradients.T, torch.ones(2).double())  # equal losses: ∇F = 0 is no row
    >>> (way.weights @ gradients).round(decimals=4).tolist()  # −(1, 1) / √2, as long as (3, 1) / 2
    [-1.118, -1.118]
    >>> way.slopes.round(decimals=4).tolist()  # both losses fall; the mean gradient would serve client 0 alone
    [-3.3541, -1.118]
    """
    c, norms = len(losses), products.diagonal().clamp(min=0).sqrt()
    alive = norms != 0
    kept = alive[:c]
    still = Direction(products, losses, torch.zeros_like(norms), products[:0])
    if not kept.any():
        return still
    mu = norms[:c][kept].mean()
    scaled = alive if scale == "code" else alive & (torch.arange(len(norms)) < c)
    clients = torch.where(scaled, mu / norms, 1).diag()[alive]
    problems: list[tuple[Tensor, Tensor | None]] = [(clients, None)]
    if fair:
        gradient = torch.zeros_like(norms)
        gradient[:c][kept] = fair_gradient(losses[kept])
        length = _length(gradient, products)
        if length > NOTHING * (gradient.abs() @ norms):
            row = gradient * (mu / length) if scale == "code" else gradient
            problems.insert(0, (torch.vstack([clients, row]), gradient))
    for problem, gradient_of_f in problems:
        inner = problem @ products @ problem.T
        shortest = min_norm(inner) @ problem
        length = _length(shortest, products)
        if length > NOTHING * inner.diagonal().min().sqrt():
            sigma = float(_length(mean_gradient(products, kept), products) / length)
            return replace(still, weights=-sigma * shortest, problem=problem, sigma=sigma, fair=gradient_of_f)
    return still


def mean_descent(products: Tensor, losses: Tensor) -> Direction:
    """Return d = −mean g over the clients online, those whose gradient is zero left out.

    Args:
        products, losses: as in `Direction`.

    >>> gradients = torch.tensor([[3.0, 0.0], [0.0, 1.0]]).double()
    >>> (mean_descent(gradients @ gradients.T, torch.ones(2).double()).weights @ gradients).tolist()
    [-1.5, -0.5]
    """
    kept = products.diagonal()[: len(losses)] != 0
    return Direction(products, losses, -mean_gradient(products, kept), products[:0])


def mean_gradient(products: Tensor, kept: Tensor) -> Tensor:
    """Weights of mean g over the clients `kept` (bool [C]), [m]; zero where there is none.

    Args:
        products: Gram matrix of the rows, [m, m].

    >>> mean_gradient(torch.eye(4), torch.tensor([True, False, True])).tolist()
    [0.5, 0.0, 0.5, 0.0]
    """
    weights = torch.zeros(len(products), dtype=products.dtype)
    weights[: len(kept)] = kept.to(weights) / max(int(kept.sum()), 1)
    return weights


def unfairness(losses: Tensor) -> Tensor:
    """F = −cos(L, 1), a scalar: −1 where all losses [C] are equal, more where they are not.

    >>> float(unfairness(torch.tensor([2.0, 2.0, 2.0, 2.0]))), float(unfairness(torch.tensor([4.0, 0.0, 0.0, 0.0])))
    (-1.0, -0.5)
    """
    return -losses.sum() / (losses.norm() * len(losses) ** 0.5)


def fair_gradient(losses: Tensor) -> Tensor:
    """Coefficients c with ∇F = Σ_k c_k g_k, [C], of losses [C]: exactly zero where all losses are equal.

    c_k = (Σ L · L_k / ‖L‖² − 1) / (√C ‖L‖), written as Σ_j L_j (L_k − L_j) / (√C ‖L‖³).

    >>> fair_gradient(torch.tensor([2.0, 2.0])).tolist()
    [0.0, 0.0]
    >>> fair_gradient(torch.tensor([4.0, 0.0, 0.0, 0.0])).tolist()  # the other losses shall rise: (0 − 4²) / (2 · 4³)
    [0.0, -0.125, -0.125, -0.125]
    """
    spread = (losses * (losses[:, None] - losses)).sum(dim=1)
    return torch.where(spread == 0, 0, spread / (len(losses) ** 0.5 * losses.norm() ** 3))


def largest_drift(way: Direction) -> Tensor:
    """γ_k, the drift of d to −g_k: the largest in [0, 1] with ((−g_k − d) γ + d) · g_j <= 0 for all j ≠ k, or 0.

    Returns:
        [C].

    >>> gradients = torch.tensor([[2.0, 0.0], [-1.0, 1.0]]).double()
    >>> way = Direction(gradients @ gradients.T, torch.ones(2).double(), torch.zeros(2).double(), torch.eye(2))
    >>> d = replace(way, weights=torch.tensor([-1.0, -1.5]).double())  # d = (−0.5, −1.5), slopes −1 and −1
    >>> largest_drift(d).tolist()  # −1 + γ (2 + 1) <= 0 for both
    [0.333..., 0.333...]
    """
    c, a = len(way.losses), way.slopes.expand(len(way.losses), -1)
    b = -way.products[:c, :c] - a  # a + γ b <= 0
    others = ~torch.eye(c, dtype=torch.bool)
    most = torch.where(others & (b > 0), -a / b, 1).amin(dim=1).clamp(max=1)
    least = torch.where(others & (a > 0), torch.where(b < 0, -a / b, torch.inf), 0).amax(dim=1)
    return torch.where(least <= most, most, 0)


def _length(weights: Tensor, products: Tensor) -> Tensor:
    return (weights @ products @ weights).clamp(min=0).sqrt()
