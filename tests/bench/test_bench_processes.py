"""A candidate in a process of its own, and a whole benchmark at its smallest."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from bench_case import small

from pfl_ops.bench.__main__ import main
from pfl_ops.bench.candidate import Label
from pfl_ops.bench.process import Entrant
from pfl_ops.bench.session import bench
from pfl_ops.bench.settings import settings_of
from pfl_ops.data.npz import DataError
from pfl_ops.errors import PflOpsError
from pfl_ops.system import memory

SMALLEST = {
    "dataset": "digits", "model": "linear", "batch": 10, "clients": 4, "steps": 2, "repeats": 2, "seconds": 0.001,
    "precision": "float32", "chunk": 2, "workers": 1, "evaluate_models": 4, "evaluate_images": 60, "threads": 1,
    "device": "cpu", "rounds": 20,
}  # fmt: skip


@pytest.mark.slow
def test_a_candidate_has_a_process_of_its_own():
    """It times itself; its memory is its own, though it was started from this process; that it dies is told."""
    mine = np.ones(1 << 26)  # 512 MiB
    one = Entrant(small("linear", steps=2), Label("vmap", chunk=2), threads=1)
    try:
        assert (one.figures, one.count) == (("train", "evaluate", "round"), 1)
        assert one.trial("train") > 0 and one.warm("evaluate", 0.001).calls >= 1 and one.seconds("round", 2) > 0
        own = memory._resident("self")
        assert own is not None and 100 < one.memory_mib() < own.peak / 2**20 - 300
        os.kill(one._process.pid, signal.SIGKILL)
        with pytest.raises(PflOpsError, match="a process was killed"):
            one.trial("train")
    finally:
        one.close()
    assert mine[-1] == 1 and one._process._process.returncode is not None


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_a_refusal_comes_back_as_one_line():
    with pytest.raises(PflOpsError, match=r"^precision 'tf32' needs a CUDA device"):
        Entrant(small("linear", steps=2), Label("loop", "tf32"), threads=1)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_a_whole_benchmark(monkeypatch, tmp_path):
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path))
    monkeypatch.setattr("pfl_ops.bench.entrants.find_spec", lambda name: None)  # without JAX, which starts slowly
    monkeypatch.setattr("pfl_ops.bench.peak.SIDE", {"cpu": 64})
    lines = []
    report = bench(settings_of({**SMALLEST, "model": "linear,cnn6"}), say=lines.append)
    [case] = report.cases
    assert [str(row.label) for row in case.rows][:2] == ["plain loop", "loop"]
    for row in case.rows[:2]:
        assert {figure: series.n for figure, series in row.figures.items()} == dict.fromkeys(row.figures, 2)
        assert set(row.figures) == {"train", "evaluate", "round"} and row.memory_mib > 100
    assert [len(series.values) for series in case.peaks.values()] == [2]
    assert case.auto is not None
    [skipped] = report.skipped  # digits are too small for cnn6
    assert skipped.startswith("cnn6, B 10: model 'cnn6' pools 2 times and needs images of at least 16 x 16")
    assert "linear on digits, B 10: 2 of 2" in lines
    json.dumps(report.to_dict())


def test_missing_data_skip_a_case_in_one_line(monkeypatch, tmp_path):
    def offline(name):
        raise DataError("no network")

    monkeypatch.setattr("pfl_ops.data.download.fetch", offline)
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path))
    report = bench(settings_of({**SMALLEST, "dataset": None}), data_dir=str(tmp_path / "nowhere"))
    [line] = report.skipped
    assert line.startswith("linear, B 10: mnist is not in") and "nowhere" in line and "--data-dir" in line
    assert "\n" not in line and not report.cases


def test_without_the_command_line(report, monkeypatch, tmp_path, capsys):
    asked = []
    monkeypatch.setattr("pfl_ops.bench.session.bench", lambda settings, **given: asked.append(settings) or report)
    file = tmp_path / "bench.json"
    assert main(["model=mlp", "batch=10,50", "quick=yes", f"json={file}"]) == 0
    assert asked == [settings_of({"model": "mlp", "batch": "10,50"}, quick=True)]
    assert "mlp on mnist, B 50" in capsys.readouterr().out
    assert json.loads(file.read_text()) == json.loads(json.dumps(report.to_dict()))
    assert main(["repeats=0"]) == 2
    assert capsys.readouterr().err == "pfl-ops: repeats (n) must be an integer in [1, 1,000,000], got '0'\n"


def test_it_needs_no_mlflow_ray_optuna_or_typer():
    code = (
        "import sys; import pfl_ops.bench.__main__, pfl_ops.bench.session, pfl_ops.bench.table, pfl_ops.bench.plain; "
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"mlflow", "ray", "optuna", "typer", "pandas", "sqlalchemy", "jax"}
