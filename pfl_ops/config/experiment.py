"""One experiment, one object: frozen, validated, hashable; whatever is run, tuned or published goes through it.

Files, flags, search spaces and suites all say {path: value}, and all end in `Experiment.override` or `.compose`.
Importing this imports no torch; naming a method or a network does.
"""

from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.config import precedence, yaml_files
from pfl_ops.config.arguments import unknown_setting
from pfl_ops.config.conflicts import check_characters, check_required, check_scaling
from pfl_ops.config.fields import Kinds, Setting, Tree, settings, show
from pfl_ops.config.identity import fingerprint, identity
from pfl_ops.config.paths import explain, nest
from pfl_ops.config.presets import preset as preset_values
from pfl_ops.config.without_effect import without_effect
from pfl_ops.data.datasets import DataSection
from pfl_ops.data.partition import PARTITIONS, Scheme
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Evaluation, Execution, Participation, Training, UniformParticipation
from pfl_ops.models import MODELS, ModelSection
from pfl_ops.section import MOST_SEED, Section, check_last_seed, plain_values

if TYPE_CHECKING:
    from pfl_ops.algorithms.base import Algorithm
    from pfl_ops.data.clients import Clients
    from pfl_ops.data.datasets import Dataset
    from pfl_ops.federation.loop.simulate import Simulation
else:
    Algorithm = Any  # its module imports torch

PARTITION = Kinds("kind", PARTITIONS, frozenset(Scheme.model_fields) - {"kind"}, precedence.PARTITION)
MODEL = Kinds("name", MODELS, frozenset(ModelSection.model_fields) - {"name"})
ALGORITHM = Kinds("name", ALGORITHMS)

FLAGS = {
    "dataset": "data.name",
    "train_size": "data.train_size",
    "partition": "partition.kind",
    "alpha": "partition.alpha",
    "clients": "partition.clients",
    "model": "model.name",
    "rounds": "training.rounds",
    "local_epochs": "training.local_epochs",
    "local_steps": "training.local_steps",
    "batch_size": "training.batch_size",
    "optimiser": "training.optimiser",
    "lr": "training.lr",
    "precision": "training.precision",
    "participation": "participation.share",
    "seed": "seed",
    "repetitions": "repetitions",
}
"""Short names of the settings that people change most: flags of the commands, arguments of `Experiment.of`."""

NAMES = ("algorithm.name", "data.name", "partition.kind", "model.name")
"""Settings that decide the defaults of others."""

CARDS = "pfl_ops.display.setting_cards"
"""Makes the HTML that a notebook shows: a layer above this one, which is imported when a notebook asks for it."""


class Experiment(Section):
    """All settings that decide a simulation's result; `Execution`, the place and way of computing, is not among them.

    A partial mapping is enough: what it leaves out is the method's own recommendation, else the field's default; the
    network is the one recommended for the data set. The result states every value.

    Raises:
        PflOpsError: one line a problem: a name that does not exist (with the nearest), a value that is not allowed
            (with what is), or a setting without which the method is not itself.

    >>> experiment = Experiment.model_validate({"algorithm": {"name": "fedavg"}, "data": {"name": "mnist"}})
    >>> experiment.model.name, experiment.partition.kind, experiment.training.lr  # recommended for mnist; defaults
    ('cnn', 'lsqs', 0.05)
    """

    data: DataSection = Field(default_factory=DataSection, description="which samples")
    partition: Annotated[Scheme, PARTITION] = Field(description="how the samples are split over clients")
    model: Annotated[ModelSection, MODEL] = Field(description="the network; by default the one for the data set")
    algorithm: Annotated[Algorithm, ALGORITHM] = Field(description="the method and its hyper-parameters")
    training: Training = Field(default_factory=Training, description="how a client trains in one round")
    participation: Participation = Field(
        default_factory=UniformParticipation, description="how a round's clients are drawn"
    )
    evaluation: Evaluation = Field(default_factory=Evaluation, description="what is scored, on which data, how often")
    seed: int = Field(
        0, ge=0, le=MOST_SEED, description="of the first repetition; partition, splits and subset follow it"
    )
    repetitions: int = Field(1, ge=1, le=10_000, description="runs with the seeds seed, seed + 1, …")

    # -- making one ---------------------------------------------------------------------------------------------------

    @classmethod
    def compose(
        cls,
        algorithm: str | None = None,
        *,
        preset: str | None = None,
        config: Mapping[str, Any] | Path | str | None = None,
        flags: Mapping[str, Any] | None = None,
        data_dir: str | None = None,
    ) -> Self:
        """Merge settings: field defaults < the method's `recommended` < preset < file < flags.

        Args:
            algorithm: name of the method; the file may name it instead.
            preset: name of a preset (`presets.presets()` lists them).
            config: a YAML file, or its mapping.
            flags: {path: value}; values may be text.
            data_dir: the folder of a data file of the user's own, whose form decides the recommended network.

        >>> experiment = Experiment.compose(
        ...     "fliu", config={"training": {"lr": 0.2, "rounds": 7}}, flags={"training.rounds": "3"})
        >>> experiment.training.lr, experiment.training.rounds  # the file; the flag is stronger
        (0.2, 3)
        """
        file = yaml_files.read(Path(config)) if isinstance(config, (str, Path)) else dict(config or {})
        source = str(config) if isinstance(config, (str, Path)) else ""
        top = dict(flags or {})
        if algorithm is not None:
            top = nest(top, {"algorithm.name": algorithm})
        given = [(source, file), ("", top)]
        if preset is not None:
            named = {path: precedence.last(given, path) for path in ("algorithm.name", "data.name")}
            given.insert(0, (f"preset {preset}", preset_values(preset, named)))
        tree = precedence.merge(cls, given, data_dir)
        try:
            return cls.model_validate(tree)
        except PflOpsError as error:
            lines = [precedence.with_source(given, line) for line in str(error).splitlines()]
            raise PflOpsError("\n".join(lines)) from error

    @classmethod
    def of(cls, algorithm: str, *, preset: str | None = None, **flags: Any) -> Self:
        """Return an experiment from settings by short name or by path; see `FLAGS` for short names.

        Raises:
            PflOpsError: a name or a value that does not exist; the message has the nearest.

        >>> experiment = Experiment.of("pfedme", dataset="mnist", rounds=5, **{"algorithm.beta": 0.5})
        >>> experiment.training.rounds, experiment.algorithm.beta
        (5, 0.5)
        >>> Experiment.of("pfedme", rouns=3)
        Traceback (most recent call last):
        pfl_ops.config.arguments.ArgumentError: no setting named 'rouns'. Did you mean 'rounds'? (pfl-ops list settings)
        """
        known = FLAGS.keys() | cls.model_fields.keys()
        for name in flags:
            if name not in known and "." not in name:
                raise unknown_setting(algorithm, name, FLAGS, [setting.path for setting in settings(cls)])
        return cls.compose(
            algorithm, preset=preset, flags={FLAGS.get(name, name): value for name, value in flags.items()}
        )

    @classmethod
    def from_yaml(cls, source: Path | str) -> Self:
        """Read an experiment from a file, or from text (anything with a line break).

        >>> experiment = Experiment.from_yaml("algorithm: {name: ditto, lam: 0.5}\\ntraining: {rounds: 3}\\n")
        >>> experiment.algorithm.lam, experiment.training.rounds
        (0.5, 3)
        """
        if isinstance(source, str) and "\n" in source:
            return cls.compose(config=yaml_files.mapping(source, "experiment"))
        return cls.compose(config=Path(source))

    @model_validator(mode="wrap")
    @classmethod
    def _whole(cls, values: Any, build: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(values, cls):
            return values
        if not isinstance(values, Mapping):
            raise PflOpsError(f"an experiment maps settings to values, got {show(values)}")
        tree = precedence.merge(cls, [("", values)])
        try:
            made = build(tree)
        except ValidationError as error:
            raise explain(error, cls, tree) from error
        check_required(made)
        check_scaling(made)
        check_last_seed(made.seed, made.repetitions, "repetitions")
        return made

    # -- changing one -------------------------------------------------------------------------------------------------

    def override(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy in which each path has its new value; all at once, validated once, nothing else moves.

        A new `kind` or `name` resets the fields of the old one only; what every kind has stays. Local steps clear local
        epochs and the other way round. `model.name: none` takes the network recommended for the data set.

        Args:
            changes: {path: value}, values as a file or a flag has them; a mapping sets the fields that it names.
        Raises:
            PflOpsError: as for the class.

        >>> experiment = Experiment.of("fedavg", dataset="digits", model="linear")
        >>> longer = experiment.override({"training.rounds": 9, "training.local_steps": 4})
        >>> longer.training.rounds, longer.training.local_epochs, experiment.training.local_epochs
        (9, None, 1)
        """
        return type(self).model_validate(precedence.change(type(self), self.model_dump(), changes))

    def repetition(self, i: int) -> Self:
        """Return the i-th run, from 0: seed + i, one repetition.

        >>> second = Experiment.of("fedavg", seed=10, repetitions=3).repetition(1)
        >>> second.seed, second.repetitions
        (11, 1)
        """
        return self.override({"seed": self.seed + i, "repetitions": 1})

    def renewed(self) -> Self:
        """Return the experiment with method, network and partition as they are registered now; itself if they are.

        A cell of a notebook that is run again, or an edited plug-in that is loaded again, registers other code under
        the same name. An experiment that was made before keeps the earlier class.

        Raises:
            PflOpsError: the code that is registered now does not have a setting, or refuses its value.

        >>> experiment = Experiment.of("fedavg", dataset="digits")
        >>> experiment.renewed() is experiment
        True
        """
        registered = (
            type(self.algorithm) is ALGORITHMS.get(self.algorithm.name)
            and type(self.partition) is PARTITIONS.get(self.partition.kind)
            and type(self.model) is MODELS.get(self.model.name)
        )
        return self if registered else type(self).model_validate(self.model_dump())

    # -- reading one --------------------------------------------------------------------------------------------------

    def fields(self) -> list[Setting]:
        """Return every path with its value, default, allowed values, symbol and meaning.

        >>> fields = {field.path: field for field in Experiment.of("ditto", lr=0.5).fields()}
        >>> rate = fields["training.lr"]
        >>> rate.symbol, rate.value, rate.default, rate.description
        ('η', 0.5, 0.05, 'local learning rate of the first round')
        """
        return list(settings(self))

    def paths(self) -> list[str]:
        """Return every path that exists with the kinds as they are.

        >>> [path for path in Experiment.of("fedavg", model="mlp").paths() if path.startswith("model")]
        ['model.name', 'model.weights', 'model.hidden']
        """
        return [setting.path for setting in settings(self)]

    def setting(self, path: str, given: Mapping[str, Any] | None = None) -> Setting:
        """Return the value at `path` and its allowed values; `given` sets kinds first, for a path that only they have.

        Raises:
            PflOpsError: there is no such path, or it is a section.

        >>> experiment = Experiment.of("fliu", dataset="digits")
        >>> low = experiment.setting("algorithm.gamma.low", {"algorithm.gamma.kind": "range"})
        >>> low.check("0.3"), low.allowed.low, low.allowed.high
        (0.3, 0, 1)
        """
        there = self.override(given) if given else self
        for setting in settings(there):
            if setting.path == path:
                return setting
        there.override({path: None})  # says what is wrong with the path
        raise PflOpsError(f"'{path}' is a section, not a setting")

    def get(self, path: str) -> Any:
        """Return the value at `path`; None if no such path exists with the kinds as they are.

        >>> experiment = Experiment.of("fedavg", partition="path")
        >>> experiment.get("partition.classes_per_client"), experiment.get("partition.alpha")
        (2, None)
        """
        value: Any = self
        for name in path.split("."):
            value = getattr(value, name, None)
        return value

    @property
    def resolved(self) -> Tree:
        """Every value, nested, as JSON has them.

        >>> Experiment.of("fliu", dataset="digits").resolved["algorithm"]
        {'name': 'fliu', 'gamma': {'kind': 'adaptive'}}
        """
        return plain_values(self)

    @property
    def flat(self) -> dict[str, Any]:
        """Every value by its path; of a set a list of its values, in the order of their texts.

        >>> flat = Experiment.of("fliu", dataset="digits", **{"algorithm.gamma": {"kind": "fixed", "value": 0.5}}).flat
        >>> flat["algorithm.gamma.kind"], flat["algorithm.gamma.value"]
        ('fixed', 0.5)
        """
        return {setting.path: _in_order(setting.value) for setting in settings(self)}

    @property
    def label(self) -> str:
        """<algorithm>-<dataset>-<partition>, for names of studies and files.

        >>> Experiment.of("ditto", dataset="digits", partition="path").label
        'ditto-digits-path'
        """
        return f"{self.algorithm.name}-{self.data.label}-{self.partition.kind}"

    def to_yaml(self) -> str:
        """Return every value as the text of a file that `from_yaml` and `--config` read.

        >>> experiment = Experiment.of("fedavg", dataset="digits", lr=0.25)
        >>> [line for line in experiment.to_yaml().splitlines() if line.strip().startswith("lr")]
        ['  lr: 0.25', '  lr_decay: 1.0']
        >>> Experiment.from_yaml(experiment.to_yaml()) == experiment
        True
        """
        about = f"# pfl-ops experiment: {self.label}. Every value is stated; run it with: pfl-ops run --config FILE\n"
        return about + yaml_files.dump(_tags_first(self.resolved))

    def changed(self) -> dict[str, tuple[Any, Any]]:
        """Return path -> (value, default) of the settings that differ from the defaults of the same names.

        The names are those of method, data, partition and network; they, `seed` and `repetitions` are left out, but for
        a network that is not the data set's. The default is None if there is no such setting by default. A recorded
        partition has no defaults: {}.

        >>> Experiment.of("fliu", dataset="digits", lr=0.3).changed()  # FLIU recommends 0.001
        {'training.lr': (0.3, 0.001)}
        """
        given = {path: self.get(path) for path in NAMES}
        try:
            usual = type(self).compose(flags=given).flat
            del given["model.name"]
            usual["model.name"] = type(self).compose(flags=given).model.name
        except PflOpsError:  # a partition from a file: nothing is usual about it
            return {}
        apart = {*NAMES, "seed", "repetitions"} - {"model.name"}
        return {
            path: (value, usual.get(path))
            for path, value in self.flat.items()
            if path not in apart and (path not in usual or usual[path] != value)
        }

    def ignored(self) -> tuple[str, ...]:
        """Return the paths of settings that have no effect on the method here.

        >>> [Experiment.of("scaff_pd", participation=share).ignored() for share in (1.0, 0.5)]
        [('participation.weighting',), ()]
        """
        everyone = self.participation.share == 1
        return (*self.algorithm.ignored(), *(self.algorithm.ignores_with_all if everyone else ()))

    def without_effect(self) -> dict[str, str]:
        """Return the settings that change no result here: path -> why; those of `ignored`, and others.

        >>> Experiment.of("fedas").without_effect()["participation.weighting"]
        'the method does not read it'
        """
        return without_effect(self)

    def _repr_html_(self) -> str:
        card: str = import_module(CARDS).experiment_card(self)
        return card

    # -- what it is ---------------------------------------------------------------------------------------------------

    def identity(self, data_dir: str | None = None) -> Tree:
        """Return all that decides a run's result, as plain values: contents of files by digest, never by path.

        >>> found = Experiment.of("fedavg", dataset="digits").identity()
        >>> sorted(found["code"]), len(found["data"]["digest"]), "repetitions" in found
        (['algorithm', 'held_out', 'model', 'partition'], 64, False)
        """
        return identity(self.renewed(), data_dir)

    def digest(self, data_dir: str | None = None, *, seed: bool = True) -> str:
        """SHA-256 of the identity, in hexadecimal; without the seed it names all repetitions of one setting.

        Args:
            data_dir: the folder of the data; none: as `data.datasets.load` finds them.
            seed: True: the seed is part of it.

        >>> one, other = (Experiment.of("fedavg", dataset="digits", seed=seed) for seed in (0, 1))
        >>> one.digest() == other.digest(), one.digest(seed=False) == other.digest(seed=False)
        (False, True)
        """
        return fingerprint(identity(self.renewed(), data_dir), without=() if seed else ("seed",))

    @property
    def hash(self) -> str:
        """Digest of the run: the same hash, the same result. Reads the data set's content from the usual places.

        >>> experiment = Experiment.of("fedavg", dataset="digits")
        >>> experiment.hash == experiment.digest(), experiment.hash == experiment.override({"seed": 1}).hash
        (True, False)
        """
        return self.digest()

    @property
    def group_hash(self) -> str:
        """Digest of the setting: as `hash`, without the seed.

        >>> experiment = Experiment.of("fedavg", dataset="digits")
        >>> experiment.group_hash == experiment.override({"seed": 1}).group_hash
        True
        """
        return self.digest(seed=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by value: some sections are classes made at run time, which the other process makes for itself."""
        return type(self).model_validate, (self.model_dump(),)

    # -- running one --------------------------------------------------------------------------------------------------

    def clients(self, dataset: "Dataset | None" = None, *, data_dir: str | None = None) -> "Clients":
        """Divide the samples of the first repetition over its clients; nothing is trained.

        Args:
            dataset: the samples; none: as `data.datasets.load` finds them.
            data_dir: the folder of the data; none: as `data.datasets.load` finds them.
        Raises:
            PflOpsError: data are missing, or the partition is impossible.

        >>> clients = Experiment.of("fedavg", dataset="digits", partition="path", clients=5).clients()
        >>> clients.train.n_clients, len(clients.train), (clients.table > 0).sum(axis=1).tolist()  # two classes each
        (5, 1438, [2, 2, 2, 2, 2])
        """
        from pfl_ops.data.clients import build_clients
        from pfl_ops.data.datasets import load

        return build_clients(
            dataset or load(self.data, data_dir=data_dir),
            self.renewed().partition,
            seed=self.seed,
            split=self.evaluation.split,
            validation_share=self.evaluation.validation_share,
            pooled=self.data.pooled,
            test_share=self.data.test_share,
        )

    def build(
        self,
        *,
        data_dir: str | None = None,
        execution: Execution | None = None,
        folder: Path | None = None,
        resume: bool = True,
        stages: Collection[str] | None = None,
        final: bool = True,
        adapt: bool = False,
    ) -> "Simulation":
        """Build the simulation of the first repetition: data -> clients -> network -> rounds.

        Args:
            data_dir: the folder of the data; none: as `data.datasets.load` finds them.
            execution: device, execution backend and processes; none: all automatic.
            folder: for checkpoints; none: nothing is written. resume: go on from those that are there.
            stages: the stages to score; none: all. final: score everything in full once the rounds are over.
            adapt: compare a timed choice of execution with the first rounds, and choose again where it was wrong.
        Raises:
            PflOpsError: data are missing, the partition is impossible, or the network does not fit.

        >>> experiment = Experiment.of("fedavg", dataset="digits", train_size=200, model="linear", rounds=1)
        >>> simulation = experiment.build(execution=Execution(device="cpu", way="loop", workers=1))
        >>> [record.round for record in simulation.run()], tuple(simulation.state["central"].shape)  # 64 · 10 + 10
        ([0, 1], (650,))
        """
        from pfl_ops.config.final_samples import final_samples
        from pfl_ops.config.samples import samples
        from pfl_ops.federation.loop.simulate import Simulation
        from pfl_ops.models.base import build, example_of, stackable

        experiment = self.renewed()
        dataset = samples(experiment, data_dir, execution)
        check_characters(experiment, dataset)
        clients = experiment.clients(dataset)
        final_number = final_samples(experiment, dataset)
        network = build(experiment.model, clients.shape, clients.n_classes, experiment.seed)
        return Simulation(
            network,
            experiment.algorithm,
            clients,
            experiment.training,
            experiment.participation,
            experiment.evaluation.model_copy(update={"final": "all" if final_number is None else final_number}),
            seed=experiment.seed,
            execution=execution,
            stackable=stackable(network, example_of(clients.shape)),
            folder=folder,
            identity=experiment.digest(data_dir) if folder is not None else "",
            stages=stages,
            final=final,
            resume=resume,
            adapt=adapt,
        )


def _tags_first(tree: Any) -> Any:
    """The same values, `kind` and `name` at the head of their section, where a reader looks for them."""
    if not isinstance(tree, dict):
        return tree
    return {key: _tags_first(tree[key]) for key in sorted(tree, key=lambda key: key not in ("kind", "name"))}


def _in_order(value: Any) -> Any:
    return sorted(value, key=repr) if isinstance(value, set | frozenset) else value
