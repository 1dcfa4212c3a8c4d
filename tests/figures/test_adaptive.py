"""One drawing for light and dark pages: with a theme's colours in place of the variables it is the theme's drawing."""

import re

import pytest
from test_looks import BAND, PICTURES

from pfl_ops import figures
from pfl_ops.figures.style import DARK, LIGHT, PLACEHOLDERS

PIXELS = {"heat"}
SEVERAL = {f"method {i}": ([0, 1, 2], [[0.1, 0.2, 0.3 + i / 100], [0.2, 0.4, 0.5]]) for i in range(23)}
DRAWN = {
    **{name: draw for name, draw in PICTURES.items() if name not in PIXELS},
    "23 names": lambda: figures.lines(SEVERAL),
    "the rest in grey": lambda: figures.panel({"a": BAND, "b": BAND}, (2, 2), colours={"a": "rest", "b": "C3"}),
    "ten classes": lambda: figures.partition([[1] * 10, [2] * 10]),
    "bars of 12": lambda: figures.bars({"one": {f"m{i}": [0.1, 0.2 + i / 100] for i in range(12)}}),
}


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_drawing_in_a_themes_colours_is_the_themes_drawing(theme, name):
    """Byte for byte, but for names of elements, which are digests of colours too, and CSS in place of an attribute."""
    adaptive = figures.to_adaptive_svg(DRAWN[name], "p", "told")
    values = dict(each.split(":") for each in figures.adaptive_variables()[theme].split(";"))
    shown = re.sub(r"var\(([^)]+)\)", lambda found: values[found.group(1)].lower(), adaptive)
    with figures.theme(theme):
        drawn = figures.to_svg(DRAWN[name](), "p", "told")
    assert without_digests(shown) == without_digests(re.sub(' fill="(#.{6})"', r' style="fill: \1"', drawn))
    assert "var(" not in re.sub(r'style="[^"]*"', "", adaptive)


def without_digests(svg):
    """Number the elements by their first use."""
    order = {}
    return re.sub(r"(?<=[#\"])p-[\w-]+", lambda found: f"e{order.setdefault(found.group(), len(order))}", svg)


def test_each_colour_is_a_variable_of_both_themes():
    svg = figures.to_adaptive_svg(DRAWN["23 names"])
    used = set(re.findall(r"var\(([^)]+)\)", svg))
    assert used > {"--figure-ink", "--figure-paper", "--figure-palette-0", "--figure-palette-9"}
    assert not re.search(r"#[0-9a-f]{6}\b", svg)
    for declared in figures.adaptive_variables().values():
        assert used <= {each.partition(":")[0] for each in declared.split(";")}


def test_the_colours_that_stand_for_variables_are_all_different():
    colours = PLACEHOLDERS.colours()
    assert len(set(colours.values())) == len(colours) == 29
    assert list(colours) == list(LIGHT.colours()) == list(DARK.colours())
    assert not set(colours.values()) & {*LIGHT.colours().values(), *DARK.colours().values()}


@pytest.mark.parametrize(
    "draw",
    [
        PICTURES["heat"],
        lambda: figures.partition([[1] * 12]),
        lambda: figures.strip([0.5] * 3001, (0.0, 1.0)),
        lambda: figures.lines({"a": BAND}, colours={"a": "#123456"}),
    ],
    ids=["a ramp", "many classes", "many dots", "a given colour"],
)
def test_other_colours_need_a_drawing_for_each_theme(draw):
    assert figures.to_adaptive_svg(draw) is None
