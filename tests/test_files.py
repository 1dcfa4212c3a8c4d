"""Files are replaced whole or not at all."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from full_disk import full_disk

from pfl_ops.errors import PflOpsError
from pfl_ops.files import alone_in, replacing, write_named, write_whole


def test_write_whole_replaces_content_and_leaves_no_draft(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    write_whole(file, "old")
    write_whole(file, b"new")
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


def test_replacing_keeps_the_old_file_if_the_block_raises(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("old")
    with pytest.raises(OSError, match="disk full"), replacing(file) as draft:
        draft.write_text("half")
        raise OSError("disk full")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_replacing_keeps_the_suffix_of_the_draft(tmp_path: Path) -> None:
    """Matplotlib and pandas choose a format by the suffix."""
    with replacing(tmp_path / "plot.svg") as draft:
        assert draft.suffix == ".svg"
        draft.write_text("<svg/>")
    assert (tmp_path / "plot.svg").read_text() == "<svg/>"


def test_write_whole_missing_folder_raises_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "absent" / "page.html", "x")
    assert list(tmp_path.iterdir()) == []


def test_write_named_makes_folders_and_keeps_permissions(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "page.html"
    assert write_named(file, "old") == file
    file.chmod(0o640)
    write_named(str(file), b"new")
    assert file.read_text() == "new" and file.stat().st_mode & 0o777 == 0o640
    assert list(file.parent.iterdir()) == [file]


def test_write_named_full_disk_leaves_the_old_file_and_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    write_named(file, "old")
    with full_disk(after=4):
        for target in (file, tmp_path / "a" / "b" / "page.html"):
            with pytest.raises(PflOpsError) as error:
                write_named(target, "a longer page")
            assert str(error.value) == f"can't write {target}: File too large"
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_write_named_replaces_the_target_of_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_named(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


def test_write_named_writes_to_a_pipe_and_never_replaces_it(tmp_path: Path) -> None:
    """As root, a rename would put a file in the place of /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        write_named(pipe, "through")
        assert read.result(timeout=30) == "through"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_write_named_folder_in_the_way_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PflOpsError, match=r"^can't write .*: Is a directory$"):
        write_named(tmp_path, "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(PflOpsError, match=r"^can't write .*"):
        write_named(tmp_path / "file" / "page.html", "x")


def test_alone_in_waits_for_the_holder_and_leaves_no_file(tmp_path: Path) -> None:
    folder, order = tmp_path / "results" / "mine", []

    def second() -> None:
        with alone_in(folder):
            order.append("second")

    with ThreadPoolExecutor(1) as pool:
        with alone_in(folder):
            waiting = pool.submit(second)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.2)
            order.append("first")
        waiting.result()
    assert order == ["first", "second"]
    assert list(folder.iterdir()) == []


def test_alone_in_makes_a_folder_again_that_the_holder_removed(tmp_path: Path) -> None:
    """The second thread had a folder that was gone: a third one would not have waited for it."""
    folder = tmp_path / "results" / "mine"

    def second() -> bool:
        with alone_in(folder):
            return folder.is_dir()

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(OSError, match="disk full"), alone_in(folder):
            waiting = pool.submit(second)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.2)
            raise OSError("disk full")
        assert waiting.result()


def test_alone_in_removes_a_folder_that_was_made_for_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk full"), alone_in(tmp_path / "results" / "mine"):
        raise OSError("disk full")
    assert list(tmp_path.iterdir()) == []
