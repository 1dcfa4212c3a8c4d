"""S-acc(c), by hand and by its definition."""

import numpy as np
import pytest

from pfl_ops import rng
from pfl_ops.federation.scoring.synthetic import Companions, accuracy_by_client, alike, s_accuracy

NAN = float("nan")


def companions(client, n_clients, percent, seed):
    """The definition: the first ones of the client's order of all others."""
    order = rng.generator(seed, "synthetic", client).permutation(np.delete(np.arange(n_clients), client))
    return np.sort(order[: int(np.floor(percent / 100 * (n_clients - 1) + 0.5))])


def synthetic(accuracy, sizes, percent, *, seed, clients=None):
    """S-acc of each row from the accuracies on all N clients."""
    accuracy, sizes = np.asarray(accuracy, dtype=float), np.asarray(sizes)
    tested, rows = np.flatnonzero(sizes > 0), range(len(sizes)) if clients is None else clients
    return s_accuracy(accuracy[:, tested], sizes[tested], percent, rows, Companions(len(sizes), seed, tested))


def test_accuracies_by_client_from_one_pass():
    correct = np.array([[1, 0, 1, 1], [0, 0, 1, 0]], dtype=bool)
    means, sizes = accuracy_by_client(correct, [0, 0, 2, 0], n_clients=4)
    assert sizes.tolist() == [3, 0, 1, 0]
    np.testing.assert_allclose(means, [[2 / 3, NAN, 1, NAN], [0, NAN, 1, NAN]])
    alone, _ = accuracy_by_client(correct[0], [0, 0, 2, 0], n_clients=4)
    np.testing.assert_allclose(alone, means[0])


def test_synthetic_runs_from_the_local_to_the_global_view():
    """Sizes 1, 2, 5: model 0 is right on .5, .25 and 1 of them; all joined: (1·.5 + 2·.25 + 5·1) / 8 = .75."""
    accuracy, sizes = np.array([[0.5, 0.25, 1.0], [0.0, 1.0, 0.4], [1.0, 1.0, 0.2]]), [1, 2, 5]
    np.testing.assert_allclose(synthetic(accuracy, sizes, 0, seed=0), [0.5, 1.0, 0.2])
    np.testing.assert_allclose(synthetic(accuracy, sizes, 100, seed=0), [0.75, 0.5, 0.5])
    np.testing.assert_allclose(synthetic(accuracy, [1, 1, 1], 100, seed=0), accuracy.mean(axis=1))
    (other,) = companions(0, 3, 50, seed=0).tolist()
    half = (0.5 * 1 + accuracy[0, other] * sizes[other]) / (1 + sizes[other])
    assert synthetic(accuracy, sizes, 50, seed=0)[0] == pytest.approx(half)


def test_synthetic_of_some_rows():
    generator = np.random.default_rng(0)
    accuracy, sizes = generator.random((7, 7)), generator.integers(1, 9, 7)
    every = synthetic(accuracy, sizes, 30, seed=1)
    np.testing.assert_allclose(synthetic(accuracy[[5, 2]], sizes, 30, seed=1, clients=[5, 2]), every[[5, 2]])


@pytest.mark.parametrize("percent", [0, 1, 30, 50, 100])
def test_s_accuracy_of_tested_clients_is_the_definition(percent):
    """Σ n_j acc_kj / Σ n_j over a client and its companions, of which most have no samples; bit for bit, and again."""
    draws = np.random.default_rng(0)
    accuracy, sizes = draws.random((40, 40)), np.where(draws.random(40) < 0.3, draws.integers(1, 9, 40), 0)
    tested = np.flatnonzero(sizes)
    some = Companions(40, 5, tested)
    expected = []
    for k in range(40):
        own = np.append(companions(k, 40, percent, seed=5), k)
        own = own[sizes[own] > 0]
        expected.append(np.average(accuracy[k, own], weights=sizes[own]) if len(own) else NAN)
    for _ in range(2):
        found = s_accuracy(accuracy[:, tested], sizes[tested], percent, range(40), some)
        assert np.array_equal(found, expected, equal_nan=True)


def test_synthetic_without_own_samples():
    accuracy, sizes = np.array([[NAN, 0.5], [NAN, 0.25]]), [0, 4]
    np.testing.assert_allclose(synthetic(accuracy, sizes, 0, seed=0), [NAN, 0.25])
    np.testing.assert_allclose(synthetic(accuracy, sizes, 100, seed=0), [0.5, 0.25])


def test_companions_are_others_nested_and_keyed():
    def companions(client, n_clients, percent, seed):
        *found, own = Companions(n_clients, seed, np.arange(n_clients)).with_own(client, percent).tolist()
        assert own == client
        return np.array(found)

    for percent, number in ((0, 0), (10, 1), (14, 1), (15, 2), (50, 5), (100, 10)):  # of 10; 1.5 is rounded up
        found = companions(3, 11, percent, seed=4)
        assert len(found) == number
        assert 3 not in found
        assert set(found) <= set(companions(3, 11, 100, seed=4))
        assert set(companions(3, 11, percent / 2, seed=4)) <= set(found)
    assert companions(3, 11, 50, 4).tolist() == companions(3, 11, 50, 4).tolist()
    assert companions(3, 101, 50, 4).tolist() != companions(3, 101, 50, 5).tolist()
    first, second = companions(99, 101, 50, 4), companions(100, 101, 50, 4)  # nearly the same others: not the same draw
    assert len(set(first) & set(second)) < 40
    assert companions(0, 1, 100, 4).tolist() == []


def test_test_sets_that_count_alike():
    """9 samples all right, 1 wrong, a client with none: 0.9 by samples, 0.5 where clients count alike."""
    accuracy, sizes = [[1.0, 0.0, NAN]] * 3, [9, 1, 0]
    assert synthetic(accuracy, sizes, 100, seed=0) == pytest.approx([0.9] * 3)
    assert synthetic(accuracy, alike(sizes), 100, seed=0) == pytest.approx([0.5] * 3)
    assert synthetic(accuracy, alike(sizes), 0, seed=0) == pytest.approx([1.0, 0.0, NAN], nan_ok=True)
