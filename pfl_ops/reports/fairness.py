"""What makes a comparison unfair, a line each: rows that differ in what is no choice of a method."""

from collections.abc import Callable, Mapping, Sequence

from pfl_ops.reports.tracked import Tracked

Rows = Mapping[str, Sequence[Tracked]]
SHOWN = 2  # rows named for a value
ROUNDS = "training.rounds"
SCORED = ("evaluation.split", "evaluation.subset", "evaluation.clients", "evaluation.validation_share")


def complaints(rows: Rows) -> list[str]:
    """Every reason not to read these rows side by side, with who has what.

    Args:
        rows: label -> repetitions.
    """
    found = [
        _settings(rows, "the data differ", "data.") or _settings(rows, "the networks differ", "model."),
        _settings(rows, "the partitions differ", "partition.kind", "partition.clients") or _partitions(rows),
        _settings(rows, "other clients take part in a round", "participation."),
        _settings(rows, "the rounds differ", "training.rounds"),
        _training(rows),
        _settings(rows, "other clients or subsets are scored", "evaluation.subset", "evaluation.clients"),
        _different(rows, "trials, scored on validation data and trained on less, stand beside runs", _role)
        or _settings(rows, "the accuracies are of other data", "evaluation.split"),
        _seeds(rows),
    ]
    return [line for line in found if line]


def differing(a: Tracked, b: Tracked) -> list[str]:
    """Settings in which two runs differ beside what is compared, so that no test of their difference says anything.

    What is compared are two methods with their own hyper-parameters; or one method under two ways of training.
    A setting that one of the two does not have (it was made by an earlier version) is not counted.
    """
    return [
        path
        for path, value in a.params.items()
        if path.startswith(("data.", "partition.", "model.", "participation.", "training.", *SCORED))
        and value != b.params.get(path, value)
        and not (a.method == b.method and path.startswith("training.") and path != ROUNDS)
    ]


def _training(rows: Rows) -> str:
    """Return the line on methods with other training settings: the optimiser may be the cause of a difference."""
    firsts = [runs[0] for runs in rows.values()]
    paths = {path for a in firsts for b in firsts if a.method != b.method for path in differing(a, b)}
    paths = {path for path in paths if path.startswith("training.") and path != ROUNDS}
    return _settings(rows, "the methods are not trained alike, so their differences have no p value", *sorted(paths))


def _role(run: Tracked) -> str:
    return "trials" if run.kind == "trial" else "runs"


def _settings(rows: Rows, what: str, *starts: str) -> str:
    """The line for settings below these paths: "name=mnist train_size=12000", those alone that differ."""
    runs = [run for some in rows.values() for run in some]
    paths = sorted({path for run in runs for path in run.params if path.startswith(starts)})
    paths = [path for path in paths if len({run.params.get(path) for run in runs}) > 1]
    return _different(
        rows, what, lambda run: " ".join(f"{p.rpartition('.')[2]}={run.params[p]}" for p in paths if p in run.params)
    )


def _different(rows: Rows, what: str, of: Callable[[Tracked], str]) -> str:
    """The line, if not all runs are alike in this: each value and the rows that have it."""
    having: dict[str, list[str]] = {}
    for label, runs in rows.items():
        for value in dict.fromkeys(map(of, runs)):
            having.setdefault(value, []).append(label)
    if len(having) < 2:
        return ""
    return f"{what}: " + "; ".join(f"{value} ({_some(labels)})" for value, labels in having.items())


def _partitions(rows: Rows) -> str:
    """Whether in one seed the clients hold other samples."""
    held: dict[int, set[str]] = {}
    for run in (run for runs in rows.values() for run in runs if run.partition):
        held.setdefault(run.seed, set()).add(str(run.partition))
    seeds = [str(seed) for seed, hashes in sorted(held.items()) if len(hashes) > 1]
    return f"clients hold other samples in seed {', '.join(seeds)}" if seeds else ""


def _seeds(rows: Rows) -> str:
    """Whether rows have other seeds, so that a paired test covers only some."""
    having: dict[tuple[int, ...], list[str]] = {}
    for label, runs in rows.items():
        having.setdefault(tuple(sorted(run.seed for run in runs)), []).append(label)
    if len(having) < 2:
        return ""
    common = set.intersection(*map(set, having))
    told = "; ".join(f"{_numbers(seeds)} ({_some(labels)})" for seeds, labels in having.items())
    return f"the seeds differ, {_numbers(sorted(common)) if common else 'none'} in common: {told}"


def _numbers(seeds: Sequence[int]) -> str:
    """0 to 4, or 0, 2, 7."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def _some(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    return ", ".join(f"'{label}'" for label in labels[:SHOWN]) + more
