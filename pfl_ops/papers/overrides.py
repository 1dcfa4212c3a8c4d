"""Settings of a suite's cells changed by the user: `reproduce --set path=value`.

A change is made in the cells whose experiment has the path (`algorithm.gamma` exists for some methods only); the other
cells stay as the suite has them. Nothing of it touches what a suite says of its paper.
"""

from collections.abc import Collection, Iterator, Mapping

from pfl_ops.config.experiment import Experiment
from pfl_ops.config.fields import show
from pfl_ops.errors import PflOpsError, unknown
from pfl_ops.papers.suite import Changes, Suite

REFUSED = {
    "algorithm.name": "the method is what a cell is named after; choose cells with --only",
    "evaluation.split": "the numbers of a suite are those of its own split, and cells would have none of them",
    "repetitions": "give --repetitions",
    "seed": "the seeds of a suite count from its first one; give --repetitions",
}


def changed(experiment: Experiment, changes: Changes) -> Experiment:
    """Return the experiment with those of the changes that it has a path for; the same object if there is none.

    Raises:
        PflOpsError: a value that is not allowed.
    """
    mine = applicable(experiment, changes)
    return experiment.override(mine) if mine else experiment


def applicable(experiment: Experiment, changes: Changes) -> dict[str, object]:
    """Return those of the changes whose path exists, or comes to exist with a kind that another change sets.

    >>> fliu, fedavg = (Experiment.of(name, dataset="digits") for name in ("fliu", "fedavg"))
    >>> fixed = {"algorithm.gamma.kind": "fixed", "algorithm.gamma.value": 0.5, "training.lr": 0.1}
    >>> [list(applicable(one, fixed)) for one in (fliu, fedavg)]
    [['algorithm.gamma.kind', 'algorithm.gamma.value', 'training.lr'], ['training.lr']]
    """
    if not changes:
        return {}
    there = experiment.paths()
    found = {path: value for path, value in changes.items() if _has(there, path)}
    if found and len(found) < len(changes):
        try:
            there = experiment.override(found).paths()
        except PflOpsError:  # a value that is not allowed, or one that is complete with the others only
            kinds = {path: value for path, value in found.items() if path.endswith((".kind", ".name"))}
            there = [*there, *_paths_with(experiment, kinds)]
        found = {path: value for path, value in changes.items() if path in found or _has(there, path)}
    return found


def _paths_with(experiment: Experiment, kinds: Changes) -> list[str]:
    try:
        return experiment.override(kinds).paths()
    except PflOpsError:
        return []


def _has(paths: Collection[str], path: str) -> bool:
    return any(one == path or one.startswith(f"{path}.") for one in paths)


def check_changes(suites: Collection[Suite], changes: Changes) -> None:
    """Refuse changes that would make cells of a suite equal, and paths that no cell has.

    Raises:
        PflOpsError: the first mistake; of a path that does not exist, with the nearest.
    """
    for path in single_paths(changes):
        if path in REFUSED:
            raise PflOpsError(f"--set {path}: {REFUSED[path]}")
    for path, value in changes.items():
        if value == {}:
            raise PflOpsError(f"--set {path} changes nothing: it names no setting of the section")
    for suite in suites if changes else ():
        _check_apart(suite, changes)
    cells = [(suite, cell) for suite in suites for cell in suite.cells]
    used: set[str] = set()
    for suite, cell in cells:
        used |= set(applicable(suite.experiment(cell), changes))
        if len(used) == len(changes):
            return
    there = dict.fromkeys(path for suite, cell in cells for path in suite.experiment(cell).paths())
    for path in changes:
        if path not in used and cells:
            raise unknown("setting of these cells", path, there, see="pfl-ops list settings, pfl-ops show METHOD")


def single_paths(changes: Changes, prefix: str = "") -> Iterator[str]:
    """The path of each setting, of those of a section too.

    >>> list(single_paths({"training": {"lr": 0.1, "momentum": 0.9}, "rounds": 3}))
    ['training.lr', 'training.momentum', 'rounds']
    """
    for name, value in changes.items():
        if isinstance(value, Mapping):
            yield from single_paths(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _check_apart(suite: Suite, changes: Changes) -> None:
    """Refuse changes after which two cells are one experiment that were two: an axis varies what is set."""
    found: dict[str, tuple[str, Experiment]] = {}
    for cell in suite.cells:
        before = suite.experiment(cell)
        try:
            after = changed(before, changes)
        except PflOpsError:  # reported where the cell is planned
            continue
        name, other = found.setdefault(repr(after), (cell.name, before))
        if other != before:
            raise PflOpsError(
                f"--set {', '.join(as_flags(changes))} makes cells {name} and {cell.name} of {suite.name} one "
                "experiment, whatever --only chooses: a suite's cells differ in it"
            )


def as_flags(changes: Mapping[str, object]) -> tuple[str, ...]:
    """Return changes as `--set` takes them, in the order of their paths: ("training.lr=0.05",)."""
    return tuple(
        f"{path}={value if isinstance(value, str) else show(value)}" for path, value in sorted(changes.items())
    )
