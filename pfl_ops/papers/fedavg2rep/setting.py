"""FedAvg2Rep (fourth seed): Tables 2 to 4, Figures 1, 2 and 4 to 7.

The setting, as far as it is stated: 100 clients, 10 % of them a round, plain means of their models. CIFAR-100 on
FakeLeNet-5, all 50,000 training images, 500 a client, N_C classes each; η 0.1, no momentum, weight decay 4e-3; J
local steps a round over R = 2000 · 4/J rounds. Shakespeare on CharLSTM, 100 roles with 2,000 records each; η 1;
R = 200 · 4/J. FedAvg2Rep begins with 500 rounds of FedAvg with J = 4 and goes on for 1500 · 4/J rounds in which a
client takes J − 1 steps of the head and one of the whole model; FedRep has 2000 · 4/J such rounds and no others,
*pre-trained* 1500 · 4/J from weights of Tiny ImageNet. All data in one place: η 0.01, B 64, momentum 0.9, weight decay
4e-4, cosine annealing.

The score is the global model's accuracy on the global test set. The paper publishes one number a cell: neither how many
runs stand behind it, nor a spread.
"""

from pfl_ops.papers.claims import Claim
from pfl_ops.papers.exhibits import Allocation, Curves, Grid
from pfl_ops.papers.published import load
from pfl_ops.papers.sources import fedavg2rep as sources
from pfl_ops.papers.suite import Axis, Changes, Level, Measure, Scale, Suite

ACC = "test/G/global/mean"
TOP_1 = Measure(ACC, "Top-1 accuracy", digits=1)
REPETITIONS = 5
"""The paper names no number: a claim of one seed could never be judged."""

# -- what all experiments share ----------------------------------------------------------------------------------------

BASE: Changes = {
    "data.train_size": None,
    "participation.share": 0.1,
    "participation.weighting": "uniform",
    "training.batch_size": 64,
    "training.optimiser": "sgd",
    "training.lr_decay": 1.0,
    "training.momentum": 0.0,
    "evaluation.every": 10,
    "evaluation.global_every": 500,
    "evaluation.clients": 10,
}
CIFAR: Changes = {
    "data.name": "cifar100",
    "model.name": "fakelenet5",
    "partition.clients": 100,
    "training.lr": 0.1,
    "training.weight_decay": 4e-3,
    "evaluation.subset": None,
}
SHAKESPEARE: Changes = {
    "data.name": "shakespeare",
    "data.roles": 100,
    "data.records": 2000,
    "model.name": "char_lstm",
    "partition.clients": 100,
    "training.lr": 1.0,
    "training.weight_decay": 0.0,
    "evaluation.subset": 5000,
}
SMALL_CIFAR: Changes = {
    "data.train_size": 10_000,
    "model.name": "cnn_tiny",
    "model.hidden": 64,
    "training.batch_size": 20,
}
SMALL_SHAKESPEARE: Changes = {"data.records": 200, "model.hidden": 64, "training.batch_size": 32}


def images(title: str, kind: str, labels: int | None = None) -> Level:
    """CIFAR-100 split by `kind`; at smoke its 8 clients need 13 classes each, or some would belong to nobody."""
    chosen: Changes = {"partition.classes_per_client": labels} if labels else {}
    fewest: Changes = {"partition.classes_per_client": max(13, labels)} if labels else {}
    shuffled: Changes = {"partition.stratified": False} if kind == "iid" else {}
    return Level(
        {**CIFAR, "partition.kind": kind, **chosen, **shuffled},
        title,
        at={"small": SMALL_CIFAR, "smoke": {"model.name": "cnn_tiny", **fewest}},
    )


def lines(title: str, kind: str) -> Level:
    """Shakespeare split by `kind`."""
    at = {"small": SMALL_SHAKESPEARE, "smoke": {"model.hidden": 16}}
    return Level({**SHAKESPEARE, "partition.kind": kind}, title, at=at)


IID = images("CIFAR-100, IID", "iid")
SHAKESPEARE_IID = lines("Shakespeare, IID", "iid")
LABELS: Axis = {f"nc{labels}": images(f"N_C = {labels}", "shards", labels) for labels in (50, 10, 5, 1)}
OWN: Axis = {"shakespeare": lines("Shakespeare", "natural")}

STEPS: Axis = {
    f"j{steps}": Level(
        {"training.local_steps": steps, "training.rounds": 2000 * 4 // steps},
        f"J = {steps}",
        at={"small": {"training.rounds": 240 * 4 // steps}},
    )
    for steps in (4, 8, 16)
}
FOUR: Axis = {"j4": STEPS["j4"]}

FEDAVG: Axis = {"fedavg": Level({"algorithm.name": "fedavg"}, "FedAvg")}
CENTRALIZED = Level(
    {
        "algorithm.name": "centralized",
        "algorithm.schedule": "cosine",
        "training.local_epochs": 1,
        "training.rounds": 140,
        "training.lr": 0.01,
        "training.batch_size": 64,
        "training.momentum": 0.9,
        "training.weight_decay": 4e-4,
    },
    "Centralized",
    at={"small": {"training.rounds": 40, "training.batch_size": 64}},
)
HYBRIDS: Axis = {
    "fedrep": Level({"algorithm.name": "fedavg2rep", "algorithm.warm_up": 0}, "FedRep"),
    "pretrained": Level(
        {
            "algorithm.name": "fedavg2rep",
            "algorithm.warm_up": 0,
            "model.weights": "tiny_imagenet.safetensors",
        },
        "Pre-trained",
        at={"smoke": {"model.weights": None}},
    ),
    "fedavg2rep": Level(
        {"algorithm.name": "fedavg2rep", "algorithm.warm_up": 500, "algorithm.warm_up_steps": 4},
        "FedAvg2Rep",
        at={"small": {"algorithm.warm_up": 60}, "smoke": {"algorithm.warm_up": 1}},
    ),
}


def rounds(paper: int, small: int) -> Level:
    """So many rounds; `small`: at that scale."""
    return Level({"training.rounds": paper}, at={"small": {"training.rounds": small}})


ROUNDS_SHAKESPEARE = {f"*/j{steps}/fedavg": rounds(200 * 4 // steps, 200 * 4 // steps) for steps in (4, 8, 16)}
ROUNDS_HYBRIDS = {
    **{f"*/j{steps}/pretrained": rounds(1500 * 4 // steps, 180 * 4 // steps) for steps in (4, 8, 16)},
    **{f"*/j{steps}/fedavg2rep": rounds(500 + 1500 * 4 // steps, 60 + 180 * 4 // steps) for steps in (4, 8, 16)},
}

# -- what the paper does not say ---------------------------------------------------------------------------------------

LAST = "which round is scored is not said (last: ours)"
UNMEASURED = ("Whether federated training augments images is not said: here it does not.",)
WITHOUT_FILE = (
    "Pre-trained needs weights of Tiny ImageNet, which is not among the data that can be had here. It runs where the "
    "working folder has tiny_imagenet.safetensors: FakeLeNet-5's parameters (a classifier of other width is drawn "
    "anew), as `centralized` leaves them on an .npz file of that data set; at small they must be those of cnn_tiny "
    "with 64 units. At smoke it starts from fresh weights, and no claim is judged.",
)
MEDIUM = Scale(
    note="The same as full: FakeLeNet-5 and CharLSTM can be trained on CPUs. A run on CIFAR-100 is 80,000 minibatches "
    "of 0.1 s of one core: two cores take some four days for Table 3, and eleven for Table 4."
)
SMALL_IMAGES = "cnn_tiny in place of FakeLeNet-5 and 10,000 images"
SMALL_LINES = "CharLSTM with 64 units and 200 records a role"

# -- Table 2 -----------------------------------------------------------------------------------------------------------

TABLE_2 = Suite(
    name="fedavg2rep/table2",
    title="FedAvg on IID data, and all data in one place",
    source=f"FedAvg2Rep, Table 2: 100 clients, 10 % a round, J 4; centralized: Sections 4.1 and 4.2; {LAST}",
    base=BASE,
    axes={
        "split": {"iid": IID, "shakespeare_iid": SHAKESPEARE_IID},
        "steps": FOUR,
        "method": {**FEDAVG, "centralized": CENTRALIZED},
    },
    measures=(TOP_1,),
    exhibits=(Grid(rows=("split",), columns=("method",), caption="Top-1 accuracy of the global model"),),
    published=load("fedavg2rep_table2"),
    claims=(
        Claim(
            "The federated results are worse than the centralized baseline",
            f"*/j4/fedavg:{ACC} < */j4/centralized:{ACC}",
            "Section 4.3",
        ),
    ),
    repetitions=REPETITIONS,
    sources=sources.TABLES,
    departures=(*sources.OF_IMAGES, *sources.OF_LINES, *sources.OF_CENTRALIZED, *sources.ROUND),
    unmeasured=(
        *UNMEASURED,
        "Centralized training uses standard augmentation, which there is not here, and 40,000 of the images, the "
        "others being held out; here all 50,000.",
    ),
    medium=MEDIUM,
    small=Scale(repetitions=3, note=f"{SMALL_IMAGES}; {SMALL_LINES}; 240 and 200 rounds, 40 and 8 epochs"),
    exceptions={
        "shakespeare_iid/j4/fedavg": ROUNDS_SHAKESPEARE["*/j4/fedavg"],
        "shakespeare_iid/j4/centralized": rounds(20, 8),
    },
)

# -- Table 3 -----------------------------------------------------------------------------------------------------------

NON_IID = "{nc50,nc10,nc5,nc1}"

TABLE_3 = Suite(
    name="fedavg2rep/table3",
    title="FedAvg by classes a client (N_C) and local steps (J)",
    source=f"FedAvg2Rep, Table 3: 100 clients, 10 % a round; {LAST}. The IID cells are Table 2's",
    base=BASE,
    axes={
        "split": {**LABELS, **OWN, "iid": IID, "shakespeare_iid": SHAKESPEARE_IID},
        "steps": STEPS,
        "method": FEDAVG,
    },
    absent=tuple(f"{split}/{steps}/fedavg" for split in ("iid", "shakespeare_iid") for steps in ("j8", "j16")),
    measures=(TOP_1,),
    exhibits=(
        Grid(
            rows=("split",),
            columns=("steps",),
            cells="{nc50,nc10,nc5,nc1,shakespeare}/*/fedavg",
            caption="Top-1 accuracy of the global model",
        ),
    ),
    published=load("fedavg2rep_table3"),
    claims=(
        Claim(
            "Clients' own roles are worse than IID data (Shakespeare)",
            f"shakespeare/j4/fedavg:{ACC} < shakespeare_iid/j4/fedavg:{ACC}",
            "Section 1.4, Tables 2 and 3",
        ),
        Claim(
            "Non-IID data have a huge impact: below IID data (CIFAR-100)",
            f"{NON_IID}/*/fedavg:{ACC} < iid/j4/fedavg:{ACC}",
            "Section 1.4, Tables 2 and 3",
        ),
        Claim(
            "... especially with smaller values of N_C",
            f"nc50/*/fedavg:{ACC} > nc10/*/fedavg:{ACC} > nc5/*/fedavg:{ACC} > nc1/*/fedavg:{ACC}",
            "Section 1.4; fails at N_C 50, as Section 4.5 says itself",
        ),
        Claim(
            "Surprisingly, N_C = 50 is poorer than N_C = 10",
            f"nc50/*/fedavg:{ACC} < nc10/*/fedavg:{ACC}",
            "Section 4.5",
        ),
        Claim(
            "More local steps worsen performance for small N_C",
            f"{{nc10,nc5}}/j4/fedavg:{ACC} > {{nc10,nc5}}/j8/fedavg:{ACC} > {{nc10,nc5}}/j16/fedavg:{ACC}",
            "Section 4.5",
        ),
        Claim(
            "With N_C = 50 more local steps appear beneficial: J = 16 above J = 4",
            f"nc50/j16/fedavg:{ACC} > nc50/j4/fedavg:{ACC}",
            "Section 4.5",
        ),
        Claim(
            "With N_C = 1 no improvement is observed",
            f"nc1/*/fedavg:{ACC} < 1.5",
            "Section 4.5; half a point over chance: ours",
            derived=True,
        ),
        Claim(
            "J = 4 yields the best accuracy across all heterogeneous scenarios",
            f"{{nc50,nc10,nc5,nc1,shakespeare}}/j4/fedavg:{ACC} >= "
            f"{{nc50,nc10,nc5,nc1,shakespeare}}/{{j8,j16}}/fedavg:{ACC}",
            "Section 4.6.2",
        ),
        Claim(
            "On Shakespeare a larger J does not help either",
            f"shakespeare/j4/fedavg:{ACC} >= shakespeare/{{j8,j16}}/fedavg:{ACC}",
            "Section 4.5",
        ),
        Claim(
            "Shakespeare's results are significantly better than CIFAR-100's",
            f"shakespeare/*/fedavg:{ACC} > {NON_IID}/*/fedavg:{ACC}",
            "Section 4.5",
        ),
    ),
    repetitions=REPETITIONS,
    sources=sources.TABLES,
    departures=(*sources.OF_IMAGES, *sources.OF_LINES, *sources.ROUND),
    unmeasured=UNMEASURED,
    medium=MEDIUM,
    small=Scale(repetitions=3, note=f"{SMALL_IMAGES}; {SMALL_LINES}; 240 · 4/J and 200 · 4/J rounds"),
    exceptions={f"{{shakespeare,shakespeare_iid}}{pattern[1:]}": more for pattern, more in ROUNDS_SHAKESPEARE.items()},
)

# -- Table 4 -----------------------------------------------------------------------------------------------------------

SOME = "{nc5,nc10,nc50}"
BY_LABELS: Axis = {name: LABELS[name] for name in ("nc1", "nc5", "nc10", "nc50")}

TABLE_4 = Suite(
    name="fedavg2rep/table4",
    title="FedRep, FedRep from pre-trained weights, and FedAvg2Rep, by N_C and J",
    source="FedAvg2Rep, Table 4: CIFAR-100, 100 clients, 10 % a round, at the end of training. FedAvg's cells are "
    "Table 3's",
    base=BASE,
    axes={"split": BY_LABELS, "steps": STEPS, "method": {**HYBRIDS, **FEDAVG}},
    measures=(TOP_1,),
    exhibits=(
        Grid(
            rows=("method",),
            columns=("split", "steps"),
            cells="*/*/{fedrep,pretrained,fedavg2rep}",
            caption="Top-1 accuracy of the global model",
        ),
    ),
    published={
        **load("fedavg2rep_table4"),
        **{at: number for at, number in TABLE_3.published.items() if at[0].startswith("nc")},
    },
    claims=(
        Claim(
            "FedRep: for all N_C the accuracy is higher with J = 4",
            f"*/j4/fedrep:{ACC} > */{{j8,j16}}/fedrep:{ACC}",
            "Section 4.6.1",
        ),
        Claim(
            "FedRep is below FedAvg",
            f"{SOME}/*/fedrep:{ACC} < {SOME}/*/fedavg:{ACC}",
            "ours, from Tables 3 and 4; Section 4.6.1 speaks of a poor quality",
            derived=True,
        ),
        Claim(
            "With N_C = 1 FedRep performs worse than FedAvg",
            f"nc1/*/fedrep:{ACC} < nc1/*/fedavg:{ACC}",
            "Section 4.6.1; both are at chance",
        ),
        Claim(
            "Pre-training is superior to the other schemes across all N_C",
            f"*/*/pretrained:{ACC} > */*/{{fedrep,fedavg2rep,fedavg}}:{ACC}",
            "Section 4.6.2",
        ),
        Claim(
            "Pre-training shows a good accuracy even for N_C = 1",
            f"nc1/*/pretrained:{ACC} > 10",
            "Section 4.6.2; ten points are ours",
            derived=True,
        ),
        Claim(
            "Pre-trained, more local steps lead to improved performance",
            f"*/j4/pretrained:{ACC} < */j8/pretrained:{ACC} < */j16/pretrained:{ACC}",
            "Section 4.6.2",
        ),
        Claim("FedAvg2Rep surpasses FedRep", f"*/*/fedavg2rep:{ACC} > */*/fedrep:{ACC}", "Section 4.6.2"),
        Claim(
            "FedAvg2Rep is below FedAvg",
            f"{SOME}/*/fedavg2rep:{ACC} < {SOME}/*/fedavg:{ACC}",
            "Section 4.6.2, Tables 3 and 4",
        ),
        Claim(
            "... slightly",
            f"{SOME}/*/fedavg:{ACC} - {SOME}/*/fedavg2rep:{ACC} < 2",
            "Section 4.6.2; two points are ours",
            derived=True,
        ),
        Claim(
            "FedAvg2Rep does not address the issues with N_C = 1",
            f"nc1/*/fedavg2rep:{ACC} < 1.5",
            "Section 4.6.2; half a point over chance: ours",
            derived=True,
        ),
        Claim(
            "FedAvg2Rep: the optimal J seems to be 4",
            f"*/j4/fedavg2rep:{ACC} >= */{{j8,j16}}/fedavg2rep:{ACC}",
            "Section 4.6.2",
        ),
    ),
    repetitions=REPETITIONS,
    sources=sources.TABLE_4,
    departures=(*sources.OF_IMAGES, *sources.OF_PRETRAINED),
    damage=('"See Table 2" and "consistent with Table 2" in Section 4.6.2 mean Table 3.',),
    unmeasured=(*UNMEASURED, *WITHOUT_FILE),
    medium=MEDIUM,
    small=Scale(repetitions=3, note=f"{SMALL_IMAGES}; an eighth of the rounds, about"),
    exceptions=ROUNDS_HYBRIDS,
)

# -- Figure 1 ----------------------------------------------------------------------------------------------------------


def scheduled(title: str, **changes: object) -> Level:
    """Centralized training under another schedule."""
    named = {path.replace("__", "."): value for path, value in changes.items()}
    return Level({**CENTRALIZED.changes, **named}, title, at=CENTRALIZED.at)


FIGURE_1 = Suite(
    name="fedavg2rep/fig1",
    title="Centralized training of FakeLeNet-5 on CIFAR-100 by learning rate schedule",
    source="FedAvg2Rep, Figure 1: its image is lost; of the schedules only cosine annealing is named",
    base=BASE,
    axes={
        "split": {"iid": IID},
        "method": {
            "cosine": CENTRALIZED,
            "constant": scheduled("Constant", algorithm__schedule="constant"),
            "exponential": scheduled("Exponential", algorithm__schedule="constant", training__lr_decay=0.97),
        },
    },
    measures=(TOP_1,),
    exhibits=(
        Curves(ACC, caption="Test accuracy", ylabel="Top-1 accuracy"),
        Grid(rows=("method",), columns=("measure",)),
    ),
    published={("iid/cosine", ACC): TABLE_2.published["iid/j4/centralized", ACC]},
    claims=(
        Claim(
            "The cosine annealing scheduler is the best",
            f"iid/cosine:{ACC} > max(iid/{{constant,exponential}}:{ACC})",
            "Section 3.2.1, by what was chosen; the others are ours",
            derived=True,
        ),
    ),
    repetitions=REPETITIONS,
    sources=sources.FIGURE_1,
    departures=(*sources.OF_CENTRALIZED, *sources.ROUND),
    damage=("The image is lost.",),
    unmeasured=("The test loss, which the figure shows too, is not tracked.", *TABLE_2.unmeasured[1:]),
    medium=MEDIUM,
    small=Scale(repetitions=3, note=f"{SMALL_IMAGES}; 40 epochs"),
)

# -- Figure 2 ----------------------------------------------------------------------------------------------------------

FIGURE_2 = Suite(
    name="fedavg2rep/fig2",
    title="FedAvg on Shakespeare at several learning rates",
    source="FedAvg2Rep, Figure 2: its image is lost; Section 3.2.2 names a plateau at 18.5 % and η = 1",
    base=BASE,
    axes={
        "split": {"shakespeare_iid": SHAKESPEARE_IID},
        "steps": FOUR,
        "method": FEDAVG,
        "eta": {f"eta{eta:g}": Level({"training.lr": eta}, f"η = {eta:g}") for eta in (0.01, 0.1, 1.0)},
    },
    measures=(TOP_1,),
    exhibits=(
        Curves(ACC, target=0.185, caption="Test accuracy", ylabel="Top-1 accuracy"),
        Grid(rows=("eta",), columns=("measure",)),
    ),
    published={("shakespeare_iid/j4/fedavg/eta1", ACC): TABLE_2.published["shakespeare_iid/j4/fedavg", ACC]},
    claims=(
        Claim(
            "η = 1 escapes the local minimum: it is better than lower rates",
            f"shakespeare_iid/j4/fedavg/eta1:{ACC} > shakespeare_iid/j4/fedavg/{{eta0.01,eta0.1}}:{ACC}",
            "Section 3.2.2; the lower rates are ours",
            derived=True,
        ),
        Claim(
            "At a low rate accuracy hardly improves over 18.5 %",
            f"shakespeare_iid/j4/fedavg/eta0.01:{ACC} < 20",
            "Section 3.2.2; the rate and 20 % are ours",
            derived=True,
        ),
    ),
    repetitions=REPETITIONS,
    sources=sources.FIGURE_2,
    departures=(*sources.OF_LINES, *sources.ROUND),
    damage=("The image is lost.",),
    unmeasured=("That more local steps help against the plateau, too, has no setting in the text.",),
    medium=MEDIUM,
    small=Scale(repetitions=3, note=SMALL_LINES),
    exceptions={"*/j4/fedavg/*": ROUNDS_SHAKESPEARE["*/j4/fedavg"]},
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

FIGURE_4 = Suite(
    name="fedavg2rep/fig4",
    title="FedAvg on CIFAR-100, IID: participation by a Dirichlet distribution against random selection",
    source="FedAvg2Rep, Figure 4: its image is lost; the text names rounds 500 (γ = 0.1) and 1300 (random)",
    base=BASE,
    axes={"split": {"iid": IID}, "steps": FOUR, "method": FEDAVG, "participation": PARTICIPATION},
    measures=(TOP_1, *(Measure(f"{ACC}#{t}", f"... in round {t}", digits=1) for t in LATE)),
    exhibits=(
        Curves(ACC, caption="Test accuracy", ylabel="Top-1 accuracy"),
        Grid(rows=("participation",), columns=("measure",)),
    ),
    published={("iid/j4/fedavg/random", ACC): TABLE_2.published["iid/j4/fedavg", ACC]},
    claims=(
        Claim(
            "As γ increases, so does the test accuracy",
            " < ".join(f"iid/j4/fedavg/{gamma}:{ACC}" for gamma in PARTICIPATION),
            "Section 4.4; uniform participation is γ → ∞",
        ),
        Claim(
            "With γ = 0.1 accuracy ceases to improve after 500 rounds",
            f"iid/j4/fedavg/dir0.1:{ACC} - iid/j4/fedavg/dir0.1:{ACC}#500 < 1",
            "Section 4.4; one point is ours",
            derived=True,
        ),
        Claim(
            "With random selection it continues to improve up to 1300 rounds",
            f"iid/j4/fedavg/random:{ACC}#1300 > iid/j4/fedavg/random:{ACC}#500",
            "Section 4.4",
        ),
    ),
    repetitions=REPETITIONS,
    sources=sources.PARTICIPATIONS,
    departures=(*sources.OF_IMAGES, *sources.ROUND),
    damage=("The image is lost.",),
    unmeasured=(
        *UNMEASURED,
        "Figure 3, the clients' probabilities by γ, is no experiment: each run's table of clients has them.",
        "At smaller scales there are fewer than 500 rounds, and two claims are not judged.",
    ),
    medium=MEDIUM,
    small=Scale(repetitions=5, note=f"{SMALL_IMAGES}; 240 rounds"),
)

FIGURE_5 = Suite(
    name="fedavg2rep/fig5",
    title="FedAvg on Shakespeare, IID: participation by a Dirichlet distribution against random selection",
    source="FedAvg2Rep, Figure 5: its image is lost",
    base=BASE,
    axes={
        "split": {"shakespeare_iid": SHAKESPEARE_IID},
        "steps": FOUR,
        "method": FEDAVG,
        "participation": PARTICIPATION,
    },
    measures=(TOP_1,),
    exhibits=(
        Curves(ACC, caption="Test accuracy", ylabel="Top-1 accuracy"),
        Grid(rows=("participation",), columns=("measure",)),
    ),
    published={("shakespeare_iid/j4/fedavg/random", ACC): TABLE_2.published["shakespeare_iid/j4/fedavg", ACC]},
    claims=(
        Claim(
            "Participation has only a slight impact",
            f"abs(shakespeare_iid/j4/fedavg/random:{ACC} - shakespeare_iid/j4/fedavg/dir0.1:{ACC}) < 3",
            "Section 4.4; three points are ours",
            derived=True,
        ),
    ),
    repetitions=REPETITIONS,
    sources=sources.PARTICIPATIONS,
    departures=(*sources.OF_LINES, *sources.ROUND),
    damage=("The image is lost.",),
    medium=MEDIUM,
    small=Scale(repetitions=3, note=SMALL_LINES),
    exceptions={"*/j4/fedavg/*": ROUNDS_SHAKESPEARE["*/j4/fedavg"]},
)

# -- Figure 6 ----------------------------------------------------------------------------------------------------------

FIGURE_6 = Suite(
    name="fedavg2rep/fig6",
    title="Labels of the clients in Shakespeare",
    source="FedAvg2Rep, Figure 6: the labels of 12 random clients; its image is lost. The cell is Table 3's",
    base=BASE,
    axes={"split": OWN, "steps": FOUR, "method": FEDAVG},
    measures=(TOP_1,),
    exhibits=(Allocation("shakespeare/j4/fedavg", caption="Who holds which characters"),),
    published={("shakespeare/j4/fedavg", ACC): TABLE_3.published["shakespeare/j4/fedavg", ACC]},
    repetitions=REPETITIONS,
    sources=sources.TABLES,
    damage=("The image is lost.",),
    unmeasured=("That clients have a similar distribution of labels is left to the eye: no measure of it is named.",),
    medium=MEDIUM,
    small=Scale(note=SMALL_LINES),
    exceptions={"*/j4/fedavg": ROUNDS_SHAKESPEARE["*/j4/fedavg"]},
)

# -- Figure 7 ----------------------------------------------------------------------------------------------------------

FIGURE_7 = Suite(
    name="fedavg2rep/fig7",
    title="Accuracy over rounds from pre-trained weights and of FedAvg2Rep, by N_C and J",
    source="FedAvg2Rep, Figure 7: cells of Table 4, whose numbers are where the curves end; its image is lost",
    base=BASE,
    axes={
        "split": BY_LABELS,
        "steps": STEPS,
        "method": {name: HYBRIDS[name] for name in ("pretrained", "fedavg2rep")},
    },
    measures=(TOP_1, *(Measure(f"{ACC}#{t}", f"... in round {t}", digits=1) for t in (100, 500))),
    exhibits=(
        Curves(ACC, cells="*/*/pretrained", panel="split", caption="(a) Pre-trained", ylabel="Top-1 accuracy"),
        Curves(ACC, cells="*/*/fedavg2rep", panel="split", caption="(b) FedAvg2Rep", ylabel="Top-1 accuracy"),
    ),
    published={
        at: number for at, number in TABLE_4.published.items() if at[0].endswith(("/pretrained", "/fedavg2rep"))
    },
    claims=(
        Claim(
            "Pre-trained, J = 4 and 8: single-class clients' accuracy peaks at first, then declines",
            f"nc1/{{j4,j8}}/pretrained:{ACC}#100 > nc1/{{j4,j8}}/pretrained:{ACC}",
            "Section 4.6.2; round 100 is ours",
            derived=True,
        ),
        Claim(
            "FedAvg2Rep's curve continues to rise after the warm-up, particularly for N_C = 5 and 10",
            f"{{nc5,nc10}}/*/fedavg2rep:{ACC} > {{nc5,nc10}}/*/fedavg2rep:{ACC}#500",
            "Section 4.6.2; round 500 is the warm-up's last",
        ),
    ),
    repetitions=REPETITIONS,
    sources=sources.TABLE_4,
    departures=(*sources.OF_IMAGES, *sources.OF_PRETRAINED),
    damage=("The image is lost.",),
    unmeasured=(
        *UNMEASURED,
        *WITHOUT_FILE,
        "At smaller scales the warm-up ends before round 500, and that claim is not judged.",
    ),
    medium=MEDIUM,
    small=TABLE_4.small,
    exceptions=ROUNDS_HYBRIDS,
)

SUITES = (TABLE_2, TABLE_3, TABLE_4, FIGURE_1, FIGURE_2, FIGURE_4, FIGURE_5, FIGURE_6, FIGURE_7)
