"""Files are replaced whole or not at all."""

from pathlib import Path

import pytest

from pfl_ops.files import replacing, write_whole


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
