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
        "centralized": "pfl_ops.algorithms.centralized",
        "fedsgd": "pfl_ops.algorithms.fedsgd",
        "fedavg_ft": "pfl_ops.algorithms.fedavg_ft",
        "fedprox_ft": "pfl_ops.algorithms.fedprox_ft",
        "feddyn": "pfl_ops.algorithms.feddyn",
        "drfa": "pfl_ops.algorithms.drfa",
        "drdm": "pfl_ops.algorithms.drdm",
        "scaff_pd": "pfl_ops.algorithms.scaff_pd",
        "fedmgda_plus": "pfl_ops.algorithms.fedmgda_plus",
        "fedpg": "pfl_ops.algorithms.fedpg",
        "s_fedpg": "pfl_ops.algorithms.fedpg",
        "pfedme": "pfl_ops.algorithms.pfedme",
        "fedamp": "pfl_ops.algorithms.fedamp",
        "fedrod": "pfl_ops.algorithms.fedrod",
        "splitgp": "pfl_ops.algorithms.splitgp",
        "fedper": "pfl_ops.algorithms.fedper",
        "lg_fedavg": "pfl_ops.algorithms.lg_fedavg",
        "fedbabu": "pfl_ops.algorithms.fedbabu",
        "fedproto": "pfl_ops.algorithms.fedproto",
        "fedala": "pfl_ops.algorithms.fedala",
        "fedpac": "pfl_ops.algorithms.fedpac",
        "fedas": "pfl_ops.algorithms.fedas",
        "cd2_pfed": "pfl_ops.algorithms.cd2_pfed",
        "fedavg2rep": "pfl_ops.algorithms.fedavg2rep",
        "per_fedavg": "pfl_ops.algorithms.per_fedavg",
    },
)
