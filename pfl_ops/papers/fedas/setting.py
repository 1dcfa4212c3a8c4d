"""FedAS: Yang, Huang, Ye, "FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024.

The setting: 20 clients, Dir(β) with β of 0.1, 0.3, 0.5, a share P of 0.2, 0.4, 0.6 or all of them in a round, 40 rounds
of 5 epochs, batches of 16, SGD with η 0.005, a 6-layer CNN, one run with seed 0 (here five runs). Tables 2 and 3
compare ten methods on CIFAR-100 and CIFAR-10, Table 4 takes FedAS apart; the figures have lost their images and keep
the sentences about them.

The paper states no hyper-parameter of any baseline, and not which model of which clients is scored. Ours: each client's
own model after local training (L2), all clients alike, on its own test samples, in the last round. The paper takes the
highest accuracy of all rounds; after local training, only a round's cohort is there to be scored, so the highest of our
rounds would be that of a lucky cohort. FedAvg-P and FedProx-P are Θ fine-tuned as long as a client trains in a round.

The published code (for whoever compares numbers) scores the pooled test samples of all clients in the best round: FedAS
by the models as last trained, FedAvg and FedProx by the cohort after training and by Θ itself for everybody else, which
may be why FedAvg-P loses so much at small P.
"""

from collections.abc import Mapping
from typing import Any

from pfl_ops.papers.claims import Claim
from pfl_ops.papers.exhibits import Bars, Curves, Grid, Over
from pfl_ops.papers.published import Published, load
from pfl_ops.papers.sources import fedas as sources
from pfl_ops.papers.suite import Axis, Level, Measure, Scale, Suite

LOCAL = "test/L2/local/mean"
RECEIVED = "test/L1/local/mean"
TRAINED = Measure(LOCAL, "accuracy")
HIGHEST = Measure(f"{LOCAL}#best", "highest round")
ON_RECEIPT = Measure(RECEIVED, "on receipt")

REPETITIONS = 5
"""The paper has one run, or names no number: a claim of one seed could never be judged."""

# -- the setting -------------------------------------------------------------------------------------------------------

BASE: Mapping[str, Any] = {
    "data.name": "cifar10",
    "data.train_size": None,
    "data.pooled": True,
    "data.test_share": 0.25,
    "partition.kind": "dirichlet",
    "partition.clients": 20,
    "partition.alpha": 0.1,
    "partition.cap": True,
    "partition.min_size": 40,
    "model.name": "cnn6",
    "training.rounds": 40,
    "training.local_epochs": 5,
    "training.batch_size": 16,
    "training.optimiser": "sgd",
    "training.lr": 0.005,
    "training.lr_decay": 1.0,
    "training.momentum": 0.0,
    "training.weight_decay": 0.0,
    "participation.weighting": "uniform",
    "evaluation.split": "test",
    "evaluation.global_every": 40,
}
"""What all suites share; β 0.1 and CIFAR-10 where an exhibit does not say."""

FIGURE: Mapping[str, Any] = {**BASE, "participation.share": 0.6}
"""P of the only figure that says it (Fig. 5)."""

SMALL: Mapping[str, Any] = {
    "data.train_size": 1500,
    "partition.clients": 10,
    "training.rounds": 10,
    "training.local_epochs": 2,
    "training.lr": 0.02,
    "evaluation.global_every": 10,
    "evaluation.subset": 100,
}
FEWER = (
    "10 clients with 135 training images each, 10 rounds of 2 epochs, at four times the rate, so that they learn at all"
)
LAST: Mapping[str, Any] = {**SMALL, "evaluation.every": 10}
"""Where no curve is shown, only the last round is scored."""
WITH_CURVE = Level(at={"small": {"evaluation.every": 1}})
"""A cell that a figure shows over rounds too: it is run once for both."""
MEDIUM = Scale(
    {"model.name": "mlp"},
    note="An MLP of 200-200 in place of the CNN: 1.5 ms of one core a minibatch, where the CNN takes 15 ms; its second "
    "hidden layer has the features that FedAS aligns",
)
SMOKE = Scale({"model.name": "cnn_tiny"}, note="a much smaller network: cnn6 takes seconds on CIFAR images")

# -- axes --------------------------------------------------------------------------------------------------------------


def method(title: str, name: str, **settings: Any) -> Level:
    """A method with settings of its own."""
    return Level({"algorithm.name": name, **{f"algorithm.{key}": value for key, value in settings.items()}}, title)


METHODS: Axis = {
    "fedavg_p": method("FedAvg-P", "fedavg_ft"),
    "fedprox_p": method("FedProx-P", "fedprox_ft", mu=0.01),
    "fedper": method("FedPer", "fedper"),
    "ditto": method("Ditto", "ditto", lam=1.0),
    "lg_fedavg": method("LG-FedAvg", "lg_fedavg"),
    "fedbabu": method("FedBABU", "fedbabu", fine_epochs=5),
    "fedproto": method("FedProto", "fedproto", lam=1.0),
    "fedala": method("FedALA", "fedala", share=80.0),
    "fedpac": method("FedPAC", "fedpac", lam=1.0, head_lr=0.1),
    "fedas": method("FedAS", "fedas"),
}
FEDAS: Axis = {"fedas": METHODS["fedas"]}
LETTER: Axis = {"letter": method("FedAS, Eq. 5 to 8", "fedas", fisher="dataset", shrink=True)}
"""The letter of Eq. 5, 6 and 8 beside our reading. No claim is judged by it."""
OTHERS = f"{{{','.join(name for name in METHODS if name != 'fedas')}}}"
PRINTED = f"{{{','.join(METHODS)}}}"
SKEW: Axis = {f"b{b}": Level({"partition.alpha": b}, f"β = {b}") for b in (0.1, 0.3, 0.5)}
PARTICIPATION: Axis = {f"p{p:g}": Level({"participation.share": p}, f"P = {p:g}") for p in (0.2, 0.4, 0.6, 1.0)}
DATA: Axis = {
    "cifar10": Level({"data.name": "cifar10"}, "CIFAR-10"),
    "cifar100": Level({"data.name": "cifar100"}, "CIFAR-100"),
}

# -- Tables 2 and 3 ----------------------------------------------------------------------------------------------------


def compared(number: int, data: str, least: float, most: float, slips: tuple[Claim, ...]) -> Suite:
    """Table 2 or 3; FedAS is said to be between `least` and `most` points above the best baseline."""
    best = f"max(*/*/{OTHERS}:{LOCAL})"
    return Suite(
        name=f"fedas/table{number}",
        title=f"Ten methods on {DATA[data].title}, by skew and participation",
        source=f'FedAS, Table {number}: "highest top-1 accuracy" of 40 rounds, one run; ours: the last round',
        base={**BASE, "data.name": data},
        axes={"skew": SKEW, "participation": PARTICIPATION, "method": {**METHODS, **LETTER}},
        measures=(TRAINED, ON_RECEIPT, HIGHEST),
        exhibits=(
            Grid(("method",), ("skew", "participation"), measures=(LOCAL,), caption="Last round, percent"),
            Grid(("method",), ("skew", "participation"), measures=(HIGHEST.key,), caption="Highest round, percent"),
            Grid(("method",), ("skew", "participation"), measures=(RECEIVED,), caption="On receipt, percent (ours)"),
        ),
        published=load(f"fedas_table{number}"),
        claims=(
            Claim(
                "FedAS is above every baseline in every setting",
                f"*/*/fedas:{LOCAL} > */*/{OTHERS}:{LOCAL}",
                "Sec. 4.2; n = 1, and in Table 3 margins go down to 0.08: no evidence by themselves",
            ),
            Claim(
                f"FedAS is {least} to {most} points above the best baseline",
                f"{least} - 0.005 < */*/fedas:{LOCAL} - {best} < {most} + 0.005",
                "derived: the smallest and the largest of the differences, worked out again from the table",
                derived=True,
            ),
            *slips,
            Claim(
                "FedAS gains with every further client in a round, at every β",
                f"*/p1/fedas:{LOCAL} > */p0.6/fedas:{LOCAL} > */p0.4/fedas:{LOCAL} > */p0.2/fedas:{LOCAL}",
                "derived", derived=True,
            ),
            Claim(
                "Robust against stragglers: from P 1 to P 0.2 at β 0.1 FedAS loses less than FedAvg-P",
                f"b0.1/p1/fedas:{LOCAL} - b0.1/p0.2/fedas:{LOCAL}"
                f" < b0.1/p1/fedavg_p:{LOCAL} - b0.1/p0.2/fedavg_p:{LOCAL}",
                "Sec. 4.2; published: 3.96 against 19.96 (Table 2), 1.11 against 28.31 (Table 3)",
            ),
            Claim(
                "FedAS' accuracy falls as β grows, at every P",
                f"b0.1/*/fedas:{LOCAL} > b0.3/*/fedas:{LOCAL} > b0.5/*/fedas:{LOCAL}",
                "derived: a client with fewer classes has the easier task", derived=True,
            ),
            Claim(
                "Every method's accuracy falls as β grows, at every P",
                f"b0.1/*/{PRINTED}:{LOCAL} > b0.3/*/{PRINTED}:{LOCAL} > b0.5/*/{PRINTED}:{LOCAL}",
                "derived; FedAvg-P, FedProx-P, FedProto and Ditto are exceptions, at small P", derived=True,
            ),
        ),
        repetitions=REPETITIONS,
        sources={2: sources.TABLE_2, 3: sources.TABLE_3}[number],
        departures=sources.DEPARTURES,
        damage=('Both captions say "Cifar10"; the one with the far lower values is CIFAR-100.',) if number == 2 else (),
        exceptions={"b0.1/p0.6/*": WITH_CURVE},
        medium=MEDIUM,
        smoke=SMOKE,
        small=Scale(LAST, 2, f"{FEWER}; n = 2, so that 120 cells fit into an hour"),
    )  # fmt: skip


def slip(where: str, delta: float, baseline: str) -> Claim:
    """A Δ that the paper prints and its own numbers do not give."""
    return Claim(
        f"At {where} FedAS is {delta} or more above the best baseline (the Δ printed there)",
        f"{where}/fedas:{LOCAL} - max({where}/{OTHERS}:{LOCAL}) > {delta} - 0.005",
        f"the printed Δ is against {baseline}, which is not the best there; elsewhere Δ is against the best",
    )


TABLE_2 = compared(
    2, "cifar100", 1.85, 5.41,
    (slip("b0.1/p0.2", 6.89, "FedALA"), slip("b0.3/p0.2", 4.14, "FedALA"), slip("b0.5/p0.2", 4.29, "FedALA")),
)  # fmt: skip
TABLE_3 = compared(3, "cifar10", 0.08, 1.20, (slip("b0.5/p0.2", 0.95, "FedPAC"),))

# -- Table 4: the two parts --------------------------------------------------------------------------------------------

TABLE_4 = Suite(
    name="fedas/table4",
    title="Alignment (PA) and synchronisation (CS), alone and together",
    source="FedAS, Table 4: CIFAR-10, β 0.1 (first and last row equal Table 3's FedPer and FedAS); highest accuracy",
    base=BASE,
    axes={
        "participation": PARTICIPATION,
        "modules": {
            "none": METHODS["fedper"],
            "pa": method("PA", "fedas", synchronize=False),
            "cs": method("CS", "fedas", align="off"),
            "both": METHODS["fedas"],
            **LETTER,
        },
    },
    measures=(TRAINED, ON_RECEIPT, HIGHEST),
    exhibits=(
        Grid(("modules",), ("participation",), measures=(LOCAL,), caption="Last round, percent"),
        Grid(("modules",), ("participation",), measures=(HIGHEST.key,), caption="Highest round, percent"),
        Bars(LOCAL, "participation", caption="After local training", ylabel="accuracy"),
    ),
    published=load("fedas_table4"),
    claims=(
        Claim(
            "The combination is above each part alone, at every P", f"*/both:{LOCAL} > */{{pa,cs}}:{LOCAL}", "Sec. 4.3"
        ),
        Claim("Each part alone is above none, at every P", f"*/{{pa,cs}}:{LOCAL} > */none:{LOCAL}", "Sec. 4.3"),
    ),
    repetitions=REPETITIONS,
    sources=sources.TABLE_4,
    departures=sources.DEPARTURES,
    damage=(
        "Which mark stands in which column is lost: that the second row is PA alone and the third CS alone is our "
        "reading of their order. Both claims hold either way.",
    ),
    exceptions={"p0.6/{none,both}": WITH_CURVE},
    medium=MEDIUM,
    smoke=SMOKE,
    small=Scale(LAST, 3, FEWER),
)

# -- Figures 3 and 4a: Fisher information ------------------------------------------------------------------------------

WHOLE, TOP, ANY = "method/whole/mean", "method/top/mean", "method/any/mean"
FIGURE_3A = Suite(
    name="fedas/fig3a",
    title="Putting back the 5 % of parameters with most Fisher information, or any 5 %",
    source="FedAS, Fig. 3a and Sec. 3.3; no number of it is in the text",
    base=FIGURE,
    axes={"share": {"s5": method("5 %", "fedas", substitute=0.05)}},
    measures=(
        Measure(WHOLE, "all as trained"),
        Measure(TOP, "top 5 % put back", better=""),
        Measure(ANY, "any 5 % put back", better=""),
    ),
    exhibits=(
        Grid(("share",), ("measure",), caption="Own training samples answered rightly, last cohort, percent"),
        Curves(TOP, caption="Top 5 % put back"),
        Curves(ANY, caption="Any 5 % put back"),
    ),
    claims=(
        Claim("The top 5 % cost far more than a random 5 %", f"s5:{TOP} < s5:{ANY}", 'Sec. 3.3: "catastrophic"'),
        Claim(
            "A random 5 % has minor effects: at most 5 points",
            f"s5:{WHOLE} - s5:{ANY} <= 5",
            "5 points are ours; the paper gives no number",
            derived=True,
        ),
        Claim(
            "The top 5 % cost at least 10 points", f"s5:{WHOLE} - s5:{TOP} >= 10", "10 points are ours", derived=True
        ),
    ),
    repetitions=REPETITIONS,
    sources=sources.SUBSTITUTED,
    departures=sources.DEPARTURES,
    medium=MEDIUM,
    smoke=SMOKE,
    small=Scale(LAST, 3, FEWER),
)

WEIGHT, TRACE = "method/weight", "method/trace"
FISHER: Axis = {
    "sample": METHODS["fedas"],
    "dataset": method("squared sum over the data (Eq. 5, 6)", "fedas", fisher="dataset"),
    "batch": method("sum of squares of batches (published code)", "fedas", fisher="batch"),
}
STRAGGLERS: Mapping[str, Any] = {
    **FIGURE,
    "participation.kind": "stragglers",
    "participation.stragglers": 0.5,
    "participation.chance": 0.1,
}

FIGURE_3B = Suite(
    name="fedas/fig3b",
    title="Trace of the Fisher information along training",
    source="FedAS, Fig. 3b and Sec. 3.3; no number of it is in the text",
    base=STRAGGLERS,
    axes={"fisher": FISHER},
    measures=(
        Measure(f"{TRACE}/online/mean#1", "online, round 1", unit=1, digits=4, better=""),
        Measure(f"{TRACE}/online/mean", "online, last", unit=1, digits=4, better=""),
        Measure(f"{TRACE}/stragglers/mean", "stragglers, last", unit=1, digits=4, better=""),
    ),
    exhibits=(
        Grid(("fisher",), ("measure",), caption="Mean trace over the online clients and the stragglers of a round"),
        Curves(f"{TRACE}/online/mean", panel="fisher", percent=False, ylabel="trace", caption="Online clients"),
        Curves(f"{TRACE}/stragglers/mean", panel="fisher", percent=False, ylabel="trace", caption="Stragglers"),
    ),
    claims=(
        Claim(
            "The trace of online clients keeps rising along training",
            f"*:{TRACE}/online/mean > *:{TRACE}/online/mean#1",
            "Sec. 3.3; here: last round against first. It has to fall where gradients vanish as training converges",
        ),
        Claim(
            "Stragglers have a relatively low trace", f"*:{TRACE}/stragglers/mean < *:{TRACE}/online/mean", "Sec. 3.3"
        ),
    ),
    repetitions=REPETITIONS,
    sources=sources.STRAGGLERS,
    departures=sources.DEPARTURES,
    medium=MEDIUM,
    smoke=SMOKE,
    small=Scale(LAST, 3, FEWER),
)

FIGURE_4A = Suite(
    name="fedas/fig4a",
    title="Aggregation weights of online clients and of stragglers",
    source="FedAS, Fig. 4a and Sec. 3.4: half of the clients are stragglers; no number of it is in the text",
    base=STRAGGLERS,
    axes={"fisher": FISHER},
    measures=(
        Measure(f"{WEIGHT}/online/mean", "online", digits=3, better=""),
        Measure(f"{WEIGHT}/stragglers/mean", "stragglers", digits=3, better=""),
        TRAINED,
    ),
    exhibits=(
        Grid(("fisher",), ("measure",), caption="Mean weight of a client in the last round, percent"),
        Curves(f"{WEIGHT}/online/mean", panel="fisher", ylabel="weight", caption="Online clients"),
        Curves(f"{WEIGHT}/stragglers/mean", panel="fisher", ylabel="weight", caption="Stragglers"),
    ),
    claims=(
        Claim(
            "Online clients weigh more than stragglers",
            f"*:{WEIGHT}/online/mean > *:{WEIGHT}/stragglers/mean",
            "Sec. 3.4",
        ),
    ),
    repetitions=REPETITIONS,
    sources=sources.STRAGGLERS,
    departures=sources.DEPARTURES,
    medium=MEDIUM,
    smoke=SMOKE,
    small=Scale(LAST, 3, FEWER),
)

# -- Figures 4b, 6a, 6b: other ways to do it ---------------------------------------------------------------------------

FIGURE_4B = Suite(
    name="fedas/fig4b",
    title="Other manners and objects of alignment",
    source="FedAS, Fig. 4b and Sec. 3.4; no number of it is in the text",
    base=FIGURE,
    axes={
        "alignment": {
            "fedas": METHODS["fedas"],
            "parallel": method("beside training", "fedas", align="parallel"),
            "others": method("to others' features", "fedas", align="global"),
        }
    },
    measures=(TRAINED, ON_RECEIPT),
    exhibits=(
        Grid(("alignment",), ("measure",), caption="Last round, percent"),
        Curves(LOCAL, caption="Accuracy after local training, each round's cohort"),
    ),
    claims=(
        Claim("FedAS is above alignment beside training", f"fedas:{LOCAL} > parallel:{LOCAL}", "Sec. 3.4"),
        Claim("FedAS is above alignment to the others' features", f"fedas:{LOCAL} > others:{LOCAL}", "Sec. 3.4"),
    ),
    repetitions=REPETITIONS,
    sources=sources.SOURCES,
    departures=sources.DEPARTURES,
    medium=MEDIUM,
    smoke=SMOKE,
    small=Scale(SMALL, 3, FEWER),
)

FIGURE_6A = Suite(
    name="fedas/fig6a",
    title="Three ways from traces to weights",
    source="FedAS, Fig. 6a and Sec. 4.3; no number of it is in the text",
    base=FIGURE,
    axes={
        "normalisation": {
            "proportional": METHODS["fedas"],
            "softmax": method("softmax", "fedas", normalise="softmax"),
            "min_max": method("min-max", "fedas", normalise="min_max"),
        }
    },
    measures=(TRAINED, ON_RECEIPT),
    exhibits=(
        Grid(("normalisation",), ("measure",), caption="Last round, percent"),
        Curves(LOCAL, caption="Accuracy after local training, each round's cohort"),
    ),
    claims=(
        Claim(
            "All three are about as accurate: the best and the worst are less than a point apart",
            f"max({{proportional,softmax,min_max}}:{LOCAL}) - min({{proportional,softmax,min_max}}:{LOCAL}) < 1",
            '"All methods achieve fairly high accuracy", Sec. 4.3; the point is ours',
            derived=True,
        ),
    ),
    repetitions=REPETITIONS,
    sources=sources.SOURCES,
    departures=sources.DEPARTURES,
    medium=MEDIUM,
    smoke=SMOKE,
    small=Scale(SMALL, 3, FEWER),
)

FIGURE_6B = Suite(
    name="fedas/fig6b",
    title="CD2-pFed with and without alignment",
    source="FedAS, Fig. 6b and Sec. 4.3; no number of it is in the text",
    base=FIGURE,
    axes={
        "method": {
            "cd2": method("CD2-pFed", "cd2_pfed"),
            "cd2_pa": method("CD2-pFed + PA", "fedas", split="channels", synchronize=False),
        }
    },
    measures=(TRAINED, ON_RECEIPT),
    exhibits=(
        Grid(("method",), ("measure",), caption="Last round, percent"),
        Curves(LOCAL, caption="Accuracy after local training, each round's cohort"),
    ),
    claims=(
        Claim("Alignment raises CD2-pFed's accuracy", f"cd2_pa:{LOCAL} > cd2:{LOCAL}", '"significantly", Sec. 4.3'),
    ),
    repetitions=REPETITIONS,
    sources=sources.DECOUPLED,
    departures=sources.DEPARTURES,
    medium=MEDIUM,
    smoke=SMOKE,
    small=Scale(
        {**SMALL, "data.train_size": 1000}, 3, f"{FEWER}; two thirds of these images, as every step costs three"
    ),
)

# -- Figure 5: along training ------------------------------------------------------------------------------------------


def of_tables() -> dict[tuple[str, str], Published]:
    """The numbers that Tables 3 and 2 have for these cells."""
    tables = {"cifar10": TABLE_3, "cifar100": TABLE_2}
    return {
        (f"{data}/{name}", LOCAL): table.published[f"b0.1/p0.6/{name}", LOCAL]
        for data, table in tables.items()
        for name in METHODS
    }


FIGURE_5 = Suite(
    name="fedas/fig5",
    title="Accuracy over rounds at P 0.6, β 0.1",
    source="FedAS, Fig. 5 (a: CIFAR-10, b: CIFAR-100); the curves are lost, their cells of Tables 3 and 2 are here",
    base=FIGURE,
    axes={"dataset": DATA, "method": METHODS},
    measures=(TRAINED, ON_RECEIPT, Measure(f"{LOCAL}@50", "rounds to 50 %", unit=100, digits=0, better="low"),
              Measure(f"{LOCAL}@25", "rounds to 25 %", unit=100, digits=0, better="low")),
    exhibits=(
        Curves(LOCAL, panel="dataset", caption="Accuracy after local training, each round's cohort"),
        Curves(RECEIVED, panel="dataset", caption="On receipt (FedAvg-P, FedProx-P, FedBABU: one model for all)"),
        Grid(("method",), ("dataset", "measure"), caption="Last round in percent, and rounds to a target"),
    ),
    published=of_tables(),
    claims=(
        Claim("FedAS is the most accurate", f"*/fedas:{LOCAL} > */{{!fedas}}:{LOCAL}", "Sec. 4.2"),
        Claim(
            "Fast convergence: on CIFAR-10 FedAS needs no more rounds to 50 % than any other",
            f"cifar10/fedas:{LOCAL}@50 <= cifar10/{{!fedas}}:{LOCAL}@50",
            "Sec. 4.2; the target is ours", derived=True,
        ),
        Claim(
            "Fast convergence: on CIFAR-100 FedAS needs no more rounds to 25 % than any other",
            f"cifar100/fedas:{LOCAL}@25 <= cifar100/{{!fedas}}:{LOCAL}@25",
            "Sec. 4.2; the target is ours", derived=True,
        ),
    ),
    repetitions=REPETITIONS,
    sources=sources.FIGURE_5,
    departures=sources.DEPARTURES,
    medium=MEDIUM,
    smoke=SMOKE,
    small=Scale(SMALL, 3, FEWER),
)  # fmt: skip

# -- Figure 7: batch size and local epochs -----------------------------------------------------------------------------


def as_many_steps(path: str, value: int, rounds: int) -> Level:
    """A level in which clients take as many steps in all as with B 16 and E 5 in 40 rounds, or at scale small in 10."""
    changes = {path: value, "training.rounds": rounds, "evaluation.global_every": rounds}
    few = max(1, rounds // 4)
    small = {path: value, "training.rounds": few, "evaluation.every": few, "evaluation.global_every": few}
    return Level(changes, f"{value}", at={"small": small})


BATCHES = {"b8": (8, 20), "b32": (32, 80), "b64": (64, 160)}
EPOCHS = {"e1": (1, 200), "e2": (2, 100), "e10": (10, 20)}
FIGURE_7 = Suite(
    name="fedas/fig7",
    title="Batch sizes and local epochs, at a constant number of steps",
    source="FedAS, Fig. 7 and Sec. 4.3: deviations from the mean accuracy; no number of it is in the text",
    base=FIGURE,
    axes={
        "batch": {
            "b16": Level({}, "16"),
            **{label: as_many_steps("training.batch_size", b, rounds) for label, (b, rounds) in BATCHES.items()},
        },
        "epochs": {
            "e5": Level({}, "5"),
            **{label: as_many_steps("training.local_epochs", e, rounds) for label, (e, rounds) in EPOCHS.items()},
        },
        "method": FEDAS,
    },
    absent=tuple(f"{b}/{e}/fedas" for b in BATCHES for e in EPOCHS),
    measures=(TRAINED, ON_RECEIPT),
    exhibits=(
        Grid(("batch", "epochs"), ("measure",), caption="Last round, percent"),
        Over("batch", ((0.0, LOCAL),), "*/e5/fedas", caption="Batch size, E 5", xlabel="B"),
        Over("epochs", ((0.0, LOCAL),), "b16/*/fedas", caption="Local epochs, B 16", xlabel="E"),
    ),
    claims=(
        Claim(
            "Robust to the batch size: no more than a point from the mean",
            f"abs({{b8,b16,b32,b64}}/e5/fedas:{LOCAL} - mean({{b8,b16,b32,b64}}/e5/fedas:{LOCAL})) < 1",
            "Sec. 4.3; the point is ours", derived=True,
        ),
        Claim(
            "Robust to the number of local epochs: no more than a point from the mean",
            f"abs(b16/{{e1,e2,e5,e10}}/fedas:{LOCAL} - mean(b16/{{e1,e2,e5,e10}}/fedas:{LOCAL})) < 1",
            "Sec. 4.3; the point is ours", derived=True,
        ),
    ),
    repetitions=REPETITIONS,
    sources=sources.FIGURE_7,
    departures=sources.DEPARTURES,
    medium=MEDIUM,
    smoke=SMOKE,
    small=Scale(
        {**LAST, "training.local_epochs": 5}, 3,
        "10 clients with 135 training images each, the paper's batches and epochs in a quarter of its rounds, at four "
        "times the rate; of so few images the last batch is seldom full, so that large batches take some more steps",
    ),
)  # fmt: skip

SUITES = (
    TABLE_2, TABLE_3, TABLE_4, FIGURE_3A, FIGURE_3B, FIGURE_4A, FIGURE_4B, FIGURE_5, FIGURE_6A, FIGURE_6B, FIGURE_7,
)  # fmt: skip
