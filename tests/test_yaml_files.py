"""YAML 1.2's core schema, the bounds of documents, and what is written to be read again."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_ops.config import yaml_files
from pfl_ops.errors import PflOpsError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:30", "1:30"),
        ("yes", "yes"),
        ("Off", "Off"),
        ("2026-01-02", "2026-01-02"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("017", 17),
        ("0o17", 15),
        ("0x1F", 31),
        ("-0", 0),
        ("1e-3", 0.001),
        ("12e03", 12000.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e400", math.inf),
        ("-.INF", -math.inf),
        ("TRUE", True),
        ("~", None),
        ("Null", None),
        ("<<", "<<"),
        ("=", "="),
        ("nan", "nan"),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("٣", "٣"),
        ("9" * 400, "9" * 400),
    ],
)
def test_scalars_are_those_of_the_core_schema(text: str, value: Any) -> None:
    """YAML 1.2.2, section 10.3.2; an integer of over 100 digits stays text."""
    found = yaml_files.scalar(text)
    assert found == value and type(found) is type(value)


def test_not_a_number_is_written_with_a_dot() -> None:
    assert math.isnan(yaml_files.scalar(".NaN"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\na: 2", "line 2 is not valid YAML: 'a' is given twice"),
        ("{1: a, 0x1: b}", "'0x1' is given twice"),
        ("? [a]\n: b", "a key must be a scalar"),
        ("!!int x", "'x' is not !!int"),
        ("!!bool maybe", "'maybe' is not !!bool"),
        ("!!map [1]", "this is no mapping"),
        ("!!timestamp 2026-01-01", "could not determine a constructor"),
        ("!!python/name:os.system x", "could not determine a constructor"),
        ("&a [*a]", "'*a' stands in itself"),
        ("*a", "found undefined alias"),
        ("[" * 10_000, "more than 50 levels of nesting"),
        ("- " * 10_000, "more than 50 levels of nesting"),
        ("[" + "1," * 10_001 + "]", "more than 10,000 values"),
        ("a: &a [" + "x," * 999 + "]\n" + "".join(f"b{i}: *a\n" for i in range(10)), "more than 10,000 values"),
        ("a: \x1b[31m", "unacceptable character"),
    ],
)
def test_refusals_are_one_line(text: str, problem: str) -> None:
    with pytest.raises(PflOpsError) as caught:
        yaml_files.parse(text, "my.yaml")
    assert str(caught.value).startswith("my.yaml") and problem in str(caught.value)
    assert str(caught.value).isprintable()


def test_an_alias_repeats_its_value() -> None:
    assert yaml_files.parse("a: &x {b: 1}\nc: *x", "") == {"a": {"b": 1}, "c": {"b": 1}}


def test_a_file_is_read_up_to_its_largest_size(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"a: 1\n".ljust(yaml_files.LARGEST_FILE, b"#"))
    assert yaml_files.read(file) == {"a": 1}
    file.write_bytes(b"a: 1\n".ljust(yaml_files.LARGEST_FILE + 1, b"#"))
    with pytest.raises(PflOpsError, match="larger than 1 MiB"):
        yaml_files.read(file)


PRINTED = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=8)  # other texts are refused
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | PRINTED,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PRINTED, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_what_is_written_is_read_the_same_by_both_versions(value: Any) -> None:
    """A text that YAML 1.1 or 1.2 would read as something else is quoted."""
    text = yaml_files.dump({"value": value})
    assert yaml_files.parse(text, "") == {"value": value}
    assert yaml.safe_load(text) == {"value": value}


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("ab01.:-?,[]{}&*!|>'\"%@`#~<= \n\te\x00é"), max_size=40))
def test_any_text_is_a_value_or_one_line(text: str) -> None:
    yaml_files.scalar(text)  # never raises
    try:
        yaml_files.parse(text, "my.yaml")
    except PflOpsError as error:
        assert str(error).isprintable()
