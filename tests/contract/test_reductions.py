"""Methods that become another one at the edge of a hyper-parameter: this sees an error that loop and vmap share."""

import pytest
import torch

from pfl_ops.algorithms.apfl import APFL
from pfl_ops.algorithms.cd2_pfed import CD2PFed
from pfl_ops.algorithms.centralized import Centralized
from pfl_ops.algorithms.channels import Channels
from pfl_ops.algorithms.ditto import Ditto
from pfl_ops.algorithms.drdm import DRDM
from pfl_ops.algorithms.drfa import DRFA
from pfl_ops.algorithms.fedala import FedALA
from pfl_ops.algorithms.fedamp import FedAMP
from pfl_ops.algorithms.fedas import FedAS
from pfl_ops.algorithms.fedavg import FedAvg
from pfl_ops.algorithms.fedavg2rep import FedAvg2Rep
from pfl_ops.algorithms.fedavg_ft import FedAvgFT
from pfl_ops.algorithms.fedbabu import FedBABU
from pfl_ops.algorithms.feddyn import FedDyn
from pfl_ops.algorithms.fedfomo import FedFomo
from pfl_ops.algorithms.fedmgda_plus import FedMGDAPlus
from pfl_ops.algorithms.fedpac import FedPAC
from pfl_ops.algorithms.fedper import FedPer
from pfl_ops.algorithms.fedpg import FedPG, SFedPG
from pfl_ops.algorithms.fedproto import FedProto
from pfl_ops.algorithms.fedprox import FedProx
from pfl_ops.algorithms.fedprox_ft import FedProxFT
from pfl_ops.algorithms.fedrep import FedRep
from pfl_ops.algorithms.fedrod import FedROD
from pfl_ops.algorithms.fedsgd import FedSGD
from pfl_ops.algorithms.fliu import FLIU
from pfl_ops.algorithms.lg_fedavg import LGFedAvg
from pfl_ops.algorithms.local import Local
from pfl_ops.algorithms.pfedme import PFedMe
from pfl_ops.algorithms.scaff_pd import ScaffPD
from pfl_ops.algorithms.scaffold import Scaffold
from pfl_ops.algorithms.schedules import Fixed
from pfl_ops.algorithms.splitgp import SplitGP
from pfl_ops.federation.settings import Training
from pfl_ops.testing import MethodSimulation, quadratic_play, ragged_task

FEDERATION = ragged_task()
TRAININGS = {
    "sgd": Training(rounds=3, local_epochs=2, batch_size=3, lr=0.2, lr_decay=0.9, precision="float64"),
    "momentum": Training(rounds=3, batch_size=3, lr=0.1, momentum=0.9, weight_decay=0.1, precision="float64"),
    "adam": Training(rounds=3, batch_size=3, optimiser="adam", lr=0.05, weight_decay=0.1, precision="float64"),
}
PARTIAL = [[0, 2, 3], None, [1, 4]]
FULL = [None] * 3


@pytest.fixture(params=TRAININGS)
def training(request):
    return TRAININGS[request.param]


def played(method, training, cohorts, *, weighting="samples", stack=5, federation=FEDERATION):
    return MethodSimulation(federation, method, training, weighting=weighting, stack=stack).run(cohorts)


def same(one, other, *names, within=0.0):
    """The same numbers in every round; `names`: "G", or "L1=L2" where they are called differently."""
    for a, b in zip(one, other, strict=True):
        for name in names:
            left, _, right = name.partition("=")
            x, y = a[left], b[right or left]
            torch.testing.assert_close(x, y.expand_as(x), rtol=0, atol=within, msg=lambda m, name=name: f"{name}: {m}")


def test_fedprox_without_pull_is_fedavg(training):
    same(played(FedProx(mu=0), training, PARTIAL), played(FedAvg(), training, PARTIAL), "G", "L1", "L2")


def test_dittos_central_model_is_fedavgs(training):
    same(played(Ditto(lam=2), training, PARTIAL), played(FedAvg(), training, PARTIAL), "G")


def test_fliu_that_keeps_nothing_is_fedavg(training):
    """γ = 0 and everyone takes part: each starts from Θ, the plain mean."""
    mixed = played(FLIU(gamma=Fixed(value=0)), training, FULL)
    same(mixed, played(FedAvg(), training, FULL, weighting="uniform"), "G", "L2", "L1")


def test_fliu_that_keeps_all_is_local(training):
    same(played(FLIU(gamma=Fixed(value=1)), training, PARTIAL), played(Local(), training, PARTIAL), "L1", "L2")


def test_apfls_central_model_is_fedavgs(training):
    """Whatever the personal models do; to rounding, for one steps through `walk` and one through `train`."""
    two = played(APFL(), training, PARTIAL), played(FedAvg(), training, PARTIAL, weighting="uniform")
    same(*two, "G", within=1e-12)


def test_apfl_without_personal_share_is_fedavg(training):
    mixed = played(APFL(alpha=0, adaptive=False), training, PARTIAL)
    same(mixed, played(FedAvg(), training, PARTIAL, weighting="uniform"), "L1", "L2", within=1e-12)


def test_apfl_that_is_all_personal_is_local(training):
    mixed = played(APFL(alpha=1, adaptive=False), training, PARTIAL)
    same(mixed, played(Local(), training, PARTIAL), "L1", "L2", within=1e-12)


def test_scaffold_with_one_client_is_sgd():
    """c_k = c, and the correction is nothing."""
    alone = ragged_task((7,))
    two = (played(m, TRAININGS["sgd"], FULL, federation=alone) for m in (Scaffold(), FedAvg()))
    same(*two, "G", "L1", "L2", within=1e-12)


def test_scaffolds_first_round_is_fedavgs():
    """c = c_k = 0."""
    first = played(Scaffold(), TRAININGS["sgd"], PARTIAL[:1])
    same(first, played(FedAvg(), TRAININGS["sgd"], PARTIAL[:1], weighting="uniform"), "G", "L1", "L2", within=1e-12)


def test_fedrep_in_one_step_of_everything_is_fedavg_in_its_first_round():
    """J = 1, all samples: the body is averaged as FedAvg's, and L2 is the same."""
    training = Training(rounds=1, local_epochs=None, local_steps=1, batch_size=None, lr=0.3, precision="float64")
    personal, shared = (played(m, training, [None]) for m in (FedRep(schedule="steps"), FedAvg()))
    same(personal, shared, "L2", within=1e-12)
    body = MethodSimulation(FEDERATION, FedAvg(), training).task.layout.body
    torch.testing.assert_close(personal[0]["G"][body], shared[0]["G"][body], rtol=0, atol=1e-12)


def test_fedfomo_alone_is_local_where_training_helps():
    """M = 1: a client judges its own step only, and on a quadratic a small step always helps."""
    mixed, alone = (
        quadratic_play(m, [0, 6, 3], [4, 3, 2], start=2, cohorts=[[0, 1], [1, 2]])[1]
        for m in (FedFomo(candidates=1), Local())
    )
    same(mixed, alone, "L1", "L2", within=1e-12)


def test_centralized_is_local_training_where_there_is_one_client(training):
    """In the first round, from which it carries its moments on; always, where there are none."""
    alone = ragged_task((7,))
    rounds = FULL if training is TRAININGS["sgd"] else FULL[:1]
    everything, own = (
        played(m, training, rounds, federation=alone) for m in (Centralized(schedule="constant"), Local())
    )
    same(everything, own, "G", within=1e-12)


def test_fedsgd_is_fedavg_in_one_step_of_all_samples():
    """n_k differ, so do the batches; epochs and batch size have no say in it."""
    whole = Training(rounds=3, batch_size=None, lr=0.2, lr_decay=0.9, precision="float64")
    two = played(FedSGD(), TRAININGS["sgd"], PARTIAL), played(FedAvg(), whole, PARTIAL)
    same(*two, "G", "L1", "L2", within=1e-12)


def test_fine_tuning_never_moves_the_federation(training):
    same(played(FedAvgFT(fine_epochs=3), training, PARTIAL), played(FedAvg(), training, PARTIAL), "G", "L1")
    tuned, plain = (played(m, training, PARTIAL) for m in (FedProxFT(mu=2), FedProx(mu=2)))
    same(tuned, plain, "G", "L1")


def test_fedprox_ft_without_pull_is_fedavg_ft(training):
    same(played(FedProxFT(mu=0), training, PARTIAL), played(FedAvgFT(), training, PARTIAL), "G", "L1", "L2")


def test_feddyns_first_round_is_fedprox_twice_as_far():
    """g = h = 0: the clients train as FedProx's, and with everyone there −h/α is the mean step once more."""
    two = (played(m, TRAININGS["sgd"], FULL[:1], weighting="uniform") for m in (FedDyn(alpha=0.3), FedProx(mu=0.3)))
    (first,), (plain,) = two
    same([first], [plain], "L2", within=1e-12)
    start = MethodSimulation(FEDERATION, FedAvg(), TRAININGS["sgd"]).task.initial
    torch.testing.assert_close(first["G"] - start, 2 * (plain["G"] - start), rtol=0, atol=1e-12)


def test_fedper_and_lg_fedavg_begin_as_fedavg(training):
    """The first round starts everyone from Θ⁰; the part that is shared is averaged as FedAvg's."""
    (shared,) = played(FedAvg(), training, PARTIAL[:1])
    layout = MethodSimulation(FEDERATION, FedAvg(), training).task.layout
    for method, name, part in ((FedPer(), "body", layout.body), (LGFedAvg(), "head", layout.head)):
        (personal,) = played(method, training, PARTIAL[:1])
        same([personal], [shared], "L2")
        torch.testing.assert_close(personal[f"state/{name}"], shared["G"][part], rtol=0, atol=1e-12)


def test_fedbabu_with_a_trained_head_is_fedavg(training):
    trained = played(FedBABU(federated="whole"), training, PARTIAL)
    same(trained, played(FedAvg(), training, PARTIAL, weighting="uniform"), "G", "L1", within=1e-12)
    tuned = played(FedAvgFT(fine_epochs=5), training, PARTIAL, weighting="uniform")
    same(trained, tuned, "L2", within=1e-12)


def test_fedproto_without_pull_is_local(training):
    same(played(FedProto(lam=0), training, PARTIAL), played(Local(), training, PARTIAL), "L1", "L2", within=1e-10)


def test_fedrods_generic_model_is_fedavgs_where_classes_are_balanced(training):
    """Each client has as many samples of one class as of another; sizes differ."""
    balanced = ragged_task((6, 3, 9, 3, 6))
    for own in balanced.pool.index:
        balanced.pool.y[own] = torch.arange(len(own)) % 3
    two = (played(m, training, PARTIAL, federation=balanced) for m in (FedROD(), FedAvg()))
    same(*two, "G", "L2", within=1e-10)


def test_fedala_that_never_learns_is_fedavg(training):
    """W stays 1: everyone starts from Θ, to the bit."""
    same(played(FedALA(weight_lr=0), training, PARTIAL), played(FedAvg(), training, PARTIAL), "G", "L1", "L2")


def test_fedpg_along_the_mean_is_fedavg():
    """M1, d = −mean g: Θ − η mean (Θ − θ_k)/η = mean θ_k; and with a drift of 1 v_k is what client k trained alone."""
    averaged = played(FedAvg(), TRAININGS["sgd"], PARTIAL, weighting="uniform")
    along = played(FedPG(direction="mean", gamma=1), TRAININGS["sgd"], PARTIAL)
    same(along, averaged, "G", "L2", within=1e-12)
    for values, cohort in zip(along, PARTIAL, strict=True):
        torch.testing.assert_close(values["L1"][cohort or slice(None)], values["L2"], rtol=0, atol=1e-12)


def test_fedpg_along_the_mean_of_full_gradients_is_fedsgd():
    two = (
        played(m, TRAININGS["sgd"], PARTIAL, weighting="uniform")
        for m in (FedPG(direction="mean", gradient="full"), FedSGD())
    )
    same(*two, "G", within=1e-12)


def test_fedpg_with_one_client_is_sgd():
    """Its own gradient is all there is: d = −g, γ = 1."""
    alone = ragged_task((7,))
    two = (played(m, TRAININGS["sgd"], FULL, federation=alone) for m in (FedPG(), FedAvg()))
    same(*two, "G", "L1", "L2", within=1e-12)


def test_s_fedpg_without_a_range_is_fedpg():
    """s = 0: η is the first step tried, and the only one wherever σ > ½."""
    same(*(played(m, TRAININGS["sgd"], PARTIAL) for m in (SFedPG(halvings=0), FedPG())), "G", "L1", "L2")


def test_fedpac_without_pull_and_combination_is_fedrep_with_one_epoch_of_the_head():
    """And two of the body, at one rate: both draw the same batches."""
    training = TRAININGS["sgd"]
    one = played(FedPAC(lam=0, combine=False, head_lr=0.2), training.model_copy(update={"lr_decay": 1.0}), PARTIAL)
    other = played(FedRep(head_epochs=1, body_epochs=2), training.model_copy(update={"lr_decay": 1.0}), PARTIAL)
    same(one, other, "L1", "L2", "G", within=1e-12)


STEPS = Training(rounds=3, local_epochs=None, local_steps=3, batch_size=3, lr=0.1, momentum=0.9, precision="float64")


@pytest.mark.parametrize("cohorts", [PARTIAL, [[0, 2, 2], [1, 1, 4], None]], ids=["partial", "drawn twice"])
def test_drfas_central_model_is_fedavgs(cohorts):
    """Given the cohorts that λ draws, each a plain mean over draws."""
    two = played(DRFA(gamma=1), STEPS, cohorts), played(FedAvg(), STEPS, cohorts, weighting="uniform")
    same(*two, "G", "L1", "L2", within=1e-12)


def test_drdms_central_model_is_feddyns():
    """With FedDyn's server term, whatever λ does; for cohorts in which nobody is drawn twice."""
    two = played(DRDM(h="feddyn", alpha=0.3, gamma=1), STEPS, PARTIAL), played(FedDyn(alpha=0.3), STEPS, PARTIAL)
    same(*two, "G", "L1", "L2", within=1e-12)


def test_scaff_pd_alone_is_sgd():
    """c = g_k: the correction is nothing."""
    alone = ragged_task((7,))
    two = (played(m, STEPS, FULL, federation=alone) for m in (ScaffPD(), FedAvg()))
    same(*two, "G", "L1", "L2", within=1e-12)


def test_fedmgda_plus_trains_what_fedavg_trains_in_its_first_round(training):
    same(*(played(m, training, PARTIAL[:1]) for m in (FedMGDAPlus(), FedAvg())), "L2")


STEPS = Training(rounds=3, local_epochs=None, local_steps=3, batch_size=3, lr=0.2, lr_decay=0.9, precision="float64")


@pytest.mark.parametrize("head", ["averaged", "personal"])
def test_fedavg2rep_that_only_warms_up_is_fedavg(head):
    """R_2 = 0."""
    warm = played(FedAvg2Rep(warm_up=3, head=head), STEPS, PARTIAL)
    same(warm, played(FedAvg(), STEPS, PARTIAL, weighting="uniform"), "G", "L1", "L2", within=1e-12)


def test_fedavg2rep_without_a_warm_up_is_fedrep_in_steps():
    """R_1 = 0 and personal heads; in the first round, in which all heads are Θ⁰'s, averaged ones train the same."""
    fedrep = played(FedRep(schedule="steps"), STEPS, PARTIAL, weighting="uniform")
    same(played(FedAvg2Rep(warm_up=0, head="personal"), STEPS, PARTIAL), fedrep, "G", "L1", "L2", within=1e-12)
    same(played(FedAvg2Rep(warm_up=0), STEPS, PARTIAL)[:1], fedrep[:1], "L2", within=1e-12)


def test_cd2_pfed_that_shares_all_and_averages_nothing_is_fedavg(training):
    shared = played(CD2PFed(share=0, temporal=False), training, PARTIAL)
    same(shared, played(FedAvg(), training, PARTIAL), "G", "L1", "L2")


def test_fedas_without_both_parts_is_fedper(training):
    bare = played(FedAS(align="off", synchronize=False), training, PARTIAL)
    same(bare, played(FedPer(), training, PARTIAL, weighting="uniform"), "G", "L1", "L2", within=1e-12)


def test_fedas_with_channels_and_without_both_parts_is_cd2_pfed(training):
    """Channels turn private in the second round and in the third."""
    wide = ragged_task(hidden=4)
    bare = FedAS(align="off", synchronize=False, split="channels", channels=Channels(share=1.0, beta=0.6))
    split = CD2PFed(share=1.0, beta=0.6)
    two = (played(m, training, PARTIAL, weighting="uniform", federation=wide) for m in (bare, split))
    same(*two, "G", "L1", "L2", within=1e-12)


def test_fedamp_without_pull_is_local(training):
    """Training starts from a client's own model: the mixtures are only shown."""
    same(played(FedAMP(lam=0), training, PARTIAL), played(Local(), training, PARTIAL), "L2")


def test_pfedme_without_pull_is_fedavgs_training():
    """λ = 0, K = 1, η_p = η: φ_k is what FedAvg's clients train from the same Θ; w_k, and so Θ, stays."""
    training = TRAININGS["sgd"]
    (first,) = played(PFedMe(lam=0, inner_steps=1, inner_lr=training.lr), training, PARTIAL[:1])
    (plain,) = played(FedAvg(), training, PARTIAL[:1])
    same([first], [plain], "L2", within=1e-12)
    start = MethodSimulation(FEDERATION, FedAvg(), training).task.initial
    torch.testing.assert_close(first["G"], start, rtol=0, atol=1e-15)


def test_splitgp_whose_clients_keep_nothing_and_exit_nowhere_is_fedavg(training):
    """γ = λ = 0 and everyone takes part; beside FedAvg's columns there are those of the exit, which nothing moves."""
    split, plain = played(SplitGP(gamma=0, lam=0), training, FULL), played(FedAvg(), training, FULL)
    columns = len(plain[0]["G"])
    own = [{name: values[name][..., :columns] for name in ("G", "L1", "L2")} for values in split]
    same(own, plain, "G", "L1", "L2", within=1e-12)
