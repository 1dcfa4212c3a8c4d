"""The lines that `pfl-ops tune` prints before a search: its budget and time, its tests, what each run takes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl_ops.errors import PflOpsError, count, together

if TYPE_CHECKING:
    from pfl_ops.federation.loop.estimate import Estimate
    from pfl_ops.federation.settings import Execution
    from pfl_ops.tuning import Settings
    from pfl_ops.tuning.resources.resource_request import ResourceRequest

NONE_IS_STOPPED, IF_NONE_IS_STOPPED = ", none is stopped early", " if none is stopped early"


@dataclass(frozen=True)
class SearchPlace:
    """The place where the runs of a search compute, and their data.

    Attributes:
        asked: resources of a trial. address: of a Ray cluster; None: this machine. data_dir: where the data lie.
    """

    asked: "ResourceRequest"
    execution: "Execution"
    address: str | None = None
    data_dir: str | None = None

    @property
    def known(self) -> bool:
        """True if it is known how many runs fit: not on a cluster, and not where their packing will be measured."""
        return not self.address and not self.asked.kind(self.execution.device, self.address)

    def estimate(self, settings: "Settings") -> "Estimate":
        """Return the estimate of one run of a trial.

        Raises:
            PflOpsError: the experiment can't be run here.
        """
        from pfl_ops import runs

        execution = self.asked.estimated(self.execution)
        return runs.estimate(settings.example, data_dir=self.data_dir, execution=execution)


def study_lines(settings: "Settings", finals: int, place: SearchPlace, notes: Iterable[str]) -> Iterator[str]:
    """Yield the lines on a study.

    Args:
        finals: test runs. notes: lines to stand before the hints; an empty one is left out.
    Raises:
        PflOpsError: the experiment can't be run here.
    """
    from pfl_ops.federation.loop.estimate import duration
    from pfl_ops.tuning.studies.budget import affordable, budget_text

    estimate = place.estimate(settings)
    each = f"each {estimate}{', ' * bool(estimate.cost)}{estimate.cost}"
    if settings.combination:
        each = f"a trial is {settings.combination}{NONE_IS_STOPPED * (settings.scheduler == 'none')}; {each}"
    confirmation = _confirmation(settings)
    text = budget_text(settings)
    if place.known:
        started = estimate.with_startup()
        at_once = place.asked.at_once(settings.trials * settings.at_once, place.execution.device)
        trials = affordable(settings, estimate.of_runs(settings.n_parts), at_once)
        baselines = settings.n_parts if settings.environments else 0
        whole = duration(started.of_trials(trials * settings.n_parts + baselines, at_once))
        fit = f" ({trials} fit)" if trials < settings.trials else ""
        if_all = IF_NONE_IS_STOPPED * (settings.scheduler != "none" or not settings.combination)
        text = f"{text}{fit}, {at_once} at once, about {whole}{if_all}; {each}"
        if confirmation:
            repeated = _confirmed(settings) * settings.confirm * max(1, len(settings.environments))
            confirmation += f", at most {duration(started.of_trials(repeated, at_once))}"
    else:
        text = f"{text}, {each}"
    yield text
    yield from filter(None, (confirmation, _tests(settings, finals), settings.cohort_note, *notes))
    yield from estimate.hints


def benchmark_lines(
    settings: "Mapping[str, Settings]", finals: int, place: SearchPlace, notes: Iterable[str]
) -> Iterator[str]:
    """Yield the lines on a study for each method, and on the ranges that all methods vary.

    Args:
        settings: method -> its study. finals: test runs of each method. notes: as for `study_lines`.
    Raises:
        PflOpsError: an experiment cannot be run here; one message has the mistakes of all methods.
    """
    from pfl_ops.federation.loop.estimate import distinct_hints, duration
    from pfl_ops.tuning.studies.budget import affordable, budget_text

    estimates: dict[str, Estimate] = {}
    wrong: dict[str, str] = {}
    for method, each in settings.items():
        try:
            estimates[method] = place.estimate(each)
        except PflOpsError as error:
            wrong[method] = str(error)
    if wrong:
        raise together(wrong)
    first = next(iter(settings.values()))
    text = f"{len(estimates)} methods, each with {budget_text(first)}"
    if place.known:
        at_once = place.asked.at_once(first.trials * first.at_once, place.execution.device)
        starting = next(iter(estimates.values())).with_startup().of_trials(0, at_once)
        trials = [estimate.of_runs(first.n_parts) for estimate in estimates.values()]
        searches = sum(one.seconds * affordable(first, one, at_once) for one in trials) / at_once
        testing = sum(estimate.of_runs(finals).seconds for estimate in estimates.values())
        tests = f" and {count(finals, 'test run')}" if finals else ""
        if_all = IF_NONE_IS_STOPPED * (first.scheduler != "none" or not first.combination)
        text += f"{tests}, {at_once} at once: about {duration(starting + searches + testing)}{if_all}"
    yield text
    if first.combination:
        yield f"a trial is {first.combination}{NONE_IS_STOPPED * (first.scheduler == 'none')}"
    yield from filter(None, [_confirmation(first, " of each")])
    width = max(map(len, estimates))
    for method, estimate in estimates.items():
        yield f"  {method:{width}}  each {estimate}{', ' * bool(estimate.cost)}{estimate.cost}"
    if common := first.common:
        ranges = (f"{key.rpartition('.')[2]} {'; '.join(map(str, common.of(key)))}" for key in common.keys)
        yield f"all methods vary: {', '.join(ranges)}; each its own hyper-parameters besides"
    yield from filter(None, notes)
    for method, each in settings.items():
        if held := each.restrictions:
            told = ", ".join(f"{path.rpartition('.')[2]} {value}" for path, value in held.items())
            yield f"  {method:{width}}  requires {told}"
    for method, each in settings.items():
        if each.cohort_note:
            yield f"  {method:{width}}  {each.cohort_note}"
    yield from distinct_hints(hint for estimate in estimates.values() for hint in estimate.hints)


def _confirmed(settings: "Settings") -> int:
    """Return the number of configurations that a confirmation repeats."""
    return min(settings.confirm_top, settings.trials)


def _confirmation(settings: "Settings", of_each: str = "") -> str:
    """Return the beginning of the line on the confirmation; "": there is none."""
    if not settings.confirm or _confirmed(settings) < 2:
        return ""
    seeds = count(settings.confirm, "new seed")
    return f"then the best {_confirmed(settings)}{of_each} again with up to {seeds} (--confirm)"


def _tests(settings: "Settings", finals: int) -> str:
    """Return the line on FedAvg's runs and the tests of a study in environments; "": it has none."""
    if not settings.environments:
        return ""
    tests = 2 * finals * (len(settings.environments) + len(settings.held_out))
    apart = f"; held out: {', '.join(one.name for one in settings.held_out)}" if settings.held_out else ""
    return (
        f"before it {count(settings.n_parts, 'run')} of FedAvg, at the end {tests} tests: the choice and FedAvg{apart}"
    )
