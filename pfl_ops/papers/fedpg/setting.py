"""FedPG (third seed): Tables 1 and 2, Figures 4 and 5.

The setting, as far as it is stated: 100 clients on Fashion-MNIST (an MLP), CIFAR-10 (a CNN) and CIFAR-100
(NF-ResNet-18); SGD with 5 local epochs, a learning rate of 0.01, 0.05 or 0.1 that decays by 0.999 a round, whichever
is best for a method; 5 runs.

    Table 1, Figure 4   Dir(0.1), 10 % of the clients online, B 50, 2000 rounds
    Table 2             Pat-2, 10 % online; B and the rounds are not said
    Figure 5            Pat-2, all clients online, B 50; the rounds are not said

What is scored is a *personal model* of each client, P, on equally large test sets: L-acc on its own, G-acc on those of
all clients, S-acc(c) on its own and those of c % of the others; and Θ on those of all clients, GM. In measures the
stage P stands for v_k of FedPG (L1), for what a client holds of the methods that personalise (L1), and for a client's
model just trained, before it is averaged, of those with a global model only (L2: Section 4, after Chen and Chao).
"""

from pfl_ops.metrics import SWEEP
from pfl_ops.papers.claims import Claim
from pfl_ops.papers.exhibits import Curves, Grid, Over
from pfl_ops.papers.published import load
from pfl_ops.papers.sources import fedpg as sources
from pfl_ops.papers.suite import Axis, Changes, Level, Measure, Scale, Suite

LOCAL, SOME, ALL = "test/P/local/mean", "test/P/synthetic_50/mean", "test/P/synthetic_100/mean"
GLOBAL = "test/G/local/mean"  # on test sets of one size, the same as on all of them joined

MEASURES = (
    Measure(LOCAL, "PM L-acc", unit=1, digits=3),
    Measure(SOME, "PM S-acc", unit=1, digits=3),
    Measure(ALL, "PM G-acc", unit=1, digits=3),
    Measure(GLOBAL, "GM acc", unit=1, digits=3),
)

# -- what all experiments share ----------------------------------------------------------------------------------------

BASE: Changes = {
    "data.train_size": None,
    "partition.clients": 100,
    "participation.share": 0.1,
    "participation.weighting": "uniform",
    "training.rounds": 2000,
    "training.local_epochs": 5,
    "training.batch_size": 50,
    "training.optimiser": "sgd",
    "training.lr": 0.05,
    "training.lr_decay": 0.999,
    "training.momentum": 0.0,
    "training.weight_decay": 0.0,
    "evaluation.synthetic": SWEEP,
    "evaluation.equal_tests": True,
    "evaluation.every": 20,
    "evaluation.global_every": 100,
}
DIRICHLET: Changes = {**BASE, "partition.kind": "dirichlet", "partition.alpha": 0.1}
PAT_2: Changes = {**BASE, "partition.kind": "pat", "partition.classes_per_client": 2}

UNMEASURED = (
    "The learning rate is not chosen for each method, as the paper does.",
    "A client that was absent in the last round is scored, where methods have a global model only, with what it would "
    "have trained in that round; the authors' code takes the model of its last own round.",
)


def datasets(**small: Changes) -> Axis:
    """The data sets with their networks; `small`: what that scale changes of each."""
    smoke = {"model.name": "cnn_tiny"}
    return {
        "fmnist": Level(
            {"data.name": "fashion_mnist", "model.name": "mlp"}, "FMNIST", at={"small": small.get("fmnist", {})}
        ),
        "cifar10": Level(
            {"data.name": "cifar10", "model.name": "fakelenet5"},
            "CIFAR-10",
            at={"small": {"model.name": "cnn_tiny", **small.get("cifar10", {})}, "smoke": smoke},
        ),
        "cifar100": Level(
            {"data.name": "cifar100", "model.name": "nf_resnet18"},
            "CIFAR-100",
            at={"small": {"model.name": "cnn_tiny", **small.get("cifar100", {})}, "smoke": smoke},
        ),
    }


DATASETS = datasets(
    fmnist={"data.train_size": 12_000, "training.rounds": 60},
    cifar10={"data.train_size": 4_000, "training.rounds": 20},
    cifar100={"data.train_size": 4_000, "training.rounds": 20, "model.hidden": 64},
)
FEW: Changes = {
    "partition.clients": 20,
    "participation.share": 0.2,
    "evaluation.every": 5,
    "evaluation.global_every": 20,
}
NETWORK = "cnn_tiny in place of the CNN and of NF-ResNet-18 (9 samples a second and core)"
MEDIUM = Scale(
    {"model.name": "mlp"},
    note="Fashion-MNIST's MLP of 200-200 on CIFAR-10 and CIFAR-100 too, in place of the CNN (3 ms of one core a "
    "minibatch, where the CNN takes 86 ms) and of NF-ResNet-18",
)


def method(title: str, name: str, stage: str = "L1", *, smoke: Changes | None = None, **options: object) -> Level:
    """A method; `stage`: where its personal models are."""
    settings = {f"algorithm.{option}": value for option, value in options.items()}
    return Level({"algorithm.name": name, **settings}, title, {"smoke": smoke or {}}, {"P": stage})


BASELINES: Axis = {
    "local": method("Local", "local"),
    "fedavg": method("FedAvg", "fedavg", "L2"),
    "fedprox": method("FedProx", "fedprox", "L2"),
    "apfl": method("APFL", "apfl", alpha=0.1),
    "pfedme": method("pFedMe", "pfedme", lam=0.1, smoke={"algorithm.inner_steps": 2}),
    "ditto": method("Ditto", "ditto", lam=0.1),
    "fedamp": method("FedAMP", "fedamp", lam=0.1),
    "fedfomo": method("FedFomo", "fedfomo"),
    "fedrep": method("FedRep", "fedrep", head_epochs=1, body_epochs=4, smoke={"algorithm.body_epochs": 1}),
    "fedrod": method("FedROD", "fedrod"),
    "splitgp": method("SplitGP", "splitgp"),
    "fedmgda_plus": method("FedMGDA+", "fedmgda_plus", "L2", eps=0.1, global_lr=None),
}
FEDPG: Axis = {"fedpg": method("FedPG", "fedpg"), "s_fedpg": method("S-FedPG", "s_fedpg")}
LARGER: Axis = {f"fedpg_{gamma}": method(f"FedPG γ={gamma}", "fedpg", gamma=gamma) for gamma in (0.3, 0.6, 1.0)}
READINGS: Axis = {
    "fedamp_absolute": method("FedAMP, absolute σ", "fedamp", unit="absolute", alpha=5e-3, sigma=0.1, lam=5e-7),
    "s_fedpg_last": method("S-FedPG, last step", "s_fedpg", failing="last"),
}
"""The paper's own readings beside ours. No claim is judged by them."""
COMPARED: Axis = {**BASELINES, **FEDPG}
METHODS: Axis = {**COMPARED, **LARGER, **READINGS}

OTHERS = f"{{{','.join(BASELINES)}}}"
WITH_GLOBAL = f"{{{','.join(name for name in BASELINES if name not in ('local', 'fedamp'))}}}"

# -- Table 1 -----------------------------------------------------------------------------------------------------------

REDUCTIONS = (
    ("APFL", "apfl", {"fmnist": 12.3, "cifar10": 12.0, "cifar100": 21.4}, ""),
    ("pFedMe", "pfedme", {"fmnist": 4.6, "cifar10": 6.0, "cifar100": 21.4}, "the table gives 25.6 % on CIFAR-100"),
)

TABLE_1 = Suite(
    name="fedpg/table1",
    title="L-, S- and G-accuracy of personal models, accuracy of the global model",
    source="FedPG, Table 1: Dir(0.1), 100 clients, 10 % online, B 50, E 5, 2000 rounds, 5 runs; ± looks like a "
    "deviation over clients; the round is not stated (last: ours)",
    base=DIRICHLET,
    axes={"dataset": DATASETS, "method": METHODS},
    measures=MEASURES,
    exhibits=(Grid(rows=("method",), columns=("dataset", "measure"), caption="Mean over clients (their deviation)"),),
    published=load("fedpg_table1"),
    spread_over="clients",
    repetitions=5,
    claims=(
        Claim(
            "In S-acc., FedPG and S-FedPG markedly outperform the previous algorithms",
            f"*/{{fedpg,s_fedpg}}:{SOME} > max(*/{OTHERS}:{SOME})",
            "Section 4.1",
        ),
        Claim(
            "In G-acc., FedPG and S-FedPG markedly outperform the previous algorithms",
            f"*/{{fedpg,s_fedpg}}:{ALL} > max(*/{OTHERS}:{ALL})",
            "Section 4.1",
        ),
        Claim(
            "FedPG's global model is the best",
            f"*/{{fedpg,s_fedpg}}:{GLOBAL} > max(*/{WITH_GLOBAL}:{GLOBAL})",
            "ours, from the table; Local and FedAMP have no global model",
            derived=True,
        ),
        Claim(
            "Compared with the G-model, FedPG's P-models maintain the global performance",
            f"*/{{fedpg,s_fedpg}}:{ALL} >= */{{fedpg,s_fedpg}}:{GLOBAL} - 0.01",
            "Section 4.1; a hundredth is ours",
            derived=True,
        ),
        Claim(
            "... and achieve an increase in L-acc.",
            f"*/{{fedpg,s_fedpg}}:{LOCAL} > */{{fedpg,s_fedpg}}:{GLOBAL}",
            "Section 4.1",
        ),
        Claim(
            "A larger γ further increases L-acc.",
            f"*/fedpg:{LOCAL} <= */fedpg_0.3:{LOCAL} <= */fedpg_0.6:{LOCAL} <= */fedpg_1.0:{LOCAL}",
            "Section 4.1",
        ),
        Claim(
            "A larger γ sacrifices G-acc. a little",
            f"*/fedpg:{ALL} > */fedpg_0.3:{ALL} > */fedpg_0.6:{ALL} > */fedpg_1.0:{ALL}",
            "Section 4.1",
        ),
        Claim(
            "A larger γ sacrifices S-acc. a little",
            f"*/{{fedpg_0.3,fedpg_0.6,fedpg_1.0}}:{SOME} < */fedpg:{SOME}",
            "Section 4.1; on CIFAR-10 the table has it rise",
        ),
        *(
            Claim(
                f"γ = 1 still has a much higher {name} than the previous algorithms",
                f"*/fedpg_1.0:{key} > max(*/{OTHERS}:{key})",
                "Section 4.1",
            )
            for name, key in (("S-acc.", SOME), ("G-acc.", ALL))
        ),
        *(
            Claim(
                f"{name}'s G-acc. is about {percent:g} % below its G-model's on {DATASETS[dataset].title}",
                f"abs({dataset}/{label}:{ALL} - {1 - percent / 100:.3f} * {dataset}/{label}:{GLOBAL}) < 0.002",
                f"Section 4.1; two thousandths are ours, for rounding{'; ' + remark if remark else ''}",
                derived=True,
            )
            for name, label, percents, remark in REDUCTIONS
            for dataset, percent in percents.items()
        ),
        *(
            Claim(
                f"{BASELINES[label].title} performs nearly the same as Local on {DATASETS[dataset].title}: {name}",
                f"abs({dataset}/{label}:{key} - {dataset}/local:{key}) < 0.01",
                "Section 4.1; a hundredth is ours",
                derived=True,
            )
            for label, dataset in (("fedamp", "cifar10"), ("fedfomo", "cifar10"), ("ditto", "cifar100"))
            for name, key in (("S-acc.", SOME), ("G-acc.", ALL))
        ),
    ),
    sources=sources.TABLE_1,
    departures=sources.TABLE_1_DEPARTURES,
    damage=(
        "The header row is garbled: which column is which follows from the text and from Table 2.",
        "SplitGP's first number is followed by a stray comma.",
    ),
    unmeasured=(*UNMEASURED, "APFL stands in the table and not in the text's list of baselines."),
    medium=MEDIUM,
    small=Scale(FEW, 3, f"20 clients, a fifth of them online, 60 or 20 rounds; {NETWORK}"),
)

# -- Figure 4 ----------------------------------------------------------------------------------------------------------

OVER = {c: LOCAL if c == 0 else f"test/P/synthetic_{c}/mean" for c in SWEEP}

FIGURE_4 = Suite(
    name="fedpg/fig4",
    title="S-accuracy over c on CIFAR-10",
    source="FedPG, Figure 4: the CIFAR-10 cells of Table 1; its image is lost, c = 0, 50 and 100 follow from Table 1",
    base=DIRICHLET,
    axes={"dataset": {"cifar10": DATASETS["cifar10"]}, "method": COMPARED},
    measures=tuple(Measure(key, f"S-acc. c={c} %", unit=1, digits=3) for c, key in OVER.items()),
    exhibits=(
        Over(
            "measure", tuple(OVER.items()), caption="Mean S-acc. of personal models", xlabel="c in %", ylabel="S-acc."
        ),
        Grid(rows=("method",), columns=("measure",), caption="The same as a table"),
    ),
    published={
        (cell, key): number
        for (cell, key), number in TABLE_1.published.items()
        if cell.startswith("cifar10/") and cell.partition("/")[2] not in LARGER and key in OVER.values()
    },
    spread_over="clients",
    repetitions=5,
    claims=(
        *(
            Claim(
                f"FedPG is better on the mixed test set: c = {c} %",
                f"cifar10/{{fedpg,s_fedpg}}:{OVER[c]} > max(cifar10/{OTHERS}:{OVER[c]})",
                "Section 4.1" if c in (50, 100) else "Section 4.1; the paper's own numbers are in the lost image",
            )
            for c in SWEEP
            if c > 0
        ),
        Claim(
            "Previous approaches suffer a significant reduction where c > 0, FedPG is more stable: c = 0 to 100 %",
            f"cifar10/fedpg:{LOCAL} - cifar10/fedpg:{ALL} < cifar10/{OTHERS}:{LOCAL} - cifar10/{OTHERS}:{ALL}",
            "Section 4.1",
        ),
        Claim(
            "At c = 0 FedPG is not ahead: FedAvg's personal models have a higher L-acc.",
            f"cifar10/fedpg:{LOCAL} < cifar10/fedavg:{LOCAL}",
            "ours, from Table 1",
            derived=True,
        ),
    ),
    sources=sources.TABLE_1,
    departures=sources.TABLE_1_DEPARTURES,
    damage=("The image is lost; between c = 0, 50 and 100 the paper names no number.",),
    unmeasured=UNMEASURED,
    medium=MEDIUM,
    small=Scale(FEW, 3, f"as Table 1, whose cells these are; {NETWORK}"),
)

# -- Figure 5 ----------------------------------------------------------------------------------------------------------

EARLY = f"{SOME}#10"
TARGETS = {"fmnist": 0.7, "cifar10": 0.35, "cifar100": 0.1}
CURVES: Axis = {
    **{name: BASELINES[name] for name in ("fedavg", "fedprox", "apfl", "ditto", "fedrep", "fedrod")},
    **FEDPG,
    "fedpg_slow": Level({"algorithm.name": "fedpg", "training.lr": 0.01}, "FedPG′", stages={"P": "L1"}),
}
PREVIOUS = "{fedavg,fedprox,apfl,ditto,fedrep,fedrod}"

FIGURE_5 = Suite(
    name="fedpg/fig5",
    title="S-accuracy over rounds in Pat-2, all clients online",
    source="FedPG, Figure 5: Pat-2, 100 clients, all of them online, B 50; the image is lost",
    base={**PAT_2, "participation.share": 1.0, "evaluation.every": 10, "evaluation.global_every": 10},
    axes={
        "dataset": datasets(
            fmnist={"data.train_size": 6_000, "training.rounds": 30},
            cifar10={"data.train_size": 2_000, "training.rounds": 15},
            cifar100={
                "data.train_size": 2_000,
                "training.rounds": 15,
                "model.hidden": 64,
                "partition.classes_per_client": 10,
            },
        ),
        "method": CURVES,
    },
    measures=(
        Measure(SOME, "S-acc.", unit=1, digits=3),
        Measure(EARLY, "S-acc. in round 10", unit=1, digits=3),
        *(
            Measure(f"{SOME}@{target:g}", f"rounds to {target:g}", unit=1, digits=0, better="low")
            for target in TARGETS.values()
        ),
    ),
    exhibits=(
        Curves(SOME, panel="dataset", caption="Mean S-acc. of personal models", ylabel="S-acc."),
        Grid(rows=("method",), columns=("dataset",), measures=(SOME, EARLY), blocks=("measure",)),
    ),
    repetitions=5,
    claims=(
        Claim(
            "FedPG and S-FedPG reach a much higher average S-acc. than prior methods",
            f"*/{{fedpg,s_fedpg}}:{SOME} > max(*/{PREVIOUS}:{SOME})",
            "Section 4.2",
        ),
        *(
            Claim(
                f"FedPG and S-FedPG converge much faster: rounds to {target:g} on {DATASETS[dataset].title}",
                f"{dataset}/{{fedpg,s_fedpg}}:{SOME}@{target:g} < min({dataset}/{PREVIOUS}:{SOME}@{target:g})",
                "Section 4.2; the target is ours",
                derived=True,
            )
            for dataset, target in TARGETS.items()
        ),
        Claim(
            "S-FedPG converges faster than FedPG in the early stage",
            f"*/s_fedpg:{EARLY} > */fedpg:{EARLY}",
            "Section 4.2; round 10 is ours",
            derived=True,
        ),
        Claim(
            "A lower learning rate converges more slowly (FedPG′)",
            f"*/fedpg_slow:{EARLY} < */fedpg:{EARLY}",
            "Section 4.2; round 10 is ours",
            derived=True,
        ),
    ),
    sources=sources.FIGURE_5,
    departures=sources.FIGURE_5_DEPARTURES,
    damage=("The image is lost, and the text names no number.",),
    unmeasured=(
        UNMEASURED[0],
        "How much curves swing (S-FedPG and FedPG′ are called more stable) is not judged: no measure of it is named.",
        "In the later period S-FedPG is said to be slower than FedPG: no round is named.",
    ),
    medium=MEDIUM,
    small=Scale(
        {**FEW, "participation.share": 1.0, "evaluation.every": 5, "evaluation.global_every": 5},
        3,
        f"20 clients, 30 or 15 rounds; CIFAR-100 with ten classes a client, or some would belong to nobody; {NETWORK}",
    ),
    smoke=Scale(note="CIFAR-100 with 13 classes a client, or some would belong to nobody"),
    exceptions={"cifar100/*": Level(at={"smoke": {"partition.classes_per_client": 13}})},
)

# -- Table 2 -----------------------------------------------------------------------------------------------------------

ABLATIONS: Axis = {
    "fedpg": FEDPG["fedpg"],
    "m1": method("M1", "fedpg", direction="mean"),
    "m2": method("M2", "fedpg", fair=False),
    "m3": method("M3", "fedpg", drift=False),
    "m4": method("M4", "fedpg", absent=False),
}
SPREADS = tuple(
    Measure(measure.key.replace("/mean", "/std"), f"{measure.title} ±", unit=1, digits=3, better="low")
    for measure in MEASURES
)
COLUMNS = tuple(measure for pair in zip(MEASURES, SPREADS, strict=True) for measure in pair)

TABLE_2 = Suite(
    name="fedpg/table2",
    title="Ablations: mean direction (M1), no fair objective (M2), no drift (M3), absent clients forgotten (M4)",
    source="FedPG, Table 2: Pat-2, 100 clients, 10 % online, 5 runs; rounds and batch size are not said",
    base=PAT_2,
    axes={"dataset": {name: DATASETS[name] for name in ("fmnist", "cifar10")}, "method": ABLATIONS},
    measures=COLUMNS,
    exhibits=(
        Grid(
            rows=("method",),
            columns=("dataset", "measure"),
            measures=tuple(measure.key for measure in MEASURES),
            caption="Mean over clients (their deviation)",
        ),
        Grid(
            rows=("method",),
            columns=("dataset", "measure"),
            measures=tuple(measure.key for measure in SPREADS),
            caption="Standard deviation over clients",
        ),
    ),
    published=load("fedpg_table2"),
    spread_over="clients",
    repetitions=5,
    claims=(
        Claim(
            "M1's global model is much worse on CIFAR-10 (56.3 % against 74.1 %)",
            f"cifar10/m1:{GLOBAL} < cifar10/fedpg:{GLOBAL} - 0.1",
            "Section 4.3; a tenth is ours",
            derived=True,
        ),
        *(
            Claim(
                f"Without the fair objective (M2) performance is hampered: {m.title}", f"*/m2:{m.key} < */fedpg:{m.key}"
            )
            for m in MEASURES
        ),
        *(
            Claim(
                f"Without the fair objective (M2) the standard deviations are higher: {m.title}",
                f"*/m2:{m.key} > */fedpg:{m.key}",
                "Section 4.3",
            )
            for m in SPREADS
        ),
        Claim(
            "Without drift (M3) the performance is poor in personalisation",
            f"*/m3:{LOCAL} < */fedpg:{LOCAL}",
            "Section 4.3; the table has .895 against .897, and .749 twice",
        ),
        *(
            Claim(
                f"With absent clients forgotten (M4) performance gets much poorer: {m.title}",
                f"*/m4:{m.key} < */fedpg:{m.key}",
                "Section 4.3",
            )
            for m in MEASURES
        ),
    ),
    sources=sources.TABLE_2,
    departures=sources.OF_ALL,
    damage=(
        "Spreads of CIFAR-10 are partly merged: M1's S- and G-acc. share a cell, M2's G-acc. stands among remnants of "
        "the column, and those end in .68) where M3's .060 should be.",
        "The rows of spreads have lost or damaged labels.",
    ),
    unmeasured=(UNMEASURED[0],),
    medium=MEDIUM,
    small=Scale(FEW, 5, f"20 clients, a fifth of them online, 60 or 20 rounds; {NETWORK}"),
)

SUITES = (TABLE_1, FIGURE_4, FIGURE_5, TABLE_2)
