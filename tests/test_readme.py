"""The README is true: its commands exist, its examples run, its links lead somewhere; so do the links of all pages.

`documents` says how a block is marked.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from documents import ROOT, check_commands, check_links, run_marked

README = ROOT / "README.md"
EVERY = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_command_in_it_exists() -> None:
    assert check_commands(README), "the README shows no command"


@pytest.mark.parametrize("page", EVERY, ids=lambda page: page.stem)
def test_its_links_lead_somewhere(page: Path) -> None:
    check_links(page)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_its_examples_run(tmp_path: Path, furnish: Callable[[Path], Path]) -> None:
    work = tmp_path / "work"
    work.mkdir()
    count = run_marked(README.read_text(encoding="utf-8"), work, furnish(work / "mlruns"), real=True)
    assert count, "no block of the README is marked <!-- run -->"
