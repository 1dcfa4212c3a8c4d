"""The table of results: one row a fault."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = ("fault", "cases", "survived", "points lost", "points doubled", "other losses", "untidy", "seconds")


def text(results: Sequence[Mapping[str, Any]]) -> str:
    """The table, then each kind of failure and remark with its count.

    Args:
        results: lines of results.jsonl.
    """
    faults = list(dict.fromkeys(sorted(result["fault"] for result in results)))
    rows = [list(COLUMNS)]
    for fault in [*faults, "all"]:
        mine = [r for r in results if fault in ("all", r["fault"])]
        rows.append(
            [
                fault, len(mine), sum(r["survived"] for r in mine), sum(r["lost"] for r in mine),
                sum(r["doubled"] for r in mine), sum(bool(r["losses"]) for r in mine),
                sum(bool(r["untidy"]) for r in mine), round(sum(r["seconds"] for r in mine)),
            ]
        )  # fmt: skip
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(COLUMNS))]
    lines = []
    for row in rows:
        cells = [str(cell).rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([str(row[0]).ljust(widths[0]), *cells[1:]]))
    for heading in ("losses", "untidy", "remarks"):
        found: dict[tuple[str, str], list[str]] = {}
        for result in results:
            for said in result[heading]:
                kind = said.split(":")[0] if heading != "remarks" else said
                found.setdefault((result["fault"], _without_numbers(kind)), []).append(f"{result['id']}: {said}")
        if found:
            lines += ["", f"{heading}:"]
        counts = Counter({key: len(cases) for key, cases in found.items()})
        lines += [f"  {n} x {fault}: {found[fault, kind][0]}" for (fault, kind), n in counts.most_common()]
    return "\n".join(lines)


def _without_numbers(said: str) -> str:
    return "".join("#" if c.isdigit() else c for c in said).replace("##", "#")
