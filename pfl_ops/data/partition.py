"""Partitions of samples over clients: schemes by name, as plain functions and as sections of an experiment.

A scheme is a function `f(labels, n_clients, *, rng, <options>) -> index arrays, one a client`. `@partition("name")`
makes it known; its keyword-only parameters become the fields `partition.*`. The package's own are in `proportions.py`
(iid, ls, qs, lsqs, dirichlet, zipf), `whole_classes.py` (path, pat, shards), `sorted_shards.py` and `recorded.py`
(natural, file).
"""

import copy
import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import Field, create_model

from pfl_ops.data.by_client import ByClient
from pfl_ops.data.cut import counts_table
from pfl_ops.errors import PflOpsError, ended_by_signal, in_a_line, place
from pfl_ops.registry import Registry
from pfl_ops.section import MOST_COUNT, MOST_SEED, Section, options, plain_values

F = TypeVar("F", bound=Callable[..., Sequence[np.ndarray]])

CONTEXT = ("rng", "users", "origin")  # what a scheme may ask for besides its options


class PartitionError(PflOpsError):
    """A request that this data cannot meet. "{data}" in the text stands for the data set's name."""

    def __init__(self, text: str, data: str = "the data") -> None:
        super().__init__(text.replace("{data}", data))
        self.text = text


class Scheme(Section):
    """The `partition` part of an experiment. The sections of single schemes add their options as fields."""

    function: ClassVar[Callable[..., Sequence[np.ndarray]]]
    kind: str = Field(description="the scheme (pfl-ops list partitions)")
    clients: int = Field(20, ge=1, le=MOST_COUNT, title="K", description="number of clients")
    seed: int | None = Field(
        None, ge=0, le=MOST_SEED, description="draws the partition and its cuts; none: the run's seed"
    )

    def indices(
        self,
        labels: np.ndarray,
        rng: np.random.Generator,
        users: np.ndarray | None = None,
        *,
        origin: np.ndarray | None = None,
        data: str = "the data",
    ) -> ByClient[np.ndarray]:
        """Draw each client's samples.

        Args:
            labels: class of each sample, int [n].
            rng: the only source of randomness.
            users: the data set's own client of each sample, int [n], if it has them (natural).
            origin: number of each sample in the data set as published, int [n]; none: 0..n-1 (file).
            data: the data set's name, for messages.
        Returns:
            K sorted int64 arrays; no sample twice, no client empty.
        Raises:
            PartitionError: the request cannot be met; the message names the numbers. A user's scheme fails, or does not
                repeat its draws.

        >>> scheme = PARTITIONS.get("iid")(clients=2, stratified=False)
        >>> [rows.tolist() for rows in scheme.indices(np.zeros(5), np.random.default_rng(0))]
        [[2, 3, 4], [0, 1]]
        >>> PARTITIONS.get("iid")(clients=6).indices(np.zeros(5), np.random.default_rng(0), data="toys")
        Traceback (most recent call last):
        pfl_ops.data.partition.PartitionError: partition 'iid' cannot give each of 6 clients a sample: toys has 5
        """
        labels = np.asarray(labels, dtype=np.int64)
        n_clients: int | None = self.clients  # None where the clients are given (natural, file)
        context = {"rng": rng, "users": users, "origin": origin}
        function = type(self).function
        wanted = inspect.signature(function).parameters
        given = {name: value for name, value in context.items() if name in wanted}
        chosen = {name: getattr(self, name) for name in type(self).model_fields if name not in Scheme.model_fields}
        try:
            if n_clients is not None and n_clients > len(labels):
                raise PartitionError(
                    f"partition '{self.kind}' cannot give each of {n_clients:,} clients a sample: "
                    f"{{data}} has {len(labels):,}"
                )
            if function.__module__.startswith("pfl_ops."):
                return self._checked(function(labels, n_clients, **given, **chosen), len(labels), n_clients)
            # copies: what is written into them would be the labels that clients are trained on
            return self._drawn_twice(
                lambda draws: function(labels.copy(), n_clients, **_copied(draws), **chosen), given, len(labels)
            )
        except PartitionError as error:
            raise PartitionError(error.text, data) from error.__cause__

    def _drawn_twice(
        self, draw: Callable[[dict[str, Any]], Sequence[np.ndarray]], given: dict[str, Any], n: int
    ) -> ByClient[np.ndarray]:
        """Return the arrays of a user's scheme, drawn twice: the run's hash, and a run that goes on, rely on a division
        that the seed repeats."""
        again = {**given, "rng": copy.deepcopy(given["rng"])} if "rng" in given else given
        try:
            found, other = [self._checked(draw(draws), n, self.clients) for draws in (given, again)]
        except PflOpsError:
            raise
        except BaseException as error:
            if ended_by_signal(error):
                raise
            where = place(error, inspect.getsourcefile(type(self).function), anywhere=True)
            raise PartitionError(f"partition '{self.kind}' failed: {in_a_line(error)}{where}") from error
        if not (np.array_equal(found.samples, other.samples) and np.array_equal(found.offsets, other.offsets)):
            raise PartitionError(
                f"partition '{self.kind}' drew two divisions from one seed; its only source of randomness is rng "
                "(rng.permutation, ...; not np.random, torch or random)"
            )
        return found

    def _checked(self, clients: Sequence[np.ndarray], n: int, n_clients: int | None) -> ByClient[np.ndarray]:
        """Return the arrays of a scheme, sorted; its promises are checked, because it may be a user's."""
        if not isinstance(clients, ByClient):
            _check_form(clients, self.kind)
            clients = list(clients)  # a user's may be any iterable
            for k, rows in enumerate(clients):
                given = np.asarray(rows)
                if given.ndim != 1 or (given.dtype.kind not in "iu" and len(given)):
                    mask = ": np.flatnonzero(mask)" if given.dtype == bool else ""
                    raise PartitionError(
                        f"partition '{self.kind}' gave client {k} {given.dtype} {list(given.shape)}; expected sample "
                        f"numbers, whole numbers [n_k]{mask}"
                    )
        if n_clients is not None and len(clients) != n_clients:
            raise PartitionError(f"partition '{self.kind}' made {len(clients)} clients instead of {n_clients}")
        found = ByClient.of(clients)
        every = found.samples
        if len(every) and (every.min() < 0 or every.max() >= n):
            raise PartitionError(f"partition '{self.kind}' gave sample numbers outside 0..{n - 1} ({{data}})")
        uses = np.bincount(every, minlength=n)
        if (uses > 1).any():
            raise PartitionError(f"partition '{self.kind}' gave sample {int(np.argmax(uses > 1))} to two clients")
        if not found.sizes.all():
            raise PartitionError(
                f"partition '{self.kind}' left client {int(np.argmin(found.sizes))} of {len(found)} without a sample "
                "({data})"
            )
        return found.ascending()

    def identity(self) -> dict[str, Any]:
        """Return the fields that enter an experiment's hash: all; a recorded partition by its digest, not its path.

        >>> PARTITIONS.get("path")(clients=5).identity()
        {'kind': 'path', 'clients': 5, 'seed': None, 'classes_per_client': 2}
        """
        return plain_values(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name: the class is made at run time, so another process finds its own in the registry."""
        return _restore, (self.kind, self.model_dump(exclude_unset=True))


def _copied(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a scheme, arrays as copies."""
    return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in given.items()}


def _check_form(clients: object, kind: str) -> None:
    """Refuse what is no list of clients; for the two other forms in which code keeps a division, say the way to one.

    Raises:
        PartitionError: it is a dict of clients, an owner for each sample, or nothing that has elements.
    """
    due = "expected a list with the sample numbers of each client in turn"
    if not isinstance(clients, Iterable):
        raise PartitionError(f"partition '{kind}' returned {clients!r:.20}; {due}")
    if isinstance(clients, Mapping):
        raise PartitionError(f"partition '{kind}' returned a dict; {due}: [parts[k] for k in range(n_clients)]")
    if isinstance(clients, np.ndarray) and clients.ndim == 1 and clients.dtype != object:
        raise PartitionError(
            f"partition '{kind}' returned an array {clients.dtype} {list(clients.shape)}; {due}: "
            "[np.flatnonzero(owner == k) for k in range(n_clients)]"
        )


def _restore(kind: str, values: dict[str, Any]) -> Scheme:
    return PARTITIONS.get(kind).model_validate(values)


PARTITIONS: Registry[type[Scheme]] = Registry(
    "partition",
    {
        "iid": "pfl_ops.data.proportions",
        "path": "pfl_ops.data.whole_classes",
        "ls": "pfl_ops.data.proportions",
        "qs": "pfl_ops.data.proportions",
        "lsqs": "pfl_ops.data.proportions",
        "dirichlet": "pfl_ops.data.proportions",
        "pat": "pfl_ops.data.whole_classes",
        "shards": "pfl_ops.data.whole_classes",
        "sorted_shards": "pfl_ops.data.sorted_shards",
        "zipf": "pfl_ops.data.proportions",
        "natural": "pfl_ops.data.recorded",
        "file": "pfl_ops.data.recorded",
    },
    hints=dict.fromkeys(
        ("non-iid", "non_iid", "noniid", "niid"),
        "Label skew: path, pat, shards, sorted_shards, ls, lsqs, dirichlet, zipf; quantity skew alone: qs.",
    ),
)
"""Name -> section class; its `function` is the scheme as written."""


def partition(name: str, base: type[Scheme] = Scheme) -> Callable[[F], F]:
    """Make a scheme known by name. The function stays callable as written.

    Its keyword-only parameters are its options, with a type, perhaps `Annotated[..., Field(...)]` with bounds and a
    description. Beside these it may ask for `rng`, `users` and `origin` (see `Scheme.indices`).

    Raises:
        PflOpsError: the name is taken.

    >>> @partition("example_stripes")
    ... def stripes(labels, n_clients, *, rng, width: int = 1):
    ...     return [np.flatnonzero(np.arange(len(labels)) // width % n_clients == k) for k in range(n_clients)]
    >>> scheme = PARTITIONS.get("example_stripes")(clients=2, width=3)
    >>> [rows.tolist() for rows in scheme.indices(np.zeros(8), np.random.default_rng(0))]
    [[0, 1, 2, 6, 7], [3, 4, 5]]
    """

    def add(function: F) -> F:
        tag: dict[str, Any] = {"kind": (Literal[name], name)}
        tagged = create_model("Scheme", __base__=base, **tag)
        title = "".join(part.title() for part in name.split("_")) + "Scheme"
        section = options(function, title, tagged, skip=CONTEXT)
        section.__module__ = function.__module__  # where the registry looks for the file that defines it
        section.function = staticmethod(function)  # type: ignore[attr-defined]
        PARTITIONS.add(name, section)  # type: ignore[arg-type]
        return function

    return add


def parse(text: str) -> dict[str, Any]:
    """Return the fields of a partition as the command line names it: "lsqs", or "file:PATH".

    >>> parse("lsqs"), parse("file:recorded/five")
    ({'kind': 'lsqs'}, {'kind': 'file', 'path': 'recorded/five'})
    """
    kind, colon, path = text.partition(":")
    if colon and kind == "file":
        return {"kind": "file", "path": path}
    PARTITIONS.get(text)  # an unknown name is an error with the nearest one
    return {"kind": text}


def content_hash(clients: Sequence[np.ndarray]) -> str:
    """SHA-256 of each client's sample numbers, int64 [n_k]: the same clients in the same order give the same value.

    >>> one, same = [np.array([0, 2]), np.array([1])], [np.array([2, 0]), np.array([1])]
    >>> content_hash(one) == content_hash(same), content_hash(one) == content_hash(one[::-1])
    (True, False)
    """
    lists = ByClient.of(clients).ascending()
    state = hashlib.sha256(f"pfl-ops partition 1: {len(lists)} clients\n".encode())
    for first, last in lists.blocks(HASHED_AT_ONCE):
        state.update(_lines(lists, first, last).data)
    return state.hexdigest()


HASHED_AT_ONCE = 1 << 20  # samples whose bytes are in memory at once


def _lines(lists: ByClient[np.ndarray], first: int, last: int) -> np.ndarray:
    """Return the bytes of some clients: of each its number of samples in digits, a line break, its samples as int64."""
    sizes = lists.sizes[first:last]
    samples = lists.samples[lists.offsets[first] : lists.offsets[last]].astype("<i8").view(np.uint8)
    numbers, which = np.unique(sizes, return_inverse=True)
    texts = [f"{number}\n".encode() for number in numbers.tolist()]
    widths = np.array([len(text) for text in texts])[which]
    padded = np.array(texts)[which].view(np.uint8).reshape(len(sizes), -1)
    lengths = np.stack([widths, 8 * sizes], axis=1).reshape(-1)  # digits, samples, digits, samples, ...
    is_sample = np.repeat(np.tile([False, True], len(sizes)), lengths)
    found = np.empty(len(is_sample), np.uint8)
    found[~is_sample] = padded[np.arange(padded.shape[1]) < widths[:, None]]
    found[is_sample] = samples
    return found


__all__ = ["PARTITIONS", "PartitionError", "Scheme", "content_hash", "counts_table", "parse", "partition"]
