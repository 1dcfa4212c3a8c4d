"""docs/reproduced.md counts each paper's claims as the suites and the kept results do."""

import re
from collections import Counter

import pandas as pd
import pytest
from documents import ROOT
from kept_results import kept_results

from pfl_ops.data.datasets import here
from pfl_ops.papers import PAPERS, all_suites
from pfl_ops.reports.suites.results_pages import DECIDED, REDUCED
from pfl_ops.reports.suites.verdicts import STANDINGS, standings

PAGE = (ROOT / "docs" / "reproduced.md").read_text(encoding="utf-8")


@pytest.mark.skipif(not here("mnist"), reason="MNIST is not here, so that rows can't be checked against the suites")
def test_claims_of_each_paper() -> None:
    known = all_suites()
    claims = [(suite.name.partition("/")[0], *each) for suite in known
              for each in zip(suite.claims, suite.judged(), strict=True)]  # fmt: skip
    count = Counter(paper for paper, *_ in claims)
    derived = Counter(paper for paper, claim, _ in claims if claim.derived)
    theirs = Counter((paper, verdict.status) for paper, _, verdict in claims)
    runs = [run for run in kept_results() if not run.changes]
    ours, at_small = (
        Counter(
            (run.suite.name.partition("/")[0], claim.ours)
            for run in runs if (run.scale in REDUCED) is reduced for claim in standings(run)
        )
        for reduced in (False, True)
    )  # fmt: skip
    assert sum(count.values()) == 219 and sum(ours[paper, "holds"] for paper in PAPERS) > 0
    for paper in PAPERS:
        (row,) = [line for line in PAGE.splitlines() if name(line) == paper]
        *decided, apart = (
            f"{each[paper, 'holds']}, {each[paper, 'does not hold']}" for each in (theirs, ours, at_small)
        )
        small = f" (at `small` {apart})" * (apart != "0, 0")
        assert row.split(" | ", 1)[1] == " | ".join((f"{count[paper]}, {derived[paper]}", *decided)) + f"{small} |"


WORDS = {"none": 0, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "fifteen": 15}


@pytest.mark.skipif(not here("mnist"), reason="MNIST is not here, so that rows can't be checked against the suites")
def test_the_page_of_limits_counts_the_claims_as_the_kept_results_do() -> None:
    """Claims of which a part was run count where they are decided."""
    runs = [run for run in kept_results() if not run.changes]
    found = [
        (run.suite.paper, run.scale in REDUCED, claim.ours in DECIDED, claim.derived)
        for run in runs for claim in standings(run)
        if claim.ours in DECIDED or (claim.ours == "undecided" and not claim.not_run)
    ]  # fmt: skip
    text = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    (row,) = [line for line in text.splitlines() if line.startswith("| published claims |")]
    said = [int(one) if one.isdigit() else WORDS[one] for one in re.findall(
        r"(\d+|\w+) (?:of 219|of DRDM|of them derived|of FLIU|were judged|of FedPG's|of FedAS'|of FedAvg2Rep's)"
        r"|which (\w+) (?:are|is) decided", row) for one in one if one]  # fmt: skip

    def count(paper: str = "", small: bool = False, decided: bool | None = True, derived: bool = False) -> int:
        return sum(
            of.startswith(paper) and reduced is small and (decided is None or is_decided) and is_derived >= derived
            for of, reduced, is_decided, is_derived in found
        )

    at_size = [count(), *(count(of, derived=derived) for of in ("drdm", "fliu") for derived in (False, True))]
    at_size.append(count("fedas"))
    at_small = [count(of, True, decided) for of in ("fedpg", "fedas", "fedavg2rep") for decided in (None, True)]
    assert said == [*at_size, count(decided=None), *at_small]


IN_README = {
    "fliu": [(f"fliu/{one}", "On PATH, FLIU's L1 Acc is above FedAvg's") for one in ("table1", "table2")],
    "drdm": [
        (f"drdm/{one}", "DRDM has the highest worst-case accuracy") for one in ("fig5", "fig6", "table3", "table4")
    ],
    "fedpg": [
        ("fedpg/table1", f"In {one}, FedPG and S-FedPG markedly outperform the previous algorithms")
        for one in ("S-acc.", "G-acc.")
    ],
    "fedavg2rep": [("fedavg2rep/table4", "FedAvg2Rep surpasses FedRep")],
    "fedas": [("fedas/table3", "FedAS is above every baseline in every setting")],
}
"""Paper -> suites and main claims that its row of the README is about, in the row's order."""


@pytest.mark.skipif(not here("mnist"), reason="MNIST is not here, so that rows can't be checked against the suites")
def test_the_readme_has_a_main_claim_of_each_paper_as_it_stands() -> None:
    """With its sign, and the claims that are decided at a scale with the paper's clients, images and rounds."""
    known = all_suites()
    runs = [run for run in kept_results() if not run.changes]
    stand = {(run.suite.name, claim.text): claim for run in runs for claim in standings(run) if claim.n}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:2] == "| "]
    table = {row[0].strip("| ").lower(): row[2:] for row in rows if len(row) == 4}
    for paper, claims in IN_README.items():
        here, decided = table[paper]
        signs = "".join(STANDINGS[stand[key].ours if key in stand else "not run"][0][0] for key in claims)
        assert re.sub("[^✓✗?–]", "", here) == signs, paper
        seeds = [n for key in claims if key in stand for n in (stand[key].n, stand[key].most)]
        n = f"{min(seeds)} to {max(seeds)}" if len(set(seeds)) > 1 else "".join(map(str, seeds[:1]))
        assert re.findall(r"n = (\d+(?: to \d+)?)", here) == [n] * bool(seeds), paper
        own = [suite for suite in known if suite.paper == paper]
        mains = {(suite.name, claim.text) for suite in own for claim in suite.claims if claim.main}
        assert mains.issuperset(claims)
        at_size, at_small = (
            len({
                (run.suite.name, claim.text) for run in runs if run.suite in own and (run.scale in REDUCED) is reduced
                for claim in standings(run) if claim.ours in DECIDED
            })
            for reduced in (False, True)
        )  # fmt: skip
        more = f"; `small` {at_small}" * (at_small > 0)
        assert decided == f"{at_size} of {sum(len(suite.claims) for suite in own)}{more}", paper


def name(row: str) -> str:
    """The paper that a row of the table is of, as suites have it; "": of none."""
    return row.split(" | ")[0].removeprefix("| ").lower() if row.count(" | ") == 3 else ""


def test_numbers_of_the_table_of_methods() -> None:
    """docs/methods.md has them, with what is significant."""
    scores = 100 * pd.read_csv(ROOT / "docs" / "methods.csv").groupby("method")[["score", "local"]].mean()
    ahead = scores["score"] - scores["score"]["fedavg"]
    text, table = (
        " ".join((ROOT / "docs" / page).read_text("utf-8").split()) for page in ("reproduced.md", "methods.md")
    )
    assert f"FLIU has {-ahead['fliu']:.1f} points less than FedAvg in the sum, not significantly" in text
    fedpg, s_fedpg = (f"{ahead[name]:.1f}" for name in ("fedpg", "s_fedpg"))
    assert (
        f"`fedpg` is {fedpg} points above FedAvg in Acc(L) + Acc(G), significantly, and `s_fedpg` {s_fedpg}, not"
        in text
    )
    starred = re.findall(r"\| `(\w+)` \| L\d \| [\d.]+ ± [\d.]+ \| [+−][\d.]+ \* \|", table)
    assert "fedpg" in starred and not {"fliu", "s_fedpg"} & set(starred)
    assert scores["score"].idxmin() == "fedas"
    assert f"Acc(L) is {scores['local']['local'] - scores['local']['fedas']:.1f} points below local training's" in text
