"""Temporary folders go with their owner, and nothing else goes with them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pfl_ops.system.scratch import OWNER, PREFIX, scratch, sweep


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """A folder with a file in it, left by a process that was killed."""
    code = (
        f"import os, sys; sys.path[:] = {sys.path!r}\n"
        f"from pfl_ops.system.scratch import scratch\n"
        f"with scratch({str(tmp_path)!r}) as folder:\n"
        f"    (folder / 'inner').mkdir(); (folder / 'inner' / 'file').touch(); print(folder, flush=True)\n"
        f"    os.kill(os.getpid(), 9)"
    )
    folder = Path(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip())
    assert (folder / "inner" / "file").exists() and folder.parent == tmp_path
    return folder


def test_a_folder_is_private_and_goes_at_the_end(tmp_path):
    with scratch(tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").touch()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_a_killed_process_goes_when_the_next_is_made(left, tmp_path):
    with scratch(tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_of_a_living_process_stays(tmp_path):
    with scratch(tmp_path) as folder:
        sweep(tmp_path)
        assert folder.exists()


def test_a_folder_that_a_helper_uses_stays(left, tmp_path):
    """As a process of Ray that has outlived its driver: the folder is on its command line."""
    argv = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", f"--log-dir={left}/logs"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as helper:
        helper.stdout.read(1)
        sweep(tmp_path)
        assert left.exists()
    sweep(tmp_path)
    assert not left.exists()


def test_what_is_not_ours_stays(tmp_path):
    """A link, a folder without an owner's file, one that others may enter, one of another name, a plain file."""
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (target / OWNER).touch()
    (tmp_path / f"{PREFIX}link").symlink_to(target)
    (tmp_path / f"{PREFIX}empty").mkdir(mode=0o700)
    (tmp_path / f"{PREFIX}file").touch()
    (tmp_path / f"{PREFIX}open").mkdir()
    (tmp_path / f"{PREFIX}open").chmod(0o755)
    (tmp_path / f"{PREFIX}open" / OWNER).touch()
    before = sorted(os.listdir(tmp_path))
    sweep(tmp_path)
    assert sorted(os.listdir(tmp_path)) == before and (target / OWNER).exists()


def test_links_in_a_stale_folder_are_not_followed(left, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (left / "link").symlink_to(tmp_path / "kept")
    sweep(tmp_path)
    assert not left.exists() and (tmp_path / "kept" / "file").exists()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    with pytest.raises(OSError), scratch(tmp_path / "missing"):
        pass
