"""Suites of a user's own, from a Python file that defines `SUITES`."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from pfl_ops.errors import LONGEST_PATH, PflOpsError, echo, in_a_line, place, unknown
from pfl_ops.papers.exhibits import Allocation, Bars, Curves, Energy, Exhibit, Grid, Over
from pfl_ops.papers.expression import matching
from pfl_ops.papers.published import PublishedFile
from pfl_ops.papers.suite import SCALES, Suite
from pfl_ops.registry import load_plugin, plugin_module

KIND = "suite file"
PART_OF_NAME = r"[a-z0-9][a-z0-9_.-]{0,49}"
NAME = re.compile(f"{PART_OF_NAME}/{PART_OF_NAME}")
LABEL = re.compile(r"[\w.]+")
MEASURE = "measure"


def load_suites(files: Sequence[Path], taken: Collection[str] = ()) -> tuple[Suite, ...]:
    """Import files as plug-ins are and return the suites that they define in `SUITES`, checked.

    Methods, networks and partitions that a file registers may be used by its suites.

    Args:
        files: Python files. taken: names of suites that exist already.
    Raises:
        PflOpsError: a file that is missing, that raises or has no suite, or a suite that is wrong; one line that names
            the file.
    """
    found: dict[str, Suite] = {}
    for file in files:
        shown = f"{KIND} {echo(file, LONGEST_PATH)}"
        module = plugin_module(load_plugin(file, KIND))
        suites = getattr(module, "SUITES", ())
        if not isinstance(suites, tuple | list) or not suites:
            raise PflOpsError(f"{shown} defines no suite; it needs SUITES = (Suite(...),)")
        for suite in suites:
            if not isinstance(suite, Suite):
                raise PflOpsError(f"{shown}: SUITES has a {type(suite).__name__}; it takes objects of type Suite")
            if suite.name in taken or suite.name in found:
                raise PflOpsError(f"{shown}: there is another suite '{echo(suite.name)}'; choose another name")
            try:
                check_suite(suite)
            except Exception as error:  # the user's data, of which anything may be of a wrong type
                why = str(error) if isinstance(error, PflOpsError) else in_a_line(error) + place(error, str(file))
                own = "" if why.startswith(f"{suite.name},") else f"suite '{echo(suite.name)}': "
                raise PflOpsError(f"{shown}: {own}{why}") from error
            found[suite.name] = replace(suite, file=Path(file).name)
    return tuple(found.values())


def check_suite(suite: Suite) -> None:
    """Refuse a suite that does not fit together: names, numbers, claims, exhibits, and the experiments of its cells.

    Raises:
        PflOpsError: the first mistake.
    """
    if not NAME.fullmatch(suite.name):
        raise PflOpsError("the name of a suite is PAPER/EXHIBIT: two names of small letters, digits, '_', '-' and '.'")
    for axis, levels in suite.axes.items():
        if not levels:
            raise PflOpsError(f"axis {echo(axis)} has no level")
        for label in levels:
            if not LABEL.fullmatch(label):
                raise PflOpsError(f"label '{echo(label)}' of axis {echo(axis)}: use letters, digits, dots, underscores")
    every = ["/".join(chosen) for chosen in product(*suite.labels.values())]
    for name in suite.absent:
        if name not in every:
            raise unknown("cell (absent)", name, every)
    if not suite.cells:
        raise PflOpsError("it has no cell")
    _check_published(suite)
    for claim in suite.claims:
        claim.check(suite.labels, [cell.name for cell in suite.cells], [measure.key for measure in suite.measures])
    for exhibit in suite.exhibits:
        _check_exhibit(suite, exhibit)
    _check_rule(suite)
    for cell in suite.cells:
        for scale in SCALES:
            suite.experiment(cell, scale)
        suite.sources_of(cell)


def _check_published(suite: Suite) -> None:
    try:
        for _ in suite.numbers():
            pass
    except PflOpsError as error:
        numbers = suite.published
        if isinstance(numbers, PublishedFile) and numbers.path.name not in str(error):
            raise PflOpsError(f"{numbers.path.name}: {error}") from error
        raise


def _check_exhibit(suite: Suite, exhibit: Exhibit) -> None:
    """Refuse an exhibit that names an axis, a measure or a cell that the suite has not."""
    axes = [*suite.axes]
    for axis in _axes(exhibit):
        if axis not in (*axes, MEASURE):
            raise unknown(f"axis in a {type(exhibit).__name__}", axis, [*axes, MEASURE])
    match exhibit:
        case Grid():
            placed = (*exhibit.rows, *exhibit.columns, *exhibit.blocks)
            for axis in axes:
                if axis not in placed and len(suite.axes[axis]) > 1:
                    raise PflOpsError(f"a Grid has no place for axis {axis}, which has several levels")
            for key in exhibit.measures:
                suite.measure(key)
        case Bars():
            suite.measure(exhibit.key)
        case Allocation():
            suite.cell(exhibit.cell)
        case Over() | Curves() | Energy():
            pass
        case _:
            raise PflOpsError(f"exhibits has a {type(exhibit).__name__}; it takes Grid, Curves, Over, Bars, Allocation")
    matching(getattr(exhibit, "cells", ""), suite.labels)


def _check_rule(suite: Suite) -> None:
    """Refuse a rule whose methods are none of the suite's, or whose experiments are no cells of the first suite."""
    rule = suite.rule
    if rule is None:
        return
    if suite.name not in rule.suites:
        raise PflOpsError(f"rule {echo(rule.name)} does not list the suite in `suites`")
    labels = [label for axis in suite.axes.values() for label in axis]
    if suite.name != rule.suites[0]:
        return
    for label, cell in rule.cells.items():
        suite.cell(cell)
        if label not in labels:
            raise unknown(f"label of {suite.name} (rule {echo(rule.name)})", label, labels)


def _axes(exhibit: Exhibit) -> Iterator[str]:
    match exhibit:
        case Grid():
            yield from (*exhibit.rows, *exhibit.columns, *exhibit.blocks)
        case Curves():
            yield from filter(None, (exhibit.panel,))
        case Over():
            yield from filter(None, (exhibit.x, exhibit.panel))
        case Bars():
            yield exhibit.group
        case Energy():
            yield exhibit.steps
