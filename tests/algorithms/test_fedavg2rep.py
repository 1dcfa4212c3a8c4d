"""On `product`: F_k = ½ (h a − y_k)², ∇_h = (h a − y) a, ∇_a = (h a − y) h; y = (4, 1, 2), n = (1, 3, 2), a = 2, h = 1.

J = 2 full-batch steps, η = ⅛, R_1 = 1 of T = 3 rounds; cohorts {0, 1}, {1, 2}, {0, 1}; all means are plain.
`both` is a step of a and h from the same values, `head` one of h alone; rows are (a, h).

Round 1   client 0: both (2.25, 1.5), both (2.3671875, 1.67578125)
          client 1: both (1.875, 0.75), both (1.8369140625, 0.65478515625)
          Θ ← (2.10205078125, 1.165283203125)
Round 2   client 1: head 1.1652832 − ⅛·1.4494846·2.1020508 = 0.7844220, both (2.0384249, 0.6139207)
          client 2: head 1.1652832 − ⅛·0.4494846·2.1020508 = 1.0471783, both (2.0757114, 0.9943060)
          averaged: Θ ← (2.0570681, 0.8041133)
          personal: Θ_body ← 2.0570681; heads H = 1.1652832, 0.6139207, 0.9943060 have the mean 0.9245033
Round 3   averaged, from Θ:              client 0: head 1.4073188, both (2.2514627, 1.6914640)
                                         client 1: head 0.6359182, both (2.0325752, 0.5566884)
                                         Θ ← (2.1420189, 1.1240762)
          personal, from own heads:      client 0: head 1.5774510, both (2.2059550, 1.7716063)       its first, from H
                                         client 1: head 0.5463263, both (2.0486116, 0.5144854)
                                         Θ_body ← 2.1272833; mean head (1.7716063 + 0.5144854 + 0.9943060)/3
"""

from typing import ClassVar

import pytest
import torch

from pfl_ops.algorithms.fedavg2rep import FedAvg2Rep
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, MethodSimulation, quadratic_play, ragged_task

COHORTS = [[0, 1], [1, 2], [0, 1]]
WARM_UP = [2.10205078125, 1.165283203125]
TRAINED = [[2.3671875, 1.67578125], [1.8369140625, 0.65478515625]], [[2.0384249, 0.6139207], [2.0757114, 0.9943060]]


def training(**how):
    counted = {"local_epochs": None, "local_steps": 2, "batch_size": None}
    return Training(**{"rounds": 3, "lr": 0.125, "precision": "float64", **counted, **how})


def close(found, expected):
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-7)


def test_averaged_heads_by_hand(product):
    first, second, third = MethodSimulation(product, FedAvg2Rep(warm_up=1), training()).run(COHORTS)
    for values, trained in zip((first, second), TRAINED, strict=True):
        close(values["L2"], trained)
    close(third["L2"], [[2.2514627, 1.6914640], [2.0325752, 0.5566884]])
    for values, model in zip(
        (first, second, third), (WARM_UP, [2.0570681, 0.8041133], [2.1420189, 1.1240762]), strict=True
    ):
        for name in ("L1", "G", "state/central"):
            close(values[name], model)


def test_personal_heads_by_hand(product):
    """The warm-up is scored as FedAvg, one model for all; then everyone has a body and a head of their own."""
    first, second, third = MethodSimulation(product, FedAvg2Rep(warm_up=1, head="personal"), training()).run(COHORTS)
    for values, trained in zip((first, second), TRAINED, strict=True):
        close(values["L2"], trained)
    close(first["L1"], WARM_UP)
    close(first["G"], WARM_UP)

    heads = [WARM_UP[1], 0.6139207, 0.9943060]
    close(second["L1"], [[2.0570681, h] for h in heads])
    close(second["G"], [2.0570681, 0.9245033])

    close(third["L2"], [[2.2059550, 1.7716063], [2.0486116, 0.5144854]])
    close(third["L1"], [[2.1272833, h] for h in (1.7716063, 0.5144854, 0.9943060)])
    close(third["G"], [2.1272833, (1.7716063 + 0.5144854 + 0.9943060) / 3])


def test_a_head_that_never_trained_is_the_warm_ups():
    """Client 4 stays away for good: its head is Θ's where the warm-up ended, not Θ⁰'s; the body is everybody's."""
    play = MethodSimulation(ragged_task(), FedAvg2Rep(warm_up=2, head="personal"), training(rounds=4, batch_size=3))
    rounds = play.run([[0, 2, 3], [0, 1], [2, 3], [1, 2]])
    head, body = play.task.layout.head, play.task.layout.body
    assert torch.equal(rounds[-1]["L1"][4, head], rounds[1]["G"][head])
    assert torch.equal(rounds[-1]["L1"][4, body], rounds[-1]["G"][body])
    assert not torch.equal(rounds[1]["G"][head], play.task.initial[head])


def test_a_quarter_of_the_rounds_warms_up_unless_told():
    """T = 9, so two rounds: after the third, a warm-up of one, two and three rounds are three models."""
    ran = {
        warm_up: MethodSimulation(ragged_task(), FedAvg2Rep(warm_up=warm_up), training(rounds=9)).run([None] * 3)[-1][
            "G"
        ]
        for warm_up in (None, 1, 2, 3)
    }
    assert torch.equal(ran[None], ran[2])
    assert not torch.equal(ran[None], ran[1]) and not torch.equal(ran[None], ran[3])


def test_the_warm_up_may_count_its_own_steps(product):
    """J_1 = 2 and J = 4: round 1 is the one by hand above; round 2 is J = 4's from there."""
    rounds = MethodSimulation(product, FedAvg2Rep(warm_up=1, warm_up_steps=2), training(local_steps=4)).run(COHORTS[:2])
    close(rounds[0]["L2"], TRAINED[0])
    fedrep = MethodSimulation(product, FedAvg2Rep(warm_up=0, warm_up_steps=2), training(local_steps=4))
    fedrep.state = {"central": torch.tensor(WARM_UP, dtype=torch.float64)}
    close(rounds[1]["L2"], fedrep.run(COHORTS[1:2])[0]["L2"].tolist())


def test_the_frozen_body_moves_in_the_last_step_alone(product):
    """Whatever the optimiser adds to a zero gradient; J = 1 has no head step."""
    for how in ({"weight_decay": 0.5}, {"optimiser": "adam"}, {"momentum": 0.9}):
        for steps in (1, 4):
            play = MethodSimulation(product, FedAvg2Rep(warm_up=0), training(local_steps=steps, **how))
            seen = play.round([0])["L2"][0]
            r = play.at([0])
            start = torch.tensor([2.0, 1], dtype=torch.float64)
            before = r.train(start, only=r.layout.head, steps=steps - 1)
            close(seen, r.train(before, steps=1)[0].tolist())
            assert before[0, 0] == 2


def test_traffic(product):
    """Whole models; with personal heads only the body, once the warm-up is over."""
    for head, sent in (("averaged", [2, 2, 2]), ("personal", [2, 1, 1])):
        play = MethodSimulation(product, FedAvg2Rep(warm_up=1, head=head), training())
        for expected in sent:
            r = play.at([0, 1])
            play.method.round(play.state, r)
            play.t += 1
            assert (r.traffic.up, r.traffic.down) == (expected, expected)


def test_a_warm_up_longer_than_the_run_is_refused(product):
    with pytest.raises(PflOpsError, match=r"algorithm\.warm_up=4 is more than the 3 rounds of training"):
        MethodSimulation(product, FedAvg2Rep(warm_up=4), training())


def test_it_counts_steps(product):
    from pfl_ops import Experiment

    assert Experiment.of("fedavg2rep").training.local_steps == 4
    with pytest.raises(PflOpsError, match=r"fedavg2rep needs training\.local_steps set"):
        Experiment.of("fedavg2rep", local_epochs=1)
    with pytest.raises(PflOpsError, match=r"fedavg2rep counts steps; set training\.local_steps"):
        MethodSimulation(product, FedAvg2Rep(), training(local_steps=None, local_epochs=1)).round()


def test_a_network_without_a_body_is_refused():
    with pytest.raises(PflOpsError, match="fedavg2rep shares the body of a network, and this one has no body"):
        quadratic_play(FedAvg2Rep(), [0, 6])


class TestContract(AlgorithmContract):
    algorithm = FedAvg2Rep(warm_up=1, head="personal")
    pairs: ClassVar = {"head": (FedAvg2Rep(warm_up=1), FedAvg2Rep(warm_up=1, head="personal"))}
    trainings = (
        training(batch_size=3, lr=0.2, lr_decay=0.9),
        training(batch_size=4, lr=0.1, local_steps=5, momentum=0.9, weight_decay=0.05),
        training(batch_size=4, lr=0.05, local_steps=3, optimiser="adam", weight_decay=0.05),
    )


class TestAveraged(TestContract):
    algorithm = FedAvg2Rep(warm_up=1)
