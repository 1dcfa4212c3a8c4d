"""docs/methods.md says what the two files of its second table have, that of Dirichlet label skew."""

import pandas as pd
from documents import ROOT
from methods_table import PAGE, MethodsTable
from scipy import stats

SECTION = PAGE.partition("### The same under Dirichlet label skew")[2].partition("### Which to take")[0]
TEXT = " ".join(SECTION.split())
TABLE = MethodsTable("methods-dirichlet")
SEARCH, SCORES, NAMES, BY, MEAN = TABLE.search, TABLE.scores, TABLE.names, TABLE.by, TABLE.mean
p, gap = TABLE.p_to_base, TABLE.gap


def significant(of: str) -> list[str]:
    return [name for name in gap(of).index if p(of, name) < 0.05]


def test_the_table_is_of_five_seeds() -> None:
    assert list(MEAN["score"].sort_values(ascending=False).index) == NAMES and len(TABLE.pairs) == 496
    assert len(SCORES) == 5 * 32 and not SCORES.isna().any(axis=None)
    assert TABLE.rows(NAMES) in SECTION and SECTION.count("| `") == len(NAMES)


def test_the_method_without_a_row_diverged() -> None:
    assert list(SEARCH.index[SEARCH.status != "complete"]) == ["fedfomo"]
    assert SEARCH.diverged_tests["fedfomo"] == 1 and (TABLE.all.method == "fedfomo").sum() == 4
    assert "`fedfomo` has no row: one of its five test runs diverged" in TEXT


def test_sentences_on_both_accuracies() -> None:
    ahead = gap("score")[gap("score") > 0]
    assert len(ahead) == 6 and not set(ahead.index) & set(significant("score"))
    assert f"`feddyn` by most ({ahead['feddyn']:.1f} points)" in TEXT and ahead.idxmax() == "feddyn"
    assert f"`fedavg` itself differs by {BY['score']['fedavg'].std():.1f} points (standard deviation)" in TEXT
    assert significant("score") == NAMES[NAMES.index("fedrod") :] and len(significant("score")) == 11


def test_the_order_is_compared_with_that_of_two_classes() -> None:
    other = pd.read_csv(ROOT / "docs" / "methods.csv").groupby("method")["score"].mean()
    tau = stats.kendalltau(other[NAMES], MEAN["score"][NAMES]).statistic
    assert f"in the two tables is {tau:.2f} over the 32 methods" in TEXT
    assert set(other.nlargest(3).index) == set(NAMES[:3]) == {"s_fedpg", "feddyn", "fedpg"}


def test_sentences_on_fliu_and_own_accuracy() -> None:
    assert NAMES.index("fliu") == 11 and "gamma.kind=adaptive" in SEARCH.settings["fliu"]
    behind = -gap("score")["fliu"]
    assert f"twelfth, {behind:.1f} points below `fedavg`** (p = {p('score', 'fliu'):.2f})" in TEXT
    own, lost = (abs(MEAN[of]["fliu"] - MEAN[of]["fedavg"]) for of in ("local", "global"))
    assert f"{own:.1f} points more Acc(L), {lost:.1f} points less Acc(G)" in TEXT
    ahead = gap("local")[gap("local") > 0]
    assert len(ahead) == 9 and f"`fedrep` by most ({ahead['fedrep']:.1f} points)" in TEXT
    assert ahead.idxmax() == "fedrep" and significant("local") == ["scaff_pd", "fedmgda_plus", "fedavg2rep"]
    assert (gap("local")[significant("local")] < 0).all()


def test_sentences_on_the_search() -> None:
    few = SEARCH.sampled[SEARCH.sampled < 3].to_dict()
    assert {name for name, n in few.items() if n == 0} == {"ditto", "fedala", "fedpac", "fedrep", "pfedme"}
    assert {name: n for name, n in few.items() if n} == {"fedas": 1, "apfl": 2, "fedrod": 2}
    assert f"In {(~SEARCH.separated).sum()} of 33 methods the repeated configurations were not told apart" in TEXT
