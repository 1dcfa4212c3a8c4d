"""A SQLite store: what is logged is read back through MLflow's own client."""

import math
import os
import shutil
import signal
import sqlite3
import time
from dataclasses import replace

import matplotlib
import pandas as pd
import pytest
from mlflow import MlflowClient

from pfl_ops.errors import PflOpsError
from pfl_ops.tracking import Store, provenance
from pfl_ops.tracking.provenance import git_revision
from pfl_ops.tracking.sending.sender import Sender
from pfl_ops.tracking.target.run_info import RunInfo

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def work(tmp_path_factory, furnish):
    """One database for the module. Each test has its own MLflow experiment."""
    return furnish(tmp_path_factory.mktemp("work"))


@pytest.fixture
def store(work):
    with Store.open(work) as store:
        yield store


def points(store, run_id, key):
    return [(p.step, p.value, p.timestamp) for p in MlflowClient(store.target.uri).get_metric_history(run_id, key)]


def test_a_study_with_children(store, rounds, tmp_path):
    study = store.run("study", "study", identity="study 1")
    runs = [
        store.run(
            "study", f"trial-{i:03d}", identity=f"hash{i}", parent=study, params={"training.lr": 0.1 * i}, tags={"k": i}
        )
        for i in range(3)
    ]
    for i, run in enumerate(runs):
        run.log(rounds(0, 12 + i))
        assert run.finish("FAILED" if i == 1 else "FINISHED")
    assert study.finish()

    client = MlflowClient(store.target.uri)
    experiment = client.get_experiment_by_name("study")
    assert experiment.artifact_location == str(store.home.artifacts / "study")
    children = client.search_runs([experiment.experiment_id], f"tags.`mlflow.parentRunId` = '{study.run_id}'")
    assert {r.info.run_name: r.info.status for r in children} == {
        "trial-000": "FINISHED",
        "trial-001": "FAILED",
        "trial-002": "FINISHED",
    }
    assert client.get_run(runs[2].run_id).data.params == {"training.lr": "0.2"}
    assert client.get_run(runs[2].run_id).data.tags["k"] == "2"
    assert points(store, runs[0].run_id, "val/L1/acc") == [
        (t, t / 50, 1_700_000_000_000 + 1000 * t) for t in (0, 5, 10)
    ]
    assert len(points(store, runs[2].run_id, "train/loss")) == 15

    assert [run.name for run in store.runs("study", parent=study)] == ["trial-000", "trial-001", "trial-002"]
    assert store.find("hash2").parent == study.run_id
    assert store.find("hash2", parent=runs[0]) is None
    assert store.find("unknown") is None
    table = store.history(runs[0].run_id)
    assert table.index.tolist() == list(range(13))
    assert table["val/L1/acc"].notna().sum() == 3
    some = store.history(runs[0].run_id, ["train/loss", "val/L1/acc", "val/G/acc"])
    pd.testing.assert_frame_equal(some[["train/loss", "val/L1/acc"]], table[["train/loss", "val/L1/acc"]])
    assert some["val/G/acc"].isna().all()
    assert store.history(runs[0].run_id, []).empty

    assert [run.name for run in store.runs("study", where="params.`training.lr` = '0.2'")] == ["trial-002"]
    below = store.runs(parent=study, where="metrics.`train/loss` < 0.075 and tags.k != '2'")
    assert [run.name for run in below] == ["trial-001"]  # 1/13 and 1/14 at the end, 1/15 is trial 2
    with pytest.raises(PflOpsError, match="Invalid"):
        store.runs(where="params.lr like")
    assert not [f for f in store.home.spool.iterdir() if f.is_dir()]


def test_artifacts_tables_figures_and_inputs(store, tmp_path):
    import matplotlib.pyplot as plt

    (tmp_path / "partition").mkdir()
    (tmp_path / "partition" / "clients.json").write_text("[1]")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    figure, axes = plt.subplots()
    axes.plot([0, 1])
    with store.run("artifacts", "run", identity="a") as run:
        run.artifact(tmp_path / "partition")
        run.artifact(tmp_path / "model.safetensors", "models", move=True)
        run.text("seed: 1\n", "config.yaml")
        run.yaml({"a": {"b": [1, 2]}}, "notes/plain.yaml")
        run.table({"client": [0, 1], "accuracy": [0.5, 0.25]}, "clients.parquet")
        run.figure(figure, "curves")
        run.dataset("digits", "d" * 64, {"name": "digits"}, schema={"shape": [8, 8, 1]}, context="training")
        run.dataset("lsqs", "p" * 64, {"kind": "lsqs"}, context="partition")
        with pytest.raises(PflOpsError, match="does not exist"):
            run.artifact(tmp_path / "nothing")
    plt.close(figure)
    (tmp_path / "partition" / "clients.json").write_text("changed afterwards")
    assert not (tmp_path / "model.safetensors").exists()

    folder = store.download(run.run_id, "partition", tmp_path / "back")
    assert (folder / "clients.json").read_text() == "[1]"
    assert store.download(run.run_id, "models/model.safetensors").read_bytes() == b"weights"
    assert pd.read_parquet(store.download(run.run_id, "clients.parquet"))["accuracy"].tolist() == [0.5, 0.25]
    assert store.download(run.run_id, "figures/curves.png").read_bytes().startswith(b"\x89PNG")
    assert store.download(run.run_id, "notes/plain.yaml").read_text() == "a:\n  b:\n  - 1\n  - 2\n"
    inputs = MlflowClient(store.target.uri).get_run(run.run_id).inputs.dataset_inputs
    assert {(i.dataset.name, i.dataset.digest, i.tags[0].value) for i in inputs} == {
        ("digits", "d" * 36, "training"),
        ("lsqs", "p" * 36, "partition"),
    }
    with pytest.raises(PflOpsError, match="no artifact 'nothing'"):
        store.download(run.run_id, "nothing")
    with pytest.raises(PflOpsError, match="not found"):
        store.download("0" * 32, "x")
    with pytest.raises(PflOpsError, match="takes no more records"):
        run.text("late", "late.txt")


def test_a_resumed_run_is_found_again_and_gets_only_what_it_misses(store, work, rounds):
    first = store.run("resume", "run", identity="r", params={"lr": 1})
    first.log(rounds(0, 7))
    first.finish("KILLED")
    again = store.run("resume", "run", identity="r", params={"lr": 2, "rounds": 20})  # lr stays as first told
    again.log(rounds(0, 10, clock=1_800_000_000_000))  # a lost checkpoint: the same rounds at other times
    again.finish()
    store.close()

    with Store.open(work) as other:
        third = other.run("resume", "run", identity="r")
        third.log(rounds(5, 12))
        third.finish()
        assert first.run_id == again.run_id == third.run_id
        assert len(other.runs("resume")) == 1
        steps = [step for step, _, _ in points(other, third.run_id, "train/loss")]
        assert sorted(steps) == list(range(13))
        times = {step: time for step, _, time in points(other, third.run_id, "train/loss")}
        assert times[3] == 1_700_000_003_000
        assert times[9] == 1_800_000_009_000
        info = other.find("r")
        assert (info.status, info.params) == ("FINISHED", {"lr": "1", "rounds": "20"})


def test_the_same_identity_under_another_parent_is_another_run(store):
    studies = [store.run("parents", f"study {i}", identity=f"study {i}") for i in range(2)]
    runs = [store.run("parents", "trial", identity="same", parent=study) for study in studies]
    alone = store.run("parents", "alone", identity="same")
    assert len({run.run_id for run in [*runs, alone]}) == 3
    assert store.find("same", parent=studies[1]).run_id == runs[1].run_id
    for run in [*runs, alone, *studies]:
        run.finish("FINISHED" if run is runs[0] else "FAILED")
    assert store.find("same").run_id == runs[0].run_id  # the one that is finished


def test_runs_read_from_the_database_are_those_that_mlflows_search_finds(store, rounds):
    """Also NaN, infinity, an unfinished run, one computed anew, one in the bin, an empty one and names alike."""
    study = store.run("read", "study", identity="read study", tags={"k": "a 'quoted' one"})
    for i, value in enumerate((0.5, math.nan, math.inf, -math.inf)):
        run = store.run("read", f"trial-{i:03d}", identity=f"read {i}", parent=study, params={"training.lr": 0.1 * i})
        first, second = rounds(0, 1)
        second.metrics["val/L1/acc"] = value
        run.log([first, second])
        assert run.finish("FAILED" if i == 1 else "FINISHED")
    again = store.run("read", "trial-000", identity="read 0", parent=study, rerun="again")
    assert again.finish()
    empty = store.run("read", "empty", identity="read empty")
    assert store.deliver()
    client = MlflowClient(store.target.uri)
    client.delete_run(client.create_run(client.get_experiment_by_name("read").experiment_id).info.run_id)

    for superseded in (False, True):
        found = store.runs("read", superseded=superseded)
        searched = store.runs("read", superseded=superseded, where="attributes.start_time > 0")
        assert [*map(in_order, found)] == [*map(in_order, searched)]
        assert len(found) == 6 + superseded
        below = store.runs("read", parent=study, superseded=superseded)
        assert [*map(in_order, below)] == [in_order(run) for run in found if run.parent == study.run_id]
        assert len(below) == 4 + superseded
    values = {run.name: run.metrics.get("val/L1/acc") for run in found if run.run_id != again.run_id}
    assert math.isnan(values["trial-001"])
    assert values["trial-002"] == -values["trial-003"] > 1e300
    assert {run.name: run.status for run in found}["empty"] == "RUNNING"
    assert store.runs("no such experiment") == []
    assert {run.run_id for run in store.runs()} >= {run.run_id for run in store.runs("read")}
    assert empty.finish()


def in_order(run: RunInfo) -> str:
    """All of a run as text: NaN equals itself."""
    return repr({name: sorted(v.items()) if isinstance(v, dict) else v for name, v in vars(run).items()})


def test_an_identity_may_be_any_text(store):
    run = store.run("text", "run", identity='it\'s "quoted" `here`')
    run.finish()
    assert store.find('it\'s "quoted" `here`').run_id == run.run_id


def test_not_a_number_and_infinity_do_not_stop_a_run(store, rounds):
    record = rounds(1, 1)[0]
    record.metrics.update({"nan": float("nan"), "inf": float("inf")})
    with store.run("odd", "run", identity="odd") as run:
        run.log([record])
    history = store.history(run.run_id)
    assert history["nan"].isna().all()
    assert history["inf"].iloc[0] > 1e300


def test_metrics_that_are_set_again_replace_the_former(work):
    """A new value at the same or an earlier step is the one that MLflow shows; an equal one is not sent again."""
    for step, values in [
        (3, {"score": 0.5, "spread": 0.1, "none": float("nan")}),
        (3, {"score": 0.25, "spread": 0.1}),
        (1, {"score": 0.5, "spread": float("nan")}),
        (1, {"score": 0.5, "spread": float("nan")}),
        (9, {"score": 0.75}),
    ]:
        with Store.open(work) as store, store.run("set", "run", identity="set") as run:
            run.set_metrics(step, values)
        with Store.open(work) as store:
            shown = store.find("set")
            assert shown.metrics["score"] == values["score"] and "none" not in shown.metrics
    with Store.open(work) as store:
        history = [(step, value) for step, value, _ in points(store, shown.run_id, "score")]
        assert history == [(3, 0.5), (4, 0.25), (5, 0.5), (9, 0.75)]
        assert math.isnan(store.find("set").metrics["spread"])


def test_metrics_that_a_run_lacks_are_not_asked_for(work, rounds, monkeypatch):
    """Of a new run none. A process that goes on reads the three that the run has, and sends what the run lacks."""
    asked, real = [], MlflowClient.get_metric_history
    monkeypatch.setattr(MlflowClient, "get_metric_history", lambda *of: asked.append(of[2]) or real(*of))
    with Store.open(work) as store, store.run("known", "run", identity="known") as run:
        run.log(rounds(0, 5))
    assert asked == []
    with Store.open(work) as store, store.run("known", "run", identity="known") as run:
        further = [replace(record, metrics={**record.metrics, "new": 1.0, "newer": 2.0}) for record in rounds(6, 7)]
        run.log([*rounds(4, 5), *further])
    assert sorted(asked) == ["train/loss", "val/L1/acc", "val/L1/local/mean"]
    with Store.open(work) as store:
        for key, steps in [("train/loss", [*range(8)]), ("val/L1/acc", [0, 5]), ("new", [6, 7]), ("newer", [6, 7])]:
            assert [step for step, _, _ in points(store, run.run_id, key)] == steps


def test_drafts_in_a_folder_are_no_artifacts(store, tmp_path):
    """A killed process left one in a report's folder, and one in a folder below."""
    report = tmp_path / "table1"
    for name in ("index.html", ".index-0a1b2c3d.html", ".report-abc/figures/half.svg", "full/.report-def/half.svg"):
        (report / name).parent.mkdir(parents=True, exist_ok=True)
        (report / name).write_text(name)
    with store.run("drafts", "run", identity="drafts") as run:
        run.artifact(report, "whole")
        run.contents(report, "each")
    for place in ("whole/table1", "each"):
        kept = store.download(run.run_id, place)
        assert [path.name for path in kept.rglob("*") if path.is_file()] == ["index.html"]


def test_a_batch_never_exceeds_what_mlflow_takes(store, rounds):
    record = rounds(1, 1)[0]
    record.metrics.update({f"m{i}": float(i) for i in range(2500)})
    with store.run("wide", "run", identity="wide") as run:
        run.log([record])
    assert len(store.find("wide").metrics) == 2502


def test_an_error_in_the_block_marks_the_run(store):
    with pytest.raises(ZeroDivisionError), store.run("blocks", "run", identity="failed"):
        raise ZeroDivisionError
    with pytest.raises(KeyboardInterrupt), store.run("blocks", "run", identity="stopped"):
        raise KeyboardInterrupt
    assert [store.find(i).status for i in ("failed", "stopped")] == ["FAILED", "KILLED"]


def test_an_outage_between_two_questions_about_a_result_is_no_answer(store, monkeypatch):
    """The first one found the run that has the result, the second one asks for its experiment."""
    monkeypatch.setattr(Sender, "result_elsewhere", lambda *_: ("0123", "other"))
    assert store.result_elsewhere("twice", "one", []) is not None
    monkeypatch.setattr(Sender, "experiment_id", lambda *_: 1 / 0)
    assert store.result_elsewhere("twice", "one", []) is None


def test_a_store_that_is_closed_ends_its_open_runs(work, rounds):
    with Store.open(work) as store:
        store.run("left", "run", identity="left").log(rounds(0, 3))
    with Store.open(work) as store:
        info = store.find("left")
        assert info.status == "KILLED"
        assert len(store.history(info.run_id)) == 4


def test_store_opened_to_read_has_what_a_killed_process_left(work, python, monkeypatch):
    """A killed process recorded a whole run and delivered nothing. Each entry takes 50 ms to deliver."""
    code = """
        import os, sys
        from pfl_ops.tracking import Store
        store = Store.open(sys.argv[1])
        store._delivery._round, store._delivery.wait = (lambda: None), (lambda *_, **__: False)
        store.run("reader", "run", identity="undelivered").finish()
        os._exit(9)
    """
    assert python(code, str(work), forked=True).wait() == 9
    send = Sender.send

    def send_slowly(*given):
        time.sleep(0.05)
        send(*given)

    monkeypatch.setattr(Sender, "send", send_slowly)
    with Store.open(work) as store:
        assert [(run.identity, run.status) for run in store.runs("reader")] == [("undelivered", "FINISHED")]


def test_an_mlflow_experiment_in_the_bin_is_brought_back(work):
    with Store.open(work) as store:
        store.run("bin", "run", identity="before").finish()
        client = MlflowClient(store.target.uri)
        client.delete_experiment(client.get_experiment_by_name("bin").experiment_id)
    with Store.open(work) as store:
        store.run("bin", "run", identity="after").finish()
        assert store.find("after").experiment == "bin"


def test_a_run_of_a_killed_process_is_marked_and_can_be_resumed(work, python, rounds):
    code = """
        import os, sys
        from types import SimpleNamespace
        from pfl_ops.tracking import Store
        store = Store.open(sys.argv[1])
        run = store.run("killed", "run", identity="killed")
        run.log([SimpleNamespace(round=t, metrics={"train/loss": 1 / (1 + t)}, time=1700000000000 + 1000 * t)
                 for t in range(10)])
        print(os.getpid(), run.run_id, flush=True)
        sys.stdin.readline()
    """
    process = python(code, str(work), forked=True)
    pid, run_id = process.stdout.readline().split()
    with Store.open(work) as store, pytest.raises(PflOpsError, match=f"pid {pid}"):
        store.run("killed", "run", identity="killed")
    os.kill(int(pid), signal.SIGKILL)
    process.wait()
    with Store.open(work) as store:
        assert store.deliver()
        assert store.find("killed").status == "KILLED"
        assert sorted(step for step, _, _ in points(store, run_id, "train/loss")) == list(range(10))
        with store.run("killed", "run", identity="killed") as run:
            assert store.find("killed").run_id == run.run_id == run_id
            run.log(rounds(0, 14))
        assert store.find("killed").status == "FINISHED"
        assert sorted(step for step, _, _ in points(store, run_id, "train/loss")) == list(range(15))


def test_a_damaged_outbox_stops_no_command(work, caplog, rounds):
    """Today's and older damage in one folder: each is one line, and the run that it belongs to is recorded again."""
    with Store.open(work) as store:
        run = store.run("damage", "run", identity="damage")
        journal = run.spool.folder / "journal.jsonl"
        run.finish()
        run = store.run("damage", "run", identity="damage again")
        other = run.spool.folder / "journal.jsonl"
        run.finish()
    for file, content in ((journal, b"\x00\xffgarbage\n{}\n"), (other, b'{"target": 1}\n{"op": 2}\n')):
        file.parent.mkdir()
        file.write_bytes(content)
    caplog.clear()
    with Store.open(work) as store:
        assert store.deliver()
        assert len(list(store.home.spool.glob("damaged-*"))) == 2
        with store.run("damage", "run", identity="damage") as run:
            run.log(rounds(0, 3))
        assert store.find("damage").status == "FINISHED" and len(store.history(run.run_id)) == 4
    lines = [record.getMessage() for record in caplog.records if record.name == "pfl_ops.tracking"]
    assert len(lines) == 2 and all("set aside as" in line and "\n" not in line for line in lines)
    for folder in store.home.spool.glob("damaged-*"):
        shutil.rmtree(folder)


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "mlflow.db").write_text("this is a letter, and a long one, not a database " * 100)
    with pytest.raises(PflOpsError, match=r"mlflow\.db can't be used"):
        Store.open(tmp_path)


def test_a_database_that_is_not_mlflows_of_today_is_refused(tmp_path):
    with Store.open(tmp_path / "old") as store:
        store.run("e", "run", identity="i").finish()  # one without a run is made anew
    new = tmp_path / "new"  # MLflow looks once at each address
    new.mkdir()
    shutil.copy(tmp_path / "old" / "mlflow.db", new)
    with sqlite3.connect(new / "mlflow.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    with pytest.raises(PflOpsError, match="mlflow db upgrade"):
        Store.open(new)


def test_a_server_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(PflOpsError, match=r"tracking server http://127\.0\.0\.1:9 does not answer"):
        Store.open(tmp_path, "http://127.0.0.1:9")


def test_provenance_says_what_and_where(tmp_path, monkeypatch):
    tags = provenance(experiment="e", group="g", partition="p", device="cpu")
    assert tags["pfl_ops.experiment_hash"] == "e"
    assert {"pfl_ops.cpu", "version.python", "version.torch", "version.mlflow", "version.pfl-ops"} <= tags.keys()
    assert all(isinstance(value, str) and value for value in tags.values())


def test_the_revision_says_when_files_differ_from_it(tmp_path, python):
    import subprocess

    assert git_revision(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "f").write_text("1")
    subprocess.run([*git, "add", "f"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "m"], check=True)
    clean = git_revision(tmp_path)
    assert clean is not None
    assert len(clean) == 40
    (tmp_path / "untracked").write_text("1")
    assert git_revision(tmp_path) == clean
    (tmp_path / "f").write_text("2")
    assert git_revision(tmp_path) == f"{clean}-dirty"
