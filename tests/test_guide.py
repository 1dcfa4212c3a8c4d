"""The guide is true: its commands exist, its examples run and print what it says. And how `documents` reads a page."""

from collections.abc import Callable
from pathlib import Path

import pytest
from documents import ROOT, Block, blocks, check_commands, commands, run_marked, runs_of

PAGES = ("rounds", "verbs", "search-spaces", "data", "files", "notebooks")


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


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_it_exists(page: str) -> None:
    assert check_commands(ROOT / "docs" / f"{page}.md"), f"{page}.md shows no command"


def test_the_readme_links_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"(docs/{page}.md)" in readme for page in PAGES)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES)
def test_its_examples_run(page: str, tmp_path: Path, furnish: Callable[[Path], Path]) -> None:
    work = tmp_path / "work"
    work.mkdir()
    count = run_marked(text_of(page), work, furnish(work / "mlruns"))
    assert count, f"no block of {page}.md is marked <!-- run -->"
