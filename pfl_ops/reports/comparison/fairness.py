"""Groups of runs that can be compared, and what makes a comparison within a group unfair."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from pfl_ops import metrics, tag_names
from pfl_ops.display.tables import LOSS
from pfl_ops.errors import by_key, listed
from pfl_ops.results import At, Result

LabelledRuns: TypeAlias = Mapping[str, Sequence[Result]]
SHOWN = 2  # rows named for a value
FEW = 4  # rounds that are listed one by one
ROUNDS = "training.rounds"
PARTITION_SEED = "partition.seed"
LOSS_SETTING = "training.loss"
VALIDATION_SHARE = "evaluation.validation_share"
ABSENT = "evaluation.absent"
SCORED = ("evaluation.subset", "evaluation.clients", VALIDATION_SHARE, ABSENT)
"""Settings that say which clients and samples are scored."""
EQUAL_TESTS = "evaluation.equal_tests"  # the weights of clients' test sets in synthetic views
MEASURED = ("seconds", "per_second", "mib")
"""Ends of the metrics that a machine decides: time, speed, memory."""
MACHINE = (tag_names.DEVICE, tag_names.CPU, tag_names.THREADS, tag_names.WORKERS)
"""Tags of what a run was computed on."""
ENGINE = "engine."
BEST_ROUNDS = (
    "best rounds were chosen on the data that they are scored on (of noisier scores the best is higher by chance), so "
    "there is no p value"
)
GROUND = ("data.", "partition.", "model.", "evaluation.split")
"""Beginnings of the settings that all runs of a group share: data set, partition, network, and the split scored on."""


def ground(run: Result) -> dict[str, str]:
    """Return the settings of a run that all runs of its group share, by path. The seed of a partition is none."""
    return {path: text for path, text in run.settings.items() if path.startswith(GROUND) and path != PARTITION_SEED}


def grouped(runs: Iterable[Result]) -> list[list[Result]]:
    """Return runs by groups: those of a group agree in their `ground`.

    A setting that a run does not have (it was made by an earlier version) agrees with any value.
    """
    groups: list[tuple[dict[str, str], list[Result]]] = []
    for run in runs:
        mine = ground(run)
        for shared, members in groups:
            if all(shared.get(path, text) == text for path, text in mine.items()):
                shared.update(mine)
                members.append(run)
                break
        else:
            groups.append((mine, [run]))
    return [members for _, members in groups]


def scored_cohort(run: Result, metric: str, at: At = "final") -> str:
    """Return the cohort that a score of a run is of, "the best round's cohort"; "": it is of all scored clients.

    In a round L2 is scored on the clients that take part, in the full evaluation after the last one on all. A method
    that draws its own cohorts, with replacement, has fewer than all even if the share of participation is 1.
    """
    key = run.key(metric)
    if "/L2/" not in key or (at == "final" and f"final/{key}" in run.metrics):
        return ""
    if float(run.settings.get("participation.share", 1)) >= 1 and not _has_fewer_at_l2(run, at):
        return ""
    return f"the {'best' if at == 'best' else 'last'} round's cohort"


def _has_fewer_at_l2(run: Result, at: At) -> bool:
    """True if fewer clients are behind a round's scores at L2 than at its other stages."""
    prefix = "best/" if at == "best" else ""
    keys = {stage: metrics.key(run.split, stage, "local", "clients", prefix=prefix) for stage in metrics.STAGES}
    counts = {stage: run.metrics[key] for stage, key in keys.items() if key in run.metrics}
    return "L2" in counts and counts["L2"] < max(counts.values())


def clients_at_l2(run: Result) -> int | None:
    """Return the number of clients behind the scores at L2 of the last round if those that never took part have none
    (`evaluation.absent=last`); None: all have one, or there is no such score."""
    found = run.metrics.get(metrics.key(run.split, "L2", "local", "clients", prefix="final/"))
    return None if found is None or run.settings.get(ABSENT) != "last" else int(found)


def same_clients(a: Sequence[Result], b: Sequence[Result], metric: str) -> bool:
    """True if in every seed that both have a score at L2 is of as many clients: a method may draw its own cohorts."""
    return not _numbers_at_l2({"a": a, "b": b}, metric)


def same_machines(a: Sequence[Result], b: Sequence[Result], metric: str) -> bool:
    """True if in every seed that both have a time, a speed or a memory was measured on one kind of machine."""
    return not _machines({"a": a, "b": b}, metric)


def rounds_scored(run: Result, metric: str) -> tuple[int, ...]:
    """Return the rounds after the start in which a metric was scored.

    Acc(G) of a model that all clients share is scored in each evaluated round, that of clients' own models in every
    fifth (`evaluation.global_every`).
    """
    return tuple(t for t in sorted(run.by_round(metric)) if t > 0)


CHOOSING = frozenset({"acc", "local/mean"})
"""The scores whose rounds `best_of` looks for."""


def best_of(run: Result) -> tuple[int, ...]:
    """Return the rounds of which a run's best round is the best. The best of more is higher by chance alone."""
    return rounds_scored(run, "acc") or rounds_scored(run, "local/mean")


def other_best_of(rows: LabelledRuns) -> str:
    """Return the line on best rounds that were chosen among other rounds. Repetitions are scored in the same rounds.

    A row whose own stage was not scored during the run (`evaluation.stages`) has no best value, and is left out.
    """
    what = "best rounds were chosen among other rounds (the best of more is higher by chance)"
    first = {label: runs[:1] for label, runs in rows.items() if any(map(best_of, runs[:1]))}
    return _different(first, what, lambda run: _few_numbers(best_of(run)))


def complaints(rows: LabelledRuns, at: At, metric: str, target_metric: str) -> list[str]:
    """Return every reason not to read these rows of one group side by side, with who has what.

    Args:
        rows: label -> repetitions. at, metric: what is compared.
        target_metric: the metric whose rounds to a target are compared too; "": none is.
    Returns:
        "the rounds differ: rounds=20 ('fliu'); rounds=5 ('fedavg')": what is said in short stands before the colon.
    """
    found = [
        _partitions(rows),
        _differing(rows, "other clients take part in a round, or count otherwise", "participation."),
        _settings(rows, "the rounds differ", "training.rounds"),
        _differing(  # the optimiser may be the cause of a difference
            rows, "the methods are not trained alike, so differences between these have no p value", "training.", ROUNDS
        ),
        _differing(rows, "the engine's results are of other versions", ENGINE),
        _differing(rows, "other clients or subsets are scored", SCORED),
        _settings(rows, "clients' test sets count otherwise", EQUAL_TESTS) if _is_synthetic(metric) else "",
        _cohorts(rows, metric, by_round=at == "best" or bool(target_metric)),
        _numbers_at_l2(rows, metric),
        _settings(rows, f"{metric} is of other losses", LOSS_SETTING) if _defines(LOSS_SETTING, metric) else "",
        _machines(rows, metric),
        BEST_ROUNDS if at == "best" and len(rows) > 1 else "",
        other_best_of(rows) if at == "best" else "",
        _other_rounds_to(rows, target_metric) if target_metric else "",
        _different(rows, "Acc(G) of the last round stands on other samples", _sampled),
        _different(rows, "trials, scored on validation data and trained on less, stand beside runs", _role),
        _seeds(rows),
    ]
    return [line for line in found if line]


def differing(a: Result, b: Result, metric: str = "acc") -> list[str]:
    """Return the settings in which two runs differ beside what is compared: no test of their difference says anything.

    What is compared are two methods with their own hyper-parameters; or one method under two ways of training.
    A setting that one of the two does not have (it was made by an earlier version) is not counted, nor one that both
    chose from one common space under one budget (`Result.chosen`). The clients behind a `metric` that is scored at L2
    on a cohort alone count too, and for one of a synthetic view the weights of its test sets.
    """
    counted = (*GROUND, "participation.", "training.", ENGINE, *SCORED, *[EQUAL_TESTS] * _is_synthetic(metric))
    found = [
        path
        for path, value in a.settings.items()
        if path.startswith(counted)
        and value != b.settings.get(path, value)
        and not (a.method == b.method and _is_compared(path, metric))
        and not (a.common == b.common and path in a.chosen)
        and not (path == VALIDATION_SHARE and a.split == b.split == "test")
    ]
    further = {
        "evaluation.final": a.final_samples != b.final_samples,
        "the cohort": scored_cohort(a, metric) != scored_cohort(b, metric),
    }
    return [*found, *(what for what, is_so in further.items() if is_so)]


def _is_compared(path: str, metric: str) -> bool:
    """True if a setting is one of training under which a metric can be called better."""
    return path.startswith("training.") and path != ROUNDS and not _defines(path, metric)


def _defines(path: str, metric: str) -> bool:
    """True if a setting says what a metric is of: `training.loss`, or its code, of the training loss."""
    return metric == LOSS and path.startswith(LOSS_SETTING)


def _is_synthetic(metric: str) -> bool:
    """True if a score is of clients' test sets joined with those of others, see `scoring.synthetic`."""
    return "synthetic_" in metric


def comparable(a: Result, b: Result, metric: str) -> bool:
    """True if one of two runs can be called better: they differ in method and training only, and in no trial's role."""
    return _role(a) == _role(b) and all(_is_compared(path, metric) for path in differing(a, b, metric))


def same_partitions(a: Sequence[Result], b: Sequence[Result]) -> bool:
    """True if in every seed that both have the clients hold the same samples, as far as that was recorded."""
    held = {run.seed: run.partition for run in a}
    return all(run.partition == held.get(run.seed, run.partition) for run in b if run.partition and held.get(run.seed))


def _differing(rows: LabelledRuns, what: str, start: str | tuple[str, ...], without: str = "") -> str:
    """Return the line for settings below a path in which two methods differ, see `differing`."""
    firsts = [runs[0] for runs in rows.values()]
    paths = {path for a in firsts for b in firsts for path in differing(a, b)}
    paths = {path for path in paths if path.startswith(start) and path != without}
    return _settings(rows, what, tuple(sorted(paths))) if paths else ""


def _cohorts(rows: LabelledRuns, metric: str, by_round: bool) -> str:
    """Return the line for scores at L2 of a cohort alone, if others are of absent clients too or of another cohort."""
    at: At = "best" if by_round else "final"

    def told(run: Result) -> str:
        cohort = scored_cohort(run, metric, at)
        share = float(run.settings.get("participation.share", 1))
        clients = f"{share:g} of the clients" if share < 1 else "drawn by the method itself"
        return f"{cohort}, {clients}" if cohort else "absent clients too"

    what = "a score at L2 is of a cohort alone"
    if by_round and len(rows) > 1 and all(scored_cohort(run, metric, at) for runs in rows.values() for run in runs):
        return f"{what}: each best round has its own"
    return _different(rows, what, told)


def _numbers_at_l2(rows: LabelledRuns, metric: str) -> str:
    """Return the line on seeds in which scores at L2 are of other numbers of clients, see `clients_at_l2`."""
    seeds = _seeds_apart(rows, lambda run: clients_at_l2(run) if "/L2/" in run.key(metric) else None)
    return f"a score at L2 is of other clients in seed {seeds}" if seeds else ""


def _machines(rows: LabelledRuns, metric: str) -> str:
    """Return the line on seeds in which times, speeds or memory were measured on other machines, or with other threads.

    Results do not depend on it, so that no setting says it.
    """

    def machine(run: Result) -> str | None:
        return ", ".join(run.tags.get(tag, "") for tag in MACHINE).strip(" ,") or None

    seeds = _seeds_apart(rows, machine) if metric.endswith(MEASURED) else ""
    return f"{metric} was measured on other devices, processors, threads or workers in seed {seeds}" if seeds else ""


def _other_rounds_to(rows: LabelledRuns, metric: str) -> str:
    """Return the line on rounds to a target that were looked for in other rounds."""
    what = f"other rounds have {metric}, so rounds to a target differ"
    return _different(rows, what, lambda run: _few_numbers(rounds_scored(run, metric)) or "none")


def _sampled(run: Result) -> str:
    return "all" if run.final_samples is None else f"{run.final_samples:,}"


def _role(run: Result) -> str:
    return "trials" if run.kind == "trial" else "runs"


def _settings(rows: LabelledRuns, what: str, starts: str | tuple[str, ...]) -> str:
    """Return the line for settings below these paths: "share=1.0 kind=uniform", those alone that differ."""
    runs = [run for some in rows.values() for run in some]
    paths = sorted({path for run in runs for path in run.settings if path.startswith(starts)})
    paths = [path for path in paths if len({run.settings.get(path) for run in runs}) > 1]

    def told(run: Result) -> str:
        return " ".join(f"{p.rpartition('.')[2]}={run.settings[p]}" for p in paths if p in run.settings)

    return _different(rows, what, told)


def _different(rows: LabelledRuns, what: str, of: Callable[[Result], str]) -> str:
    """Return the line, if not all runs are alike in this: each value and the rows that have it."""
    having = by_key((value, label) for label, runs in rows.items() for value in dict.fromkeys(map(of, runs)))
    if len(having) < 2:
        return ""
    return f"{what}: " + "; ".join(f"{value} ({some_labels(labels)})" for value, labels in having.items())


def _partitions(rows: LabelledRuns) -> str:
    """Return the line on seeds in which the clients hold other samples."""
    seeds = _seeds_apart(rows, lambda run: run.partition or None)
    return f"clients hold other samples in seed {seeds}" if seeds else ""


def _seeds_apart(rows: LabelledRuns, of: Callable[[Result], str | int | None]) -> str:
    """Return the seeds in which runs are not alike in this, with commas; a run of which it is None is left out."""
    having: dict[int, set[str | int]] = {}
    for run in (run for runs in rows.values() for run in runs):
        if (value := of(run)) is not None:
            having.setdefault(run.seed, set()).add(value)
    return ", ".join(str(seed) for seed, values in sorted(having.items()) if len(values) > 1)


def _seeds(rows: LabelledRuns) -> str:
    """Return the line on rows with other seeds: a paired test then covers only some."""
    having = by_key((tuple(sorted(run.seed for run in runs)), label) for label, runs in rows.items())
    if len(having) < 2:
        return ""
    common = set.intersection(*map(set, having))
    told = "; ".join(f"{_numbers(seeds)} ({some_labels(labels)})" for seeds, labels in having.items())
    shared = (
        f"only seed{'s' * (len(common) > 1)} {_numbers(sorted(common))} {'are' if len(common) > 1 else 'is'} shared"
    )
    return f"{shared if common else 'no seed is shared'}: {told}"


def _numbers(seeds: Sequence[int]) -> str:
    """0 to 4, or 0, 2, 7."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def _few_numbers(rounds: Sequence[int]) -> str:
    """1 to 20, or 5, 10, 12, or 5, 10, ..., 40."""
    shown = _numbers(rounds)
    return shown if len(rounds) <= FEW or " to " in shown else f"{rounds[0]}, {rounds[1]}, ..., {rounds[-1]}"


def some_labels(labels: Sequence[str]) -> str:
    """Return the first of these labels, and the number of the others: 'fliu', 'fedavg' and 2 more."""
    return listed([f"'{label}'" for label in labels], SHOWN)
