"""A table of docs/methods.md, worked out again from its two files."""

from collections.abc import Sequence
from itertools import combinations

import pandas as pd
from documents import ROOT
from scipy import stats

from pfl_ops.statistics import holm

PAGE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
BASES = {"score": "fedavg", "local": "local"}


class MethodsTable:
    """The methods of a table, in percent.

    Attributes:
        search: a row a method, of the search. all: a row a test run. names: methods with a row in the page's table.
        by: score -> [seed, method]. mean: its means. p: score -> pair of methods -> p after Holm.
    """

    def __init__(self, name: str) -> None:
        self.search = pd.read_csv(ROOT / "docs" / f"{name}-search.csv", keep_default_na=False).set_index("method")
        self.all = pd.read_csv(ROOT / "docs" / f"{name}.csv")
        self.names = list(self.search.index[self.search.status == "complete"])
        self.scores = self.all[self.all["method"].isin(self.names)]
        values = self.scores.columns[2:]
        self.by = {of: 100 * self.scores.pivot_table(index="seed", columns="method", values=of) for of in values}
        self.mean = {of: by.mean() for of, by in self.by.items()}
        self.pairs = list(combinations(self.names, 2))
        self.p = {of: self._corrected(of) for of in BASES}

    def _corrected(self, of: str) -> dict[frozenset[str], float]:
        one, other = (self.by[of][list(names)].to_numpy() for names in zip(*self.pairs, strict=True))
        found = holm(stats.ttest_rel(one, other).pvalue.tolist())
        return {frozenset(pair): p for pair, p in zip(self.pairs, found, strict=True)}

    def p_to_base(self, of: str, name: str) -> float:
        """p of a method against `fedavg` in the sum, `local` in Acc(L)."""
        return self.p[of][frozenset((name, BASES[of]))]

    def gap(self, of: str) -> pd.Series:
        """Difference of each method's mean to that of the base."""
        return (self.mean[of] - self.mean[of][BASES[of]])[[name for name in self.names if name != BASES[of]]]

    def difference(self, of: str, name: str) -> str:
        if name == BASES[of]:
            return ""
        text = f"{self.gap(of)[name]:+.1f}".replace("-", "−")
        return text + (" *" if self.p_to_base(of, name) < 0.05 else "")

    def shown(self, of: str, name: str) -> str:
        return f"{self.mean[of][name]:.1f} ± {self.by[of][name].std():.1f}"

    def rows(self, names: Sequence[str]) -> str:
        """The rows of the page."""
        made = []
        for name in names:
            row = self.search.loc[name]
            both = [cell for of in BASES for cell in (self.shown(of, name), self.difference(of, name))]
            rest = [self.shown("global", name), self.shown("worst", name), str(row.trials), str(row.sampled)]
            made.append(" | ".join([f"| `{name}`", row.scored_at, *both, *rest]) + " |")
        return "\n".join(made)
