"""A real `mlflow server` on loopback: it is killed in the middle of logging and started again."""

import time
import urllib.error
import urllib.request

import mlflow.pyfunc
import numpy as np
import pytest
from mlflow import MlflowClient

from pfl_ops import recording, runs
from pfl_ops.config.experiment import Experiment
from pfl_ops.models import MODELS, build
from pfl_ops.tracking import Store
from pfl_ops.tracking.descriptions.views import run_address, view_address
from pfl_ops.tracking.page.short import short_address
from pfl_ops.tracking.sending import delivery

OUTAGE = 200.0  # seconds that the server may be away: it starts slowly beside other tests

OTHER = """
    import sys
    from pathlib import Path
    from types import SimpleNamespace
    from pfl_ops.tracking import Store

    def rounds(first, last):
        return [SimpleNamespace(round=t, metrics={"train/loss": 1 / (1 + t)}, time=1700000000000 + 1000 * t)
                for t in range(first, last + 1)]

    store = Store.open(sys.argv[1], sys.argv[2])
    run = store.run("server", "other", identity="other")
    run.log(rounds(0, 19))
    print(run.run_id, flush=True)
    sys.stdin.readline()                    # the server is gone from here on
    run.log(rounds(20, 59))
    run.text("written while nobody was there", "notes/late.txt")
    print(run.finish(patience=0), store.close(patience=0), flush=True)
"""


def steps(client, run_id, key="train/loss"):
    return [p.step for p in client.get_metric_history(run_id, key)]


@pytest.mark.slow
def test_a_server_that_goes_away_gets_every_point_exactly_once(server, tmp_path, rounds, python, monkeypatch):
    monkeypatch.setattr(delivery, "LONGEST_PAUSE", 1.0)
    section = MODELS.get("cnn_tiny")()
    network = build(section, (8, 8, 1), 10, seed=1)
    work = tmp_path / "work"
    other = python(OTHER, str(work), server.uri, forked=True)

    with Store.open(work, server.uri) as store:
        study = store.run("server", "study", identity="study")
        run = store.run("server", "run", identity="run", parent=study, params={"lr": 0.1})
        for record in rounds(0, 29):
            run.log([record])
        run.table({"client": [0, 1]}, "clients.parquet")
        other_id = other.stdout.readline().strip()
        assert len(other_id) == 32, other.stderr.read()

        server.kill()
        for record in rounds(30, 89):
            run.log([record])
        run.text("written while nobody was there", "notes/late.txt")
        run.model(
            network.state_dict(),
            network=section.model_dump(),
            shape=(8, 8, 1),
            n_classes=10,
            mean=[0.3],
            std=[0.4],
            step=89,
        )
        late = store.run("server", "late", identity="late", parent=study)
        late.log(rounds(0, 4))
        assert not late.finish(patience=0)
        out, err = other.communicate("go\n", timeout=60)
        assert out.split() == ["False", "False"]
        assert other.returncode == 0, err
        assert "sent by the next pfl-ops command" in err
        time.sleep(2)

        server.start()
        for record in rounds(90, 99):
            run.log([record])
        assert run.finish(patience=OUTAGE)
        assert study.finish(patience=OUTAGE)
        assert store.deliver(patience=OUTAGE)  # what the other process left, too

        client = MlflowClient(server.uri)
        found = client.get_run(run.run_id)
        assert (found.info.status, found.data.params) == ("FINISHED", {"lr": "0.1"})
        assert sorted(steps(client, run.run_id)) == list(range(100))
        assert sorted(steps(client, run.run_id, "val/L1/acc")) == list(range(0, 100, 5))
        assert {p.timestamp for p in client.get_metric_history(run.run_id, "train/loss")} == {
            record.time for record in rounds(0, 99)
        }
        assert {a.path for a in client.list_artifacts(run.run_id)} >= {"clients.parquet", "notes"}
        assert store.download(run.run_id, "notes/late.txt").read_text() == "written while nobody was there"
        assert [m.step for m in found.outputs.model_outputs] == [89]
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
        model = mlflow.pyfunc.load_model(f"runs:/{run.run_id}/model", dst_path=str(tmp_path))
        assert len(model.predict(np.zeros((2, 8, 8, 1), np.uint8))) == 2

        assert client.get_run(other_id).info.status == "FINISHED"
        assert sorted(steps(client, other_id)) == list(range(60))
        assert store.download(other_id, "notes/late.txt").exists()

        assert sorted(r.name for r in store.runs("server")) == ["late", "other", "run", "study"]
        child = store.find("late", parent=study)
        assert (child.run_id, child.status) == (late.run_id, "FINISHED")
        assert sorted(steps(client, child.run_id)) == list(range(5))
        assert not [folder for folder in store.home.spool.iterdir() if folder.is_dir()]


@pytest.mark.slow
def test_runs_begun_while_the_server_is_down_are_there_once_when_it_is_up(stopped_server, tmp_path):
    """A run is recorded twice without its server (then it is read from its checkpoint), and once with it."""
    experiment = Experiment.of("fedavg", clients=4, rounds=2, train_size=200)
    where = {"home": tmp_path / "work", "tracking_uri": stopped_server.uri}
    for _ in range(2):
        result = runs.run(experiment, **where)
        assert result.run_id is None and result.page is None
    stopped_server.start()
    result = runs.run(experiment, **where)

    with Store.open(*where.values()) as store:
        assert store.deliver(patience=OUTAGE)
        (run,) = store.runs()
        assert (run.run_id, run.status, run.metrics[recording.FINISHED]) == (result.run_id, "FINISHED", 1.0)
        client = MlflowClient(stopped_server.uri)
        for key in run.metrics:
            found = steps(client, run.run_id, key)
            assert len(found) == len(set(found)), f"{key} is there twice"
        assert sorted(steps(client, run.run_id, "train/loss")) == [1, 2]
        assert len(client.get_run(run.run_id).outputs.model_outputs) == 1
        assert len(client.get_run(run.run_id).inputs.dataset_inputs) == 1
        assert not [folder for folder in store.home.spool.iterdir() if folder.is_dir()]


@pytest.mark.slow
def test_the_page_leads_on_from_short_addresses(server, tmp_path):
    """MLflow's own checks come first: a foreign host (DNS rebinding) is refused."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_):
            return None

    def ask(address, **headers):
        try:
            urllib.request.build_opener(Stay).open(urllib.request.Request(server.uri + address, headers=headers))
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Location"] or error.read().decode().strip()

    with Store.open(tmp_path / "work", server.uri) as store:
        run = store.run("an experiment/1", "a run", identity="one")
        page = run_address(run.experiment_id, run.run_id)
        assert ask(short_address("run", run.run_id)) == (307, page)
        runs_of_it = (307, view_address(run.experiment_id, "", charts=False))
        assert ask(short_address("experiment", "an experiment/1")) == runs_of_it
    assert ask("/study/nothing") == (404, "there is no study 'nothing' here; all that there is: /")
    assert ask("/study/nothing", Host="example.org")[0] == 403
