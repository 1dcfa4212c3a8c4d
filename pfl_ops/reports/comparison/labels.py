"""Names of a comparison's groups and of the rows in them: the settings in which they differ."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from pfl_ops.errors import by_key
from pfl_ops.results import BEHIND_NAMES

APART = {"algorithm.name", "seed", "partition.seed", "repetitions", "evaluation.split", "evaluation.targets"}
"""Paths that are no settings of a row: the method has its own place; in the others repetitions and trials differ."""

NAMED_LAST = {"partition.seed", "evaluation.targets"}
"""Those of `APART` that a name shows where two rows would have the same name without them."""

NAMED = ("data.name", "partition.kind")
"""Of a group's settings, those that its title begins with."""

SCORED_ON = {"evaluation.split"}
"""Of a group's settings, those that its title says in words."""

BY_VALUE = {"data.name", "partition.kind", "model.name"}  # mnist says that it is a data set


def labels(params: Sequence[Mapping[str, str]], names: Sequence[str | None] = ()) -> list[tuple[str, str]]:
    """A name for each row, and what else is to be known of it: ("fliu, gamma adaptive", "lr 0.001").

    The name is the method, and the settings in which rows of this method differ; what else is any other setting in
    which methods differ from one another (each may recommend its own learning rate). A setting that comes with a kind
    (a partition's α) counts among the rows of that kind. The seed of a partition and the targets are shown only
    in names that would be equal without them. Rows that differ in nothing known here get the same name.

    Args:
        params: of each row, every value by its path, as text.
        names: those that rows have already (a trial): all settings are then what else is to be known. None: no row has.
    """
    names = list(names) or [None] * len(params)
    methods = [row["algorithm.name"] for row in params]
    between = _differing([{p: value for p, value in row.items() if not p.startswith("algorithm.")} for row in params])
    short = _short({path for row in params for path in row})

    rows = list(zip(params, methods, names, strict=True))
    among = {  # (method, whether rows with a name count) -> paths
        (m, all_rows): _differing([row for row, method, name in rows if method == m and (all_rows or name is None)])
        for m in set(methods)
        for all_rows in (True, False)
    }

    def said(row: Mapping[str, str], paths: set[str]) -> list[str]:
        return [_said(path, text, short) for path, text in row.items() if path in paths and text != "None"]

    found = []
    for row, method, name in rows:
        first = set() if name else among[method, False]
        rest = (among[method, True] | between) - first
        found.append((name or ", ".join([method, *said(row, first)]), ", ".join(said(row, rest))))
    alike = by_key((label, row) for (label, _), (row, _, name) in zip(found, rows, strict=True) if not name)
    last = {label: _differing(some, APART - NAMED_LAST) & NAMED_LAST for label, some in alike.items()}
    return [
        (label if name else ", ".join([label, *said(row, last[label])]), settings)
        for (label, settings), (row, _, name) in zip(found, rows, strict=True)
    ]


def group_titles(grounds: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a title for each group: data set, partition, and the settings in which groups of these two differ.

    Args:
        grounds: of each group, the settings that its runs share by path, as text.

    >>> group_titles([{"data.name": "digits", "partition.kind": "lsqs", "partition.clients": n} for n in ("5", "20")])
    ['digits, lsqs, clients 5', 'digits, lsqs, clients 20']
    """
    short = _short({path for ground in grounds for path in ground})
    firsts = [", ".join(_value(ground.get(path, "?")) for path in NAMED) for ground in grounds]
    titles = []
    for first, ground in zip(firsts, grounds, strict=True):
        differing = _differing([g for other, g in zip(firsts, grounds, strict=True) if other == first], SCORED_ON)
        told = (path for path, text in ground.items() if path in differing - {*NAMED} and text != "None")
        parts = [first, *(_said(path, ground[path], short) for path in told)]
        parts += ["validation data"] * (ground.get("evaluation.split") == "validation")
        titles.append(", ".join(parts))
    return [
        f"{title} ({titles[: i + 1].count(title)})" if titles.count(title) > 1 else title
        for i, title in enumerate(titles)
    ]


def _differing(rows: Sequence[Mapping[str, str]], apart: Collection[str] = APART) -> set[str]:
    """Return the paths in which two rows that have it differ; code and content, among rows that name the same."""
    values: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for path, value in row.items():
            name = row.get(BEHIND_NAMES[path][0], "") if path in BEHIND_NAMES else ""
            values.setdefault((path, name), set()).add(value)
    return {path for (path, _), found in values.items() if len(found) > 1 and path not in apart}


def _said(path: str, text: str, short: Mapping[str, str]) -> str:
    if path in BY_VALUE:
        return _value(text)
    name = short[path.removesuffix(".kind")] if path.endswith(".kind") else short[path]
    return f"{name} {_value(text)}"


def _short(paths: set[str]) -> dict[str, str]:
    """The shortest end of each path that no other path has, "lr"; with its section where that is within another one,
    "gamma.value"; of a kind that of its section, "gamma"."""
    kinds = {path.removesuffix(".kind") for path in paths if path.endswith(".kind")}
    longest = {path: 1 if path.count(".") < 2 or path in kinds else path.count(".") - 1 for path in paths | kinds}
    ends = {path: [path.split(".", i)[-1] for i in range(longest[path], -1, -1)] for path in paths | kinds}
    used = Counter(end for of_one in ends.values() for end in of_one)
    return {path: next((end for end in of_one if used[end] == 1), path) for path, of_one in ends.items()}


def _value(text: str) -> str:
    """A number with four digits; a file without its folder; entries of a list, which has no comma of its own.

    >>> [_value(text) for text in ("0.123456", "/data/mine.csv", "('L1', 'G')", "(0.95,)", "()")]
    ['0.1235', 'mine.csv', 'L1+G', '0.95', 'none']
    """
    if text[:1] == "(":
        return "+".join(_value(part.strip(" '")) for part in text.strip("()").split(",") if part.strip()) or "none"
    try:
        return text if text.lstrip("-").isdigit() else f"{float(text):.4g}"
    except ValueError:
        return text.rpartition("/")[2]
