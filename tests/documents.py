"""Marked code blocks of Markdown pages, and how they are run.

An HTML comment on the line above a code block says what is done with it:

    <!-- run -->              its commands (bash) or code (python) run, in order, in one empty folder
    <!-- run with: --a 1 -->  the same, with these options (name and value) in place of those in its commands
    <!-- go on -->            it goes on from the block before it that was run, in the same process
    <!-- refused -->          its commands run and end with exit code 2
    <!-- prints -->           its lines are among those that the last block that ran prints; ... stands for any text
    <!-- prints like -->      the same, but each number stands for any number
    <!-- file: mine.py -->    it is that file in that folder

In a bash block, lines that begin with # are remarks and a backslash at the end joins lines. Blocks without a comment
are not run, but each `pfl-ops` command in them must be one that the program understands.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import fork_server
from typer.testing import CliRunner

from pfl_ops.cli import app

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"(?:^<!-- *(run(?: with: *[^\n]*?)?|go on|refused|prints(?: like)?|file: *\S+) *-->\n)?^```(\w*)\n(.*?)^```",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]+))?[^)]*\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
NUMBER = re.compile(r"\d[\d.,]*")
RUN = {"run": 0, "refused": 2}
"""Marks of blocks that are run -> their exit code."""
LONGEST = 360  # seconds that the commands of a block may take


class Block(NamedTuple):
    """A code block and what is to be done with it: a mark as in this file's docstring, or ""."""

    mark: str
    language: str
    text: str


def blocks(text: str) -> list[Block]:
    """Return the code blocks of a Markdown text; `run with` is a `run` whose commands have the options."""
    found = []
    for match in BLOCK.finditer(text):
        mark, language, body = (part or "" for part in match.groups())
        if mark.startswith("run with:"):
            body = "".join(f"{replaced(line, mark.removeprefix('run with:'))}\n" for line in joined(body))
            mark = "run"
        found.append(Block(mark, language, body))
    return found


def replaced(command: str, options: str) -> str:
    """Return a command with the options `--NAME VALUE ...`, in place of its own values where it has them."""
    words, new = shlex.split(command, comments=True), shlex.split(options)
    for name in new[::2]:
        if name in words:
            place = words.index(name)
            del words[place : place + 2]
    return shlex.join([*words, *new])


def joined(text: str) -> Iterator[str]:
    """Yield the commands of a bash text."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip().removeprefix("$ ")


def commands(block: Block) -> Iterator[str]:
    """Yield the commands of a bash block."""
    return joined(block.text)


def check_commands(page: Path) -> int:
    """Ask each `pfl-ops` command of a page for its help, which Typer gives only if it understands the line.

    Returns:
        the number of commands.
    """
    seen = 0
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language in ("bash", "console", "sh"):
            for command in commands(block):
                words = shlex.split(command, comments=True)
                if words and words[0] == "pfl-ops":
                    result = CliRunner().invoke(app, [*words[1:], "--help"])
                    assert result.exit_code == 0, f"{command}\n{result.output}"
                    seen += 1
    return seen


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings as GitHub makes them: lower case, spaces as hyphens, no punctuation."""
    found: dict[str, int] = {}
    for heading in HEADING.findall(BLOCK.sub("", text)):
        anchor = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
    return {f"{anchor}-{n}" if n else anchor for anchor, last in found.items() for n in range(last + 1)}


def make_targets(page: Path) -> list[str]:
    """Return the targets of the `make` commands of a page."""
    found = []
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language in ("bash", "console", "sh"):
            for command in commands(block):
                words = shlex.split(command, comments=True)
                if words and words[0] == "make":
                    found += [word for word in words[1:] if "=" not in word]
    return found


def check_links(page: Path) -> int:
    """Fail if a link of a page to a file of this repository, or to a heading of one, leads nowhere.

    Returns:
        the number of links that were looked up.
    """
    seen = 0
    for target, anchor in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), f"{page.name} links to {target}#{anchor}"
        seen += 1
    return seen


def runs_of(text: str) -> list[tuple[Block, list[str]]]:
    """Return the blocks to run or to write, those that go on joined, each with the lines that it must print."""
    found: list[tuple[Block, list[str]]] = []
    for block in blocks(text):
        if block.mark in RUN or block.mark.startswith("file:"):
            found.append((block, []))
        elif block.mark:
            before, expected = found[-1]
            assert before.mark in RUN, f"no block before it is run:\n{block.text}"
            if block.mark.startswith("prints"):
                lines = [line for line in block.text.splitlines() if line.strip()]
                expected += [NUMBER.sub("<n>", line) for line in lines] if block.mark == "prints like" else lines
            else:
                assert before.language == block.language, f"it can't go on in {block.language}:\n{block.text}"
                found[-1] = before._replace(text=before.text + block.text), expected
    return found


def is_printed(line: str, text: str) -> bool:
    """True if a line of the text holds this one; spaces count as one, ... as any text, <n> as any number."""
    pattern = r".*".join(re.escape(" ".join(part.split())) for part in line.split("...")).replace("<n>", NUMBER.pattern)
    return any(re.search(pattern, " ".join(printed.split())) for printed in text.splitlines())


def run_marked(text: str, folder: Path, home: Path, real: bool = False) -> int:
    """Run the marked blocks of a page.

    Args:
        text: Markdown.
        folder: an empty folder, where they run.
        home: the work folder.
        real: start `pfl-ops` and Python as a reader does; else by the fork server.
    Returns:
        the number of processes.
    """
    env = {**os.environ, "PFL_OPS_HOME": str(home), "COLUMNS": "160"}
    python = [sys.executable] if real else fork_server.python()
    folders = [Path(sys.executable).parent] if real else [fork_server.scripts(), Path(sys.executable).parent]
    env["PATH"] = os.pathsep.join([*map(str, folders), env["PATH"]])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH", "")]))
    count = 0
    for block, expected in runs_of(text):
        if block.mark.startswith("file:"):
            file = folder / block.mark.removeprefix("file:").strip()
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
            continue
        argv = (
            [*python, "-c", block.text]
            if block.language == "python"
            else ["bash", "-euo", "pipefail", "-c", block.text]
        )
        done = subprocess.run(
            argv,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
        assert done.returncode == RUN[block.mark], f"{block.text}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        printed = done.stdout + done.stderr
        for line in expected:
            assert is_printed(line, printed), f"{line!r} is not in\n{printed}"
        count += 1
    return count
