"""Code by its syntax tree: words don't count, everything else does, in the module and in what it imports."""

import ast
import csv
import hashlib
import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.code import digest as code_digest
from pfl_ops.code.digest import module_digest
from pfl_ops.code.loaded import content_of, earlier
from pfl_ops.code.syntax import syntax, text_of
from pfl_ops.data.partition import PARTITIONS
from pfl_ops.models import MODELS
from pfl_ops.registry import Registry

CODE = """
def step(x, lam=0.5):
    if lam < 0:
        raise ValueError("lam is too small")
    return x * lam
"""


@pytest.mark.parametrize(
    ("same", "other"),
    [
        (CODE, CODE.replace("    return", "    # a thought\n\n    return")),
        (CODE, CODE.replace("    if", "    '''What it computes.'''\n    if")),
        (CODE, "'''A module.'''" + CODE),
        (CODE, CODE.replace("x, lam=0.5):", "x: float, lam: float = 0.5) -> float:")),
        (CODE, CODE.replace("lam is too small", "λ must be 0 or more")),
        ("lam: int = Field(0.5, ge=0)", "lam: float = Field(0.5, title='λ', description='how far', ge=0)"),
        ("x = 1", "x = (\n    1\n)"),
        ("class A:\n    x: int", "class A:\n    'It has an x.'\n    x: float"),
    ],
)
def test_words_do_not_count(same: str, other: str) -> None:
    assert syntax(same) == syntax(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (CODE, CODE.replace("0.5", "0.25")),
        (CODE, CODE.replace("x * lam", "lam * x")),
        (CODE, CODE.replace("lam < 0", "lam <= 0")),
        (CODE, CODE.replace("ValueError", "KeyError")),
        (CODE, CODE + "\nstep = step"),
        ("lam = Field(0.5, ge=0)", "lam = Field(0.5, ge=1)"),
        ("lam = Field(0.5)", "mu = Field(0.5)"),
        ("lam: float = 0.5", "mu: float = 0.5"),
        ("class A:\n    x: int", "class A:\n    y: int"),
        ("title = f(title='a')", "title = f(title='b')"),  # not a field's
        ("x = 1", "x = 1.0"),
        ("x = 1", "x = True"),
        ("x = None", "x = 'None'"),
        ("x = f(a, b)", "x = f(b, a)"),
        ("x = [a, [b]]", "x = [[a], b]"),
        ("x: int = f(a)", "x.y: int = f(a)"),
        ("a = 1\nb = 2", "b = 2\na = 1"),
        ("if a:\n    b()\nc()", "if a:\n    b()\n    c()"),
        ("async def f(): pass", "def f(): pass"),
        ("def f(x, /): pass", "def f(x): pass"),
        ("def f(*, x): pass", "def f(x): pass"),
        ("a += 1", "a -= 1"),
    ],
)
def test_everything_else_counts(one: str, other: str) -> None:
    assert syntax(one) != syntax(other)


def test_the_text_is_the_same_under_python_3_12() -> None:
    """There, an empty text ends a format that has names in it: `f"{x:>{width}}"`."""
    tree = ast.parse('f"{x:>{width}}"')
    spec = next(node for node in ast.walk(tree) if isinstance(node, ast.FormattedValue)).format_spec
    assert isinstance(spec, ast.JoinedStr)
    before = text_of(tree)
    spec.values.append(ast.Constant(""))
    assert text_of(tree) == before != syntax('f"{x:>{width} }"')


@pytest.fixture
def digest(tmp_path: Path) -> Callable[..., str]:
    """The digest of `mine` in a fresh process, among files that are given as name -> source."""

    def taken(**files: str) -> str:
        for name, source in files.items():
            file = tmp_path / (name.replace("__", "/") + ".py")
            file.parent.mkdir(exist_ok=True)
            file.write_text(source)
        code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import mine; "
        code += "from pfl_ops.code.digest import module_digest; print(module_digest('mine'), 'json' in sys.modules)"
        argv = [sys.executable, "-Bc", code]
        found, imported = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
        assert imported == "False", "what is only looked at must not be imported"
        return found

    return taken


def test_helpers_count_wherever_they_are_imported(digest: Callable[..., str]) -> None:
    files = {
        "mine": "import helper\ndef f():\n    from lab.deep import g\n    importlib.import_module('named')\n"
        "    import_module('.other', 'lab')\n",
        "helper": "x = 1",
        "lab__deep": "from . import deeper\nfrom .deeper import y\nimport wave\n",  # without __init__: a namespace
        "lab__deeper": "y = 1\nz = __import__('lab.deepest')\ndef f(): return import_module('.beside', __package__)",
        "lab__deepest": "y = 1",
        "lab__beside": "y = 1",
        "named": "y = 1",
        "stranger": "z = 1",
    }
    first = digest(**files)
    assert digest(stranger="z = 2") == first
    assert digest(helper="x = 1  # one") == first
    assert digest(helper="x = 2") != first
    assert digest(helper="x = 1") == first
    assert digest(lab__deeper=files["lab__deeper"].replace("y = 1", "y = 2")) != first
    assert digest(lab__deeper=files["lab__deeper"]) == first
    assert len({first, *(digest(**{name: "y = 2"}) for name in ("lab__deepest", "lab__beside", "named"))}) == 4


def test_installed_packages_do_not_count_wherever_they_lie(digest: Callable[..., str]) -> None:
    """Not even those of another environment, which a .pth file or PYTHONPATH lends; nor the standard library."""
    mine = "import sys; sys.path.append(sys.path[0] + '/site-packages')\nimport lent, wave\n"
    first = digest(mine=mine, **{"site-packages__lent": "x = 1"})
    assert digest(**{"site-packages__lent": "x = 2"}) == first


def test_an_installed_package_counts_with_its_own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that offers a method by an entry point. Its folder may be imported by what is in it alone."""
    files = {"pack/__init__.py": "from . import one\nx = 1", "pack/one.py": "x = 1", "pack/two/three.py": "x = 1"}
    files["pack/two/__init__.py"] = "x = 1"
    site = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(site)
    digests = []
    for edited in ("none", *files):
        for name, source in {**files, "offered.py": "", "pack/entry.py": "import pack.two.three"}.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(source.replace("x = 1", "x = 22") if name == edited else source)
        for name in [name for name in sys.modules if name.partition(".")[0] == "pack"]:
            monkeypatch.delitem(sys.modules, name)
        importlib.invalidate_caches()
        importlib.import_module("pack.entry")
        digests.append(module_digest("pack.entry"))
    assert len({*digests, None}) == 2 + len(files)


def test_modules_in_the_interpreter_itself_do_not_count(digest: Callable[..., str]) -> None:
    """Python has `os` and others ready to run, without a file of their own: another version of it has other code."""
    mine = "import abc, codecs, io, os, sys, wave\nfrom os.path import join\n"
    alone = hashlib.sha256(syntax(mine).encode()).hexdigest()
    assert digest(mine=mine) == hashlib.sha256(repr([("", alone)]).encode()).hexdigest()


def test_relative_imports_of_a_script_count(tmp_path: Path) -> None:
    """`python -m lab.script` has another name than its package says: an edit of the helper was not noticed."""
    folder, found = tmp_path / "lab", []
    folder.mkdir()
    (folder / "script.py").write_text(
        "from . import helper\nfrom pfl_ops.code.digest import module_digest\nprint(module_digest('__main__'))\n"
    )
    for source in ("K = 1\n", "K = 22\n"):
        (folder / "helper.py").write_text(source)
        argv = [sys.executable, "-Bm", "lab.script"]
        found.append(subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path).stdout)
    assert found[0] != found[1]


@pytest.mark.parametrize(("name", "base"), [("typing", "Protocol"), ("enum", "Enum")])
def test_functions_of_python_in_a_class_do_not_count(digest: Callable[..., str], name: str, base: str) -> None:
    """`Protocol` and `Enum` put functions of their own file into a class. In a user's file of that name these counted
    as edited ones, by their compiled code, which is another one in each version of Python and with -OO."""
    mine, own = f"import lab.{name}\n", f"from {name} import {base}\nclass A({base}):\n    x: int = 1\n"
    parts = {"": mine, f"lab.{name}": own}
    sums = {key: hashlib.sha256(syntax(text).encode()).hexdigest() for key, text in parts.items()}
    found = hashlib.sha256(repr(sorted(sums.items())).encode()).hexdigest()
    assert digest(mine=mine, **{f"lab__{name}": own}) == found


LOADED = """import dataclasses, functools
K: int = -2
@dataclasses.dataclass
class D:
    n: int = 1
def f(x): return 2 * x
@functools.cache
def g(x): return [y * 3 for y in x]
class A:
    @staticmethod
    def h(x): return x if x in {"a", "b", "c"} else lambda: 4
    @property
    def p(self): return "5"
"""


def test_a_module_that_was_edited_after_it_was_loaded_is_not_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run came after the edit: the result of the code that was loaded had the hash of the edited file, and
    the next process, which loaded that, read it. An edit of words alone is none."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "own_edited.py"

    def digest(loaded: str, now: str) -> str | None:
        file.write_text(loaded)
        monkeypatch.delitem(sys.modules, "own_edited", raising=False)
        importlib.invalidate_caches()
        importlib.import_module("own_edited")
        file.write_text(now)
        return module_digest("own_edited")

    first = digest(LOADED, LOADED)
    alone = hashlib.sha256(syntax(LOADED).encode()).hexdigest()
    assert first == hashlib.sha256(repr([("", alone)]).encode()).hexdigest()
    assert digest(LOADED, "# one more line\n" + LOADED) == first
    for old, new in [("2 *", "22 *"), ("-2", "-3"), ("* 3", "* 4"), ('"c"', '"d"'), ("4", "44"), ('"5"', '"6"')]:
        edited = LOADED.replace(old, new)
        assert edited != LOADED and len({first, digest(edited, edited), digest(LOADED, edited), None}) == 4


def test_functions_of_another_file_of_that_name_are_not_its_own(digest: Callable[..., str]) -> None:
    """A class has them as its own."""
    mine = "from lab.mine import f\nclass A:\n    g = f\n"
    other = "def f(self): return 1\n"
    taken = [hashlib.sha256(syntax(text).encode()).hexdigest() for text in (mine, other)]
    found = sorted([("", taken[0]), ("lab.mine", taken[1])])
    assert digest(mine=mine, lab__mine=other) == hashlib.sha256(repr(found).encode()).hexdigest()


def test_code_of_equal_sets_is_equal() -> None:
    """8 and 0 have one place in Python's table; the order of texts is another one in each process."""
    one, other, third = (compile(f"x in {text}", "", "eval") for text in ("{0, 8}", "{8, 0}", "{8, 1}"))
    assert content_of(one) == content_of(other) != content_of(third)


def test_a_module_without_functions_counts_as_it_was_loaded_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file, digests = tmp_path / "own_numbers.py", []
    for text in ("K = [1]", "K = [22]"):
        file.write_text(text)
        importlib.invalidate_caches()
        importlib.reload(importlib.import_module("own_numbers"))
        digests.append(module_digest("own_numbers"))
    assert digests[0] != digests[1]


def test_constants_that_another_module_sets_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a notebook does with `helper.K = 3`. Not those that a file sets, which a run may change while it goes on."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_constants.py").write_text(
        "import own_user\nK = 1\nC = 0\nD = 0\nL = None\ndef f():\n    global C\n    C += K\n"
    )
    (tmp_path / "own_user.py").write_text("N = 'n'\ndef g(module):\n    module.D = 1\n")
    module: Any = importlib.import_module("own_constants")
    taken = [module_digest("own_constants")]
    for owner, name, value in ((module, "K", 2), (module, "L", 0.5), (sys.modules["own_user"], "N", "m")):
        with monkeypatch.context() as changed:
            changed.setattr(owner, name, value)
            taken.append(module_digest("own_constants"))
    assert len(set(taken)) == 4 and None not in taken
    module.f()
    module.own_user.g(module)
    odd = type("Odd", (), {"__getattr__": lambda self, name: self, "__call__": print, "__module__": "own_constants"})
    module.odd, module.Holder = odd(), type("Holder", (), {"odd": odd(), "__module__": "own_constants"})
    module.L = type("Broken", (), {"__repr__": None})()  # no constant: it may be filled
    assert module.C == module.D == 1 and module_digest("own_constants") == taken[0]


def test_a_function_that_was_loaded_again_counts_without_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lines and folder counted, and how often its names were in use: another digest in another process."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found, source = list[str](), "def f(x): return 2 * x\n"
    for place, text in (("a", source), ("b", "# a line\n" + source), ("c", source.replace("2", "3"))):
        (tmp_path / place).mkdir()
        (tmp_path / place / "own_again.py").write_text(text)
        with monkeypatch.context() as here:
            here.syspath_prepend(tmp_path / place)
            here.delitem(sys.modules, "own_again", raising=False)
            module: Any = importlib.import_module("own_again")
            former = module.f
            (tmp_path / place / "own_again.py").write_text("def f(x): return 44 * x\n")
            importlib.reload(module)
            found.append(earlier(former, "__main__"))
    assert found[0] == found[1] != found[2] and "" not in found


def test_an_f_string_has_no_empty_texts() -> None:
    """Python 3.12.1 has one in this f-string, Python 3.11 and 3.13 have none."""
    tree = ast.parse("f'{x:>{y}}'")
    (spec,) = [node.format_spec for node in ast.walk(tree) if isinstance(node, ast.FormattedValue) and node.format_spec]
    assert isinstance(spec, ast.JoinedStr)
    without = [value for value in spec.values if getattr(value, "value", None) != ""]
    texts = []
    for values in (without, [*without, ast.Constant("")]):
        spec.values = values
        texts.append(text_of(tree))
    assert texts[0] == texts[1]


def test_code_that_is_nested_too_deep_counts_by_its_bytes(digest: Callable[..., str]) -> None:
    deep = "x = " + " + ".join(["1"] * 700)
    assert digest(mine=deep) != digest(mine=deep + "  # words count then")


def test_a_method_is_its_module_and_the_helpers_that_it_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    original = code_digest._read

    def noted(module: str, path: Path) -> code_digest._Code:
        read.add(module)
        return original(module, path)

    monkeypatch.setattr(code_digest, "_found", {})
    monkeypatch.setattr(code_digest, "_read", noted)
    ALGORITHMS.digest("drdm")
    names = {"drdm", "dual", "solvers", "parts"}
    assert read == {f"pfl_ops.algorithms.{name}" for name in names}


def test_code_without_a_file_has_none() -> None:
    assert module_digest("builtins") is None


def test_a_module_that_moved_is_known_by_its_former_name() -> None:
    """Imports are sorted by name, so a move may change their order too; others of ours count where they stand."""
    before = (
        "from torch import Tensor\n\nfrom pfl_ops.federation.contract import Task\n"
        "from pfl_ops.federation.leaves import cross_entropy\nfrom pfl_ops.federation.round import Round\nx = 1"
    )
    after = (
        "from torch import Tensor\n\nfrom pfl_ops.federation.method.contract import Task\n"
        "from pfl_ops.federation.method.round import Round\n"
        "from pfl_ops.federation.network.cross_entropy import cross_entropy\nx = 1"
    )
    assert syntax(after) == syntax(before)
    assert syntax(after.replace("import Task", "import State")) != syntax(before)
    one, other = "from pfl_ops.rng import a", "from pfl_ops.errors import b"
    assert syntax(f"{one}\n{other}") != syntax(f"{other}\n{one}")


PINNED = Path(__file__).parents[1] / "contract" / "pinned_code.csv"
REFUSING = {"cd2_pfed", "fedas", "fedrep", "fedpg", "s_fedpg", "fliu", "per_fedavg", "fedamp", "scaff_pd"}
TABLES: dict[str, Registry[Any]] = {"algorithm": ALGORITHMS, "model": MODELS, "partition": PARTITIONS}


def test_code_that_was_not_edited_keeps_its_digest() -> None:
    """Digests are part of a run's hash: where one changes, all finished runs with that code are computed again.

    The table was written before the modules of the engine moved into rooms. A method, network or partition whose code
    is meant to change, or a new one, gets its new line here; nothing else may change a line.
    """
    found = {(kind, name): table.digest(name) for kind, table in TABLES.items() for name in table.builtin}
    with PINNED.open(encoding="utf-8", newline="") as file:
        assert found == {(row["kind"], row["name"]): row["digest"] for row in csv.DictReader(file)}


def test_code_that_is_equal_to_former_code_is_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line of `EQUAL` is about code that is here, and gives it the digest that is pinned.

    A method has an option that was added, or refuses or ignores other networks or settings than before, more or fewer
    (`REFUSING`); a partition draws what it drew (`test_partition`); a network does not call what changed.
    """

    def names() -> dict[str | None, set[tuple[str, str]]]:
        found: dict[str | None, set[tuple[str, str]]] = {}
        for kind, table in (("method", ALGORITHMS), ("partition", PARTITIONS), ("network", MODELS)):
            for name in table.builtin:
                found.setdefault(table.digest(name), set()).add((kind, name))
        return found

    former, equal = names(), code_digest.EQUAL
    monkeypatch.setattr(code_digest, "EQUAL", {})
    today = names()
    assert equal and {new: former[old] for new, old in equal.items()} == {new: today[new] for new in equal}
    changed = [name for new in equal for kind, name in today[new] if kind == "method"]
    assert changed and all(ALGORITHMS.get(name).added for name in set(changed) - REFUSING)
