"""A target that fails: nothing is lost, nothing comes twice, the caller never waits or dies."""

import logging
import os
import threading
import time

import numpy as np
import pytest
import requests
import torch
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException, RestException
from test_logs import make_noise

from pfl_ops.errors import PflOpsError
from pfl_ops.models import MODELS, build
from pfl_ops.tracking import Store
from pfl_ops.tracking.runs import store as store_module
from pfl_ops.tracking.sending import delivery
from pfl_ops.tracking.sending.sender import Sender
from pfl_ops.tracking.spools import spool as spool_module


@pytest.fixture(scope="module")
def work(tmp_path_factory, furnish):
    return furnish(tmp_path_factory.mktemp("work"))


@pytest.fixture
def outage(monkeypatch):
    """A switch: while it is off, whatever is sent fails as with a server that is gone."""

    class Switch:
        down = False
        tried = 0

    switch, send, run_id = Switch(), Sender.send, Sender.run_id

    def fail():
        switch.tried += 1
        raise MlflowException("API request failed with exception: connection refused")

    monkeypatch.setattr(Sender, "send", lambda self, *a: fail() if switch.down else send(self, *a))
    monkeypatch.setattr(Sender, "run_id", lambda self, *a: fail() if switch.down else run_id(self, *a))
    monkeypatch.setattr(delivery, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(delivery, "LONGEST_PAUSE", 0.2)
    return switch


def steps(store, run_id, key="train/loss"):
    return sorted(p.step for p in MlflowClient(store.target.uri).get_metric_history(run_id, key))


def test_a_run_goes_on_while_nobody_answers_and_all_is_there_afterwards(work, outage, rounds, tmp_path, caplog):
    with Store.open(work) as store:
        run = store.run("gone", "run", identity="gone")
        run.log(rounds(0, 9))
        outage.down = True
        run.log(rounds(10, 39))
        (tmp_path / "file.txt").write_text("content")
        run.artifact(tmp_path / "file.txt", "folder")
        (tmp_path / "file.txt").unlink()
        late = store.run("gone", "child", identity="gone child", parent=run, params={"a": 1})
        late.log(rounds(0, 4))
        assert not late.finish(patience=0)
        time.sleep(0.3)
        assert late.run_id is None
        outage.down = False
        assert run.finish()
        assert store.deliver()
        assert steps(store, run.run_id) == list(range(40))
        assert store.download(run.run_id, "folder/file.txt").read_text() == "content"
        child = store.find("gone child", parent=run)
        assert (child.status, child.params, child.run_id) == ("FINISHED", {"a": "1"}, late.run_id)
        assert steps(store, child.run_id) == list(range(5))
        assert outage.tried
    warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert sum("they are kept and sent later" in message for message in warnings) == 1


def test_what_is_left_is_sent_by_the_next_store(work, outage, rounds, tmp_path):
    section = MODELS.get("cnn_tiny")()
    network = build(section, (8, 8, 1), 10, seed=1)
    store = Store.open(work)
    run = store.run("left", "run", identity="left")
    assert store._delivery.wait()
    outage.down = True
    run.log(rounds(0, 24))
    run.table({"client": [0], "accuracy": [1.0]}, "clients.parquet")
    run.model(
        network.state_dict(),
        network=section.model_dump(),
        shape=(8, 8, 1),
        n_classes=10,
        mean=[0.3],
        std=[0.4],
        step=24,
    )
    assert not run.finish(patience=0)
    assert not store.close(patience=0)
    outage.down = False
    with Store.open(work) as later:
        assert later.deliver()
        info = later.find("left")
        assert (info.status, info.run_id) == ("FINISHED", run.run_id)
        assert steps(later, run.run_id) == list(range(25))
        assert later.download(run.run_id, "clients.parquet").exists()
        models = MlflowClient(later.target.uri).get_run(run.run_id).outputs.model_outputs
        assert [model.step for model in models] == [24]
        assert not [f for f in later.home.spool.iterdir() if f.is_dir()]


def test_sending_everything_twice_changes_nothing(work, rounds, tmp_path):
    """As after a process that died between sending an entry and noting that it was sent."""
    section = MODELS.get("linear")()
    network = build(section, (4,), 3, seed=1)
    (tmp_path / "a.txt").write_text("a")

    def record(run):
        run.log(rounds(0, 14))
        run.dataset("d", "digest", {"name": "d"})
        run.artifact(tmp_path / "a.txt")
        state = network.state_dict()
        run.model(state, network=section.model_dump(), shape=(4,), n_classes=3, mean=[0.0] * 4, std=[1.0] * 4)

    with Store.open(work) as store:
        for _ in range(2):
            run = store.run("twice", "run", identity="twice", tags={"a": 1}, params={"b": 2})
            record(run)
            assert run.finish()
        found = MlflowClient(store.target.uri).get_run(run.run_id)
        assert len(found.inputs.dataset_inputs) == 1
        assert len(found.outputs.model_outputs) == 1
        assert steps(store, run.run_id) == list(range(15))


def test_an_answer_that_was_lost_leaves_one_point(work, rounds, monkeypatch):
    """The target took the batch, but the answer never came: the same batch goes out again."""
    log_batch, lost = MlflowClient.log_batch, []

    def lossy(self, run_id, metrics=(), **rest):
        log_batch(self, run_id, metrics=metrics, **rest)
        if metrics and not lost:
            lost.append(True)
            raise MlflowException("API request failed with timeout exception")

    monkeypatch.setattr(MlflowClient, "log_batch", lossy)
    monkeypatch.setattr(delivery, "FIRST_PAUSE", 0.05)
    with Store.open(work) as store:
        run = store.run("lost", "run", identity="lost")
        run.log(rounds(0, 9))
        assert run.finish()
        assert lost
        assert steps(store, run.run_id) == list(range(10))


def test_an_entry_that_is_refused_is_put_away_and_the_rest_goes_on(work, rounds, caplog):
    with Store.open(work) as store:
        run = store.run("refused", "run", identity="refused")
        run.tags({"no/such*name?": 1})
        run.log(rounds(0, 3))
        assert run.finish()
        assert steps(store, run.run_id) == list(range(4))
        assert store.find("refused").status == "FINISHED"
        kept = run.spool.folder / "refused.jsonl"
        assert "no/such*name?" in kept.read_text()
    assert any("MLflow refused tags of run 'run'" in record.message for record in caplog.records)


def test_an_experiment_that_is_refused_says_so_at_once(work):
    with Store.open(work) as store:
        with pytest.raises(PflOpsError, match="MLflow refuses run 'run'"):
            store.run("x" * 600, "run", identity="long")
        assert not [f for f in store.home.spool.iterdir() if f.is_dir() and not (f / "refused.jsonl").exists()]


def test_a_rerun_is_found_again_while_nobody_answers(work, outage, rounds):
    """Computed anew and killed while the target is down, then gone on with: one new run, not two."""
    with Store.open(work) as store:
        first = store.run("rerun", "run", identity="rerun")
        first.log(rounds(0, 9))
        assert first.finish()
    store = Store.open(work)
    outage.down = True
    again = store.run("rerun", "run", identity="rerun", rerun="a")
    again.log(rounds(0, 4, clock=1_800_000_000_000))
    assert not store.close(patience=0)
    store = Store.open(work)
    again = store.run("rerun", "run", identity="rerun")
    again.log(rounds(0, 9, clock=1_800_000_000_000))
    assert not again.finish(patience=0)
    outage.down = False
    assert store.deliver()
    old, new = store.runs("rerun", superseded=True)
    assert (old.run_id, old.status, old.tags["pfl_ops.superseded"]) == (first.run_id, "FINISHED", new.run_id)
    assert (new.status, new.tags["pfl_ops.rerun"]) == ("FINISHED", "a") and new.run_id == again.run_id
    assert steps(store, old.run_id) == steps(store, new.run_id) == list(range(10))
    times = MlflowClient(store.target.uri).get_metric_history(new.run_id, "train/loss")
    assert min(point.timestamp for point in times) == 1_800_000_000_000
    assert [run.run_id for run in store.runs("rerun")] == [new.run_id]
    third = store.run("rerun", "run", identity="rerun")
    assert third.run_id == new.run_id, "everything is delivered: MLflow knows the newest"
    with pytest.raises(PflOpsError, match="is being recorded; finish it before"):
        store.run("rerun", "run", identity="rerun", rerun="b")
    third.finish()
    store.close()


def test_a_rerun_is_the_newest_after_the_clock_was_set_back(work, monkeypatch):
    """Computed anew twice, each time with an earlier clock: the last one counts, the others are superseded."""
    with Store.open(work) as store:
        for rerun, clock in (("", 3000), ("a", 2000), ("b", 1000)):
            monkeypatch.setattr(store_module, "now", lambda clock=clock: clock)
            run = store.run("clock", "run", identity="clock", rerun=rerun)
            assert run.finish()
        assert [one.run_id for one in store.runs("clock")] == [run.run_id]


def test_an_outage_is_one_line_that_names_the_file(work, monkeypatch, caplog, capfd):
    with Store.open(work) as store:
        run = store.run("noise", "run", identity="noise")
        assert store.deliver()
        send, tried = Sender.send, []

        def fail(*_):
            tried.append(1)
            make_noise()
            raise MlflowException("API request to http://user:secret@h failed with exception refused")

        monkeypatch.setattr(delivery, "FIRST_PAUSE", 0.01)
        monkeypatch.setattr(delivery, "LONGEST_PAUSE", 0.01)
        monkeypatch.setattr(Sender, "send", fail)
        run.tags({"a": 1})
        while len(tried) < 3:
            time.sleep(0.01)
        monkeypatch.setattr(Sender, "send", send)
        assert run.finish()
    (line,) = [
        record.getMessage() for record in caplog.records if record.name == "pfl_ops.tracking" and record.levelno > 20
    ]
    file = work / "pfl-ops.log"
    assert line.endswith(f"they are kept and sent later; details: {file}") and "\n" not in line
    assert file.read_text().count("Traceback") >= 12 and "secret" not in file.read_text()
    assert "Traceback" not in capfd.readouterr().err


def response(status):
    answer = requests.Response()
    answer.status_code = status
    return requests.HTTPError("no", response=answer)


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (MlflowException("API request failed with exception: refused"), "later"),
        (RestException({"error_code": "INTERNAL_ERROR", "message": "?"}), "odd"),
        (RestException({"error_code": "TEMPORARILY_UNAVAILABLE", "message": "busy"}), "later"),
        (RestException({"error_code": "INVALID_PARAMETER_VALUE", "message": "no"}), "never"),
        (RestException({"error_code": "PERMISSION_DENIED", "message": "no"}), "later"),
        (response(503), "later"),
        (response(401), "later"),
        (response(404), "never"),
        (OSError("disk full"), "later"),
        (TypeError("a mistake of ours"), "odd"),
    ],
)
def test_what_an_error_means(error, meaning):
    assert delivery.verdict(error) == meaning


def test_an_entry_that_always_fails_is_given_up_after_some_tries(work, monkeypatch, rounds):
    monkeypatch.setattr(delivery, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(delivery, "LONGEST_PAUSE", 0.01)
    monkeypatch.setattr(Sender, "_dataset", lambda *_: 1 / 0)
    with Store.open(work) as store:
        run = store.run("odd", "run", identity="odd")
        run.dataset("d", "digest", {})
        run.log(rounds(0, 3))
        assert run.finish()
        assert steps(store, run.run_id) == list(range(4))


def test_an_entry_that_fails_before_its_append_returns_is_tried_again(work, monkeypatch, rounds):
    """The delivery reads a line, fails and goes to sleep while `append` still syncs it; no later append comes."""
    written, asleep = threading.Event(), threading.Event()
    sync, send, dataset = os.fsync, Sender.send, Sender._dataset
    until_next_try, failures = delivery.Delivery._until_next_try, [ZeroDivisionError()]

    def synced(handle):
        sync(handle)
        if any(b'"dataset"' in path.read_bytes() for path in (work / "spool").rglob("journal.jsonl")):
            written.set()
            assert asleep.wait(30)

    def sent(self, spool, entry):
        assert written.wait(30)
        return send(self, spool, entry)

    def failed(self, *arguments):
        if failures:
            raise failures.pop()
        return dataset(self, *arguments)

    def looked(self):
        found = until_next_try(self)
        if not failures:
            asleep.set()
        return found

    monkeypatch.setattr(delivery, "FIRST_PAUSE", 1.0)
    monkeypatch.setattr(spool_module.os, "fsync", synced)
    monkeypatch.setattr(Sender, "send", sent)
    monkeypatch.setattr(Sender, "_dataset", failed)
    monkeypatch.setattr(delivery.Delivery, "_until_next_try", looked)
    with Store.open(work) as store:
        run = store.run("early", "run", identity="early")
        run.dataset("d", "digest", {})
        assert run.finish(patience=10)
        assert not failures


def test_logging_does_not_wait_for_the_delivery(work, monkeypatch, rounds):
    """Here nothing is sent before all 100 rounds of 23 metrics are logged."""
    logged, send = threading.Event(), Sender.send

    def held(self, *arguments):
        assert logged.wait(60)
        return send(self, *arguments)

    monkeypatch.setattr(Sender, "send", held)
    many = rounds(1, 100)
    for record in many:
        record.metrics.update({f"val/{i}": float(np.sin(i)) for i in range(20)})
    with Store.open(work) as store:
        run = store.run("quick", "run", identity="quick")
        for record in many:
            run.log([record])
        logged.set()
        assert run.finish()
        assert steps(store, run.run_id, "val/7") == list(range(1, 101))
        assert torch.tensor(store.history(run.run_id).shape).tolist() == [100, 23]
