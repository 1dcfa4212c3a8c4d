import pytest
import torch

from pfl_ops.algorithms.fedbabu import FedBABU
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, MethodSimulation, quadratic_play, ragged_task

TRAINING = Training(rounds=2, batch_size=None, lr=0.125, precision="float64")


def test_two_rounds_by_hand(product):
    """F_k = ½ (h a − y_k)², E = 2 full-batch steps of a: a ← a − ⅛ (h a − y) h with h = 1 for good.

    So a − y shrinks by ⅞ in each step (were the head trained too, the second would differ). y = (4, 1, 2),
    n = (1, 3, 2); a = 2, h = 1 at the start. The mean is plain: by n_k round 1 would give 1.94140625.

    Round 1   clients 0, 1: a = 4 − 2·(⅞)², 1 + (⅞)² = 2.46875, 1.765625       Θ ← (2.1171875, 1)
              fine-tuning from there, one step of both, residuals −1.8828125, 1.1171875:
              a = 2.1171875 + ⅛·1.8828125, 2.1171875 − ⅛·1.1171875
              h = 1 + ⅛·1.8828125·2.1171875, 1 − ⅛·1.1171875·2.1171875
    Round 2   clients 0, 2 from a = 2.1171875: a = 4 − 1.8828125·(⅞)², 2 + 0.1171875·(⅞)²
    """
    play = MethodSimulation(product, FedBABU(fine_epochs=1), TRAINING.model_copy(update={"local_epochs": 2}))
    first, last = play.run([[0, 1], [0, 2]])
    assert first["G"].tolist() == first["L1"].tolist() == [2.1171875, 1]
    assert first["L2"].tolist() == [
        pytest.approx([2.1171875 + 1.8828125 / 8, 1 + 1.8828125 * 2.1171875 / 8]),
        pytest.approx([2.1171875 - 1.1171875 / 8, 1 - 1.1171875 * 2.1171875 / 8]),
    ]
    body = (4 - 1.8828125 * 49 / 64 + 2 + 0.1171875 * 49 / 64) / 2
    assert last["G"].tolist() == last["L1"].tolist() == play.state["central"].tolist() == pytest.approx([body, 1])


def test_fine_tuning_of_one_part(product):
    """E = 1, so Θ ← ((2.25 + 1.875)/2, 1) = (2.0625, 1), from where clients 0 and 1 have residuals −1.9375 and 1.0625.

    One epoch of the body: a = 2.0625 + ⅛·1.9375, 2.0625 − ⅛·1.0625. Two of the head: its residual shrinks by
    1 − ⅛ a² in each.
    """
    (body,), (head,) = (
        MethodSimulation(product, FedBABU(fine_part=part, fine_epochs=epochs), TRAINING).run([[0, 1]])
        for part, epochs in (("body", 1), ("head", 2))
    )
    assert body["L2"].tolist() == [[2.3046875, 1], [1.9296875, 1]]
    left = (1 - 2.0625**2 / 8) ** 2
    assert head["L2"].tolist() == [
        pytest.approx([2.0625, (4 - 1.9375 * left) / 2.0625]),
        pytest.approx([2.0625, (1 + 1.0625 * left) / 2.0625]),
    ]


def test_any_client_may_fine_tune(product):
    """Those of the cohort get what they get among all, whoever else is asked, and Θ stays what it is."""
    play = MethodSimulation(product, FedBABU(), TRAINING)
    r = play.at([0, 1])
    update, stages = play.method.round(play.state, r)
    central, calls = update["central"].clone(), r.calls()
    everyone = stages["L2"](play.everyone)
    assert everyone.params.shape == (3, 2) and everyone.clients.tolist() == [0, 1, 2]
    r.rewind(calls)
    assert torch.equal(stages["L2"](torch.tensor([1])).params, everyone.params[1:2])
    assert torch.equal(update["central"], central)


@pytest.mark.parametrize(
    "how",
    [{"optimiser": "adam", "weight_decay": 0.5}, {"momentum": 0.9, "weight_decay": 0.5}, {"weight_decay": 0.1}],
    ids=["adam", "momentum", "decay"],
)
def test_the_head_never_moves_in_federation(how):
    """Bit for bit Θ⁰'s, though decay would shrink it and a mean of five equal numbers need not be that number."""
    training = Training(rounds=3, local_epochs=2, batch_size=3, lr=0.1, precision="float64", **how)
    for stack in (None, 5):
        play = MethodSimulation(ragged_task(), FedBABU(), training, stack=stack)
        start, head, body = play.task.initial.clone(), play.task.layout.head, play.task.layout.body
        for values in play.run([None, [0, 1, 4], None]):
            assert torch.equal(values["G"][head], start[head])
        assert bool((values["G"][body] != start[body]).all())
        assert bool((values["L2"][:, head] != start[head]).all())  # fine-tuning moves it, in a copy


def test_only_what_moves_is_sent(product):
    for federated, sent in (("body", 1), ("whole", 2)):
        play = MethodSimulation(product, FedBABU(federated=federated), TRAINING)
        r = play.at([0, 1])
        play.method.round(play.state, r)
        assert (r.traffic.up, r.traffic.down) == (sent, sent)


def test_a_network_without_a_body_is_refused():
    with pytest.raises(PflOpsError, match="fedbabu shares the body of a network, and this one has no body"):
        quadratic_play(FedBABU(), [0, 6])


class TestContract(AlgorithmContract):
    algorithm = FedBABU(fine_epochs=2)
