"""One door: what an experiment accepts, how it is changed, and how it refuses."""

import pickle
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.algorithms.base import Algorithm, Models, Round, Stages, State, Task, Update, register
from pfl_ops.config.experiment import FLAGS, Experiment
from pfl_ops.config.fields import settings
from pfl_ops.config.precedence import assignments
from pfl_ops.config.presets import presets
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Execution, Training
from pfl_ops.section import Section


class Held(Section):
    kind: Literal["held"] = "held"
    value: float = Field(0.5, ge=0, le=1, title="γ", description="of every client")


class Between(Section):
    kind: Literal["between"] = "between"
    low: float = Field(0.1, ge=0, le=1, title="γ", description="smallest")
    high: float = Field(0.5, ge=0, le=1, title="γ", description="largest")


@register("exp_tiny")
class Tiny(Algorithm):
    """A method with a bounded field and a schedule."""

    recommended: ClassVar = {"training.lr": 0.2, "training.local_epochs": 3}

    lam: float = Field(1.0, ge=0, title="λ", description="pull")
    gamma: Annotated[Held | Between, Field(discriminator="kind", description="the schedule")] = Held()

    def init(self, task: Any) -> Any: ...
    def round(self, s: Any, r: Any) -> Any: ...


@register("exp_strict")
class Strict(Algorithm):
    """A method that needs plain SGD."""

    requires: ClassVar = {"training.optimiser": "sgd", "training.momentum": 0}
    because = "its control variates divide by η"

    reach: int = Field(2, ge=1, description="of its own")

    def init(self, task: Any) -> Any: ...
    def round(self, s: Any, r: Any) -> Any: ...


@register("exp_few")
class Few(Tiny):
    """A method that recommends settings which every kind of participation, or of partition, has."""

    recommended: ClassVar = {"participation.share": 0.1, "partition.clients": 50}


@pytest.fixture(scope="module")
def tiny() -> Experiment:
    return Experiment.of("exp_tiny")


def refusal(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(PflOpsError) as error:
        call(*args, **kwargs)
    return str(error.value)


# -- defaults and where they come from ----------------------------------------------------------------------------


def test_defaults_are_sized_for_a_laptop() -> None:
    e = Experiment.of("exp_strict")
    assert (e.data.name, e.data.train_size, e.model.name) == ("digits", 12_000, "cnn_tiny")
    assert (e.partition.kind, e.partition.clients, e.get("partition.alpha")) == ("lsqs", 20, 1.0)
    assert (e.training.rounds, e.training.local_epochs, e.training.batch_size) == (20, 1, 50)
    assert (e.evaluation.global_every, e.evaluation.subset, e.seed, e.repetitions) == (5, "auto", 0, 1)


@pytest.mark.parametrize(("data", "model"), [("digits", "cnn_tiny"), ("mnist", "cnn"), ("cifar10", "cnn_cifar")])
def test_the_network_is_the_data_set_s_unless_named(data: str, model: str) -> None:
    assert Experiment.of("exp_tiny", dataset=data).model.name == model
    assert Experiment.of("exp_tiny", dataset=data, model="mlp").model.name == "mlp"
    assert Experiment.of("exp_tiny", dataset=data).resolved["model"]["name"] == model  # explicit from the start


def test_an_override_of_the_data_leaves_the_network_unless_asked(tiny: Experiment) -> None:
    assert tiny.override({"data.name": "mnist"}).model.name == "cnn_tiny"
    assert tiny.override({"data.name": "mnist", "model.name": None}).model.name == "cnn"
    assert tiny.override({"data.name": "mnist", "model.name": "none"}).model.name == "cnn"


def test_order_of_values(tmp_path: Path) -> None:
    """Defaults < recommended < preset < file < flags, each seen where the stronger ones are silent."""
    file = tmp_path / "mine.yaml"
    file.write_text("training:\n  rounds: 7\n  batch_size: 8\n  lr_decay: 0.5\n")
    flags = {"training.lr_decay": 0.25}
    plain = Experiment.compose("exp_tiny").training
    assert (plain.lr, plain.local_epochs, plain.momentum) == (0.2, 3, 0.0)
    preset = Experiment.compose("exp_tiny", preset="paper").training
    assert (preset.lr, preset.local_epochs, preset.rounds) == (0.01, 5, 100)
    t = Experiment.compose("exp_tiny", preset="paper", config=file, flags=flags).training
    assert (t.local_epochs, t.rounds, t.batch_size, t.lr_decay) == (5, 7, 8, 0.25)
    assert Experiment(training={"lr": 0.7}, algorithm={"name": "exp_tiny"}).training == Training(lr=0.7, local_epochs=3)


def test_recommended_steps_give_way_to_epochs_from_a_stronger_layer() -> None:
    @register("exp_steps")
    class Steps(Tiny):
        """Recommends steps."""

        recommended: ClassVar = {"training.local_steps": 4}

    assert (Experiment.of("exp_steps").training.local_steps, Experiment.of("exp_steps").training.local_epochs) == (
        4,
        None,
    )
    t = Experiment.of("exp_steps", local_epochs=2).training
    assert (t.local_steps, t.local_epochs) == (None, 2)


def test_a_file_for_one_method_serves_another() -> None:
    config = {"algorithm": {"name": "exp_tiny", "lam": 0.3}, "training": {"rounds": 9}}
    e = Experiment.compose("exp_strict", config=config)
    assert (e.algorithm, e.training.rounds) == (Strict(), 9)
    assert Experiment.compose(config=config).algorithm == Tiny(lam=0.3)
    assert "needs algorithm.name" in refusal(Experiment.compose, config={"seed": 1})


# -- presets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "data", "optimiser", "lr", "decay"),
    [
        ("local", "mnist", "adam", 0.01, 0.99),
        ("fedavg", "mnist", "sgd", 0.01, 0.99),
        ("fedavg", "cifar10", "adam", 0.001, 0.99),
        ("fliu", "mnist", "adam", 0.01, 0.99),
        ("fliu", "cifar10", "adam", 0.001, 0.99),
        ("apfl", "mnist", "sgd", 0.1, 0.99),
        ("apfl", "cifar10", "sgd", 0.1, 0.99),
        ("fedfomo", "mnist", "sgd", 0.01, 1.0),
        ("fedfomo", "cifar10", "sgd", 0.1, 1.0),
        ("scaffold", "mnist", "sgd", 0.01, 0.99),
    ],
)
def test_the_paper_s_own_setting(algorithm: str, data: str, optimiser: str, lr: float, decay: float) -> None:
    e = Experiment.of(algorithm, preset="paper", dataset=data)
    assert (e.training.optimiser, e.training.lr, e.training.lr_decay) == (optimiser, lr, decay)
    assert (e.data.train_size, e.partition.clients, e.training.rounds, e.training.local_epochs) == (None, 100, 100, 5)
    assert (e.training.batch_size, e.participation.share, e.repetitions) == (50, 1.0, 3)
    assert (e.evaluation.global_every, e.evaluation.subset) == (1, 1000)
    assert e.model.name == {"mnist": "cnn", "cifar10": "cnn_cifar"}[data]


@pytest.mark.parametrize("algorithm", list(ALGORITHMS.builtin))
def test_every_method_takes_its_defaults_and_every_preset(algorithm: str) -> None:
    for name in [None, *presets()]:
        assert Experiment.compose(algorithm, preset=name).algorithm.name == algorithm


def test_a_flag_beats_the_preset_and_its_rules() -> None:
    e = Experiment.of("exp_tiny", preset="paper", dataset="cifar10", lr=0.5, clients=10, partition="path")
    assert (e.training.lr, e.partition.clients, e.partition.kind) == (0.5, 10, "path")
    assert refusal(Experiment.of, "exp_tiny", preset="papr") == "no preset named 'papr'. Did you mean 'paper'?"


# -- override -----------------------------------------------------------------------------------------------------


def test_an_override_moves_what_it_names_and_nothing_else(tiny: Experiment) -> None:
    new = tiny.override({"training.lr": 0.7, "algorithm.lam": 0.3, "seed": 4})
    changed = {path for path, value in new.flat.items() if value != tiny.flat[path]}
    assert changed == {"training.lr", "algorithm.lam", "seed"}
    assert tiny.training.lr == 0.2
    assert new.override({}) == new


def test_it_is_validated_once_as_a_whole(tiny: Experiment) -> None:
    momentum = tiny.override({"training.momentum": 0.9})
    both = momentum.override(
        {"training.optimiser": "adam", "training.momentum": 0}
    )  # either alone would be refused half-way
    assert (both.training.optimiser, both.training.momentum) == ("adam", 0)
    assert refusal(momentum.override, {"training.optimiser": "adam"}) == (
        "training: momentum belongs to optimiser sgd, not adam"
    )


def test_a_new_kind_resets_the_old_kind_s_fields_and_keeps_the_shared_ones(tiny: Experiment) -> None:
    old = tiny.override({"partition.alpha": 0.3, "partition.clients": 7, "partition.seed": 5})
    path = old.override({"partition.kind": "path", "partition.classes_per_client": 3})
    assert (path.partition.clients, path.partition.seed, path.get("partition.classes_per_client")) == (7, 5, 3)
    back = path.override({"partition.kind": "lsqs"})
    assert (back.partition.clients, back.partition.seed, back.get("partition.alpha")) == (7, 5, 1.0)
    assert old.override({"partition.kind": "lsqs"}) == old  # no change, no reset

    share = tiny.override({"participation.share": 0.5, "participation.weighting": "uniform"})
    drawn = share.override({"participation.kind": "dirichlet", "participation.gamma": 0.2})
    assert (drawn.participation.share, drawn.participation.weighting) == (0.5, "uniform")
    assert drawn.override({"participation.kind": "uniform"}) == share


def test_nested_kinds_follow_the_same_rules(tiny: Experiment) -> None:
    e = tiny.override({"algorithm.gamma.kind": "between", "algorithm.gamma.low": 0.2})
    assert e.algorithm == Tiny(gamma=Between(low=0.2))
    assert e.override({"algorithm.gamma.kind": "held"}).algorithm == Tiny()
    assert e.override({"algorithm.name": "exp_strict"}).algorithm == Strict()


def test_a_shared_field_left_at_the_old_kind_s_default_takes_the_new_kind_s(tiny: Experiment) -> None:
    """20 clients are a default of drawn partitions; one that brings its own clients has no such default."""
    assert tiny.override({"partition.kind": "natural"}).partition.clients is None
    assert tiny.override({"partition.clients": 7}).override({"partition.kind": "natural"}).partition.clients == 7


def test_a_new_kind_brings_no_recommended_value_back() -> None:
    """A share of 1 and 20 clients were stated, which are the kinds' defaults; the method recommends others."""
    stated = Experiment.of("exp_few", participation=1.0, clients=20)
    changed = stated.override({"participation.kind": "dirichlet", "partition.kind": "path"})
    assert (changed.participation.share, changed.partition.clients) == (1.0, 20)

    file = {"algorithm": {"name": "exp_few"}, "participation": {"share": 1.0}}
    merged = Experiment.compose(config=file, flags={"participation.kind": "dirichlet"})
    assert (merged.participation.share, merged.partition.clients) == (1.0, 50)


def test_steps_clear_epochs_and_epochs_clear_steps(tiny: Experiment) -> None:
    steps = tiny.override({"training.local_steps": 5})
    assert (steps.training.local_steps, steps.training.local_epochs) == (5, None)
    epochs = steps.override({"training.local_epochs": 2})
    assert (epochs.training.local_steps, epochs.training.local_epochs) == (None, 2)
    same = tiny.override({"training.local_epochs": 2, "training.local_steps": None})
    assert same == epochs
    assert Experiment(algorithm={"name": "exp_tiny"}, training={"local_steps": 5}).training.local_epochs is None
    assert refusal(tiny.override, {"training.local_epochs": 2, "training.local_steps": 5}) == (
        "training.local_epochs and training.local_steps exclude each other; set one of them"
    )
    assert refusal(tiny.override, {"training.local_epochs": "none"}) == (
        "training: give local_epochs or local_steps, one of them"
    )


def test_a_list_may_be_its_only_entry_or_a_word(tiny: Experiment) -> None:
    e = tiny.override(
        assignments(["evaluation.synthetic=sweep", "evaluation.eps=0.9", "evaluation.targets=[0.8, 0.9]"])
    )
    assert e.evaluation.synthetic == (0, 1, 10, 30, 50, 70, 100)
    assert (e.evaluation.eps, e.evaluation.targets) == ((0.9,), (0.8, 0.9))
    assert Experiment.from_yaml(e.to_yaml()) == e
    for wrong in ({"evaluation.synthetic": "sweeep"}, {"evaluation.synthetic": True}):
        assert refusal(tiny.override, wrong).startswith(
            "evaluation.synthetic (c) must be a list, each an integer in [0, "
        )
    assert refusal(tiny.override, {"evaluation.eps": 1.5}) == (
        "evaluation.eps (ε) must be a list, each a number in (0, 1), got 1.5"
    )


def test_lists_of_the_same_entries_are_one_experiment(tiny: Experiment) -> None:
    """Another order, or an entry given twice, had another hash: the same run was computed again, and not compared."""
    lists = {"eps": (0.8, 0.9), "targets": (0.7, 0.8), "synthetic": (0, 50), "stages": ("L1", "G")}
    one = tiny.override({f"evaluation.{name}": value for name, value in lists.items()})
    other = tiny.override({f"evaluation.{name}": [*reversed(value), value[0]] for name, value in lists.items()})
    assert other == one and other.hash == one.hash
    assert {name: getattr(one.evaluation, name) for name in lists} == lists


def test_values_may_be_text_as_flags_and_files_have_them(tiny: Experiment) -> None:
    texts = ["training.lr=1e-3", "training.batch_size=none", "data.train_size=null", "data.pooled=true",
             "evaluation.synthetic=[1, 50]", "algorithm.gamma.kind=held", "algorithm.gamma.value=0.25"]  # fmt: skip
    e = tiny.override(assignments(texts))
    assert (e.training.lr, e.training.batch_size, e.data.train_size, e.data.pooled) == (0.001, None, None, True)
    assert (e.evaluation.synthetic, e.algorithm.gamma) == ((1, 50), Held(value=0.25))
    assert tiny.override({"training.lr": "1e-3"}) == tiny.override({"training.lr": 0.001})
    assert refusal(assignments, ["training.lr"]) == "--set needs path=value, as in training.lr=0.1; got 'training.lr'"
    assert refusal(assignments, ["seed=1", "seed=2"]) == "--set seed is given twice; give it once"


def test_sections_and_mappings_are_changes_too(tiny: Experiment) -> None:
    assert tiny.override({"algorithm": Strict(reach=3)}).algorithm == Strict(reach=3)
    assert tiny.override({"training": {"lr": 0.5}}) == tiny.override({"training.lr": 0.5})
    assert tiny.override({"algorithm.gamma": {"kind": "between"}}).algorithm == Tiny(gamma=Between())
    assert refusal(tiny.override, {"training": {"lr": 0.5}, "training.lr": 0.6}) == (
        "training.lr is given twice, as 0.5 and as 0.6"
    )


def test_a_recorded_partition_by_one_word(tiny: Experiment) -> None:
    e = tiny.override({"partition.kind": "file:/somewhere/recorded: 1"})
    assert (e.partition.kind, e.get("partition.path")) == ("file", "/somewhere/recorded: 1")


def test_a_wrong_value_names_the_file_that_has_it(tmp_path: Path) -> None:
    """A flag's value is not the file's; a preset is named like a file."""
    file = tmp_path / "fast.yaml"
    file.write_text("training: {lr: fast}\n")
    wrong = refusal(Experiment.compose, "fedavg", config=file)
    assert wrong == f"{file}: training.lr (η) must be a number in (0, 1,000,000], got 'fast'"
    wrong = refusal(Experiment.compose, "fedavg", config=file, flags={"training.lr": "slow"})
    assert wrong == "training.lr (η) must be a number in (0, 1,000,000], got 'slow'"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training.lrr": 1}, "no setting named 'training.lrr'. Did you mean 'training.lr'? (pfl-ops list settings)"),
        ({"lr": 1}, "no setting named 'lr'. Did you mean 'training.lr'? (pfl-ops list settings)"),
        ({"algorithm.gama.kind": 1}, "no setting named 'algorithm.gama'. Did you mean 'algorithm.gamma.kind'? "
                                     "(pfl-ops show exp_tiny)"),
        ({"training.xyzzy": 1}, "no setting named 'training.xyzzy'. training has: rounds, local_epochs, local_steps, "
                                "batch_size, optimiser, lr, lr_decay, momentum, weight_decay, precision, loss. "
                                "(pfl-ops list settings)"),
        # words of PFLlib and Flower, for which data.scaling, the section training and training.precision were suggested
        ({"training.clip": 1}, "no setting named 'training.clip'. training has: rounds, "),
        ({"training.gradient_clipping": 1}, "no setting named 'training.gradient_clipping'. training has: rounds, "),
        ({"training.learning_rate": 1}, "no setting named 'training.learning_rate'. Did you mean 'training.lr'? "),
        ({"participation.fraction": 1}, "no setting named 'participation.fraction'. "
                                        "Did you mean 'participation.share'? "),
        ({"training.alpha": 1}, "no setting named 'training.alpha'. Did you mean 'partition.alpha'? "),
        ({"training.client": 1}, "no setting named 'training.client'. Did you mean 'partition.clients'? "),
        ({"partition.s": 2}, "partition 'lsqs' has no s; partition.kind zipf has it"),
        ({"participation.gamma": 2}, "participation 'uniform' has no gamma; participation.kind dirichlet has it"),
        ({"algorithm.gamma.low": 0.1}, "algorithm.gamma 'held' has no low; algorithm.gamma.kind between has it"),
        ({"algorithm.reach": 3}, "algorithm 'exp_tiny' has no reach; algorithm.name exp_strict has it"),
        ({"partition.kind": "lsq"}, "no partition named 'lsq'. Did you mean 'lsqs'? (pfl-ops list partitions)"),
        ({"partition.kind": 3}, "partition.kind must be one of "),
        ({"algorithm.gamma.kind": "hold"}, "no algorithm.gamma.kind named 'hold'. Did you mean 'held'?"),
        ({"data.name": "mnits"}, "no dataset named 'mnits'. Did you mean 'mnist'? (pfl-ops list datasets)"),
        ({"training.lr": -1}, "training.lr (η) must be a number in (0, 1,000,000], got -1"),
        ({"training.lr": "fast"}, "training.lr (η) must be a number in (0, 1,000,000], got 'fast'"),
        ({"training.lr": float("nan")}, "training.lr (η) must be a number in (0, 1,000,000], got nan"),
        ({"training.rounds": 2.5}, "training.rounds (T) must be an integer in [1, 1,000,000], got 2.5"),
        ({"training.rounds": True}, "training.rounds (T) must be an integer in [1, 1,000,000], got true"),
        ({"training.rounds": None}, "training.rounds (T) must be an integer in [1, 1,000,000], got none"),
        ({"training.batch_size": 0}, "training.batch_size (B) must be an integer in [1, 1,000,000] or none, got 0"),
        ({"training.momentum": 1}, "training.momentum must be a number in [0, 1), got 1"),
        ({"training.optimiser": "adamw"}, "training.optimiser must be one of sgd, adam, got 'adamw'; "
                                          "did you mean 'adam'?"),
        ({"algorithm.gamma.value": 7}, "algorithm.gamma.value (γ) must be a number in [0, 1], got 7"),
        ({"evaluation.synthetic": [50, 101]}, "evaluation.synthetic (c) must be a list, each an integer in [0, 100], "
                                              "got 101"),
        ({"data.pooled": "perhaps"}, "data.pooled must be true or false, got 'perhaps'"),
        ({"seed": -1}, "seed must be an integer in [0, 4,294,967,295], got -1"),
        ({"training": 5}, "training is a section, set its fields (as training.rounds); got 5"),
        ({"participation": None}, "participation is a section, set its fields (as participation.kind); got none"),
    ],
)  # fmt: skip
def test_refusals_are_one_clear_line(tiny: Experiment, changes: dict[str, Any], message: str) -> None:
    got = refusal(tiny.override, changes)
    assert got == message or (message.endswith(" ") and got.startswith(message))
    assert "\n" not in got


def test_each_problem_has_its_line(tiny: Experiment) -> None:
    lines = refusal(tiny.override, {"training.lr": 0, "training.rounds": 0, "algorithm.lam": -1}).split("\n")
    assert sorted(lines) == [
        "algorithm.lam (λ) must be a number >= 0, got -1",
        "training.lr (η) must be a number in (0, 1,000,000], got 0",
        "training.rounds (T) must be an integer in [1, 1,000,000], got 0",
    ]


def test_it_is_frozen_and_closed(tiny: Experiment) -> None:
    with pytest.raises(PflOpsError, match="is not changed in place"):
        tiny.seed = 3  # type: ignore[misc]
    assert "no setting named 'rounds'. Did you mean 'training.rounds'?" in refusal(
        Experiment, algorithm={"name": "exp_tiny"}, rounds=3
    )
    assert refusal(Experiment.model_validate, [1]) == "an experiment maps settings to values, got [1]"


# -- what a method requires ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"training.optimiser": "adam"}, "adam"),
        ({"training.momentum": 0.9}, "0.9"),
        ({"training.optimiser": "adam", "algorithm.name": "exp_strict"}, "adam"),
    ],
)
def test_a_method_refuses_what_it_cannot_do(changes: dict[str, Any], got: str) -> None:
    assert refusal(Experiment.of("exp_strict").override, changes) == (
        "exp_strict needs training.optimiser=sgd and training.momentum=0 (its control variates divide by η); got " + got
    )


def test_requirements_may_be_several_values_or_anything_but_none() -> None:
    @register("exp_choosy")
    class Choosy(Tiny):
        """Takes two networks, and steps."""

        requires: ClassVar = {"model.name": ("mlp", "cnn"), "training.local_steps": ...}

    assert Experiment.of("exp_choosy", model="mlp", local_steps=2).model.name == "mlp"
    assert refusal(Experiment.of, "exp_choosy") == (
        "exp_choosy needs model.name=mlp|cnn and training.local_steps set; got cnn_tiny and none"
    )


# -- reading ------------------------------------------------------------------------------------------------------


def test_every_path_is_listed_with_what_may_stand_there(tiny: Experiment) -> None:
    by_path = {s.path: s for s in tiny.fields()}
    assert list(by_path) == tiny.paths()
    assert {p: tiny.get(p) for p in by_path} == tiny.flat
    assert set(FLAGS.values()) <= set(by_path)
    lr = by_path["training.lr"]
    assert (lr.value, lr.default, lr.symbol, lr.allowed.type) == (0.2, 0.05, "η", "float")
    assert (lr.allowed.low, lr.allowed.low_open, lr.allowed.high, lr.allowed.nullable) == (0, True, 1_000_000, False)
    assert "learning rate" in lr.description
    epochs = by_path["training.local_epochs"].allowed
    assert (epochs.type, epochs.low, epochs.low_open, epochs.nullable) == ("int", 1, False, True)
    assert by_path["training.optimiser"].allowed.choices == ("sgd", "adam")
    kind = by_path["partition.kind"]
    assert kind.is_tag and kind.default == "lsqs" and {"iid", "path"} <= set(kind.allowed.choices or ())
    assert by_path["algorithm.gamma.kind"].allowed.choices == ("held", "between")
    assert by_path["algorithm.gamma.value"].allowed.high == 1
    assert by_path["evaluation.synthetic"].allowed.item is not None


def test_every_field_says_what_it_means(tiny: Experiment) -> None:
    assert [s.path for s in tiny.fields() if not s.description] == []


def test_the_class_lists_its_defaults_too() -> None:
    by_path = {s.path: s for s in settings(Experiment)}
    assert by_path["partition.alpha"].default == 1.0
    assert by_path["algorithm.name"].value is None
    assert by_path["training.rounds"].value == 20


def test_whether_a_value_is_admissible_can_be_asked(tiny: Experiment) -> None:
    assert tiny.setting("training.lr").check("1e-2") == 0.01
    assert tiny.setting("training.batch_size").check("none") is None
    low = tiny.setting("algorithm.gamma.low", {"algorithm.gamma.kind": "between"})
    assert low.check(0.3) == 0.3
    assert refusal(low.check, 1.5) == "algorithm.gamma.low (γ) must be a number in [0, 1], got 1.5"
    assert refusal(tiny.setting("training.rounds").check, True).endswith(
        "must be an integer in [1, 1,000,000], got true"
    )
    assert refusal(tiny.setting("algorithm.gamma.kind").check, "helt").endswith("got 'helt'; did you mean 'held'?")
    assert tiny.setting("model.name").check("mlp") == "mlp"
    assert refusal(tiny.setting, "algorithm.gamma.low").startswith("algorithm.gamma 'held' has no low")
    assert refusal(tiny.setting, "training.lrr").startswith(
        "no setting named 'training.lrr'. Did you mean 'training.lr'?"
    )
    assert "is a section" in refusal(tiny.setting, "training")
    assert tiny.get("training.nothing.here") is None


def test_repetitions_have_seeds_that_exist(tiny: Experiment) -> None:
    assert tiny.override({"seed": 2**32 - 5, "repetitions": 5}).repetition(4).seed == 2**32 - 1
    with pytest.raises(PflOpsError, match=r"^seed must be <= 4294967291 with 5 repetitions \(seeds are at most 429"):
        tiny.override({"seed": 2**32 - 4, "repetitions": 5})


def test_repetitions_differ_by_their_seed(tiny: Experiment) -> None:
    e = tiny.override({"seed": 3, "repetitions": 5})
    assert [(r.seed, r.repetitions) for r in map(e.repetition, range(3))] == [(3, 1), (4, 1), (5, 1)]
    assert e.repetition(0).override({"repetitions": 5}) == e


# -- files --------------------------------------------------------------------------------------------------------


def test_yaml_there_and_back(tmp_path: Path) -> None:
    e = Experiment.of(
        "exp_tiny", dataset="mnist", partition="path", local_steps=3, seed=2,
        **{"algorithm.gamma.kind": "between", "participation.kind": "dirichlet", "evaluation.synthetic": [1, 50],
           "training.lr": 1e-5, "data.train_size": None},
    )  # fmt: skip
    text = e.to_yaml()
    assert text.startswith("# pfl-ops experiment: exp_tiny-mnist-path")
    assert Experiment.from_yaml(text) == e
    file = tmp_path / "e.yaml"
    file.write_text(text)
    assert Experiment.from_yaml(file) == Experiment.from_yaml(str(file)) == Experiment.compose(config=file) == e
    assert all(f"{path.rpartition('.')[2]}:" in text for path in e.paths())  # every value is stated
    assert "participation:\n  kind: dirichlet\n" in text  # the tag comes first


def test_a_file_equals_the_flags(tmp_path: Path) -> None:
    file = tmp_path / "e.yaml"
    file.write_text(
        "algorithm: {name: exp_tiny, gamma: {kind: between}}\n"
        "training.lr: 1e-3   # dotted keys, and numbers as people write them\n"
        "training: {rounds: 3, batch_size: none}\n"
        "partition: {kind: path}\n"
    )
    flags = {"training.lr": "0.001", "training.rounds": "3", "training.batch_size": "none", "partition.kind": "path",
             "algorithm.gamma.kind": "between"}  # fmt: skip
    assert Experiment.from_yaml(file) == Experiment.compose("exp_tiny", flags=flags)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algorithm: {name: exp_tiny\n", "e.yaml, line 2 is not valid YAML: "),
        ("algorithm: [\n", "e.yaml, line 2 is not valid YAML: "),
        ("- 1\n- 2\n", "e.yaml must map names to values, got '[1, 2]'"),
        ("seed: 1\nseed: 2\n", "e.yaml, line 2 is not valid YAML: 'seed' is given twice"),
        (
            "seed: !!python/object/apply:os.getcwd []\n",
            "e.yaml, line 1 is not valid YAML: could not determine a constructor",
        ),
        ("", "an experiment needs algorithm.name, one of local, fedavg"),
        (
            "algorithm: {name: exp_tiny}\ntraning: {lr: 1}\n",
            "e.yaml: no setting named 'traning'. Did you mean 'training.lr'?",
        ),
        ("algorithm: {name: exp_tiny}\n3: 1\n", "e.yaml: 3 is not the name of a setting"),
        ("algorithm: {name: exp_tiny, lam: -3}\n", "e.yaml: algorithm.lam (λ) must be a number >= 0, got -3"),
        ("\x00\n", "e.yaml"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.yaml").write_text(text)
    got = refusal(Experiment.from_yaml, "e.yaml")
    assert got.startswith(message), got
    assert "\n" not in got


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    assert refusal(Experiment.from_yaml, tmp_path / "no.yaml").endswith("no.yaml: No such file or directory")
    assert refusal(Experiment.from_yaml, tmp_path).endswith("Is a directory")
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x81")
    assert refusal(Experiment.from_yaml, binary).endswith("it is not a text file")


def test_it_travels_between_processes_by_value() -> None:
    e = Experiment.of("exp_tiny", partition="path", **{"algorithm.gamma.kind": "between"})
    assert pickle.loads(pickle.dumps(e)) == e
    assert e.model_copy() == e


# -- running ------------------------------------------------------------------------------------------------------


@register("exp_mean")
class Mean(Algorithm):
    """FedAvg, as short as a method can be."""

    def init(self, task: Task) -> State:
        return {"central": task.initial}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        central = r.weights @ r.train(s["central"])
        return {"central": central}, {"G": Models(central)}


SMALL: dict[str, Any] = {
    "data.train_size": 300,
    "partition.clients": 4,
    "training.rounds": 2,
    "model.name": "linear",
}
EXECUTION = Execution(device="cpu", way="loop", workers=1, threads=1)


@pytest.mark.parametrize(("split", "prefix"), [("test", "test/"), ("validation", "val/")])
def test_it_builds_a_simulation_that_runs(split: str, prefix: str) -> None:
    e = Experiment.of("exp_mean", **SMALL, **{"evaluation.split": split})
    records = list(e.build(execution=EXECUTION).run())
    assert [record.round for record in records] == [0, 1, 2]
    scores = {key: value for key, value in records[-1].metrics.items() if key.startswith(prefix)}
    assert 0 <= scores[f"{prefix}G/global/mean"] <= 1
    assert not any(key.startswith({"test/": "val/", "val/": "test/"}[prefix]) for key in records[-1].metrics)
    again = list(e.build(execution=EXECUTION).run())
    assert {key: again[-1].metrics[key] for key in scores} == scores


def test_a_trial_s_data_are_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    from pfl_ops.data import clients
    from pfl_ops.data.datasets import Dataset

    seen: list[bool] = []
    build = clients.build_clients
    monkeypatch.setattr(clients, "build_clients", lambda d, *a, **k: (seen.append(d.is_sealed), build(d, *a, **k))[1])
    Experiment.of("exp_mean", **SMALL).build(execution=EXECUTION)
    built = Experiment.of("exp_mean", **SMALL, **{"evaluation.split": "validation"})
    monkeypatch.setattr(Dataset, "test", property(lambda self: pytest.fail("a trial opened the test data")))
    list(built.build(execution=EXECUTION).run())
    assert seen == [False, True]


def test_the_seed_draws_the_partition_unless_it_has_its_own() -> None:
    def table(**changes: Any) -> Any:
        return Experiment.of("exp_mean", **SMALL, **changes).build(execution=EXECUTION).clients.table.tolist()

    assert table(seed=0) != table(seed=1)
    assert table(seed=0, **{"partition.seed": 7}) == table(seed=1, **{"partition.seed": 7})


def test_checkpoints_belong_to_one_experiment(tmp_path: Path) -> None:
    e = Experiment.of("exp_mean", **SMALL)
    list(e.build(execution=EXECUTION, folder=tmp_path).run())
    resumed = e.build(execution=EXECUTION, folder=tmp_path)
    assert resumed.resumed_from == 2
    with pytest.raises(PflOpsError):
        e.override({"seed": 1}).build(execution=EXECUTION, folder=tmp_path)
