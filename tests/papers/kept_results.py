"""The kept results, read once for the tests of a process."""

from functools import cache

from documents import ROOT

from pfl_ops.papers import all_suites, results_files
from pfl_ops.papers.suite_run import SuiteRun

FOLDER = ROOT / "docs" / "results"


@cache
def kept_results() -> tuple[SuiteRun, ...]:
    """Return what docs/results holds of each suite, with changed settings too; a claim is judged once."""
    return tuple(results_files.read(FOLDER, all_suites()))
