"""The five papers as suites: one for each of their tables, and for each figure that shows something measured.

Beside them are public tables, numbers that others have published of methods that are here. They have no claims.

    suite       what a suite is: the grid of its experiments, published numbers, claims
    claims      comparisons of numbers, and their judgement (expression: how they are read; conditions: as conditions on
                means; evidence: for and against them)
    exhibits    what a report shows
    published   the papers' numbers
    provenance  origin of each setting: stated in the paper, or an assumption (sources: those of the five papers)
    substitute    smaller, or on other data
    suite_run   a suite as far as it has been run
    user_suites suites of a user's own, from a file
    overrides   settings of cells changed by the user (`--set`)
    rules       settings that a paper does not state, chosen on validation data by a rule (choices: what came out)
    chosen      suites with a file of choices
    default_plan    what `pfl-ops reproduce` runs without names
    fliu, drdm, fedpg, fedavg2rep, fedas    the suites of the five papers
    mcmahan, niid_bench, pfllib     public tables

Nothing here runs anything, and importing this imports none of the suites.
"""

from collections.abc import Sequence
from importlib import import_module

from pfl_ops.errors import unknown
from pfl_ops.papers.claims import Claim, Instance, Verdict
from pfl_ops.papers.exhibits import Allocation, Bars, Curves, Energy, Exhibit, Grid, Over
from pfl_ops.papers.provenance import Departure, Source, Sources, assumed, departed, stated
from pfl_ops.papers.published import Published, published_beside
from pfl_ops.papers.rules import ChoiceRule
from pfl_ops.papers.suite import (
    SCALES,
    Axis,
    Cell,
    CellResults,
    Changes,
    Divergences,
    KeptRuns,
    Level,
    Measure,
    Scale,
    ScaleName,
    Suite,
)

PAPERS = {
    "fliu": "FLIU: Hussaini, Theiß, Stein, Local Performance vs. Out-of-Distribution Generalization",
    "drdm": "DRDM: Krouka et al., Distributionally Robust Federated Learning with Client Drift Minimization",
    "fedpg": "FedPG: Preserving Global Performance in Personalized Federated Learning (anonymous ICCV submission)",
    "fedavg2rep": "FedAvg2Rep: Bayat, Hybrid Approaches to Federated Learning for Heterogeneous Data Distributions",
    "fedas": "FedAS: Yang, Huang, Ye, Bridging Inconsistency in Personalized Federated Learning",
}
"""Name of the module -> the paper."""

PUBLIC = {
    "mcmahan": "McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data",
    "niid_bench": "NIID-Bench: Li, Diao, Chen, He, Federated Learning on Non-IID Data Silos, as rerun by Flower",
    "pfllib": "PFLlib's leaderboard: Zhang et al., Personalized Federated Learning Library and Benchmark, JMLR 2025",
}
"""Name of the module -> the source of a public table."""

TITLES = PAPERS | PUBLIC
"""Name of each module with suites -> what they are of."""


def suites(paper: str | None = None, own: Sequence[Suite] = ()) -> tuple[Suite, ...]:
    """Return the suites of the five papers, or those of one paper or public source, in the order of its exhibits.

    Args:
        own: suites of the user's own, which come last.
    Raises:
        PflOpsError: no such paper.
    """
    known = list(dict.fromkeys([*TITLES, *(suite.paper for suite in own)]))
    if paper is not None and paper not in known:
        raise unknown("paper", paper, known)
    names: Sequence[str] = [paper] if paper else list(PAPERS)
    return (*_of(names), *(suite for suite in own if paper in (None, suite.paper)))


def all_suites(own: Sequence[Suite] = ()) -> tuple[Suite, ...]:
    """Return the suites of the five papers, those of the public tables, and the user's own."""
    return (*_of([*TITLES]), *own)


def _of(names: Sequence[str]) -> tuple[Suite, ...]:
    """Return the package's suites of these names; of a user's own there are none."""
    return tuple(s for name in names if name in TITLES for s in import_module(f"pfl_ops.papers.{name}").SUITES)


def find(name: str, own: Sequence[Suite] = ()) -> Suite:
    """The suite of that name.

    Args:
        own: suites of the user's own, which are searched too.
    Raises:
        PflOpsError: there is none; the message has the nearest.
    """
    for found in all_suites(own):
        if found.name == name:
            return found
    raise unknown("suite", name, [found.name for found in all_suites(own)], see="pfl-ops reproduce --list")


__all__ = [
    "PAPERS", "PUBLIC", "SCALES", "TITLES", "Allocation", "Axis", "Bars", "Cell", "CellResults", "Changes",
    "ChoiceRule", "Claim", "Curves", "Departure", "Divergences", "Energy", "Exhibit", "Grid", "Instance", "KeptRuns",
    "Level", "Measure", "Over", "Published", "Scale", "ScaleName", "Source", "Sources", "Suite", "Verdict",
    "all_suites", "assumed", "departed", "find", "published_beside", "stated", "suites",
]  # fmt: skip
