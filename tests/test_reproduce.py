"""`reproduce` as a user starts it: real cells through real Ray, a report, a store, and nothing run twice."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from end_to_end import pfl_ops
from mlflow.tracking import MlflowClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def runs(home: Path) -> dict[str, object]:
    """Name of each tracked run -> it."""
    client = MlflowClient(f"sqlite:///{home}/mlruns/mlflow.db")
    found = client.search_runs([e.experiment_id for e in client.search_experiments()])
    return {run.info.run_name: run for run in found}


@pytest.mark.needs_data("mnist")
def test_a_table_at_a_glance_and_again(tmp_path: Path, furnish: Callable[[Path], Path]) -> None:
    furnish(tmp_path / "mlruns")
    words = ["reproduce", "fliu/table1", "--only", "path/{fedavg,fliu}"]
    told = pfl_ops(*words, home=tmp_path)
    assert "2 of 40" in told
    assert "substitute" not in told

    report = tmp_path / "reports" / "fliu" / "table1"
    files = {str(path.relative_to(report)) for path in report.rglob("*") if path.is_file()}
    assert {"index.html", "report.md", "report.tex", "tables/table1.csv", "tables/table1.tex", "summary.json"} <= files
    page = (report / "index.html").read_text()
    for said in ("Scale smoke", "85.72", "FLIU25", "not run", "not judged", "training.rounds"):
        assert said in page
    assert "Substitute" not in page
    assert "fliu/table1" in (tmp_path / "reports" / "index.html").read_text()
    summary = json.loads((report / "summary.json").read_text())
    assert (summary["cells"], summary["of"], summary["failed"]) == (2, 40, 0)
    assert summary["paper"]["does not hold"] > 0  # some of its sentences fail in its own numbers

    before = runs(tmp_path)
    suite, cell = before["fliu/table1 smoke"], before["path/fliu seed 0"]
    assert cell.data.tags["mlflow.parentRunId"] == suite.info.run_id
    assert cell.data.tags["pfl_ops.cell"] == "path/fliu"
    assert f"/runs/{cell.info.run_id}" in page
    client = MlflowClient(f"sqlite:///{tmp_path}/mlruns/mlflow.db")
    assert "report/table1/index.html" in {f.path for f in client.list_artifacts(suite.info.run_id, "report/table1")}

    assert pfl_ops(*words, home=tmp_path) == told
    after = runs(tmp_path)
    assert {name: run.info.end_time for name, run in after.items() if "seed" in name} == {
        name: run.info.end_time for name, run in before.items() if "seed" in name
    }


def test_data_that_are_not_here_are_replaced_under_a_visible_mark(
    tmp_path: Path, furnish: Callable[[Path], Path]
) -> None:
    furnish(tmp_path / "mlruns")
    nowhere = {"PFL_OPS_DATA": "", "PFL_OPS_CACHE": str(tmp_path / "cache")}
    words = ["reproduce", "fliu/table1", "--only", "path/{fedavg,fliu}", "--concurrency", "1"]
    told = pfl_ops(*words, home=tmp_path, env=nowhere)
    assert "substitute data: digits" in told
    page = (tmp_path / "reports" / "fliu" / "table1" / "index.html").read_text()
    assert "Substitute data" in page
    summary = json.loads((tmp_path / "reports" / "fliu" / "table1" / "summary.json").read_text())
    assert summary["stand_ins"] == ["digits"]
    assert summary["ours"]["not judged"] > 0
    assert not summary["ours"].get("holds") and not summary["ours"].get("does not hold")
