"""docs/tuning.md says of the default rule what docs/tuning-studies.csv has, made by a replay of the table of trials.

`pfl-ops replay docs/results/trials-digits.parquet --csv docs/tuning-studies.csv` writes the file.
"""

import math

import numpy as np
import pandas as pd
import pytest
from documents import ROOT
from scipy import stats

from pfl_ops.tuning.tables.replay import StudyRule, replay
from pfl_ops.tuning.tables.trial_table import TrialTable

PAGE = " ".join((ROOT / "docs" / "tuning.md").read_text(encoding="utf-8").split())
STUDIES = pd.read_csv(ROOT / "docs" / "tuning-studies.csv")
PAIR = ["method", "environment"]
BY_RULE = STUDIES.pivot_table(index=[*PAIR, "study"], columns="rule", values=["regret", "samples", "runs"])
MEANS = BY_RULE["regret"].groupby(PAIR).mean()


def test_the_file_is_what_a_replay_gives() -> None:
    """Four studies of FedAvg in PATH again, each with all three choices."""
    table = TrialTable.read(ROOT / "docs" / "results" / "trials-digits.parquet")
    (problem,) = [one for one in table.problems() if (one.method, one.environment) == ("fedavg", "path")]
    found = [
        (study.number, rule, choice.configuration, choice.runs, choice.samples, choice.regret)
        for study in replay(problem, StudyRule(), studies=4)
        for rule, choice in (("first", study.first), ("confirm", study.confirm), ("argmax", study.argmax))
    ]
    here = STUDIES[(STUDIES.method == "fedavg") & (STUDIES.environment == "path") & (STUDIES.study < 4)]
    columns = ["study", "rule", "configuration", "runs", "samples", "regret"]
    kept = list(here[columns].itertuples(index=False, name=None))
    assert [row[:-1] for row in found] == [row[:-1] for row in kept]
    assert [row[-1] for row in found] == pytest.approx([row[-1] for row in kept], abs=1e-9)


def test_regrets_and_samples_of_the_defaults() -> None:
    assert len(MEANS) == 8 and len(BY_RULE) == 240
    before, after = MEANS["first"].mean(), MEANS["confirm"].mean()
    samples = BY_RULE["samples"]["confirm"].groupby(PAIR).mean().mean()
    assert f"| **20** | **2, 3** (defaults now) | **8** | **{after:.3f}** | **{samples / 1e6:.2f}** |" in PAGE
    assert f"the regret from {before:.4f} to {after:.4f}" in PAGE
    falls = MEANS["first"] - MEANS["confirm"]
    assert f"it falls in each of the 8 pairs, by {falls.min():.4f} to {falls.max():.4f}" in PAGE and (falls > 0).all()
    wide = STUDIES.pivot_table(index=[*PAIR, "study"], columns="rule", values="configuration")
    assert f"changes the first pick in {100 * (wide['first'] != wide['confirm']).mean():.0f} % of the studies" in PAGE


def test_a_longer_search_at_equal_samples() -> None:
    """The interval is Student's t over the 8 pairs."""
    ahead = MEANS["confirm"] - MEANS["argmax"]
    half = stats.t.ppf(0.975, len(ahead) - 1) * ahead.std(ddof=1) / math.sqrt(len(ahead))
    low, high = (f"{ahead.mean() + sign * half:.3f}".replace("-", "−") for sign in (-1, 1))
    assert (
        f"{MEANS['argmax'].mean():.3f} against {MEANS['confirm'].mean():.3f}, "
        f"difference {ahead.mean():.3f} [{low}, {high}]" in PAGE
    )
    spent = np.less(BY_RULE["samples"]["argmax"], BY_RULE["samples"]["confirm"])
    exhausted = int((spent & (BY_RULE["runs"]["argmax"] == 40)).sum())
    assert f"In {exhausted} (193) of the 240 studies it had tried all 40 configurations before it had spent" in PAGE
