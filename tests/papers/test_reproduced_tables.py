"""docs/reproduced.md has the means of the kept results in its tables, and the papers' numbers beside them."""

import re
from collections.abc import Sequence

import pandas as pd
import pytest
from documents import ROOT

PAGE = (ROOT / "docs" / "reproduced.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
PUBLISHED = ROOT / "pfl_ops" / "papers" / "published"
P, L1, G = "test/P", "test/L1/local", "test/G/local/mean"
FEDPG_KEYS = (f"{P}/local/mean", f"{P}/synthetic_50/mean", f"{P}/synthetic_100/mean", G)
TRAINED, FEDAVG2REP = "test/L2/local/mean", "test/G/global/mean"
HALF_A_TENTH = 0.0501
FEDPG_1 = {
    "Local": "local", "FedAvg": "fedavg", "APFL": "apfl", "FedROD": "fedrod", "SplitGP": "splitgp",
    "FedPG": "fedpg", "S-FedPG": "s_fedpg", "FedPG, γ = 1": "fedpg_1.0",
}  # fmt: skip
FEDPG_2 = {
    "FedPG": "fedpg", "M1, mean direction": "m1", "M2, no fair objective": "m2", "M3, no drift": "m3",
    "M4, absent clients forgotten": "m4",
}  # fmt: skip
FEDAS_4 = {
    "FedPer: neither part": "none", "PA, alignment alone": "pa", "CS, Fisher weights alone": "cs",
    "FedAS: both": "both",
}  # fmt: skip


def rows(title: str) -> dict[str, list[str]]:
    """The lines of the tables of a section: their first entry, and the others."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    entries = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in section.splitlines() if line[:1] == "|"
    ]
    return {first.strip("| "): [cell.strip("| ") for cell in others] for first, *others in entries}


def kept(name: str, first: int | None = None) -> pd.DataFrame:
    """Means of a file of kept results by cell; `first`: of so many seeds."""
    found = pd.read_csv(ROOT / "docs" / "results" / f"{name}.csv")
    found = found if first is None else found[found.seed < first]
    numbers = found.drop(columns=["seed", "setting", "commit", "torch"]).set_index("cell")
    means = numbers.apply(pd.to_numeric, errors="coerce").groupby(level=0).mean()
    return means.assign(n=found.groupby("cell").size())


def published(*names: str) -> dict[tuple[str, str], float]:
    """The papers' numbers by cell and key."""
    found = pd.concat([pd.read_csv(PUBLISHED / f"{name}.csv", comment="#") for name in names])
    return {(cell, key): value for cell, key, value in zip(found.cell, found.key, found.value, strict=True)}


def numbers(text: str) -> list[float]:
    """The numbers of an entry, without those in brackets and after a sign of ±."""
    return [float(one) for one in re.findall(r"-?\d+(?:\.\d+)?", re.sub(r"\(.*?\)|± [\d.]+|\|.*", "", text))]


def beside(text: str) -> list[float]:
    """The numbers in brackets."""
    return [float(one) for one in re.findall(r"\d+(?:\.\d+)?", "".join(re.findall(r"\((.*?)\)", text)))]


def same(shown: Sequence[float], means: Sequence[float]) -> bool:
    """True if each shown number is its mean, rounded to a tenth."""
    return len(shown) == len(means) and all(abs(a - b) < HALF_A_TENTH for a, b in zip(shown, means, strict=True))


@pytest.mark.parametrize(
    ("title", "name", "labels", "sets"),
    [
        ("FedPG, Table 1 at small", "fedpg-table1-small", FEDPG_1, ("fmnist", "cifar10", "cifar100")),
        ("FedPG, Table 2 at small", "fedpg-table2-small", FEDPG_2, ("fmnist", "cifar10")),
    ],
)
def test_tables_of_fedpg(title: str, name: str, labels: dict[str, str], sets: tuple[str, ...]) -> None:
    means, paper, table = kept(name), published("fedpg_table1"), rows(title)
    for label, method in labels.items():
        *entries, seeds = table[label]
        cells = [f"{data}/{method}" for data in sets]
        assert {int(n) for n in numbers(seeds)} == {int(means.n[cell]) for cell in cells}, label
        for entry, key in zip(entries, FEDPG_KEYS, strict=True):
            assert same(numbers(entry), [100 * means[key][cell] for cell in cells]), (label, key)
            if theirs := beside(entry):
                assert same(theirs, [100 * paper[cell, key] for cell in cells]), (label, key)


def test_table_of_fedavg2rep() -> None:
    means, table = kept("fedavg2rep-table4-small"), rows("FedAvg2Rep, Table 4 at small")
    paper = published("fedavg2rep_table3", "fedavg2rep_table4")
    for label in ("FedAvg", "FedRep", "FedAvg2Rep"):
        for entry, classes in zip(table[label], (1, 5, 10, 50), strict=True):
            cells = [f"nc{classes}/j{steps}/{label.lower()}" for steps in (4, 8, 16)]
            assert same(numbers(entry), [means[FEDAVG2REP][cell] for cell in cells]), (label, classes)
            assert same(beside(entry), [paper[cell, FEDAVG2REP] for cell in cells]), (label, classes)


def test_table_3_of_fedas() -> None:
    """The best mean of the ten methods that the paper has, and FedAS' place among them."""
    means, paper, table = (
        kept("fedas-table3-small")[TRAINED],
        published("fedas_table3"),
        rows("FedAS, Table 3 at small"),
    )
    methods = sorted({cell.rpartition("/")[2] for cell, _ in paper})
    assert len(methods) == 10
    ahead = 0
    for beta in ("0.1", "0.3", "0.5"):
        for entry, share in zip(table[f"β = {beta}"], ("0.2", "0.4", "0.6", "1"), strict=True):
            of = pd.Series({one: means[f"b{beta}/p{share}/{one}"] for one in methods})
            place = int(of.rank(ascending=False)["fedas"])
            best, number, nth, own = re.fullmatch(r"(\S+) ([\d.]+); (\d)\w\w, ([\d.]+) .*", entry).groups()
            assert best.lower().replace("-", "_") == of.idxmax() and int(nth) == place
            assert same([float(number), float(own)], [of.max(), of["fedas"]])
            assert same(beside(entry), [paper[f"b{beta}/p{share}/fedas", TRAINED]])
            ahead += len(methods) - place
    assert f"in {ahead} of 108 comparisons" in TEXT and f"above {ahead} of 108 baselines' numbers" in TEXT


def test_table_4_of_fedas() -> None:
    means, paper, table = (
        kept("fedas-table4-small")[TRAINED],
        published("fedas_table4"),
        rows("FedAS, Table 4 at small"),
    )
    for label, method in FEDAS_4.items():
        for entry, share in zip(table[label], ("0.2", "0.4", "0.6", "1"), strict=True):
            assert same(numbers(entry), [means[f"p{share}/{method}"]]), (label, share)
            assert same(beside(entry), [paper[f"p{share}/{method}", TRAINED]]), (label, share)


@pytest.mark.parametrize(("figure", "skew"), [(5, "0.3"), (6, "0.7")])
def test_margins_of_drdm_over_scaffold(figure: int, skew: str) -> None:
    means = kept(f"drdm-fig{figure}-full")
    worst, average = (means[f"{L1}/{of}"] for of in ("worst", "mean"))
    gap = [of[f"s{skew}/drdm"] - of[f"s{skew}/scaffold"] for of in (worst, average)]
    said = re.search(r"worst client \+([\d.]+) and \+([\d.]+) points, average −([\d.]+) and −([\d.]+)\.", TEXT)
    assert said is not None
    first, second, third, fourth = map(float, said.groups())
    assert same([first, -third] if figure == 5 else [second, -fourth], gap)
    assert f"{int(means.n.max())}" in TEXT.partition("The margins over SCAFFOLD there, over all ")[2][:20]


def test_runs_of_another_machine_are_those_of_its_pytorch() -> None:
    """Rows with PyTorch 2.11, by the suites that the section names; the FedAS figures share runs."""
    rows_of = {}
    for name in (
        "drdm-table3-full",
        "drdm-table4-full",
        "fliu-table1-medium",
        "fedas-fig3a-medium",
        "fedas-fig3b-medium",
    ):
        versions = pd.read_csv(ROOT / "docs" / "results" / f"{name}.csv", dtype=str).torch
        rows_of[name] = int(versions.str.startswith("2.11").sum())
    drdm, fliu = rows_of["drdm-table3-full"] + rows_of["drdm-table4-full"], rows_of["fliu-table1-medium"]
    assert f"{drdm} runs of DRDM's Tables 3 and 4 and {fliu} of FLIU's Table I are of a machine" in TEXT
    assert (
        rows_of["fedas-fig3a-medium"] + rows_of["fedas-fig3b-medium"] == 10 and "ten of FedAS' Figs. 3a and 3b" in TEXT
    )


def test_fedpg_distance_of_own_and_pooled_accuracy() -> None:
    means = kept("fedpg-table2-small")
    gaps = [
        100 * (means.loc[f"{data}/fedpg", f"{P}/local/mean"] - means.loc[f"{data}/fedpg", f"{P}/synthetic_100/mean"])
        for data in ("fmnist", "cifar10")
    ]
    assert f"FedPG's L-acc. is {gaps[0]:.0f} and {gaps[1]:.0f} points above its G-acc. here" in TEXT


def test_tables_of_drdm_at_medium() -> None:
    """Ours, and behind the bar the paper's; columns are class skews of Table 5, then size skews of Table 6."""
    methods = {"DRDM": "drdm", "SCAFFOLD": "scaffold", "SCAFF-PD": "scaff_pd", "DRFA": "drfa", "FedAvg": "fedavg"}
    means = {**kept("drdm-table5-medium").to_dict("index"), **kept("drdm-table6-medium").to_dict("index")}
    paper = published("drdm_table5", "drdm_table6")
    section = PAGE.partition("\n## DRDM, Tables 5 and 6 at medium\n")[2].partition("\n## ")[0]
    shown = 0
    for title, statistic in (("average", "mean"), ("worst client", "worst")):
        head, _, *lines = section[section.index(f"| {title} |") :].partition("\n\n")[0].splitlines()
        skews = [f"s{one[5:]}" if one.startswith("size") else f"a{one}" for one in head.strip("| ").split(" | ")[1:]]
        for line in lines:
            label, *entries = line.strip("| ").split(" | ")
            for skew, entry in zip(skews, entries, strict=True):
                place = f"{skew}/{methods[label]}", f"{L1}/{statistic}"
                assert same(numbers(entry), [means[place[0]][place[1]]]), place
                assert abs(float(entry.partition("| ")[2]) - paper[place]) < HALF_A_TENTH, place
                shown += 1
    assert shown == 2 * 8 * 5


def test_table_of_drfa_under_changed_settings() -> None:
    """Means and deviations of class skew 0.1, seeds 0 to 4, by the settings that each line names."""
    changed = pd.read_csv(ROOT / "docs" / "results" / "drdm-table5-medium-changed.csv")
    unchanged = pd.read_csv(ROOT / "docs" / "results" / "drdm-table5-medium.csv").assign(set="")
    found = pd.concat([changed[changed.cell == "a0.1/drfa"], unchanged])
    found = found[found.seed < 5].groupby(["cell", "set"])[[f"{L1}/mean", f"{L1}/worst"]].agg(["mean", "std", "size"])
    _, _, *table = PAGE[PAGE.index("| class skew 0.1, seeds 0 to 4 |") :].partition("\n\n")[0].splitlines()
    lines = [line.strip("| ").split(" | ") for line in table]
    for beginning, cell, setting in (
        ("as chosen", "drfa", ""),
        ("γ 0.0005", "drfa", '{"algorithm.gamma": 0.0005}'),
        ("γ 0:", "drfa", '{"algorithm.gamma": 0}'),
        ("the authors' code", "drfa", changed["set"][changed["set"].str.contains("snapshot")].iloc[0]),
        ("η 0.01", "drfa", '{"training.lr": 0.01}'),
        ("FedAvg", "fedavg", ""),
    ):
        (entries,) = [own for first, *own in lines if first.startswith(beginning)]
        is_there = found.loc[f"a0.1/{cell}", setting]
        assert is_there[f"{L1}/mean", "size"] == 5
        assert entries == [
            f"{is_there[key, 'mean']:.1f} ± {is_there[key, 'std']:.1f}" for key in (f"{L1}/mean", f"{L1}/worst")
        ]
