"""Saved views: what MLflow's page reads from an experiment's tags, as it writes it itself. tests/test_ui.py looks."""

import json
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest

from pfl_ops import metric_keys, metrics
from pfl_ops.tracking import Store, newest_pages
from pfl_ops.tracking.descriptions import notes, questions
from pfl_ops.tracking.descriptions.views import TAG, Chart, View, missing, run_address, tags, view_address
from pfl_ops.tracking.page.short import find_page, short_address


def view(**changes):
    given = {
        "key": "mine",
        "name": "Mine",
        "where": "",
        "columns": (("metrics", "score/acc"), ("params", "training.lr")),
        "order": "score/acc",
        "descending": True,
        "sections": (
            ("First", (Chart("BAR", "bars", ("a",)), Chart("SCATTER", "dots", ("a", "b")))),
            ("Second", (Chart("LINE", "lines", ("test/L1/acc",)), Chart("PARALLEL", "all", ("a",), ("training.lr",)))),
        ),
        "folded": ("test/L1/acc", "test/L1/local/mean", "test/L1/local/std", "loss"),
    }
    return View(**{**given, **changes})


def test_a_view_is_what_the_page_saves():
    (tag, text), = tags([view()]).items()  # fmt: skip
    envelope = json.loads(text)
    assert (tag, envelope["name"]) == ("mlflow.sharedViewState.mine", "Mine")
    assert {type(envelope[key]) for key in ("createdAt", "updatedAt")} == {int}
    state = json.loads(envelope["state"])
    assert state["selectedColumns"] == ["metrics.`score/acc`", "params.`training.lr`"]
    assert (state["orderByKey"], state["orderByAsc"], state["groupBy"]) == ("metrics.`score/acc`", False, None)
    sections = {section["uuid"]: section for section in state["compareRunSections"]}
    names = [(section["name"], section["display"]) for section in sections.values()]
    folded = ["Model metrics", "test/L1", "test/L1/local"]
    assert names == [("First", True), ("Second", True), *((name, False) for name in folded)]
    charts = state["compareRunCharts"]
    assert [(c["type"], sections[c["metricSectionId"]]["name"]) for c in charts] == [
        ("BAR", "First"), ("SCATTER", "First"), ("LINE", "Second"), ("PARALLEL", "Second")
    ]  # fmt: skip
    assert len({c["uuid"] for c in charts}) == 4
    assert (charts[1]["xaxis"]["key"], charts[1]["yaxis"]["key"]) == ("a", "b")
    assert (charts[3]["selectedParams"], charts[3]["selectedMetrics"]) == (["training.lr"], ["a"])


def test_a_view_of_groups_and_one_by_age():
    state = view(group="pfl_ops.method", order="").state
    assert state["groupBy"]["groupByKeys"] == [{"mode": "tag", "groupByData": "pfl_ops.method"}]
    assert state["groupBy"]["aggregateFunction"] == "average"
    assert state["orderByKey"] == "attributes.start_time"


def test_a_view_that_mlflow_would_refuse_is_left_out():
    long = view(folded=tuple(f"section-{i}/metric" for i in range(300)))
    assert tags([long, view(key="short")]).keys() == {TAG + "short"}


def test_what_somebody_has_changed_stays():
    ours, newer = tags([view()]), tags([view(order="loss")])
    theirs = {TAG + "mine": json.dumps({**json.loads(ours[TAG + "mine"]), "updatedAt": 1_700_000_000_000})}
    assert missing({}, ours) == ours
    assert missing(ours, ours) == {}
    assert missing(ours, newer) == newer
    assert missing(theirs, newer) == {}
    assert missing({TAG + "mine": "[]"}, newer) == missing({TAG + "mine": "{"}, newer) == {}
    assert missing({"mlflow.note.content": "mine"}, {"mlflow.note.content": "yours"}) == {}


def test_addresses():
    address = urlsplit(view_address("7", "methods")).fragment
    assert address.startswith("/experiments/7/runs?")
    query = parse_qs(address.partition("?")[2])
    assert query["viewStateShareKey"] == ["methods"] and query["compareRunsMode"] == ["CHART"]
    assert "compareRunsMode" not in view_address("7", "methods", charts=False)


def test_a_score_is_the_last_evaluation_at_the_method_s_own_stage():
    final = {"final/test/L1/acc": 1.0, "final/test/L2/acc": 1.2, "final/test/L2/local/mean": 0.7, "best/test/L2/acc": 2}
    assert questions.scores(final, "test", "L2") == {"score/acc": 1.2, "score/local/mean": 0.7}


@pytest.mark.parametrize(
    ("kind", "key", "group"),
    [("run", "methods", "method"), ("final", "tests", "method"), ("cell", "methods", "cell")],
)
def test_view_of_methods_has_the_best_score_first(kind, key, group):
    asked = questions.methods(kind, ["test/L1/acc"])
    assert (asked.key, asked.name, asked.where) == (key, key.capitalize(), f"tags.`pfl_ops.kind` = '{kind}'")
    assert (asked.order, asked.descending, asked.group) == ("score/acc", True, f"pfl_ops.{group}")
    assert [
        (chart.title.partition(":")[0], chart.metrics) for chart in dict(asked.sections)["Which method is best?"]
    ] == [
        ("Acc = Acc(L) + Acc(G)", ("score/acc",)),
        ("Acc(L)", ("score/local/mean",)),
        ("Acc(G)", ("score/global/mean",)),
        ("the worst client", ("score/local/worst",)),
        ("local against global", ("score/global/mean", "score/local/mean")),
    ]


def test_view_of_trials_has_the_best_validation_score_first():
    """A loss ascends. The scatter chart has Acc(G) and Acc(L), or the two objectives if there are two."""
    lr, kind = "training.lr", "training.optimiser.kind"
    best, whole = questions.trials("s", ["train/loss"], ["min"], [lr, kind], [lr], ["L1"], group="pfl_ops.trial")
    assert best.where == "tags.`pfl_ops.kind` = 'trial' and tags.`pfl_ops.study` = 's'" and whole.where == ""
    assert (best.order, best.descending, best.group) == ("train/loss", False, "pfl_ops.trial")
    local, pooled = "val/L1/local/mean", "val/L1/global/mean"
    assert best.columns == (
        *(("metrics", metric) for metric in ("train/loss", local, pooled)),
        ("tags", "pfl_ops.chosen"),
        *(("params", path) for path in (lr, kind)),
        ("tags", "pfl_ops.trial_state"),
    )
    bars, parallel, scatter = best.sections[0][1]
    assert (bars.metrics, parallel.metrics, scatter.metrics) == (("train/loss",), ("train/loss",), (pooled, local))
    assert parallel.params == (lr,), "those that every trial has"
    (two,) = questions.trials("s", [local, "train/loss"], ["max", "min"], [lr], [lr], ["L1"], "fliu")
    assert (two.key, two.order, two.descending) == ("trials-fliu", local, True)
    assert two.sections[0][1][-1].metrics == (local, "train/loss")


@pytest.fixture
def store(tmp_path, furnish):
    with Store.open(furnish(tmp_path / "mlruns")) as store:
        yield store


def test_an_experiment_is_described_once(store, tmp_path):
    assert newest_pages(str(tmp_path / "elsewhere")) == []
    run = store.run("digits", "a", identity="a")
    run.present(note="what it is", views=[questions.methods("run", ["score/acc"])])
    run.finish()
    run = store.run("digits", "b", identity="b")
    run.present(note="another", views=[])
    run.finish()
    found = store._sender.client.get_experiment_by_name("digits").tags
    assert found["mlflow.note.content"] == "what it is" and TAG + "methods" in found
    assert run.page("methods") == view_address(run.experiment_id, "methods")
    assert newest_pages(str(tmp_path / "mlruns")) == [("digits", "/experiment/digits")]


def test_short_addresses_lead_to_charts_and_runs(store, tmp_path):
    """A study in an experiment of its own, two in a benchmark's, an experiment of single runs, one without a view."""
    client, found = store._sender.client, {}
    for experiment, method in (("alone", "fliu"), ("both", "ditto"), ("both", "local")):
        shared = method if experiment == "both" else ""
        name = f"{method} 1"
        run = store.run(experiment, method, identity=name)
        run.tags({"pfl_ops.kind": "study", "pfl_ops.study": name, "algorithm": method})
        run.present(views=questions.trials(name, ["val/L1/acc"], ["max"], [], [], ["L1"], shared))
        run.finish()
        found[method] = find_page(client, "study", name)
        assert found[method] == run.page(f"trials-{method}" if shared else "trials")
    assert len(set(found.values())) == 3
    single = store.run("digits lsqs", "a", identity="a")
    single.present(views=[questions.methods("run", ["score/acc"])])
    plain = store.run("plain", "b", identity="b")
    store.deliver()
    assert find_page(client, "experiment", "digits lsqs") == single.page("methods")
    assert find_page(client, "experiment", "alone") == found["fliu"]
    without = find_page(client, "experiment", "plain")
    assert without == f"/#/experiments/{plain.experiment_id}/runs?workflowType=machine_learning"
    tested = store.run("both", "final", identity="final")
    tested.tags({"pfl_ops.kind": "final"})
    tested.present(views=[questions.methods("final", ["score/acc"])])
    store.deliver()
    assert [name for name, _ in newest_pages(str(tmp_path / "mlruns"))] == ["both", "digits lsqs", "alone"]
    store.run("alone", "trial", identity="trial").tags({"pfl_ops.kind": "trial"})
    store.deliver()
    assert [name for name, _ in newest_pages(str(tmp_path / "mlruns"))] == ["alone", "both", "digits lsqs"]
    page = run_address(plain.experiment_id, plain.run_id)
    assert find_page(client, "run", plain.run_id) == page
    for run in (plain, store.run("plain", "below", identity="c", parent=plain)):  # a study's test of the same hash
        run.tags({"pfl_ops.experiment_hash": "0123456789abcdef" * 4})
    store.deliver()
    assert find_page(client, "run", "0123456789ab") == page and find_page(client, "run", "0123456789ac") is None
    for kind, name in (("study", "nix"), ("study", "it's"), ("experiment", "fliu 1"), ("run", "0" * 32), ("what", "a")):
        assert find_page(client, kind, name) is None
    assert short_address("study", "a b/c") == "/study/a%20b%2Fc"


def test_all_runs_of_a_trial_are_chosen(store):
    """And those of the choice before it are not."""
    parent = store.run("study", "study", identity="s")
    for i in range(4):
        store.run("study", f"run-{i}", identity=f"t{i}", parent=parent).finish()
    parent.choose("t0", "t1")
    parent.append({"op": "choose", "identity": "t2"})  # as earlier versions wrote it
    parent.choose("t1", "t3")
    parent.finish()
    assert {run.name for run in store.runs("study") if "pfl_ops.chosen" in run.tags} == {"run-1", "run-3"}


def test_one_child_is_chosen(store):
    parent = store.run("study", "study", identity="s")
    for i in range(3):
        store.run("study", f"trial-{i}", identity=f"t{i}", parent=parent).finish()
    for chosen in ("t1", "t2", "t2"):
        parent.choose(chosen)
    parent.finish()
    assert {run.name for run in store.runs("study") if "pfl_ops.chosen" in run.tags} == {"trial-2"}


def test_descriptions_say_that_durations_have_pauses():
    """Of a run that was stopped for a night and went on, MLflow's page has the night as well."""
    for text in (notes.run("methods"), notes.comparison("digits"), notes.began("s", "trials")):
        assert "duration of a run that was stopped and went on has the pause" in text


def test_descriptions_explain_each_statistic_of_the_keys():
    """Of 169 metrics of a run most are statistics over clients."""
    keys = metrics.tracked("L1", "test", "local", [0.5, 1.0], sizes=[5, 20]) | {"test/L1/global/se": 0.01}
    text = notes.run("methods")
    assert all(f"`{key.rpartition('/')[2]}`" in text for key in keys)


def test_a_description_has_the_ids_that_its_links_need(store):
    """They are known only once the run is there, which may be long after the description was written."""
    run = store.run("described", "a run", identity="a")
    run.note(notes.run("methods"))
    run.present(note=notes.tuning("fliu", "digits, lsqs", "the largest `val/L1/acc`", ["training.lr"]))
    run.finish()
    text = store.runs("described")[0].tags["mlflow.note.content"]
    of_experiment = store._sender.client.get_experiment(run.experiment_id).tags["mlflow.note.content"]
    picture = f"#/experiments/{run.experiment_id}/runs/{run.run_id}/artifacts/figures/accuracy.png"
    assert f"]({picture}?workflowType=machine_learning)" in text
    assert f"]({run.page('methods').removeprefix('/')})" in text
    assert f"]({run.page('trials').removeprefix('/')})" in of_experiment
    assert "{{" not in text + of_experiment


def test_the_curves_that_matter_come_first(store):
    """In the list of a run's metrics, which MLflow shows in the order in which they came, and in the saved views."""
    first = [
        "test/L1/local/mean",
        "test/L1/global/mean",
        "test/L1/acc",
        "train/loss",
        "test/L2/acc",
        "test/G/local/mean",
    ]
    keys = ["cost/clients", "best/round", *reversed(first), "test/L1/local/std"]
    run = store.run("ordered", "a", identity="a")
    run.log([SimpleNamespace(round=t, metrics=dict.fromkeys(keys, 1.0), time=1_700_000_000_000 + t) for t in range(3)])
    run.finish()
    found = store._sender.client.get_run(run.run_id)
    assert list(found.data.metrics)[: len(first)] == first
    assert store.history(run.run_id, first).index.tolist() == [0, 1, 2]
    for shown in (
        questions.methods("run", keys),
        questions.trials("s", ["test/L1/acc"], ["max"], [], [], ["L1"])[0],
    ):
        lines = [chart.metrics[0] for chart in dict(shown.sections)["Over rounds"]]
        assert lines == sorted(lines, key=metric_keys.place)
        assert [key.removeprefix("val/").removeprefix("test/") for key in lines[:4]] == list(metric_keys.CURVES[:4])


def test_slow_rounds_begin_with_the_same_curves(store, monkeypatch):
    """The untrained round has no loss; alone in the first delivery, it would put the loss behind all of its keys."""
    monkeypatch.setattr("pfl_ops.tracking.runs.run.SECONDS_AT_MOST", 0.0)  # each round is slow
    run = store.run("slow", "a", identity="a")
    scores = {"test/L1/local/std": 1.0, "test/L1/local/mean": 1.0}
    for t, more in enumerate([{}, {"train/loss": 1.0}, {"train/loss": 1.0}]):
        run.log([SimpleNamespace(round=t, metrics={**scores, **more}, time=1_700_000_000_000 + t)])
    store.deliver()  # before the end: the later rounds did not wait
    found = store._sender.client.get_run(run.run_id).data.metrics
    assert list(found) == ["test/L1/local/mean", "train/loss", "test/L1/local/std"]
    assert store.history(run.run_id, ["train/loss"]).index.tolist() == [1, 2]
