"""The README is true: its commands exist, its examples run, its links lead somewhere; so do the links of all pages.

`documents` says how a block is marked.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from documents import ROOT, check_commands, check_links, make_targets, run_marked

README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
EVERY = [README, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md")), *DOCS]
LONGEST = 800
"""Words of the README, signs and bars of tables apart: one page."""


def test_every_command_in_it_exists() -> None:
    assert check_commands(README), "the README shows no command"


@pytest.mark.parametrize("page", EVERY, ids=lambda page: page.stem)
def test_its_links_lead_somewhere(page: Path) -> None:
    check_links(page)


@pytest.mark.parametrize("page", EVERY, ids=lambda page: page.stem)
def test_its_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert not [target for target in make_targets(page) if f"\n{target}:" not in makefile]


def test_ci_runs_its_make_commands() -> None:
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert {"install", "tune", "test"} == set(make_targets(README))
    assert all(f"make {target}" in steps for target in make_targets(README))


def test_it_is_one_page_and_links_all_others() -> None:
    text = README.read_text(encoding="utf-8")
    assert sum(any(map(str.isalnum, word)) for word in text.split()) <= LONGEST
    assert not [page.name for page in DOCS if f"(docs/{page.name})" not in text]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_its_examples_run(tmp_path: Path, furnish: Callable[[Path], Path]) -> None:
    """With REAL_PROCESSES=1, as in CI, in processes as a reader starts them; else in forks, a third of the CPU time."""
    work = tmp_path / "work"
    work.mkdir()
    real = bool(os.environ.get("REAL_PROCESSES"))
    count = run_marked(README.read_text(encoding="utf-8"), work, furnish(work / "mlruns"), real=real)
    assert count, "no block of the README is marked <!-- run -->"
