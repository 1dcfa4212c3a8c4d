"""Clients' samples in two arrays give what a list of arrays gives."""

import hashlib

import numpy as np
import pytest
import torch

from pfl_ops.data import partition, recorded
from pfl_ops.data.by_client import ByClient
from pfl_ops.data.partition import PartitionError

LISTS = [np.array([5, 2, 9]), np.array([], dtype=np.int64), np.array([0]), np.arange(10, 130), np.array([1, 3])]


def test_a_sequence_of_arrays() -> None:
    made = ByClient.of(LISTS)
    assert ByClient.of(made) is made and len(made) == 5
    assert [rows.tolist() for rows in made] == [rows.tolist() for rows in LISTS]
    assert [made[k].tolist() for k in range(5)] == [rows.tolist() for rows in LISTS]
    assert made[-1].tolist() == [1, 3] and [rows.tolist() for rows in made[:2]] == [[5, 2, 9], []]
    assert made.sizes.tolist() == [3, 0, 1, 120, 2]
    assert torch.equal(ByClient.of([torch.tensor([4, 7]), torch.tensor([5])], torch.cat)[1], torch.tensor([5]))
    with pytest.raises(IndexError):
        made[5]


def test_ascending_sorts_within_each_client() -> None:
    """Client 0 falls from 5 to 2; client 2 starts below the end of client 0, which is no fall."""
    made = ByClient.of(LISTS).ascending()
    assert [rows.tolist() for rows in made] == [sorted(rows.tolist()) for rows in LISTS]
    assert made.ascending() is made


def test_class_counts_are_those_of_each_client() -> None:
    labels = np.random.default_rng(0).integers(0, 4, 130)
    expected = [np.bincount(labels[rows], minlength=4).tolist() for rows in LISTS]
    assert ByClient.of(LISTS).class_counts(labels, 4).tolist() == expected


@pytest.mark.parametrize("block", [1, 4, 1000])
def test_the_hash_is_that_of_a_loop_over_clients(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The format since the first version: of each client its number of samples in digits, then its sorted samples."""
    monkeypatch.setattr(partition, "HASHED_AT_ONCE", block)
    state = hashlib.sha256(b"pfl-ops partition 1: 5 clients\n")
    for rows in LISTS:
        state.update(f"{len(rows)}\n".encode() + np.sort(rows).astype("<i8").tobytes())
    assert partition.content_hash(LISTS) == state.hexdigest()


@pytest.mark.parametrize("block", [1, 2, 7, 1000])
def test_blocks_cover_all_clients_once(block: int) -> None:
    spans = list(ByClient.of(LISTS).blocks(block))
    assert [k for first, last in spans for k in range(first, last)] == list(range(5))


def test_clients_of_owners_and_a_choice_of_entries() -> None:
    """Client 2 owns nothing, sample 3 has no owner; then the entries of samples 0 and 5 are left out."""
    made = ByClient.of_owners(np.array([1, 0, 1, -1, 3, 0]), 4)
    assert [rows.tolist() for rows in made] == [[1, 5], [0, 2], [], [4]]
    assert made.samples.tolist() == [1, 5, 0, 2, 4] and made.places().tolist() == [0, 1, 0, 1, 0]
    chosen = made.where(np.array([True, False, False, True, True]))
    assert [rows.tolist() for rows in chosen] == [[1], [2], [], [4]]


@pytest.mark.parametrize("min_size", [1, 3, 5])
@pytest.mark.parametrize("n_clients", [None, 1, 7, 19])
def test_own_clients_are_those_of_a_loop(n_clients: int | None, min_size: int) -> None:
    """60 samples of up to 20 clients, some with fewer than 3 or 5; a number that can't be met is named."""
    users = np.random.default_rng(1).integers(0, 20, 60) * 7
    clients = [np.flatnonzero(users == user) for user in np.unique(users)]
    clients = [rows for rows in clients if len(rows) >= min_size]
    draw = {"rng": np.random.default_rng(2), "users": users, "min_size": min_size}
    if n_clients is not None and n_clients > len(clients):
        with pytest.raises(PartitionError, match=f"needs clients <= {len(clients)} .* got {n_clients}"):
            recorded.natural(users, n_clients, **draw)  # type: ignore[arg-type]
        return
    if n_clients is not None and n_clients < len(clients):
        drawn = np.random.default_rng(2).choice(len(clients), n_clients, replace=False)
        clients = [clients[k] for k in np.sort(drawn)]
    found = recorded.natural(users, n_clients, **draw)  # type: ignore[arg-type]
    assert [rows.tolist() for rows in found] == [rows.tolist() for rows in clients]


def test_own_clients_need_a_data_set_with_clients() -> None:
    with pytest.raises(PartitionError, match="needs a data set with clients of its own"):
        recorded.natural(np.zeros(3), None, rng=np.random.default_rng(0), users=None)
