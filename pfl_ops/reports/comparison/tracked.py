"""Selection of tracked runs by name."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property

from pfl_ops import tag_names
from pfl_ops.errors import PflOpsError, count, echo, listed, nearest
from pfl_ops.results import Result
from pfl_ops.tracking import RunInfo, Store
from pfl_ops.tracking.runs.finished import is_confirmation, is_of_former_choice, is_test, result_of, trial_label

SHORTEST_ID = 4  # characters of an id that are taken for one


@dataclass(frozen=True)
class SelectedRuns:
    """The runs that were meant.

    Attributes:
        runs: finished ones, oldest first, each repetition of a setting once.
        unfinished: names of those that were left out.
        diverged: those whose training diverged.
        started: unfinished runs that were named themselves.
        smoke: MLflow experiments whose smoke cells were left out -> number of these.
        former: studies -> number of test runs of former choices that were left out.
        late: ids of test runs of a choice that a study made after a test of a former one.
        untested: names that were given, of studies without test runs whose trials were left out.
    """

    runs: tuple[Result, ...]
    unfinished: tuple[str, ...] = ()
    diverged: tuple[Result, ...] = ()
    started: tuple[Result, ...] = ()
    smoke: Mapping[str, int] = field(default_factory=dict)
    former: Mapping[str, int] = field(default_factory=dict)
    late: frozenset[str] = frozenset()
    untested: tuple[str, ...] = ()


def select(
    store: Store,
    names: Sequence[str] = (),
    *,
    where: str | None = None,
    tags: Mapping[str, str] | None = None,
    trials: bool = False,
) -> SelectedRuns:
    """Select runs by name.

    Args:
        names: of MLflow experiments, studies and runs, with * and ? for any; or the beginning of a run's id or of its
            experiment's hash, which `run` prints. None, or "*": all but the cells of suites at scale smoke. The name of
            a study, a benchmark or a suite means the runs below it; of test runs those of a study's choice. One of a
            former choice has to be named itself: the better of several tested choices is chosen on test data.
        where: and of these only those that MLflow's search finds by this filter.
        tags: and of these only those with these tags. A filter or tag on `pfl_ops.scale` also selects smoke cells.
        trials: the trials of studies too; one that is named itself is always meant. So is an unfinished run. A name
            with * that other runs have, too, as fliu*, names neither trials, repetitions of them nor former choices.
    Raises:
        PflOpsError: nothing has that name (the message has the nearest), or nothing is left.
    """
    known = _KnownRuns(store.runs())
    if not any(tag_names.EXPERIMENT_HASH in run.tags for run in known.runs):
        raise PflOpsError(f"{store.target.label} has no runs yet; make some: pfl-ops run fliu --repetitions 3")
    meant: dict[str, RunInfo] = {}
    itself: set[str] = set()
    named: set[str] = set()
    untested: dict[str, None] = {}
    for name in names or ("*",):
        same_name, below = known.named(name, trials)
        untested |= {} if below else {name: None}
        itself |= same_name
        named |= {run.run_id for run in below if name != "*"}
        meant |= {run.run_id: run for run in below}
    if where:
        found = {run.run_id for run in store.runs(where=where)}
        meant = {key: run for key, run in meant.items() if key in found}
    for tag, value in (tags or {}).items():
        meant = {key: run for key, run in meant.items() if run.tags.get(tag) == value}
    by_scale = tag_names.SCALE in (tags or {}) or tag_names.SCALE in (where or "")
    smoke = [run for run in meant.values() if _is_smoke(run) and run.run_id not in named and not by_scale]
    meant = {key: run for key, run in meant.items() if run not in smoke}
    former = {run.run_id: run for run in known.former_choices if run.run_id in meant and run.run_id not in itself}
    left = [run for key, run in meant.items() if key not in former]
    finished = [run for run in left if run.status == "FINISHED"]
    diverged = [run for run in left if run.status == "FAILED" and tag_names.DIVERGED in run.tags]
    others = [run for run in left if run.status != "FINISHED" and run not in diverged]
    started = [run for run in others if run.run_id in itself]
    if not finished and not started:
        raise PflOpsError(_nothing(known.runs, left, smoke, list(former.values()), trials))
    records, lost, begun = (
        tuple(_once([result_of(run, store, known.study_of(run)) for run in sorted(some, key=lambda run: run.start)]))
        for some in (finished, diverged, started)
    )
    return SelectedRuns(
        runs=records,
        unfinished=tuple(run.name for run in others if run not in started),
        diverged=lost,
        started=begun,
        smoke=Counter(run.experiment for run in smoke),
        former=Counter(str(known.study_of(run)) for run in former.values()),
        late=known.tested_late,
        untested=tuple(untested),
    )


@dataclass(frozen=True)
class _KnownRuns:
    """All runs of a store, and which stands below which."""

    runs: list[RunInfo]

    @cached_property
    def _by_id(self) -> dict[str, RunInfo]:
        return {run.run_id: run for run in self.runs}

    def _parent(self, run: RunInfo) -> RunInfo | None:
        return self._by_id.get(run.parent or "")

    def _ancestors(self, run: RunInfo) -> Iterator[str]:
        above: RunInfo | None = run
        while above is not None and above.parent:
            yield above.parent
            above = self._parent(above)

    def study_of(self, run: RunInfo) -> str | None:
        """The study whose run stands directly above."""
        above = self._parent(run)
        return above.tags.get(tag_names.STUDY) if above else None

    def _is_of_former_choice(self, run: RunInfo) -> bool:
        return is_of_former_choice(run, self._parent(run))

    @cached_property
    def former_choices(self) -> list[RunInfo]:
        """Test runs of choices that a study has changed since."""
        return [run for run in self.runs if self._is_of_former_choice(run)]

    @property
    def tested_late(self) -> frozenset[str]:
        """Ids of test runs of a choice that a study made after a test of a former one."""
        changed = {run.parent for run in self.former_choices}
        tests = {run.run_id for run in self.runs if run.parent in changed and is_test(run)}
        return frozenset(tests - {run.run_id for run in self.former_choices})

    def named(self, name: str, trials: bool) -> tuple[set[str], list[RunInfo]]:
        """Return the ids of the runs that have this name, and all runs that it means: these and those below them.

        Raises:
            PflOpsError: nothing has that name, or ids of several experiments begin with it.
        """
        hits = [run for run in self.runs if run.run_id == name or any(fnmatchcase(n, name) for n in _names(run))]
        places = [run for run in self.runs if name in _places(run) or any(fnmatchcase(p, name) for p in _places(run))]
        if not hits and not places:
            hits = self._with_id(name)
        others = [
            run for run in hits if not (trial_label(run) or is_confirmation(run) or self._is_of_former_choice(run))
        ]
        of_any = any(sign in name for sign in "*?[") and bool(others)  # fliu*: no name of a trial, as trial-* is one
        itself = {run.run_id for run in (others if of_any else hits)} if name != "*" else set()
        above = {run.run_id for run in hits + places if tag_names.EXPERIMENT_HASH not in run.tags}
        around = {run.run_id for run in hits + places}
        found = []
        for run in self.runs:
            if tag_names.EXPERIMENT_HASH not in run.tags:
                continue
            below = run.run_id in around or any(parent in above for parent in self._ancestors(run))
            wanted = not is_confirmation(run) and (trials or not trial_label(run))
            if run.run_id in itself or (below and wanted):
                found.append(run)
        return itself, found

    def _with_id(self, name: str) -> list[RunInfo]:
        """The runs whose id, or whose experiment's hash, begins so; of one experiment."""
        hits: list[RunInfo] = []
        if len(name) >= SHORTEST_ID and re.fullmatch("[0-9a-f]+", name):
            hits = [
                run
                for run in self.runs
                if run.run_id.startswith(name) or run.tags.get(tag_names.EXPERIMENT_HASH, "").startswith(name)
            ]
        if len({run.tags.get(tag_names.EXPERIMENT_HASH) for run in hits}) > 1:
            raise PflOpsError(f"{len(hits)} runs have ids that begin with '{name}'; give more of it")
        if not hits:
            close = nearest(name, set[str]().union(*map(_names, self.runs), *map(_places, self.runs)))
            hint = f"did you mean '{close}'?" if close else _there_are(self.runs)
            raise PflOpsError(f"no run, study or experiment named '{echo(name)}'; {hint}")
        return [run for run in hits if run.parent is None] or hits  # one by itself goes before a study's or a suite's


def _names(run: RunInfo) -> set[str]:
    """Return what a run is named, and of a trial also "trial-003" and "fliu trial-003"."""
    label = trial_label(run)
    return {run.name} | ({label, f"{run.params.get('algorithm.name', '')} {label}"} if label else set())


def _places(run: RunInfo) -> set[str]:
    """Return the names that a run may be called by: its experiment; of a study's own run the study."""
    is_study = tag_names.STUDY in run.tags and tag_names.EXPERIMENT_HASH not in run.tags
    return {run.experiment} | ({run.tags[tag_names.STUDY]} if is_study else set())


def _is_smoke(run: RunInfo) -> bool:
    """True for a cell of a suite at scale smoke: it shows that the cell runs, and its numbers mean nothing."""
    return tag_names.EXPERIMENT_HASH in run.tags and run.tags.get(tag_names.SCALE) == "smoke"


def _once(runs: list[Result]) -> Iterator[Result]:
    """Of runs that are the same repetition of the same setting, tracked in two places, the newest; and a row is one."""
    newest = {(run.group, run.seed): run for run in runs}
    yield from (run for run in runs if newest[run.group, run.seed] is run)


def _there_are(known: Iterable[RunInfo]) -> str:
    """`there are 12 runs, in mnist-path (9), digits-lsqs (3)`."""
    counts = Counter(run.experiment for run in known if tag_names.EXPERIMENT_HASH in run.tags)
    shown = listed([f"{name} ({n})" for name, n in counts.most_common()])
    return f"there {'is' if counts.total() == 1 else 'are'} {count(counts.total(), 'run')}, in {shown}"


def _nothing(
    known: list[RunInfo], meant: list[RunInfo], smoke: list[RunInfo], former: list[RunInfo], trials: bool
) -> str:
    if meant:
        if len(meant) == 1:
            how = meant[0].tags.get(tag_names.DIVERGED) or meant[0].status.lower()
            return f"the run that is meant has not finished ({how})"
        states = Counter("diverged" if tag_names.DIVERGED in run.tags else run.status.lower() for run in meant)
        told = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
        return f"none of the {len(meant)} runs that are meant has finished ({told})"
    if smoke:
        return (
            f"there are only cells of suites at scale smoke, which are left out unless they are named: pfl-ops compare "
            f"{smoke[-1].experiment}"
        )
    if former:
        return (
            "there are only test runs of former choices of a study, whose choice was not tested; --resume tests it, "
            f"and the former ones are compared if they are named: pfl-ops compare {former[-1].run_id[:8]}"
        )
    hint = "" if trials or not any(map(trial_label, known)) else "; --trials adds those of studies"
    return f"no run is left to compare: {_there_are(known)}{hint}"
