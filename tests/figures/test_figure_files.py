"""Pictures as files and in pages: the same bytes for the same picture, and nothing that reaches beyond it."""

import re
from io import BytesIO
from xml.etree import ElementTree

import pytest
from full_disk import full_disk

from pfl_ops import figures
from pfl_ops.errors import PflOpsError
from pfl_ops.figures import files, style


def picture(shift=0.0):
    return figures.lines({"fliu": ([0, 1, 2], [[0.1, 0.4, 0.5], [0.2, 0.4, 0.6 + shift]])})


def test_a_path_without_an_ending_is_written_as_both(tmp_path):
    assert figures.save(picture(), tmp_path / "deep" / "figure") == tmp_path / "deep" / "figure.svg"
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["figure.png", "figure.svg"]


def test_a_full_disk_leaves_the_old_picture(tmp_path):
    file = figures.save(picture(), tmp_path / "a.svg")
    before = file.read_bytes()
    with full_disk(after=1000), pytest.raises(PflOpsError) as error:
        figures.save(picture(0.1), file)
    assert str(error.value) == f"can't write {file}: File too large"
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("write", [figures.to_png, figures.to_svg], ids=["png", "svg"])
def test_the_same_picture_gives_the_same_bytes_in_a_page_too(write):
    assert write(picture()) == write(picture()) != write(picture(0.1))
    once = picture()
    assert write(once) == write(once)


def test_png_is_one():
    assert figures.to_png(picture(), dpi=40).startswith(b"\x89PNG")


def test_an_svg_stands_alone_among_others_in_a_page():
    found = [figures.to_svg(picture()), figures.to_svg(picture(0.1)), figures.to_svg(picture(), name="fig 3")]
    ids = [re.findall(r'\bid="([^"]+)"', svg) for svg in found]
    assert len({name for names in ids for name in names}) == sum(map(len, ids)) > 12
    for svg, names in zip(found, ids, strict=True):
        used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg))
        assert used and {a or b for a, b in used} <= set(names)
        assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
        assert "<style" not in svg and "<metadata" not in svg and "<?xml" not in svg and "<!DOCTYPE" not in svg
        assert "<text" not in svg  # letters are shapes: no font is needed
    assert all(name.startswith("fig-3-") for name in ids[2])


def test_an_svg_says_what_it_shows_and_has_no_background():
    with figures.theme("dark"):
        svg = figures.to_svg(picture(), alt='"FLIU" < all')
    root = ElementTree.fromstring(svg)
    assert root.attrib["aria-label"] == '"FLIU" < all' and root.attrib["role"] == "img"
    background = root.find(".//{http://www.w3.org/2000/svg}path")
    assert "fill: none" in background.attrib["style"]
    assert len(re.findall("fill: #16191d", svg)) == len(re.findall("stroke: #[0-9a-f]{6}; fill: #16191d", svg))


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_drawing_once_gives_the_bytes_of_savefig(kind):
    """Its layout engine arranges the figure, which savefig draws twice for that; canvas and resolution stay."""
    figure, expected = picture(), BytesIO()
    canvas, dpi = figure.canvas, figure.dpi
    with style.style():
        found = files.draw_once(figure, kind, 150, files.STAMPS[kind])
        picture().savefig(expected, format=kind, dpi=150, metadata=files.STAMPS[kind])
    assert found == expected.getvalue()
    assert figure.canvas is canvas and figure.dpi == dpi
