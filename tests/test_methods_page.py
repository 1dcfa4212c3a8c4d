"""docs/methods.md says what docs/methods.csv has: its table, the tests of differences, and the sentences below it."""

import re

import pandas as pd
from documents import ROOT
from scipy import stats

from pfl_ops.statistics import holm

PAGE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
SEARCH = pd.read_csv(ROOT / "docs" / "methods-search.csv").set_index("method")
SCORES = pd.read_csv(ROOT / "docs" / "methods.csv")
BY = {of: 100 * SCORES.pivot_table(index="seed", columns="method", values=of) for of in SCORES.columns[2:]}
MEAN = {of: by.mean() for of, by in BY.items()}
BASES = {"score": "fedavg", "local": "local"}


def differences() -> dict[tuple[str, str], float]:
    """p of each method's difference to `fedavg` in the sum, and to `local` in Acc(L): one family, after Holm."""
    p = {
        (of, name): float(stats.ttest_rel(BY[of][name], BY[of][base]).pvalue)
        for of, base in BASES.items()
        for name in SEARCH.index
        if name != base
    }
    assert len(p) == 64
    return dict(zip(p, holm(list(p.values())), strict=True))


P = differences()


def significant(of: str, sign: int) -> list[str]:
    base = MEAN[of][BASES[of]]
    return [name for name in SEARCH.index if P.get((of, name), 1) < 0.05 and sign * (MEAN[of][name] - base) > 0]


def difference(of: str, name: str) -> str:
    base = BASES[of]
    if name == base:
        return ""
    text = f"{MEAN[of][name] - MEAN[of][base]:+.1f}".replace("-", "−")
    return text + (" *" if P[of, name] < 0.05 else "")


def test_table_has_the_means_and_deviations_over_five_seeds_in_the_order_of_the_sum() -> None:
    assert list(SEARCH.index) == list(MEAN["score"].sort_values(ascending=False).index) and len(SEARCH) == 33
    assert len(SCORES) == 5 * 33 and not SCORES.isna().any(axis=None)
    (score, own, everybody, worst) = (
        {name: f"{BY[of][name].mean():.1f} ± {BY[of][name].std():.1f}" for name in SEARCH.index}
        for of in ("score", "local", "global", "worst")
    )
    rows = [
        f"| `{name}` | {search.scored_at} | {score[name]} | {difference('score', name)} | {own[name]} | "
        f"{difference('local', name)} | {everybody[name]} | {worst[name]} | {search.trials} | "
        f"{search.test_seconds:.1f} |"
        for name, search in SEARCH.iterrows()
    ]
    assert "\n".join(rows) in PAGE


def test_each_method_spent_the_samples() -> None:
    """A trial that has begun is finished; the samples are with those of confirmation and test."""
    assert (SEARCH.search_samples >= 3_000_000).all()
    assert SEARCH.trials[["pfedme", "fedrep"]].tolist() == [3, 4]


def test_sentences_on_both_accuracies() -> None:
    above = significant("score", 1)
    assert above == ["s_fedpg", "fedpg", "scaffold"] and len(significant("score", -1)) == 20
    leads = [f"{MEAN['score'][name] - MEAN['score']['fedavg']:.1f}" for name in above]
    assert "by {}, {} and {} points of the sum".format(*leads) in TEXT and "Of 33 methods 20 are below it" in TEXT
    insignificant = ["feddyn", "drdm", "fedmgda_plus"]
    assert all(MEAN["score"][name] > MEAN["score"]["fedavg"] for name in insignificant)
    assert list(SEARCH.index[:7]) == ["s_fedpg", "feddyn", "fedpg", "scaffold", "drdm", "fedmgda_plus", "splitgp"]


def test_first_ten_are_not_told_apart_from_the_first() -> None:
    """All pairs of methods, as on the leaderboard."""
    names = list(SEARCH.index)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    p = dict(
        zip(pairs, holm([float(stats.ttest_rel(BY["score"][a], BY["score"][b]).pvalue) for a, b in pairs]), strict=True)
    )
    assert all(p["s_fedpg", name] >= 0.05 for name in names[1:10]) and p["s_fedpg", "fliu"] < 0.05


def test_sentences_on_fliu() -> None:
    assert list(SEARCH.index).index("fliu") == 10
    behind = MEAN["score"]["fedavg"] - MEAN["score"]["fliu"]
    assert f"**`fliu` is eleventh, {behind:.1f} points below `fedavg`** (p = {P['score', 'fliu']:.3f})" in TEXT
    own, lost = (abs(MEAN[of]["fliu"] - MEAN[of]["fedavg"]) for of in ("local", "global"))
    assert f"it has {own:.1f} points more Acc(L) and {lost:.1f} points less Acc(G)" in TEXT


def test_sentences_on_own_accuracy() -> None:
    assert not significant("local", 1) and "14 methods are below" in TEXT and len(significant("local", -1)) == 14
    first = MEAN["local"].idxmax()
    lead = MEAN["local"][first] - MEAN["local"]["local"]
    assert f"of `{first}`, is {lead:.1f} points (p = {P['local', first]:.2f})" in TEXT
    assert f"suffice for {MEAN['local']['local']:.1f} %" in TEXT


def test_sentences_on_those_that_share_little() -> None:
    last = list(SEARCH.index)[list(SEARCH.index).index("fedrod") :]
    others = [name for name in last if name != "local"]
    shares = MEAN["global"][others]
    assert f"have an Acc(G) of {shares.min():.1f} to {shares.max():.1f} %" in TEXT
    assert f"as `local` has ({MEAN['global']['local']:.1f})" in TEXT
    assert (MEAN["score"][others] - MEAN["score"]["local"]).abs().max() < 1.05
    words = {10: "Ten", 11: "Eleven", 12: "Twelve"}
    assert f"**{words[len(others)]} methods share little here**" in TEXT


def test_sentences_on_copies_and_unsteady_choices() -> None:
    gap = {of: MEAN[of] - MEAN[of]["fedavg"] for of in BY}
    assert f"{gap['local']['per_fedavg']:.1f} points more Acc(L) for {-gap['global']['per_fedavg']:.1f} points" in TEXT
    for name in ("fedavg_ft", "fedprox_ft"):
        assert f"{-gap['score'][name]:.0f} points below `fedavg` in the sum for {gap['local'][name]:.1f}" in TEXT
    steep, low = 100 * SEARCH.validation["scaff_pd"], BY["score"].min()
    assert f"reached {steep:.1f} on validation data and {MEAN['score']['scaff_pd']:.1f} ±" in TEXT
    assert f"({low['scaff_pd']:.1f} in the worst of five seeds)" in TEXT and f"± 6.2 ({low['feddyn']:.1f})" in TEXT
    assert abs(gap["score"]["fedprox"]) < 0.1


def test_recommendations() -> None:
    seconds = SEARCH.test_seconds / SEARCH.test_seconds["fedavg"]
    assert [round(seconds[name]) for name in ("cd2_pfed", "apfl", "s_fedpg")] == [17, 10, 4]
    assert round(SEARCH.test_seconds["fedpg"] / SEARCH.test_seconds["s_fedpg"], 1) == 0.6
    assert SEARCH.sent_bytes["scaffold"] == 2 * SEARCH.sent_bytes["fedavg"]
    worst = [MEAN["worst"][name] for name in ("per_fedavg", "s_fedpg", "fedavg")]
    assert "{:.1f} and {:.1f} % in the mean, `fedavg` {:.1f}".format(*worst) in TEXT
    enough = MEAN["worst"][MEAN["global"] > 50].sort_values()
    assert list(enough.index[-2:]) == ["s_fedpg", "per_fedavg"]


def test_command_names_the_methods() -> None:
    (named,) = re.findall(r"pfl-ops tune (\S+) \\", PAGE)
    assert sorted(named.split(",")) == sorted(SEARCH.index)
