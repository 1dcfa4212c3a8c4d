"""Names of runs on MLflow's page, and the descriptions that it shows on top of runs and experiments: Markdown."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.config.experiment import Experiment
from pfl_ops.data.datasets import DATASETS
from pfl_ops.data.partition import PARTITIONS
from pfl_ops.federation.losses import LOSSES
from pfl_ops.models import MODELS
from pfl_ops.tracking.descriptions.views import EXPERIMENT, artifact_address, view_address
from pfl_ops.units import exact

APART = ("evaluation.", "partition.seed")
TITLE_LENGTH = 100  # characters of a title
LONGEST_TRIAL_NAME = 80  # characters

STAGES = """**How to read the keys.** `val/…`: each client's validation share; `test/…`: the test data.
`L1`: what a client holds once the round is over; `L2`: right after its local training (of each round's
cohort, in `final/…` of absent clients too); `G`: the one model of all.
`local`: on the client's own data; `global`: on all data; `acc` = local mean + global mean, between 0 and 2.
`mean`, `std`, `worst`, `q10`, `q50`, `q90`: over the clients of this run, not over seeds (`q10`: the 10th percentile);
`rho_95`: the number of clients above 0.95; `clients`: the number scored; `worst_min10`: the worst client of those
with 10 or more samples; `se`: the standard error, if only a part of all data was scored.
`final/…`: the last full evaluation; `best/…`: that of the round with the highest `acc` at the stage of the method's own
models; `score/…`: `final/…` at that stage; `cost/…`: what each round took; `total/cost/…`: all rounds together.
MLflow's duration of a run that was stopped and went on has the pause; `cost/train_seconds` and `cost/eval_seconds`
have not."""


def experiment_name(experiment: Experiment) -> str:
    """Return the name of the MLflow experiment that holds a single run: data set and partition."""
    return f"{experiment.data.label}-{experiment.partition.kind}"


def title(experiment: Experiment) -> str:
    """The method, and the settings in which the experiment differs from its defaults: "fliu lr=0.01 gamma=fixed"."""
    name = experiment.algorithm.name
    text = " ".join([name, *(f"{_short(path)}={_value(value)}" for path, value in _differing(experiment).items())])
    return text if len(text) <= TITLE_LENGTH else text[: TITLE_LENGTH - 1] + "…"


def line(experiment: Experiment, group: str) -> str:
    """Name what repetitions share, and runs with other settings don't: the title, if it says all that is set; else with
    the beginning of the group's hash, which leaves out the seed alone."""
    text, scored = title(experiment), experiment.evaluation
    rounded = any(
        isinstance(value, float) and float(_value(value)) != value for value in _differing(experiment).values()
    )
    whole = not (rounded or text.endswith("…") or _can_be_edited(experiment)) and scored == type(scored)()
    return text if whole else f"{text} #{group[:6]}"


def _can_be_edited(experiment: Experiment) -> bool:
    """True if code or files of the user's own decide the result: after an edit they are another setting of one name."""
    named = (
        (ALGORITHMS, experiment.algorithm.name),
        (MODELS, experiment.model.name),
        (PARTITIONS, experiment.partition.kind),
        (LOSSES, experiment.training.loss),
    )
    files = experiment.partition.kind == "file" or experiment.model.weights is not None
    return files or experiment.data.name not in DATASETS or any(name not in table.builtin for table, name in named)


def _differing(experiment: Experiment) -> dict[str, Any]:
    """Return the settings in which an experiment differs from its defaults, by path; {}: its partition is a file."""
    return {path: value for path, (value, _) in experiment.changed().items() if not path.startswith(APART)}


def trial_name(number: int, method: str, point: Mapping[str, Any], label: str = "") -> str:
    """Return the name of a trial's run: number, method and the settings that vary, "003 fliu lr=0.01 gamma=fixed".

    The number comes first, so that names sort; a name is cut at `LONGEST_TRIAL_NAME` characters. No code reads it: a
    trial is found by its tag `pfl_ops.identity`.

    Args:
        number: of the trial in its study. point: path -> value of the settings that exist in this trial.
        label: of the run among several of the trial, behind the number; "": there is one.
    """
    last = Counter(map(_short, point))
    keys = {path: _short(path) if last[_short(path)] == 1 else path for path in point}
    settings = (
        f"{keys[path]}={f'{value:.3g}' if isinstance(value, float) else value}" for path, value in point.items()
    )
    text = " ".join([f"{number:03d}", *([f"({label})"] if label else []), method, *settings])
    return text if len(text) <= LONGEST_TRIAL_NAME else text[: LONGEST_TRIAL_NAME - 1] + "…"


def trial_colour(number: int) -> str:
    """Return the colour of a trial in MLflow's charts: twelve differ; MLflow's own choice gives several the same."""
    from pfl_ops.figures.style import LIGHT

    colours = (*LIGHT.palette, LIGHT.classes[1], LIGHT.classes[6])
    return colours[number % len(colours)]


def _short(path: str) -> str:
    """The last name of a path; of a kind or a network that of its section."""
    return path.removesuffix(".kind").removesuffix(".name").rpartition(".")[2]


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def run(view: str) -> str:
    """A run with figures: links to them and to the comparison with other runs.

    No picture stands in the text: MLflow shows it in its full width, and what is beside the text leaves the window.

    Args:
        view: key of the saved view that compares it with other runs.
    """
    figures = ("accuracy", "Accuracy over rounds"), ("clients", "Clients"), ("partition", "Partition")
    links = [f"[{text}]({artifact_address(f'figures/{name}.png')})" for name, text in figures]
    return f"""{" · ".join(links)} · [Compared with other runs]({_charts(view)})

{STAGES}
"""


def began(name: str, view: str) -> str:
    """A study that has no result yet; `view`: key of the saved view of its trials."""
    return f"""**Study {name}**: [charts of its trials]({_charts(view)}). It has no result yet.

{STAGES}
"""


def charts(view: str, text: str) -> str:
    """A link to the charts of a saved view of the experiment."""
    return f"[{text}]({_charts(view)})"


def _charts(view: str) -> str:
    return view_address(EXPERIMENT, view).removeprefix("/")


def study(
    name: str, objective: str, chosen: Mapping[str, Any], values: Mapping[str, float], trial: int, test: str, view: str
) -> str:
    """A study that has a result. Chosen settings have all digits: another run with them is the same run.

    Args:
        objective: what was looked for, in words.
        chosen, values, trial: the best point, its objective, its number.
        test: its result on test data, in words.
        view: key of the saved view of its trials.
    """
    settings = "\n".join(f"| `{path}` | {exact(value)} |" for path, value in chosen.items())
    reached = ", ".join(f"`{key}` {value:.4f}" for key, value in values.items())
    return f"""**Study {name}**: [charts of its trials]({_charts(view)}). It looked for {objective}, on validation data.

Chosen: **trial {trial:03d}** ({reached})

| setting | value |
|---|---|
{settings}

{test}

{STAGES}
"""


def comparison(data: str) -> str:
    """An experiment of single runs on the same data."""
    return f"""Runs on **{data}**: {charts("methods", "charts")}, also in the menu *Views*, *Methods*: which method is
best, by how much, at which settings.
Runs that differ in nothing but their seed are one row, their mean.

{STAGES}
"""


def tuning(method: str, data: str, objective: str, paths: Sequence[str]) -> str:
    """An experiment of a study."""
    varied = ", ".join(f"`{path}`" for path in paths)
    return f"""Tuning of **{method}** on **{data}**: {charts("trials", "charts of its trials")}.
It looks for {objective}. Varied: {varied}.
Menu *Views*: *Trials* (validation data), *Tests* (the chosen configuration on test data), *Study* (all, nested).

{STAGES}
"""
