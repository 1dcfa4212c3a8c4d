"""Examples in docstrings (`>>>`): all are run, with the results that they show; and which names must have one.

Each example sees the names of its module, and `np` and `torch`. `pfl_ops.testing.quadratic_round` and `scalar_net` give
rounds and networks whose numbers can be checked by hand. Examples that need a study or stored runs have a test beside
the fixtures that make these (`ELSEWHERE`).
"""

import builtins
import doctest
import importlib
import inspect
import io
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import numpy as np
import pytest
import torch

from pfl_ops import registry

ROOT = Path(__file__).parents[1]
PROMPT = re.compile(r"^ *>>> ", re.MULTILINE)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
READER = "reader_of_docstrings"
"""The module that examples are run in; methods, networks, partitions and losses that they register are forgotten."""
ELSEWHERE = {
    "pfl_ops.reports.comparison.compare": "tests/reports/test_compare.py",
    "pfl_ops.results": "tests/test_results.py",
    "pfl_ops.runs": "tests/test_runs.py",
    "pfl_ops.tracking.runs.store": "tests/test_docstrings.py",
    "pfl_ops.tuning.commands.benchmark": "tests/tuning/test_benchmark.py",
    "pfl_ops.tuning.commands.tune_study": "tests/tuning/test_benchmark.py",
}
"""Module -> the file that runs its examples on runs of its own."""


def prompts() -> dict[str, int]:
    """Return module -> number of lines that begin with >>>, for each module of the package that has any."""
    found = {}
    for file in sorted((ROOT / "pfl_ops").rglob("*.py")):
        count = len(PROMPT.findall(file.read_text(encoding="utf-8")))
        if count:
            found[".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = count
    return found


PROMPTS = prompts()


def run_examples(module: ModuleType, **more: Any) -> tuple[int, str]:
    """Run the examples of a module; return the number of statements, and what failed. more: further names."""
    output = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    names = {"np": np, "torch": torch, **vars(module), "__name__": READER, **more}
    try:
        for example in doctest.DocTestFinder().find(module, module.__name__, globs=names):
            runner.run(example, out=output.write)
    finally:
        for table in registry._tables:
            table._forget({READER})
    return runner.tries, output.getvalue()


@pytest.mark.parametrize("name", sorted(PROMPTS.keys() - ELSEWHERE))
def test_examples_of_a_module_give_what_they_show(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of statements is that of prompts in the file: doctest passes over what it can't find."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PFL_OPS_HOME", str(tmp_path))
    statements, failed = run_examples(importlib.import_module(name))
    assert not failed, failed
    assert statements == PROMPTS[name]


def test_examples_elsewhere_have_a_test_there() -> None:
    assert PROMPTS.keys() >= ELSEWHERE.keys()
    assert all("doctest" in (ROOT / file).read_text(encoding="utf-8") for file in ELSEWHERE.values())


def test_the_example_of_the_store_leaves_a_finished_run(
    tmp_path: Path, furnish: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pfl_ops import Experiment
    from pfl_ops.tracking import Store
    from pfl_ops.tracking.runs import store

    monkeypatch.setenv("PFL_OPS_HOME", str(furnish(tmp_path)))
    statements, failed = run_examples(store, experiment=Experiment.of("fliu", dataset="digits"), records=[])
    assert statements == PROMPTS[store.__name__] and not failed, failed
    with Store.open() as opened:
        runs = opened.runs("fliu-digits-lsqs-1a2b3c4d")
    assert {run.name: run.status for run in runs}["003 fliu lr=0.01"] == "FINISHED"


def test_a_wrong_example_fails() -> None:
    module = ModuleType("wrong", ">>> np.arange(3).tolist()\n[0, 1, 3]\n>>> torch.zeros(2).tolist()\n[0.0, 0.0]\n")
    statements, failed = run_examples(module)
    assert statements == 2 and "Expected:\n    [0, 1, 3]\nGot:\n    [0, 1, 2]\n" in failed


# -- names that must have an example ----------------------------------------------------------------------------------


def methods(cls: type, *left_out: str) -> dict[str, Any]:
    """Return the public methods and properties that a class defines, by name."""
    public = {name: value for name, value in vars(cls).items() if name[0] != "_" and name not in left_out}
    found = {name: getattr(value, "__func__", value) for name, value in public.items()}
    return {
        f"{cls.__name__}.{name}": value
        for name, value in found.items()
        if inspect.isfunction(value) or isinstance(value, property | cached_property)
    }


def functions(module: str) -> dict[str, Any]:
    """Return the public functions of a module of the package, by name."""
    made = vars(importlib.import_module(f"pfl_ops.{module}"))
    return {
        f"{module}.{name}": value
        for name, value in made.items()
        if name[0] != "_" and inspect.isfunction(value) and value.__module__ == f"pfl_ops.{module}"
    }


def areas() -> dict[str, dict[str, Any]]:
    """Return area -> its public names, each with what must have an example in its docstring."""
    from pfl_ops.algorithms.schedules import Gamma
    from pfl_ops.config.experiment import Experiment
    from pfl_ops.data.partition import PARTITIONS
    from pfl_ops.federation.method.batch import Batch
    from pfl_ops.federation.method.contract import Task
    from pfl_ops.federation.method.round import Round
    from pfl_ops.federation.network.layout import Layout
    from pfl_ops.federation.network.net import Net
    from pfl_ops.models import MODELS

    solvers = ("solvers", "schedules", "dual", "descent_direction", "parts", "losses", "substitution", "channels",
               "fedas", "fedpac", "fedproto", "fedrod", "splitgp")  # fmt: skip
    return {
        "round": {"Round": Round} | methods(Round),
        # shown by the class's own example, or a verb of the engine
        "batch": {"Batch": Batch} | methods(Batch, "n", "epoch", "ends", "count", "gradients"),
        "task": {"Task": Task} | methods(Task, "n_clients"),
        "network as a function": {"Net": Net, "Layout": Layout} | methods(Net, "forward") | methods(Layout),
        "solvers and losses": {k: f for module in solvers for k, f in functions(f"algorithms.{module}").items()},
        "schedules": {kind.__name__: kind for kind in get_args(get_args(Gamma)[0])},
        "partitions": {name: PARTITIONS.get(name).function for name in PARTITIONS.builtin}
        | functions("data.partition") | functions("data.cut") | functions("data.balance"),
        "networks": {name: MODELS.get(name).network for name in MODELS.builtin}
        | functions("models.base") | functions("models.backbone") | functions("models.weights"),
        "statistics": functions("metrics") | functions("metric_keys") | functions("federation.scoring.synthetic"),
        "experiment": {"Experiment": Experiment} | methods(Experiment) | functions("config.experiment"),
    }  # fmt: skip


AREAS = (
    *("round", "batch", "task", "network as a function", "solvers and losses", "schedules"),
    *("partitions", "networks", "statistics", "experiment"),
)


def test_areas_are_named() -> None:
    assert tuple(areas()) == AREAS


@pytest.mark.parametrize("area", AREAS)
def test_every_public_name_of_an_area_has_an_example(area: str) -> None:
    names = areas()[area]
    assert len(names) >= 3, f"{area}: the names are not found"
    lacking = [name for name, value in names.items() if not PROMPT.search(value.__doc__ or "")]
    assert not lacking, f"no example (>>>) in the docstrings of {', '.join(lacking)}"


@pytest.mark.parametrize("folder", ["pfl_ops", "tests", "search_spaces"])
def test_docstrings_begin_with_what_they_describe(folder: str) -> None:
    """A noun or an imperative: not "What a run takes" but "The cost of a run"."""
    opening = re.compile(r'^\s*"""(What|How|Whether|Where|Which|Who)\b.*', re.MULTILINE)
    found = [
        f"{file.relative_to(ROOT)}: {line.group().strip()}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line in opening.finditer(file.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_errors_in_docstrings_exist() -> None:
    """A class that was renamed keeps its old name in the docstrings of what raises it."""
    texts = {file: file.read_text(encoding="utf-8") for file in sorted((ROOT / "pfl_ops").rglob("*.py"))}
    known = {name for text in texts.values() for name in re.findall(r"^ *class (\w+)", text, re.MULTILINE)}
    known |= {*vars(builtins), "CancelledError"}
    raises = re.compile(r"^( *)Raises:\n((?:\1 +\S.*\n)+)", re.MULTILINE)
    named = re.compile(r"(?:^ *|\. )([A-Z]\w+): ", re.MULTILINE)
    found = [
        f"{file.relative_to(ROOT)}: {name}"
        for file, text in texts.items()
        for _, block in raises.findall(text)
        for name in named.findall(block)
        if name not in known
    ]
    assert found == []
