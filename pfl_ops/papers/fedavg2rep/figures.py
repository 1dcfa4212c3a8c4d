"""FedAvg2Rep's Figures 1, 2 and 4 to 7: schedules, learning rates, participation, curves over rounds."""

from functools import partial

from pfl_ops.papers.claims import Claim, about, derived
from pfl_ops.papers.exhibits import Allocation, Curves, Grid
from pfl_ops.papers.fedavg2rep import setting
from pfl_ops.papers.fedavg2rep.setting import ACC, SMALL_IMAGES, TOP_1, fedavg2rep_suite
from pfl_ops.papers.fedavg2rep.tables import BY_LABELS, TABLE_2, TABLE_3, TABLE_4
from pfl_ops.papers.sources import fedavg2rep as sources
from pfl_ops.papers.suite import Axis, Level, Measure, Scale

of_lost_image = partial(fedavg2rep_suite, damage=("The image is lost.",))
"""A suite of a figure whose image is lost."""


def by(axis: str, target: float | None = None) -> tuple[Curves, Grid]:
    """The accuracy over rounds, and that of the last round as a table, by the levels of an axis."""
    curves = Curves(ACC, target=target, caption="Test accuracy", ylabel="Top-1 accuracy")
    return curves, Grid(rows=(axis,), columns=("measure",))


# -- Figure 1 ----------------------------------------------------------------------------------------------------------


def scheduled(title: str, **changes: object) -> Level:
    """Centralized training under another schedule."""
    named = {path.replace("__", "."): value for path, value in changes.items()}
    return Level({**setting.CENTRALIZED.changes, **named}, title, at=setting.CENTRALIZED.at)


FIGURE_1 = of_lost_image(
    name="fedavg2rep/fig1",
    title="Centralized training of FakeLeNet-5 on CIFAR-100 by learning rate schedule",
    source="FedAvg2Rep, Figure 1: its image is lost; of the schedules only cosine annealing is named",
    axes={
        "split": {"iid": setting.IID},
        "method": {
            "cosine": setting.CENTRALIZED,
            "constant": scheduled("Constant", algorithm__schedule="constant"),
            "exponential": scheduled("Exponential", algorithm__schedule="constant", training__lr_decay=0.97),
        },
    },
    exhibits=by("method"),
    published={("iid/cosine", ACC): TABLE_2.published["iid/j4/centralized", ACC]},
    claims=about(
        ACC,
        derived(
            "The cosine annealing scheduler is the best",
            "iid/cosine > max(iid/{constant,exponential})",
            "Section 3.2.1, by what was chosen; the others are ours",
        ),
    ),
    sources=sources.FIGURE_1,
    departures=(*sources.OF_CENTRALIZED, *sources.ROUND),
    unmeasured=("The test loss, which the figure shows too, is not tracked.", *TABLE_2.unmeasured[1:]),
    small=Scale(repetitions=3, note=f"{SMALL_IMAGES}; 40 epochs"),
)

# -- Figure 2 ----------------------------------------------------------------------------------------------------------

FIGURE_2 = of_lost_image(
    name="fedavg2rep/fig2",
    title="FedAvg on Shakespeare at several learning rates",
    source="FedAvg2Rep, Figure 2: its image is lost; Section 3.2.2 names a plateau at 18.5 % and η = 1",
    axes={
        "split": {"shakespeare_iid": setting.SHAKESPEARE_IID},
        "steps": setting.FOUR,
        "method": setting.FEDAVG,
        "eta": {f"eta{eta:g}": Level({"training.lr": eta}, f"η = {eta:g}") for eta in (0.01, 0.1, 1.0)},
    },
    exhibits=by("eta", target=0.185),
    published={("shakespeare_iid/j4/fedavg/eta1", ACC): TABLE_2.published["shakespeare_iid/j4/fedavg", ACC]},
    claims=about(
        ACC,
        derived(
            "η = 1 escapes the local minimum: it is better than lower rates",
            "shakespeare_iid/j4/fedavg/eta1 > shakespeare_iid/j4/fedavg/{eta0.01,eta0.1}",
            "Section 3.2.2; the lower rates are ours",
            untrained=True,
        ),
        derived(
            "At a low rate accuracy hardly improves over 18.5 %",
            "shakespeare_iid/j4/fedavg/eta0.01 < 20",
            "Section 3.2.2; the rate and 20 % are ours",
            untrained=True,
        ),
    ),
    sources=sources.FIGURE_2,
    departures=(*sources.OF_LINES, *sources.ROUND),
    unmeasured=("That more local steps help against the plateau, too, has no setting in the text.",),
    small=Scale(repetitions=3, note=setting.SMALL_LINES),
    exceptions={"*/j4/fedavg/*": setting.ROUNDS_SHAKESPEARE["*/j4/fedavg"]},
)

# -- Figures 4 and 5 ---------------------------------------------------------------------------------------------------

PARTICIPATION: Axis = {
    **{
        f"dir{gamma:g}": Level({"participation.kind": "dirichlet", "participation.gamma": gamma}, f"γ = {gamma:g}")
        for gamma in (0.1, 0.5, 1.0, 10.0)
    },
    "random": Level(title="random selection"),
}
LATE = (500, 1300)

FIGURE_4 = of_lost_image(
    name="fedavg2rep/fig4",
    title="FedAvg on CIFAR-100, IID: participation by a Dirichlet distribution against random selection",
    source="FedAvg2Rep, Figure 4: its image is lost; the text names rounds 500 (γ = 0.1) and 1300 (random)",
    axes={
        "split": {"iid": setting.IID},
        "steps": setting.FOUR,
        "method": setting.FEDAVG,
        "participation": PARTICIPATION,
    },
    measures=(TOP_1, *(Measure(f"{ACC}#{t}", f"... in round {t}", digits=1) for t in LATE)),
    exhibits=by("participation"),
    published={("iid/j4/fedavg/random", ACC): TABLE_2.published["iid/j4/fedavg", ACC]},
    claims=about(
        ACC,
        Claim(
            "As γ increases, so does the test accuracy",
            " < ".join(f"iid/j4/fedavg/{gamma}" for gamma in PARTICIPATION),
            "Section 4.4; uniform participation is γ → ∞",
        ),
        derived(
            "With γ = 0.1 accuracy ceases to improve after 500 rounds",
            "iid/j4/fedavg/dir0.1 - iid/j4/fedavg/dir0.1#500 < 1",
            "Section 4.4; one point is ours",
        ),
        Claim(
            "With random selection it continues to improve up to 1300 rounds",
            "iid/j4/fedavg/random#1300 > iid/j4/fedavg/random#500",
            "Section 4.4",
        ),
    ),
    sources=sources.PARTICIPATIONS,
    departures=(*sources.OF_IMAGES, *sources.ROUND),
    unmeasured=(
        *setting.UNMEASURED,
        "Figure 3, the clients' probabilities by γ, is no experiment: each run's table of clients has them.",
        "At smaller scales there are fewer than 500 rounds, and two claims are not judged.",
    ),
    small=Scale(repetitions=5, note=f"{SMALL_IMAGES}; 240 rounds"),
)

FIGURE_5 = of_lost_image(
    name="fedavg2rep/fig5",
    title="FedAvg on Shakespeare, IID: participation by a Dirichlet distribution against random selection",
    source="FedAvg2Rep, Figure 5: its image is lost",
    axes={
        "split": {"shakespeare_iid": setting.SHAKESPEARE_IID},
        "steps": setting.FOUR,
        "method": setting.FEDAVG,
        "participation": PARTICIPATION,
    },
    exhibits=by("participation"),
    published={("shakespeare_iid/j4/fedavg/random", ACC): TABLE_2.published["shakespeare_iid/j4/fedavg", ACC]},
    claims=about(
        ACC,
        derived(
            "Participation has only a slight impact",
            "abs(shakespeare_iid/j4/fedavg/random - shakespeare_iid/j4/fedavg/dir0.1) < 3",
            "Section 4.4; three points are ours",
        ),
    ),
    sources=sources.PARTICIPATIONS,
    departures=(*sources.OF_LINES, *sources.ROUND),
    small=Scale(repetitions=3, note=setting.SMALL_LINES),
    exceptions={"*/j4/fedavg/*": setting.ROUNDS_SHAKESPEARE["*/j4/fedavg"]},
)

# -- Figure 6 ----------------------------------------------------------------------------------------------------------

FIGURE_6 = of_lost_image(
    name="fedavg2rep/fig6",
    title="Labels of the clients in Shakespeare",
    source="FedAvg2Rep, Figure 6: the labels of 12 random clients; its image is lost. The cell is Table 3's",
    axes={"split": setting.OWN, "steps": setting.FOUR, "method": setting.FEDAVG},
    exhibits=(Allocation("shakespeare/j4/fedavg", caption="Who holds which characters"),),
    published={("shakespeare/j4/fedavg", ACC): TABLE_3.published["shakespeare/j4/fedavg", ACC]},
    sources=sources.TABLES,
    unmeasured=("That clients have a similar distribution of labels is left to the eye: no measure of it is named.",),
    small=Scale(note=setting.SMALL_LINES),
    exceptions={"*/j4/fedavg": setting.ROUNDS_SHAKESPEARE["*/j4/fedavg"]},
)

# -- Figure 7 ----------------------------------------------------------------------------------------------------------

FIGURE_7 = of_lost_image(
    name="fedavg2rep/fig7",
    title="Accuracy over rounds from pre-trained weights and of FedAvg2Rep, by N_C and J",
    source="FedAvg2Rep, Figure 7: cells of Table 4, whose numbers are where the curves end; its image is lost",
    axes={
        "split": BY_LABELS,
        "steps": setting.STEPS,
        "method": {name: setting.HYBRIDS[name] for name in ("pretrained", "fedavg2rep")},
    },
    measures=(TOP_1, *(Measure(f"{ACC}#{t}", f"... in round {t}", digits=1) for t in (100, 500))),
    exhibits=(
        Curves(ACC, cells="*/*/pretrained", panel="split", caption="(a) Pre-trained", ylabel="Top-1 accuracy"),
        Curves(ACC, cells="*/*/fedavg2rep", panel="split", caption="(b) FedAvg2Rep", ylabel="Top-1 accuracy"),
    ),
    published={
        at: number for at, number in TABLE_4.published.items() if at[0].endswith(("/pretrained", "/fedavg2rep"))
    },
    claims=about(
        ACC,
        derived(
            "Pre-trained, J = 4 and 8: single-class clients' accuracy peaks at first, then declines",
            "nc1/{j4,j8}/pretrained#100 > nc1/{j4,j8}/pretrained",
            "Section 4.6.2; round 100 is ours",
        ),
        Claim(
            "FedAvg2Rep's curve continues to rise after the warm-up, particularly for N_C = 5 and 10",
            "{nc5,nc10}/*/fedavg2rep > {nc5,nc10}/*/fedavg2rep#500",
            "Section 4.6.2; round 500 is the warm-up's last",
        ),
    ),
    sources=sources.TABLE_4,
    departures=(*sources.OF_IMAGES, *sources.OF_PRETRAINED),
    unmeasured=(
        *setting.UNMEASURED,
        *setting.WITHOUT_FILE,
        "At smaller scales the warm-up ends before round 500, and that claim is not judged.",
    ),
    small=TABLE_4.small,
    exceptions=setting.ROUNDS_HYBRIDS,
)
