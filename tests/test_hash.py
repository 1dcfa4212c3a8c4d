"""The identity of a run: what moves it, and what must not."""

import dataclasses
import inspect
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel, Field, SerializeAsAny, create_model
from pydantic.fields import FieldInfo

from pfl_ops import register as register_any
from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.algorithms.base import Algorithm, register
from pfl_ops.config.experiment import Experiment
from pfl_ops.config.identity import canonical, code_line, differing_code, fingerprint, identity
from pfl_ops.data.datasets import CONTENTS, unread
from pfl_ops.data.partition import PARTITIONS
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.losses import LOSSES
from pfl_ops.federation.settings import Execution
from pfl_ops.registry import load_plugin
from pfl_ops.results_version import RESULTS_VERSION, SAMPLING_VERSION
from pfl_ops.section import Section, plain_values


class Held(Section):
    kind: Literal["held"] = "held"
    value: float = Field(0.5, ge=0, le=1)


class Between(Section):
    kind: Literal["between"] = "between"
    low: float = Field(0.1, ge=0, le=1)


@register("hash_tiny")
class Tiny(Algorithm):
    """A method with a field and a schedule."""

    lam: float = Field(1.0, ge=0)
    gamma: Annotated[Held | Between, Field(discriminator="kind")] = Held()

    def init(self, task: Any) -> Any: ...
    def round(self, s: Any, r: Any) -> Any: ...


@register("hash_other")
class Other(Tiny):
    """The same fields under another name."""


@register("hash_chosen")
class Chosen(Tiny):
    """A method with a set."""

    parts: frozenset[int] = frozenset()


@pytest.fixture(scope="module", autouse=True)
def loss() -> Iterator[str]:
    """A loss of this file's own."""

    def half(net: Any, w: Any, x: Any, y: Any) -> Any: ...

    register_any("hash_loss")(half)
    yield "hash_loss"
    del LOSSES._found["hash_loss"]


@pytest.fixture(scope="module")
def base() -> Experiment:
    return Experiment.of("hash_tiny")


OTHER: dict[str, Any] = {
    "data.scaling": "half",
    "training.local_steps": 3,
    "training.optimiser": "adam",
    "training.precision": "float64",
    "training.loss": "hash_loss",
    "participation.weighting": "uniform",
    "participation.kind": "dirichlet",
    "evaluation.split": "validation",
    "evaluation.eps": (0.8, 0.9),
    "evaluation.targets": (0.9,),
    "evaluation.synthetic": (50,),
    "evaluation.clients": 5,
    "evaluation.final": 30,
    "evaluation.stages": ("G",),
    "evaluation.absent": "last",
    "algorithm.name": "hash_other",
    "algorithm.gamma.kind": "between",
    "partition.kind": "iid",
    "partition.seed": 1,
    "model.name": "mlp",
}


def another(path: str, value: Any) -> Any:
    """A value that stands nowhere by default."""
    if path in OTHER:
        return OTHER[path]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2 if value else 0.25
    return None


def test_every_field_moves_the_hash_but_repetitions(base: Experiment, tmp_path: Path) -> None:
    seen = {base.hash: "nothing"}
    for setting in base.fields():
        if setting.path in ("repetitions", "data.name", "model.weights"):  # below
            continue
        if setting.path in ("data.roles", "data.records"):  # of one data set; tests/data/test_shakespeare.py
            continue
        other = another(setting.path, setting.value)
        assert other != setting.value, f"choose another value for {setting.path}"
        digest = base.override({setting.path: other}).hash
        assert digest not in seen, f"{setting.path} and {seen.get(digest)} have one hash"
        seen[digest] = setting.path
    assert base.override({"repetitions": 5}).hash == base.hash


def test_the_seed_moves_the_hash_but_not_the_group_s(base: Experiment) -> None:
    other = base.override({"seed": 1})
    assert other.hash != base.hash
    assert other.group_hash == base.group_hash != base.hash
    assert base.override({"training.lr": 0.01}).group_hash != base.group_hash
    assert [base.override({"repetitions": 3}).repetition(i).hash for i in (0, 1)] == [base.hash, other.hash]


def test_it_is_canonical_json_with_a_version(base: Experiment) -> None:
    identity = base.identity()
    assert identity["version"] == RESULTS_VERSION
    assert set(identity) == {
        "version", "data", "partition", "model", "algorithm", "training", "participation", "evaluation", "seed",
        "code",
    }  # fmt: skip
    text = canonical(identity)
    assert json.loads(text) == identity
    assert ": " not in text and ", " not in text
    assert list(json.loads(text)) == sorted(identity)
    assert base.hash == fingerprint(identity) and re.fullmatch(r"[0-9a-f]{64}", base.hash)


def test_one_hash_is_pinned() -> None:
    """SHA-256 of a text that anyone can take by hand: a change here orphans every run that anybody has stored."""
    assert canonical({"b": [1, 0.5, None, True, "η"], "a": {"d": 1e-05, "c": 2}}) == (
        '{"a":{"c":2,"d":1e-05},"b":[1,0.5,null,true,"η"]}'
    )
    assert fingerprint({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
    assert fingerprint({"a": 1, "seed": 3}, without=["seed"]) == fingerprint({"a": 1})


@pytest.mark.parametrize(
    ("method", "changes", "digest"),
    [
        ("fedavg", {}, "b48d6dbd0903f6fcbd4a96456b14e122854ce8dc2bed5f5240a1f8b48734c962"),
        (
            "fliu",
            {"evaluation.split": "validation", "training.rounds": 200},
            "217972a25eb22f17fbf643cf1e05ced65130bae8fb7a2cc280b3f93a4e3f61eb",
        ),
        (
            "fedfomo",
            {"training.optimiser": "adam"},
            "29150ed11b0a52603851b08e2f575a4c5ac31229ec3148e27d9b19266649345c",
        ),
    ],
)
def test_settings_keep_their_digest(method: str, changes: dict[str, Any], digest: str) -> None:
    """Of whole experiments, without their code (`code/test_digest`). A field that is added stays out of the identity at
    the value that all earlier runs had: another digest here means that all finished runs are computed again."""
    experiment = Experiment.of(method, dataset="digits", **changes)
    assert fingerprint(experiment.identity(), without=("code",)) == digest
    assert experiment.override({"evaluation.stages": ["L2", "G", "L1"]}).hash == experiment.hash
    orders = (["L1", "G"], ["G", "L1", "G"])
    assert len({experiment.hash, *(experiment.override({"evaluation.stages": each}).hash for each in orders)}) == 2


def test_it_does_not_depend_on_how_the_experiment_was_written(base: Experiment) -> None:
    assert Experiment.from_yaml(base.to_yaml()).hash == base.hash
    assert base.override({"training.lr": "5e-2", "training.momentum": 0}).hash == base.hash
    assert base.override({"training.lr": 0.9}).override({"training.lr": 0.05}).hash == base.hash
    assert Experiment(algorithm=Tiny()).hash == base.hash


def test_equal_values_have_one_hash(base: Experiment) -> None:
    """The order of a set is its history (8 and 0 have one place in Python's table), of texts another in each process.
    A zero has no sign."""
    one, other = (Experiment.of("hash_chosen", **{"algorithm.parts": parts}) for parts in ([0, 8], [8, 0]))
    assert one == other and list(one.get("algorithm.parts")) != list(other.get("algorithm.parts"))
    assert one.hash == other.hash != Experiment.of("hash_chosen", **{"algorithm.parts": [0]}).hash
    assert one.flat["algorithm.parts"] == other.flat["algorithm.parts"] == [0, 8]
    assert one.resolved == other.resolved and Experiment.from_yaml(other.to_yaml()) == one
    zero, negative = (base.override({"algorithm.lam": value}) for value in (0.0, -0.0))
    assert zero == negative and zero.hash == negative.hash
    assert fingerprint({"a": [{"b": (0.0,)}]}) == fingerprint({"a": [{"b": (-0.0,)}]})


def test_the_parts_of_a_user_s_partition_have_one_order(tmp_path: Path) -> None:
    """As `test_equal_values_have_one_hash`, of a set that a partition takes."""
    file = tmp_path / "hash_stripes.py"
    file.write_text(
        "from pfl_ops.data.partition import partition\n"
        "@partition('hash_stripes')\n"
        "def stripes(labels, n_clients, *, rng, parts: frozenset[int] = frozenset()): ...\n"
    )
    load_plugin(file)
    one, other = (PARTITIONS.get("hash_stripes").model_validate({"parts": parts}) for parts in ([0, 8], [8, 0]))
    assert one.identity() == other.identity() and one.identity()["parts"] == [0, 8]


def test_an_option_of_a_method_that_came_later_keeps_the_hash_of_earlier_runs() -> None:
    """FedFomo's `own` at the value that all runs before it had is not in the identity; another value is."""
    before = Experiment.of("fedfomo", dataset="digits")
    assert "own" not in before.identity()["algorithm"] and before.algorithm.added == {"own": "kept"}
    other = before.override({"algorithm.own": "sent"})
    assert other.identity()["algorithm"]["own"] == "sent" and other.hash != before.hash


def test_execution_is_no_part_of_it(base: Experiment) -> None:
    words = set(re.findall(r'"(\w+)":', canonical(base.identity())))
    assert not words & set(Execution.model_fields)


@pytest.fixture
def own_data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    file = tmp_path / "data" / "mine.npz"
    file.parent.mkdir()
    arrays = {f"x_{part}": rng.normal(size=(n, 4)).astype(np.float32) for part, n in (("train", 60), ("test", 20))}
    arrays |= {f"y_{part}": (np.arange(n) % 3).astype(np.int64) for part, n in (("train", 60), ("test", 20))}
    np.savez(file, **arrays)
    return file


def test_data_count_by_content_wherever_they_lie(
    own_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Experiment.of("hash_tiny", dataset=str(own_data))
    assert here.model.name == "mlp"
    copy = tmp_path / "copied" / "another_name.npz"
    copy.parent.mkdir()
    copy.write_bytes(own_data.read_bytes())
    monkeypatch.chdir(tmp_path)
    spellings = [str(copy), "data/mine.npz", "./data/../data/mine.npz"]
    assert {Experiment.of("hash_tiny", dataset=name).hash for name in spellings} == {here.hash}
    assert "name" not in here.identity()["data"] and str(tmp_path) not in canonical(here.identity())

    arrays = dict(np.load(own_data))
    arrays["y_train"][0] = 2
    np.savez(copy, **arrays)
    assert Experiment.of("hash_tiny", dataset=str(copy)).hash != here.hash


def test_the_data_folder_can_be_said(own_data: Path) -> None:
    e = Experiment.compose("hash_tiny", flags={"data.name": "mine.npz"}, data_dir=str(own_data.parent))
    recommended = {"data.name": "mine.npz", "model.name": "none"}
    assert Experiment.compose("hash_tiny", flags=recommended, data_dir=str(own_data.parent)) == e
    assert e.model.name == "mlp"
    assert e.digest(str(own_data.parent)) == Experiment.of("hash_tiny", dataset=str(own_data)).hash


def test_weights_count_by_content(base: Experiment, tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("a.safetensors", "b.safetensors", "c.safetensors"))
    first.write_bytes(b"one")
    second.write_bytes(b"one")
    third.write_bytes(b"two")
    hashes = [base.override({"model.weights": str(file)}).hash for file in (first, second, third)]
    assert hashes[0] == hashes[1] != hashes[2]
    assert base.hash not in hashes
    with pytest.raises(PflOpsError, match=r"^model.weights: can't read .*none.safetensors: No such file"):
        _ = base.override({"model.weights": str(tmp_path / "none.safetensors")}).hash


def test_a_recorded_partition_counts_by_content(base: Experiment, tmp_path: Path) -> None:
    from pfl_ops.data.partition_files import Recorded, write_partition

    def record(name: str, cut: int) -> str:
        train = [np.arange(cut), np.arange(cut, 100)]
        return str(write_partition(tmp_path / name, Recorded(train, None, np.zeros((2, 10), dtype=np.int64))))

    one, same, other = record("one", 40), record("same", 40), record("other", 41)
    hashes = [base.override({"partition.kind": f"file:{path}"}).hash for path in (one, same, other)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_plug_ins_count_by_their_code(base: Experiment, tmp_path: Path) -> None:
    code = "from pfl_ops import register\n@register('hash_split')\ndef split(labels, n_clients, *, rng): return []\n"
    file = tmp_path / "mine.py"

    def hashed(text: str) -> str:
        file.write_text(text)
        load_plugin(file)
        return base.override({"partition.kind": "hash_split"}).hash

    assert hashed(code) == hashed(f"# another thought\n{code}") != hashed(code.replace("[]", "[labels]"))


def test_what_is_compared_has_code_of_its_own() -> None:
    """Method, network and partition, each with its own; the same in every experiment that uses it."""
    of_digits = (Experiment.of(name, dataset="digits").identity()["code"] for name in ("fedavg", "fedprox"))
    one, two = ({key: code for key, code in codes.items() if key != "held_out"} for codes in of_digits)
    assert set(one) == {"algorithm", "partition", "model"} and len(set(one.values())) == 3
    assert one["algorithm"] != two["algorithm"]
    assert {key: one[key] for key in ("partition", "model")} == {key: two[key] for key in ("partition", "model")}


def test_networks_of_users_say_how_they_are_computed(base: Experiment, tmp_path: Path) -> None:
    """Runs of a user's network by an engine that could train another one are not taken for today's."""
    file = tmp_path / "own.py"
    file.write_text(
        "from torch import nn\nfrom pfl_ops.models.base import Network, register\n"
        "@register('as_given')\nclass Own(Network):\n    def __init__(self, shape, n_classes):\n"
        "        super().__init__({'flatten': nn.Flatten()}, 64, n_classes)\n"
    )
    load_plugin(file)
    tree = base.override({"model.name": "as_given"}).identity()
    assert tree["code"]["operators"] == "as-given-learning" and "operators" not in base.identity()["code"]
    before = {**tree, "code": {key: value for key, value in tree["code"].items() if key != "operators"}}
    assert differing_code(code_line(tree), code_line(before)) == "engine's operators"


def test_methods_judged_at_l2_say_how_their_best_round_is_found() -> None:
    """Their finished runs have the `best/` keys of another round; all other methods keep their hashes."""
    codes = {name: Experiment.of(name, dataset="digits").identity()["code"] for name in ALGORITHMS.builtin}
    assert {name for name, code in codes.items() if "best" in code} == {
        name for name in codes if ALGORITHMS.get(name).own_stage == "L2"
    }
    tree = Experiment.of("fedbabu", dataset="digits").identity()
    before = {**tree, "code": {key: value for key, value in tree["code"].items() if key != "best"}}
    assert differing_code(code_line(tree), code_line(before)) == "rule for the best round"


def test_methods_with_a_pull_say_under_adam_how_it_is_computed() -> None:
    """Their runs under Adam moved weights by rounding errors; those under SGD, and all other methods, keep hashes."""
    pulled = {name for name in ALGORITHMS.builtin if "pull=" in inspect.getsource(ALGORITHMS.get(name))}
    for optimiser, expected in (("adam", pulled), ("sgd", set[str]())):
        codes = {n: Experiment.of(n, optimiser=optimiser).identity()["code"] for n in ("fedavg", "fliu", *pulled)}
        assert {name for name, code in codes.items() if "pull" in code} == expected
    tree = Experiment.of("ditto", optimiser="adam").identity()
    before = {**tree, "code": {key: value for key, value in tree["code"].items() if key != "pull"}}
    assert differing_code(code_line(tree), code_line(before)) == "rule for a pull under Adam"


def test_runs_say_how_test_data_were_divided(own_data: Path, tmp_path: Path) -> None:
    """Before, clients were seldom tested on their rare classes. Test data that clients bring are as they were."""
    tree = Experiment.of("fedavg", dataset="digits").identity()
    before = {**tree, "code": {key: value for key, value in tree["code"].items() if key != "held_out"}}
    assert differing_code(code_line(tree), code_line(before)) == "rule for dividing test data"
    with np.load(own_data) as found:
        arrays = dict(found)
    owners = {f"client_{part}": np.arange(len(arrays[f"y_{part}"])) % 5 for part in ("train", "test")}
    np.savez(tmp_path / "with_clients.npz", **arrays, **owners)
    natural = Experiment.of("fedavg", dataset=str(tmp_path / "with_clients.npz"), partition="natural")
    divided = {
        (split, pooled): "held_out"
        in natural.override({"evaluation.split": split, "data.pooled": pooled}).identity()["code"]
        for split in ("test", "validation")
        for pooled in (False, True)
    }
    assert [key for key, is_divided in divided.items() if not is_divided] == [("test", False)]


def test_rules_for_texts_and_many_classes() -> None:
    """Windows of a text are held out from its end; of a hundred classes only a drawn sample can lack some."""
    natural = Experiment.of("fedavg", dataset="mnist", partition="natural", **{"evaluation.split": "validation"})
    images = unread(natural.data)
    assert images is not None
    codes = [identity(natural, data=replace(images, overlap=overlap))["code"].keys() for overlap in (0, 80)]
    assert [sorted(code & {"held_out", "sampling"}) for code in codes] == [["held_out"], ["sampling"]]
    for final, subset in itertools.product(("all", 500), (None, "auto")):
        given = {"evaluation.final": final, "evaluation.subset": subset}
        many = Experiment.of("fedavg", dataset="cifar100", **given)
        drawn = "sampling" in identity(many, data=unread(many.data))["code"]
        assert drawn == ((final, subset) != ("all", None))


class Later(BaseModel):
    strength: float = Field(2.0, exclude=True)


@dataclasses.dataclass
class Parts:
    strength: float = Field(2.0, exclude=True)


@pytest.mark.parametrize("kind", [Later, list[Later], Later | None, dict[str, Parts]])
def test_fields_of_models_in_options_that_a_hash_would_lack_are_refused(kind: Any) -> None:
    """Two options that differ in such a field alone had one hash."""
    with pytest.raises(PflOpsError, match=r"^(Later|Parts)\.strength must have neither exclude nor exclude_if"):
        type("Options", (Section,), {"__annotations__": {"of": kind}})


def test_an_excluded_field_of_a_class_that_is_defined_later_is_refused_too() -> None:
    class Options(Section):
        of: "Soon"

    class Soon(BaseModel):
        strength: float = Field(2.0, exclude=True)

    class Whole(Section):
        method: SerializeAsAny[Section]

    Options.model_rebuild()
    with pytest.raises(PflOpsError, match=r"^Soon\.strength must have neither exclude nor exclude_if"):
        plain_values(Whole(method=Options(of=Soon())))


@pytest.mark.skipif("exclude_if" not in FieldInfo.__slots__, reason="pydantic before 2.12 has no exclude_if")
def test_an_option_that_is_left_out_at_some_values_is_refused() -> None:
    """Runs with 3.0 and 4.0 had one hash."""
    field: Any = Field(2.0, exclude_if=lambda value: value > 1)
    with pytest.raises(PflOpsError, match=r"\.strength must have neither exclude nor exclude_if"):
        create_model("Mine", __base__=Section, strength=(float, field))


def test_code_of_users_counts_where_the_engine_asks_for_it(base: Experiment) -> None:
    """A loss of one's own, and under Adam the rule for a pull, which a method of one's own may have."""
    code = base.override({"training.loss": "hash_loss", "training.optimiser": "adam"}).identity()["code"]
    assert len(code["loss"]) == 64 and code["pull"] == "difference"


def test_sampling_rules_count_where_data_are_uneven(own_data: Path) -> None:
    """For files, and where a sample of a hundred classes is drawn; built-in data of ten classes keep their hashes."""
    assert "sampling" not in Experiment.of("fedavg", dataset="digits").identity()["code"]
    mine = Experiment.of("fedavg", dataset=str(own_data)).identity()
    assert mine["code"]["sampling"] == SAMPLING_VERSION
    earlier = {**mine, "code": {key: value for key, value in mine["code"].items() if key != "sampling"}}
    assert differing_code(code_line(mine), code_line(earlier)) == "rules of sampling"


def test_settings_alone_and_what_of_the_code_differs(base: Experiment) -> None:
    tree = base.identity()
    other = {**tree, "code": {**tree["code"], "model": "0" * 64}, "version": 1}
    assert fingerprint(tree, without=("code", "version")) == fingerprint(other, without=("code", "version"))
    assert differing_code(code_line(tree), code_line(other)) == "network and engine's results version"
    assert differing_code(code_line(tree), code_line(tree)) == differing_code(code_line(tree), "") == ""


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.needs_data(name)) for name in CONTENTS])
def test_identity_of_published_data_is_known_without_them(name: str) -> None:
    """Also of a part of them, scaled otherwise, pooled, or scored on samples whose number follows from theirs."""
    one = Experiment.of("fedavg", dataset=name, model="mlp", train_size=4000, rounds=100)
    for e in (
        one,
        one.override({"data.scaling": "half"}),
        one.override({"data.pooled": True, "data.train_size": None}),
    ):
        assert identity(e, data=unread(e.data)) == identity(e)


def test_identity_of_other_data_is_not_known_without_them() -> None:
    assert unread(Experiment.of("fedavg", dataset="digits").data) is None
