"""The lines that `pfl-ops tune` prints before a search: its budget and time, its tests, what each run takes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pfl_ops import runs
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import count, for_each
from pfl_ops.federation.loop.estimate import Estimate, distinct_hints, duration
from pfl_ops.federation.settings import Execution
from pfl_ops.tuning import Settings
from pfl_ops.tuning.commands.planning import StudyOutlook
from pfl_ops.tuning.resources.resource_request import ResourceRequest
from pfl_ops.tuning.studies.budget import affordable, done_text
from pfl_ops.tuning.studies.limits import MOST_TRIALS

COST = ("data.", "model.", "participation.", "partition.clients")
"""Settings by which environments cost unlike; partitions divide the same samples."""
NONE_IS_STOPPED, IF_NONE_IS_STOPPED = ", none is stopped early", " if none is stopped early"


@dataclass(frozen=True)
class SearchPlace:
    """The place where the runs of a search compute, and their data.

    Attributes:
        asked: resources of a trial. address: of a Ray cluster; None: this machine. data_dir: where the data lie.
    """

    asked: ResourceRequest
    execution: Execution
    address: str | None = None
    data_dir: str | None = None

    @property
    def known(self) -> bool:
        """True if it is known how many runs fit: not on a cluster, and not where their packing will be measured."""
        return not self.address and not self.asked.kind(self.execution.device, self.address)

    def estimate(self, settings: Settings) -> Estimate:
        """Return the estimate of one run of a trial, see `mean_estimate`.

        Raises:
            PflOpsError: the experiment can't be run here.
        """
        return mean_estimate(settings, self.data_dir, self.asked.estimated(self.execution))


def mean_estimate(settings: Settings, data_dir: str | None, execution: Execution) -> Estimate:
    """Return the estimate of one run of a trial: in environments that cost unlike their mean, and the most memory.

    Raises:
        PflOpsError: the experiment can't be run here.
    """
    groups = _alike(settings)
    found = [(runs.estimate(group[0], data_dir=data_dir, execution=execution), len(group)) for group in groups]
    first, n = found[0][0], sum(number for _, number in found)
    if len(found) == 1:
        return first
    mean = {
        name: sum(getattr(one, name) * number for one, number in found) / n
        for name in ("seconds", "train_seconds", "eval_seconds", "samples", "sent_bytes")
    }
    return replace(
        first,
        **{**mean, "samples": round(mean["samples"])},
        memory_mib=max(one.memory_mib for one, _ in found),
        disk_mib=max(one.disk_mib for one, _ in found),
        hints=tuple(distinct_hints(hint for one, _ in found for hint in one.hints)),
    )


def _alike(settings: Settings) -> list[list[Experiment]]:
    """The experiment in each environment, those together whose runs cost alike."""
    groups: dict[tuple[tuple[str, str], ...], list[Experiment]] = {}
    for one in settings.in_environments:
        key = tuple((path, str(value)) for path, value in one.flat.items() if path.startswith(COST))
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def study_lines(found: StudyOutlook, place: SearchPlace, data_dir: str | None, notes: Iterable[str]) -> Iterator[str]:
    """Yield the lines on what is left of a study.

    Args:
        data_dir: absolute. notes: lines to stand before the hints; an empty one is left out.
    Raises:
        PflOpsError: the experiment can't be run here.
    """
    settings, left = found.plan.settings, found.left
    estimate = place.estimate(settings)
    mean = "a run in the mean" if len(_alike(settings)) > 1 else "each"
    each = f"{mean} {estimate}{', ' * bool(estimate.cost)}{estimate.cost}"
    if settings.combination:
        each = f"a trial is {settings.combination}{NONE_IS_STOPPED * (settings.scheduler == 'none')}; {each}"
    confirmation, testing = _confirmation(settings), ""
    text = settings.budget_text
    if place.known:
        started = estimate.with_startup()
        at_once = place.asked.at_once(max(1, left.trials) * settings.at_once, place.execution.device)
        trials = affordable(left, estimate.of_runs(settings.n_parts), at_once, estimate.of_runs(found.baselines))
        whole = duration(started.of_trials(trials * settings.n_parts + found.baselines, at_once))
        if_all = IF_NONE_IS_STOPPED * (settings.scheduler != "none" or not settings.combination)
        if not left.trials:
            text = f"{text}{_done(found)}; {each}"
        else:
            text = f"{text}{_done(found, trials)}, {at_once} at once, about {whole}{if_all}; {each}"
        if confirmation:
            confirmation += f", at most {duration(started.of_trials(found.confirmations, at_once))}"
        testing = f" (about {duration(estimate.of_runs(_number_of_tests(found)).seconds / at_once)})"
    else:
        text = f"{text}{_done(found)}, {each}"
    if found.begun is not None and not left.trials and not found.confirmations:
        confirmation = ""
    yield text
    work = _varied_work(settings) if left.trials else ""
    yield from filter(
        None, (confirmation, _tests(found, data_dir, testing), work, settings.scored_clients.note, *notes)
    )
    yield from estimate.hints


def benchmark_lines(
    found: Sequence[StudyOutlook], place: SearchPlace, data_dir: str | None, notes: Iterable[str]
) -> Iterator[str]:
    """Yield the lines on what is left of a study for each method, and on the ranges that all methods vary.

    Args:
        found: a study a method. data_dir: absolute. notes: as for `study_lines`.
    Raises:
        PflOpsError: an experiment cannot be run here; one message has the mistakes of all methods.
    """
    settings = {each.plan.method: each.plan.settings for each in found}
    estimates = for_each(settings, lambda method: place.estimate(settings[method]))
    first = found[0].plan.settings
    total = _total(found, place, list(estimates.values()), data_dir) if place.known else ""
    yield f"{len(estimates)} methods, each with {first.budget_text}{total}"
    if first.combination:
        yield f"a trial is {first.combination}{NONE_IS_STOPPED * (first.scheduler == 'none')}"
    if any(each.confirmations for each in found) and (confirmation := _confirmation(first, " of each")):
        if place.known:
            repeated = zip(found, estimates.values(), strict=True)
            seconds = sum(one.of_runs(each.confirmations).seconds for each, one in repeated)
            confirmation += f", at most {duration(seconds / _at_once(first, place))} more"
        yield confirmation
    width = max(map(len, estimates))
    for one, (method, estimate) in zip(found, estimates.items(), strict=True):
        done = f"{_done(one).removeprefix('; ')}; " if _is_begun(one) else ""
        yield f"  {method:{width}}  {done}each {estimate}{', ' * bool(estimate.cost)}{estimate.cost}"
    if common := first.common:
        ranges = (f"{key.rpartition('.')[2]} {'; '.join(map(str, common.of(key)))}" for key in common.keys)
        yield f"all methods vary: {', '.join(ranges)}; each its own hyper-parameters besides"
    work = {one.plan.method: _varied_work(one.plan.settings) for one in found if one.left.trials}
    for told in filter(None, dict.fromkeys(work.values())):
        of = [method for method, each in work.items() if each == told]
        yield f"{', '.join(of)}: {told}" if len(of) < len(found) else told
    yield from filter(None, notes)
    for method, each in settings.items():
        if held := each.restrictions:
            told = ", ".join(f"{path.rpartition('.')[2]} {value}" for path, value in held.items())
            yield f"  {method:{width}}  requires {told}"
    for method, each in settings.items():
        if note := each.scored_clients.note:
            yield f"  {method:{width}}  {note}"
    yield from distinct_hints(hint for estimate in estimates.values() for hint in estimate.hints)


def _total(
    found: Sequence[StudyOutlook], place: SearchPlace, estimates: Sequence[Estimate], data_dir: str | None
) -> str:
    """Return the words on the tests of a benchmark, and on the time of what is left of all its studies."""
    first, finals = found[0].plan.settings, found[0].plan.finals
    at_once = _at_once(first, place)
    starting = estimates[0].with_startup().of_trials(0, at_once)
    trials = [estimate.of_runs(first.n_parts) for estimate in estimates]
    numbers = [affordable(one.left, cost, at_once) for one, cost in zip(found, trials, strict=True)]
    searches = sum(n * cost.seconds for n, cost in zip(numbers, trials, strict=True))
    tests = [each.tests(data_dir) for each in found]
    testing = sum(estimate.of_runs(n).seconds for n, estimate in zip(tests, estimates, strict=True))
    of_tests = f" and {count(finals, 'test run')}" if finals else ""
    if_all = IF_NONE_IS_STOPPED * (first.scheduler != "none" or not first.combination)
    begun = any(map(_is_begun, found))
    more = f", {count(sum(tests), 'test run')} left" if begun and finals else ""
    rest = " for what is left" if begun else ""
    seconds = starting + searches / at_once + testing
    return f"{of_tests}{more}, {at_once} at once: about {duration(seconds)}{rest}{if_all}"


def _at_once(settings: Settings, place: SearchPlace) -> int:
    """Return the number of runs at once in the search of one of several methods."""
    return place.asked.at_once(settings.trials * settings.at_once, place.execution.device)


def _confirmed(settings: Settings) -> int:
    """Return the number of configurations that a confirmation repeats."""
    return min(settings.confirm_top, settings.trials)


def _confirmation(settings: Settings, of_each: str = "") -> str:
    """Return the beginning of the line on the confirmation; "": there is none."""
    if not settings.confirm or _confirmed(settings) < 2:
        return ""
    seeds = count(settings.confirm, "new seed")
    return f"then the best {_confirmed(settings)}{of_each} again with up to {seeds} (--confirm)"


def _number_of_tests(found: StudyOutlook) -> int:
    """Return the number of test runs of a choice; of a study in environments those of FedAvg, too."""
    settings, finals = found.plan.settings, found.plan.finals
    return 2 * finals * (len(settings.environments) + len(settings.held_out)) if settings.environments else finals


def _varied_work(settings: Settings) -> str:
    """Return the line on local work that trials vary, if they may have more than the run of the estimate; "": none."""
    for path in ("training.local_epochs", "training.local_steps"):
        ranges, now = settings.space.of(path), settings.example.get(path)
        values = [value for one in ranges for value in one.choices or (one.low, one.high) if value]
        if not (now and values) or max(map(float, values)) <= now:
            continue
        least, most = min(map(float, values)), max(map(float, values))
        name = path.rpartition(".")[2]
        times = f"up to {most / now:.3g} times the samples and the training time"
        return f"estimated with {name} {now:g}; trials have {least:g} to {most:g}, and so {times}"
    return ""


def _is_begun(found: StudyOutlook) -> bool:
    """True if a trial of the study was started."""
    return found.begun is not None and found.begun.begun()


def _done(found: StudyOutlook, fit: int | None = None) -> str:
    """Return the words on what a search has done and what is left of it.

    Args:
        fit: trials that its budgets still hold; None: unknown.
    """
    left, settings = found.left, found.plan.settings
    fewer = fit is not None and fit < left.trials
    if not _is_begun(found):
        return f" ({fit} fit)" * fewer
    assert found.begun is not None
    done = f"; {done_text(settings, found.begun)}"
    if not left.trials:
        return f"{done}, the search is over"
    if settings.trials < MOST_TRIALS:
        return f"{done}, {left.trials} {'is' if left.trials == 1 else 'are'} left" + f" ({fit} fit)" * fewer
    return done + f", {fit} more fit" * fewer


def _tests(found: StudyOutlook, data_dir: str | None, time: str = "") -> str:
    """Return the line on FedAvg's runs and the tests; "": there are none.

    Args:
        time: that the tests take, in words; "": not known.
    """
    settings, finals = found.plan.settings, found.plan.finals
    if not settings.environments:
        if found.begun is not None and not found.left.trials:
            return f"{found.tests(data_dir)} of {count(finals, 'test run')} left" * (finals > 0)
        return f"at the end {count(finals, 'test run')} of the choice{time}" * (finals > 0)
    tests = f"{_number_of_tests(found)} tests{time}"
    apart = f"; held out: {', '.join(one.name for one in settings.held_out)}" if settings.held_out else ""
    before = f"before it {count(found.baselines, 'run')} of FedAvg, " if found.baselines else ""
    return f"{before}at the end {tests}: the choice and FedAvg{apart}"
