"""The methods: a literal table of names. Listing them imports none, and no torch."""

from typing import TYPE_CHECKING

from pfl_ops.registry import Registry

if TYPE_CHECKING:
    from pfl_ops.algorithms.base import Algorithm

ALGORITHMS: "Registry[type[Algorithm]]" = Registry(
    "algorithm",
    {
        "local": "pfl_ops.algorithms.local",
        "fedavg": "pfl_ops.algorithms.fedavg",
        "fedprox": "pfl_ops.algorithms.fedprox",
        "scaffold": "pfl_ops.algorithms.scaffold",
        "ditto": "pfl_ops.algorithms.ditto",
        "fedrep": "pfl_ops.algorithms.fedrep",
        "apfl": "pfl_ops.algorithms.apfl",
        "fedfomo": "pfl_ops.algorithms.fedfomo",
        "fliu": "pfl_ops.algorithms.fliu",
        "fedsgd": "pfl_ops.algorithms.fedsgd",
        "fedavg_ft": "pfl_ops.algorithms.fedavg_ft",
        "fedprox_ft": "pfl_ops.algorithms.fedprox_ft",
        "feddyn": "pfl_ops.algorithms.feddyn",
    },
)
