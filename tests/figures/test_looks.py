"""Themes and names: every picture obeys the theme, and a name looks the same wherever it is drawn."""

from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb

from pfl_ops import figures
from pfl_ops.errors import PflOpsError
from pfl_ops.figures.looks import looks
from pfl_ops.figures.style import DARK, LIGHT, THEMES

BAND = ([0, 1], [[0.1, 0.2], [0.2, 0.4]])
PICTURES = {
    "lines": lambda: figures.lines({"a": BAND, "b": BAND}, target=0.3),
    "panels": lambda: figures.panels({"one": {"a": BAND}}),
    "over": lambda: figures.over({"a": BAND}),
    "scatter": lambda: figures.scatter({"a": [[0.1, 0.2], [0.3, 0.1]], "b": [0.5, 0.1]}),
    "distributions": lambda: figures.distributions({"a": [0.1, 0.5]}),
    "panel": lambda: figures.panel({"a": BAND}, (2.5, 1.75)),
    "strip": lambda: figures.strip([0.1, 0.5], (0.0, 1.0)),
    "bars": lambda: figures.bars({"one": {"a": [0.1, 0.3], "b": 0.5}}),
    "heat": lambda: figures.heat([[1, 2]], ["a"], ["b", "c"]),
    "partition": lambda: figures.partition([[1, 2], [3, 0]], title="title"),
    "clients": lambda: figures.clients({"L1": [0.1, 0.5], "G": [0.3, 0.4]}),
    "curves": lambda: figures.curves([(0, {"val/L1/local/mean": 0.1}), (1, {"val/L1/local/mean": 0.2})]),
    "pareto": lambda: figures.pareto([[0.1, 0.9], [0.5, 0.5]], chosen=0),
    "history": lambda: figures.history([0.1, 0.5]),
}


def luminance(colour):
    return float(np.dot([0.2126, 0.7152, 0.0722], to_rgb(colour)))


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_obeys_the_theme(name):
    with figures.theme("dark"):
        dark = PICTURES[name]()
    light = PICTURES[name]()
    assert to_hex(dark.get_facecolor()).upper() == DARK.paper and to_hex(light.get_facecolor()).upper() == LIGHT.paper
    for figure, readable in ((dark, lambda c: luminance(c) > 0.3), (light, lambda c: luminance(c) < 0.6)):
        figure.draw_without_rendering()  # outside the theme: ticks that are made now must have its colours too
        ticks = [label for axes in figure.axes for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
        labels = [label for axes in figure.axes for label in (axes.xaxis.label, axes.yaxis.label)]
        assert ticks and all(readable(text.get_color()) for text in ticks + labels)


def test_a_theme_ends_with_its_block_and_an_unknown_one_is_refused():
    with figures.theme("dark"), figures.theme("light"):
        pass
    with pytest.raises(ValueError), figures.theme("dark"):
        raise ValueError
    assert to_hex(figures.history([]).get_facecolor()).upper() == LIGHT.paper
    with pytest.raises(PflOpsError, match=r"no theme named 'drak'\. Did you mean 'dark'"), figures.theme("drak"):
        pass


def test_thirty_names_look_different():
    found = looks(f"method {i}" for i in range(30))
    assert len({(look.colour, str(look.dash)) for look in found.values()}) == 30
    assert len({look.colour for look in list(found.values())[:10]}) == 10
    assert len({look.marker for look in list(found.values())[:10]}) == 10


def test_a_name_keeps_its_look_whatever_else_is_drawn():
    fixed = figures.colours(["fedavg", "fliu", "apfl", "fliu"])
    assert fixed == {"fedavg": "C0", "fliu": "C1", "apfl": "C2"}
    assert looks(["apfl"], fixed)["apfl"] == looks(["fedavg", "fliu", "apfl"])["apfl"]
    stranger = looks(["new", "apfl"], fixed)["new"]
    assert stranger.colour not in {look.colour for look in looks(fixed, fixed).values()}
    with figures.theme("dark"):
        assert looks(["apfl"], fixed)["apfl"].colour == DARK.palette[2]


def test_a_colour_can_be_given_and_must_be_one():
    assert looks(["a"], {"a": "#123456"})["a"].colour == "#123456"
    with pytest.raises(PflOpsError, match="'blau' is no colour"):
        figures.lines({"a": BAND}, colours={"a": "blau"})


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
@pytest.mark.parametrize(
    "seen",
    [
        np.eye(3),
        # Machado, Oliveira and Fernandes 2009, severity 1: deuteranopia, protanopia
        np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
        np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    ],
    ids=["all cones", "deuteranopia", "protanopia"],
)
def test_the_palette_stays_apart_under_colour_blindness(theme, seen):
    found = [oklab(seen @ linear(colour)) for colour in theme.palette]
    apart = [float(np.linalg.norm(a - b)) for i, a in enumerate(found) for b in found[:i]]
    assert min(apart) > 0.065  # a just noticeable difference is 0.02


def linear(colour):
    c = np.array(to_rgb(colour))
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def oklab(rgb):
    to_cones = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
    to_lab = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    return np.array(to_lab) @ np.cbrt(np.array(to_cones) @ np.clip(rgb, 0, 1))


def test_a_swatch_has_the_look_of_its_slot_in_both_themes():
    seen = {figures.swatch(f"C{i}") for i in range(20)} | {figures.swatch(figures.REST)}
    assert len(seen) == 21
    for i in (0, 13):
        text = figures.swatch(f"C{i}")
        for name in ("light", "dark"):
            with figures.theme(name):
                assert f"--in-{name}:{looks(['x'], {'x': f'C{i}'})['x'].colour}" in text
        assert ("stroke-dasharray" in text) == ("var(--paper)" in text) == (i == 13)
    ElementTree.fromstring(figures.swatch("C3"))


def test_what_is_not_singled_out_is_grey_in_each_theme():
    for theme in THEMES.values():
        with figures.theme(theme.name):
            assert looks(["x"], {"x": figures.REST})["x"].colour == theme.rest
