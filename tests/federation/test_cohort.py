"""Participation: sizes, draws under keys of their own, a method's own draw."""

from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.loop import cohort
from pfl_ops.federation.settings import DirichletParticipation, StragglerParticipation, UniformParticipation


def task(n: int, size: int, seed: int = 0) -> SimpleNamespace:
    return SimpleNamespace(n_clients=n, cohort_size=size, seed=seed)


def draw(n: int, size: int, t: int, seed: int = 0, p: np.ndarray | None = None, method: object = None) -> torch.Tensor:
    return cohort.draw(method, {}, task(n, size, seed), p, t)  # type: ignore[arg-type]


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


# -- stragglers --------------------------------------------------------------------------------------------------------


def test_stragglers_are_drawn_once_a_run() -> None:
    half = StragglerParticipation(share=0.5)
    late = cohort.stragglers(half, 20, seed=3)
    assert late is not None and late.dtype == bool and late.sum() == 10
    again, other = (cohort.stragglers(half, 20, seed=s) for s in (3, 4))
    assert np.array_equal(late, again) and not np.array_equal(late, other)
    p = cohort.probabilities(half, 20, seed=3)
    assert p is not None and p.sum() == pytest.approx(1)
    assert p[late] == pytest.approx(np.full(10, 0.1 / 11)) and p[~late] == pytest.approx(np.full(10, 1 / 11))
    for other_kind in (UniformParticipation(), DirichletParticipation()):
        assert cohort.stragglers(other_kind, 20, seed=3) is None


@pytest.mark.parametrize(
    ("share", "n", "number"), [(0.5, 5, 2), (0.3, 10, 3), (0.01, 10, 1), (0.99, 10, 9), (0.5, 1, 0)]
)
def test_at_least_one_and_never_all(share: float, n: int, number: int) -> None:
    late = cohort.stragglers(StragglerParticipation(stragglers=share), n, seed=0)
    assert late is not None and late.sum() == number


def inclusion(p: np.ndarray, size: int) -> np.ndarray:
    """Exact probability of each client to be in a cohort of successive draws: a sum over all orders of drawing."""
    found = np.zeros(len(p))
    for order in permutations(range(len(p)), size):
        left, chance = 1.0, 1.0
        for k in order:
            chance *= p[k] / left
            left -= p[k]
        found[list(order)] += chance
    return found


def test_how_often_each_comes() -> None:
    """Two of four clients, two of them stragglers: p = 10/22 and 1/22.

    Drawn first or second: 10/22 + 10/22 · 10/12 + 2 · 1/22 · 10/21 = 0.87662; a straggler: 1 - that, as two are drawn
    of two and two. In 2,000 rounds 14.7 is a standard deviation.
    """
    participation = StragglerParticipation(share=0.5)
    late, p = cohort.stragglers(participation, 4, seed=1), cohort.probabilities(participation, 4, seed=1)
    assert late is not None and p is not None
    expected = inclusion(p, 2)
    assert expected[~late] == pytest.approx([0.87662] * 2, abs=1e-5)
    assert expected[late] == pytest.approx([0.12338] * 2, abs=1e-5)
    counts = sum(torch.bincount(draw(4, 2, t, p=p), minlength=4) for t in range(2000))
    assert np.abs(counts.numpy() - 2000 * expected).max() < 4 * 14.7


def test_dirichlet_draws_one_after_the_other() -> None:
    """A likely client is in fewer cohorts than size times its probability, an unlikely one in more."""
    p = np.array([0.6, 0.25, 0.1, 0.05])
    expected = inclusion(p, 3)
    counts = sum(torch.bincount(draw(4, 3, t, p=p), minlength=4) for t in range(2000))
    deviation = np.sqrt(2000 * expected * (1 - expected))
    assert (np.abs(counts.numpy() - 2000 * expected) < 4 * deviation).all()


@pytest.mark.parametrize("participation", [StragglerParticipation(), DirichletParticipation(gamma=9.0)])
def test_a_cohort_of_all_clients_leaves_probabilities_no_effect(participation: Any) -> None:
    """share = 1, the default, and 0.95 of 6 clients, which is 5.7 and so 6; of one client there is nothing to draw."""
    for share in (1.0, 0.95):
        whole = participation.model_copy(update={"share": share})
        with pytest.raises(PflOpsError, match=rf"^participation.kind={whole.kind} changes nothing where all 6 clients"):
            cohort.probabilities(whole, 6, seed=0)
    assert cohort.probabilities(participation, 1, seed=0) == pytest.approx(np.ones(1))


def test_stragglers_that_never_come() -> None:
    never = StragglerParticipation(share=0.5, chance=0.0)
    late, p = cohort.stragglers(never, 8, seed=2), cohort.probabilities(never, 8, seed=2)
    assert late is not None
    assert draw(8, 4, 5, p=p).tolist() == np.flatnonzero(~late).tolist()
    with pytest.raises(
        PflOpsError,
        match=r"participation.chance=0 leaves 4 of 8 clients with a positive probability, a cohort needs 6; "
        "use a larger chance or a smaller share",
    ):
        cohort.probabilities(never.model_copy(update={"share": 0.75}), 8, seed=2)


# -- a method's own ----------------------------------------------------------------------------------------------------


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
