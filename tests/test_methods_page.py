"""docs/methods.md says what its two files have: the table, the tests of differences, the sentences below it."""

import re
from itertools import combinations

from methods_table import BASES, PAGE, MethodsTable

TEXT = " ".join(PAGE.split())
TABLE = MethodsTable("methods")
SEARCH, SCORES, NAMES, BY, MEAN, P = TABLE.search, TABLE.scores, TABLE.names, TABLE.by, TABLE.mean, TABLE.p
SEARCH["without_result"] = SEARCH.failed + SEARCH.diverged
p, shown = TABLE.p_to_base, TABLE.shown


def above(of: str, sign: int = 1) -> list[str]:
    """Methods whose mean is above (sign -1: below) that of `fedavg` in the sum, of `local` in Acc(L)."""
    return [name for name in NAMES if sign * (MEAN[of][name] - MEAN[of][BASES[of]]) > 0]


def test_the_table_is_of_five_seeds() -> None:
    assert list(MEAN["score"].sort_values(ascending=False).index) == NAMES and len(NAMES) == 33
    assert len(SCORES) == 5 * 33 and not SCORES.isna().any(axis=None)
    assert len(TABLE.pairs) == 528 and TABLE.rows(NAMES) in PAGE


def test_sentences_on_the_search() -> None:
    spent = SEARCH.search_samples / 1e6
    assert spent.min() > 3 and f"{spent.min():.1f} to {spent.max():.1f} million in all" in TEXT
    assert f"In {(~SEARCH.separated).sum()} of 33 methods the two were not told apart" in TEXT
    restricted = "`, `".join(["s_fedpg", "fedpg", "scaffold", "fedsgd", "pfedme"])
    assert set(SEARCH.index[SEARCH.restricted != ""]) == {"s_fedpg", "fedpg", "scaffold", "fedsgd", "pfedme"}
    assert f"`{restricted.replace('`, `pfedme', '` and `pfedme')}` require SGD" in TEXT
    unsearched = sorted(SEARCH.index[SEARCH.sampled == 0])
    named = "`, `".join(unsearched).replace("`, `pfedme", "` and `pfedme")
    assert f"of `{named}` no configuration was sampled" in TEXT
    assert SEARCH.sampled["apfl"] == 1 and SEARCH.sampled["fedrod"] == 2


def test_sentences_on_both_accuracies() -> None:
    ahead, behind = above("score"), above("score", -1)
    assert [name for name in ahead if p("score", name) < 0.05] == ["fedpg"]
    assert f"`fedpg` is above `fedavg` (p = {p('score', 'fedpg'):.3f})" in TEXT
    others = [name for name in ahead if name not in ("fedpg", "s_fedpg")]
    listed = "`, `".join(others).replace("`, `splitgp", "` and `splitgp")
    lead = MEAN["score"]["s_fedpg"] - MEAN["score"]["fedavg"]
    first = f"`s_fedpg` (by {lead:.1f} points, p = {p('score', 's_fedpg'):.3f})"
    assert f"So are {first}, `{listed}` in the mean" in TEXT
    assert len(behind) == 25 and "Twenty-five methods are below it in the mean" in TEXT
    assert f"{sum(p('score', name) < 0.05 for name in behind)} of them significantly" in TEXT
    assert all(P["score"][frozenset(("s_fedpg", name))] >= 0.05 for name in NAMES[1:10]) and "fedavg" in NAMES[1:10]
    assert "None of the first ten differs significantly from `s_fedpg`, `fedavg` among them" in TEXT


def test_sentences_on_fliu() -> None:
    behind = MEAN["score"]["fedavg"] - MEAN["score"]["fliu"]
    assert NAMES.index("fliu") == 10
    assert f"**`fliu` is eleventh, {behind:.1f} points below `fedavg`** (p = {p('score', 'fliu'):.2f})" in TEXT
    own, lost = (abs(MEAN[of]["fliu"] - MEAN[of]["fedavg"]) for of in ("local", "global"))
    assert f"it has {own:.1f} points more Acc(L) and {lost:.1f} points less Acc(G)" in TEXT
    assert "gamma.kind=cosine" in SEARCH.settings["fliu"] and not SEARCH.separated["fliu"]


def test_sentences_on_own_accuracy() -> None:
    ahead = above("local")
    assert len(ahead) == 4 and max(ahead, key=MEAN["local"].get) == "fedrep"
    assert (
        f"`fedrep` by most ({MEAN['local']['fedrep'] - MEAN['local']['local']:.1f} points), none significantly" in TEXT
    )
    assert not [name for name in ahead if p("local", name) < 0.05]
    assert sum(p("local", name) < 0.05 for name in above("local", -1)) == 9 and "nine are significantly below" in TEXT


def test_sentences_on_those_that_score_as_local() -> None:
    last = NAMES[NAMES.index("fedrod") :]
    others = [name for name in last if name != "local"]
    shares = MEAN["global"][others]
    assert len(others) == 11 and f"Acc(G) is {shares.min():.1f} to {shares.max():.1f} %" in TEXT
    assert f"(`local` {MEAN['global']['local']:.1f})" in TEXT
    gap = (MEAN["score"][others] - MEAN["score"]["local"]).abs().max()
    assert f"differs from `local`'s by at most {gap:.1f} points, not significantly" in TEXT
    apart = {pair for pair in combinations(last, 2) if P["score"][frozenset(pair)] < 0.05}
    assert apart == {(name, "fedas") for name in ("fedrep", "fedbabu", "fedfomo")}


def test_sentences_on_copies_and_spread() -> None:
    gap = {of: MEAN[of] - MEAN[of]["fedavg"] for of in BY}
    assert f"{gap['local']['per_fedavg']:.1f} points more Acc(L) for {-gap['global']['per_fedavg']:.1f} points" in TEXT
    for name in ("fedavg_ft", "fedprox_ft"):
        assert f"{-gap['score'][name]:.0f} points below `fedavg` in the sum for {gap['local'][name]:.1f}" in TEXT
    spread = ["drfa", "scaff_pd", "s_fedpg"]
    first, second, third = (
        f"{100 * SEARCH.confirmed[name]:.1f} ± {100 * SEARCH.confirmed_std[name]:.1f}" for name in spread
    )
    assert f"`drfa` had {first}, `scaff_pd` {second} and `s_fedpg` {third}" in TEXT
    assert "they have {}, {} and {}.".format(*(shown("score", name) for name in spread)) in TEXT
    assert SEARCH.trials[["scaffold", "drdm"]].tolist() == [19, 43]
    assert SEARCH.without_result[["scaffold", "drdm"]].tolist() == [7, 10]


def test_sentences_on_candidates() -> None:
    gap = MEAN["score"] - MEAN["score"]["fedavg"]
    one_model = gap[["feddyn", "scaffold", "drdm", "fedmgda_plus"]]
    assert f"in the mean by {one_model.min():.1f} to {one_model.max():.1f} points, not significantly" in TEXT
    assert SEARCH.sent_bytes["scaffold"] == 2 * SEARCH.sent_bytes["fedavg"] and "(twice the traffic)" in TEXT
    assert SEARCH.sent_bytes["local"] == 0
    enough = list(MEAN["worst"][MEAN["global"] > 50].sort_values(ascending=False).index[:3])
    assert enough == ["per_fedavg", "s_fedpg", "fedpg"]
    worst = [shown("worst", name) for name in (*enough, "fedavg")]
    assert "{}, {} and {}, `fedavg` {}; neither".format(*worst) in TEXT


def test_the_command_names_the_methods() -> None:
    (named,) = re.findall(r"pfl-ops tune (\S+) \\", PAGE)
    assert sorted(named.split(",")) == sorted(NAMES)
