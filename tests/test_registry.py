"""Names: the package's own, a plug-in's, a notebook's."""

import hashlib
import importlib
import inspect
import os
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pfl_ops
from pfl_ops import recording, registry
from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.code import digest as code_digest
from pfl_ops.code import modules
from pfl_ops.config.experiment import Experiment
from pfl_ops.config.identity import check_shared
from pfl_ops.data.partition import PARTITIONS
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.losses import LOSSES
from pfl_ops.models import MODELS
from pfl_ops.registry import Registry, load_plugin

PLUGIN = '''
from typing import Annotated

import numpy as np
from pydantic import Field
from torch import nn

from pfl_ops import register
from pfl_ops.algorithms.base import Algorithm


@register("{prefix}_method")
class Mine(Algorithm):
    """A method of the user's own."""

    strength: float = Field(0.5, ge=0, le=1, title="s", description="how much")

    def init(self, task): ...
    def round(self, s, r): ...


@register("{prefix}_net")
class Net(nn.Module):
    def __init__(self, shape, n_classes, *, width: Annotated[int, Field(ge=1)] = 8):
        super().__init__()
        n = int(np.prod(shape))
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(n, width), nn.ReLU())
        self.head = nn.Linear(width, n_classes)

    def forward(self, x):
        return self.head(self.body(x))


@register("{prefix}_split")
def split(labels, n_clients, *, rng, reverse: Annotated[bool, Field(description="last first")] = False):
    parts = np.array_split(np.arange(len(labels)), n_clients)
    return parts[::-1] if reverse else parts
'''


@pytest.fixture
def plugin(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, str]:
    """A plug-in file with a method, a network and a partition, and the prefix of their names."""
    prefix = "p" + hashlib.sha256(request.node.name.encode()).hexdigest()[:8]
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN.format(prefix=prefix))
    return file, prefix


def test_names_come_from_the_table_in_its_order() -> None:
    assert ALGORITHMS.names()[:9] == [
        "local", "fedavg", "fedprox", "scaffold", "ditto", "fedrep", "apfl", "fedfomo", "fliu",
    ]  # fmt: skip
    assert MODELS.names()[:6] == ["linear", "mlp", "cnn", "cnn6", "cnn_cifar", "cnn_tiny"]
    assert set(PARTITIONS.names()) >= {
        "iid",
        "path",
        "ls",
        "qs",
        "lsqs",
        "dirichlet",
        "pat",
        "shards",
        "sorted_shards",
        "zipf",
        "natural",
    }


@pytest.mark.parametrize("name", list(ALGORITHMS.builtin))
def test_every_method_of_the_table_is_there_and_says_what_it_is(name: str) -> None:
    method = ALGORITHMS.get(name)
    assert method.name == name
    doc = inspect.getdoc(method) or ""
    for part in ("State:", "Stages:", "Sent:", "Source:", "Deviations:"):
        assert part in doc, f"{name}'s docstring has no '{part}'"
    for field, info in method.model_fields.items():
        assert info.description, f"{name}.{field} has no description"
    assert next(iter(method().model_dump())) == "name"


@pytest.mark.parametrize("name", list(MODELS.builtin))
def test_every_network_of_the_table_is_there(name: str) -> None:
    assert MODELS.get(name).model_validate({"name": name}).name == name


@pytest.mark.parametrize("name", list(PARTITIONS.builtin))
def test_every_partition_of_the_table_is_there(name: str) -> None:
    assert PARTITIONS.get(name).model_fields["kind"].default == name


@pytest.mark.parametrize(
    ("table", "name", "message"),
    [
        (ALGORITHMS, "flui", "no algorithm named 'flui'. Did you mean 'fliu'? (pfl-ops list algorithms)"),
        (PARTITIONS, "lsq", "no partition named 'lsq'. Did you mean 'lsqs'? (pfl-ops list partitions)"),
        (MODELS, "cn", "no model named 'cn'. Did you mean 'cnn'? (pfl-ops list models)"),
        (LOSSES, "cross", "no loss named 'cross'. Did you mean 'cross_entropy'? (pfl-ops list losses)"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(table: Registry[Any], name: str, message: str) -> None:
    with pytest.raises(PflOpsError) as error:
        table.get(name)
    assert str(error.value) == message


def test_an_edit_of_the_same_length_within_a_second_is_what_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own loader took the compiled file of the earlier text, so that one hash stood for the other's code."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(registry, "_plugins", {})
    file, values = tmp_path / "factor.py", []
    for factor in (1, 3):
        file.write_text(f"FACTOR = {factor}\n")
        os.utime(file, (1_000_000_000, 1_000_000_000))
        values.append(registry.plugin_module(load_plugin(file)).FACTOR)
    assert values == [1, 3] and [path.name for path in tmp_path.iterdir()] == ["factor.py"]


def test_a_helper_that_is_edited_after_a_plug_in_was_loaded_counts_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest is taken when the file is loaded: the first run may come after the edit."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    helper, file, digests = tmp_path / "own_parts.py", tmp_path / "edited_later.py", []
    file.write_text(
        "import own_parts\nfrom pfl_ops import register\n"
        "@register('edited_later')\ndef split(labels, n_clients, *, rng): return own_parts.f()\n"
    )
    for now in ("def f(): return 1\n", "def f(): return 2\n"):
        helper.write_text("def f(): return 1\n")
        monkeypatch.setattr(PARTITIONS, "_found", {})
        monkeypatch.setattr(registry, "_plugins", {})
        monkeypatch.setattr(code_digest, "_found", {})
        monkeypatch.delitem(sys.modules, "own_parts", raising=False)
        load_plugin(file)
        helper.write_text(now)
        digests.append(PARTITIONS.digest("edited_later"))
    assert digests[0] == digests[1]


def test_a_value_of_a_helper_that_a_script_has_set_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trial failed with a line on versions, partitions, weights and edits. What a plug-in sets, trials have."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_plugins", {})
    (tmp_path / "own_values.py").write_text("K = 0.5\nL = 1\n")
    file, other = tmp_path / "with_numbers.py", tmp_path / "sets_numbers.py"
    file.write_text(
        "import own_values\nfrom pfl_ops import register\n"
        "@register('with_numbers')\ndef split(labels, n_clients, *, rng): return own_values.K\n"
    )
    other.write_text("import own_values\nown_values.L = 2\n")
    load_plugin(file)
    load_plugin(other)
    PARTITIONS.check_shared("with_numbers")
    sys.modules["own_values"].K = 3
    line = (
        f"the partition 'with_numbers' uses K of {tmp_path / 'own_values.py'}, which was set to 3 from outside, or "
        "edited since it was loaded; other processes read 0.5 in that file: write the value there, or make it an "
        "option of the partition"
    )
    with pytest.raises(PflOpsError, match=f"^{re.escape(line)}$"):
        PARTITIONS.check_shared("with_numbers")
    with pytest.raises(PflOpsError, match=r"^the partition 'with_numbers' uses K of "):
        check_shared(Experiment.of("fedavg", partition="with_numbers"))


def test_a_helper_that_came_later_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session had looked for it in vain, and then noticed neither it nor its edits."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(registry, "_plugins", {})
    helper, file = tmp_path / "own_latecomer.py", tmp_path / "early.py"
    source = "try:\n    import own_latecomer as h\nexcept ImportError:\n    h = None\nfrom pfl_ops import register\n"
    source += "@register('early_split')\ndef split(labels, n_clients, *, rng): return h.f()\n"

    def digest(remark: str) -> str:
        file.write_text(source + remark)
        load_plugin(file)
        return PARTITIONS.digest("early_split")

    digests = [digest("")]
    for number in (1, 22):
        helper.write_text(f"def f(): return {number}\n")
        importlib.invalidate_caches()
        importlib.reload(importlib.import_module("own_latecomer"))
        digests.append(digest(f"# {number}\n"))
    assert len(set(digests)) == 3


def test_an_unknown_name_says_how_a_file_of_ones_own_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_plugins", {})
    ends = [r"own: --plugin FILE\.py, in Python pfl_ops\.registry\.load_plugin\('FILE\.py'\)\)$"]
    file = tmp_path / "empty.py"
    file.write_text("class Halfway: ...\n")
    ends.append(r"pfl-ops list algorithms; empty\.py registers nothing\)$")
    for end in ends:
        with pytest.raises(PflOpsError, match=end):
            ALGORITHMS.get("nowhere_yet")
        load_plugin(str(file))  # as the message has it


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("(Algorithm):\n    def init(self, task): ...", r"has no round\(\); a method needs round\(self, s, r\)$"),
        ("(Algorithm):\n    def round(self, s, r): ...", r"has no init\(\); a method needs init\(self, task\)$"),
        ("(Algorithm):\n    def init(self): ...", r"has init\(self\); the engine calls init\(self, task\)$"),
        (":\n    def init(self, task): ...", r"Odd must be a subclass .*; losses, .* by pfl_ops\.register$"),
    ],
)
def test_a_class_that_can_be_no_method_is_refused(tmp_path: Path, body: str, message: str) -> None:
    file = tmp_path / "odd.py"
    file.write_text(
        f"from pfl_ops.algorithms.base import Algorithm, register\n\n\n@register('odd_method')\nclass Odd{body}\n"
    )
    with pytest.raises(PflOpsError, match=message):
        load_plugin(file)
    assert "odd_method" not in ALGORITHMS.names()


def test_nobody_takes_a_name_of_the_package() -> None:
    with pytest.raises(PflOpsError, match="algorithm 'fliu' is already defined"):
        functions = {"init": lambda self, task: {}, "round": lambda self, s, r: ({}, {})}
        pfl_ops.register("fliu")(type("Fliu", (_algorithm(),), {"__module__": __name__, **functions}))
    with pytest.raises(PflOpsError, match="partition 'lsqs' is already defined"):
        pfl_ops.register("lsqs")(lambda labels, n_clients, *, rng: [])


def test_the_package_registers_only_what_its_table_has() -> None:
    table: Registry[Any] = Registry("thing", {"a": "pfl_ops.algorithms.base"})
    with pytest.raises(AssertionError, match="not in the table"):
        table.add("b", _algorithm())


def test_register_knows_a_method_a_network_and_a_partition(plugin: tuple[Path, str]) -> None:
    file, prefix = plugin
    load_plugin(file)
    assert ALGORITHMS.get(f"{prefix}_method").name == f"{prefix}_method"
    assert MODELS.get(f"{prefix}_net").model_fields["width"].default == 8
    assert "reverse" in PARTITIONS.get(f"{prefix}_split").model_fields
    assert f"{prefix}_method" in ALGORITHMS.names()


@pytest.mark.parametrize("thing", [3, "fedavg", int])
def test_register_refuses_what_is_none_of_the_four(thing: Any) -> None:
    with pytest.raises(PflOpsError, match=r"^register\('odd'\): .* is no Algorithm, .* and no partition\("):
        pfl_ops.register("odd")(thing)


def test_a_plug_in_is_known_by_its_bytes_and_all_that_it_defines_by_its_code(plugin: tuple[Path, str]) -> None:
    file, prefix = plugin
    digest = load_plugin(file)
    assert digest == hashlib.sha256(file.read_bytes()).hexdigest()
    assert registry.plugins()[digest] == file
    tables = [(ALGORITHMS, "_method"), (MODELS, "_net"), (PARTITIONS, "_split")]
    codes = {table.digest(prefix + name) for table, name in tables}
    assert len(codes) == 1 and codes.isdisjoint({digest, PARTITIONS.digest("lsqs"), MODELS.digest("cnn")})
    file.write_text(file.read_text() + "\n# a remark\n")
    assert load_plugin(file) != digest
    assert {table.digest(prefix + name) for table, name in tables} == codes


def test_the_same_content_is_imported_once_wherever_it_lies(plugin: tuple[Path, str], tmp_path: Path) -> None:
    file, prefix = plugin
    first = load_plugin(file)
    method = ALGORITHMS.get(f"{prefix}_method")
    copy = tmp_path / "elsewhere.py"
    copy.write_bytes(file.read_bytes())
    assert load_plugin(copy) == first
    assert ALGORITHMS.get(f"{prefix}_method") is method


def test_a_plug_in_that_fails_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PflOpsError, match=r"^plug-in .*none.py does not exist$"):
        load_plugin(tmp_path / "none.py")
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_that_name\n")
    with pytest.raises(PflOpsError, match=r"^plug-in .*broken.py failed: ModuleNotFoundError: No module named"):
        load_plugin(broken)
    with pytest.raises(PflOpsError, match="ModuleNotFoundError"):  # and again: it was not half-remembered
        load_plugin(broken)


def test_a_plug_in_that_fails_registers_nothing(plugin: tuple[Path, str]) -> None:
    file, prefix = plugin
    file.write_text(file.read_text() + "\nraise ValueError('late')\n")
    with pytest.raises(PflOpsError, match=r"mine.py failed: ValueError: late \(mine.py:\d+\)$"):
        load_plugin(file)
    for table, name in [(ALGORITHMS, "_method"), (MODELS, "_net"), (PARTITIONS, "_split")]:
        assert prefix + name not in table.names()


def test_ctrl_c_while_a_plug_in_is_imported_stays_ctrl_c(plugin: tuple[Path, str]) -> None:
    file, _ = plugin
    file.write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_plugin(file)


def test_two_registrations_of_one_name_are_refused(plugin: tuple[Path, str], tmp_path: Path) -> None:
    """Another file, for each kind of thing. What was there first stays."""
    file, prefix = plugin
    load_plugin(file)
    first = ALGORITHMS.get(f"{prefix}_method")
    other = tmp_path / "other.py"
    other.write_text(file.read_text() + "# another\n")
    with pytest.raises(PflOpsError, match=rf"two algorithms are named '{prefix}_method': Mine of .*other.py and"):
        load_plugin(other)
    for taken, kind in {"net": "model", "split": "partition"}.items():
        text = PLUGIN.format(prefix=f"{prefix}_{taken}")
        other.write_text(text.replace(f"{prefix}_{taken}_{taken}", f"{prefix}_{taken}"))
        with pytest.raises(PflOpsError, match=f"two {kind}s are named '{prefix}_{taken}'"):
            load_plugin(other)
    assert ALGORITHMS.get(f"{prefix}_method") is first


def test_an_edited_plug_in_replaces_what_it_defined(plugin: tuple[Path, str]) -> None:
    """A session goes on with the new content; where that fails, with the old one."""
    file, prefix = plugin
    source = file.read_text()
    old = load_plugin(file)
    first = ALGORITHMS.get(f"{prefix}_method")
    file.write_text(source.replace(f"{prefix}_split", f"{prefix}_cut") + "\nraise ValueError\n")
    with pytest.raises(PflOpsError, match="failed: ValueError"):
        load_plugin(file)
    assert ALGORITHMS.get(f"{prefix}_method") is first and f"{prefix}_split" in PARTITIONS.names()
    file.write_text(source.replace(f"{prefix}_split", f"{prefix}_cut"))
    new = load_plugin(file)
    assert ALGORITHMS.get(f"{prefix}_method") is not first and f"{prefix}_split" not in PARTITIONS.names()
    assert old not in registry.plugins() and registry.plugins()[new] == file


def test_a_cell_that_is_run_again_replaces_its_thing() -> None:
    table: Registry[Any] = Registry("thing", {})
    one, two = (type("Mine", (), {"__module__": "__main__", "__qualname__": "Mine"}) for _ in range(2))
    other = type("Yours", (), {"__module__": "__main__", "__qualname__": "Yours"})
    table.add("mine", one)
    assert table.add("mine", two) is two is table.get("mine")
    with pytest.raises(PflOpsError, match="two things are named 'mine': Yours of __main__ and Mine of __main__"):
        table.add("mine", other)


def test_a_plug_in_replaces_what_a_cell_defined_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's method that moves to a file; one with another class stays refused, and so do two plug-ins."""
    table: Registry[Any] = Registry("thing", {})

    def thing(module: str, qualname: str) -> type:
        return type(qualname, (), {"__module__": module, "__qualname__": qualname})

    for digest in ("a" * 12, "b" * 12):
        monkeypatch.setitem(sys.modules, modules.PLUGIN + digest, ModuleType("plugin"))
    table.add("mine", thing("__main__", "Mine"))
    with pytest.raises(PflOpsError, match="two things are named 'mine': Yours of"):
        table.add("mine", thing(modules.PLUGIN + "a" * 12, "Yours"))
    moved = table.add("mine", thing(modules.PLUGIN + "a" * 12, "Mine"))
    assert table.get("mine") is moved
    for other in ("__main__", modules.PLUGIN + "b" * 12):
        with pytest.raises(PflOpsError, match="two things are named 'mine': Mine of"):
            table.add("mine", thing(other, "Mine"))


def test_a_plug_in_may_not_take_an_installed_package_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("outside", "somebody.methods:Outside", "pfl_ops.things")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    table: Registry[Any] = Registry("thing", {})
    with pytest.raises(PflOpsError, match=r"two things are named 'outside': Mine of mine and one of somebody.methods"):
        table.add("outside", type("Mine", (), {"__module__": "mine", "__qualname__": "Mine"}))
    table.add("outside", type("Outside", (), {"__module__": "somebody.methods", "__qualname__": "Outside"}))


def test_entry_points_are_listed_unread_and_loaded_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("outside", "collections:OrderedDict", "pfl_ops.things"),
        EntryPoint("broken", "no_such_module:thing", "pfl_ops.things"),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in points if p.group == group])
    table: Registry[Any] = Registry("thing", {"own": "collections"})
    assert table.names() == ["own", "broken", "outside"]
    from collections import OrderedDict

    assert table.get("outside") is OrderedDict


def test_the_door_names_what_it_has() -> None:
    assert {"Experiment", "run", "tune", "register", "__version__"} <= set(dir(pfl_ops))
    assert isinstance(pfl_ops.__version__, str)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        pfl_ops.nothing  # noqa: B018


def _algorithm() -> Any:
    from pfl_ops.algorithms.base import Algorithm

    return Algorithm


def test_a_saved_model_gets_plug_ins_as_they_were_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network that was trained, not what its file became since; two files of one name stand beside each other."""
    monkeypatch.setattr(registry, "_plugins", {})
    files = [tmp_path / folder / "net.py" for folder in ("a", "b")]
    for number, file in enumerate(files):
        file.parent.mkdir()
        file.write_text(f"WIDTH = {number}\n")
        load_plugin(file)
        file.write_text("WIDTH = 7\n")
    kept = recording._plugins_as_loaded(tmp_path)
    assert [(file.name, file.read_text()) for file in kept] == [("net.py", "WIDTH = 0\n"), ("net.py", "WIDTH = 1\n")]
