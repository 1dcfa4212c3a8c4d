"""The flags and their paths: one table for `run`, `tune` and `--set`, and the experiment of a command line."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer

from pfl_ops.cli.checks import check_data_dir
from pfl_ops.cli.names import Names, completion, names_of
from pfl_ops.errors import PflOpsError, by_key, echo

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment
    from pfl_ops.federation.settings import Execution
    from pfl_ops.tuning.studies.settings import Settings


class Flag(NamedTuple):
    """A flag that sets one field.

    Attributes:
        name: as typed, without the dashes.
        path: the experiment's path, or the field of `Execution`.
        metavar: what is to be given; completion offers the words of "sgd|adam".
        default: as `--help` shows it; a test holds it against the field.
        help: one line.
        names: what completion offers.
    """

    name: str
    path: str
    metavar: str
    default: str
    help: str
    names: Names | None = None


EXPERIMENT = (
    Flag(
        "dataset",
        "data.name",
        "NAME|FILE",
        "digits",
        "Data set, or a file: .npz, .csv, .parquet.",
        names_of("datasets"),
    ),
    Flag("train-size", "data.train_size", "INT|none", "12000", "Training samples at most, stratified; none: all."),
    Flag(
        "partition",
        "partition.kind",
        "NAME|file:PATH",
        "lsqs",
        "How samples are split over clients; a file with clients: natural.",
        names_of("partitions"),
    ),
    Flag("clients", "partition.clients", "INT", "20", "Number of clients."),
    Flag("alpha", "partition.alpha", "FLOAT", "the partition's", "Concentration; smaller is more skewed."),
    Flag("model", "model.name", "NAME", "the data set's", "Network.", names_of("models")),
    Flag("rounds", "training.rounds", "INT", "20", "Communication rounds."),
    Flag("local-epochs", "training.local_epochs", "INT", "1", "Passes over a client's data a round."),
    Flag("local-steps", "training.local_steps", "INT", "none", "Minibatch steps a round, instead of epochs."),
    Flag("batch-size", "training.batch_size", "INT|none", "50", "Samples a step; none: all of a client's."),
    Flag("optimiser", "training.optimiser", "sgd|adam", "sgd", "Local optimiser."),
    Flag("lr", "training.lr", "FLOAT", "0.05", "Local learning rate."),
    Flag("participation", "participation.share", "FLOAT", "1.0", "Share of the clients in a round."),
    Flag(
        "precision",
        "training.precision",
        "NAME",
        "float32",
        "Number format of training: float32, tf32, bfloat16 or float64; changes results.",
        lambda: ("float32", "tf32", "bfloat16", "float64"),
    ),
    Flag("seed", "seed", "INT", "0", "Seed of the first repetition."),
    Flag("repetitions", "repetitions", "INT", "1", "Repetitions, with seeds seed, seed + 1, ..."),
)
"""Paths of the experiment. A method may recommend other defaults: `pfl-ops show NAME`."""

EXECUTION = (
    Flag("device", "device", "auto|cpu|cuda", "auto", "Where it computes."),
    Flag("way", "way", "auto|loop|vmap", "auto", "One client at a time, or stacked; auto: the fastest when timed."),
    Flag("chunk", "chunk", "INT", "timed", "Clients stacked at once (vmap)."),
    Flag("workers", "workers", "INT", "timed", "Processes of one thread that share a cohort (CPU)."),
    Flag("threads", "threads", "INT", "all allowed", "CPU threads."),
    Flag(
        "kernels",
        "kernels",
        "NAME",
        "auto",
        "torch, or compiled (pfl-ops compile); auto: compiled where built and faster.",
        lambda: ("auto", "torch", "compiled"),
    ),
    Flag(
        "state",
        "state",
        "NAME",
        "auto",
        "Where clients' state is: memory, file, device (the GPU); auto: memory, unless it may outgrow it.",
        lambda: ("auto", "memory", "file", "device"),
    ),
    Flag("diverged", "diverged", "stop|continue", "stop", "What a loss or parameter that is not finite does to a run."),
    Flag("checkpoint-every", "checkpoint_every", "INT", "1", "Rounds between checkpoints."),
)
"""Fields of `Execution`: they change how fast, never what comes out (but for rounding)."""

PANELS = {"Experiment": EXPERIMENT, "Execution": EXECUTION}

Command: TypeAlias = Callable[..., None]


def with_flags(
    *names: str, panels: Mapping[str, tuple[Flag, ...]] = PANELS, helps: Mapping[str, str | None] | None = None
) -> Callable[[Command], Command]:
    """Decorator: a command that takes `**flags` gets flags of these tables, after its positional arguments.

    Args:
        names: which; none: all. panels: heading -> table.
        helps: name -> help text of a flag that means something else to this command; None: it is refused, and hidden.
    """
    texts = helps or {}

    def add(command: Command) -> Command:
        signature = inspect.signature(command)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        chosen = [
            _parameter(flag, panel, texts.get(flag.name, flag.help))
            for panel, flags in panels.items()
            for flag in flags
            if not names or flag.name in names
        ]
        first = [p for p in own if p.kind is not p.KEYWORD_ONLY]
        last = [p for p in own if p.kind is p.KEYWORD_ONLY]
        # Typer reads a command's parameters from its signature
        command.__signature__ = signature.replace(parameters=[*first, *chosen, *last])  # type: ignore[attr-defined]
        return command

    return add


def _parameter(flag: Flag, panel: str, text: str | None) -> inspect.Parameter:
    words = flag.metavar.split("|") if flag.metavar.islower() else []
    names = flag.names or ((lambda: words) if len(words) > 1 else None)
    made = option(text or "", flag.default, flag.metavar, panel=panel, names=names)
    made.hidden = text is None
    name = flag.name.replace("-", "_")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, made])


def option(
    help: str,
    default: str = "",
    metavar: str | None = None,
    least: float | None = None,
    most: float | None = None,
    *,
    flag: str | None = None,
    panel: str | None = None,
    names: Names | None = None,
) -> Any:
    """Return Typer's option of a flag.

    Args:
        default: what stands where it is not given, as `--help` shows it; "": not shown.
        least, most: of a number. flag: its name, with dashes; None: that of the parameter, which is no bool.
        panel: its heading in `--help`. names: what completion offers.
    """
    return typer.Option(
        *filter(None, [flag]),
        help=f"{help} [dim]\\[default: {default}][/dim]" if default else help,
        metavar=metavar,
        min=least,
        max=most,
        show_default=False,
        rich_help_panel=panel,
        autocompletion=completion(names) if names else None,
    )


def settings_of(table: Iterable[Flag], flags: Mapping[str, str | None]) -> dict[str, Any]:
    """{path: text} of the flags in `table` that were given."""
    given = {flag.path: flags.get(flag.name.replace("-", "_")) for flag in table}
    return {path: value for path, value in given.items() if value is not None}


Sets = Annotated[
    list[str],
    option("Set any field (pfl-ops list settings, show NAME); repeatable.", metavar="PATH=VALUE", flag="--set"),
]
Config = Annotated[Path | None, option("An experiment as a file; flags go before it.", metavar="FILE.yaml")]
Preset = Annotated[
    str | None,
    option(
        "Named settings (pfl-ops list presets): paper, the FLIU paper's; pfllib, PFLlib's (hours).",
        metavar="NAME",
        names=names_of("presets"),
    ),
]
Plugins = Annotated[
    list[Path], option("Your own methods, models, partitions or losses; repeatable.", metavar="FILE.py")
]
DataDir = Annotated[
    str | None, option("Where data sets lie; a list is separated by ':'.", "PFL_OPS_DATA, else a cache folder", "DIR")
]
TrackingUri = Annotated[str | None, option("MLflow's address.", "MLFLOW_TRACKING_URI, else ./mlruns", "URI")]
DryRun = Annotated[bool, option("Print the estimate of time, memory and disk, and stop.", flag="--dry-run")]


def load_plugins(files: Iterable[Path]) -> None:
    """Import the user's own files, before any name is looked up."""
    from pfl_ops.registry import load_plugin

    for file in files:
        load_plugin(file)


def experiment_of(
    algorithm: str | None,
    flags: Mapping[str, str | None],
    *,
    config: Path | None = None,
    preset: str | None = None,
    sets: Iterable[str] = (),
    plugins: Iterable[Path] = (),
    data_dir: str | None = None,
) -> "Experiment":
    """The experiment that a command line describes; every name is checked, nothing is written.

    Raises:
        PflOpsError: anything in it that does not exist or is not allowed.
    """
    from pfl_ops.config.experiment import Experiment
    from pfl_ops.config.precedence import assignments

    check_data_dir(data_dir)
    load_plugins(plugins)
    given = settings_of(EXPERIMENT, flags)
    for path, value in assignments(sets).items():
        if path in given:
            flag = next(flag.name for flag in EXPERIMENT if flag.path == path)
            raise PflOpsError(f"--{flag} and --set {path}={echo(value)} say the same thing twice; give one of them")
        given[path] = value
    return Experiment.compose(algorithm, preset=preset, config=config, flags=given, data_dir=data_dir)


def searched_anyway(studies: Iterable["Settings"], *, config: Path | None, preset: str | None) -> str:
    """Return one line on the values of a file or preset whose settings a study searches; "": there are none.

    Flags and --set hold a setting at its value. A file does not: one that a study wrote names all settings.
    """
    from pfl_ops.config import precedence, presets, yaml_files

    file = yaml_files.read(config) if config else {}
    found: dict[str, dict[str, None]] = {}
    for study in studies:
        experiment = study.experiment
        chosen = {"algorithm.name": experiment.algorithm.name, "data.name": experiment.data.name}
        named = [(f"--preset {preset}", presets.preset(preset, chosen))] if preset else []
        layers = [*named, (f"--config {config}", file)]
        for path in study.space.keys:
            sources = [source for source, values in layers if precedence.last([("", values)], path) is not None]
            if sources:
                found.setdefault(sources[-1], {})[path] = None
    told = [f"{', '.join(paths)} ({source})" for source, paths in found.items()]
    return f"searched, not held at the value given: {'; '.join(told)}; a flag or --set holds a setting" if told else ""


def without_effect(idle: Mapping[str, Mapping[str, str]]) -> str:
    """Return one line on settings that change no result; "": there are none.

    Args:
        idle: method -> path -> why, of settings that were given or are searched.

    >>> why = {"participation.weighting": "the method does not read it"}
    >>> without_effect({"fedavg": {}, "fedas": why, "apfl": why})
    'without effect: participation.weighting on fedas, apfl (the method does not read it)'
    """
    found = by_key((told, method) for method, reasons in idle.items() for told in reasons.items())
    on = {told: f" on {', '.join(methods)}" if len(idle) > 1 else "" for told, methods in found.items()}
    lines = [f"{path}{on[path, why]} ({why})" for path, why in found]
    return f"without effect: {'; '.join(lines)}" if lines else ""


def unread(experiment: "Experiment", given: Iterable[str]) -> dict[str, str]:
    """Return those of some settings that change no result: path -> why. One that is set to none is left out.

    >>> from pfl_ops.config.experiment import Experiment
    >>> given = {"training.local_epochs": None, "training.local_steps": 3, "data.test_share": 0.5}
    >>> unread(Experiment.of("fedavg", **given), given)
    {'data.test_share': 'read with data.pooled only'}
    """
    idle, settings = experiment.without_effect(), experiment.flat
    return {path: idle[path] for path in given if path in idle and settings[path] is not None}


def of_file(config: Path | None, experiment: "Experiment") -> list[str]:
    """Return the settings to which a file gives another value than their default; one that a study wrote names all."""
    from pfl_ops.config import precedence, yaml_files

    layers = [("", yaml_files.read(config) if config else {})]
    changed = [setting.path for setting in experiment.fields() if setting.value != setting.default]
    return [path for path in changed if precedence.last(layers, path) is not None]


def unread_by(studies: Iterable["Settings"], held: Iterable[str], config: Path | None) -> str:
    """Return the line of `without_effect` on settings that a command line or a file sets, and on those that studies
    search."""
    from pfl_ops import spaces

    given, found = list(held), {}
    for study in studies:
        settings = study.experiment.flat
        stated = [*given, *of_file(config, study.experiment)]
        paths = [*(path for path in stated if settings.get(path) is not None), *study.space.keys]
        found[study.experiment.algorithm.name] = spaces.idle(study.space, study.in_environments, paths)
    return without_effect(found)


def execution_of(flags: Mapping[str, str | None]) -> "Execution":
    """Return the execution that the flags ask for."""
    from pydantic import ValidationError

    from pfl_ops.config.paths import explain
    from pfl_ops.federation.settings import Execution

    given = settings_of(EXECUTION, flags)
    try:
        return Execution.model_validate(given)
    except ValidationError as error:
        raise explain(error, Execution, given, prefix="--") from error
