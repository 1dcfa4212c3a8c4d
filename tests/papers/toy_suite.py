"""A small suite of our own, with everything that a suite can have."""

from pfl_ops.papers import Claim, Curves, Grid, Level, Measure, Published, Scale, Suite
from pfl_ops.papers.provenance import assumed, departed, stated

ACC, G = "test/L1/acc", "test/G/global/mean"

TOY = Suite(
    name="toy/table1",
    title="two methods where labels differ and where they do not",
    source="ours; last round",
    base={
        "data.name": "digits",
        "partition.clients": 20,
        "model.name": "linear",
        "training.rounds": 50,
        "training.local_epochs": 5,
    },
    axes={
        "environment": {
            "iid": Level({"partition.kind": "iid"}, "IID"),
            "path": Level({"partition.kind": "path"}, "PATH", at={"small": {"partition.clients": 12}}),
        },
        "method": {
            "fedavg": Level({"algorithm.name": "fedavg"}, "FedAvg"),
            "local": Level({"algorithm.name": "local"}, "CLT"),
            "fliu": Level({"algorithm.name": "fliu", "training.lr": 0.01}, "FLIU"),
        },
    },
    measures=(Measure(ACC, "L1 Acc"), Measure(G, "G"), Measure("test/L1/local/mean@90", "rounds to 90 %", digits=0)),
    exhibits=(Grid(("method",), ("measure",), ("environment",)), Curves("test/L1/local/mean", panel="environment")),
    published={
        ("iid/fedavg", ACC): Published(197.46, 0.14, 3),
        ("iid/local", ACC): Published(185.6, 2.26, 3),
        ("path/fedavg", ACC): Published(171.57, 2.9, 3),
        ("path/local", ACC): Published(118.69, 0.36, 3),
        ("path/fliu", ACC): Published(None, None, 3, "lost"),
    },
    spread_over="repetitions",
    repetitions=3,
    claims=(
        Claim("Local training is below FedAvg", f"*/local:{ACC} < */fedavg:{ACC}"),
        Claim("FLIU is above FedAvg on PATH", f"path/fliu:{ACC} > path/fedavg:{ACC}"),
    ),
    absent=("iid/fliu",),
    sources=(
        *assumed("chosen for the test", "*"),
        *stated("Sec. 1", {"training.rounds": 50, "repetitions": 3}),
        *stated("Sec. 2", {"training.lr": 0.01}, when={"algorithm.name": "fliu"}),
        departed("training.local_epochs", "6", "Sec. 3", "five are enough"),
    ),
    small=Scale({"training.rounds": 4, "training.local_steps": 3}, repetitions=2),
)
