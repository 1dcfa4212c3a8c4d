"""`pfl-ops bench`: its flags, and what reaches the layers below."""

import json
from types import SimpleNamespace

import pytest
from full_disk import full_disk
from typer.testing import CliRunner

from pfl_ops.bench import record, session
from pfl_ops.bench.settings import QUICK, BenchSettings, settings_of
from pfl_ops.cli import app
from pfl_ops.cli.bench import BENCH


def cli(*words):
    return CliRunner().invoke(app, ["bench", *words])


@pytest.fixture
def fake(report, monkeypatch):
    """Stands for the measurement and for MLflow: records what each was asked for."""
    asked = SimpleNamespace(settings=[], given=[], kept=[])

    def bench(settings, **given):
        asked.settings.append(settings)
        given["say"]("mlp on mnist, B 50: warm-up")
        asked.given.append(given)
        return report

    monkeypatch.setattr(session, "bench", bench)
    monkeypatch.setattr(record, "record", lambda found, **where: asked.kept.append((found, where)) or "an-id")
    return asked


def test_every_setting_is_a_flag_that_shows_its_default():
    assert {flag.path for flag in BENCH} == set(BenchSettings.model_fields)
    for flag in BENCH:
        default = BenchSettings.model_fields[flag.path].default
        text = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
        assert default is None or flag.default == text


def test_it_measures_prints_and_keeps(fake, report, tmp_path):
    file = tmp_path / "bench.json"
    result = cli(
        "--model", "linear,mlp", "--batch", "10,50", "--repeats", "3", "--json", str(file), "--data-dir", str(tmp_path)
    )
    assert result.exit_code == 0, result.output
    assert fake.settings == [settings_of({"model": "linear,mlp", "batch": "10,50", "repeats": 3})]
    assert fake.given[0]["data_dir"] == str(tmp_path)
    assert json.loads(file.read_text()) == json.loads(json.dumps(report.to_dict()))
    assert fake.kept == [(report, {"tracking_uri": None})]
    assert "mlp on mnist, B 50, sgd" in result.stdout and "an-id  (experiment bench)" in result.stdout
    assert result.stderr == "mlp on mnist, B 50: warm-up\n"


def test_nothing_measured_is_an_error_and_kept_nowhere(fake, report, tmp_path):
    """`bench --model linear --dataset digits` asks for 500 of 359 test images. It ended well, with an MLflow run."""
    report.cases.clear()
    result = cli("--json", str(tmp_path / "bench.json"))
    assert result.exit_code == 2 and not result.stdout and not fake.kept and not list(tmp_path.iterdir())
    assert result.stderr.endswith("pfl-ops: nothing was measured: no network and batch size could be\n")


def test_the_quick_scale_is_changed_by_flags(fake):
    assert cli("--quick", "--clients", "5", "--no-track").exit_code == 0
    assert fake.settings == [BenchSettings.model_validate({**QUICK, "clients": 5})] and not fake.kept


def test_a_full_disk_leaves_the_old_numbers_and_the_run_is_tracked(fake, tmp_path):
    file = tmp_path / "bench.json"
    file.write_text("old")
    with full_disk(after=100):
        result = cli("--json", str(file))
    assert result.exit_code == 2 and result.stderr.endswith(f"pfl-ops: can't write {file}: File too large\n")
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]
    assert len(fake.kept) == 1 and "mlp on mnist" in result.stdout
