"""Digests of what a notebook's cells define."""

import importlib
import itertools
import linecache
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import fork_server
import pandas as pd
import pytest

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.code.digest import module_digest
from pfl_ops.code.notebook import definition_digest
from pfl_ops.code.pickles import pickled
from pfl_ops.code.script import values_digest
from pfl_ops.config.experiment import Experiment
from pfl_ops.data.partition import PARTITIONS
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Execution
from pfl_ops.registry import Registry
from pfl_ops.run_on_disk import RunOnDisk

CELL = '''
import numpy as np
import torch
from pfl_ops.algorithms.base import Algorithm, Field

K = 2
W = torch.ones(3)

def scaled(x):
    return shifted(x) * K

def shifted(x):
    return x + W

class Base:
    def start(self):
        return 1

@deco(7)
class Mine(Base):
    """A method."""

    lam: float = 0.5

    def step(self, s, r):
        own = s  # its own step
        return scaled(own) * self.lam * np.float64(1) + sum(r for r in range(3))

    @property
    def half(self):
        return self.lam / 2
'''
DECO = "def deco(n):\n    return lambda thing: thing\n"


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run cells in a new `__main__`, as a kernel does, and return what they have named `Mine`."""
    numbers = itertools.count()

    def run(*sources: str) -> Any:
        main = ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", main)
        for source in sources:
            name = f"<cell {next(numbers)}>"
            monkeypatch.setitem(linecache.cache, name, (len(source), None, source.splitlines(keepends=True), name))
            exec(compile(source, name, "exec"), main.__dict__)
        return main.Mine  # type: ignore[attr-defined]

    return run


def test_the_same_code_has_the_same_digest_in_each_kernel(cells: Callable[..., Any]) -> None:
    first = definition_digest(cells(DECO, CELL))
    assert first is not None and first == definition_digest(cells(DECO, CELL))
    in_words = CELL.replace("A method.", "The method.").replace("  # its own step", "")
    assert definition_digest(cells("x = 1\n", DECO, "\n\n\n" + in_words)) == first
    assert (
        definition_digest(cells(DECO, CELL, "s, r, own, other = 1, 2, 3, 4\n")) == first  # names of its own
    )  # names of arguments, of locals


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("range(3)", "range(4)"),
        ("lam: float = 0.5", "lam: float = 0.6"),
        ("shifted(x) * K", "shifted(x) / K"),
        ("x + W", "x - W"),
        ("K = 2", "K = 3"),
        ("torch.ones(3)", "torch.zeros(3)"),
        ("return 1", "return 2"),
        ("self.lam / 2", "self.lam / 3"),
        ("@deco(7)", "@deco(8)"),
        ("own = s ", "from pfl_ops.algorithms import fedavg; own = s "),
    ],
)
def test_an_edit_of_what_the_definition_needs_counts(cells: Callable[..., Any], old: str, new: str) -> None:
    assert CELL.count(old) == 1
    assert definition_digest(cells(DECO, CELL)) != definition_digest(cells(DECO, CELL.replace(old, new)))


def test_the_definition_that_was_run_last_counts(cells: Callable[..., Any]) -> None:
    """In one kernel, with the helper's cell run again alone as well."""
    edited = CELL.replace("range(3)", "range(4)")
    assert definition_digest(cells(DECO, CELL, edited)) == definition_digest(cells(DECO, edited))
    twice = definition_digest(cells(DECO + CELL + edited))  # in one cell
    assert None is not twice == definition_digest(cells(DECO + edited))
    helper = "def scaled(x):\n    return x\n"
    assert definition_digest(cells(DECO, CELL, helper)) != definition_digest(cells(DECO, CELL))


def test_the_base_that_the_class_has_counts(cells: Callable[..., Any]) -> None:
    """A base's cell that is run again does not change the class before its own cell is run, too. Its hash changed, so
    that results of the earlier code stood under the hash of the edited one."""
    base = "class Base:\n    def g(self): return {}\n"
    mine = "class Mine(Base):\n    def h(self): return self.g()\n"
    before, edited = definition_digest(cells(base.format(1), mine)), definition_digest(cells(base.format(2), mine))
    assert None is not before != edited is not None
    assert definition_digest(cells(base.format(1), mine, base.format(2))) == before
    assert definition_digest(cells(base.format(1), mine, base.format(2), mine)) == edited


def test_what_other_cells_put_around_the_definition_counts(cells: Callable[..., Any]) -> None:
    """A helper that keeps its answers, a method that a later cell sets, and an earlier class of the same name."""
    kept = "import functools\n@functools.cache\ndef f(x):\n    return {}\nclass Mine:\n    def g(self): return f(2)\n"
    set_later = "def g(self): return {}\nMine.g = g\n"
    derived = "Old = Mine\nclass Mine(Old):\n    def h(self): return 1\n"
    for one, two in (
        ((kept.format(1),), (kept.format(2),)),
        ((CELL, set_later.format(1)), (CELL, set_later.format(2))),
        ((CELL, derived), (CELL.replace("range(3)", "range(4)"), derived)),
    ):
        digests = [definition_digest(cells(DECO, *sources)) for sources in (one, two, one)]
        assert None not in digests and digests[0] == digests[2] != digests[1]


MINE = "class Mine:\n    n = {}\n    def f(self, x={}, *, y={}): return self.n\n"


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("value", ["LAM", "LAM.real", "-LAM"])
def test_values_that_a_definition_keeps_count(cells: Callable[..., Any], place: int, value: str) -> None:
    """A value's cell that is run again does not change attributes and defaults before the definition's own cell is run,
    too. The hash was that of the edited value, so that results of the earlier one were read for it."""
    mine = MINE.format(*[value if number == place else "0.5" for number in range(3)])
    before, edited = (definition_digest(cells(f"LAM = {lam}\n", mine)) for lam in (1, 2))
    later = definition_digest(cells("LAM = 1\n", mine, "LAM = 2\n"))
    assert None is not later not in (before, edited) and before != edited
    again = definition_digest(cells("LAM = 1.5\n", mine, "LAM = 1.5\n"))  # another object
    assert again == definition_digest(cells("LAM = 1.5\n", mine))


def test_attributes_that_another_cell_sets_count(cells: Callable[..., Any]) -> None:
    """Not those that the class itself sets or fills: a run would change the hash under which it is kept."""
    mine = MINE.format("LAM", "LAM", "torch.relu") + "    def g(self): self.s.append(1); type(self).calls += 1\n"
    sources = ("import torch\nLAM = 1\n", mine + "    s = [1]\n    calls = 0\n")
    digests = [definition_digest(cells(*sources, more)) for more in ("", "Mine.n = 3\n", "Mine.n = 4\n")]
    assert None not in digests and len(set(digests)) == 3
    assert definition_digest(cells(*sources, "Mine.calls = 3\nMine.s.append(2)\nMine.z = 3\n")) == digests[0]
    W = ("import torch\nW = torch.{}(3)\n", MINE.format("W", 1, 2))
    kept = [
        definition_digest(cells(W[0].format(which), W[1], *after)) for which, after in (("ones", ()), ("zeros", ()))
    ]
    assert definition_digest(cells(W[0].format("ones"), W[1], W[0].format("zeros"))) not in (*kept, None)
    bare = "class Mine:\n    'One.'\n    def f(self): return self.n, self.__dict__, self.__doc__\n"
    assert definition_digest(cells(bare)) == definition_digest(cells(bare.replace("One", "Two")))  # in words
    assert len({definition_digest(cells(bare, f"Mine.n = {n}\n")) for n in (1, 2)} | {None}) == 3


HELD = {
    "partial": "from functools import partial\ndef g(k, x): return k * x\nh = partial(g, 2)\n",
    "instance": "class A:\n    def __call__(self, x): return 2 * x\nh = A()\n",
    "bound method": "class A:\n    def g(self, x): return 2 * x\nh = A().g\n",
    "list": "def g(x): return 2 * x\nh = [g]\n",
    "kept answers": "import functools\n@functools.cache\ndef g(x): return 2 * x\nh = {'a': g}\n",
    "lambda": "h = lambda x: 2 * x\n",
    "value of a lambda": "K = 2\nh = lambda x: K * x\n",
    "closure": "def make(k): return lambda x: k * x\nh = make(2)\n",
    "data class": "from dataclasses import dataclass\n@dataclass\nclass A:\n    k: int = 2\nh = A()\n",
    "slots": "from dataclasses import dataclass\n@dataclass(slots=True)\nclass A:\n    k: int = 2\nh = A()\n",
    "enumeration": "from enum import Enum\nclass A(Enum):\n    K = 2\n    L = 4\nh = A.L\n",
    "model": "from pydantic import BaseModel\nclass A(BaseModel):\n    k: int = 2\nh = A()\n",
    "base": "class B:\n    k = 2\nclass A(B):\n    def g(self): return self.k\nh = A\n",
    "of a type": "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass A(Generic[T]):\n    k = 2\nh = A[T]\n",
}


@pytest.mark.parametrize("name", HELD)
def test_functions_in_values_count_by_their_code(cells: Callable[..., Any], name: str) -> None:
    """The same in another kernel, whose cells have other files, and an edit is another one."""
    mine, digests = "class Mine:\n    def f(self, x): return h(x)\n", []
    for source in (HELD[name], HELD[name], HELD[name].replace("2", "3")):
        digests.append(definition_digest(cells(source, mine)))
    assert None is not digests[0] == digests[1] != digests[2]


def test_lines_of_a_class_do_not_count(cells: Callable[..., Any]) -> None:
    """Python 3.13 writes them into the class."""
    mine, digests = "class Mine:\n    def f(self, x): return A\n", []
    for line in (1, 2):
        digests.append(definition_digest(cells(f"class A:\n    k = 2\nA.__firstlineno__ = {line}\n", mine)))
    assert None is not digests[0] == digests[1]


def test_sets_have_one_order_in_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = [[0, 8], [8, 0]]  # one place in Python's table
    assert list({*orders[0]}) != list({*orders[1]})
    wraps: list[Callable[[set[int]], Any]] = [
        lambda v: v,
        lambda v: [{"k": v}, 1],
        lambda v: {(frozenset(v), 1)},
        lambda v: SimpleNamespace(k=v),
    ]
    for wrapped in wraps:
        one, other = (pickled(wrapped({*order})) for order in orders)
        assert one is not None and one == other


def test_a_module_of_the_user_counts_in_values(
    cells: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pickle has no more than the name of its functions: after an edit the results of the former were read."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    source = "def f(x): return 2 * x\nclass A:\n    def g(self, x): return 2 * x\n"
    (tmp_path / "own_held.py").write_text(source)
    module = importlib.import_module("own_held")
    uses = "from functools import partial\nimport own_held\nh = {}\nclass Mine:\n    def f(self, x): return h(x)\n"
    cell = [uses.format(value) for value in ("partial(own_held.f)", "[own_held.f]", "own_held.A()", "own_held.A().g")]
    first = [definition_digest(cells(each)) for each in cell]
    (tmp_path / "own_held.py").write_text(source.replace("2 * x", "33 * x"))
    importlib.reload(module)
    edited = [definition_digest(cells(each)) for each in cell]
    assert None not in first + edited and len({*first, *edited}) == 8


def test_a_module_of_the_user_counts_by_its_code(
    cells: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for n in (1, 2):
        (tmp_path / f"own_helper_{n}.py").write_text(f"def f(x):\n    return {n} * x\n")
        (tmp_path / f"own_copy_{n}.py").write_text("def f(x):\n    return x\n")
    use = "class Mine:\n    def step(self, x):\n        return {}(x)\n"
    ways = ("import {} as h\n" + use.format("h.f"), "from {} import f\n" + use.format("f"))
    for way in ways:
        one, two = (definition_digest(cells(way.format(f"own_helper_{n}"))) for n in (1, 2))
        assert one is not None and two is not None and one != two


def test_numbers_that_a_cell_sets_in_a_module_count(
    cells: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those that the definition itself sets, in its run."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_set.py").write_text("K = 1\nCALLS = 0\ndef f(x):\n    return K * x\n")
    source = "import own_set as h\nclass Mine:\n    def step(self, x):\n        h.CALLS += 1\n        return h.f(x)\n"
    digests = [definition_digest(cells(source, more)) for more in ("", "h.CALLS = 5\n", "h.K = 5\n")]
    assert None is not digests[0] == digests[1] != digests[2]


def test_a_module_of_the_user_counts_as_it_was_loaded_last(
    cells: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook reloads a module that was edited. It was read once, so that runs of the new code were read from those
    of the old one, "same settings, data and method code". Until it is loaded, an edit changes nothing.

    IPython's autoreload may give a function the code of the edited file, without loading the module.
    """
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "own_reloaded.py"
    file.write_text("def f(x):\n    return 1 * x\n")
    mine = cells("import own_reloaded as h\nclass Mine:\n    def step(self, x):\n        return h.f(x)\n")
    module: Any = importlib.import_module("own_reloaded")
    first = definition_digest(mine)
    file.write_text("def f(x):\n    return 22 * x\n")
    assert definition_digest(mine) == first and module.f(1) == 1
    importlib.reload(module)
    second = definition_digest(mine)
    assert second != first and module.f(1) == 22
    file.write_text("def f(x):\n    return 333 * x\n")
    assert definition_digest(mine) == second
    module.f.__code__ = (lambda x: 333 * x).__code__
    assert definition_digest(mine) not in (first, second, None)


def test_a_function_of_before_a_module_was_loaded_again_counts(
    cells: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`from own_f import f` keeps the earlier f, in a cell or in another module, until it is run again. The result of
    the earlier code must not have the hash of the edited one, which a new kernel has. The same code has one hash."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file, between = tmp_path / "own_f.py", tmp_path / "own_between.py"
    old, edited = "def f(x):\n    return 1 * x\n", "def f(x):\n    return 22 * x\n"
    file.write_text(old)
    between.write_text("from own_f import f\ndef g(x):\n    return f(x)\n")
    for imports in ("from own_f import f as h\n", "from own_between import g as h\n"):
        source = imports + "class Mine:\n    def step(self, x):\n        return h(x)\n"
        digests = []
        mine = cells(source)
        for text in (old, edited):
            file.write_text(text)
            importlib.reload(sys.modules["own_f"])
            digests.append(definition_digest(mine))
        if "own_between" in sys.modules:
            importlib.reload(sys.modules["own_between"])
        digests.append(definition_digest(cells(source)))
        assert None not in digests and len(set(digests)) == 3
        file.write_text(old)
        importlib.reload(sys.modules["own_f"])
        if "own_between" in sys.modules:
            importlib.reload(sys.modules["own_between"])
        assert definition_digest(cells(source)) == digests[0]


@pytest.mark.parametrize(
    "source",
    [
        "def make():\n    class Mine:\n        def f(self): return 1\n    return Mine\nMine = make()\n",
        "import threading\nL = threading.Lock()\nclass Mine:\n    def f(self): return L\n",
        "class Mine:\n    x = 1\n",
        "Mine = type('Mine', (), {})\n",
    ],
    ids=["inside a function", "a value that can't be pickled", "no function", "no source"],
)
def test_a_definition_that_can_not_be_read_has_none(cells: Callable[..., Any], source: str) -> None:
    assert definition_digest(cells(source)) is None


def test_functions_and_decorated_ones_are_read(cells: Callable[..., Any]) -> None:
    source = "import torch\n@torch.no_grad()\ndef Mine(x):\n    return x + 1\n"
    one, two = (definition_digest(cells(text)) for text in (source, source.replace("+ 1", "+ 2")))
    assert one is not None and two is not None and one != two


def test_the_registry_asks_for_it(cells: Callable[..., Any]) -> None:
    table: Registry[Any] = Registry("thing", {})
    digests = []
    for _ in range(2):
        table.add("mine", cells(DECO, CELL))
        digests.append(table.digest("mine"))
    assert digests[0] == digests[1]


SCRIPT = """import sys
from argparse import Namespace
from pfl_ops.data.partition import PARTITIONS, partition
K = 2 * 2
FILLED = []
N = int(sys.argv[1])
args = Namespace(alpha=float(N), out=sys.argv[2])
def used(x): return x * N + K + M + args.alpha + len(FILLED)
@partition("of_a_script")
def stripes(labels, n_clients, *, rng): return used(labels)
for M in (0, 1, 0):
    FILLED.append(M)
    print(PARTITIONS.digest("of_a_script"))
"""


def test_values_that_a_script_uses_count(tmp_path: Path) -> None:
    """Of a loop and of the command's arguments. The file's digest was the same, so that the first value's result was
    read for all of them. What the definition does not use (`out`), and a list that is filled, do not count."""
    (tmp_path / "script.py").write_text(SCRIPT)

    def digests(*arguments: str) -> list[str]:
        argv = [*fork_server.python(), str(tmp_path / "script.py"), *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()

    one, other, again = digests("1", "a"), digests("2", "a"), digests("1", "b")
    assert one == again and one[0] == one[2] and len({*one, *other}) == 4


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a script in this process, as IPython's %run does; return the digest of what it names `Mine`, once the file
    has another text, if one is given."""

    def run(source: str, now: str = "") -> str:
        main, file, table = ModuleType("__main__"), tmp_path / "script.py", Registry[Any]("thing", {})
        main.__file__, main.__loader__ = str(file), SourceFileLoader("__main__", str(file))
        monkeypatch.setitem(sys.modules, "__main__", main)
        exec(compile(source, str(file), "exec"), main.__dict__)
        file.write_text(now or source)
        table.add("mine", vars(main)["Mine"])
        return table.digest("mine")

    return run


STATED = """import math
K = 2 * 2
C = 0
T = (1, 'a')
def g(x):
    global C
    C += 1
    return x * math.pi
class Mine:
    n = K
    def f(self, x=T): return g(x) * K * self.n + T[0]
"""


def test_values_that_the_text_of_a_script_says_do_not_count(script: Callable[..., str]) -> None:
    """The hashes of scripts without others stay as they were."""
    assert script(STATED) == module_digest("__main__") and values_digest(sys.modules["__main__"].Mine) == ""
    for more in ("K = 3\n", "Mine.n = 3\n", "def h(K): K = 2\n", "T = (1, 'b')\n"):
        assert script(STATED + more) != module_digest("__main__"), more


def test_integers_of_more_digits_than_python_writes_count(
    script: Callable[..., str], cells: Callable[..., Any]
) -> None:
    """They ended the run: "Exceeds the limit (4300 digits) for integer string conversion"."""
    source = (
        "import argparse\nE = int('5000')\nK = 10**E\nT = (K, 1)\nA = argparse.Namespace(n=[{'k': K}])\n"
        "class Mine:\n    n = K\n    def f(self, x=K): return K, T, A.n, self.n\n"
    )
    assert script(source) == script(source) != script(source.replace("5000", "5001"))
    assert definition_digest(cells(DECO, CELL.replace("range(3)", f"range(0x{'F' * 5000})"))) is None


def test_values_count_in_processes_that_a_script_starts(tmp_path: Path) -> None:
    """`multiprocessing` names the main module `__mp_main__` in them: runs with all values had one hash there."""
    script, found = tmp_path / "script.py", []
    script.write_text(
        "import sys, multiprocessing\nfrom pfl_ops.data.partition import PARTITIONS, partition\n"
        "def used(): return float(sys.argv[1]) * N\nN = int(sys.argv[1])\n"
        "@partition('of_a_script')\ndef stripes(labels, n_clients, *, rng): return used()\n"
        "def show(): print(PARTITIONS.digest('of_a_script'), flush=True)\n"
        "if __name__ == '__main__':\n    show()\n"
        "    child = multiprocessing.get_context('spawn').Process(target=show)\n    child.start()\n    child.join()\n"
    )
    for number in "12":
        argv = [sys.executable, str(script), number]
        found.append(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())
    assert [len(set(each)) for each in found] == [1, 1] and found[0] != found[1]


def test_a_script_under_a_profiler_is_not_the_profiler(tmp_path: Path) -> None:
    """`python -m cProfile script.py` keeps itself as the main module: the digest of all scripts was that of its file,
    and the result of the one was read for the other."""
    script, profiler, found = tmp_path / "script.py", tmp_path / "profiler.py", []
    profiler.write_text("import sys\nexec(open(sys.argv[1]).read(), {'__name__': '__main__'})\n")
    for number in (1, 2):
        script.write_text(
            "from pfl_ops.data.partition import PARTITIONS, partition\n"
            f"@partition('of_a_script')\ndef stripes(labels, n_clients, *, rng): return {number}\n"
            "print(PARTITIONS.digest('of_a_script'), PARTITIONS.digest('of_a_script'))\n"
        )
        argv = [*fork_server.python(), str(profiler), str(script)]
        found.append(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())
    assert found[0] != found[1] and all(one == other for one, other in found)


STATE = """import argparse, types
class Odd:
    def __getattr__(self, name): return self
calls = 0
odd = Odd()
made = types.SimpleNamespace(seen=0, f=odd, log=[])
args = argparse.Namespace(lams=[0.1], names={0, 8}, f=odd)
class Mine:
    def f(self):
        global calls
        calls += 1; made.seen += 1; made.log.append(1); args.lams
        return made.f, args.f, args.names, odd
"""


def test_state_of_a_script_does_not_count(script: Callable[..., str]) -> None:
    """A run that counts its calls had another hash when it ended, and a value with an address one in each process."""
    first = script(STATE)
    main: Any = sys.modules["__main__"]
    values = values_digest(main.Mine)
    main.Mine().f()
    assert main.calls == main.made.seen == 1 and values_digest(main.Mine) == values != ""
    script(STATE)
    main = sys.modules["__main__"]
    assert values_digest(main.Mine) == values  # at other addresses
    main.args.names = {8, 0}
    assert values_digest(main.Mine) == values
    assert script(STATE.replace("[0.1]", "[0.2]")) != first


@pytest.mark.parametrize(("old", "new"), [("1, 'a'", "2, 'a'"), ("2 * 2", "3 * 2"), ("K * s", "K / s")])
def test_a_script_that_is_edited_and_run_again_counts(script: Callable[..., str], old: str, new: str) -> None:
    """`%run` of a script whose number was edited read the result of the former number."""
    edited = STATED.replace(old, new)
    first, second = script(STATED), script(edited)
    assert first != second == script(edited) and script(STATED) == first


def test_a_script_that_was_edited_since_it_began_is_not_its_file(script: Callable[..., str]) -> None:
    for old, new in (("1, 'a'", "2, 'a'"), ("2 * 2", "3 * 2"), ("K * s", "K / s")):
        edited = STATED.replace(old, new)
        assert script(STATED, now=edited) not in (script(STATED), script(edited))


def test_cells_after_a_script_count(cells: Callable[..., Any], script: Callable[..., str]) -> None:
    """After `%run` of a script that computes a run, all cells had the digest of the script's file."""
    table: Registry[Any] = Registry("thing", {})
    digests = [script(STATED)]
    for cell in (CELL, CELL.replace("range(3)", "range(4)")):
        table.add("mine", cells(DECO, cell))
        digests.append(table.digest("mine"))
    assert len(set(digests)) == 3 and digests[-1] == definition_digest(table.get("mine"))


def test_trials_do_not_begin_with_what_a_notebook_defines(cells: Callable[..., Any]) -> None:
    table: Registry[Any] = Registry("thing", {"own": "collections"})
    table.add("mine", cells(DECO, CELL))
    with pytest.raises(PflOpsError, match=r"the thing 'mine' is defined in this notebook or script, which .*'mine.py'"):
        table.check_shared("mine")


FEDAVG = '''
from pfl_ops.algorithms.base import Algorithm, Models
from pfl_ops import register

@register("edited_in_a_cell")
class Mine(Algorithm):
    """FedAvg, times a number."""

    def init(self, task):
        return {"central": task.initial}

    def round(self, s, r):
        central = 1.0 * (r.weights @ r.train(s["central"]))
        return {"central": central}, {"G": Models(central)}

    def personal(self, s, r):
        return Models(s["central"])
'''


def test_experiment_of_before_an_edit_has_the_code_of_its_hash(
    cells: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The method's cell is edited and run again, that of the experiment is not. The earlier code ran, and its result
    stood under the hash of the edited code, so that later runs of this read it. With 0, Θ is 0 after a round."""
    monkeypatch.setattr(ALGORITHMS, "_found", dict(ALGORITHMS._found))
    edited = FEDAVG.replace("1.0", "0.0")
    cells(FEDAVG)
    settings = {"dataset": "digits", "model": "linear", "clients": 4, "rounds": 1, "train_size": 200}
    experiment = Experiment.of("edited_in_a_cell", **settings)
    before = experiment.hash
    assert experiment.renewed() is experiment
    cells(edited)
    after = Experiment.of("edited_in_a_cell", **settings)
    assert experiment.hash == after.hash != before
    simulation = experiment.build(execution=Execution(device="cpu", way="loop", workers=1))
    assert [record.round for record in simulation.run()] == [0, 1]
    assert not simulation.state["central"].any()


def test_models_of_a_run_before_an_edit_say_that_the_code_has_changed(
    cells: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The line said that the folder holds checkpoints of another experiment. The former cell brings the models back."""
    monkeypatch.setattr(ALGORITHMS, "_found", dict(ALGORITHMS._found))
    cells(FEDAVG)
    settings = {"dataset": "digits", "model": "linear", "clients": 4, "rounds": 1, "train_size": 200}
    experiment = Experiment.of("edited_in_a_cell", **settings)
    identity = experiment.identity()
    simulation = experiment.build(execution=Execution(device="cpu", way="loop", workers=1), folder=tmp_path)
    rounds = pd.DataFrame([record.metrics for record in simulation.run()])
    kept = RunOnDisk(experiment, rounds, pd.DataFrame(), tmp_path, identity=identity)
    before = kept.model(0)
    cells(FEDAVG.replace("1.0", "0.0"))
    for read in (kept.global_model, lambda: kept.model(0)):
        with pytest.raises(PflOpsError, match=r"^the code of its method has changed since the run, .* or run\(\) the"):
            read()
    cells(FEDAVG)
    assert all(kept.model(0)[name].equal(value) for name, value in before.items())


def test_experiment_of_before_an_edit_is_divided_by_the_code_of_its_hash(
    cells: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, of a partition: client k has the classes k mod 2, then those of 1 − k mod 2."""
    monkeypatch.setattr(PARTITIONS, "_found", dict(PARTITIONS._found))
    source = (
        "import numpy as np\nfrom pfl_ops import register\n"
        "@register('halves_in_a_cell')\ndef Mine(labels, n, *, rng):\n"
        '    """Halves."""\n'
        "    return [np.flatnonzero(labels % 2 == (k + {}) % 2) for k in range(2)]\n"
    )
    cells(source.format(0))
    experiment = Experiment.of("fedavg", dataset="digits", partition="halves_in_a_cell", clients=2)
    assert not experiment.clients().table[0, 1::2].any()
    cells(source.format(1))
    assert not experiment.clients().table[0, 0::2].any()
