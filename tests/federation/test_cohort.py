"""Who takes part: sizes, draws under keys of their own, a method's own draw."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pfl_ops.errors import PflOpsError
from pfl_ops.federation import cohort
from pfl_ops.federation.settings import DirichletParticipation, UniformParticipation


def task(n: int, size: int, seed: int = 0) -> SimpleNamespace:
    return SimpleNamespace(n_clients=n, cohort_size=size, seed=seed)


def draw(n: int, size: int, t: int, seed: int = 0, p: np.ndarray | None = None, method: object = None) -> torch.Tensor:
    return cohort.draw(method, {}, task(n, size, seed), UniformParticipation(), p, t)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("share", "n", "expected"), [(1.0, 7, 7), (0.5, 4, 2), (0.1, 100, 10), (0.01, 20, 1), (0.34, 10, 3), (0.7, 10, 7)]
)
def test_size(share: float, n: int, expected: int) -> None:
    assert cohort.size(UniformParticipation(share=share), n) == expected


def test_everybody() -> None:
    assert draw(5, 5, 3).tolist() == [0, 1, 2, 3, 4]


def test_a_cohort_is_sorted_unique_and_another_in_each_round() -> None:
    drawn = [draw(20, 6, t) for t in range(30)]
    for who in drawn:
        assert who.dtype == torch.int64 and who.tolist() == sorted(set(who.tolist())) and len(who) == 6
        assert who.min() >= 0 and who.max() < 20
    assert len({tuple(who.tolist()) for who in drawn}) > 25
    assert torch.equal(draw(20, 6, 4), drawn[4]), "a round's cohort hangs on nothing but seed and round"
    assert not torch.equal(draw(20, 6, 4, seed=1), drawn[4])


def test_all_clients_are_equally_likely() -> None:
    """600 draws of 2 of 6: each is expected 200 times, with a standard deviation of 11.5."""
    counts = sum(torch.bincount(draw(6, 2, t), minlength=6) for t in range(600))
    assert ((counts - 200).abs() < 5 * 11.5).all()


def test_probabilities_are_drawn_once_a_run() -> None:
    dirichlet = DirichletParticipation(gamma=0.5, share=0.2)
    p = cohort.probabilities(dirichlet, 10, seed=3)
    assert p is not None and p.shape == (10,) and p.sum() == pytest.approx(1) and (p >= 0).all()
    again, other = (cohort.probabilities(dirichlet, 10, seed=s) for s in (3, 4))
    assert np.array_equal(p, again) and not np.array_equal(p, other)
    assert cohort.probabilities(UniformParticipation(), 10, seed=3) is None


def test_who_is_likely_comes_often() -> None:
    p = np.array([0.7, 0.1, 0.1, 0.1, 0.0])
    counts = sum(torch.bincount(draw(5, 2, t, p=p), minlength=5) for t in range(200))
    assert counts[0] > 150 and counts[4] == 0
    assert draw(4, 4, 0, p=np.full(4, 0.25)).tolist() == [0, 1, 2, 3]


def test_too_few_with_any_probability() -> None:
    with pytest.raises(PflOpsError, match=r"gamma=1e-06 leaves \d+ of 50 clients .* a cohort needs 50"):
        cohort.probabilities(DirichletParticipation(gamma=1e-6), 50, seed=0)


class Own:
    def __init__(self, *who: int) -> None:
        self.who = who

    def cohort(self, s: object, task: object, generator: np.random.Generator) -> list[int]:
        return [*self.who]


def test_a_method_draws_for_itself_duplicates_allowed() -> None:
    assert draw(5, 2, 0, method=Own(3, 1, 3)).tolist() == [3, 1, 3]


@pytest.mark.parametrize("who", [(), (5,), (-1, 2)])
def test_a_methods_own_cohort_names_clients_that_exist(who: tuple[int, ...]) -> None:
    with pytest.raises(PflOpsError, match="must name some of the clients 0 to 4"):
        draw(5, 2, 0, method=Own(*who))
