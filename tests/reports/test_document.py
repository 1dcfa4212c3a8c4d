"""Documents, and what they look like: whole, escaped, with nothing fetched."""

import csv
import io
import os
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from full_disk import full_disk
from matplotlib.figure import Figure

from pfl_ops import figures
from pfl_ops.errors import PflOpsError
from pfl_ops.reports.pages.document import (
    Document,
    Head,
    ItemList,
    PageSection,
    Panel,
    Picture,
    Row,
    Table,
    TableCell,
    Text,
)
from pfl_ops.reports.pages.html import to_html
from pfl_ops.reports.pages.latex import to_latex, to_latex_document
from pfl_ops.reports.pages.markdown import to_csv, to_markdown
from pfl_ops.reports.pages.write import write

NASTY = "a|b <script>alert('x')</script> & 50 % of $x_1$ #1 {y} ~ \\ ^"
VOID = {"meta", "br", "img", "hr", "input", "link", "source"}


def draw() -> Figure:
    return figures.lines({"FedAvg": ([1, 2, 3], [0.1, 0.5, 0.6]), "FLIU": ([1, 2, 3], [0.2, 0.4, 0.7])})


def table(name: str = "numbers") -> Table:
    head = (
        (Head(""), Head("L1", 2), Head("")),
        (Head("method"), Head("Acc(L)"), Head("Acc(G)", note="pooled data"), Head("remark")),
    )
    rows = (
        Row(title="PATH & co", kind="block"),
        Row((
            TableCell("FedAvg"),
            TableCell(
                "98.70 ± 0.12", 98.7000001, link="http://localhost:5000/#/runs/1?a=1&b=2", below=("98.73", "−0.03")
            ),
            TableCell("not run", mark="missing"),
            TableCell(NASTY, note="pooled data"),
        )),
        Row((
            TableCell("FLIU"), TableCell("99.10", 99.1, mark="best"), TableCell("12.00", 12.0, note="doubtful"),
            TableCell("✓ holds", mark="good", more=("path: 1 < 2", NASTY)),
        ), kind="rule"),
    )  # fmt: skip
    return Table(name, f"Caption {NASTY}", head, rows, ("A note with `code_1`.",))


def document() -> Document:
    return Document(
        "fliu/table1",
        f"Title {NASTY}",
        "subtitle",
        (
            PageSection("", (Text("Substitute data.", "warning"),)),
            PageSection("Numbers", (table(), Text("a < b", "code"), Text("mere remark", "note"))),
            PageSection(f"Figures {NASTY}", (Picture("curve", f"A curve {NASTY}", draw, 'two "lines"'),)),
            PageSection("Rest", (ItemList((("Python", "3.11"),)), ItemList((("", NASTY),)))),
        ),
        "today",
    )


class Page(HTMLParser):
    """Checks that what is opened is closed, and gathers tags, links and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def cells(line: str) -> list[str]:
    return re.split(r"(?<!\\)\|", line.strip())[1:-1]


@pytest.fixture(scope="module")
def page() -> str:
    return to_html(document())


def test_every_tag_of_the_page_is_closed(page: str) -> None:
    assert not Page(page).open


def test_the_page_fetches_nothing_and_runs_nothing(page: str) -> None:
    parsed = Page(page)
    for tag, attributes in parsed.seen:
        assert tag not in ("script", "link", "iframe", "object")
        for name, value in attributes.items():
            outside = re.search(r"(?:https?:)?//", value or "")
            assert not outside or (tag == "a" and name == "href") or name.startswith("xmlns"), (tag, name, value)
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style and "@import" not in style


def test_ids_are_unique_and_links_within_the_page_arrive(page: str) -> None:
    seen = Page(page).seen
    ids = [attributes["id"] for _, attributes in seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [str(attributes["href"]) for tag, attributes in seen if tag == "a"]
    inside = {link[1:] for link in links if link.startswith("#")}
    assert inside and inside <= set(ids)


def test_text_is_shown_as_written(page: str) -> None:
    assert Page(page).text.count(NASTY) >= 6


def test_what_a_reader_who_sees_no_picture_is_told(page: str) -> None:
    drawn = [attributes for tag, attributes in Page(page).seen if tag == "svg"]
    assert [attributes["aria-label"] for attributes in drawn] == ['two "lines"']
    scopes = {attributes.get("scope") for tag, attributes in Page(page).seen if tag == "th"}
    assert scopes == {"col", "colgroup", "row", "rowgroup"}


def test_an_address_that_would_run_something_is_no_link() -> None:
    bad = Table("t", "c", ((Head("x"),),), (Row((TableCell("x", link="javascript:alert(1)"),)),))
    assert "javascript" not in to_html(Document("d", "d", "", (PageSection("", (bad,)),)))


def test_markdown_has_as_many_columns_in_every_row() -> None:
    text = to_markdown(document())
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 5
    assert {len(cells(line)) for line in lines} == {4}
    assert r"[98.70 ± 0.12](http://localhost:5000/#/runs/1?a=1&b=2) \| 98.73 \| −0.03" in text
    assert "**99.10**" in text and "*not run*" in text and "<script>" not in text
    assert "![two" in text and "(figures/curve.svg)" in text


def test_a_mark_never_stands_alone_where_a_number_could() -> None:
    """Of a cell that was not run, the paper's number keeps the mark of its note: a lone 1 would be read as a value."""
    note = "The paper's number: repaired."
    rows = (
        Row((TableCell("FLIU75"), TableCell("", note=note, below=("97.67", "+0.1")))),
        Row((TableCell("FLIU"), TableCell("1", note=note))),
    )
    there = Table("t", "Numbers", ((Head("method"), Head("Acc")),), rows)
    document = Document("d", "d", "", (PageSection("", (there,)),))
    assert r"97.67<sup>1</sup> \| +0.1 |" in to_markdown(document) and "| 1<sup>1</sup> |" in to_markdown(document)
    page = to_html(document)
    assert (
        '<span class="text"></span>' in page and '97.67<sup title="The paper&#39;s number: repaired.">1</sup>' in page
    )


def test_csv_has_every_digit() -> None:
    rows = list(csv.reader(io.StringIO(to_csv(table()))))
    assert rows[0] == ["block", "method", "L1 Acc(L)", "L1 Acc(G)", "remark"]
    assert rows[1] == ["PATH & co", "FedAvg", "98.7000001", "not run", NASTY]
    given = Table("t", "c", ((Head("x"),),), (), data=pd.DataFrame({"x": [1 / 3]}))
    assert to_csv(given) == f"x\n{1 / 3!r}\n"


def test_latex_keeps_a_star_and_a_bracket_at_the_start_of_a_row() -> None:
    r"""After `\\` of the row above LaTeX takes them, over the line's end, as that command's own: the star that marks
    the chosen trial was lost unless it stood in the first row, and "[2]" would be a length."""
    rows = tuple(Row((TableCell(text), TableCell("1"))) for text in ("000", "*005", "[2]"))
    text = to_latex(Table("trials", "Trials", ((Head("trial"), Head("value")),), rows))
    assert "000 & 1 \\\\\n{}*005 & 1 \\\\\n{}[2] & 1" in text


def test_latex_escapes_what_is_special() -> None:
    text = to_latex(table())
    assert r"50 \% of \$x\_1\$ \#1 \{y\} \textasciitilde{} \textbackslash{} \textasciicircum{}" in text
    assert r"\multicolumn{2}{c}{L1}" in text and r"\cmidrule(lr){2-3}" in text
    assert r"98.70 {\scriptsize$\pm$ 0.12} {\scriptsize$\mid$ 98.73} {\scriptsize$\mid$ $-$0.03}" in text
    assert r"\textbf{99.10}" in text and r"\texttt{code\_1}" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn{4}" not in line]
    assert {line.count(" & ") for line in body[1:]} == {3}
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")


def test_a_row_as_wide_as_its_head_and_names_once() -> None:
    with pytest.raises(PflOpsError, match="widths are"):
        Table("t", "c", ((Head("a"), Head("b")),), (Row((TableCell("x"),)),))
    with pytest.raises(PflOpsError, match="t names two of its tables"):
        Document("d", "d", "", (PageSection("", (table("t"), table("t"))),))


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    kept = tmp_path / "figures" / "own.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    page = write(document(), tmp_path)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {
        "index.html", "report.md", "report.tex", "tables/numbers.csv", "tables/numbers.tex", "figures/curve.svg",
        "figures/curve.png", "figures/own.txt",
    }  # fmt: skip
    before = page.read_text()

    def broken() -> Figure:
        raise PflOpsError("there is nothing to draw")

    worse = Document("d", "other", "", (PageSection("", (table(), Picture("curve", "c", broken))),))
    with pytest.raises(PflOpsError, match="nothing to draw"):
        write(worse, tmp_path)
    assert page.read_text() == before
    assert not list(tmp_path.glob(".report-*"))


def test_a_full_disk_leaves_the_old_report(tmp_path: Path) -> None:
    page = write(document(), tmp_path / "report")
    before = {path: path.read_bytes() for path in page.parent.rglob("*") if path.is_file()}
    other = Document("d", "other", "", (PageSection("", (table(),)),))
    with full_disk(after=1000), pytest.raises(PflOpsError) as error:
        write(other, page.parent)
    assert str(error.value) == f"can't write the report to {page.parent}: File too large"
    assert {path: path.read_bytes() for path in page.parent.rglob("*") if path.is_file()} == before
    with full_disk(after=1000), pytest.raises(PflOpsError):
        write(other, tmp_path / "new" / "report")
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


def test_what_a_killed_process_left_of_a_report_is_swept(tmp_path: Path) -> None:
    old, new = tmp_path / ".report-old", tmp_path / ".report-new"
    for folder in (old, new):
        folder.mkdir()
    os.utime(old, (time.time() - 100_000,) * 2)
    write(Document("d", "d", "", ()), tmp_path)
    assert not old.exists() and new.exists()


def test_a_name_in_a_csv_is_no_formula() -> None:
    rows = (Row((TableCell("=1+1"), TableCell("-0.5", -0.5))), Row((TableCell("- none"), TableCell("-"))))
    made = Table("t", "c", ((Head("@name"), Head("a")),), rows)
    assert to_csv(made) == "'@name,a\n'=1+1,-0.5\n'- none,'-\n"


def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PflOpsError, match="can't write the report to"):
        write(Document("d", "d", "", ()), tmp_path / "file")


def panelled() -> Document:
    """Two panels with a legend, a row without a drawing, notes on demand and a folded section."""

    def draw() -> Figure:
        return figures.panel({"a & b": ([0, 1], [0.1, 0.2])}, (2.5, 1.75))

    panels = (Panel("one", draw), Panel("two <b>", text="never"))
    whole = Picture("p", "A caption.", draw, panels=panels, layout="rows", legend={"a & b": "C0", "others": "rest"})
    note = Text("Short.", "warning", ("First <i>.", "Second."))
    return Document(
        "x", "Title", "", (PageSection("Seen", (note, whole)), PageSection("Runs", (Text("inside"),), folded=True))
    )


def test_panels_have_a_legend_beside_them_and_notes_are_folded() -> None:
    page = to_html(panelled())
    parsed = Page(page)
    assert not parsed.open
    labels = [
        attributes["aria-label"] for tag, attributes in parsed.seen if tag == "svg" and "aria-label" in attributes
    ]
    assert labels == ["one: A caption."]  # nothing is drawn for the second
    assert page.count('class="swatch"') == 2 and "<span>a &amp; b</span>" in page and "never" in parsed.text
    assert '<details class="warning" role="note"><summary>Short.</summary><ul><li>First &lt;i&gt;.</li>' in page
    assert '<section id="runs">\n<details><summary><h2>Runs</h2></summary>\n<p>inside</p>\n</details>' in page


def test_a_picture_with_pixels_is_drawn_for_each_theme() -> None:
    def draw() -> Figure:
        return figures.heat([[1, 2]], ["a"], ["b", "c"])

    page = to_html(Document("x", "Title", "", (PageSection("Seen", (Picture("p", "A caption.", draw),)),)))
    assert not Page(page).open
    for theme in ("light", "dark"):
        with figures.theme(theme):
            assert f'<div class="in-{theme}">{figures.to_svg(draw(), f"p-{theme}", "A caption.")}</div>' in page


def test_notes_on_demand_are_in_markdown_and_latex() -> None:
    document = panelled()
    assert "<details><summary>Short.</summary>First" in to_markdown(document) and "Second." in to_markdown(document)
    assert r"\textbf{Short.}\par First" in to_latex_document(document)
