"""Schemes that draw a matrix of proportions, clients by classes: iid, ls, qs, lsqs, dirichlet, zipf.

Each draws the share of every client in every class as a real matrix [K, L] with the class counts as column sums,
rounds it without losing a sample (`balance.round_exact`), and deals each class's shuffled samples out by it.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field

from pfl_ops.data.balance import apportion, equal_parts, raise_small, round_exact, sinkhorn
from pfl_ops.data.by_client import ByClient
from pfl_ops.data.cut import by_class
from pfl_ops.data.partition import PartitionError, partition
from pfl_ops.section import MOST_COUNT

Groups: TypeAlias = list[tuple[int, np.ndarray]]
LARGEST_ALPHA = 1e100
"""With a larger concentration sums over clients may overflow; shares are equal to 16 digits long before."""
Alpha = Annotated[
    float,
    Field(gt=0, le=LARGEST_ALPHA, title="α", description="concentration of the Dirichlet draws; smaller: more skewed"),
]
MinSize = Annotated[
    int, Field(ge=1, le=MOST_COUNT, description="samples that every client gets at least; smaller draws are raised")
]


@partition("iid")
def iid(
    labels: np.ndarray,
    n_clients: int,
    *,
    rng: np.random.Generator,
    stratified: Annotated[
        bool, Field(description="every client has the data's class mix; false: only shuffled")
    ] = True,
) -> Sequence[np.ndarray]:
    """Every client has the same number of samples and the same class mix.

    n_k = n/K and n_kc = n_k n_c / n, all within one sample. Not stratified: shuffled and cut in equal parts.

    Args:
        labels: class of each sample, int [n].
        n_clients: K, at least 1 and at most n.
        rng: the only source of randomness.
        stratified: True: class mixes are equal too.
    Returns:
        K sorted index arrays that together hold each of 0..n-1 exactly once.

    >>> from pfl_ops.data.cut import counts_table
    >>> labels = np.repeat([0, 1], [6, 3])
    >>> clients = iid(labels, 3, rng=np.random.default_rng(0))
    >>> counts_table(labels, clients, 2).tolist()  # samples by client and class: thirds of 6 and of 3
    [[2, 1], [2, 1], [2, 1]]

    Source: FLIU (first seed), Sec. IV.A 1, and FedAvg2Rep (fourth seed); both say "approximately".
    """
    if not stratified:
        owner = np.empty(len(labels), np.int64)
        owner[rng.permutation(len(labels))] = np.repeat(np.arange(n_clients), equal_parts(len(labels), n_clients))
        return ByClient.of_owners(owner, n_clients)
    return _same_mix(by_class(labels, rng), apportion(np.ones(n_clients), len(labels)), rng)


@partition("ls")
def ls(labels: np.ndarray, n_clients: int, *, rng: np.random.Generator, alpha: Alpha = 1.0) -> Sequence[np.ndarray]:
    """Label skew: class mixes are drawn from a Dirichlet, sizes are equal.

    P [K, L] has rows ~ Dir(α); Sinkhorn-Knopp scales it to column sums n_c and row sums n/K.

    Args:
        labels: class of each sample, int [n].
        n_clients: K, at least 1 and at most n.
        rng: the only source of randomness.
        alpha: concentration of the class mixes.
    Returns:
        K sorted index arrays that together hold each of 0..n-1 exactly once; sizes equal within one sample.

    >>> from pfl_ops.data.cut import counts_table
    >>> labels = np.repeat([0, 1], 6)
    >>> counts_table(labels, ls(labels, 3, rng=np.random.default_rng(0), alpha=1.0), 2).tolist()  # four samples each
    [[4, 0], [2, 2], [0, 4]]
    >>> counts_table(labels, ls(labels, 3, rng=np.random.default_rng(0), alpha=1000.0), 2).tolist()  # nearly iid
    [[2, 2], [2, 2], [2, 2]]

    Source: FLIU (first seed), Sec. IV.A 3. Its row sum K/L cannot hold (the total is L): L/K. Ours: with unequal
        classes the sums are sample counts.
    """
    groups = by_class(labels, rng)
    mixes = _dirichlet(alpha, len(groups), n_clients, rng)
    return _scaled(groups, mixes, apportion(np.ones(n_clients), len(labels)), rng)


@partition("qs")
def qs(
    labels: np.ndarray, n_clients: int, *, rng: np.random.Generator, alpha: Alpha = 1.0, min_size: MinSize = 10
) -> Sequence[np.ndarray]:
    """Quantity skew: sizes are drawn from a Dirichlet, every client has the data's class mix.

    (n_1 .. n_K) / n ~ Dir(α), sizes under `min_size` raised to it and the others scaled; n_kc = n_k n_c / n within one.

    Args:
        labels: class of each sample, int [n].
        n_clients: K, with K · min_size <= n.
        rng: the only source of randomness.
        alpha: concentration of the sizes.
        min_size: samples of the smallest client.
    Returns:
        K sorted index arrays that together hold each of 0..n-1 exactly once.
    Raises:
        PartitionError: K · min_size > n.

    >>> from pfl_ops.data.cut import counts_table
    >>> labels = np.repeat([0, 1], 6)
    >>> clients = qs(labels, 3, rng=np.random.default_rng(0), alpha=1.0, min_size=2)
    >>> counts_table(labels, clients, 2).tolist()  # 4, 6 and 2 samples, half of each class
    [[2, 2], [3, 3], [1, 1]]

    Source: FLIU (first seed), Sec. IV.A 4; the minimum is ours.
    """
    rows = _drawn_sizes("qs", len(labels), n_clients, alpha, min_size, rng)
    return _same_mix(by_class(labels, rng), rows, rng)


@partition("lsqs")
def lsqs(
    labels: np.ndarray, n_clients: int, *, rng: np.random.Generator, alpha: Alpha = 1.0, min_size: MinSize = 10
) -> Sequence[np.ndarray]:
    """Label and quantity skew: sizes and class mixes are both drawn from a Dirichlet.

    q ~ Dir(α) gives n_k = n q_k (raised to `min_size`); P [K, L] has rows ~ Dir(α); Sinkhorn-Knopp scales it to
    column sums n_c and row sums n_k.

    Args:
        labels: class of each sample, int [n].
        n_clients: K, with K · min_size <= n.
        rng: the only source of randomness.
        alpha: concentration of both draws.
        min_size: samples of the smallest client.
    Returns:
        K sorted index arrays that together hold each of 0..n-1 exactly once.
    Raises:
        PartitionError: K · min_size > n.

    >>> from pfl_ops.data.cut import counts_table
    >>> labels = np.repeat([0, 1], 6)
    >>> clients = lsqs(labels, 3, rng=np.random.default_rng(0), alpha=1.0, min_size=2)
    >>> counts_table(labels, clients, 2).tolist()  # sizes 4, 6, 2 as of `qs`, and mixes drawn too
    [[1, 3], [3, 3], [2, 0]]

    Source: FLIU (first seed), Sec. IV.A 5, which says only that both are drawn; how they are joined, and the minimum,
        are ours.
    """
    rows = _drawn_sizes("lsqs", len(labels), n_clients, alpha, min_size, rng)
    groups = by_class(labels, rng)
    return _scaled(groups, _dirichlet(alpha, len(groups), n_clients, rng), rows, rng)


@partition("dirichlet")
def dirichlet(
    labels: np.ndarray,
    n_clients: int,
    *,
    rng: np.random.Generator,
    alpha: Alpha = 0.1,
    per: Annotated[
        Literal["class", "client"],
        Field(description="class: its clients' shares are drawn; client: its class mix is drawn, sizes are equal"),
    ] = "class",
    cap: Annotated[
        bool, Field(description="a client that has n/K samples gets no more classes (only with per: class)")
    ] = False,
    min_size: MinSize = 10,
) -> Sequence[np.ndarray]:
    """The usual Dirichlet split.

    per class: for every class c, (n_1c .. n_Kc) / n_c ~ Dir(α); with `cap` the classes come one after another, and a
    client with n/K samples or more has share 0 in the next. Clients under `min_size` then get samples of the others,
    which all shrink by one common factor, but not under `min_size`; which samples they give is drawn.
    per client: q_k ~ Dir(α p), p the class shares; each client draws n/K samples without replacement by q_k, and what
    is left of a mix when some of its classes have run out.

    Args:
        labels: class of each sample, int [n].
        n_clients: K, with K · min_size <= n.
        rng: the only source of randomness.
        alpha: concentration.
        per: what is drawn.
        cap: stop feeding a client at n/K.
        min_size: samples of the smallest client.
    Returns:
        K sorted index arrays that together hold each of 0..n-1 exactly once.
    Raises:
        PartitionError: K · min_size > n, or `cap` with per client, whose sizes are equal anyway.

    >>> from pfl_ops.data.cut import counts_table
    >>> labels = np.repeat([0, 1], 6)
    >>> clients = dirichlet(labels, 3, rng=np.random.default_rng(0), alpha=1.0, min_size=2)
    >>> counts_table(labels, clients, 2).tolist()  # per class: columns are drawn
    [[4, 4], [0, 2], [2, 0]]
    >>> clients = dirichlet(labels, 3, rng=np.random.default_rng(0), alpha=1.0, min_size=2, per="client")
    >>> counts_table(labels, clients, 2).tolist()  # per client: rows are drawn, sizes are equal
    [[0, 4], [2, 2], [4, 0]]

    Source: Yurochkin et al. 2019 (per class; FedPG and FedAS, the third and fifth seed, whose codes cap); Hsu, Qi,
        Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019
        (per client).
    Deviations: the codes draw again until every client has `min_size`, which may never end; here samples are moved.
    """
    n = len(labels)
    _refuse_small("dirichlet", n, n_clients, min_size)
    groups = by_class(labels, rng)
    columns = _columns(groups)
    if per == "client":
        if cap:
            raise PartitionError("partition 'dirichlet' takes cap only with per: class; per: client has equal sizes")
        return _deal(groups, _without_replacement(columns, n_clients, alpha, rng))
    table = np.zeros((n_clients, len(groups)), dtype=np.int64)
    for j, total in enumerate(columns):
        shares = _dirichlet(alpha, n_clients, 1, rng)[0]
        if cap:
            hungry = table.sum(1) < n / n_clients
            shares = shares * hungry
            if not shares.sum() > 0:  # all of the draw fell on clients that have enough
                shares = hungry.astype(float)
        table[:, j] = apportion(shares, int(total), rng)
    return _deal(groups, _feed_small(table, min_size, rng))


@partition("zipf")
def zipf(
    labels: np.ndarray,
    n_clients: int,
    *,
    rng: np.random.Generator,
    s: Annotated[float, Field(ge=0, le=20, title="s", description="skew of sizes, n_k ∝ k^(-s); 0: equal")] = 0.5,
    alpha: Annotated[
        float,
        Field(
            ge=0,
            le=LARGEST_ALPHA,
            title="α",
            description="concentration of the class mixes; smaller: more skewed; 0: one class each",
        ),
    ] = 0.5,
) -> Sequence[np.ndarray]:
    """Sizes fall by Zipf's law, class mixes are drawn from a Dirichlet.

    n_k ∝ k^(-s) over a random order of clients; the [K, L] count matrix has row sums n_k and column sums n_c
    (Sinkhorn-Knopp on rows ~ Dir(α), counts by an integral flow).

    Args:
        labels: class of each sample, int [n].
        n_clients: K, at least 1 and at most n.
        rng: the only source of randomness.
        s: skew of sizes, >= 0; 0 makes them equal.
        alpha: concentration of the class mixes, >= 0; 0: one class a client, sizes bend to the class counts.
    Returns:
        K sorted index arrays that together hold each of 0..n-1 exactly once.
    Raises:
        PartitionError: a client would receive no sample; the message names the client's share, K and n.

    >>> from pfl_ops.data.cut import counts_table
    >>> labels = np.repeat([0, 1], 11)
    >>> clients = zipf(labels, 3, rng=np.random.default_rng(0), s=1.0, alpha=0.5)
    >>> table = counts_table(labels, clients, 2)
    >>> table.tolist(), sorted(table.sum(axis=1).tolist())  # sizes 1 : 1/2 : 1/3
    ([[2, 2], [5, 7], [4, 2]], [4, 6, 12])

    Source: DRDM (second seed), experiments; its formula is lost, this one is ours.
    """
    n = len(labels)
    wanted = np.arange(1, n_clients + 1, dtype=np.float64) ** -s
    wanted = rng.permutation(wanted / wanted.sum())
    groups = by_class(labels, rng)
    if alpha == 0:
        return _deal(groups, _one_class_each(_columns(groups), wanted))
    rows = apportion(wanted, n, rng)
    if not rows.all():
        raise PartitionError(
            f"partition 'zipf' with s = {s:g} gives the smallest of {n_clients:,} clients {wanted.min() * n:.2g} of "
            f"{{data}}'s {n:,} samples; lower s or the number of clients"
        )
    return _scaled(groups, _dirichlet(alpha, len(groups), n_clients, rng), rows, rng)


def _columns(groups: Groups) -> np.ndarray:
    return np.array([len(group) for _, group in groups], dtype=np.int64)


def _deal(groups: Groups, table: np.ndarray) -> ByClient[np.ndarray]:
    """Client k's samples: the next table[k, c] of class c's shuffled samples, for every c."""
    owner = np.empty(int(table.sum()), np.int64)
    for j, (_, group) in enumerate(groups):
        owner[group] = np.repeat(np.arange(len(table)), table[:, j])
    return ByClient.of_owners(owner, len(table))


def _same_mix(groups: Groups, rows: np.ndarray, rng: np.random.Generator) -> ByClient[np.ndarray]:
    columns = _columns(groups)
    return _deal(groups, round_exact(np.outer(rows, columns) / columns.sum(), rows, columns, rng))


def _scaled(groups: Groups, mixes: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> ByClient[np.ndarray]:
    columns = _columns(groups)
    return _deal(groups, round_exact(sinkhorn(mixes, rows, columns), rows, columns, rng))


def _dirichlet(alpha: float, size: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """n draws from Dir(α, .., α), [n, size]."""
    return _sound(rng.dirichlet(np.full(size, alpha), n), rng)


def _sound(draws: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """At a tiny α a draw underflows to nothing; its limit is all of the mass on one entry."""
    lost = ~np.isclose(draws.sum(1), 1.0)
    draws[lost] = 0
    draws[lost, rng.integers(draws.shape[1], size=int(lost.sum()))] = 1
    return draws


def _drawn_sizes(
    name: str, n: int, n_clients: int, alpha: float, min_size: int, rng: np.random.Generator
) -> np.ndarray:
    _refuse_small(name, n, n_clients, min_size)
    return apportion(raise_small(_dirichlet(alpha, n_clients, 1, rng)[0] * n, min_size), n, rng)


def _refuse_small(name: str, n: int, n_clients: int, min_size: int) -> None:
    if n_clients * min_size > n:
        raise PartitionError(
            f"partition '{name}' needs clients * min_size <= {n:,} ({{data}} has {n:,} samples), "
            f"got {n_clients:,} * {min_size:,}"
        )


def _feed_small(table: np.ndarray, min_size: int, rng: np.random.Generator) -> np.ndarray:
    """Move samples so that every client has `min_size`: the others shrink in proportion, each by its own class mix."""
    sizes = table.sum(1)
    if sizes.min() >= min_size:
        return table
    change = apportion(raise_small(sizes, min_size), int(sizes.sum()), rng) - sizes
    table = table.copy()
    moved = np.zeros(table.shape[1], dtype=np.int64)
    for k in np.flatnonzero(change < 0).tolist():
        given = rng.multivariate_hypergeometric(table[k], -int(change[k]))
        table[k] -= given
        moved += given
    classes = rng.permutation(np.repeat(np.arange(len(moved)), moved))
    owner = np.repeat(np.arange(len(table)), np.maximum(change, 0))
    return table + np.bincount(owner * len(moved) + classes, minlength=table.size).reshape(table.shape)


def _without_replacement(columns: np.ndarray, n_clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Each client in random order fills its n/K from what is left, by its own mix q_k ~ Dir(α p)."""
    n = int(columns.sum())
    rows = apportion(np.ones(n_clients), n)
    mixes = _sound(rng.dirichlet(alpha * columns / n, n_clients), rng)
    left = columns.copy()
    table = np.zeros((n_clients, len(columns)), dtype=np.int64)
    for k in rng.permutation(n_clients).tolist():
        missing = int(rows[k])
        while missing:  # every turn fills the client or uses up a class
            mix = mixes[k] * (left > 0)
            mix = mix / mix.sum() if mix.sum() > 0 else left / left.sum()
            taken = np.minimum(rng.multinomial(missing, mix), left)
            table[k] += taken
            left -= taken
            missing -= int(taken.sum())
    return table


def _one_class_each(columns: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """One class a client: the next largest client joins the class with most samples not spoken for."""
    n_clients, n_classes = len(wanted), len(columns)
    if n_clients < n_classes:
        raise PartitionError(
            f"partition 'zipf' with alpha = 0 needs clients >= {n_classes} ({{data}} has {n_classes} classes), "
            f"got {n_clients}"
        )
    order = np.argsort(-wanted, kind="stable")
    free = columns.astype(np.float64)
    members: list[list[int]] = [[] for _ in columns]
    for place, k in enumerate(order):
        room = np.array([len(m) for m in members]) < columns
        if n_clients - place <= sum(not m for m in members):  # the last ones go where nobody is yet
            room &= np.array([not m for m in members])
        c = int(np.argmax(np.where(room, free, -np.inf)))
        members[c].append(int(k))
        free[c] -= wanted[k] * columns.sum()
    table = np.zeros((n_clients, n_classes), dtype=np.int64)
    for c, clients in enumerate(members):
        sizes = raise_small(wanted[clients] / wanted[clients].sum() * columns[c], 1)
        table[clients, c] = apportion(sizes, int(columns[c]))
    return table
