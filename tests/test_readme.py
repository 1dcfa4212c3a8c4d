"""The README is true: its commands exist, its examples run.

In README.md an HTML comment on the line above a code block says what is done with it:

    <!-- run -->              its commands (bash) or code (python) run, in order, in one empty folder
    <!-- file: mine.py -->    it is that file in that folder

In a bash block, lines that begin with # are remarks and a backslash at the end joins lines. Blocks without a comment
are not run, but every `pfl-ops` command in them must still be one that the program understands.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from pfl_ops.cli import app

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"(?:^<!-- *(run|file: *\S+) *-->\n)?^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LONGEST = 240  # seconds that a README's command may take


class Block(NamedTuple):
    """A code block and what is to be done with it: "run", "file: NAME" or ""."""

    mark: str
    language: str
    text: str


def blocks(text: str) -> list[Block]:
    """The code blocks of a Markdown text."""
    return [Block(*(part or "" for part in match.groups())) for match in BLOCK.finditer(text)]


def commands(block: Block) -> Iterator[str]:
    """The commands of a bash block."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip().removeprefix("$ ")


def test_blocks_are_found() -> None:
    text = (
        "a\n<!-- run -->\n```bash\n# remark\npfl-ops list \\\n  models  # all\n```\n\n"
        "```python\n1\n```\n<!-- file: x.py -->\n```python\n2\n```\n"
    )
    first, second, third = blocks(text)
    assert first.mark == "run" and [c.split() for c in commands(first)] == [["pfl-ops", "list", "models", "#", "all"]]
    assert second == Block("", "python", "1\n")
    assert third == Block("file: x.py", "python", "2\n")


def test_every_command_in_it_exists() -> None:
    """Flags and commands are checked by asking each for its help, which Typer gives only if it understands the line."""
    seen = 0
    for block in blocks(README.read_text(encoding="utf-8")):
        if block.language in ("bash", "console", "sh"):
            for command in commands(block):
                words = shlex.split(command, comments=True)
                if words and words[0] == "pfl-ops":
                    result = CliRunner().invoke(app, [*words[1:], "--help"])
                    assert result.exit_code == 0, f"{command}\n{result.output}"
                    seen += 1
    assert seen, "the README shows no command"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_its_examples_run(tmp_path: Path, furnish: Callable[[Path], Path]) -> None:
    marked = [block for block in blocks(README.read_text(encoding="utf-8")) if block.mark]
    assert marked, "no block of the README is marked <!-- run -->"
    env = {**os.environ, "PFL_OPS_HOME": str(furnish(tmp_path / "mlruns"))}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    for block in marked:
        if block.mark.startswith("file:"):
            (tmp_path / block.mark.removeprefix("file:").strip()).write_text(block.text, encoding="utf-8")
            continue
        argv = (
            [sys.executable, "-c", block.text]
            if block.language == "python"
            else ["bash", "-euo", "pipefail", "-c", block.text]
        )
        done = subprocess.run(
            argv,
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
