"""The rule that chooses the settings of Tables 3 and 4 and of Figures 3 to 6 (MNIST, linear).

docs/reproduced.md has it in words. It was fixed before any run under it. What it can't undo: the ranges, N, m, τ, B and
the number of rounds are ours, and some of them were set after a look at test data of this experiment.
"""

from pfl_ops.papers.rules import ChoiceRule

GAMMA_DRDM = {"float": [1e-4, 1e-2], "log": True}
PULL = {"float": [0.1, 3.0], "log": True}
GLOBAL_RATE = {"float": [0.1, 2.0], "log": True}

MNIST_RULE = ChoiceRule(
    name="drdm_mnist",
    suites=("drdm/table3", "drdm/table4", "drdm/fig3", "drdm/fig4", "drdm/fig5", "drdm/fig6"),
    cells={
        label: f"a0.1/{label}" for label in ("drdm", "drdm_feddyn", "drfa", "scaffold", "scaff_pd", "fedavg")
    },
    shared={"training.lr": {"float": [0.003, 0.3], "log": True}},
    own={
        "drdm": {"algorithm.alpha": PULL, "algorithm.gamma": GAMMA_DRDM},
        "drdm_feddyn": {"algorithm.alpha": PULL, "algorithm.gamma": GAMMA_DRDM},
        "drfa": {"algorithm.gamma": {"float": [1e-4, 1e-1], "log": True}},
        "scaffold": {"algorithm.global_lr": GLOBAL_RATE},
        "scaff_pd": {
            "algorithm.rho": {"float": [0.05, 1.0], "log": True},
            "algorithm.sigma": {"float": [1e-3, 1.0], "log": True},
            "algorithm.global_lr": GLOBAL_RATE,
        },
    },
    metric="val/L1/local/worst",
    trials=16,
    confirm=3,
    confirm_top=3,
    seed=1000,
    before={
        "drdm": {"training.lr": 0.02, "algorithm.alpha": 1.0, "algorithm.gamma": 1e-3},
        "drdm_feddyn": {"training.lr": 0.02, "algorithm.alpha": 1.0, "algorithm.gamma": 1e-3},
        "drfa": {"training.lr": 0.02, "algorithm.gamma": 3e-3},
        "scaffold": {"training.lr": 0.02, "algorithm.global_lr": 1.0},
        "scaff_pd": {
            "training.lr": 0.02, "algorithm.rho": 0.2, "algorithm.sigma": 0.1, "algorithm.global_lr": 1.0,
        },
        "fedavg": {"training.lr": 0.02},
    },
)  # fmt: skip
