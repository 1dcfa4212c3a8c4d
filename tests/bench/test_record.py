"""A benchmark as an MLflow run."""

import json

from pfl_ops.bench.record import EXPERIMENT, record
from pfl_ops.tracking import Store


def test_it_is_kept_as_a_run(report, monkeypatch, tmp_path, furnish):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_id = record(report, home=furnish(tmp_path))
    assert record(report, home=tmp_path) != run_id  # each is a run of its own
    with Store.open(tmp_path) as store:
        run = store.runs(EXPERIMENT)[0]
        kept = json.loads(store.download(run_id, "bench.json").read_text())
    assert (run.run_id, run.status, run.name) == (run_id, "FINISHED", "bench-mlp")
    assert run.params["machine.cpu"] == report.machine["cpu"] and run.params["bench.clients"] == "20"
    assert run.metrics["mlp/b50/loop/float32/train/median"] == 3500
    assert kept == json.loads(json.dumps(report.to_dict()))
