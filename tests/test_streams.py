"""Standard streams that are closed, full, or whose reader went away: no traceback, and the exit code of other tools."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-c", "from pfl_ops.cli import main; main()"]


def shell(words: str, redirection: str) -> subprocess.CompletedProcess[str]:
    line = 'set -o pipefail; "$@" ' + redirection
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [Path(__file__).parent.parent]))}
    call = ["bash", "-c", line, "pfl-ops", *COMMAND, *words.split()]
    return subprocess.run(call, capture_output=True, text=True, env=env, timeout=120, check=False)


@pytest.mark.parametrize(
    ("words", "redirection", "code", "told"),
    [
        ("list partitions", "| true", 1, ""),  # `true` reads nothing
        ("--help", "| true", 1, ""),
        ("list partitions", ">&-", 0, ""),
        ("list partitions", "<&- >&- 2>&-", 0, ""),
        ("list partition", ">&-", 2, "pfl-ops: no kind "),
        ("list partitions", ">/dev/full", 2, "pfl-ops: the disk is full (No space left on device); make room"),
    ],
)
def test_output_that_goes_nowhere_is_no_traceback(words: str, redirection: str, code: int, told: str) -> None:
    done = shell(words, redirection)
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.startswith(told) and done.stderr.count("\n") == bool(told)


def test_files_of_a_command_never_take_the_place_of_a_closed_stream() -> None:
    """Else a child process would print into the file that was opened first."""
    code = "from pfl_ops.cli.output import open_missing_streams as o; o(); f = open('/dev/zero'); exit(f.fileno())"
    line = 'exec "$@" <&- >&- 2>&-'
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    call = ["bash", "-c", line, "python", sys.executable, "-c", code]
    assert subprocess.run(call, env=env, timeout=60, check=False).returncode > 2
