"""Pictures: what stands in them, that they are drawn, and that the same picture gives the same bytes."""

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from pfl_ops import figures, metrics
from pfl_ops.errors import PflOpsError

NAN = float("nan")


def records(rounds=6):
    """Two stages every round; the pooled view of the local models at rounds 0 and 5 only."""
    found = []
    for t in range(rounds):
        values = metrics.tracked("L1", "validation", "local", [0.1 * t, 0.1 * t + 0.2, NAN])
        values |= metrics.tracked("G", "validation", "global", [0.12 * t])
        if t % 5 == 0:
            values |= metrics.tracked("L1", "validation", "global", [0.05 * t, 0.05 * t + 0.1])
        found.append((t, values | {"train/loss": 1.0}))
    return found


def samples():
    generator = np.random.default_rng(0)
    table = generator.integers(0, 90, (10, 10))
    return {
        "partition": figures.partition(table, title="LSQS, α = 1"),
        "scale": figures.partition(generator.integers(0, 9, (12, 62))),
        "curves": figures.curves(records(), title="fliu"),
        "clients": figures.clients({"L1": [0.1, NAN, 0.5], "G": [0.4, 0.4]}),
        "pareto": figures.pareto(generator.random((9, 2)), chosen=3),
        "history": figures.history([0.5, None, 0.4, 0.7], ["complete", "fail", "pruned", "complete"], "val/L1/acc"),
    }


def boxes(axes):
    """(row, left, right) of each box in a partition figure."""
    (bars,) = [artist for artist in axes.collections if isinstance(artist, PolyCollection)]
    corners = [path.vertices[:4] for path in bars.get_paths()]
    return [(round(float(c[:, 1].mean()), 6), float(c[:, 0].min()), float(c[:, 0].max())) for c in corners]


def test_every_picture_can_be_saved(tmp_path):
    for name, figure in samples().items():
        assert isinstance(figure, Figure)
        path = figures.save(figure, tmp_path / "deep" / f"{name}.png", dpi=50)
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_same_picture_gives_the_same_bytes(tmp_path, kind):
    for run in ("one", "two"):
        figures.save(figures.curves(records()), tmp_path / f"{run}.{kind}", dpi=50)
        figures.save(figures.partition([[3, 2], [1, 9]]), tmp_path / f"{run}-partition.{kind}", dpi=50)
    assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()
    assert (tmp_path / f"one-partition.{kind}").read_bytes() == (tmp_path / f"two-partition.{kind}").read_bytes()
    assert b"dc:date" not in (tmp_path / f"one.{kind}").read_bytes()


def test_a_users_own_settings_do_not_show(tmp_path):
    import matplotlib

    figures.save(figures.partition([[3, 2]]), tmp_path / "one.png", dpi=50)
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "black"}):
        figures.save(figures.partition([[3, 2]]), tmp_path / "two.png", dpi=50)
        assert matplotlib.rcParams["font.size"] == 20
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


def test_a_partition_has_a_row_a_client_as_long_as_its_samples():
    axes = figures.partition([[1, 2, 3], [0, 0, 0], [4, 0, 4]]).axes[0]
    assert boxes(axes) == [(0, 0, 1), (0, 1, 3), (0, 3, 6), (2, 0, 4), (2, 4, 8)]
    assert [text.get_text() for text in axes.texts] == ["6", "0", "8"]
    assert axes.yaxis_inverted()  # client 0 on top
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["0", "1", "2"]


def test_partition_of_many_clients_is_a_summary():
    """3,000 clients: 1,500 have 4 samples of one class, 1,500 have 2 of each of two classes, so 4 samples each; the
    largest class has 50 % at the lower quarter, 100 % at the upper one. Lines have as many points for 30,000."""
    counts = np.array([[4, 0], [2, 2]])
    lines = [[axes.lines[0] for axes in figures.partition(np.tile(counts, (n, 1))).axes] for n in (1500, 15_000)]
    assert [len(line.get_xdata()) for few, many in zip(*lines, strict=True) for line in (few, many)] == [1001] * 4
    samples, share = (line.get_ydata() for line in lines[0])
    assert (samples == 4).all() and (share[250], share[750]) == (50, 100)
    assert len(figures.partition(np.tile(counts, (1000, 1))).axes[0].collections) == 1  # 2,000: a row each


@pytest.mark.parametrize("n_clients", [10, 20, 100, 1000])
def test_partitions_of_any_size_stay_within_a_page(n_clients, tmp_path):
    figure = figures.partition(np.ones((n_clients, 10), dtype=int))
    width, height = figure.get_size_inches()
    assert width == 7.2 and 3 < height < 16
    assert 8 <= len(figure.axes[0].get_yticks()) <= 21
    figures.save(figure, tmp_path / "one.svg")
    assert (tmp_path / "one.svg").stat().st_size < 600_000


def test_ten_classes_have_ten_colours_and_more_a_scale():
    assert len(set(figures.CLASSES)) == 10
    assert len(figures.partition(np.ones((2, 10))).axes) == 1
    many = figures.partition(np.ones((2, 100), dtype=int))
    assert len(many.axes) == 2
    assert [text.get_text() for text in many.axes[1].get_xticklabels()][:3] == ["0", "10", "20"]


def test_curves_show_each_stage_where_it_was_tracked():
    figure = figures.curves(records())
    local, pooled = figure.axes
    assert len(local.lines) == 1 and len(pooled.lines) == 2
    np.testing.assert_allclose(local.lines[0].get_ydata(), [0.1 * t + 0.1 for t in range(6)])
    assert pooled.lines[0].get_xdata().tolist() == [0, 5]
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown == [figures.MEANINGS["L1"], figures.MEANINGS["G"], "band: middle 80 % of clients"]
    alone = figures.curves([(t, {"test/G/global/mean": 0.1 * t}) for t in range(3)])
    assert [text.get_text() for text in alone.legends[0].get_texts()] == [figures.MEANINGS["G"]], "no band is drawn"
    assert local.get_ylabel() == "validation accuracy"


def test_stages_that_coincide_are_both_seen():
    """FedAvg's clients hold the global model, so that its G lies on its L1; L1 is scored before round 1, too."""
    found = [(t, {"test/L1/local/mean": 0.1 * t, "test/L2/local/mean": 0.2}) for t in range(4)]
    found[1:] = [(t, values | {"test/G/local/mean": 0.1 * t}) for t, values in found[1:]]
    assert [line.get_linestyle() for line in figures.curves(found).axes[0].lines] == ["-", "-", "--"]
    both = figures.clients({"L1": [0.1, 0.5], "L2": [0.4, 0.9], "G": [0.5, 0.1]})
    assert [line.get_linestyle() for line in both.axes[0].lines] == ["-", "-", "--"]


def test_curves_draw_through_rounds_without_a_value():
    """The global view is NaN in rounds 1 to 4, as in a table of all rounds; an unscored band has no NaN either."""
    names = sorted({name for _, values in records() for name in values})
    table = [(t, {name: values.get(name, NAN) for name in names}) for t, values in records()]
    expected, found = figures.curves(records()), figures.curves(table)
    assert found.axes[1].lines[0].get_xdata().tolist() == [0, 5]
    assert figures.to_png(found, 50) == figures.to_png(expected, 50)


def test_lines_draw_through_places_without_a_value():
    line = figures.lines({"fliu": ([0, 1, 2, 3], [[0.1, NAN, NAN, 0.4], [0.3, NAN, 0.2, 0.6]])}).axes[0].lines[0]
    assert line.get_xdata().tolist() == [0, 2, 3]
    np.testing.assert_allclose(line.get_ydata(), [0.2, 0.2, 0.5])


def test_a_notebook_shows_every_figure_without_pyplot():
    """IPython calls `_repr_png_`; pyplot, which would show the figure a second time, is not imported."""
    code = (
        "import sys; from pfl_ops import figures;"
        "found = figures.history([0.5]), figures.panel({'a': ([0], [1])}, (3, 2));"
        "print([f._repr_png_()[:4] == b'\\x89PNG' for f in found], 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[True, True] False"


def test_clients_are_sorted_and_those_without_samples_left_out():
    left = figures.clients({"L1": [0.9, NAN, 0.1, 0.5]}).axes[0]
    assert left.lines[0].get_ydata().tolist() == [0.1, 0.5, 0.9]
    np.testing.assert_allclose(left.lines[0].get_xdata(), [100 / 6, 50, 500 / 6])


def test_pareto_names_the_front():
    axes = figures.pareto([[0.1, 0.9], [0.5, 0.5], [0.4, 0.4], [NAN, 1.0]], labels=["a", "b", "c", "d"]).axes[0]
    assert [text.get_text() for text in axes.texts] == ["a", "b"]


def test_pareto_has_the_units_of_its_objectives():
    """ρ_95 is a number of clients, and a score by FedAvg's a ratio: 3 was drawn as 300 %."""
    names = ("val/L1/local/rho_95", "val/L1/local/worst")
    axes = figures.pareto([[1.0, 0.2], [3.0, 0.1]], names=names).axes[0]
    axes.figure.draw_without_rendering()
    x, y = ([text.get_text() for text in labels] for labels in (axes.get_xticklabels(), axes.get_yticklabels()))
    assert not any("%" in text for text in x) and all("%" in text for text in y)


def test_history_keeps_the_best_so_far():
    values = [0.5, None, 0.9, 0.7, 0.8]
    states = ["complete", "fail", "pruned", "complete", "complete"]
    best = figures.history(values, states).axes[0].lines[0].get_ydata()
    assert best.tolist() == [0.5, 0.7, 0.8, 0.8]  # a pruned trial's value is not a result
    least = figures.history(values, states, maximise=False).axes[0].lines[0].get_ydata()
    assert least.tolist() == [0.5, 0.5, 0.5, 0.5]


@pytest.mark.parametrize(("metric", "label"), [("val/L1/acc", "120 %"), ("train/loss", "1.2")])
def test_history_has_the_unit_of_its_metric(metric, label):
    """Tables have 120.0 % of Acc(L)+Acc(G) = 1.2, and 1.200 of a loss."""
    figure = figures.history([1.0, 1.2], metric=metric)
    figure.draw_without_rendering()
    assert label in {text.get_text().replace("1.20", "1.2") for text in figure.axes[0].get_yticklabels()}


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.history([]),
        lambda: figures.history([None]),
        lambda: figures.pareto(np.empty((0, 2))),
        lambda: figures.partition([[0]]),
        lambda: figures.clients({"L1": [1.0]}),
        lambda: figures.curves(records(1)),
    ],
)
def test_little_or_nothing_can_be_drawn_too(draw, tmp_path):
    assert figures.save(draw(), tmp_path / "one.png", dpi=40).exists()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: figures.partition([1, 2]), r"table is \[clients, classes\], got shape \(2,\)"),
        (lambda: figures.curves([(0, {"train/loss": 1.0})]), "hold no accuracies"),
        (lambda: figures.clients({"L1": [NAN]}), "no client with an accuracy"),
        (lambda: figures.save(Figure(), "one.jpg"), r"\.png or \.svg, got 'one\.jpg'"),
        (lambda: figures.save(Figure(), "/dev/null/one.png"), "can't write /dev/null/one.png: "),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises(PflOpsError, match=words):
        call()


def test_drawing_imports_neither_pyplot_nor_torch():
    code = (
        "import sys; from pfl_ops import figures; heavy = 'matplotlib' in sys.modules; "
        "figures.partition([[1, 2]]); sys.exit(heavy or 'matplotlib.pyplot' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("name", "title"), [("curves", None), ("curves", "FLIU on Ωg"), ("clients", None)])
def test_parts_of_a_run_s_figures_lie_apart_and_inside(name, title):
    """Margins are fixed: the widest labels ("99.55 %", round 10000) fit, and so do title, panels and legend."""
    values = np.linspace(0.9945, 0.997, 11)
    keys = [f"test/{stage}/{view}" for stage in ("L1", "L2", "G") for view in ("local", "global")]
    scores = [
        {f"{k}/{of}": v + d for k in keys for of, d in (("mean", 0), ("q10", -1e-3), ("q90", 1e-3))} for v in values
    ]
    records = [(1000 * t, score) for t, score in enumerate(scores)]
    clients = {"L1": values, "L2": values, "G": values}
    figure = figures.curves(records, title) if name == "curves" else figures.clients(clients)
    figure.canvas.draw()
    (width, height), box = figure.get_size_inches(), figure.get_tightbbox()
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
    legend, (left, right) = figure.legends[0].get_window_extent(), [a.get_tightbbox() for a in figure.axes]
    assert legend.y1 <= min(left.y0, right.y0) and left.x1 <= right.x0
    if title:
        assert figure._suptitle.get_window_extent().y0 >= max(left.y1, right.y1)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.25, 0.5, 0.75], ["20 %", "40 %", "60 %", "80 %"]),
        ([0.9, 0.9625], ["90 %", "92 %", "94 %", "96 %"]),
        ([0.99991, 0.99993], ["99.991 %", "99.992 %", "99.993 %"]),  # four digits wrote 99.99 % at each
        ([0.99996, 1.0], ["99.996 %", "99.998 %", "100 %"]),
        ([-0.1, 0.1], ["−10 %", "−5 %", "0 %", "5 %", "10 %"]),
    ],
)
def test_ticks_of_shares_have_the_decimals_of_their_steps(values, labels):
    axes = figures.history(values, metric="val/L1/acc").axes[0]
    low, high = axes.get_ylim()
    ticks = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    found = [label.get_text() for tick, label in ticks if low <= tick <= high]
    assert len(set(found)) == len(found)
    assert [text for text in found if text in labels] == labels


@pytest.mark.parametrize(
    "draw", [lambda: figures.history([0.5]), lambda: figures.curves([(3, {"test/G/local/mean": 0.5})])]
)
def test_a_single_trial_or_round_has_a_whole_number(draw):
    axes = draw().axes[0]
    low, high = axes.get_xlim()
    assert all(tick == round(tick) for tick in axes.get_xticks() if low <= tick <= high)


def within_view(axis, low, high):
    """Labels of the ticks between two limits."""
    ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
    return [label.get_text() for tick, label in ticks if low <= tick <= high]


@pytest.mark.parametrize(
    "draw",
    [
        lambda share: figures.curves([(t, {"test/G/local/mean": share}) for t in range(3)]),
        lambda share: figures.clients({"L1": [share] * 4}),
        lambda share: figures.history([share] * 3, metric="val/L1/local/mean"),
        lambda share: figures.pareto([[share, share]]),
    ],
)
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_axes_of_accuracies_do_not_exceed_them(draw, share):
    """Of equal values matplotlib shows 5 % more on either side: 104 % and -4 %."""
    axes = draw(share).axes[0]
    shown = within_view(axes.yaxis, *axes.get_ylim())
    assert f"{100 * share:.0f} %" in shown
    assert all(0 <= float(text.removesuffix(" %").replace("−", "-")) <= 100 for text in shown)


def test_pareto_names_points_that_coincide_in_one_text():
    front = [[0.5, 0.5]] * 3 + [[0.9, 0.1], [0.1, 0.1]]
    assert [text.get_text() for text in figures.pareto(front).axes[0].texts] == ["0, 1, 2", "3"]
    many = figures.pareto([[0.5, 0.5]] * 9).axes[0]
    assert [text.get_text() for text in many.texts] == ["0, 1, 2, 3, 4, 5 and 3 more"]
