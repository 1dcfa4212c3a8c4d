"""Free memory, read from files as Linux has them."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from pfl_ops.system import memory

GIB = 1 << 30


def machine(root: Path, free: int | None = 20 * GIB, groups: str = "0::/\n", **files: str) -> Path:
    """A root folder with /proc and control groups; `a__b` is the file a/b below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    if free is not None:
        (root / "proc/meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable:   {free >> 10} kB\nSwapFree: 0 kB\n")
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(limit: str, used: int, cached: int) -> dict[str, str]:
    return {"memory_DOT_max": limit, "memory_DOT_current": str(used),
            "memory_DOT_stat": f"anon 5\nfile {cached}\ninactive_file {cached}\n"}  # fmt: skip


def test_no_limit(tmp_path: Path) -> None:
    assert memory.available(machine(tmp_path)) == 20 * GIB


def test_a_limit_counts_what_the_kernel_can_drop_as_free(tmp_path: Path) -> None:
    assert memory.available(machine(tmp_path, **v2(f"{8 * GIB}\n", 5 * GIB, 2 * GIB))) == 5 * GIB


def test_a_limit_above_what_is_free(tmp_path: Path) -> None:
    assert memory.available(machine(tmp_path, **v2(f"{80 * GIB}\n", GIB, 0))) == 20 * GIB
    assert memory.available(machine(tmp_path / "b", **v2("max\n", GIB, 0))) == 20 * GIB


def test_the_narrowest_group_above_this_process(tmp_path: Path) -> None:
    files = {f"slice__{name}": text for name, text in v2(f"{4 * GIB}", GIB, 0).items()}
    files |= {f"slice__job__{name}": text for name, text in v2(f"{9 * GIB}", GIB, 0).items()}
    assert memory.available(machine(tmp_path, groups="0::/slice/job\n", **files)) == 3 * GIB


def test_version_one(tmp_path: Path) -> None:
    files = {"memory__job__memory_DOT_limit_in_bytes": f"{6 * GIB}\n",
             "memory__job__memory_DOT_usage_in_bytes": f"{2 * GIB}\n",
             "memory__job__memory_DOT_stat": f"cache 1\ntotal_inactive_file {GIB}\n"}  # fmt: skip
    groups = "5:cpu,cpuacct:/other\n4:memory:/job\n0::/\n"
    assert memory.available(machine(tmp_path, groups=groups, **files)) == 5 * GIB


def test_a_container_whose_group_is_not_below_its_root(tmp_path: Path) -> None:
    """It reads the name that the host gave it, and finds its own limits at the top."""
    root = machine(tmp_path, groups="0::/docker/0123\n", **v2(f"{2 * GIB}", GIB, 0))
    assert memory.available(root) == GIB


def test_a_limit_that_is_passed_leaves_nothing(tmp_path: Path) -> None:
    assert memory.available(machine(tmp_path, **v2(f"{GIB}", 3 * GIB, 0))) == 0


def test_other_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the machine, where the system tells its size."""
    sizes = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr("os.sysconf", lambda name: sizes[name])
    assert memory.available(tmp_path) == 2_048_000
    monkeypatch.delattr("os.sysconf")
    assert memory.available(tmp_path) == memory.UNKNOWN


def test_this_machine() -> None:
    assert memory.available() > 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems count the parent's memory, too")
def test_a_process_is_charged_for_itself_and_its_children_not_for_its_parent():
    weight = bytearray(1 << 28)  # of the parent
    weight[:: 1 << 12] = b"x" * (1 << 16)
    child = "import time; b = bytearray(1 << 26); b[::4096] = b'x' * (1 << 14); print(flush=True); time.sleep(60)"
    code = f"""
import subprocess, sys
sys.path[:] = {sys.path!r}
from pfl_ops.system.memory import peak
alone = peak()
with subprocess.Popen([sys.executable, "-c", {child!r}], stdout=subprocess.PIPE) as child:
    child.stdout.readline()
    print(alone, peak())
    child.kill()
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    alone, both = map(int, out.split())
    assert alone < len(weight) and both - alone > 1 << 26


SHARES = """
import mmap, os, sys, time
private, file, shared = bytearray(32 << 20), os.open(sys.argv[1], os.O_RDONLY), int(sys.argv[2])
private[::4096] = b"x" * (8 << 10)
maps = [mmap.mmap(file, 0, prot=mmap.PROT_READ), mmap.mmap(shared, 0)]
sum(one[i] for one in maps for i in range(0, len(one), 4096))
print(flush=True)
time.sleep(60)
"""
"""A process with 32 MiB of its own, and two maps."""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems do not say it of a child")
def test_peak_counts_what_processes_share_once():
    """Two processes map a library of 100 MiB and more, and shared memory of 64 MiB: 2 x 32 + 64 MiB, and Python."""
    found = find_spec("torch")
    assert found is not None and found.origin is not None
    library = Path(found.origin).parent / "lib" / "libtorch_cpu.so"
    assert library.stat().st_size > 100 << 20
    code = f"""
import os, subprocess, sys
sys.path[:] = {sys.path!r}
from pfl_ops.system.memory import peak
alone, shared = peak(), os.memfd_create("shared")
os.posix_fallocate(shared, 0, 64 << 20)
command = [sys.executable, "-c", {SHARES!r}, {str(library)!r}, str(shared)]
below = [subprocess.Popen(command, pass_fds=[shared], stdout=subprocess.PIPE) for _ in range(2)]
for one in below:
    one.stdout.readline()
print(alone, peak())
for one in below:
    one.kill()
    one.communicate()
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    alone, all_ = map(int, out.split())
    assert 128 << 20 <= all_ - alone < 180 << 20
