"""The differences of two records."""

import json
from pathlib import Path
from typing import Any

SHOWN = 160  # letters of a value


def compare(old: Path, new: Path) -> int:
    """Print what differs between two `net.json`; return 1 if anything does."""
    before, after = (json.loads(path.read_text()) for path in (old, new))
    found = list(_differences("", before, after))
    for line in found:
        print(line)
    print(f"{len(found)} differences")
    return bool(found)


def _differences(place: str, old: Any, new: Any) -> "list[str]":
    if old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in sorted(old.keys() | new.keys())
            for line in (
                [f"{place} | {key}: gone (was {_short(old[key])})"]
                if key not in new
                else [f"{place} | {key}: new ({_short(new[key])})"]
                if key not in old
                else _differences(f"{place} | {key}", old[key], new[key])
            )
        ]
    return [f"{place}: {_short(old)} -> {_short(new)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else text[:SHOWN] + " ..."
