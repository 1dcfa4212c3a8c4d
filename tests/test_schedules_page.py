"""docs/schedules.md says what docs/schedules.csv has: its table, and the test of each difference."""

import re

import pandas as pd
import pytest
from documents import ROOT

from pfl_ops.statistics import e_process_above, holm

PAGE = (ROOT / "docs" / "schedules.md").read_text(encoding="utf-8")
SCORES = pd.read_csv(ROOT / "docs" / "schedules.csv")
ORDER = ("fedavg", "adaptive", "fixed", "linear", "feedback", "fixed-lr", "feedback-lr", "size_power", "cosine")
HELD_OUT = [f"fashion_mnist+{name}" for name in ("iid", "path", "ls", "qs", "lsqs")]


def test_table_has_the_means_and_deviations_over_five_seeds() -> None:
    for environment, rows in SCORES.groupby("environment"):
        by = 100 * rows.pivot_table(index="seed", columns="schedule", values="score")
        assert by.shape == (5, len(ORDER))
        cells = " | ".join(f"{by[name].mean():.1f} ± {by[name].std():.1f}" for name in ORDER)
        label = environment if environment in HELD_OUT else f"mnist, {environment} (searched)"
        assert f"| {label} | {cells} |" in PAGE


def test_one_difference_to_the_paper_s_schedule_is_significant() -> None:
    """Both directions of seven schedules in five environments, after Holm: `feedback` below Eq. 4 in PATH."""
    scores = SCORES.set_index(["environment", "schedule", "seed"])["score"].sort_index()
    p = {}
    for environment in HELD_OUT:
        for name in ORDER[2:]:
            ahead = (scores[environment, name] - scores[environment, "adaptive"]).to_numpy()
            p |= {(name, environment, sign): min(1, 1 / e_process_above(sign * ahead).max()) for sign in (1, -1)}
    corrected = dict(zip(p, holm(list(p.values())), strict=True))
    assert len(p) == 70
    (found,) = [key for key, value in corrected.items() if value < 0.05]
    assert found == ("feedback", "fashion_mnist+path", -1)
    assert f"p = {corrected[found]:.3f} after Holm" in PAGE
    assert f"p = {corrected['size_power', 'fashion_mnist+path', 1]:.2f} after Holm" in PAGE
    assert f"p = {corrected['cosine', 'fashion_mnist+path', 1]:.2f} after Holm" in PAGE


@pytest.mark.parametrize(
    ("name", "order", "in_all_seeds"),
    [
        ("size_power", ("PATH", "LSQS", "QS", "IID", "LS"), ("path", "qs", "lsqs")),
        ("cosine", ("PATH", "IID", "QS", "LSQS", "LS"), ("path",)),
    ],
)
def test_means_ahead_in_held_out_environments(name: str, order: tuple[str, ...], in_all_seeds: tuple[str, ...]) -> None:
    """The differences to Eq. 4, and the environments in which every seed is ahead."""
    by = 100 * SCORES.pivot_table(index=["environment", "seed"], columns="schedule", values="score")
    ahead = (by[name] - by["adaptive"]).unstack()
    means = [f"{ahead.loc[f'fashion_mnist+{label.lower()}'].mean():+.1f}".replace("-", "−") for label in order]
    assert ", ".join(map(" ".join, zip(order, means, strict=True))) in PAGE
    assert [one for one in HELD_OUT if (ahead.loc[one] > 0).all()] == [f"fashion_mnist+{one}" for one in in_all_seeds]


def test_differences_where_schedules_were_searched() -> None:
    """To Eq. 4, in PATH, LSQS and LS of MNIST: above it in the first two, below it in the third, each of them."""
    by = 100 * SCORES.pivot_table(index="environment", columns="schedule", values="score")
    text = " ".join(PAGE.split()).partition("On MNIST, where it was searched, ")[2]
    for name in ("fixed", "linear", "feedback", "size_power", "cosine"):
        path, lsqs, ls = (by[name] - by["adaptive"])[["path", "lsqs", "ls"]]
        said = re.findall(r"\d+\.\d", text.partition(f"`{name}` ")[2].replace("Eq. 4", ""))
        assert said[:3] == [f"{path:.1f}", f"{lsqs:.1f}", f"{-ls:.1f}"], name
