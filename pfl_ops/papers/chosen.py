"""Suites with the settings of a file of choices: `reproduce SUITE --choices FILE`, or `with_choices` in their file."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pfl_ops.config import yaml_files
from pfl_ops.errors import LONGEST_PATH, PflOpsError, echo, unknown
from pfl_ops.papers.provenance import Departure, assumed
from pfl_ops.papers.rules import ChoiceRule, Choices
from pfl_ops.papers.suite import Axis, Changes, Level, ScaleName, Suite

METHOD = "algorithm.name"
FULL: Literal["full"] = "full"


def read_choices(file: str | Path) -> Choices:
    """Read a file of choices, as `reproduce SUITE --choose FILE` writes it.

    Raises:
        PflOpsError: it can't be read, or is none.
    """
    return Choices.from_values(yaml_files.read(Path(file)), echo(file, LONGEST_PATH))


def with_choices(suite: Suite, choices: Choices) -> Suite:
    """Return a suite whose methods have the settings of a file of choices.

    They replace the settings of the methods' levels, at every scale or at that of the file. The origin of those for
    every scale becomes an assumption with the rule as its reason. The departure that says how the settings were found
    before gives way to one that says it of these.

    Raises:
        PflOpsError: the file is of another rule or budget, lacks one of the suite's methods, or sets what the rule does
            not choose.
    """
    rule = suite.rule
    if rule is None or choices.rule != rule.name:
        has = f"rule {rule.name}" if rule is not None else "no rule of choice"
        raise PflOpsError(f"the choices are of rule {echo(choices.rule)}, and {suite.name} has {has}")
    if choices.status == "chosen" and choices.budget != rule.budget:
        raise PflOpsError(
            f"{rule.name} was changed after these choices were made: they had {echo(choices.budget) or 'no budget'}, "
            f"it has {rule.budget}; choose again with --choose"
        )
    _check(suite, rule, choices)
    whole = choices.scale == FULL
    sources = tuple(
        source
        for axis in suite.axes.values()
        for label, level in axis.items()
        for path, value in choices.methods.get(label, {}).items()
        for source in assumed(choices.origin, path, when={**_name(suite, level), path: value})
    )
    earlier = [one for one in suite.departures if one.of_choice and (whole or one.scale == choices.scale)]
    others = [one for one in suite.departures if one not in earlier]
    place = next((i for i, one in enumerate(suite.departures) if one in earlier), len(others))
    return replace(
        suite,
        axes={name: _chosen(axis, choices, rule) for name, axis in suite.axes.items()},
        sources=(*suite.sources, *(sources if whole else ())),
        departures=(*others[:place], departure_of(rule, choices), *others[place:]),
    )


def check_values(suite: Suite, choices: Choices, scale: ScaleName | None = None) -> None:
    """Refuse choices that a cell of the suite can't have, or does not take because something else sets them.

    Args:
        scale: at which it is to run; smoke cuts what it likes. None: that of the choices.
    Raises:
        PflOpsError: the first such cell.
    """
    at = choices.scale if scale in (None, "smoke") else scale
    for cell in suite.cells:
        experiment = suite.experiment(cell, at)
        for label in cell.labels.values():
            for path, value in choices.methods.get(label, {}).items():
                if experiment.get(path) != value:
                    raise PflOpsError(
                        f"{suite.name}, cell {cell.name} at scale {at}: {path} is {echo(experiment.get(path))} and not "
                        f"the chosen {echo(value)}: the scale, another level or an exception sets it"
                    )


def with_file(
    suites: Sequence[Suite], file: str | Path, scale: ScaleName = FULL, *, every: bool = False
) -> tuple[Suite, ...]:
    """Return suites with the choices of the user's file, whose name they keep.

    Args:
        scale: at which they are to run. every: pass over suites of another rule.
    Raises:
        PflOpsError: it is not for one of them, for none, or for another scale; the message names the file.
    """
    choices, shown = read_choices(file), echo(file, LONGEST_PATH)
    if choices.scale not in (FULL, scale):
        raise PflOpsError(
            f"--choices {shown}: made at scale {choices.scale}, and for it alone: give --scale {choices.scale}"
        )
    if every:
        suites = [suite for suite in suites if suite.rule is not None and suite.rule.name == choices.rule]
    if not suites:
        raise PflOpsError(f"--choices {shown}: no suite has rule {echo(choices.rule)}")
    found = []
    for suite in suites:
        try:
            one = with_choices(suite, choices)
            check_values(one, choices, scale)
        except PflOpsError as error:
            raise PflOpsError(f"--choices {shown}: {error}") from error
        found.append(replace(one, choices=Path(file).name))
    return tuple(found)


def departure_of(rule: ChoiceRule, choices: Choices) -> Departure:
    """Return the sentences of a suite's page on how its settings were chosen."""
    scale = "" if choices.scale == FULL else choices.scale
    settings = f"{f'At scale {scale} s' if scale else 'S'}ettings of which no paper's value is known were chosen"
    if choices.status == "looked":
        return Departure(
            f"{settings} by hand after a look at test data of this experiment. Rule {rule.name} chooses them on "
            "validation data: --choose runs it.",
            "methods whose settings were chosen so may have an advantage, whose size is not measured",
            of_choice=True,
            scale=scale,
        )
    return Departure(
        f"{settings} on validation data by rule {rule.name} with one budget for all methods: {choices.budget}. "
        f"{rule.remarks}".strip(),
        of_choice=True,
        scale=scale,
    )


def _chosen(axis: Axis, choices: Choices, rule: ChoiceRule) -> Axis:
    return {
        label: _with(level, choices, choices.methods[label], rule) if label in choices.methods else level
        for label, level in axis.items()
    }


def _with(level: Level, choices: Choices, settings: Changes, rule: ChoiceRule) -> Level:
    """A level with a method's settings. Those of full also replace what was chosen before at single scales."""
    if choices.scale == FULL:
        kept = {
            scale: {path: value for path, value in changes.items() if path not in rule.paths}
            for scale, changes in level.at.items()
        }
        return replace(level, changes={**level.changes, **settings}, at=kept)
    return replace(level, at={**level.at, choices.scale: {**level.at.get(choices.scale, {}), **settings}})


def _name(suite: Suite, level: Level) -> dict[str, str]:
    """Return the name of the method that a level has, as a condition of a source; {}: another axis has it."""
    name = level.changes.get(METHOD, suite.base.get(METHOD))
    return {METHOD: name} if name else {}


def _check(suite: Suite, rule: ChoiceRule, choices: Choices) -> None:
    here = [label for axis in suite.axes.values() for label in axis if label in rule.cells]
    for label in here:
        if label not in choices.methods:
            raise PflOpsError(f"the choices have no settings of {label}, a method of {suite.name}; choose again")
    for label, settings in choices.methods.items():
        if label not in rule.cells:
            raise unknown(f"method of rule {rule.name}", label, list(rule.cells))
        allowed = [path for path in rule.ranges(label) if path != "first"]
        for path in settings:
            if path not in allowed:
                raise unknown(f"setting of {label} that rule {rule.name} chooses", path, allowed)
