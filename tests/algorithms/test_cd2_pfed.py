import numpy as np
import pytest
import torch
from torch import nn

from pfl_ops.algorithms.cd2_pfed import CD2PFed
from pfl_ops.algorithms.channels import Channels
from pfl_ops.data.clients import Pool
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, Federation, MethodSimulation, quadratic_play, ragged_task

SAMPLES = (  # (x, y) of each client
    [(1.0, 0), (2.0, 1), (-1.0, 1)],
    [(3.0, 1)],
    [(0.5, 1), (2.0, 0)],
)
START = (np.array([1.0, -0.5]), np.array([[0.5, 0.2], [-0.3, 0.4]]), np.array([0.1, -0.2]))  # a, H, b
LR, BETA = 0.25, 0.6


def federation(clients=SAMPLES, body=None, width=2):
    """Two channels f = a x, scores H f + b."""
    network = nn.Module()
    network.body = body or nn.Sequential(nn.Linear(1, width, bias=False))
    network.head = nn.Linear(width, 2)
    network.double()
    if body is None and width == 2:
        with torch.no_grad():
            for parameter, value in zip(network.parameters(), START, strict=True):
                parameter.copy_(torch.from_numpy(value).view_as(parameter))
    x = torch.tensor([[x] for own in clients for x, _ in own], dtype=torch.float64)
    y = torch.tensor([y for own in clients for _, y in own])
    index = list(torch.arange(len(x)).split([len(own) for own in clients]))
    return Federation(network, Pool(x, y, index), 2)


def training(**how):
    return Training(**{"rounds": 2, "batch_size": None, "lr": LR, "precision": "float64", **how})


def softmax(s):
    return np.exp(s) / np.exp(s).sum()


def divergence_slope(q, r):
    """Of ½ (KL(q‖r) + KL(r‖q)) with respect to the scores of q: ½ (q (ℓ − Σ q ℓ) + q − r), ℓ = log(q / r)."""
    log = np.log(q / r)
    return (q * (log - q @ log) + q - r) / 2


def step(model, own, distil):
    """One full-batch step. The first channel is the shared one, the second private; each answers with b as well."""
    a, h, b = model
    total = [np.zeros(2), np.zeros((2, 2)), np.zeros(2)]
    for x, y in own:
        f = a * x
        full = softmax(h @ f + b) - np.eye(2)[y]
        q, r = (softmax(h[:, d] * f[d] + b) for d in (0, 1))
        alone = (divergence_slope(q, r), divergence_slope(r, q)) if distil else (0 * full, 0 * full)
        for d in (0, 1):
            total[0][d] += (full + alone[d]) @ h[:, d] * x
            total[1][:, d] += (full + alone[d]) * f[d]
        total[2] += full + alone[0] + alone[1]
    return tuple(value - LR * g / len(own) for value, g in zip(model, total, strict=True))


def flat(model):
    return np.concatenate([value.flatten() for value in model])


def mix(models, shares):
    return tuple(
        sum(p * value for p, value in zip(shares, values, strict=True)) for values in zip(*models, strict=True)
    )


def with_private_of(model, other):
    """The second channel of `other`: its row of the body and the head's column that reads it."""
    a, h, b = (value.copy() for value in model)
    a[1], h[:, 1] = other[0][1], other[1][:, 1]
    return a, h, b


def test_four_rounds_by_hand():
    """T = 4, p = ¾, two channels: ⌊2 p_t⌋ = 0, 0, 1, 1. E = 2 epochs of one step each, β = 0.6: β_0 = 0.3, β_1 = 0.6.

    Rounds 1, 2   all is shared and there is no KL.
    Round 3       the second channel is private, and starts from its shared value.
    Round 4       it starts from where its client left it; client 1, who was not there in round 3, has the shared value.
    """
    play = MethodSimulation(federation(), CD2PFed(share=0.75, beta=BETA), training(local_epochs=2, rounds=4))

    def trained(model, own, distil):
        once = mix([step(model, own, distil), model], [BETA / 2, 1 - BETA / 2])
        return mix([step(once, own, distil), once], [BETA, 1 - BETA])

    central, held = START, [START] * 3
    for t, cohort in enumerate(([0, 1], [0, 2], [0, 2], [0, 1])):
        w = {k: trained(held[k], SAMPLES[k], distil=t >= 2) for k in cohort}
        n = np.array([len(SAMPLES[k]) for k in cohort])
        mean = mix(w.values(), n / n.sum())
        central = mean if t < 2 else with_private_of(mean, central)
        held = [central if t < 2 else with_private_of(central, w.get(k, held[k])) for k in range(3)]

        found = play.round(cohort)
        assert found["L2"].tolist() == [pytest.approx(flat(model)) for model in w.values()], f"round {t + 1}"
        assert found["L1"].tolist() == [pytest.approx(flat(model)) for model in held]
        assert found["G"].tolist() == pytest.approx(flat(mix(held, [1 / 3] * 3)))


@pytest.mark.parametrize(("share", "distils"), [(0.3, False), (0.5, True), (1.0, False)])
def test_both_groups_learn_from_one_another_only_where_every_layer_has_both(share, distils):
    """10 and 2 channels: 3 and 0 of them private, 5 and 1, 10 and 2."""
    play = MethodSimulation(
        federation(body=nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 2))),
        CD2PFed(share=share, temporal=False), training(),
    )  # fmt: skip
    play.t = 1
    start = play.task.initial.expand(2, -1)
    found = play.method.train(play.at([0, 1]), start)
    assert torch.equal(found, play.at([0, 1]).train(start)) == (not distils)


def columns(method, t, rounds=5, **how):
    """Private columns by name, of a network with 10 channels, then 4, then features of 2 places each."""
    body = nn.Sequential(
        nn.Unflatten(1, (1, 1, 4)), nn.Conv2d(1, 10, (1, 2)), nn.ReLU(), nn.Conv2d(10, 4, (1, 2)), nn.Flatten()
    )
    network = nn.Module()
    network.body, network.head = body, nn.Linear(8, 3)
    pool = Pool(torch.zeros(1, 4, dtype=torch.float64), torch.zeros(1, dtype=torch.int64), [torch.tensor([0])])
    play = MethodSimulation(Federation(network.double(), pool, 3), method, training(rounds=rounds))
    return play.task.layout.views(method.private(play.task, t))


def test_which_columns_are_private():
    """p_t = 0.6 t/4: ⌊10 p_2⌋ = 3 of 10 channels, ⌊4 p_2⌋ = 1 of 4, and the head's last two columns."""
    found = columns(CD2PFed(share=0.6), 2)
    assert found["body.1.weight"].flatten(1).all(1).tolist() == [False] * 7 + [True] * 3
    assert found["body.1.weight"].flatten(1).any(1).tolist() == [False] * 7 + [True] * 3
    assert found["body.1.bias"].tolist() == [False] * 7 + [True] * 3
    assert found["body.3.weight"].flatten(1).sum(1).tolist() == [0, 0, 0, 20]
    assert found["head.weight"].tolist() == [[False] * 6 + [True] * 2] * 3
    assert found["head.bias"].tolist() == [False] * 3


def test_private_shares_grow_to_the_whole_share():
    """⌊10 · 0.7 t/4⌋ and ⌊4 · 0.7 t/4⌋; in floating point 0.29 · 100 is 28.999999999999996, which is 29."""
    found = [columns(CD2PFed(share=0.7), t) for t in range(5)]
    assert [int(f["body.1.bias"].sum()) for f in found] == [0, 1, 3, 5, 7]
    assert [int(f["body.3.bias"].sum()) for f in found] == [0, 0, 1, 2, 2]
    task = MethodSimulation(federation(width=100), CD2PFed(), training(rounds=2)).task
    assert int(Channels(share=0.29).private(task, 1)[:100].sum()) == 29
    alone = MethodSimulation(federation(), CD2PFed(), training(rounds=1)).task
    assert not Channels(share=1.0).private(alone, 0).any(), "a single round is the first"


def test_private_channels_never_reach_the_shared_model_or_another_client():
    """Zero where shared, at rest in Θ, untouched for who is absent; and L1 holds them as they were trained."""
    play = MethodSimulation(ragged_task(hidden=4), CD2PFed(share=0.5, temporal=False), training(rounds=3, lr=0.5))
    play.run([None, None])
    before = play.values()["state/own"]
    private = play.method.private(play.task, 2)
    assert not before[:, ~private].any(), "what is shared is nobody's own"
    start = play.state["central"].clone()
    last = play.round([0, 2])
    assert torch.equal(last["state/central"][private], start[private]), "a private channel rests in the shared model"
    assert (last["state/central"][~private] != start[~private]).all()
    assert torch.equal(last["state/own"][[1, 3, 4]], before[[1, 3, 4]])
    torch.testing.assert_close(last["L1"][0][private], last["L2"][0][private])


def test_an_unfinished_epoch_is_not_averaged():
    """n = 3, B = 1, J = 4: one epoch of three steps and one step more, so E = 4/3 and β_0 = β · ¾."""
    play = MethodSimulation(
        federation([SAMPLES[0]]), CD2PFed(beta=0.5, share=0), training(local_epochs=None, local_steps=4, batch_size=1)
    )
    r = play.at([0])
    start = play.task.initial[None]
    got = play.method.train(r, start)
    r = play.at([0])
    seen = {}
    r.walk({"w": start}, lambda m, b: seen.setdefault(b.j, (b.x[0], b.y[0])) and {})
    w, before = start, start
    for j in range(4):
        x, y = seen[j]
        leaf = w.clone().requires_grad_()
        loss = nn.functional.cross_entropy(play.task.net(leaf[0], x), y)
        w = w - LR * torch.autograd.grad(loss, leaf)[0]
        if j == 2:
            w = before + 0.375 * (w - before)
    torch.testing.assert_close(got, w)


class Residual(nn.Linear):
    def forward(self, x):
        return x + super().forward(x)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([nn.Linear(1, 2), Residual(2, 2)], r"splits the channels of linear layers .* body\.1 is Residual"),
        ([nn.Linear(1, 2), nn.Sigmoid()], r"silences channels by zeros, which body\.1 \(Sigmoid\)"),
        ([nn.Linear(1, 2), nn.LayerNorm(2)], r"splits the channels of linear layers .* body\.1 is LayerNorm"),
        ([nn.Linear(1, 4), nn.Unflatten(1, (2, 2)), nn.MaxPool1d(2), nn.Flatten()], "of the 4 last channels"),
    ],
)
def test_networks_that_have_no_such_channels_are_refused(body, message):
    with pytest.raises(PflOpsError, match=message):
        MethodSimulation(federation(body=nn.Sequential(*body)), CD2PFed(), training())


def test_a_network_without_a_body_is_refused():
    with pytest.raises(PflOpsError, match="cd2_pfed shares the body of a network, and this one has no body"):
        quadratic_play(CD2PFed(), [0, 6])


def test_only_shared_channels_are_sent():
    """P = 2 + 4 + 2; in round 2 one channel, 1 + 2 of them, is private: 8 down, as was shared before, and 5 up."""
    play = MethodSimulation(federation(), CD2PFed(share=0.5), training(rounds=2))
    sent = []
    for t in range(2):
        play.t = t
        r = play.at([0, 1])
        play.method.round(play.state, r)
        sent.append((r.traffic.up, r.traffic.down))
    assert sent == [(8, 8), (5, 8)]


class TestContract(AlgorithmContract):
    algorithm = CD2PFed()
    federation = ragged_task(hidden=4)
