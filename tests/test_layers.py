"""The allowed imports between packages and rooms, as docs/architecture.md draws them."""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import pfl_ops
from pfl_ops.algorithms import ALGORITHMS

ROOT = Path(pfl_ops.__file__).parent

Layers = list[tuple[set[str], bool]]

# From the top down: a part may import what stands on lines below its own; and its own line, where that is True.
LAYERS: Layers = [
    ({"__main__"}, False),
    ({"cli"}, False),
    ({"reports", "tuning", "bench"}, False),
    ({"jobs", "courier"}, False),
    ({"runs", "probe"}, False),
    ({"recording"}, False),
    ({"tracking"}, False),
    ({"papers", "comparison", "run_on_disk"}, False),
    ({"results"}, False),
    ({"display"}, False),
    ({"figures", "spaces", "testing"}, False),
    ({"config"}, False),
    ({"algorithms"}, False),
    ({"federation", "units"}, False),
    ({"metric_keys"}, False),
    ({"data", "models", "metrics", "statistics", "energy"}, False),
    (
        {
            "rng",
            "tag_names",
            "errors",
            "registry",
            "code",
            "results_version",
            "section",
            "system",
            "files",
            "csv_text",
            "fetching",
            "addresses",
            "redaction",
            "databases",
        },
        True,
    ),
]
# The same inside packages; files of one room may import one another, as long as they do not do so in a circle.
ROOMS: dict[str, Layers] = {
    "federation": [
        ({"loop"}, False),
        ({"execution"}, False),
        ({"scoring"}, False),
        ({"training"}, False),
        ({"method"}, False),
        ({"network", "state"}, False),
        ({"settings", "misuse"}, False),
        ({"losses"}, False),
    ],
    "tuning": [
        ({"commands", "suites", "tables"}, False),
        ({"findings"}, False),
        ({"session"}, False),
        ({"studies"}, False),
        ({"resources"}, False),
    ],
    "reports": [
        ({"comparison", "leaderboards", "suites"}, False),
        ({"numbers"}, False),
        ({"pages"}, False),
    ],
    "tracking": [
        ({"page"}, False),
        ({"runs"}, False),
        ({"sending"}, False),
        ({"spools", "descriptions", "target"}, False),
        ({"home", "provenance"}, False),
    ],
    "code": [
        ({"notebook", "script"}, False),
        ({"kept"}, False),
        ({"pickles"}, False),
        ({"digest", "definitions"}, False),
        ({"loaded"}, False),
        ({"syntax", "modules"}, False),
        ({"former", "values"}, False),
    ],
    "config": [
        (
            {"experiment", "arguments", "samples", "identity", "final_samples", "without_effect", "conflicts"},
            True,
        ),  # each of them speaks of the experiment
        ({"precedence"}, False),
        ({"paths", "presets"}, False),
        ({"fields", "yaml_files"}, False),
    ],
}

ONLY = {"mlflow": {"tracking"}, "ray": {"jobs"}, "optuna": {"tuning"}, "typer": {"cli"}}
PRIVATE = {
    "jobs": ROOT / "jobs" / "ray_instance.py",
    "tracking": ROOT / "tracking" / "target" / "mlflow_private.py",
    "tuning": ROOT / "tuning" / "studies" / "study_storage.py",
}
"""The file of each package that may use private parts of Ray, MLflow and Optuna."""
ENGINE = {"federation", "algorithms", "data", "models"}
LIGHT = {"torch", "torchvision", "numpy", "scipy", "pydantic", "pydantic_core", "safetensors", "pfl_ops"}

FILES = sorted(ROOT.rglob("*.py"))


def part_of(file: Path) -> str:
    first = file.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def imports(file: Path, lazy: bool = True) -> list[tuple[str, int]]:
    """(dotted module, line) of every import; `lazy`: those inside functions too, and names taken from a package."""
    nodes, found = [tree_of(file)], []
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: write the whole name, `from pfl_ops...`"
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
        elif lazy or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            nodes += ast.iter_child_nodes(node)
    return found


def may_import(layers: Layers, mine: str, theirs: str) -> bool:
    """True if `theirs` stands below `mine`, or is the same part, or on the same line where that is allowed."""
    rank = {part: n for n, (parts, _) in enumerate(layers) for part in parts}
    assert mine in rank, f"{mine} has no place yet: give it one, here and in the README"
    if mine == theirs or theirs not in rank:
        return True
    return rank[theirs] > rank[mine] or (rank[theirs] == rank[mine] and layers[rank[mine]][1])


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_a_layer_imports_only_what_stands_below_it(file: Path) -> None:
    mine = part_of(file)
    if mine == "__init__":
        return  # the door: lazy by design, see below
    for module, line in imports(file):
        names = module.split(".")
        if names[0] == "pfl_ops" and len(names) > 1:
            assert may_import(LAYERS, mine, names[1]), (
                f"{file.relative_to(ROOT.parent)}:{line}: {mine} imports {module}"
            )


@pytest.mark.parametrize("file", [f for f in FILES if part_of(f) in ROOMS], ids=lambda f: str(f.relative_to(ROOT)))
def test_a_room_imports_only_what_stands_below_it(file: Path) -> None:
    """Imports inside functions and for types alone count too."""
    package, *rest = file.relative_to(ROOT).parts
    mine = rest[0].removesuffix(".py")
    if mine == "__init__":
        bottom = {f"pfl_ops.{package}.{room}" for room in ROOMS[package][-1][0]}
        for name, line in imports(file, lazy=False):
            below = not name.startswith("pfl_ops.") or ".".join(name.split(".")[:3]) in bottom
            assert below or _is_for_types(file, line), "imported with each file: it imports the lowest rooms alone"
        return
    for module, line in imports(file):
        names = module.split(".")
        if names[:2] == ["pfl_ops", package] and len(names) > 2:
            fine = may_import(ROOMS[package], mine, names[2])
            assert fine, f"{file.relative_to(ROOT.parent)}:{line}: {mine} imports {module}"


def _is_for_types(file: Path, line: int) -> bool:
    """True if a line stands in a block `if TYPE_CHECKING:`."""
    blocks = [node for node in ast.walk(tree_of(file)) if isinstance(node, ast.If)]
    return any(ast.unparse(b.test) == "TYPE_CHECKING" and b.lineno < line <= (b.end_lineno or 0) for b in blocks)


def test_an_upward_import_is_refused() -> None:
    rooms = ROOMS["federation"]
    assert may_import(rooms, "training", "network") and may_import(rooms, "training", "training")
    assert not may_import(rooms, "network", "training") and not may_import(rooms, "network", "state")
    assert may_import(ROOMS["config"], "identity", "experiment")


def test_no_file_of_the_engine_imports_itself_through_others() -> None:
    """Imports inside functions and for types alone count too."""
    modules = {".".join(file.relative_to(ROOT.parent).with_suffix("").parts): file for file in FILES}
    engine = {name: file for name, file in modules.items() if name.startswith("pfl_ops.federation.")}
    graph = {
        name: {
            theirs for module, _ in imports(file) for theirs in (module, module.rpartition(".")[0]) if theirs in engine
        }
        for name, file in engine.items()
    }
    assert "pfl_ops.federation.method.batch" in graph["pfl_ops.federation.method.round"]
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError with the files of a circle


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_heavy_libraries_have_one_importer_each(file: Path) -> None:
    for module, line in imports(file):
        allowed = ONLY.get(module.split(".")[0])
        assert allowed is None or part_of(file) in allowed, f"{file}:{line}: only {allowed} may import {module}"


def private_uses(tree: ast.AST, own: set[str]) -> Iterator[tuple[str, int]]:
    """(name, line) of each private module, name or attribute of another package; `own`: private names of this one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            whole = [alias.name for alias in node.names]
            names = [part for name in [getattr(node, "module", None) or "", *whole] for part in name.split(".")]
        else:
            names = [node.attr] if isinstance(node, ast.Attribute) else []
        for name in names:
            if name.startswith("_") and not name.startswith("__") and name not in own:
                yield name, node.lineno


def test_private_parts_of_a_library_are_used_in_one_file() -> None:
    trees = {file: tree_of(file) for file in FILES if part_of(file) in PRIVATE}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    own = {"_replace", "_asdict"} | {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    own |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    own |= {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    found = {file: list(private_uses(tree, own)) for file, tree in trees.items()}
    used = {file: uses for file, uses in found.items() if uses}
    assert set(used) == set(PRIVATE.values()), used


@pytest.mark.parametrize("file", [f for f in FILES if part_of(f) in ENGINE], ids=lambda f: str(f.relative_to(ROOT)))
def test_the_engine_needs_torch_and_little_else(file: Path) -> None:
    """So that a study's worker starts fast: anything further is imported inside the function that needs it."""
    for module, line in imports(file, lazy=False):
        top = module.split(".")[0]
        assert top in LIGHT or top in sys.stdlib_module_names, f"{file}:{line}: import {top} where it is used"


@pytest.mark.parametrize("file", sorted((ROOT / "algorithms").glob("*.py")), ids=lambda f: f.name)
def test_algorithms_never_import_one_another(file: Path) -> None:
    for module, line in imports(file):
        names = module.split(".")
        if names[:2] == ["pfl_ops", "algorithms"] and len(names) > 2:
            assert names[2] not in ALGORITHMS.builtin, f"{file}:{line}: {file.stem} imports {names[2]}"


def _loaded_after(statement: str) -> set[str]:
    """Modules in a fresh interpreter after `statement`."""
    code = f"import sys; {statement}; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    return set(out.stdout.split())


def test_the_door_opens_at_once() -> None:
    """A start takes its time for loading."""
    heavy = {"torch", "numpy", "pydantic", "mlflow", "ray", "optuna", "typer", "pandas", "matplotlib", "yaml"}
    assert not _loaded_after("import pfl_ops") & heavy


def test_an_experiment_is_described_without_torch() -> None:
    modules = _loaded_after(
        "from pfl_ops.config.fields import settings; from pfl_ops import Experiment; list(settings(Experiment))"
    )
    assert "pfl_ops.config.experiment" in modules
    assert not modules & {"torch", "mlflow", "ray", "optuna", "typer", "pandas", "sklearn", "matplotlib"}


def test_names_are_listed_without_torch() -> None:
    modules = _loaded_after(
        "from pfl_ops.algorithms import ALGORITHMS; from pfl_ops.models import MODELS; "
        "from pfl_ops.data.partition import PARTITIONS; ALGORITHMS.names(), MODELS.names(), PARTITIONS.names()"
    )
    assert "torch" not in modules


def test_arguments_are_checked_without_torch() -> None:
    """`compare` has no use for it, and would wait seconds."""
    code = "from pfl_ops.config.arguments import checked; checked(lambda data_dir=None: None)(data_dir='data')"
    assert "torch" not in _loaded_after(code)
