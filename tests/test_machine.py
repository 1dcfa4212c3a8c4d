"""The description of the machine."""

from pathlib import Path

import pytest

from pfl_ops.system import machine

X86 = """processor\t: 0
cpu family\t: 25
model\t\t: 17
model name\t: {name}
flags\t\t: fpu avx2 avx512f avx512_bf16 amx_tile

processor\t: 1
model name\t: another
"""


@pytest.fixture
def stated(monkeypatch):
    def say(text):
        machine._stated.cache_clear()
        monkeypatch.setattr(Path, "read_text", lambda self, **_: text)

    yield say
    machine._stated.cache_clear()


def test_the_processor_by_name_and_flags(stated):
    stated(X86.format(name="Intel(R) Xeon(R) 8481C"))
    assert machine.cpu_model() == "Intel(R) Xeon(R) 8481C"
    assert machine.cpu_flags() == ["avx2", "avx512f", "avx512_bf16"]


def test_a_name_that_says_too_little_gets_its_numbers(stated):
    stated(X86.format(name="AMD EPYC"))
    assert machine.cpu_model() == "AMD EPYC (family 25, model 17)"


@pytest.mark.parametrize(
    ("vendor", "family", "expected"),
    [
        ("AuthenticAMD", "26", True),
        ("AuthenticAMD", "25", False),
        ("GenuineIntel", "26", False),
        ("AuthenticAMD", "?", False),
    ],
)
def test_amds_processors_compute_64_bytes_at_once_from_family_26_on(stated, vendor, family, expected):
    stated(f"vendor_id\t: {vendor}\ncpu family\t: {family}\n")
    assert machine.is_amd_of_full_width() is expected


def test_arm_calls_them_features(stated):
    stated("processor\t: 0\nFeatures\t: fp asimd bf16\n")
    assert machine.cpu_flags() == ["asimd", "bf16"]


def test_elsewhere_python_says_what_it_knows(monkeypatch, stated):
    stated("")
    assert not machine.is_amd_of_full_width()
    monkeypatch.setattr(machine.platform, "processor", lambda: "arm")
    assert (machine.cpu_model(), machine.cpu_flags()) == ("arm", [])
    assert machine.cores() >= 1


def test_what_other_processes_take_is_busy_time_that_is_not_ours(monkeypatch):
    """Two processors for 10 s, 12 s of them busy, 4 s ours: others have 8 of 20."""
    counted = [machine.CpuSeconds(100, 50, 7), machine.CpuSeconds(120, 62, 11)]
    monkeypatch.setattr(machine, "cpu_seconds", lambda: counted.pop(0))
    assert machine.OtherLoad().share() == pytest.approx(8 / 20)


@pytest.mark.parametrize(
    ("busy", "own", "share"),
    [(0, 0, 0), (10, 10, 0), (10, 12, 0), (10, -3, 0.5), (25, 0, 1)],
    ids=["idle", "all ours", "counted in steps", "a child of ours ended", "more than there is"],
)
def test_the_share_of_others_is_a_share(busy, own, share, monkeypatch):
    counted = [machine.CpuSeconds(100, 50, 7), machine.CpuSeconds(120, 50 + busy, 7 + own)]
    monkeypatch.setattr(machine, "cpu_seconds", lambda: counted.pop(0))
    assert machine.OtherLoad().share() == share


def test_cpu_seconds_are_read_from_the_system():
    before = machine.cpu_seconds()
    sum(range(2_000_000))
    after = machine.cpu_seconds()
    assert after.total > before.total and after.busy >= before.busy and after.own > before.own
    assert 0 < after.own < after.busy < after.total


def test_the_age_of_a_process_counts_its_own_start(monkeypatch):
    import psutil

    began = psutil.Process().create_time()
    monkeypatch.setattr(machine.time, "time", lambda: began + 12.5)
    assert machine.process_age() == 12.5
