"""`Study`: what a search found, with its notes and pictures."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import pandas as pd

from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError, count, listed
from pfl_ops.metric_keys import summands
from pfl_ops.spaces import Point
from pfl_ops.tuning.findings.pictures import Pictures
from pfl_ops.tuning.session.confirm import Confirmation
from pfl_ops.tuning.studies.objective import Mode, Objective, distances_to_ideal
from pfl_ops.tuning.studies.tested import FEDAVG, missing_notes
from pfl_ops.units import deviation, in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pfl_ops.results import Result

SAMPLED = "Acc(G) is from a sample of the validation data; all: evaluation.subset=none"
DIVISORS = "that of FedAvg's scores, which all trials are divided by"

MOST_TIED = 8  # trials that a line names


@dataclass(frozen=True)
class Study:
    """The result of a study.

    Attributes:
        name: its name, in the storage and in MLflow. run_id: of its parent run.
        objective: what was optimised.
        best: the chosen point. trial: its number. values: its objective on validation data, the mean over its seeds.
        experiment: the chosen configuration, as its test runs have it.
        table: one row a trial. pareto: the front of several objectives, as rows of the table; None: there was one.
        finals: test runs of the chosen configuration, one a repetition.
        diverged: {seed: how} of repetitions whose training diverged, which are not among `finals`.
        openings: how often the test data were opened for this study.
        page: where MLflow's page shows its trials, behind the server's address; None: it was never reached.
        confirmation: the best configurations with new seeds, from which the choice was made; None: it is the trial with
            the best value.
        pictures: of its trials, drawn on demand: `study.pictures.draw("slice")`. None: it was not read.
        ended: a line on the budget that ended the search; "": trials were the only one.
        environments: scores of the choice and of FedAvg in each environment, tuned or held out, see `tested.summary`;
            None: the study has none, and `finals` has its test runs. tests: one row a test run in an environment.
        in_environments: the experiment in each environment that was tuned on; (): the study has none.
        parts: one row a run of a trial that has several, see `StudyStorage.parts_table`; None: a trial is one run.
        baselines: a row for each validation run of FedAvg, see `StudyStorage.baselines_table`; None: no environments.
        copies: lines on test samples of its environments that have the values of a training sample.
        ends: numbers of the choice that lie at an end of their range, see `spaces.at_ends`.
        standard_errors: metric -> standard error of the evaluation of the chosen trial, if it was on a sample of the
            pooled validation data.
    """

    name: str
    run_id: str | None
    objective: Objective
    best: Point
    trial: int
    values: dict[str, float]
    experiment: Experiment
    table: pd.DataFrame
    pareto: pd.DataFrame | None = None
    finals: "list[Result]" = field(default_factory=list)
    openings: int = 0
    page: str | None = None
    diverged: dict[int, str] = field(default_factory=dict)
    confirmation: Confirmation | None = None
    ended: str = ""
    pictures: Pictures | None = None
    standard_errors: dict[str, float] = field(default_factory=dict)
    environments: pd.DataFrame | None = None
    tests: pd.DataFrame | None = None
    in_environments: tuple[Experiment, ...] = ()
    parts: pd.DataFrame | None = None
    baselines: pd.DataFrame | None = None
    ends: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()

    def __repr__(self) -> str:
        tests = f", {count(len(self.finals), 'test run')}" if self.finals else ""
        return f"Study({self.name}: trial {self.trial:03d} of {len(self.table)}, {in_words(self.scores)}{tests})"

    def _repr_html_(self) -> str:
        from pfl_ops.display import cards, tables

        return cards.card(
            lambda: cards.heading(f"study {self.name}", f"best: trial {self.trial:03d}, {in_words(self.scores)}"),
            lambda: cards.note(self.front_note, self.tie_note, self.noise),
            lambda: cards.table(tables.chosen(self.best)),
            lambda: cards.note(self.ends_note, self.ended, str(self.confirmation or "")),
            lambda: cards.table(tables.trials(*self._shown)),
            lambda: cards.table(tables.scores(self.finals, "test")) if self.finals and not self.diverged else "",
            lambda: "" if self.environments is None else cards.table(tables.environments(self.environments)),
            lambda: cards.note(*self.below_environments),
            lambda: cards.note(*(f"test run with seed {seed}: {how}" for seed, how in self.diverged.items())),
            lambda: cards.note(self.openings_note),
            lambda: cards.picture(self.plot, f"The trials of study {self.name}"),
            self._importance,
            lambda: cards.note(str(self.pictures or "")),
        )

    def _importance(self) -> str:
        from pfl_ops.display import cards

        pictures, name = self.pictures, "importance_fanova"
        if pictures is None or name not in pictures.drawable:
            return ""
        return cards.picture(lambda: pictures.draw(name), f"Importance of the parameters of study {self.name}")

    @property
    def _shown(self) -> tuple[pd.DataFrame, tuple[str, ...], tuple[Mode, ...], int, str]:
        """The trials to show, or the front, as `tables.trials` takes them."""
        table, title = (self.table, "trials") if self.pareto is None else (self.pareto, "Pareto front")
        return table, self.objective.metrics, self.objective.modes, self.trial, title

    @property
    def has_plot(self) -> bool:
        """True if there is a picture of its objectives."""
        return self.objective.single or _two_to_maximise(self.objective)

    def plot(self) -> "Figure":
        """Draw the trials one by one; of two objectives to be maximised, their Pareto front.

        Raises:
            PflOpsError: other objectives, for which there is no picture.
        """
        drawn = picture(self.table, self.objective, self.trial)
        if drawn is None:
            raise PflOpsError(f"there is no picture of the objectives {', '.join(self.objective.metrics)}")
        return drawn[1]

    @property
    def scores(self) -> dict[str, float]:
        """The chosen trial's objective on validation data, with Acc(L) and Acc(G) where it is their sum."""
        chosen = self.table[self.table["trial"] == self.trial]
        parts = [part for key in self.values for part in summands(key) if part in chosen]
        found = {part: chosen[part].iloc[0] for part in parts}
        return {**self.values, **{part: float(value) for part, value in found.items() if value is not None}}

    @property
    def baseline_note(self) -> str:
        """One line on what FedAvg's runs on validation data cost; "": the study has no environments."""
        if self.baselines is None:
            return ""
        n, samples = len(self.baselines), int(self.baselines["samples"].sum())
        return f"FedAvg on validation data: {count(n, 'run')}, {samples:,} samples, part of the search"

    @property
    def front_note(self) -> str:
        """One line on the choice from a Pareto front, with the trials that are as near to the ideal point; "": there
        was one objective."""
        if self.pareto is None:
            return ""
        if len(self.pareto) == 1:
            return f"the front has one point: trial {self.trial:03d} has the best value of each objective"
        distances = distances_to_ideal(self.pareto[list(self.objective.metrics)], self.objective.modes)
        nearest = self.pareto[distances == distances.min()].set_index("trial")
        settings = nearest[[path for path in self.best if path in nearest]].astype(str)
        others = [f"{n:03d}" for n in nearest.index if not settings.loc[n].equals(settings.loc[self.trial])]
        tie = f"; as near, and later: {', '.join(others)}, so the order of the trials decided" if others else ""
        return (
            f"trial {self.trial:03d} is one of {len(self.pareto)} points of the front, the nearest to the best value "
            f"of each objective, in units of its spread over the front{tie}"
        )

    @property
    def tie_note(self) -> str:
        """One line on complete trials with other settings and the value of the chosen trial, or of the last one that
        was repeated with new seeds; "": there are none, or several objectives."""
        if not self.objective.single:
            return ""
        kept = list(self.confirmation.values) if self.confirmation else [self.trial]
        complete = self.table[self.table["state"] == "complete"].set_index("trial")
        value = complete[next(iter(self.values))]
        paths = [key for key in map(str, complete) if "." in key and "/" not in key]
        settings = pd.Series(list(map(tuple, complete[paths].astype(str).to_numpy())), complete.index, dtype=object)
        equal = complete.index[(value == value[kept[-1]]) & ~settings.isin(settings[kept])]
        if not len(equal):
            return ""
        others = listed([f"{number:03d}" for number in equal], MOST_TIED)
        result = "repeated with new seeds" if self.confirmation else "chosen"
        return f"as good in the search as trial {kept[-1]:03d}, and later, so not {result}: {others}"

    @cached_property
    def test_data_notes(self) -> tuple[str, ...]:
        """Lines on the data of the tests: samples that are left out, that no client can learn, or that have the values
        of a training sample; (): there are none, or no tests."""
        if not self.finals:
            return self.copies
        try:
            return self.experiment.clients(data_dir=self.finals[0].data_dir).on_tests
        except PflOpsError:  # the tests were read, and their data are not here
            return ()

    @property
    def openings_note(self) -> str:
        """One line on how often the test data were opened; "": they stayed closed."""
        return f"the test data were opened {count(self.openings, 'time')} for this study" if self.openings else ""

    @property
    def ends_note(self) -> str:
        """One line on numbers of the choice at an end of their range; "": there are none."""
        return f"at an end of the range, beyond which nothing was tried: {', '.join(self.ends)}" if self.ends else ""

    @property
    def environment_notes(self) -> tuple[str, ...]:
        """The test runs in environments that diverged, a line each."""
        if self.tests is None:
            return ()
        lost = self.tests[self.tests["error"] != ""].to_dict("records")
        return tuple(
            f"test run of {'FedAvg' if row['role'] == FEDAVG else 'the choice'} in {row['environment']} with seed "
            f"{row['seed']}: {row['error']}"
            for row in lost
        )

    @property
    def missing_notes(self) -> tuple[str, ...]:
        """The metrics that finished test runs in environments have no value of, a line each."""
        if self.tests is None or self.environments is None:
            return ()
        return missing_notes(self.tests, self.environments["metric"].unique())

    @property
    def below_environments(self) -> tuple[str, ...]:
        """The lines below the table of environments, or below the test scores where there are none."""
        lines = (self.baseline_note, *self.environment_notes, *self.missing_notes, *self.test_data_notes)
        return tuple(filter(None, lines))

    @property
    def noise(self) -> str:
        """One line on the noise of the chosen trial's value: over its seeds, and of its evaluation; "": not known."""
        told = []
        for metric, value in self.spread.items():
            what = f" of {metric}" if len(self.spread) > 1 else ""
            told.append(f"standard deviation{what} over seeds {deviation(value, metric)}")
        if errors := [deviation(value, metric) for metric, value in self.standard_errors.items()]:
            confirmed = self.confirmation
            mean = confirmed.standard_error if confirmed else None
            new = f", of the mean over new seeds {deviation(mean, confirmed.metric)}" if confirmed and mean else ""
            without = "" if self.baselines is None else f", without {DIVISORS}"
            told.append(f"standard error of the evaluation {' and '.join(errors)}{new}{without} ({SAMPLED})")
        return f"noise of trial {self.trial:03d}'s value: {'; '.join(told)}" if told else ""

    @property
    def spread(self) -> dict[str, float]:
        """Sample standard deviation of the chosen trial's objective over its seeds; {}: a trial has one seed."""
        row = self.table[self.table["trial"] == self.trial].iloc[0]
        return {metric: float(row[key]) for metric in self.values if (key := f"{metric}/std") in row}


def picture(table: pd.DataFrame, goal: Objective, chosen: int | None) -> "tuple[str, Figure] | None":
    """Return the name and the picture of the trials one by one; of two objectives, of their front; None of others."""
    from pfl_ops import figures

    if goal.single:
        values, states = table[goal.metrics[0]].tolist(), table["state"].tolist()
        return "trials", figures.history(values, states, goal.metrics[0], goal.modes[0] == "max")
    if _two_to_maximise(goal):
        trials = table["trial"].tolist()
        row = trials.index(chosen) if chosen in trials else None
        first, second = goal.metrics
        points = table[[first, second]].to_numpy(float)
        return "pareto", figures.pareto(points, list(map(str, trials)), (first, second), row)
    return None


def _two_to_maximise(goal: Objective) -> bool:
    return len(goal.metrics) == 2 and set(goal.modes) == {"max"}
