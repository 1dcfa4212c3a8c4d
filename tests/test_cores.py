"""Cores: what a control group grants, load, and what they do side by side."""

import os
from pathlib import Path

import pytest
import torch

from pfl_ops.system import cores


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


@pytest.mark.usefixtures("eight")
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "350000 100000"}, 4),
        ({"cpu.max": "20000 100000"}, 1),  # a fifth of a core is one all the same
        ({"cpu.max": "1600000 100000"}, 8),
        ({"cpu.max": "damaged"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_usable(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    assert cores.usable(tmp_path) == expected


@pytest.mark.usefixtures("eight")
@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/user.slice/job.scope\n", {"user.slice/job.scope/cpu.max": "200000 100000"}, 2),  # systemd-run -p CPUQuota
        ("0::/user.slice/job.scope\n", {"user.slice/job.scope/cpu.max": "max 100000"}, 8),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "500000 100000"}, 3),  # the narrowest
        ("0::/docker/0123\n", {"cpu.max": "400000 100000"}, 4),  # the name that the host gave it
        ("0::/a\n", {"b/cpu.max": "100000 100000"}, 8),  # another process's
        (
            "5:cpu,cpuacct:/job\n4:memory:/other\n0::/\n",
            {"cpu/job/cpu.cfs_quota_us": "250000", "cpu/job/cpu.cfs_period_us": "50000"},
            5,
        ),
        (
            "5:cpuacct:/job\n4:cpu:/\n",
            {"cpu/job/cpu.cfs_quota_us": "100000", "cpu/job/cpu.cfs_period_us": "100000"},
            8,
        ),
    ],
)
def test_usable_below_a_group(groups: str, files: dict[str, str], expected: int, tmp_path: Path) -> None:
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{k}": v for k, v in files.items()}}.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    assert cores.usable(tmp_path) == expected


@pytest.mark.parametrize(("load", "count", "expected"), [(2.0, 2, False), (3.0, 2, True), (9.0, 16, False)])
def test_busy(load: float, count: int, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert cores.busy() == expected


def test_waited_adds_up_the_threads_of_this_process(tmp_path: Path) -> None:
    """Second column, ns: 1.5 s and 0.25 s."""
    for thread, text in {"7": "100 1500000000 3\n", "8": "9 250000000 1\n"}.items():
        folder = tmp_path / "proc/self/task" / thread
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(text)
    assert cores.waited(tmp_path) == 1.75
    assert cores.waited(tmp_path / "elsewhere") is None


def test_scaling_compares_the_best_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([10.0, 15.0, 8.0, 18.0, 9.0, 17.0])
    asked = []
    monkeypatch.setattr(cores, "_products", lambda count, seconds: asked.append(count) or next(readings))
    assert cores.scaling(2, times=3) == 1.8
    assert asked == [1, 2, 1, 2, 1, 2]


def test_scaling_is_measured_and_leaves_the_threads_as_they_were() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert 0.2 < cores.scaling(2, seconds=0.002, times=1) < 20, "a ratio of two rates of the same order"
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
