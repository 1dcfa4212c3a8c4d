"""What the machine says of itself."""

from pathlib import Path

import pytest

from pfl_ops import machine

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


def test_arm_calls_them_features(stated):
    stated("processor\t: 0\nFeatures\t: fp asimd bf16\n")
    assert machine.cpu_flags() == ["asimd", "bf16"]


def test_elsewhere_python_says_what_it_knows(monkeypatch, stated):
    stated("")
    monkeypatch.setattr(machine.platform, "processor", lambda: "arm")
    assert (machine.cpu_model(), machine.cpu_flags()) == ("arm", [])
    assert machine.cores() >= 1
