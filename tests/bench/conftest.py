"""Parts of several tests; none of them changes it."""

import pytest
import torch
from bench_case import small

from pfl_ops.bench.candidate import Label
from pfl_ops.bench.case import Case, Work
from pfl_ops.bench.measure import Series
from pfl_ops.bench.report import BenchRow, CaseReport, Report, machine
from pfl_ops.bench.settings import BenchSettings


@pytest.fixture(scope="session")
def linear() -> Case:
    return small("linear", steps=5)


@pytest.fixture(scope="session")
def tiny() -> Case:
    return small("cnn_tiny", steps=3)


@pytest.fixture
def case() -> CaseReport:
    """A report of two turns, with made-up numbers."""
    plain, loop, jax = Label("plain"), Label("loop"), Label("jax")
    stacked = Label("vmap", chunk=20, workers=2)
    behind = Series((900.0,), given_up=True)
    rows = [
        BenchRow(
            plain, {"train": Series((1e3, 2e3)), "evaluate": Series((5e3, 5e3)), "round": Series((1.0, 2.0))}, 700
        ),
        BenchRow(loop, {"train": Series((3e3, 4e3)), "evaluate": behind}, 600.4, chosen=True),
        BenchRow(stacked, {"train": Series((123_456.0, 234_567.0)), "round": Series((25.0, 50.0))}, 1_234.5),
        BenchRow(jax, {"train": Series((1.5e3, 4e3))}),
    ]
    return CaseReport(
        model="mlp", dataset="mnist", batch=50, optimiser="sgd", clients=20, steps=12, parameters=199_210,
        work=Work(train=1_000_000, forward=400_000), rows=rows, peaks={("float32", 1): Series((8e9, 1e10))},
        threads={plain: 1, loop: 1, stacked: 2, jax: 1}, auto=loop, notes=["a line on who could not take part"],
    )  # fmt: skip


@pytest.fixture
def report(case: CaseReport) -> Report:
    return Report(machine(torch.device("cpu")), BenchSettings(), [case], ["cnn, B 50: no data"], 12.0)
