"""The engine's results version: what no comparison of the code with itself can see."""

import re

import pinned
import pytest

from pfl_ops.results_version import RESULTS_VERSION, VERSIONS

CASES, TABLE = pinned.cases(), pinned.read()


@pytest.mark.parametrize("name", CASES)
def test_the_newest_version_gives_the_table(name: str) -> None:
    """If results are meant to change: `python tests/contract/pinned.py`, and a new entry of `VERSIONS`."""
    found = pinned.results(CASES[name])
    assert found == pytest.approx({key: TABLE[name, key] for key in found}, rel=0, abs=1e-10)


def test_the_table_holds_these_runs_and_no_others() -> None:
    assert {run for run, _ in TABLE} == set(CASES)


def test_the_newest_version_is_that_of_the_table() -> None:
    assert VERSIONS[-1][:2] == (RESULTS_VERSION, pinned.digest())


def test_versions_are_numbered_and_each_has_a_table_of_its_own() -> None:
    assert [number for number, _, _ in VERSIONS] == list(range(2, 2 + len(VERSIONS)))
    assert len({digest for _, digest, _ in VERSIONS}) == len(VERSIONS)
    assert all(re.fullmatch("[0-9a-f]{64}", digest) and why for _, digest, why in VERSIONS)
