"""The check of a GPU on a machine without one: all of it but what only a GPU has."""

import json
import os
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from simulated_device import DEVICE, simulated_device

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.bench.gpu_check import __main__ as command
from pfl_ops.bench.gpu_check import agreement, cell, data, outcome, session, waits
from pfl_ops.bench.gpu_check.options import QUICK, Options
from pfl_ops.bench.gpu_check.outcome import CheckRow
from pfl_ops.data.datasets import load
from pfl_ops.federation.execution import choose
from pfl_ops.federation.training.chunk import Chunk

ABSENT = (
    "ray", "mlflow", "optuna", "typer", "rich", "matplotlib", "sklearn", "torchvision", "pyarrow", "sqlalchemy",
    "cloudpickle",
)  # fmt: skip
"""Packages without which the check runs: all that it has no need of."""

BLOCK = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
"""


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """A quick check on the CPU that has a minute left."""
    folder, _ = data.mnist(tmp_path, None, quick=True)
    return Options("cpu", QUICK, folder, data.small(tmp_path), time.monotonic() + 60, lambda line: None)


def late(o: Options) -> Options:
    """The same when the time is out."""
    return Options(o.device, o.sizes, o.data_dir, o.small, 0.0, o.say)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_quick_check_runs_without_other_packages(tmp_path: Path) -> None:
    """Every check in processes that can't import `ABSENT`: only rows that need a GPU are skipped, and none fails."""
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    done = subprocess.run(
        [sys.executable, "-m", "pfl_ops.bench.gpu_check", "--device", "cpu", "--quick", "--json", "found/gpu.json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}, cwd=tmp_path,
        capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "found" / "gpu.json").read_text())
    rows = [CheckRow(**row) for row in report["rows"]]
    assert report["machine"]["device"] == "cpu" and report["options"]["quick"] and report["seconds"] > 0
    assert {row.check for row in rows if row.status == "passed"} == set(session.CHECKS)
    skipped = {(row.check, row.name, row.reason) for row in rows if row.status == "skipped"}
    assert skipped == {
        ("data", "mnist", "mnist.npz: random data of MNIST's shape"),
        ("waits", "all methods", outcome.NO_GPU),
        *(("precisions", f"{m}, tf32, {w}", outcome.NO_GPU) for m in ("mlp", "cnn_tiny") for w in ("loop", "stacked")),
        ("processes", "cap on memory", outcome.NO_GPU),
    }
    names = [row.name for row in rows if row.check == "methods"]
    assert names == [*ALGORITHMS.builtin, *(f"fedavg, {settings}" for settings in agreement.SETTINGS)]
    speeds = {row.name for row in rows if row.check == "speed"}
    assert {f"{network}, stacks of {stack}" for network in QUICK.networks for stack in QUICK.stacks} <= speeds
    assert outcome.table(rows) in done.stdout


def test_parent_blocks_the_packages_of_its_children(tmp_path: Path) -> None:
    """The block of the test above works: Python itself reads sitecustomize.py."""
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    code = "import importlib.util\ntry:\n    import ray\nexcept ModuleNotFoundError as error:\n    print('no', error)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.stdout == "no ray\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "cpu", "--minutes", "0"], "--minutes must be above 0, got 0"),
        (["--device", "cpu", "--only", "method"], "no check named 'method'. Did you mean 'methods'?"),
    ],
)
def test_bad_option_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(words) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err == f"pfl-ops: {message}\n"


def test_missing_gpu_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main(["--only", "repeats"]) == 2
    said = capsys.readouterr().err
    assert said == "pfl-ops: device 'cuda' is not available on this machine; use --device cpu (or auto)\n"


def test_failed_check_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first check fails after a row, the second is fine: three rows and exit code 1."""

    def broken(o: Options) -> Iterator[CheckRow]:
        yield CheckRow("one", "first", "passed")
        raise RuntimeError("a kernel\nfailed")

    def fine(o: Options) -> Iterator[CheckRow]:
        yield CheckRow("two", "second", "passed")

    monkeypatch.setattr(session, "CHECKS", {"one": (broken,), "two": (fine,)})
    assert command.main(["--device", "cpu", "--quick"]) == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:-1]]
    assert [row[:3] for row in rows] == [
        ["skipped", "data", "mnist"], ["passed", "one", "first"], ["failed", "one", "broken"],
        ["passed", "two", "second"],
    ]  # fmt: skip
    assert " ".join(rows[2][3:]) == "RuntimeError: a kernel failed"


def test_cache_of_the_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random data and timings go to a folder that is removed; the variable is as it was."""

    def look(o: Options) -> Iterator[CheckRow]:
        yield CheckRow("look", os.environ["PFL_OPS_CACHE"], "passed")

    monkeypatch.setenv("PFL_OPS_CACHE", "mine")
    monkeypatch.setattr(session, "CHECKS", {"look": (look,)})
    report = session.check("cpu", QUICK, minutes=1, data_dir=None, only=(), quick=True, say=lambda line: None)
    seen = report["rows"][-1]["name"]
    assert os.environ["PFL_OPS_CACHE"] == "mine" and seen != "mine" and not Path(seen).parent.exists()


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", session.CHECKS)
def test_no_step_begins_when_the_time_is_out(name: str, options: Options) -> None:
    """Every step that is left out is named, and says why."""
    if name == "processes":
        rows = [row for check in session.CHECKS[name] for row in session._rows(late(options), name, check)]
    else:
        rows = [row for check in session.CHECKS[name][-1:] for row in check(late(options))]
    rows = [row for row in rows if row.reason != outcome.NO_GPU]
    assert rows and all((row.status, row.reason) == ("skipped", outcome.NO_TIME) for row in rows)


def test_step_that_raises_is_a_failed_row(options: Options) -> None:
    def measure() -> CheckRow:
        raise ValueError("no such kernel")

    assert outcome.step(options, "speed", "cnn", measure) == CheckRow(
        "speed", "cnn", "failed", "ValueError: no such kernel"
    )


# -- checks ------------------------------------------------------------------------------------------------------------


def test_method_whose_stacks_differ_fails(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """One method, whose stacked result is 2e-8 away; the tolerance is 1e-8."""
    monkeypatch.setattr(ALGORITHMS, "builtin", {"fedavg": ALGORITHMS.builtin["fedavg"]})
    monkeypatch.setattr(
        agreement,
        "results",
        lambda e, way: {"central": torch.full((3,), 2e-8 if way.way == "vmap" else 0.0, dtype=torch.float64)},
    )
    row = next(agreement.methods(options))
    assert (row.status, row.figures["from_cpu"], row.figures["stacked_from_loop"]) == ("failed", 0.0, 2e-8)


def test_run_that_does_not_repeat_fails(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run gives another last bit."""
    runs = iter(range(100))
    monkeypatch.setattr(agreement, "results", lambda e, way: {"central": torch.tensor([1.0 + next(runs) * 2**-20])})
    assert {row.status for row in agreement.repeats(options)} == {"failed"}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, 2.0], [1.5, 2.0], 0.5),
        ([float("nan"), 2.0], [float("nan"), 1.0], 1.0),
        ([float("nan"), 2.0], [1.0, 2.0], float("inf")),
        ([], [], 0.0),
    ],
)
def test_difference_is_the_largest_one(one: list[float], other: list[float], expected: float) -> None:
    assert agreement.difference({"a": torch.tensor(one)}, {"a": torch.tensor(other)}) == expected


def test_cell_is_extrapolated_from_rounds_after_the_first() -> None:
    """Rounds of 9, 1, 3 s training and 9, 2, 2 s evaluation: 100 rounds of 2 + 2 s are 400 s."""
    costs = [(9.0, 9.0), (1.0, 2.0), (3.0, 2.0)]
    rounds = [
        {"cost/train_seconds": t, "cost/eval_seconds": e, "cost/samples_per_second": 5.0, "train/loss": 1.0}
        for t, e in costs
    ]
    row = cell.extrapolated("a cell", rounds, wanted=5, total=100)
    assert row.figures["hours_of_100_rounds"] == pytest.approx(400 / 3600)
    assert (row.status, row.reason) == ("passed", "3 of 5 rounds, time is out")
    rounds[-1]["train/loss"] = float("nan")
    assert cell.extrapolated("a cell", rounds, wanted=3, total=100).status == "failed"


class Slow:
    """A process that answers some calls and is then still at work."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers, self.pipe, self.ended = iter(answers), self, False
        self.next: list[Any] = []

    def begin(self, method: str) -> None:
        self.next = list(islice(self.answers, 1))

    def poll(self, seconds: float) -> bool:
        return bool(self.next)

    def answer(self) -> Any:
        return self.next[0]

    def kill(self) -> None:
        self.ended = True


@pytest.mark.parametrize("rounds", [0, 1])
def test_cell_that_is_too_slow_is_cut_and_not_failed(
    rounds: int, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers up to the start, and up to the first round: what was measured is said, and the rest is skipped."""
    cost = {"cost/train_seconds": 3.0, "cost/eval_seconds": 1.0, "cost/samples_per_second": 5.0, "train/loss": 1.0}
    said = [{"execution": "loop", "rounds": 100}, {"seconds": 400.0, "mib": 100.0}, {}, *[cost] * rounds]
    process = Slow(said)
    monkeypatch.setattr(cell, "HostedProcess", lambda *_: process)
    first, second, third = cell.cell(options)
    assert (first.name, first.status, third.name, third.reason) == ("estimate", "passed", "memory", outcome.NO_TIME)
    assert process.ended and (second.status, second.reason) == (
        ("passed", "1 of 2 rounds, time is out") if rounds else ("skipped", outcome.NO_TIME)
    )


def test_peak_above_the_estimate_fails(options: Options) -> None:
    """A process of 1,000 MiB, of which 750 are the libraries': 250 against an estimate of 200, and of 300."""
    peaks = {"process": 1000.0}
    assert [cell._memory(options, peaks, mib).status for mib in (200.0, 300.0)] == ["failed", "passed"]


@pytest.mark.slow
def test_checks_of_results_pass_on_a_simulated_gpu(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """The branches for a GPU, on a simulated device with the numbers of the CPU; three methods stand for all.

    PyTorch's detector finds nothing there, so that no wait is seen.
    """
    sizes = replace(options.sizes, networks={"linear": 10, "cnn": 5})
    on_gpu = Options("cuda", sizes, options.data_dir, options.small, options.end + 200, options.say)
    builtin = {name: ALGORITHMS.builtin[name] for name in ("apfl", "fedper", "fedavg")}
    monkeypatch.setattr(ALGORITHMS, "builtin", builtin)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    monkeypatch.setattr(agreement, "SETTINGS", {"mlp, adam": agreement.SETTINGS["mlp, adam"]})
    monkeypatch.setattr(agreement, "PRECISION_TOLERANCES", {"float32": 1e-5})
    rows: list[CheckRow] = []
    where = {"cpu": torch.device("cpu"), "cuda": DEVICE}
    with simulated_device() as seen, monkeypatch.context() as inside:  # undone before the device is left
        inside.setattr(choose, "device", lambda execution, precision: where[execution.device])
        for check in (agreement.methods, agreement.repeats, agreement.precisions, agreement.scores):
            rows += check(on_gpu)
    assert seen.chunks > 0 and [row for row in rows if row.status != "passed"] == []
    assert [row.name for row in rows if row.check == "waits"][:2] == ["apfl", "fedper"]
    assert {row.check for row in rows} == {"methods", "waits", "repeats", "precisions", "scores"}


# -- waits -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def detector(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """PyTorch's detector without a GPU: a batch that is taken warns, as a wait does, while the mode is "warn"."""
    mode = ["default"]
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda value: mode.append(value))

    def batches(self: Chunk, *_: Any) -> Iterator[int]:
        for i in range(2):
            if mode[-1] == "warn":
                warnings.warn("called a synchronizing CUDA operation (made up)", stacklevel=1)
            yield i

    monkeypatch.setattr(Chunk, "batches", batches)
    return mode


def test_waits_are_counted_between_first_and_last_batch(detector: list[str]) -> None:
    found: Counter[str] = Counter()
    chunk = object.__new__(Chunk)
    with waits.waits_in_steps(found):
        warnings.warn("called a synchronizing CUDA operation (beside the steps)", stacklevel=1)
        detector.append("default")
        assert list(chunk.batches()) == [0, 1]
        assert detector[-1] == "default"
    inside = {place: count for place, count in found.items() if place.startswith("test_gpu_check.py")}
    assert sorted(inside.values()) == [1, 2] and detector.count("warn") == 1


def test_unknown_wait_fails_and_a_known_one_is_said() -> None:
    known = agreement._waits("a title", "fedala", Counter({"fedala.py:99": 3}))
    assert (known.status, known.reason, known.figures) == ("passed", "known: fedala.py:99", {"waits": 3})
    other = agreement._waits("a title", "fedavg", Counter({"fedala.py:99": 3, "train.py:7": 1}))
    assert (other.status, other.reason) == ("failed", "steps wait at fedala.py:99, train.py:7")
    assert agreement._waits("a title", "fedavg", Counter()).status == "passed"


# -- data --------------------------------------------------------------------------------------------------------------


def test_mnist_is_taken_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the folder that is named, or that of PFL_OPS_DATA; quick checks never read it."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mnist.npz").touch()
    there = str(tmp_path / "there")
    assert data.mnist(tmp_path, there, quick=False) == (there, "")
    monkeypatch.setenv("PFL_OPS_DATA", there)
    assert data.mnist(tmp_path, None, quick=False) == (there, "")
    folder, said = data.mnist(tmp_path, None, quick=True)
    assert folder == str(tmp_path) and "random" in said


def test_absent_mnist_becomes_random_data_of_its_shape(tmp_path: Path) -> None:
    folder, said = data.mnist(tmp_path, str(tmp_path / "nowhere"), quick=False)
    assert said == "mnist.npz: random data of MNIST's shape, for it was not found"
    with np.load(Path(folder) / "mnist.npz") as file:
        shapes = {name: file[name].shape for name in file}
        assert np.bincount(file["y_train"]).tolist() == [6000] * 10
    assert shapes == {
        "x_train": (60_000, 28, 28, 1), "y_train": (60_000,), "x_test": (10_000, 28, 28, 1), "y_test": (10_000,)
    }  # fmt: skip


def test_small_file_is_a_data_set(options: Options) -> None:
    found = load(options.small)
    assert (found.shape, found.n_classes, len(found.train.y), len(found.test.y)) == ((8, 8, 1), 10, 64, 24)
