"""Scores counted on paper: models that always answer one class, on the held-out labels of `little.HELD`."""

from functools import partial

import numpy as np
import pytest
import torch
from little import HELD, N_CLASSES, always, clients, network
from torch import Tensor, nn

from pfl_ops import metrics
from pfl_ops.data.clients import Clients
from pfl_ops.federation.loop.build import make_task, make_trainer
from pfl_ops.federation.method.contract import Models, Net
from pfl_ops.federation.scoring import grouping
from pfl_ops.federation.scoring.evaluate import Groups, Scorer, Scores
from pfl_ops.federation.scoring.synthetic import Companions
from pfl_ops.federation.settings import Evaluation, Training, UniformParticipation
from pfl_ops.federation.training.feed import Feed

NONE = float("nan")
WAYS = pytest.mark.parametrize("stack", [None, 1, 2, 5], ids=lambda s: f"stack={s}")


def scorer(stack: int | None = None, data: Clients | None = None, seed: int = 0, **settings: object) -> Scorer:
    data, training, device = data or clients(), Training(), torch.device("cpu")
    feeds = [Feed(p, data.mean, data.std, device, torch.float32) for p in (data.train, data.held)]
    task = make_task(network(), None, data, feeds[0], training, UniformParticipation(), seed)  # type: ignore[arg-type]
    trainer = make_trainer(task, feeds[0], training, stack, draws=False)
    made = Scorer(trainer, data.held, feeds[1], Evaluation(**settings), seed)  # type: ignore[arg-type]
    if stack:
        made.groups = Groups(stack, max(stack - 1, 1))
    return made


def each(s: Scorer, labels: list[int], who: list[int] | None = None) -> Models:
    """Client who[i] has the model that always answers labels[i]."""
    rows = torch.stack([always(label, s.trainer.task.initial) for label in labels])
    return Models(rows, torch.tensor(range(len(labels)) if who is None else who))


def close(found: np.ndarray | None, expected: list[float]) -> None:
    assert found is not None
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@WAYS
def test_a_model_for_each_client(stack: int | None) -> None:
    """Clients 0, 1, 2, 3 answer 0, 1, 2, 0. Labels: 0001, 112, none, 2; of all eight: 3, 3, 2 of the classes."""
    s = scorer(stack)
    found = s.score([each(s, [0, 1, 2, 0])], pooled=True)
    close(found.local, [3 / 4, 2 / 3, NONE, 0.0])
    close(found.pooled, [3 / 8, 3 / 8, 2 / 8, 3 / 8])


@WAYS
def test_in_chunks_in_any_order(stack: int | None) -> None:
    s = scorer(stack)
    chunks = (each(s, labels, who) for labels, who in (([0, 0], [3, 0]), ([2, 1], [2, 1])))
    found = s.score(chunks, pooled=True)
    close(found.local, [3 / 4, 2 / 3, NONE, 0.0])
    close(found.pooled, [3 / 8, 3 / 8, 2 / 8, 3 / 8])


@WAYS
def test_one_model_for_all(stack: int | None) -> None:
    """It answers 1: right on 1 of client 0's, 2 of client 1's, none of client 3's; on 3 of all. Its global view is
    free."""
    s = scorer(stack)
    found = s.score([Models(always(1, s.trainer.task.initial))], pooled=False)
    close(found.local, [1 / 4, 2 / 3, NONE, 0.0])
    close(found.pooled, [3 / 8] * 4)


@WAYS
def test_a_model_with_nan_is_never_right_and_named(stack: int | None) -> None:
    """Client 0 would answer class 0, the place of the first NaN: right on 3 of its own 4 samples. Finite parameters may
    give NaN scores too, of infinities that cancel."""
    s = scorer(stack)
    models = each(s, [0, 1, 2, 0])
    models.params[0] = float("nan")
    found = s.score([models], pooled=True)
    close(found.local, [0.0, 2 / 3, NONE, 0.0])
    close(found.pooled, [0.0, 3 / 8, 2 / 8, 3 / 8])
    assert found.not_finite == [0]
    shared = s.score([Models(models.params[0])], pooled=True)
    close(shared.pooled, [0.0] * 4)
    assert shared.not_finite == [None]


def test_the_global_view_of_many_models_only_if_asked_for() -> None:
    s = scorer()
    assert s.score([each(s, [0, 1, 2, 0])], pooled=False).pooled is None


def test_clients_that_are_not_given_have_no_score() -> None:
    s = scorer(2)
    found = s.score([each(s, [1, 2], who=[1, 3])], pooled=True)
    close(found.local, [NONE, 2 / 3, NONE, 1.0])
    close(found.pooled, [NONE, 3 / 8, NONE, 2 / 8])
    assert np.isnan(s.score([], pooled=True).local).all()


@WAYS
def test_some_clients_only(stack: int | None) -> None:
    """evaluation.clients = 2: clients 1 and 3 for all stages; what they are scored on does not change."""
    s, whole = scorer(stack, seed=2, synthetic=(50,), clients=2), scorer(stack, seed=2, synthetic=(50,))
    assert s.clients.tolist() == [1, 3] and s.sizes.tolist() == [3, 1]
    kept = s.clients.numpy()
    for models in (each(s, [0, 1, 2, 0]), *(Models(always(label, s.trainer.task.initial)) for label in range(3))):
        some, all_ = s.score([models], pooled=True), whole.score([models], pooled=True)
        assert all_.pooled is not None
        close(some.local, all_.local[kept].tolist())
        close(some.pooled, all_.pooled[kept].tolist())
        close(some.synthetic[50], all_.synthetic[50][kept].tolist())


def test_the_draw_of_clients_and_of_the_subset_hangs_on_the_seed_alone() -> None:
    data = clients([[k % 3] * 3 for k in range(30)])
    one, other, third = (
        scorer(data=data, seed=s, clients=9, subset=20, eps=e) for s, e in ((1, 0.9), (1, 0.5), (2, 0.9))
    )
    assert torch.equal(one.clients, other.clients) and torch.equal(one.subset, other.subset)
    assert not torch.equal(one.clients, third.clients) and not torch.equal(one.subset, third.subset)


@pytest.mark.parametrize(("n", "expected"), [(200, 200), (201, 200), (230, 200)])
def test_all_clients_up_to_two_hundred_else_two_hundred(n: int, expected: int) -> None:
    data = clients([[0]] * n, train=[[0]] * n)
    assert scorer(data=data).clients.unique().tolist() == scorer(data=data).clients.tolist()  # each once, ascending
    assert len(scorer(data=data).clients) == expected
    assert len(scorer(data=data, clients=n).clients) == n, "unless all are asked for"
    assert len(scorer(data=data, clients=n + 50).clients) == n


@WAYS
def test_the_subset_is_for_the_curves_and_the_pool_for_the_last_round(stack: int | None) -> None:
    """Half of 8 samples, class by class as the pool has them: 3, 3, 2 of 8 are 1.5, 1.5, 1 of 4."""
    s = scorer(stack, subset=4, synthetic=(100,))
    y = s.feed.y[s.subset]
    counts = torch.bincount(y, minlength=N_CLASSES).tolist()
    assert len(y) == 4 and counts[2] == 1 and set(counts[:2]) == {1, 2}
    for models in (each(s, [0] * 4), Models(always(0, s.trainer.task.initial))):
        for full, expected in ((False, counts[0] / 4), (True, 3 / 8)):
            found = s.score([models], pooled=True, full=full)
            close(found.pooled, [expected] * 4)
            close(found.synthetic[100], [expected] * 4)
        close(s.score([models], pooled=True).local, [3 / 4, 0, NONE, 0])  # all of a client's own, always


@WAYS
@pytest.mark.parametrize("final", [4, "all", 8, 9])
def test_the_last_round_may_stand_on_fewer_samples(stack: int | None, final: int | str) -> None:
    """4 of 8 samples: the same that the curves have of 4. Clients' models are right on c of them: 0 where all answer
    class 0, on c_0; of classes 0 and 1 half of the models are right on each sample of these, none on the others.

    Standard error: sqrt((1 - 4/8) s^2 / 4), s^2 over the 4 means.
    """
    s = scorer(stack, subset=4, final=final)
    y = s.feed.y[s.final]
    assert len(y) == (4 if final == 4 else 8) and (final != 4 or torch.equal(s.final, s.subset))
    counts = torch.bincount(y, minlength=N_CLASSES).tolist()
    everyone = s.score([each(s, [0] * 4)], pooled=True, full=True)
    close(everyone.pooled, [counts[0] / len(y)] * 4)
    close(everyone.local, [3 / 4, 0, NONE, 0])
    halves = s.score([each(s, [0, 1], [0, 1]), each(s, [0, 1], [2, 3])], pooled=True, full=True)
    if final == 4:
        p = counts[0] / 4
        assert everyone.samples == 4 and everyone.error == pytest.approx(np.sqrt(0.5 * (4 / 3 * p * (1 - p)) / 4))
        means = np.array([0.5] * (counts[0] + counts[1]) + [0] * counts[2])
        assert halves.error == pytest.approx(np.sqrt(0.5 * means.var(ddof=1) / 4))
        shared = s.score([Models(always(0, s.trainer.task.initial))], pooled=True, full=True)
        assert (shared.samples, shared.error) == (4, pytest.approx(everyone.error))
    else:
        assert [(one.samples, one.error) for one in (everyone, halves)] == [(0, pytest.approx(NONE, nan_ok=True))] * 2


@WAYS
def test_synthetic_from_own_samples_to_everybodys(stack: int | None) -> None:
    """c = 0 is the local view, c = 100 the global one; in between, by the companions of each."""
    s = scorer(stack, synthetic=(0, 50, 100))
    answers = [0, 1, 2, 0]
    found = s.score([each(s, answers)], pooled=True)
    close(found.synthetic[0], [3 / 4, 2 / 3, NONE, 0.0])
    close(found.synthetic[100], [3 / 8, 3 / 8, 2 / 8, 3 / 8])
    companions, expected = Companions(4, 0, np.arange(4)), []
    for k, answer in enumerate(answers):
        joined = [label for j in companions.with_own(k, 50) for label in HELD[j]]
        expected.append(joined.count(answer) / len(joined) if joined else NONE)
    close(found.synthetic[50], expected)
    shared = s.score([Models(always(1, s.trainer.task.initial))], pooled=False)
    close(shared.synthetic[0], [1 / 4, 2 / 3, NONE, 0.0])
    close(shared.synthetic[100], [3 / 8] * 4)


def test_synthetic_of_many_models_comes_with_their_global_view() -> None:
    s = scorer(synthetic=(50,))
    assert s.score([each(s, [0, 1, 2, 0])], pooled=False).synthetic == {}


def _other_class(net: Net, w: Tensor, x: Tensor, *, by: Tensor) -> Tensor:
    """The network's scores moved on by `by` classes: a predict with rows of its own."""
    return torch.stack([net(w, x).roll(shift, -1) for shift in range(N_CLASSES)], -1) @ nn.functional.one_hot(
        by, N_CLASSES
    ).to(w.dtype)


@WAYS
def test_models_that_answer_by_a_function_of_their_own(stack: int | None) -> None:
    """All say 0, moved on by 0, 1, 2, 2 classes: as if they said 0, 1, 2, 2."""
    s = scorer(stack)
    moved = Models(each(s, [0] * 4).params, torch.arange(4), {"by": torch.tensor([0, 1, 2, 2])}, _other_class)
    found = s.score([moved], pooled=True)
    close(found.local, [3 / 4, 2 / 3, NONE, 1.0])
    close(found.pooled, [3 / 8, 3 / 8, 2 / 8, 2 / 8])
    shared = Models(always(0, s.trainer.task.initial), None, {"by": torch.tensor(1)}, _other_class)
    close(s.score([shared], pooled=True).local, [1 / 4, 2 / 3, NONE, 0.0])


def _moved(net: Net, w: Tensor, x: Tensor, *, weights: Tensor) -> Tensor:
    """The class with the largest weight, whatever the sample."""
    return net(w, x) * 0 + weights


@pytest.mark.parametrize("bound", [False, True], ids=["closure", "partial"])
def test_predict_of_another_round_is_asked_again(bound: bool) -> None:
    """Models that stay as they are, answering class 0, 1, 2 in three rounds: by functions that are made anew at the
    address of the last one, or by one that binds a tensor whose text is the same, 1.0000 three times."""
    s = scorer()
    for label, expected in enumerate(([3 / 4, 0.0, NONE, 0.0], [1 / 4, 2 / 3, NONE, 0.0], [0.0, 1 / 3, NONE, 1.0])):
        weights = torch.ones(N_CLASSES)
        weights[label] += 1e-6
        predict = partial(_moved, weights=weights) if bound else (lambda net, w, x, by=weights: net(w, x) * 0 + by)
        found = s.score([Models(each(s, [0] * 4).params, torch.arange(4), predict=predict)], pooled=True)
        close(found.local, expected)
        del predict


def _clearing(net: Net, w: Tensor, x: Tensor) -> Tensor:
    """The network's scores, and no inputs afterwards."""
    scores = net(w, x)
    x.zero_()
    return scores


def test_a_model_that_changes_its_inputs_leaves_those_of_the_next_one_as_they_were() -> None:
    """The clients' models are nearly the same, and their answers to zeros are others."""
    s = scorer(stack=1)
    w = torch.randn(s.trainer.task.layout.size, generator=torch.Generator().manual_seed(3))
    expected = s.score([Models(w)], pooled=True)
    assert expected.pooled is not None and expected.pooled[0] not in (2 / 8, 3 / 8)
    models = Models(w.repeat(4, 1) + torch.arange(4)[:, None] * 1e-6, torch.arange(4), predict=_clearing)
    close(s.score([models], pooled=True).pooled, list(expected.pooled))


def test_pooled_inputs_are_made_once_as_far_as_they_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight samples of two numbers; three models are asked in one call a round, in two rounds."""
    s, made = scorer(), []
    batch = s.feed.batch
    monkeypatch.setattr(s.feed, "batch", lambda samples: made.append(samples.shape) or batch(samples))
    for kept, times in ((8 * 2 * 4, 1), (8 * 2 * 4 - 1, 2)):
        monkeypatch.setattr("pfl_ops.federation.scoring.evaluate.KEPT_INPUTS", kept)
        s._kept_inputs = None
        for labels in ([0, 1, 2], [1, 2, 0]):
            s.score([each(s, labels, [0, 1, 3])], pooled=True)
        assert made.count((8,)) == times
        made.clear()


def test_nobody_has_a_held_out_sample() -> None:
    data = clients([[], [], [], []])
    for stack in (None, 2):
        s = scorer(stack, data, synthetic=(50,))
        for models in (each(s, [0, 1, 2, 0]), Models(always(1, s.trainer.task.initial))):
            found = s.score([models], pooled=True)
            assert np.isnan(found.local).all()
            assert found.pooled is None or np.isnan(found.pooled).all()
            assert metrics.tracked("L1", "test", "local", found.local) == {}


@WAYS
def test_many_samples_go_by_in_pieces(stack: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number that is shown at once is a matter of memory."""
    whole = scorer(stack)
    models = Models(torch.randn(4, whole.trainer.task.layout.size), torch.arange(4))
    expected = whole.score([models], pooled=True)
    monkeypatch.setattr("pfl_ops.federation.scoring.evaluate.BATCH", 3)
    monkeypatch.setattr("pfl_ops.federation.scoring.evaluate.ANSWERS", 4)
    found = whole.score([models], pooled=True)
    close(found.local, list(expected.local))
    close(found.pooled, list(expected.pooled))  # type: ignore[arg-type]


def test_answers_are_counted() -> None:
    """8 samples for a shared model; own ones and the pool's for each other one: 4 + 3 + 2 x 8."""
    s = scorer()
    assert s.answers([Models(always(1, s.trainer.task.initial))]) == 8
    assert s.answers([each(s, [0, 1])]) == 4 + 3 + 16


def test_scores_carry_no_gradient_and_the_network_stays_as_it_was() -> None:
    s = scorer(2)
    layer = s.trainer.task.net.network
    layer.train()
    layer.head.eval()  # somebody's own choice
    s.score([each(s, [0, 1, 2, 0])], pooled=True)
    assert layer.training and not layer.head.training
    assert isinstance(Scores(np.zeros(1)).synthetic, dict)


def test_a_shared_model_that_is_asked_again_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """L1 and G of FedAvg are one model; another one, or the same memory with new numbers, is run."""
    s = scorer(subset=4)
    asked: list[int] = []
    answers = Scorer._answers
    monkeypatch.setattr(
        Scorer, "_answers", lambda self, models, samples: asked.append(len(samples)) or answers(self, models, samples)
    )
    model = always(1, s.trainer.task.initial)
    first, second = (s.score([Models(w)], pooled=True) for w in (model, model.detach()))
    assert len(asked) == 1
    close(second.local, first.local.tolist())
    s.score([Models(model)], pooled=True, full=True)
    s.score([Models(model.clone())], pooled=True, full=True)
    assert len(asked) == 3
    model.copy_(always(2, s.trainer.task.initial))
    s.score([Models(model)], pooled=True, full=True)
    changed = s.score([Models(model)], pooled=True, full=True)
    assert len(asked) == 4
    close(changed.local, [0.0, 1 / 3, NONE, 1.0])
    model.copy_(always(0, s.trainer.task.initial))
    close(s.score([Models(model)], pooled=True, full=True).local, [3 / 4, 0.0, NONE, 0.0])
    assert len(asked) == 5  # the model that was asked last, with new numbers


def test_a_shared_model_that_is_asked_in_another_way_is_run_again() -> None:
    """It says 0, moved on by 0, 1, 0, 2, 1, 0 classes, each by another `ctx` or another function."""

    def moved(net: Net, w: Tensor, x: Tensor, *, by: Tensor | int = 0) -> Tensor:
        return net(w, x).roll(int(by), -1)

    s = scorer()
    model = always(0, s.trainer.task.initial)
    of = [[3 / 4, 0.0, NONE, 0.0], [1 / 4, 2 / 3, NONE, 0.0], [0.0, 1 / 3, NONE, 1.0]]
    ways = [Models(model, None, {"by": torch.tensor([n])} if n else {}, moved) for n in (0, 1, 0, 2, 1)]
    for one, by in zip([*ways, Models(model)], (0, 1, 0, 2, 1, 0), strict=True):
        close(s.score([one], pooled=True).local, of[by])


@WAYS
def test_a_model_that_a_client_holds_in_two_stages_is_asked_once(
    stack: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L1 and L2 of Ditto are one model a client; another row, or other samples, and they are asked again."""
    s = scorer(stack, subset=4)
    asked: list[int] = []
    run = Scorer._scores
    monkeypatch.setattr(Scorer, "_scores", lambda self, models, x: asked.append(len(x)) or run(self, models, x))
    first = s.score([each(s, [0, 1, 2, 0])], pooled=True)
    before = len(asked)
    again = s.score([each(s, [0, 1, 2, 0])], pooled=True)
    local = s.score([each(s, [1, 2, 0], [1, 2, 3])], pooled=False)
    assert len(asked) == before
    close(again.local, first.local.tolist())
    close(again.pooled, first.pooled.tolist())  # type: ignore[union-attr]
    close(local.local, [NONE, 2 / 3, NONE, 0.0])
    s.score([each(s, [1, 1], [0, 1])], pooled=True)
    s.score([each(s, [1, 1], [2, 3])], pooled=False)  # these are not asked for the pool's samples yet
    ones = Models(always(1, s.trainer.task.initial))
    close(s.score([each(s, [1] * 4)], pooled=True).pooled, s.score([ones], pooled=True).pooled)
    for change in (
        lambda: s.score([each(s, [0, 1, 2, 0])], pooled=True, full=True),
        lambda: s.score([each(s, [0, 1, 2, 1])], pooled=True, full=True),
        lambda: s.forget() or s.score([each(s, [0, 1, 2, 1])], pooled=True, full=True),
    ):
        before = len(asked)
        found = change()
        assert len(asked) > before
    close(found.local, [3 / 4, 2 / 3, NONE, 0.0])
    close(found.pooled, [3 / 8, 3 / 8, 2 / 8, 3 / 8])


@pytest.mark.parametrize(("n_train", "expected"), [(600, 100), (12_000, 200), (70_000, 1000)])
def test_the_subset_follows_the_size_of_the_training_data(n_train: int, expected: int) -> None:
    held = [[i % N_CLASSES for i in range(1500)]]
    s = scorer(data=clients(held, train=[[i % N_CLASSES for i in range(n_train)]]))
    assert len(s.subset) == expected


def test_models_are_asked_together_as_far_as_a_call_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution has 64 weights, which it applies at 2 positions; the head 128 inputs and 3 outputs.

    That are 2 (64 · 2 + 128 · 3) = 1024 operations an answer. Clients have 2 samples on average, all of them 8: 4
    models are 8192 operations on their own samples, 2 are 16384 on all of them. Where training stacks none, a model
    that is no chain of linear layers is asked by itself: it may be one that can't be stacked.
    """

    def conv(stack: int | None) -> Groups:
        data, training, device = clients(), Training(), torch.device("cpu")
        feeds = [Feed(p, data.mean, data.std, device, torch.float32) for p in (data.train, data.held)]
        body = nn.Sequential(nn.Unflatten(1, (1, 1, -1)), nn.Conv2d(1, 64, 1), nn.Flatten())
        made = network(lambda: body, 128)
        task = make_task(made, None, data, feeds[0], training, UniformParticipation(), 0)  # type: ignore[arg-type]
        trainer = make_trainer(task, feeds[0], training, stack, draws=False)
        return Scorer(trainer, data.held, feeds[1], Evaluation(), 0).groups

    assert scorer().groups == (16, 16) and scorer().stack == 16
    assert conv(None) == (1, 1)
    assert conv(100) == (16, 16)
    monkeypatch.setattr(grouping, "OWN", 8192)
    monkeypatch.setattr(grouping, "SHARED", 16384)
    assert conv(100) == (4, 2)


def test_layers_without_an_input_are_counted_once() -> None:
    """`weight_norm` calls its 2 x 3 direction and its 2 x 1 length without input: 2 (6 + 2); the head has 2 · 2 · 4."""

    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(input=x)  # type: ignore[no-any-return]

    assert grouping.operations(nn.Sequential(Attends(), nn.Linear(2, 4)), torch.zeros(1, 3)) == 2 * (6 + 2) + 16
