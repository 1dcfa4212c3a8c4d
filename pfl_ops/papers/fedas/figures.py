"""FedAS' Figures 3 to 7: Fisher information, variants, curves over rounds, batch sizes and epochs."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pfl_ops.papers.claims import Claim, about, derived
from pfl_ops.papers.exhibits import Curves, Grid, Over
from pfl_ops.papers.fedas import setting
from pfl_ops.papers.fedas.setting import FEWER, LOCAL, ON_RECEIPT, RECEIVED, TRAINED, fedas_suite
from pfl_ops.papers.fedas.tables import TABLE_2, TABLE_3
from pfl_ops.papers.published import Published
from pfl_ops.papers.sources import fedas as sources
from pfl_ops.papers.suite import Axis, Level, Measure, Scale, method

# -- Figures 3 and 4a: Fisher information ------------------------------------------------------------------------------

WHOLE, TOP, ANY = "method/whole/mean", "method/top/mean", "method/any/mean"
FIGURE_3A = fedas_suite(
    name="fedas/fig3a",
    title="Putting back the 5 % of parameters with most Fisher information, or any 5 %",
    source="FedAS, Fig. 3a and Sec. 3.3; no number of it is in the text",
    base=setting.FIGURE,
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
        derived(
            "A random 5 % has minor effects: at most 5 points",
            f"s5:{WHOLE} - s5:{ANY} <= 5",
            "5 points are ours; the paper gives no number",
        ),
        derived("The top 5 % cost at least 10 points", f"s5:{WHOLE} - s5:{TOP} >= 10", "10 points are ours"),
    ),
    sources=sources.SUBSTITUTED,
    small=Scale(setting.LAST, 3, FEWER),
)

WEIGHT, TRACE = "method/weight", "method/trace"
READINGS = (
    "of all three readings of the Fisher information, which is ours: single samples are our departure, the sum over "
    "the data is the letter of Eq. 5 and 6, batches are the published code"
)
FISHER: Axis = {
    "sample": replace(setting.METHODS["fedas"], title="squares of single samples (ours)"),
    "dataset": method("squared sum over the data (Eq. 5, 6)", "fedas", fisher="dataset"),
    "batch": method("sum of squares of batches (published code)", "fedas", fisher="batch"),
}
STRAGGLERS: Mapping[str, Any] = {
    **setting.FIGURE,
    "participation.kind": "stragglers",
    "participation.stragglers": 0.5,
    "participation.chance": 0.1,
}

FIGURE_3B = fedas_suite(
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
        derived(
            "By three readings of it, the trace of online clients keeps rising along training",
            f"*:{TRACE}/online/mean > *:{TRACE}/online/mean#1",
            "Sec. 3.3; here: last round against first. It has to fall where gradients vanish as training converges. "
            f"Claimed here {READINGS}",
        ),
        derived(
            "By three readings of it, stragglers have a relatively low trace",
            f"*:{TRACE}/stragglers/mean < *:{TRACE}/online/mean",
            f"Sec. 3.3; claimed here {READINGS}",
        ),
    ),
    sources=sources.FIGURE_3B,
    small=Scale(setting.LAST, 3, FEWER),
)

FIGURE_4A = fedas_suite(
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
        derived(
            "By three readings of the trace, online clients weigh more than stragglers",
            f"*:{WEIGHT}/online/mean > *:{WEIGHT}/stragglers/mean",
            f"Sec. 3.4; claimed here {READINGS}",
        ),
    ),
    sources=sources.STRAGGLERS,
    small=Scale(setting.LAST, 3, FEWER),
)

# -- Figures 4b, 6a, 6b: other ways to do it ---------------------------------------------------------------------------

of_variants = partial(fedas_suite, base=setting.FIGURE, measures=(TRAINED, ON_RECEIPT))
"""A suite of variants of a method."""


def by(axis: str) -> tuple[Grid, Curves]:
    """The last round by the levels of an axis, and the accuracy over rounds."""
    return (
        Grid((axis,), ("measure",), caption="Last round, percent"),
        Curves(LOCAL, caption="Accuracy after local training, each round's cohort"),
    )


FIGURE_4B = of_variants(
    name="fedas/fig4b",
    title="Other manners and objects of alignment",
    source="FedAS, Fig. 4b and Sec. 3.4; no number of it is in the text",
    axes={
        "alignment": {
            "fedas": setting.METHODS["fedas"],
            "parallel": method("beside training", "fedas", align="parallel"),
            "others": method("to others' features", "fedas", align="global"),
        }
    },
    exhibits=by("alignment"),
    claims=(
        Claim("FedAS is above alignment beside training", f"fedas:{LOCAL} > parallel:{LOCAL}", "Sec. 3.4"),
        Claim("FedAS is above alignment to the others' features", f"fedas:{LOCAL} > others:{LOCAL}", "Sec. 3.4"),
    ),
    sources=sources.SOURCES,
)

FIGURE_6A = of_variants(
    name="fedas/fig6a",
    title="Three ways from traces to weights",
    source="FedAS, Fig. 6a and Sec. 4.3; no number of it is in the text",
    axes={
        "normalisation": {
            "proportional": setting.METHODS["fedas"],
            "softmax": method("softmax", "fedas", normalise="softmax"),
            "min_max": method("min-max", "fedas", normalise="min_max"),
        }
    },
    exhibits=by("normalisation"),
    claims=(
        derived(
            "All three are about as accurate: the best and the worst are less than a point apart",
            f"max({{proportional,softmax,min_max}}:{LOCAL}) - min({{proportional,softmax,min_max}}:{LOCAL}) < 1",
            '"All methods achieve fairly high accuracy", Sec. 4.3; the point is ours',
        ),
    ),
    sources=sources.SOURCES,
)

FIGURE_6B = of_variants(
    name="fedas/fig6b",
    title="CD2-pFed with and without alignment",
    source="FedAS, Fig. 6b and Sec. 4.3; no number of it is in the text",
    axes={
        "method": {
            "cd2": method("CD2-pFed", "cd2_pfed"),
            "cd2_pa": method("CD2-pFed + PA", "fedas", split="channels", synchronize=False),
        }
    },
    exhibits=by("method"),
    claims=(
        Claim("Alignment raises CD2-pFed's accuracy", f"cd2_pa:{LOCAL} > cd2:{LOCAL}", '"significantly", Sec. 4.3'),
    ),
    sources=sources.DECOUPLED,
    small=Scale(
        {**setting.SMALL, "data.train_size": 1000}, 3, f"{FEWER}; two thirds of these images, as every step costs three"
    ),
)

# -- Figure 5: along training ------------------------------------------------------------------------------------------


def of_tables() -> dict[tuple[str, str], Published]:
    """The numbers that Tables 3 and 2 have for these cells."""
    tables = {"cifar10": TABLE_3, "cifar100": TABLE_2}
    return {
        (f"{data}/{name}", LOCAL): table.published[f"b0.1/p0.6/{name}", LOCAL]
        for data, table in tables.items()
        for name in setting.METHODS
    }


FIGURE_5 = fedas_suite(
    name="fedas/fig5",
    title="Accuracy over rounds at P 0.6, β 0.1",
    source="FedAS, Fig. 5 (a: CIFAR-10, b: CIFAR-100); the curves are lost, their cells of Tables 3 and 2 are here",
    base=setting.FIGURE,
    axes={"dataset": setting.DATA, "method": setting.METHODS},
    measures=(TRAINED, ON_RECEIPT, Measure(f"{LOCAL}@50", "rounds to 50 %", unit=100, digits=0, better="low"),
              Measure(f"{LOCAL}@25", "rounds to 25 %", unit=100, digits=0, better="low")),
    exhibits=(
        Curves(LOCAL, panel="dataset", caption="Accuracy after local training, each round's cohort"),
        Curves(RECEIVED, panel="dataset", caption="On receipt (FedAvg-P, FedProx-P, FedBABU: one model for all)"),
        Grid(("method",), ("dataset", "measure"), caption="Last round in percent, and rounds to a target"),
    ),
    published=of_tables(),
    claims=about(
        LOCAL,
        Claim("FedAS is the most accurate", "*/fedas > */{!fedas}", "Sec. 4.2"),
        *(
            derived(
                f"Fast convergence: on {title} FedAS needs no more rounds to {target} % than any other",
                f"{data}/fedas@{target} <= {data}/{{!fedas}}@{target}",
                "Sec. 4.2; the target is ours",
            )
            for data, title, target in (("cifar10", "CIFAR-10", 50), ("cifar100", "CIFAR-100", 25))
        ),
    ),
    sources=sources.FIGURE_5,
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
FIGURE_7 = fedas_suite(
    name="fedas/fig7",
    title="Batch sizes and local epochs, at a constant number of steps",
    source="FedAS, Fig. 7 and Sec. 4.3: deviations from the mean accuracy; no number of it is in the text",
    base=setting.FIGURE,
    axes={
        "batch": {
            "b16": Level({}, "16"),
            **{label: as_many_steps("training.batch_size", b, rounds) for label, (b, rounds) in BATCHES.items()},
        },
        "epochs": {
            "e5": Level({}, "5"),
            **{label: as_many_steps("training.local_epochs", e, rounds) for label, (e, rounds) in EPOCHS.items()},
        },
        "method": setting.FEDAS,
    },
    absent=tuple(f"{b}/{e}/fedas" for b in BATCHES for e in EPOCHS),
    measures=(TRAINED, ON_RECEIPT),
    exhibits=(
        Grid(("batch", "epochs"), ("measure",), caption="Last round, percent"),
        Over("batch", ((0.0, LOCAL),), "*/e5/fedas", caption="Batch size, E 5", xlabel="B"),
        Over("epochs", ((0.0, LOCAL),), "b16/*/fedas", caption="Local epochs, B 16", xlabel="E"),
    ),
    claims=about(
        LOCAL,
        derived(
            "Robust to the batch size: no more than a point from the mean",
            "abs({b8,b16,b32,b64}/e5/fedas - mean({b8,b16,b32,b64}/e5/fedas)) < 1",
            "Sec. 4.3; the point is ours",
        ),
        derived(
            "Robust to the number of local epochs: no more than a point from the mean",
            "abs(b16/{e1,e2,e5,e10}/fedas - mean(b16/{e1,e2,e5,e10}/fedas)) < 1",
            "Sec. 4.3; the point is ours",
        ),
    ),
    sources=sources.FIGURE_7,
    small=Scale(
        {**setting.LAST, "training.local_epochs": 5}, 3,
        "10 clients with 135 training images each, the paper's batches and epochs in a quarter of its rounds, at four "
        "times the rate; of so few images the last batch is seldom full, so that large batches take some more steps",
    ),
)  # fmt: skip
