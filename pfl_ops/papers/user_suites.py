"""Suites of a user's own, from a Python file that defines `SUITES`."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from pfl_ops import metric_keys, metrics, spaces
from pfl_ops.data.datasets import DATASETS
from pfl_ops.errors import LONGEST_PATH, PflOpsError, check_name, echo, in_a_line, place, unknown
from pfl_ops.papers.claims import Claim
from pfl_ops.papers.exhibits import Allocation, Bars, Curves, Energy, Exhibit, Grid, Over, level_number
from pfl_ops.papers.expression import matching
from pfl_ops.papers.measure_keys import bounds, check_measures, check_tracked
from pfl_ops.papers.provenance import Departure
from pfl_ops.papers.published import PublishedFile
from pfl_ops.papers.rules import ChoiceRule
from pfl_ops.papers.suite import SCALES, Changes, Level, ScaleName, Suite
from pfl_ops.registry import load_plugin, plugin_module
from pfl_ops.section import SEED_OFFSET

KIND = "suite file"
PART_OF_NAME = r"[a-z0-9][a-z0-9_.-]{0,49}"
NAME = re.compile(f"{PART_OF_NAME}/{PART_OF_NAME}")
LABEL = re.compile(r"[\w.]+")
MEASURE = "measure"
LONGEST_MISTAKE = 2000  # characters of a message on a suite
OF_THE_SUITE = {
    "seed": "all cells count their seeds from that of `base`, so that they can be paired",
    "repetitions": "give Suite(repetitions=...) or Scale(repetitions=...)",
}
"""Settings that no cell has for itself."""


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
            if not isinstance(suite.name, str):
                raise PflOpsError(f"{shown}: the name of a suite must be text, got {echo(repr(suite.name))}")
            if suite.name in taken or suite.name in found:
                raise PflOpsError(f"{shown}: there is another suite '{echo(suite.name)}'; choose another name")
            file_names = {name.replace("/", "-"): name for name in (*taken, *found)}
            if (other := file_names.get(suite.name.replace("/", "-"))) is not None:
                raise PflOpsError(
                    f"{shown}: suite '{echo(suite.name)}' would have the results file of '{other}'; choose another name"
                )
            if isinstance(suite.published, PublishedFile):  # as it is now: this process may have read it before an edit
                suite = replace(suite, published=PublishedFile(suite.published.path))
            try:
                check_suite(suite)
            except Exception as error:  # the user's data, of which anything may be of a wrong type
                why = in_a_line(error, LONGEST_MISTAKE) + (
                    "" if isinstance(error, PflOpsError) else place(error, str(file))
                )
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
        if axis == MEASURE:
            raise PflOpsError(f"no axis can be named {MEASURE}: in exhibits that is the axis of the measures")
        for label, level in levels.items():
            if not isinstance(level, Level):
                raise PflOpsError(f"level {echo(label)} must be a Level(...), got {echo(repr(level))}")
            if not LABEL.fullmatch(label):
                raise PflOpsError(f"label '{echo(label)}' of axis {echo(axis)}: use letters, digits, dots, underscores")
    every = ["/".join(chosen) for chosen in product(*suite.labels.values())]
    for name in suite.absent:
        if name not in every:
            raise unknown("cell (absent)", name, every)
    if not suite.cells:
        raise PflOpsError("it has no cell")
    if not suite.measures:
        raise PflOpsError("it has no measure")
    _check_words(suite)
    for word, allowed in (("at", ("final", "best")), ("spread_over", ("repetitions", "clients", ""))):
        if getattr(suite, word) not in allowed:
            raise PflOpsError(f"{word} must be {' or '.join(filter(None, allowed))}, got {echo(getattr(suite, word))}")
    _check_settings(suite)
    check_measures(suite)
    _check_published(suite)
    _check_claims(suite)
    for exhibit in suite.exhibits:
        _check_exhibit(suite, exhibit)
    _check_rule(suite)
    for cell in suite.cells:
        suite.experiment(cell, "smoke")
        suite.sources_of(cell)


def _check_words(suite: Suite) -> None:
    """Refuse a value of another type among what only a report needs: it would fail after all runs."""
    for word in ("title", "source"):
        if not isinstance(getattr(suite, word), str):
            raise PflOpsError(f"{word} must be text, got {echo(repr(getattr(suite, word)))}")
    for word, kind in (("damage", str), ("unmeasured", str), ("departures", Departure)):
        values = getattr(suite, word)
        if not isinstance(values, tuple | list) or not all(isinstance(one, kind) for one in values):
            named = "texts" if kind is str else "Departure(...)"
            raise PflOpsError(f"{word} must be a tuple of {named}, got {echo(repr(values))}")
    texts = {
        f"the title of level {label}": level.title for axis in suite.axes.values() for label, level in axis.items()
    }
    texts |= {f"the title of measure {echo(measure.key)}": measure.title for measure in suite.measures}
    for where, text in texts.items():
        if not isinstance(text, str):
            raise PflOpsError(f"{where} must be text, got {echo(repr(text))}")
    for data in (*suite.instead, *suite.instead.values()):
        if data not in DATASETS:
            raise unknown("data set (instead)", str(data), DATASETS)


def _check_settings(suite: Suite) -> None:
    """Refuse settings that cells can't have for themselves, and a scale at which two cells become one experiment."""
    levels = {f"level {label}": level for axis in suite.axes.values() for label, level in axis.items()}
    levels |= {
        f"exceptions {pattern}": more if isinstance(more, Level) else Level(more)
        for pattern, more in suite.exceptions.items()
    }
    sets: dict[str, Changes] = {"small": suite.small.changes, "medium": suite.medium.changes}
    for where, level in levels.items():
        for scale in level.at:
            if scale not in SCALES:
                raise unknown(f"scale in {where}", scale, SCALES)
        for stage in level.stages.values():
            if stage not in metrics.STAGES:
                raise unknown(f"stage in {where}", stage, metrics.STAGES)
        sets |= {where: level.changes, **{f"{where} at {scale}": level.at[scale] for scale in level.at}}
    sets |= {"smoke": suite.smoke.changes, "base": {path: suite.base[path] for path in suite.base if path != "seed"}}
    for where, changes in sets.items():
        for path in changes:
            if path in OF_THE_SUITE:
                raise PflOpsError(f"{where} sets {path}: {OF_THE_SUITE[path]}")
    _check_apart(suite, "small")
    _check_apart(suite, "medium")


def _check_apart(suite: Suite, scale: ScaleName) -> None:
    """Refuse a scale at which two cells are one experiment that are two at full: it sets what an axis varies."""
    found: dict[str, str] = {}
    for cell in suite.cells:
        other = suite.cell(found.setdefault(repr(suite.experiment(cell, scale)), cell.name))
        if suite.experiment(other) != suite.experiment(cell):
            raise PflOpsError(
                f"scale {scale} makes cells {other.name} and {cell.name} one experiment: it sets what an axis varies; "
                "give its levels `at`"
            )


def _check_claims(suite: Suite) -> None:
    """Refuse claims about what the suite has not, that no number can decide, or that can't be told apart."""
    cells, keys = [cell.name for cell in suite.cells], [measure.key for measure in suite.measures]
    texts = [claim.text for claim in suite.claims if isinstance(claim, Claim)]
    for claim in suite.claims:
        if not isinstance(claim, Claim):
            raise PflOpsError(f"claims has a {type(claim).__name__}; it takes Claim(...)")
        for word in ("text", "says", "remark"):
            if not isinstance(getattr(claim, word), str):
                raise PflOpsError(f"{word} of a claim must be text, got {echo(repr(getattr(claim, word)))}")
        if texts.count(claim.text) > 1:
            raise PflOpsError(f"two claims have the text '{echo(claim.text)}'; pages tell claims apart by their texts")
        claim.check(suite.labels, cells, keys)


def _check_published(suite: Suite) -> None:
    try:
        for cell, measure, number in suite.numbers():
            most = bounds(measure.key)[1] * measure.unit
            if number.value is not None and number.value > most:
                raise PflOpsError(
                    f"{cell.name} {measure.key}: the paper's number {number.value:g} is above {most:g}, the highest "
                    f"with unit {measure.unit:g}"
                )
    except PflOpsError as error:
        numbers = suite.published
        if isinstance(numbers, PublishedFile) and numbers.path.name not in str(error):
            raise PflOpsError(f"{numbers.path.name}: {error}") from error
        raise


def _check_exhibit(suite: Suite, exhibit: Exhibit) -> None:
    """Refuse an exhibit that names an axis, a measure or a cell that the suite has not."""
    axes = [*suite.axes]
    for axis in _axes(exhibit):
        with_measure = isinstance(exhibit, Grid) or (isinstance(exhibit, Over) and axis == exhibit.x)
        known = [*axes, MEASURE] if with_measure else axes
        if axis not in known:
            raise unknown(f"axis in a {type(exhibit).__name__}", axis, known)
    match exhibit:
        case Grid():
            placed = (*exhibit.rows, *exhibit.columns, *exhibit.blocks)
            for axis in placed:
                if placed.count(axis) > 1:
                    raise PflOpsError(f"a Grid has axis {echo(axis)} at two places")
            for axis in axes:
                if axis not in placed and len(suite.axes[axis]) > 1:
                    raise PflOpsError(f"a Grid has no place for axis {axis}, which has several levels")
            for key in exhibit.measures:
                suite.measure(key)
            if MEASURE not in placed and len(exhibit.measures or suite.measures) > 1:
                raise PflOpsError(f"a Grid has no place for {MEASURE}: it shows several; name one in `measures`")
        case Bars():
            suite.measure(exhibit.key)
        case Allocation():
            suite.cell(exhibit.cell)
        case Over():
            _check_over(suite, exhibit)
        case Curves():
            check_tracked(suite, [exhibit.key])
        case Energy():
            _check_energy(suite, exhibit)
        case _:
            raise PflOpsError(
                f"exhibits has a {type(exhibit).__name__}; it takes Grid, Curves, Over, Bars, Allocation, Energy"
            )
    matching(getattr(exhibit, "cells", ""), suite.labels)


def _check_over(suite: Suite, exhibit: Over) -> None:
    """Refuse a picture over an axis whose levels are no numbers, and one of a key that no run has."""
    if len(exhibit.keys) != 1 and (exhibit.x != MEASURE or not exhibit.keys):
        raise PflOpsError(f"an Over has one key, and with x={MEASURE} one or more; got {len(exhibit.keys)}")
    measures = {measure.key for measure in suite.measures}
    check_tracked(suite, [key for _, key in exhibit.keys if key not in measures])
    if exhibit.x == MEASURE:
        return
    shown = matching(exhibit.cells, suite.labels)
    for label in dict.fromkeys(cell.labels[exhibit.x] for cell in suite.cells if cell.name in shown):
        title = suite.axes[exhibit.x][label].title or label
        if level_number(title) is None:
            raise PflOpsError(
                f"an Over has axis {echo(exhibit.x)}, whose level {label} has no number: its title is "
                f"'{echo(title)}'; as '0.6', '60 %' or 'P = 0.6' it has one"
            )


def _check_energy(suite: Suite, exhibit: Energy) -> None:
    """Refuse a picture of the energy of several methods or settings at once, or of cells without local steps."""
    for axis, levels in suite.axes.items():
        if axis != exhibit.steps and len(levels) > 1:
            raise PflOpsError(f"an Energy is of one method and setting; axis {axis} has several levels")
    for cell in suite.cells:
        if suite.experiment(cell).training.local_steps is None:
            raise PflOpsError(f"an Energy counts local steps, and cell {cell.name} has no training.local_steps")
    check_tracked(suite, [exhibit.key])


def _check_rule(suite: Suite) -> None:
    """Refuse a rule whose methods are none of the suite's, whose experiments are no cells of the first suite, or that
    no study can follow, and one with seeds of the suite's repetitions."""
    rule = suite.rule
    if rule is None:
        return
    if not isinstance(rule, ChoiceRule):
        raise PflOpsError(f"rule must be a ChoiceRule(...), got {echo(repr(rule))}")
    check_name("rule", rule.name)
    if not isinstance(rule.suites, tuple | list):
        raise PflOpsError(f"rule {echo(rule.name)}: suites must be a tuple of names, got {echo(repr(rule.suites))}")
    for word in ("cells", "shared", "own", "before"):
        if not isinstance(found := getattr(rule, word), Mapping):
            raise PflOpsError(f"rule {echo(rule.name)}: {word} must be a dict, got {echo(repr(found))}")
    if suite.name not in rule.suites:
        raise PflOpsError(f"rule {echo(rule.name)} does not list the suite in `suites`")
    labels = [label for axis in suite.axes.values() for label in axis]
    if suite.name != rule.suites[0]:
        return
    for label, cell in rule.cells.items():
        suite.cell(cell)
        if label not in labels:
            raise unknown(f"label of {suite.name} (rule {echo(rule.name)})", label, labels)
    for label in (*rule.own, *rule.before):
        if label not in rule.cells:
            raise unknown(f"method in `cells` of rule {echo(rule.name)}", label, rule.cells)
    for word, least in (("trials", 1), ("confirm", 0), ("confirm_top", 2 if rule.confirm else 1), ("seed", 0)):
        number = getattr(rule, word)
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise PflOpsError(f"rule {echo(rule.name)}: {word} must be a whole number from {least} on, got {number!r}")
    for label, cell in rule.cells.items():
        experiment = suite.experiment(suite.cell(cell)).override(rule.before.get(label, {}))
        evaluation = experiment.evaluation
        known = metric_keys.scores("validation", evaluation.synthetic, evaluation.eps)
        if rule.metric not in known:
            raise unknown(f"validation score (rule {echo(rule.name)})", rule.metric, known)
        spaces.check(spaces.from_dict(rule.ranges(label), f"rule {echo(rule.name)}, {echo(label)}"), experiment)
    most = max(suite.scale(scale).repetitions for scale in SCALES)
    new = rule.seed + SEED_OFFSET
    if {rule.seed, *range(new, new + rule.confirm)} & set(range(suite.first_seed, suite.first_seed + most)):
        again = f", their confirmation {new} to {new + rule.confirm - 1}" if rule.confirm else ""
        raise PflOpsError(
            f"rule {echo(rule.name)}: its trials have seed {rule.seed}{again}, and repetitions of the suite "
            f"{suite.first_seed} to {suite.first_seed + most - 1}: choose a seed that these do not reach, as 1000"
        )


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
