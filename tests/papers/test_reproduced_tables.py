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
NUMBER = r"(?:\d\.\de\+\d+|\d{1,3}(?:,\d{3})+|\d+\.\d|\d+)(?![\d.])"
"""An e-value, as the pages of results write it."""
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


def kept(name: str, statistic: str = "mean", seeds: int | None = None) -> pd.DataFrame:
    """Means (or another statistic) of a file of kept results by cell; `seeds`: of the first of them alone."""
    found = pd.read_csv(ROOT / "docs" / "results" / f"{name}.csv")
    found = found if seeds is None else found[found.seed < seeds]
    numbers = found.drop(columns=["seed", "setting", "commit", "torch"]).set_index("cell")
    means = numbers.apply(pd.to_numeric, errors="coerce").groupby(level=0).agg(statistic)
    return means.assign(n=found.groupby("cell").size())


def published(*names: str) -> dict[tuple[str, str], float]:
    """The papers' numbers by cell and key."""
    found = pd.concat([pd.read_csv(PUBLISHED / f"{name}.csv", comment="#") for name in names])
    return {(cell, key): value for cell, key, value in zip(found.cell, found.key, found.value, strict=True)}


def numbers(text: str) -> list[float]:
    """The numbers of an entry, without those in brackets and after a sign of ±."""
    return [float(one) for one in re.findall(r"-?\d+(?:\.\d+)?", re.sub(r"\(.*?\)|± [\d.]+|\|.*", "", text))]


def spreads(text: str) -> list[float]:
    """The numbers after a sign of ±, of ours."""
    return [float(one) for one in re.findall(r"± ([\d.]+)", text.partition("|")[0])]


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
    """The best mean of the ten methods that the paper has, and FedAS' place among them, in the seeds that all have."""
    means, paper, table = (
        kept("fedas-table3-small", seeds=2)[TRAINED],
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
    """Rows with PyTorch 2.11, by the suites that the section names; figures and tables share runs."""
    section = PAGE.partition("\n## Runs of another machine\n")[2].partition("\n## ")[0]
    said = "".join(line.split(" | ")[1] + "\n" for line in section.splitlines() if line[:4] == "| 20")

    def there(*names: str) -> int:
        files = [pd.read_csv(ROOT / "docs" / "results" / f"{name}.csv", dtype=str) for name in names]
        rows = pd.concat([rows[rows.torch.str.startswith("2.11", na=False)] for rows in files])
        return len(rows.drop_duplicates(["setting", "seed"]))

    def counts(pattern: str) -> int:
        words = {"ten": 10, "four": 4, "three": 3}
        found = [one for one in re.findall(rf"(\w+) (?:runs )?of {pattern}", said)]
        assert found, pattern
        return sum(words.get(one) or int(one) for one in found)

    assert counts("DRDM's Tables 3 and 4") == there("drdm-table3-full", "drdm-table4-full")
    assert counts("DRDM's Tables 5 and 6") == there("drdm-table5-medium", "drdm-table6-medium")
    assert counts("FLIU's Table I") == there("fliu-table1-medium")
    tables = ("table1-medium", "table1-medium-changed", "table3-medium", "fig7-medium", "fig8-medium")
    figures = [f"fliu-{name}" for name in tables]
    assert counts("its Figs. 7 and 8") == there(*figures) - there("fliu-table1-medium")
    assert counts("FedAS' Figs. 3a and 3b") == there("fedas-fig3a-medium", "fedas-fig3b-medium", "fedas-fig4a-medium")
    assert counts("McMahan's Table 1") == there("mcmahan-table1-full")
    named = {path.stem for path in (ROOT / "docs" / "results").glob("*.csv") if there(path.stem)}
    assert named == {
        "drdm-table3-full", "drdm-table4-full", "drdm-table5-medium", "drdm-table6-medium", *figures,
        "fedas-fig3a-medium", "fedas-fig3b-medium", "fedas-fig4a-medium", "mcmahan-table1-full",
    }  # fmt: skip


def test_fedpg_distance_of_own_and_pooled_accuracy() -> None:
    means = kept("fedpg-table2-small")
    gaps = [
        100 * (means.loc[f"{data}/fedpg", f"{P}/local/mean"] - means.loc[f"{data}/fedpg", f"{P}/synthetic_100/mean"])
        for data in ("fmnist", "cifar10")
    ]
    assert f"FedPG's L-acc. is {gaps[0]:.0f} and {gaps[1]:.0f} points above its G-acc. here" in TEXT


@pytest.mark.parametrize(
    ("title", "files", "statistics", "digits", "columns"),
    [
        ("DRDM, Tables 3 and 4 and Figs. 3 to 6: MNIST, linear, at full", ("table3-full", "table4-full"), 3, 2, 7),
        ("DRDM, Tables 5 and 6 at medium", ("table5-medium", "table6-medium"), 2, 1, 8),
    ],
)
def test_tables_of_drdm(title: str, files: tuple[str, str], statistics: int, digits: int, columns: int) -> None:
    """Ours, and behind the bar the paper's; columns are class skews at equal sizes, then size skews."""
    methods = {
        "DRDM": "drdm", "SCAFFOLD": "scaffold", "SCAFF-PD": "scaff_pd", "DRFA": "drfa", "FedAvg": "fedavg",
        "DRDM, FedDyn's h": "drdm_feddyn",
    }  # fmt: skip
    means, deviations = (
        {cell: row for name in files for cell, row in kept(f"drdm-{name}", of).to_dict("index").items()}
        for of in ("mean", "std")
    )
    paper = published(*(f"drdm_{name.partition('-')[0]}" for name in files))
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    half = 0.501 * 10**-digits
    shown = 0
    for head, statistic in (("average", "mean"), ("worst client", "worst"), ("std over clients", "std"))[:statistics]:
        names, _, *lines = section[section.index(f"| {head} |") :].partition("\n\n")[0].splitlines()
        skews = [f"s{one[5:]}" if one.startswith("size") else f"a{one}" for one in names.strip("| ").split(" | ")[1:]]
        for line in lines:
            label, *entries = line.strip("| ").split(" | ")
            for skew, entry in zip(skews, entries, strict=True):
                place = f"{skew}/{methods[label]}", f"{L1}/{statistic}"
                (ours,), (spread,), theirs = numbers(entry), spreads(entry), entry.partition("| ")[2]
                assert abs(ours - means[place[0]][place[1]]) < half, place
                assert abs(spread - deviations[place[0]][place[1]]) < half, place
                assert (abs(float(theirs) - paper[place]) < half) if theirs else place not in paper, place
                shown += 1
    assert shown == statistics * columns * (6 if files[0] == "table3-full" else 5)


def test_tables_of_fliu_at_medium() -> None:
    """Means and numbers of seeds; behind the bar the paper's."""
    found = pd.read_csv(ROOT / "docs" / "results" / "fliu-table1-medium.csv")
    changed = pd.read_csv(ROOT / "docs" / "results" / "fliu-table1-medium-changed.csv")
    by_sgd = changed[changed["set"].str.contains("sgd")].assign(cell=lambda rows: rows.cell + ", SGD")
    rows = pd.concat([found, by_sgd])
    by_cell = rows.groupby("cell")[[key for key in found if key.startswith("test/")]]
    means, deviations = by_cell.mean(), by_cell.std()
    seeds, paper = rows.groupby("cell").size(), published("fliu_table1")
    section = PAGE.partition("\n## FLIU, Table I and Figs. 5 to 8 at medium\n")[2].partition("\n## ")[0]
    sum_, g = "test/L1/acc", "test/G/global/mean"
    keys = ["test/L1/local/mean", "test/L1/global/mean", sum_, "test/L2/local/mean", "test/L2/global/mean", g]

    def table(beginning: str) -> dict[str, list[str]]:
        lines = section[section.index(f"\n| {beginning} |") + 1 :].partition("\n\n")[0].splitlines()
        return {label: entries for label, *entries in (line.strip("| ").split(" | ") for line in lines)}

    def check(entry: str, cell: str, key: str) -> None:
        assert abs(numbers(entry)[0] - means[key][cell]) < HALF_A_TENTH, (cell, key)
        assert all(abs(one - deviations[key][cell]) < HALF_A_TENTH for one in spreads(entry)), (cell, key)
        assert abs(float(entry.partition("| ")[2]) - paper[cell.partition(",")[0], key]) < HALF_A_TENTH, (cell, key)

    environments = table("L1 Acc")
    for label, method in (("FedAvg", "fedavg"), ("FLIU", "fliu")):
        for entry, name in zip(environments[label], ("iid", "path", "ls", "qs", "lsqs"), strict=True):
            check(entry, f"{name}/{method}", sum_)
    assert environments["n: FedAvg, FLIU"] == [
        f"{seeds[f'{name}/fedavg']}, {seeds[f'{name}/fliu']}" for name in ("iid", "path", "ls", "qs", "lsqs")
    ]
    path = table("PATH | L1 Acc(L)")
    for label, cell in (("FedAvg, SGD", "path/fedavg"), ("FLIU, Adam", "path/fliu"), ("FLIU, SGD", "path/fliu, SGD")):
        *entries, n = path[label]
        assert int(n) == seeds[cell]
        for entry, key in zip(entries, keys, strict=True):
            check(entry, cell, key)
    gammas = table("PATH | 0.1")
    cells = [f"path/{name}" for name in ("fliu10", "fliu25", "fliu50", "fliu75", "fliu90", "fliu")]
    for label, key in (("L1 Acc(L)", keys[0]), ("L1 Acc(G)", keys[1]), ("L1 Acc", sum_), ("G", g)):
        for entry, cell in zip(gammas[label], cells, strict=True):
            check(entry, cell, key)
    assert gammas["n"] == [str(seeds[cell]) for cell in cells]
    lsqs, over_rounds = table("LSQS | L1 Acc(L)"), kept("fliu-fig7-medium").n
    for label, cell in (("FedAvg, SGD", "lsqs/fedavg"), ("FLIU, Adam", "lsqs/fliu")):
        assert lsqs[label][-1] == f"{seeds[cell]}, {over_rounds[cell]}"
        for entry, key in zip(lsqs[label], keys[:3], strict=False):
            check(entry, cell, key)


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


@pytest.mark.parametrize("paper", ["FLIU", "DRDM", "FedPG", "FedAvg2Rep", "FedAS"])
def test_e_values_are_those_of_the_pages_of_results(paper: str) -> None:
    """In all sections of a paper, but for "e 1,193 and more" of changed settings, whose e no page has."""
    text = " ".join(part for part in f" {TEXT}".split(" ## ") if part.startswith(f"{paper}, "))
    lists = re.findall(
        rf"\be ({NUMBER}(?:(?:, | and ){NUMBER}(?! seeds| needed))*)(?! and more)",
        text.replace(" and, with thresholds of ours,", ","),
    )
    said = {one for found in lists for one in re.findall(NUMBER, found)}
    pages = " ".join(path.read_text("utf-8") for path in (ROOT / "docs" / "results").glob(f"{paper.lower()}-*.md"))
    there = {one for both in re.findall(rf"\be = ({NUMBER})(?: for it, ({NUMBER}))?", pages) for one in both}
    assert len(said) > 3
    assert not said - there


def test_runs_that_two_exhibits_have_differ_as_the_page_says() -> None:
    """Runs of one setting and seed, computed twice: of DRDM with two versions of PyTorch, of FedAS with two commits."""

    def twice(first: Sequence[str], second: Sequence[str]) -> pd.DataFrame:
        one, other = (
            pd.concat([pd.read_csv(ROOT / "docs" / "results" / f"{name}.csv") for name in names])
            for names in (first, second)
        )
        other = other.drop_duplicates(["setting", "seed"])
        both = one.merge(other, on=["setting", "seed"], suffixes=("", " there"))
        return both[both.commit != both["commit there"]]

    drdm = twice(["drdm-fig5-full", "drdm-fig6-full"], ["drdm-table4-full"])
    drdm = drdm[drdm.torch != drdm["torch there"]]
    average, worst, deviation = (
        (drdm[f"{L1}/{of}"] - drdm[f"{L1}/{of} there"]).abs() for of in ("mean", "worst", "std")
    )
    other = (average > 0) | (worst > 0) | (deviation > 0)
    assert set(drdm.cell[other]) == {"s0.7/scaff_pd"}
    assert f"{len(drdm)} of DRDM's on MNIST were run on EPYC, too" in TEXT
    assert f"{(~other).sum()} have the same numbers to the last digit" in TEXT
    assert f"by up to {average.max():.2f} points of average and {worst.max():.2f} of the worst client" in TEXT
    fedas = twice(["fedas-fig5-small"], ["fedas-table4-small"])
    off = (fedas[TRAINED] - fedas[f"{TRAINED} there"]).abs()
    assert f"{len(fedas)} of them are Table 4's as well" in TEXT and (off > 0).sum() == 1
    assert f"{(off == 0).sum()} have the same accuracy to the last digit" in TEXT
    assert f"the other differs by {off.max():.1f} points" in TEXT
