"""The guide is true: its commands exist, its examples run and print what it says. And how `documents` reads a page."""

from collections.abc import Callable
from pathlib import Path

import pytest
from documents import ROOT, Block, anchors, blocks, check_commands, check_links, commands, run_marked, runs_of

PAGES = (
    *("start", "tuning", "compare", "reproduce"),
    *("rounds", "verbs", "search-spaces", "data", "files", "notebooks"),
)
"""Pages with blocks that are run."""


def text_of(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def test_blocks_are_found() -> None:
    text = (
        "a\n<!-- run -->\n```bash\n# remark\npfl-ops list \\\n  models  # all\n```\n\n"
        "```python\n1\n```\n<!-- file: x.py -->\n```python\n2\n```\n"
    )
    first, second, third = blocks(text)
    assert first.mark == "run" and [c.split() for c in commands(first)] == [["pfl-ops", "list", "models", "#", "all"]]
    assert second == Block("", "python", "1\n")
    assert third == Block("file: x.py", "python", "2\n")


def test_blocks_that_go_on_are_joined() -> None:
    text = "".join(
        f"<!-- {mark} -->\n```{language}\n{body}\n```\n"
        for mark, language, body in (
            ("run", "python", "a = 1"),
            ("go on", "python", "print(a)"),
            ("prints", "", "1"),
            ("run", "bash", "true"),
        )
    )
    (first, expected), (second, nothing) = runs_of(text)
    assert (first.text, expected, second.text, nothing) == ("a = 1\nprint(a)\n", ["1"], "true\n", [])


def test_what_is_not_printed_is_found(tmp_path: Path) -> None:
    text = "<!-- run -->\n```python\nprint('Acc  0.5 here')\n```\n<!-- prints -->\n```\n{}\n```\n"
    assert run_marked(text.format("Acc ... here"), tmp_path, tmp_path) == 1
    with pytest.raises(AssertionError, match=r"'Acc 0\.6' is not in"):
        run_marked(text.format("Acc 0.6"), tmp_path, tmp_path)


def test_options_of_a_run_replace_those_of_its_commands() -> None:
    text = (
        "<!-- run with: --rounds 2 --lr 0.1 -->\n```bash\n"
        "pfl-ops run a \\\n  --rounds 10 --set 'x=[1, 2]'  # all\npfl-ops run b\n```\n"
    )
    assert blocks(text) == [
        Block("run", "bash", "pfl-ops run a --set 'x=[1, 2]' --rounds 2 --lr 0.1\npfl-ops run b --rounds 2 --lr 0.1\n")
    ]


def test_numbers_of_printed_lines_may_differ(tmp_path: Path) -> None:
    text = "<!-- run -->\n```python\nprint('n 1,234  98.5 %')\n```\n<!-- prints like -->\n```\n{}\n```\n"
    assert run_marked(text.format("n 7 1.25 %\n..."), tmp_path, tmp_path) == 1
    for wrong in ("m 7 1.25 %", "n 7 x %"):
        with pytest.raises(AssertionError, match="is not in"):
            run_marked(text.format(wrong), tmp_path, tmp_path)


def test_links_to_missing_headings_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    head = "# A page\n## .npz, `x` & a [link](b.md)\n## Twice\n## Twice\n```bash\n# remark\n[no](link)\n```\n"
    assert anchors(head) == {"a-page", "npz-x--a-link", "twice", "twice-1"}
    page.with_name("b.md").write_text("# B\n", encoding="utf-8")
    page.write_text(f"{head}[self](#twice-1) [b](b.md#b) [away](https://a.example/x#y)\n", encoding="utf-8")
    assert check_links(page) == 3  # one of them in a heading
    for wrong in ("(#remark)", "(b.md#a-page)", "(c.md)"):
        page.write_text(f"{head}[wrong]{wrong}\n", encoding="utf-8")
        with pytest.raises(AssertionError, match=r"page\.md links to"):
            check_links(page)


@pytest.mark.parametrize("page", [*PAGES, "bench"])
def test_every_command_in_it_exists(page: str) -> None:
    assert check_commands(ROOT / "docs" / f"{page}.md"), f"{page}.md shows no command"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize("page", [*PAGES[:-1], pytest.param(PAGES[-1], marks=pytest.mark.real_pictures)])
def test_its_examples_run(page: str, tmp_path: Path, furnish: Callable[[Path], Path]) -> None:
    work = tmp_path / "work"
    work.mkdir()
    count = run_marked(text_of(page), work, furnish(work / "mlruns"))
    assert count, f"no block of {page}.md is marked <!-- run -->"
