"""Rows in a file where the disk is full, or a system call does less than it was asked for."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.state.matrix import InFile


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A real limit: a write beyond it fails as one on a full disk does."""
    old, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    """No signal, as a mapped file would give; what was written before can still be read."""
    rows = InFile(tmp_path, (1000,), torch.float32)
    with files_of_at_most(10_000):
        rows.write(0, torch.ones(1000))
        rows.write(1, torch.full((1000,), 2.0))
        with pytest.raises(
            PflOpsError, match=r"can't keep the clients' state in .*: File too large; make room"
        ) as caught:
            rows.write(2, torch.ones(1000))
        assert "\n" not in str(caught.value)
        assert rows.read(torch.tensor([1, 0]))[:, 0].tolist() == [2, 1]
    rows.write(2, torch.full((1000,), 3.0))
    assert rows.read(torch.tensor([2, 1])).mean(dim=1).tolist() == [3, 2]


def test_a_folder_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PflOpsError, match=r"can't keep the clients' state in .*: Not a directory"):
        InFile(tmp_path / "file" / "folder", (1,), torch.float32).write(0, torch.ones(1))


def test_reads_and_writes_that_stop_early_go_on(tmp_path: Path) -> None:
    """More than 2 GiB at a time never come through in one call."""
    rows = InFile(tmp_path, (100,), torch.float32)
    rows.write(0, torch.zeros(100))
    plain: Any = rows._file

    class Slow:
        def __init__(self) -> None:
            self.seek = plain.seek

        def write(self, data: memoryview) -> int:
            return int(plain.write(data[:7]))

        def readinto(self, data: memoryview) -> int:
            return int(plain.readinto(data[:11]))

    rows._file = Slow()  # type: ignore[assignment]
    values = torch.randn(2, 100)
    for client, row in zip((3, 1), values, strict=True):
        rows.write(client, row)
    assert torch.equal(rows.read(torch.tensor([3, 1])), values)


def test_the_file_is_closed_with_its_rows(tmp_path):
    """A notebook runs many experiments; a collection that comes late must not leave their files open till then."""
    rows = InFile(tmp_path, (4,), torch.float32)
    rows.write(0, torch.ones(4))
    file = rows._file
    assert file is not None and not file.closed
    del rows
    assert file.closed
