"""Named settings, read from presets.yaml."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from pfl_ops.config import yaml_files
from pfl_ops.errors import unknown


@cache
def _presets() -> dict[str, Any]:
    return yaml_files.mapping(
        files("pfl_ops.config").joinpath("presets.yaml").read_text(encoding="utf-8"), "presets.yaml"
    )


def presets() -> dict[str, str]:
    """Name -> one line on what it is."""
    return {name: preset["description"] for name, preset in _presets().items()}


def preset_rules(name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the rules of a preset, in order: ({path: value} of settings, {path: value} that it adds where they hold).

    >>> next(added for given, added in preset_rules("paper") if given == {"data.name": "cifar10"})
    {'training.lr': 0.001}
    """
    return [(rule["when"], rule["set"]) for rule in _presets()[name].get("rules", ())]


def preset(name: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a preset: path -> value.

    Args:
        name: of the preset.
        chosen: {path: value} that files and flags set; `when` looks there first, then at the preset itself.
    Raises:
        PflOpsError: there is no such preset; the message has the nearest.
    """
    if name not in _presets():
        raise unknown("preset", name, _presets())
    found = _presets()[name]
    values = dict(found["set"])
    for given, added in preset_rules(name):
        if all(chosen.get(path, found["set"].get(path)) == value for path, value in given.items()):
            values |= added
    return values
