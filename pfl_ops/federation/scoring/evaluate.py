"""Scores of a stage: each model on its own client's data (`local`) and on the data of all clients (`global`).

No model answers twice: one that all clients share answers each sample once, however many views and clients ask, and
one that a client holds in two stages (L1 and L2 of methods that train what they keep) is asked once a round. N models
are scored on the pooled data in one large product where they are stacked. All draws here have generators of their own:
no setting can move training. Clients without a held-out sample have no local score (NaN); their models count in the
global one.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pfl_ops import metrics, rng
from pfl_ops.data.clients import Pool
from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.federation.method.contract import Models
from pfl_ops.federation.misuse import MisuseError, StackingError, kind, name_of, repeatable
from pfl_ops.federation.scoring.fingerprint import Fingerprint, fingerprints
from pfl_ops.federation.scoring.grouping import operations, own_at_once, shared_at_once
from pfl_ops.federation.scoring.synthetic import Companions, accuracy_by_client, alike, s_accuracy
from pfl_ops.federation.settings import ALL_UP_TO, Evaluation
from pfl_ops.federation.training.feed import Feed
from pfl_ops.federation.training.train import Trainer
from pfl_ops.system.memory import out_of_memory

BATCH = 500  # samples that one model is shown at once
KEPT_ANSWERS = 1 << 28  # bytes: above it, a model that a client holds in two stages is asked twice
KEPT_INPUTS = 16 << 20  # bytes of pooled samples as networks take them: above it, they are made anew for each call
ANSWERS = 10_000  # models times samples at once: activations take memory


@dataclass
class Scores:
    """Accuracies of one stage by client, of the S clients that are scored (`Scorer.clients`); NaN: no model or sample.

    Attributes:
        local: each model on its own client's held-out samples, [S].
        pooled: each model on the pooled samples, [S]; None: this view was not asked for.
        synthetic: c -> each model on its own and c % of the other clients' samples, [S].
        samples: behind `pooled`, where they are not all of them; else 0.
        error: standard error of the mean of `pooled` by the choice of these; NaN: they are all, or fewer than two.
        not_finite: clients whose models have a parameter that is not finite; None: of the model that all share.
    """

    local: np.ndarray
    pooled: np.ndarray | None = None
    synthetic: dict[int, np.ndarray] = field(default_factory=dict)
    samples: int = 0
    error: float = math.nan
    not_finite: list[int | None] = field(default_factory=list)


@dataclass
class OwnAnswers:
    """The answers of a client's own model.

    Attributes:
        model: fingerprint of the model. local: its local accuracy.
        right: number of pooled samples, subset or all -> whether it was right on each of them, bool [n].
    """

    model: Fingerprint
    local: float
    right: dict[int, Tensor]


class Shown(NamedTuple):
    """The samples that a model of all clients is shown.

    Attributes:
        samples: their numbers, ascending, int64 [m].
        own: places of the scored clients' samples in `samples`, int64 [l]. owner: positions of their clients, [l].
        pool: places of the pooled samples in `samples`, int64.
    """

    samples: Tensor
    own: Tensor
    owner: Tensor
    pool: Tensor


class KeptInputs(NamedTuple):
    """Pooled samples as networks take them.

    Attributes:
        samples: their numbers, int64 [m]. x, y: their inputs and labels, as `Feed.batch` gives them.
        version: PyTorch's count of changes of `x` when it was made: a layer may change its input in place.
    """

    samples: Tensor
    x: Tensor
    y: Tensor
    version: int


class Groups(NamedTuple):
    """Models that are asked in one call: each on its own client's samples, or all on the pooled ones."""

    local: int
    pooled: int


class Scorer:
    """Scores models on held-out data.

    Args:
        trainer: the network, and the way in which it is executed.
        pool: held-out samples by client. feed: the same on the device.
        settings: the experiment's evaluation section.
        seed: the run's seed.

    Attributes:
        clients: the clients that are scored, ascending, int64 [S]. sizes: their held-out samples, int64 [S].
        everything, subset, final: pooled samples: all, those of the curves, those of the last round.
    """

    def __init__(self, trainer: Trainer, pool: Pool, feed: Feed, settings: Evaluation, seed: int) -> None:
        self.trainer, self.feed, self.settings = trainer, feed, settings
        self.n_clients = len(pool.index)
        everyone = scored_clients(settings, self.n_clients, seed)
        self.clients = torch.from_numpy(everyone)
        self._is_scored = torch.zeros(self.n_clients, dtype=torch.bool)
        self._is_scored[self.clients] = True
        self.everything = torch.arange(len(pool), device=feed.device)
        wanted, final = settings.subset, settings.final if isinstance(settings.final, int) else None
        if wanted == "auto":  # evaluation then stays a small part of training, however much data there is
            wanted = min(max(len(trainer.feed.y) // 60, 100), 1000)
        self.subset, self.final = (
            pool.subset(n, rng.generator(seed, "evaluation/subset")).to(feed.device) for n in (wanted, final)
        )
        self._owner = pool.owner().to(feed.device)
        self._sizes = feed.sizes
        self.sizes = feed.sizes[everyone]
        kept = len(everyone) * max(len(self.subset), len(self.final))
        self._keeps_answers = kept <= KEPT_ANSWERS
        self._seed = seed
        self._last: tuple[Models, int, bool, Tensor] | None = None
        self._answered: dict[int, OwnAnswers] = {}
        self._shown_samples: dict[bool, Shown] = {}
        self._tested: dict[int, tuple[Companions, np.ndarray]] = {}
        self._kept_inputs: KeptInputs | None = None

    def score(self, models: Iterable[Models], *, pooled: bool, full: bool = False) -> Scores:
        """Scores of one stage.

        Args:
            models: the stage, whole or in chunks of clients, made one after the other; or one shared model.
            pooled: ask for the global view of models that clients hold each for itself (a shared model's is free).
            full: on the samples for the last round instead of those for the curves.
        """
        scores = Scores(self._nothing())
        pool = self.final if full else self.subset
        right, number = torch.zeros(len(pool), dtype=torch.float64, device=self.feed.device), 0
        for chunk in models:
            shared = chunk.clients is None
            scores.not_finite += _not_finite(chunk)
            found, of = self._shared(scores, chunk, full) if shared else self._each(scores, chunk, pooled, full)
            right, number = right + found, number + of
        if number and 0 < len(pool) < len(self.everything):
            scores.samples = len(pool)
            scores.error = metrics.standard_error((right / number).cpu().numpy(), len(self.everything))
        return scores

    def forget(self) -> None:
        """Ask every model again, as if it had never been seen: for those who time it."""
        self._last = None
        self._answered.clear()

    def answers(self, models: Iterable[Models]) -> float:
        """Return the number of samples that `score` shows to a model, all models together, both views in the curves."""
        shown = 0.0
        for chunk in models:
            if chunk.clients is None:
                shown += len(self._shown(full=False).samples)
            else:
                clients = chunk.clients.cpu()
                numbers = clients[self._is_scored[clients]].numpy()
                shown += float(self._sizes[numbers].sum()) + len(numbers) * len(self.subset)
        return max(shown, 1.0)

    # -- one model for all --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _shared(self, scores: Scores, models: Models, full: bool) -> tuple[Tensor, int]:
        """Score one model for all; return its right answers on the pool, [n], and 1."""
        one = Models(models.params.reshape(1, -1), None, {k: v[None] for k, v in models.ctx.items()}, models.predict)
        shown, pool = self._shown(full), self.final if full else self.subset
        right = self._given(models, full)
        if right is None:
            with self.trainer.passes.answering():
                right = self._answers(one, shown.samples)[0].double()
            self._last = (models, models.params._version, full, right)
        by_client = right.new_zeros(len(self.clients)).index_add_(0, shown.owner, right[shown.own]).cpu().numpy()
        with np.errstate(invalid="ignore", divide="ignore"):
            scores.local = by_client / self.sizes
        scores.pooled = self._nothing()
        if len(pool):
            scores.pooled[:] = float(right[shown.pool].mean())
            self._synthetic(scores, self.clients.numpy(), right[shown.pool][None], pool)
        return right[shown.pool], 1

    def _shown(self, full: bool) -> Shown:
        """The samples of the scored clients and of the pool, of the last round (`full`) or of the curves."""
        if full not in self._shown_samples:
            position = torch.full((self.n_clients,), -1, dtype=torch.int64, device=self.feed.device)
            position[self.clients.to(self.feed.device)] = torch.arange(len(self.clients), device=self.feed.device)
            owner, pool = position[self._owner], self.final if full else self.subset
            is_shown = owner >= 0
            is_shown[pool] = True
            samples = is_shown.nonzero()[:, 0]
            own = (owner[samples] >= 0).nonzero()[:, 0]
            self._shown_samples[full] = Shown(samples, own, owner[samples[own]], torch.searchsorted(samples, pool))
        return self._shown_samples[full]

    def _nothing(self) -> np.ndarray:
        """NaN for each client that is scored, [S]."""
        return np.full(len(self.clients), np.nan)

    def _positions(self, clients: np.ndarray) -> np.ndarray:
        """Positions of scored clients among all that are scored, int64 [c]."""
        return np.searchsorted(self.clients.numpy(), clients)

    def _given(self, models: Models, full: bool) -> Tensor | None:
        """The answers of the shared model that was asked last, where this is the same one: L1 and G often are."""
        if self._last is None:
            return None
        last, version, was_full, right = self._last
        same = (
            models.predict is last.predict
            and not models.ctx
            and not last.ctx
            and was_full == full
            and models.params.data_ptr() == last.params.data_ptr()
            and models.params.shape == last.params.shape
            and models.params._version == version
        )
        return right if same else None

    @cached_property
    def groups(self) -> Groups:
        """The numbers of models in a call: on a GPU as many as train together, else see `grouping`."""
        trainer = self.trainer
        if self.feed.device.type != "cpu" or not (trainer.chunk or trainer.passes.chain is not None):
            return Groups(trainer.chunk or 1, trainer.chunk or 1)
        body, head = trainer.task.net.network.body, trainer.task.net.network.head
        assert isinstance(body, nn.Module) and isinstance(head, nn.Module)
        x = self.feed.batch(self.everything[:1])[0]
        with torch.no_grad(), trainer.passes.answering():
            each = operations(nn.Sequential(body, head), x)
        samples = min(self._sizes[self.clients.numpy()].mean(), BATCH)
        return Groups(own_at_once(each, x.numel(), samples), shared_at_once(each, min(len(self.subset), BATCH)))

    @property
    def stack(self) -> int:
        """Models that are taken at a time, and asked in groups."""
        return max(self.groups)

    # -- a model for each client --------------------------------------------------------------------------------------

    @torch.no_grad()
    def _each(self, scores: Scores, models: Models, pooled: bool, full: bool) -> tuple[Tensor, int]:
        """Score a model for each client; return the sum of their right answers on the pool, [n], and their number."""
        assert models.clients is not None
        everyone = models.clients.cpu()
        rows = self._is_scored[everyone].nonzero()[:, 0]
        order = rows[np.argsort(-self._sizes[everyone[rows].numpy()], kind="stable")]
        pool = self.final if full else self.subset
        total, number = torch.zeros(len(pool), dtype=torch.float64, device=self.feed.device), 0
        with self.trainer.passes.answering():
            for part in order.split(self.stack) if len(order) else ():
                own, numbers = _take(models, part), everyone[part].numpy()
                positions = self._positions(numbers)
                scores.local[positions], right = self._asked(own, numbers, pool if pooled else pool[:0])
                if not (pooled and len(pool)):
                    continue
                if scores.pooled is None:
                    scores.pooled = self._nothing()
                scores.pooled[positions] = right.double().mean(dim=1).cpu().numpy()
                total, number = total + right.double().sum(dim=0), number + len(right)
                self._synthetic(scores, numbers, right, pool)
        return total, number

    def _asked(self, models: Models, clients: np.ndarray, pool: Tensor) -> tuple[np.ndarray, Tensor]:
        """Local accuracies [c] and answers on `pool`, bool [c, n]; models that were just asked are not asked again."""
        prints, known = fingerprints(models), [self._answered.get(k) for k in clients.tolist()]
        asked = [a for a, p in zip(known, prints, strict=True) if a is not None and a.model == p]
        if len(asked) < len(prints):
            none, local = pool[:0].bool(), self._local(models, clients).tolist()
            asked = [OwnAnswers(p, accuracy, {0: none}) for p, accuracy in zip(prints, local, strict=True)]
            if self._keeps_answers:
                self._answered |= dict(zip(clients.tolist(), asked, strict=True))
        if not all(len(pool) in a.right for a in asked):
            for a, right in zip(asked, self._answers(models, pool), strict=True):
                a.right[len(pool)] = right
        return np.array([a.local for a in asked]), torch.stack([a.right[len(pool)] for a in asked])

    def _local(self, models: Models, clients: np.ndarray) -> np.ndarray:
        """Accuracy of each model on its own client's samples, [c]."""
        parts = spans((0, len(clients)), self.groups.local)
        return np.concatenate([self._local_at_once(some_of(models, *span), clients[slice(*span)]) for span in parts])

    def _local_at_once(self, models: Models, clients: np.ndarray) -> np.ndarray:
        """`_local` in one call."""
        sizes = self._sizes[clients]
        width = int(sizes.max())
        if width == 0:
            return np.full(len(clients), np.nan)
        index, place = self.feed.index, np.arange(width)
        is_real = place < sizes[:, None]
        places = torch.from_numpy(np.where(is_real, index.offsets[clients][:, None] + place, 0)).to(self.feed.device)
        real = torch.from_numpy(is_real).to(self.feed.device)
        samples = index.samples[places] * real
        right = torch.zeros(len(clients), dtype=torch.int64, device=self.feed.device)
        for s, r in zip(*(each.split(at_once(len(models.params)), dim=1) for each in (samples, real)), strict=True):
            x, y = self.feed.batch(s)
            right += (_are_right(self._scores(models, x), y) & r).sum(dim=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(right.cpu().numpy() / sizes)

    def _answers(self, models: Models, samples: Tensor) -> Tensor:
        """Return whether each model is right on each of these samples, bool [c, n]."""
        parts = spans((0, len(models.params)), self.groups.pooled)
        return torch.cat([self._answers_at_once(some_of(models, *span), samples) for span in parts])

    def _answers_at_once(self, models: Models, samples: Tensor) -> Tensor:
        """`_answers` in one call a batch."""
        found = [torch.zeros(len(models.params), 0, dtype=torch.bool, device=self.feed.device)]
        for x, y in self._pooled_batches(samples, at_once(len(models.params))):
            found.append(_are_right(self._scores(models, x[None]), y))
        return torch.cat(found, dim=1)

    def _pooled_batches(self, samples: Tensor, size: int) -> Iterable[tuple[Tensor, Tensor]]:
        """`Feed.batch` of pooled samples in pieces; on a CPU the last few are kept: many models are shown them."""
        feed, kept = self.feed, self._kept_inputs
        if feed.device.type != "cpu" or len(samples) * feed.x[:1].numel() * feed.dtype.itemsize > KEPT_INPUTS:
            return map(feed.batch, samples.split(size))
        if kept is None or not torch.equal(kept.samples, samples) or kept.x._version != kept.version:
            x, y = feed.batch(samples)
            x = x.contiguous() if self.trainer.passes.chain is not None else x
            self._kept_inputs = kept = KeptInputs(samples.clone(), x, y, x._version)
        return zip(kept.x.split(size), kept.y.split(size), strict=True)

    def _scores(self, models: Models, x: Tensor) -> Tensor:
        """Scores [c, B, L] on x [c, B, ...], or on the same x [1, B, ...] for all."""
        net, w = self.trainer.task.net, models.params
        with self.trainer.passes.autocast():
            if models.predict is None:
                return net.scores(w, x)
            x = x.expand(len(w), *x.shape[1:])
            with repeatable(models.predict):
                scores = self._predicted(models, x)
        if scores.shape != (*x.shape[:2], net.n_classes):
            got = f"one client's {kind(scores[0])}"
            raise MisuseError(
                f"{name_of(models.predict)}() must return scores [B, L] = {[x.shape[1], net.n_classes]}; got {got}",
                models.predict,
            )
        return scores

    def _predicted(self, models: Models, x: Tensor) -> Tensor:
        """The scores by `predict`, in one call where that can be stacked, else one model after the other."""
        predict, w, ctx = models.predict, models.params, models.ctx
        assert predict is not None
        mapped = self.trainer.passes.mapped
        try:
            try:
                return mapped(predict, w, x, None, ctx)
            except StackingError:
                each = [slice(i, i + 1) for i in range(len(w))]
                return torch.cat([mapped(predict, w[i], x[i], None, {n: v[i] for n, v in ctx.items()}) for i in each])
        except PflOpsError:
            raise
        except Exception as error:
            if out_of_memory(error):
                raise
            raise MisuseError(f"{name_of(predict)}() failed: {in_a_line(error)}", predict) from error

    def _synthetic(self, scores: Scores, clients: np.ndarray, right: Tensor, pool: Tensor) -> None:
        """S-acc(c) of models [c, n] that were scored on the pooled samples; one row stands for all clients."""
        if not self.settings.synthetic:
            return
        companions, owner = self._companions(pool)
        accuracy, sizes = accuracy_by_client(right.cpu().numpy(), owner, len(companions.tested))
        accuracy = np.broadcast_to(accuracy, (len(clients), len(companions.tested)))
        sizes = alike(sizes) if self.settings.equal_tests else sizes
        for c in self.settings.synthetic:
            values = scores.synthetic.setdefault(c, self._nothing())
            values[self._positions(clients)] = s_accuracy(accuracy, sizes, c, clients, companions)

    def _companions(self, pool: Tensor) -> tuple[Companions, np.ndarray]:
        """The clients with samples in a pool, and for each of its samples the position of its client, [n]."""
        if len(pool) not in self._tested:
            tested, owner = np.unique(self._owner[pool].cpu().numpy(), return_inverse=True)
            self._tested[len(pool)] = Companions(self.n_clients, self._seed, tested), owner
        return self._tested[len(pool)]


def scored_clients(settings: Evaluation, n_clients: int, seed: int) -> np.ndarray:
    """The clients that a run scores, ascending, int64 [S]: all, or as many as `settings` say, drawn once."""
    wanted = settings.clients or ALL_UP_TO
    if wanted >= n_clients:
        return np.arange(n_clients)
    return np.sort(rng.generator(seed, "evaluation/clients").choice(n_clients, wanted, replace=False))


def spans(whole: tuple[int, int], size: int) -> list[tuple[int, int]]:
    """Return a span in parts of `size`, from where to where.

    >>> spans((2, 7), 2)
    [(2, 4), (4, 6), (6, 7)]
    """
    return list(pairwise([*range(*whole, size), whole[1]]))


def some_of(models: Models, first: int, last: int) -> Models:
    """Return models `first` to `last` of a stage, without their clients."""
    ctx = {name: value[first:last] for name, value in models.ctx.items()}
    return Models(models.params[first:last], None, ctx, models.predict)


def at_once(models: int) -> int:
    """Samples that so many models are shown at once."""
    return max(1, min(BATCH, ANSWERS // models))


def _are_right(scores: Tensor, y: Tensor) -> Tensor:
    """True where the largest of the scores [..., L] is that of class y [...]; never where one of them is NaN."""
    largest, answer = scores.max(dim=-1)
    return (answer == y) & ~largest.isnan()


def _not_finite(models: Models) -> list[int | None]:
    """Return the clients whose models are not finite; [None] if the model that all share is not.

    >>> _not_finite(Models(torch.tensor([[1.0, 2.0], [1.0, math.nan], [math.inf, 1.0]]), torch.tensor([4, 7, 9])))
    [7, 9]
    """
    bad = (~models.params.sum(dim=-1).isfinite()).cpu()
    if models.clients is None:
        return [None] if bool(bad) else []
    return [int(k) for k in models.clients.cpu()[bad]]


def _take(models: Models, rows: Tensor) -> Models:
    """Some rows of a stage."""
    assert models.clients is not None
    there = rows.to(models.params.device)
    ctx = {name: value[rows.to(value.device)] for name, value in models.ctx.items()}
    return Models(models.params.index_select(0, there), models.clients.cpu()[rows], ctx, models.predict)
