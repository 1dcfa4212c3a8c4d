"""Several methods under one budget: on a real Ray with trials that cost nothing, and the tables on their own."""

import doctest
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from tuning_fake import benchmark, records, replaced, toy, tune

from pfl_ops import spaces, statistics, tuning
from pfl_ops.config.experiment import Experiment
from pfl_ops.display import tables
from pfl_ops.errors import PflOpsError
from pfl_ops.reports.comparison.compare import compare
from pfl_ops.reports.leaderboards import leaderboard as reports
from pfl_ops.reports.leaderboards.leaderboard import _ranking
from pfl_ops.reports.pages.document import Picture, Table
from pfl_ops.results import Result
from pfl_ops.tracking import Store
from pfl_ops.tracking.descriptions.views import view_address
from pfl_ops.tuning import Settings, StudyInterrupted
from pfl_ops.tuning.commands import benchmark as module
from pfl_ops.tuning.commands.benchmark import members
from pfl_ops.tuning.commands.terms import settings_of
from pfl_ops.tuning.findings import leaderboard, leaderboard_notes, presented
from pfl_ops.tuning.findings.study import Study
from pfl_ops.tuning.session.confirm import judge
from pfl_ops.tuning.studies import study_database
from pfl_ops.tuning.studies import study_storage as study_storages
from pfl_ops.tuning.studies.limits import StudyLimits
from pfl_ops.tuning.studies.objective import Objective

SPACE = spaces.from_dict({"algorithm.x": {"float": [0, 1]}, "first": [{"algorithm.x": 0.25}, {"algorithm.x": 0.75}]})
COSTS = pd.DataFrame({"cost/train_seconds": [1.0, 2.0], "cost/up_bytes": [10.0, 20.0], "cost/down_bytes": [1.0, 1.0]})


def methods(*names, **settings):
    own = {path: value for path, value in settings.items() if path.startswith("algorithm.")}
    base = toy(**{name: value for name, value in settings.items() if name not in own})
    return [base.override({"algorithm.name": name, **own}) for name in names]


def final(experiment, name, *_):
    """A test run that is worth its x, a little more with each seed, half a point less for late."""
    method = experiment.algorithm
    score = method.x - 0.5 * (method.name == "late") + experiment.seed / 100
    keys = {"acc": score, "local/mean": score, "global/mean": 0.25, "local/worst": score / 2}
    found = {f"final/test/{method.own_stage}/{key}": value for key, value in keys.items()}
    return Result.of_numbers(experiment.seed, found, history=COSTS, run_id=name)


@pytest.fixture
def go(tmp_path):
    """`benchmark` with the fake parts; the result has the events and the test runs asked for."""

    def run(experiments, **settings):
        events, finals = [], []

        def counted(experiment, name, *_):
            finals.append((experiment.algorithm.name, experiment.seed, experiment.partition.seed))
            return final(experiment, name)

        given = {"home": tmp_path, "records": records, "final": counted, "on_event": events.append, **settings}
        return SimpleNamespace(made=benchmark(experiments, **given), events=events, finals=finals)

    return run


def studies(home):
    return study_storages.recorded(study_database.storage(f"sqlite:///{home}/studies.db"))


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_methods_are_tuned_alike_tested_alike_and_ranked_whatever_stops_them(go, tmp_path, furnish):
    """toy and late get the same two trials. Ctrl-C comes while toy is tested; rival, whose trials fail, comes later."""
    furnish(tmp_path)
    pooled = {"seed": 3, "data.pooled": True, "repetitions": 3}
    settings = {"space": SPACE, "concurrency": 2, "scheduler": "none", "name": "mine"}

    def pressed(*_):
        raise KeyboardInterrupt

    with pytest.raises(StudyInterrupted) as stopped:
        go(methods("toy", "late", **pooled), trials=2, **settings, final=pressed)
    assert str(stopped.value).startswith(
        "stopped with 2 of 4 trials done; go on with: pfl-ops tune toy,late --name mine"
    )
    assert str(stopped.value).endswith(" --repetitions 3 --resume")
    with pytest.raises(PflOpsError, match=r"study 'mine.toy' is part of benchmark 'mine'"):
        tune(None, name="mine.toy", resume=True, home=tmp_path)

    done = go(None, name="mine", resume=True, final_repetitions=3)
    table = done.made.table
    assert [e.method for e in done.events if e.kind == "start"] == ["late", "late"]
    assert table["method"].tolist() == ["toy", "late"] and table["rank"].tolist() == [1, 2]
    assert table["scored_at"].tolist() == ["L1", "L2"]
    assert table["validation"].tolist() == [0.75, 0.75]
    assert table["test"].tolist() == pytest.approx([0.79, 0.29]) and table["std"].tolist() == pytest.approx([0.01] * 2)
    assert table["difference"][1] == pytest.approx(-0.5) and table["n"].tolist() == [3, 3]
    first, second = done.made.lines
    assert (first.label, second.label, second.difference.difference) == ("toy", "late", table["difference"][1])
    assert first.difference is None and [run.seed for run in first.runs] == [3, 4, 5]
    assert table["worst"].tolist() == pytest.approx([0.395, 0.145])
    assert table["test_seconds"].tolist() == [3, 3] and table["sent_bytes"].tolist() == [32, 32]
    assert table["openings"].tolist() == [1, 1] and table["settings"][0] == "x=0.75"
    assert (table["sampled"].tolist(), table["confirmed_n"].tolist()) == ([0, 0], [0, 0])
    # the same seeds, and for pooled data the same partition in all of them, for both
    assert sorted(done.finals) == [(method, seed, 3) for method in ("late", "toy") for seed in (3, 4, 5)]
    first, second = members("mine", home=tmp_path).values()
    assert first.experiment.partition == second.experiment.partition and first.experiment.seed == 3

    by_trial = done.made.traces.set_index(["method", "trial"])["best"]
    assert by_trial.to_dict() == {("toy", 0): 0.25, ("toy", 1): 0.75, ("late", 0): 0.25, ("late", 1): 0.75}
    assert done.made.tests["score"].tolist() == pytest.approx([0.78, 0.79, 0.80, 0.28, 0.29, 0.30])
    assert any("L1 (toy), L2 (late)" in note for note in done.made.notes)
    assert {e.place for e in done.events if e.method == "late"} == {"2 of 2"}
    told = [e.text for e in done.events if e.kind == "study"]
    assert told[0] == "validation 75.0 % (trial 001), test 79.0 ± 1.0 % over 3 seeds"

    with Store.open(tmp_path) as store:
        runs = {run.name: run for run in store.runs("mine")}
        top, toy, late = (runs[name] for name in ("benchmark", "toy", "late"))
        assert (toy.parent, late.parent, top.parent) == (top.run_id, top.run_id, None)
        assert runs["001 late x=0.75"].parent == late.run_id
        assert {run.status for run in runs.values()} == {"FINISHED"}
        assert toy.metrics["leaderboard/test"] == pytest.approx(0.79) and toy.tags["pfl_ops.benchmark"] == "mine"
        assert store.history(top.run_id)["search/late"].dropna().tolist() == [0.25, 0.75]
        note, page = top.tags["mlflow.note.content"], f"#/experiments/{top.experiment_id}/runs?viewStateShareKey="
        assert "| 1 | toy | L1 | 75.0 % | 79.0 ± 1.0 % | 3 |" in note
        assert all(f"]({page}{key}&" in note for key in ("tests", "trials-toy", "trials-late"))
        assert f"]({page}trials-late&" in late.tags["mlflow.note.content"]
        assert done.made.studies["late"].page == view_address(top.experiment_id, "trials-late")
        kept = pd.read_csv(store.download(top.run_id, "leaderboard.csv"))
        assert kept["method"].tolist() == ["toy", "late"]

    # the others are read, and it gets as many trials as they had; it stands at the end with its reason
    wrong = methods("rival", **pooled, **{"algorithm.behaviour": "raise"})
    more = go([*wrong, *methods("toy", "late", **pooled)], **settings)
    assert {e.method for e in more.events if e.kind in ("begin", "start")} == {"rival"}
    assert more.made.table["method"].tolist() == ["toy", "late", "rival"]
    assert more.made.table["status"].tolist() == ["complete", "complete", "failed"]
    assert more.made.table["failed"].tolist() == [0, 0, 2] and more.made.table["openings"].tolist() == [1, 1, 0]
    assert "2 without a result; the last one: ValueError: loss went through the roof" in more.made.failures["rival"]
    with Store.open(tmp_path) as store:
        rival = next(run for run in store.runs("mine") if run.name == "rival")
        assert rival.status == "FAILED" and rival.tags["pfl_ops.error"] == more.made.failures["rival"]
        assert "It has no result yet." in rival.tags["mlflow.note.content"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_the_examples_of_tune_and_benchmark_are_true(tmp_path, furnish, monkeypatch):
    monkeypatch.setenv("PFL_OPS_HOME", str(furnish(tmp_path)))
    known = {"experiment": toy(seed=61), "experiments": methods("toy", "late", seed=62), "space": SPACE}
    runner = doctest.DocTestRunner()
    with replaced(records, final):
        for function in (tuning.tune, module.benchmark):
            for example in doctest.DocTestFinder().find(
                function, "example", globs=known | {function.__name__: function}
            ):
                runner.run(example)
    assert runner.tries == 4 and not runner.failures


@pytest.mark.parametrize(
    ("experiments", "settings", "message"),
    [
        (lambda: methods("toy", "toy"), {}, "a benchmark compares different methods, got toy, toy"),
        (lambda: [*methods("toy"), *methods("rival", seed=1)], {}, "on the same seed: toy has 0, rival 1"),
        (lambda: [*methods("toy"), *methods("rival", rounds=4)], {}, "same training.rounds: toy has 9, rival 4"),
        (lambda: methods("toy", "rival"), {"metric": "val/L1/ac"}, "toy, rival: no metric named 'val/L1/ac'"),
        (lambda: methods("toy", "rival"), {"metric": "val/L1/local/clients"}, "is neither better large nor small"),
        (lambda: methods("toy", "rival"), {"metric": "train/loss"}, "by a validation score"),
        (lambda: methods("toy", "rival"), {"metric": ["val/L1/acc", "val/G/acc"]}, "ranks methods by one metric"),
        (
            lambda: methods("toy", "rival"),
            {"space": spaces.from_dict({"algorithm.edge": {"float": [0, 1]}})},
            "toy: search space: algorithm.edge: the experiment has no such field",
        ),
        (
            lambda: methods("toy", "centralized"),
            {"metric": "val/L1/acc", "space": spaces.from_dict({"training.lr": {"float": [0.1, 1]}})},
            "'val/L1/acc': centralized has no stage L1, since it defines no personal()",
        ),
        (lambda: methods("toy", "rival", clients=5000), {}, "toy: "),
        (lambda: None, {"name": "nobody", "resume": True}, "give an experiment for each method"),
        (lambda: methods("toy", "rival"), {"name": "nobody", "resume": True}, "no benchmark 'nobody', and no other"),
    ],
)
def test_mistakes_of_all_methods_are_told_before_anything_is_written(tmp_path, experiments, settings, message):
    def never(point, context):
        raise AssertionError

    with pytest.raises(PflOpsError) as caught:
        benchmark(experiments(), **{"space": SPACE, "home": tmp_path, "records": never, **settings})
    assert message in str(caught.value)
    assert studies(tmp_path) == {} and not (tmp_path / "mlflow.db").exists()


def test_an_existing_study_that_can_t_go_on_leaves_no_others_behind(tmp_path):
    """rival's was begun with other rounds: toy's, which comes first, is not made."""
    store = study_database.storage(f"sqlite:///{tmp_path}/studies.db")
    old = settings_of(methods("rival", rounds=4), SPACE)["rival"]
    study_storages.StudyStorage(
        "mine.rival", store, old.objective, {**old.as_dict(), "digest": "another", "benchmark": "mine"}
    )
    with pytest.raises(PflOpsError, match=r"same training.rounds: rival has 4, toy 9"):
        benchmark(methods("toy", "late"), space=SPACE, home=tmp_path, name="mine")
    with pytest.raises(PflOpsError, match=r"study 'mine.rival' was begun with other settings"):
        benchmark(methods("toy", "rival"), space=SPACE, home=tmp_path, name="mine")
    assert list(studies(tmp_path)) == ["mine.rival"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_fedavg_under_the_optimiser_that_fliu_brings_along_is_not_behind_it(tmp_path, furnish):
    """On digits FedAvg is better than FLIU under Adam, and far worse under its own default, SGD at 0.05.

    Of four trials, the first three are what the two methods recommend.
    """
    furnish(tmp_path)
    experiments = [Experiment.of(method, dataset="digits", rounds=5) for method in ("fedavg", "fliu")]
    made = benchmark(experiments, trials=4, final_repetitions=3, home=tmp_path)
    tried = {method: study.table[["training.optimiser", "training.lr"]] for method, study in made.studies.items()}
    union = {("sgd", 0.05), ("adam", 0.001), ("adam", 0.01)}
    assert all(set(table.itertuples(index=False, name=None)) >= union for table in tried.values())
    assert made.table["method"][0] == "fedavg" or not made.table["p"][1] < 0.05, made.table.T
    compared = compare(home=tmp_path)  # as the leaderboard says: optimiser and rates were chosen, so no complaint
    assert compared.complaints == () and all(line.difference.p for line in compared.lines[1:])
    for study in made.studies.values():
        both = [study.scores[f"val/L1/{view}/mean"] for view in ("local", "global")]
        assert study.scores["val/L1/acc"] == pytest.approx(sum(both))
    assert (made.table["search_samples"] > 0).all() and made.table["restricted"].tolist() == ["", ""]


# -- the tables -------------------------------------------------------------------------------------------------------


def entry(method, value, scores, *, mode="max", error="", diverged=None, errors=None):
    """A finished part of a benchmark: the validation value of its one trial, and {seed: test score}."""
    (settings,) = settings_of(methods(method), SPACE, metric="val/L1/acc", mode=mode).values()
    finals = [
        Result.of_numbers(seed, {"final/test/L1/acc": score}, history=COSTS, run_id="r")
        for seed, score in scores.items()
    ]
    rows = {"trial": [0], "state": ["complete"], "val/L1/acc": [value], "seconds": [2.5], "samples": [1200]}
    tested = [*scores, *(diverged or ())]
    study_storage = SimpleNamespace(
        chosen=lambda: (0, SimpleNamespace(values=[value], params={"algorithm.x": 0.5})),
        confirmations=list,
        sampled=lambda: 1,
        table=lambda metrics: pd.DataFrame(rows),
        openings=lambda: [{"params": {"algorithm.x": 0.5}, "seeds": tested}] if tested else [],
    )
    plan = SimpleNamespace(method=method, name=f"b.{method}", settings=settings)
    return leaderboard.MethodStudy(
        plan,
        study_storage,
        None
        if error
        else SimpleNamespace(
            finals=finals,
            run_id="s",
            diverged=diverged or {},
            confirmation=None,
            standard_errors=errors or {},
            ends=(),
            tie_note="",
            test_data_notes=(),
        ),
        error,
    )


def test_one_seed_tells_no_difference():
    entries = [entry("toy", 0.9, {0: 0.5}), entry("rival", 0.8, {0: 0.6})]
    table = leaderboard.leaderboard(entries)
    assert table["method"].tolist() == ["rival", "toy"] and table["difference"][1] == pytest.approx(-0.1)
    assert table[["std", "low", "high", "p", "p_holm"]].isna().all(axis=None)
    assert any("One seed: no spread" in note for note in leaderboard_notes.notes(entries, table))
    told = "Every method is chosen by val/L1/acc and tested by test/L1/acc (Acc(L) + Acc(G)), last round."
    assert told in leaderboard_notes.notes(entries, table)


def test_trials_as_good_as_the_choice_are_named_by_method():
    """Of a worst client's accuracy all trials had 0: the choice of each method was its first trial, with no line."""
    entries = [entry("toy", 0.0, {0: 0.5}), entry("rival", 0.0, {0: 0.6})]
    line = "as good in the search as trial 000, and later, so not chosen: 001, 002"
    entries[1].study.tie_note = line
    notes = leaderboard_notes.notes(entries, leaderboard.leaderboard(entries))
    assert f"rival: {line}." in notes and not any(note.startswith("toy: ") for note in notes)


def test_choice_without_a_rival_is_named_beside_confirmed_ones():
    """One trial of five was complete, and its choice stood beside the confirmed ones without a word."""
    entries = [entry("toy", 0.9, {0: 0.5}), entry("rival", 0.8, {0: 0.6})]
    values = {0: {1000: 0.9, 1001: 0.8, 1002: 0.9}, 1: {1000: 0.7, 1001: 0.9, 1002: 0.6}}
    entries[0].study.confirmation = judge("val/L1/acc", True, values, {}, [1000, 1001, 1002])
    notes = leaderboard_notes.notes(entries, leaderboard.leaderboard(entries))
    (told,) = [note for note in notes if note.startswith("Chosen among")]
    assert told.endswith("toy not separated after 3. Not repeated, since only one configuration is complete: rival.")
    begin = "Chosen among the best configurations, repeated with new seeds on validation data: toy "
    for lost, end in (
        ({1: "seed 1001 diverged"}, "after 3, since every other one diverged."),
        ({0: "seed 1000 diverged", 1: "seed 1001 diverged"}, "as by the search, since every one diverged."),
    ):
        entries[0].study.confirmation = judge("val/L1/acc", True, values, lost, [1000, 1001, 1002])
        table = leaderboard.leaderboard(entries)
        assert any(note.startswith(f"{begin}{end}") for note in leaderboard_notes.notes(entries, table))
    assert table["confirmed_n"].tolist() == [0, 0] and table["confirmed"].isna().all()
    entries[1].plan.settings = entries[1].plan.settings.limited(StudyLimits(confirm=0))
    assert "Not repeated" not in " ".join(leaderboard_notes.notes(entries, leaderboard.leaderboard(entries)))


def test_mean_over_a_part_of_the_tests_says_so():
    """No client of seeds 4 to 6 has a test sample. The means of the other four stood as those of seven seeds."""
    first, second = ({seed: value for seed in range(7)} for value in (0.5, 0.6))
    entries = [entry("toy", 0.9, first), entry("rival", 0.8, second)]
    for one in entries:
        for run in one.study.finals[4:]:
            run.metrics["final/test/L1/acc"] = math.nan
        for run in one.study.finals[:3]:
            run.metrics["final/test/L1/local/worst"] = 0.25
    table = leaderboard.leaderboard(entries)
    assert table[["n", "test_runs", "n_worst", "n_local"]].values.tolist() == [[4, 7, 3, 0]] * 2
    assert table["common"][1] == 4
    shown = tables.leaderboard(table, "b")
    assert "mean ± std of 7 seeds" in shown.title
    assert shown.rows[0][4] == "60.0 ± 0.0 % (4 of 7)" and shown.rows[0][9] == "25.0 % (3 of 7)"
    told = leaderboard_notes.notes(entries, table)
    assert "(4 of 7): the mean over the test runs that have a value." in told
    page = _ranking(table, told)
    assert [page.rows[0].entries[i].text for i in (4, 5, 7)] == ["60.0 ± 0.0 % (4 of 7)", "–", "25.0 % (3 of 7)"]
    assert "60.0 ± 0.0 % (4 of 7) | 4 |" in leaderboard.markdown(table, told)
    assert leaderboard.summary(entries[0]).endswith("test 50.0 ± 0.0 % over 4 of 7 seeds")


def test_method_without_a_test_score_has_no_rank():
    """The note said of both that the test data stayed closed, and that validation scores rank them."""
    entries = [entry("toy", 0.9, {0: math.nan, 1: math.nan}), entry("rival", 0.8, {0: 0.6, 1: 0.7})]
    table = leaderboard.leaderboard(entries)
    assert table["method"].tolist() == ["rival", "toy"] and pd.isna(table["rank"][1])
    told = " ".join(leaderboard_notes.notes(entries, table))
    assert "No rank, since no test run has a score: toy." in told
    assert "closed" not in told and "validation scores, of" not in told
    entries[1] = entry("rival", 0.8, {0: math.nan, 1: math.nan})
    told = " ".join(leaderboard_notes.notes(entries, leaderboard.leaderboard(entries)))
    assert "No test run has a score: ranked by validation scores, of one seed." in told and "No rank" not in told


def test_clients_that_are_drawn_to_be_scored_are_a_note():
    """Nothing said it, though it is the default with more than 200 clients; or that all are scored."""
    entries = [entry("toy", 0.9, {0: 0.5}), entry("rival", 0.8, {0: 0.6})]
    assert not any("are scored" in note for note in leaderboard_notes.notes(entries, leaderboard.leaderboard(entries)))
    for one in entries:
        (run,) = one.study.finals
        one.study.finals = [replace(run, tags={"pfl_ops.clients": "300"})]
    told = "200 of 300 clients are scored, drawn once for each run (evaluation.clients)."
    assert told in leaderboard_notes.notes(entries, leaderboard.leaderboard(entries))
    few = entries[0].plan.settings.experiment.override({"participation.share": 0.25})
    goal = Objective(("val/L2/acc",), ("max",))
    entries[0].plan.settings = replace(entries[0].plan.settings, experiment=few, objective=goal)
    assert leaderboard_notes._cohorts(entries).endswith("Tests score absent clients too.")


def test_validation_scores_of_varied_cohorts_rank_no_methods():
    """Both are scored at L2, with shares from 0.1 on: each trial on its own share of the clients."""
    entries = [entry("toy", 0.9, {}), entry("rival", 0.8, {})]
    assert leaderboard.leaderboard(entries)["rank"].tolist() == [1, 2]
    for one, least in zip(entries, (0.3, 0.1), strict=True):
        space = spaces.parse(f"participation.share: {{float: [{least}, 1.0]}}")
        one.plan.settings = replace(one.plan.settings, space=space, objective=Objective(("val/L2/acc",), ("max",)))
    assert leaderboard.leaderboard(entries)["rank"].isna().all()
    assert leaderboard_notes._cohorts(entries) == (
        "Validation scores of toy, rival (L2) are those of the last round's cohort, 0.1 of the clients, not the same "
        "clients in all trials (participation.share is varied). They are not comparable, and methods have no rank by "
        "them. Tests score absent clients too."
    )
    for one in entries:
        one.plan.settings = replace(one.plan.settings, space=SPACE)
    assert leaderboard.leaderboard(entries)["rank"].tolist() == [1, 2]
    for one in entries:  # all clients take part, and weigh in the draws what γ says
        space = spaces.parse("participation.gamma: {float: [0.1, 1.0]}")
        one.plan.settings = replace(one.plan.settings, space=space)
        assert leaderboard.leaderboard(entries)["rank"].isna().all(), "of one method, or both"
    assert leaderboard_notes._cohorts(entries).startswith(
        "Validation scores of toy, rival (L2) are those of the last round's cohort, not the same clients in all trials "
        "(participation.gamma is varied). They are not comparable"
    )


def test_test_samples_that_are_trained_on_are_a_note():
    entries = [entry("toy", 0.9, {0: 0.5}), entry("rival", 0.8, {0: 0.6})]
    entries[1].study.test_data_notes = ("5 of 40 test samples have the values of a training sample",)
    told = "5 of 40 test samples have the values of a training sample."
    assert told in leaderboard_notes.notes(entries, leaderboard.leaderboard(entries))


def test_without_a_test_validation_ranks():
    entries = [entry("toy", 0.9, {}), entry("rival", 0.8, {})]
    table = leaderboard.leaderboard(entries)
    assert table["method"].tolist() == ["toy", "rival"] and table["openings"].tolist() == [0, 0]
    assert any("ranked by validation scores, of one seed" in note for note in leaderboard_notes.notes(entries, table))


def test_without_a_test_the_new_seeds_rank_if_all_methods_have_them():
    """toy's trial was lucky with the seed of the search: 0.9, and 0.5 in the mean over new seeds."""
    entries = [entry("toy", 0.9, {}), entry("rival", 0.8, {})]
    seeds = [1000, 1001, 1002]
    for one, mean in zip(entries, (0.5, 0.75), strict=True):
        values = {0: dict(zip(seeds, (mean, mean + 0.01, mean - 0.01), strict=True)), 3: dict.fromkeys(seeds, 0.1)}
        assert leaderboard.leaderboard(entries)["method"].tolist() == ["toy", "rival"], "rival has none yet"
        one.study.confirmation = judge("val/L1/acc", True, values, {}, seeds)
    table = leaderboard.leaderboard(entries)
    assert table["method"].tolist() == ["rival", "toy"] and table["rank"].tolist() == [1, 2]
    told = " ".join(leaderboard_notes.notes(entries, table))
    assert "over the new seeds, rival 75.0 % (n = 3), toy 50.0 % (n = 3)." in told
    assert tables.leaderboard(table, "b").title.startswith(
        "benchmark b, ranked by validation score over new seeds after"
    )
    shown = _ranking(table, ())
    assert shown.caption.endswith("; test: not tested")
    assert ", ranked by validation score over new seeds: scores of" in shown.caption
    assert shown.rows[0].entries[3].mark == "", "the search's score, 0.8, is not the best"


def test_validation_scores_of_other_clients_give_no_rank():
    """late is scored at L2, so on the cohort, a quarter of the clients; toy on all: only tests rank them."""
    entries = [entry("toy", 0.8, {}), entry("late", 0.9, {})]
    for one, stage in zip(entries, ("L1", "L2"), strict=True):
        few = one.plan.settings.experiment.override({"participation.share": 0.25})
        goal = Objective((f"val/{stage}/acc",), ("max",))
        one.plan.settings = replace(one.plan.settings, experiment=few, objective=goal)
        one.study_storage.table = lambda metrics: pd.DataFrame(
            {"trial": [0], "state": ["complete"], metrics[0]: [0.9], "seconds": [2.5], "samples": [1200]}
        )
    table = leaderboard.leaderboard(entries)
    assert table["rank"].isna().all()
    told = " ".join(leaderboard_notes.notes(entries, table))
    assert "Validation scores of late (L2) are those of the last round's cohort, 0.25 of the clients; those of" in told
    assert "not comparable" in told and "no method has a rank" in told and "ranked" not in told
    late = entries[1].plan.settings
    drawn = replace(late, experiment=late.experiment.override({"evaluation.clients": 2}))
    entries[1].plan.settings = drawn
    told = " ".join(leaderboard_notes.notes(entries, table))
    assert "0.25 of the clients, if they are among the 2 that are scored (about 0.5 of a cohort); those of" in told
    entries[1].plan.settings = late
    assert "not ranked after" in tables.leaderboard(table, "b").title
    one = entry("toy", 0.8, {0: 0.5})
    one.plan.settings = entries[0].plan.settings
    assert leaderboard.leaderboard([one, entries[1]])["rank"][0] == 1  # tests score absent clients too


def test_validation_scores_of_several_seeds_are_told_as_such():
    one = entry("toy", 0.9, {})
    one.plan.settings = replace(one.plan.settings, seeds_per_trial=2)
    told = " ".join(leaderboard_notes.notes([one], leaderboard.leaderboard([one])))
    assert "ranked by validation scores, means over 2 seeds" in told and "of one seed" not in told


def test_no_rank_is_told_where_every_method_diverged_in_a_test():
    entries = [entry("toy", 0.9, {}, diverged={0: "diverged"}), entry("rival", 0.8, {}, diverged={0: "diverged"})]
    table = leaderboard.leaderboard(entries)
    assert table["rank"].isna().all()
    assert not any("stayed closed" in note or "ranked" in note for note in leaderboard_notes.notes(entries, table))


def test_equal_scores_share_a_rank():
    """The means of 0.1, 0.2, 0.3 and of 0.3, 0.2, 0.1 differ by rounding alone."""
    first, second, third = ({seed: 0.1 * n for seed, n in enumerate(of)} for of in ((1, 2, 3), (3, 2, 1), (1, 1, 2)))
    entries = [entry("toy", 0.9, first), entry("rival", 0.8, second), entry("late", 0.8, third)]
    table = leaderboard.leaderboard(entries)
    assert table["rank"].tolist() == [1, 1, 3] and table["p"][1] == pytest.approx(1)
    assert any("A tie for the first rank: toy, rival." in note for note in leaderboard_notes.notes(entries, table))


def test_largest_standard_error_of_the_chosen_trials_is_told():
    sampled = [entry("toy", 0.9, {0: 0.5}, errors={"val/L1/acc": 0.004}), entry("rival", 0.8, {0: 0.6})]
    line = "have a standard error of the evaluation of 0.4 points: Acc(G) is from a sample of the validation data"
    assert sum(line in note for note in leaderboard_notes.notes(sampled, leaderboard.leaderboard(sampled))) == 1
    sampled.append(entry("late", 0.9, {0: 0.5}, errors={"val/L1/acc": 0.006}))
    assert any(
        "of up to 0.6 points" in note for note in leaderboard_notes.notes(sampled, leaderboard.leaderboard(sampled))
    )
    whole = [entry("toy", 0.9, {0: 0.5})]
    assert not any("standard error" in note for note in leaderboard_notes.notes(whole, leaderboard.leaderboard(whole)))


def test_runs_with_new_seeds_count_as_search_and_are_told():
    """Two of them, of 100 samples and 1.5 s each, beside one trial of 1200 samples and 2.5 s."""
    entries = [entry("toy", 0.9, {0: 0.5, 1: 0.6}), entry("rival", 0.8, {0: 0.4, 1: 0.6})]
    values = {0: {1000: 0.5, 1001: 0.52, 1002: 0.48}, 3: {1000: 0.8, 1001: 0.83, 1002: 0.79}}
    entries[0].study.confirmation = judge("val/L1/acc", True, values, {}, [1000, 1001, 1002])
    entries[0].study_storage.confirmations = lambda: [{"samples": 100, "seconds": 1.5}] * 2
    table = leaderboard.leaderboard(entries).set_index("method")
    assert table["search_samples"].to_dict() == {"toy": 1400, "rival": 1200}
    again = table[["sampled", "confirmed_n", "separated"]]
    assert again.loc["toy"].tolist() == [1, 3, True] and again.loc["rival"].tolist() == [1, 0, False]
    assert table.loc["toy", ["confirmed", "confirmed_std"]].tolist() == pytest.approx([2.42 / 3, 0.020816659995])
    assert table["search_seconds"].to_dict() == {"toy": 5.5, "rival": 2.5}
    note = " ".join(leaderboard_notes.notes(entries, table.reset_index()))
    assert "with new seeds on validation data: toy separated after 3, not trial 000 as the search." in note


def test_small_scores_win_where_smaller_is_better():
    """rival is 0.1, 0.11 and 0.1 above toy. late diverged with its only seed: there is no other test to correct for.

    Of toy's trials the second was pruned at 0.2, below the first one's 0.9; the third is worse, the last one failed.
    """
    first, above = {0: 0.5, 1: 0.7, 2: 0.6}, {0: 0.6, 1: 0.81, 2: 0.7}
    lost = entry("late", 0.1, {}, mode="min", diverged={0: "diverged"})
    entries = [entry("rival", 0.8, above, mode="min"), entry("toy", 0.9, first, mode="min"), lost]
    states, values = ["complete", "pruned", "complete", "failed"], [0.9, 0.2, 0.95, None]
    trials = {"trial": range(4), "state": states, "val/L1/acc": values, "seconds": [1.0] * 4, "samples": [9] * 4}
    entries[1].study_storage.table = lambda metrics: pd.DataFrame(trials)
    table = leaderboard.leaderboard(entries)
    assert table["method"].tolist() == ["toy", "rival", "late"] and table["p_holm"][1] == table["p"][1] < 0.01
    assert table.loc[0, ["trials", "complete", "pruned", "failed", "sampled"]].tolist() == [4, 2, 1, 1, 1]
    (note,) = [note for note in leaderboard_notes.notes(entries, table) if note.startswith("Differences")]
    assert note.endswith("same partition in each; at 5 % told apart from toy: rival.")
    assert leaderboard.traces(entries).query("method == 'toy'")["best"].tolist() == [0.9] * 4


def test_methods_with_other_numbers_of_seeds_are_tested_over_those():
    entries = [*three()[:2], entry("late", 0.5, {0: 0.4, 1: 0.59})]
    table = leaderboard.leaderboard(entries)
    assert table[["common", "p_seeds"]].values.tolist() == [[0, 0], [2, 2], [3, 3]]
    assert any("paired t test over 2 to 3 seeds" in note for note in leaderboard_notes.notes(entries, table))


def test_validation_ranks_no_method_that_diverged_in_its_only_test():
    entries = [entry("toy", 0.8, {}), entry("rival", 0.9, {}, diverged={0: "diverged"})]
    table = leaderboard.leaderboard(entries)
    assert table["method"].tolist() == ["toy", "rival"] and table["rank"].tolist() == [1, pd.NA]


def test_differences_are_paired_by_seed_and_corrected_for_their_number():
    """d of rival: -0.10, -0.12, -0.11, t = -19.05 with two degrees of freedom; of late: -0.2, 0.1, 0.0."""
    first = {0: 0.5, 1: 0.7, 2: 0.6}
    rival, late = {0: 0.4, 1: 0.58, 2: 0.49}, {0: 0.3, 1: 0.8, 2: 0.6}
    entries = [entry("rival", 0.8, rival), entry("toy", 0.9, first), entry("late", 0.7, late)]
    table = leaderboard.leaderboard(entries).set_index("method")
    assert table.index.tolist() == ["toy", "late", "rival"]
    assert table["p"]["rival"] == pytest.approx(0.002743, abs=1e-5)
    assert table["p_holm"]["rival"] == pytest.approx(3 * table["p"]["rival"])
    # of rival less late: 0.1, -0.22, -0.11, p = 0.49988: it is doubled, and the largest p is raised to that
    between = statistics.paired(rival, late).p
    assert table["p"]["late"] > between and table["p_holm"]["late"] == pytest.approx(2 * between)
    assert set(table["p_test"]) == {"t"}
    note = " ".join(leaderboard_notes.notes(entries, table.reset_index()))
    assert "paired t test over 3 seeds, their number fixed before the test runs, on the same partition in each" in note
    assert "p corrected for all pairs of methods (Holm); at 5 % not told apart from toy: late" in note


def test_seeds_that_were_added_after_a_test_make_it_anytime_valid():
    """rival's choice was tested with seeds 0 to 2 first. A choice that was tested later, and left again, adds none."""
    draw = np.random.default_rng(0)
    first = {seed: 0.7 + 0.01 * draw.standard_normal() for seed in range(6)}
    second = {seed: value - 0.1 - 0.01 * draw.standard_normal() for seed, value in first.items()}
    entries = [entry("toy", 0.9, first), entry("rival", 0.8, second)]
    (opened,) = entries[1].study_storage.openings()
    other = {"params": {"algorithm.x": 0.25}, "seeds": [0, 1, 2]}
    entries[1].study_storage.openings = lambda: [opened, other, opened]
    assert set(leaderboard.leaderboard(entries)["p_test"]) == {"t"}
    entries[1].study_storage.openings = lambda: [{**opened, "seeds": [0, 1, 2]}, opened]
    table = leaderboard.leaderboard(entries)
    expected = statistics.anytime(second, first)
    assert table["p_test"].tolist() == ["anytime"] * 2 and table["p"][1] == expected.p == table["p_holm"][1] < 0.05
    assert (table["low"][1], table["high"][1]) == (expected.low, expected.high)
    note = " ".join(leaderboard_notes.notes(entries, table))
    assert "anytime-valid paired test over 6 seeds, some of them added or left out after a first test" in note


def test_seeds_left_out_after_a_test_make_it_anytime_valid():
    """Both choices were tested with six seeds: 0.06 with three, and -0.02 and less with the others. With three of them
    (`--repetitions 3`, after six) a t test has p = 0.003, though six seeds tell nothing."""
    first = {0: 0.7, 1: 0.71, 2: 0.72, 3: 0.6, 4: 0.6, 5: 0.61}
    less = {0: 0.06, 1: 0.05, 2: 0.06, 3: -0.05, 4: -0.02, 5: -0.04}
    second = {seed: value - less[seed] for seed, value in first.items()}
    assert statistics.paired(second, first).p > 0.5
    three = [{seed: one[seed] for seed in range(3)} for one in (first, second)]
    entries = [entry("toy", 0.9, three[0]), entry("rival", 0.8, three[1])]
    assert statistics.paired(three[1], three[0]).p < 0.01
    assert set(leaderboard.leaderboard(entries)["p_test"]) == {"t"}
    for one in entries:
        (opened,) = one.study_storage.openings()
        one.study_storage.openings = lambda opened=opened: [{**opened, "seeds": [0, 1, 2, 3, 4, 5]}]
    table = leaderboard.leaderboard(entries)
    assert table["p_test"].tolist() == ["anytime"] * 2
    assert table["p"][1] == statistics.anytime(three[1], three[0]).p
    note = " ".join(leaderboard_notes.notes(entries, table))
    assert "anytime-valid paired test over 3 seeds, some of them added or left out after a first test" in note


@pytest.mark.parametrize(("lacking", "p_seeds"), [(4, 4), (1, 1)])
def test_note_on_an_anytime_test_has_the_seeds_of_p(lacking, p_seeds):
    """One seed of six has no score in rival's tests: the test ends before it, of five common seeds."""
    draw = np.random.default_rng(0)
    first = {seed: 0.7 + 0.01 * draw.standard_normal() for seed in range(6)}
    second = {seed: value - 0.1 - 0.01 * draw.standard_normal() for seed, value in first.items()}
    entries = [entry("toy", 0.9, first), entry("rival", 0.8, second)]
    (opened,) = entries[1].study_storage.openings()
    entries[1].study_storage.openings = lambda: [{**opened, "seeds": [0, 1, 2]}, opened]
    entries[1].study.finals[lacking].metrics["final/test/L1/acc"] = math.nan
    table = leaderboard.leaderboard(entries)
    assert table[["common", "p_seeds"]].values.tolist() == [[0, 0], [5, p_seeds]]
    note = " ".join(leaderboard_notes.notes(entries, table))
    if p_seeds > 1:
        assert "anytime-valid paired test over 4 seeds, some of them" in note
    else:
        assert math.isnan(table["p"][1]) and "paired test over" not in note
        assert "No p value of rival: the test ends at the first seed of which a method has no score." in note


def test_note_on_a_method_with_one_common_seed_names_no_test():
    entries = [entry("toy", 0.9, {0: 0.7, 1: 0.71, 2: 0.72}), entry("rival", 0.8, {0: 0.6, 5: 0.61})]
    table = leaderboard.leaderboard(entries)
    assert table["common"].tolist() == [0, 1] and table["p"].isna().all()
    assert not any("test ends at" in note for note in leaderboard_notes.notes(entries, table))


@pytest.mark.parametrize("method", [0, 1])
def test_choice_changed_after_a_test_has_no_p(method):
    """Trials were added after a test of x = 0.25. The leaderboard had p for the new choice, as of n fixed before.

    Other choices have the t test still: no seed was added to a choice after its test."""
    entries = three()
    (opened,) = entries[method].study_storage.openings()
    former = {**opened, "params": {"algorithm.x": 0.25}, "seeds": [0, 1]}
    entries[method].study_storage.openings = lambda: [former, opened]
    table = leaderboard.leaderboard(entries).set_index("method")
    assert table["difference"][1:].notna().all() and pd.isna(table["p_holm"]["rival"])
    assert pd.notna(table["p_holm"]["late"]) == (method == 1)
    if method == 1:  # its two pairs stay in the family
        assert table["p_holm"]["late"] == pytest.approx(3 * table["p"]["late"])
    notes = leaderboard_notes.notes(entries, table.reset_index())
    name = entries[method].plan.method
    assert any(note.startswith(f"Without a p value: the choice of {name} was changed after a test") for note in notes)
    assert any(note.endswith("at 5 % told apart from toy: late.") for note in notes) == (method == 1)
    assert any("fixed before" in note for note in notes) == (method == 1)


def test_method_that_is_better_over_common_seeds_is_named_so():
    """toy is first by two seeds that late lacks: 0.6433 to 0.61575. late is 0.1, 0.101, 0.1 and 0.102 above it."""
    first = {0: 0.5, 1: 0.51, 2: 0.52, 3: 0.53}
    late = {seed: score + d for (seed, score), d in zip(first.items(), (0.1, 0.101, 0.1, 0.102), strict=True)}
    entries = [entry("toy", 0.9, {**first, 4: 0.9, 5: 0.9}), entry("late", 0.5, late)]
    table = leaderboard.leaderboard(entries)
    assert table["method"][0] == "toy" and table["p_holm"][1] < 0.001 and table["difference"][1] > 0
    (note,) = [n for n in leaderboard_notes.notes(entries, table) if n.startswith("Differences")]
    assert note.endswith("; at 5 % better than toy over the seeds that both have: late.")


def changed(one, **settings):
    """An entry with other settings."""
    made = replace(one.plan.settings, **settings)
    return replace(one, plan=SimpleNamespace(method=one.plan.method, name="b", settings=made))


def three():
    """toy ahead of rival and late in each of three seeds, by a little more in the later ones."""
    scores = {0: 0.5, 1: 0.7, 2: 0.6}
    low = {seed: score - 0.1 - 0.01 * seed for seed, score in scores.items()}
    return [entry("toy", 0.9, scores), *(entry(method, 0.5, low) for method in ("rival", "late"))]


ADAM = {"training.optimiser": "adam", "training.lr": 0.001}


def test_there_is_no_p_value_where_more_than_the_methods_differs():
    """rival has another optimiser, and late is searched over another range of learning rates."""
    entries = three()
    alike = leaderboard.leaderboard(entries)
    assert alike["p"][1:].notna().all() and not any(
        "Not a fair comparison" in n for n in leaderboard_notes.notes(entries, alike)
    )

    toy, rival, late = entries
    rival = changed(rival, experiment=rival.plan.settings.experiment.override(ADAM))
    rates = spaces.parse("algorithm.x: {float: [0, 1]}\ntraining.lr: {float: [0.01, 0.1]}")
    late = changed(late, space=rates)
    table = leaderboard.leaderboard([toy, rival, late])
    assert table["method"][0] == "toy" and table[["p", "p_holm"]].isna().all(axis=None)
    assert table["difference"][1:].notna().all()
    note = next(n for n in leaderboard_notes.notes([toy, rival, late], table) if "Not a fair comparison" in n)
    assert "rival has optimiser adam, not sgd; lr 0.001, not 0.05" in note
    assert "late has lr 0.01 to 0.1, not 0.05" in note
    assert not any("told apart" in n for n in leaderboard_notes.notes([toy, rival, late], table))


def test_a_range_on_a_log_scale_is_another_range():
    entries = [changed(one, space=spaces.parse("training.lr: {float: [0.01, 0.1]}")) for one in three()]
    entries[1] = changed(entries[1], space=spaces.parse("training.lr: {float: [0.01, 0.1], log: true}"))
    table = leaderboard.leaderboard(entries).set_index("method")
    assert pd.isna(table["p"]["rival"]) and table["p"]["late"] < 0.05
    notes = leaderboard_notes.notes(entries, table.reset_index())
    assert any(
        note.startswith("Differences to the first: paired t test over 3 seeds")
        and note.endswith("told apart from toy: late.")
        for note in notes
    )
    assert any("without a p value: rival has lr 0.01 to 0.1 (log), not 0.01 to 0.1." in note for note in notes)


COMMON = """
training.optimiser: {choice: [sgd, adam]}
training.lr:
  - {float: [0.01, 0.5], log: true, when: {training.optimiser: sgd}}
  - {float: [1.0e-4, 0.1], log: true, when: {training.optimiser: adam}}
"""


def test_what_is_chosen_from_one_common_space_is_no_complaint_and_a_restricted_method_is_marked():
    """rival begins with Adam, which is its recommendation; late can have SGD only."""
    common = spaces.parse(COMMON)
    toy, rival, late = (changed(one, space=common, common=common) for one in three())
    rival = changed(rival, experiment=rival.plan.settings.experiment.override(ADAM))
    late = changed(late, space=spaces.hold(common, ["training.optimiser"], late.plan.settings.experiment))
    table = leaderboard.leaderboard([toy, rival, late]).set_index("method")
    assert table["p"][1:].notna().all()
    assert table["restricted"].to_dict() == {"toy": "", "rival": "", "late": "optimiser sgd"}
    assert table["search_samples"].tolist() == [1200] * 3 and table["tuned"].to_dict()["rival"] == 2
    text = " ".join(leaderboard_notes.notes([toy, rival, late], table.reset_index()))
    assert "Searched over the same ranges by all methods: optimiser, lr." in text
    assert "* Restricted by what the method requires: late (optimiser sgd)." in text
    assert not any(part in text for part in ("Not a fair comparison", "bring along", "Fewer trials"))

    wider = spaces.parse(COMMON.replace("0.5", "0.9"))
    other = changed(rival, space=wider, common=wider)
    assert pd.isna(leaderboard.leaderboard([toy, other]).set_index("method")["p"]["rival"])
    longer = changed(rival, experiment=rival.plan.settings.experiment.override({"training.rounds": 7}))
    assert leaderboard.differing(toy, longer) == {"training.rounds": ("9", "7")}
    later = changed(rival, common=replace(common, first=({**ADAM},)))
    table = leaderboard.leaderboard([toy, later])
    assert table["p"].isna().all()
    note = "rival has first trials from 1 recommendations, not from 0 recommendations"
    assert any(note in each for each in leaderboard_notes.notes([toy, later], table))
    before = changed(toy, common=replace(common, first=({**ADAM, "training.lr": 0.01},)))  # rival recommends another
    assert leaderboard.leaderboard([before, later])["p"].isna().all()
    assert leaderboard.differing(before, later) == {
        "first trials": ("from 1 recommendations", "from 1 other recommendations")
    }
    few = changed(toy, space=replace(common, first=({**ADAM}, {**ADAM, "training.lr": 0.01})), trials=1)
    enough = changed(rival, space=few.plan.settings.space, trials=2)
    notes = leaderboard_notes.notes([few, enough], leaderboard.leaderboard([few, enough]))
    assert any("Fewer trials than recommended settings to try first: toy 2." in note for note in notes)


def test_recommended_settings_that_hold_and_were_not_tuned_are_named():
    """FLIU recommends Adam at 0.001. The rate is another one here, or was varied."""
    experiment = Experiment.of("fliu", dataset="digits")
    assert experiment.algorithm.recommended == {"training.optimiser": "adam", "training.lr": 0.001}
    other = changed(entry("toy", 0.9, {}), experiment=experiment.override({"training.lr": 0.002}))
    rates = spaces.parse("training.lr: {float: [0.001, 0.1]}")
    varied = changed(entry("rival", 0.9, {}), experiment=experiment, space=rates)
    told = "Settings that methods bring along: toy training.optimiser=adam; rival training.optimiser=adam."
    assert leaderboard_notes._own_settings([other, varied]) == told


def test_a_failed_method_stands_last_with_its_reason():
    entries = [entry("toy", 0.9, {}, error="the disk is full"), entry("rival", 0.1, {0: 0.2})]
    table = leaderboard.leaderboard(entries)
    assert table["method"].tolist() == ["rival", "toy"] and pd.isna(table["rank"][1])
    text = leaderboard.markdown(table, leaderboard_notes.notes(entries, table))
    assert "|  | toy | L1 | 90.0 % |  | 0 | failed: the disk is full |" in text
    assert text.endswith("- toy failed: the disk is full.")


def test_a_method_that_diverged_in_a_test_run_has_no_mean_no_rank_and_no_p_value():
    """Its other seeds are the best of all; the seed that diverged is counted, not dropped."""
    lost = {3: "diverged at round 9", 2: "diverged at round 7, client 12, lr 0.4"}
    entries = [
        entry("toy", 0.9, {0: 0.8, 1: 0.9}, diverged=lost),
        entry("rival", 0.1, {0: 0.2, 1: 0.3, 2: 0.2}),
        entry("late", 0.1, {0: 0.1, 1: 0.3, 2: 0.1}),
    ]
    table = leaderboard.leaderboard(entries)
    assert table["method"].tolist() == ["rival", "late", "toy"] and table["rank"].tolist()[:2] == [1, 2]
    row = table.iloc[2]
    assert row["status"] == "diverged" and row["diverged_tests"] == 2 and pd.isna(row["rank"])
    assert row[["test", "std", "local", "worst", "difference", "p", "p_holm"]].isna().all()
    assert set(table["p_test"]) == {"t"}, "the seeds that diverged were not left out"
    assert table["p_holm"][1] == min(1, 3 * table["p"][1])  # its two pairs stay in the family
    assert any("p corrected for all pairs of methods (Holm)" in n for n in leaderboard_notes.notes(entries, table))
    said = "2 of 4 test runs: seed 2 diverged at round 7, client 12, lr 0.4; seed 3 diverged at round 9"
    assert row["error"] == said
    assert f"| diverged: {said} |" in leaderboard.markdown(table, leaderboard_notes.notes(entries, table))
    assert leaderboard.tests(entries)["score"].tolist() == [0.8, 0.9, 0.2, 0.3, 0.2, 0.1, 0.3, 0.1]
    (record,) = leaderboard.points(entries[0])
    assert math.isnan(record.metrics["leaderboard/test"])
    assert leaderboard.summary(entries[0]) == f"validation 90.0 % (trial 000), {said}"


def test_no_picture_of_tests_has_a_method_that_diverged_in_one():
    """Its other seeds would be its mean: two dots at 80 and 90 %, above the rival's."""
    entries = [entry("toy", 0.9, {0: 0.8, 1: 0.9}, diverged={2: "diverged"}), entry("rival", 0.1, {0: 0.2, 1: 0.3})]
    table, tests = leaderboard.leaderboard(entries), leaderboard.tests(entries)
    tests = tests.assign(**{"local": tests["score"], "global": tests["score"]})
    made = reports.leaderboard("b", table, leaderboard.traces(entries), tests)
    (drawn,) = [picture.draw() for picture in made.each(Picture) if picture.name == "local-global"]
    words = {text.get_text() for text in drawn.axes[0].texts}
    assert any("rival" in word for word in words) and not any("toy" in word for word in words)


def test_cells_of_the_page_s_tables():
    """Differences of rival: -0.1, -0.2, -0.3: t = -3.46 with two degrees of freedom, p = 0.074, no difference at 5 %;
    beside late it is doubled. Of late: -0.4, -0.41, -0.39, t = -69. A run sends 32 bytes; one of late has no score.
    """
    first = {0: 0.5, 1: 0.6, 2: 0.7}
    rival, late = (
        {seed: first[seed] + d for seed, d in enumerate(ds)} for ds in ((-0.1, -0.2, -0.3), (-0.4, -0.41, -0.39))
    )
    entries = [entry("late", 0.7, {**late, 3: math.nan}), entry("rival", 0.8, rival), entry("toy", 0.9, first)]
    table, tests = leaderboard.leaderboard(entries), leaderboard.tests(entries)
    made = reports.leaderboard("b", table, leaderboard.traces(entries), tests)
    found = {each.name: each for each in made.each(Table)}
    ranking = found["leaderboard"]
    assert ranking.caption.endswith("test: mean ± sample standard deviation over 4 seeds")
    cells = [row.entries for row in ranking.rows]
    assert [row[1].text for row in cells] == ["toy", "rival", "late"]
    # of three differences the interval is ± 4.302653 s/√3: 0.2484 with s = 0.1, a tenth of it with 0.01
    assert [row[8].text for row in cells] == ["", "−20.00 [−44.84, +4.84]", "−40.00 [−42.48, −37.52]"]
    assert [row[4].mark for row in cells] == ["best", "", ""] and {row[3].mark for row in cells} == {""}
    assert [row[9].text for row in cells] == ["", "0.15", "<0.001"] and [row[9].mark for row in cells] == [
        "",
        "",
        "bad",
    ]
    assert {row.entries[10].text for row in found["cost"].rows} == {"32 bytes"}
    assert {row.entries[9].text for row in found["cost"].rows} == {"3.0 s"}, "as in the terminal"
    assert [row.entries[0].text for row in found["seeds"].rows] == ["toy", "rival", "late"]
    two = _ranking(leaderboard.leaderboard(entries[1:]), ()).rows[1].entries[9]
    assert (two.text, two.mark) == ("0.074", "")
    once = [entry("toy", 0.9, {0: 0.5}), entry("rival", 0.8, {0: 0.6})]
    table, tests = leaderboard.leaderboard(once), leaderboard.tests(once)
    made = reports.leaderboard("b", table, leaderboard.traces(once), tests)
    found = {each.name: each for each in made.each(Table)}
    assert found["leaderboard"].caption.endswith("test: one seed") and "seeds" not in found


def test_chosen_settings_have_all_digits():
    """With four digits another run would not be the same."""
    assert leaderboard.settings_text({"training.lr": 0.0041347590078, "algorithm.gamma.kind": None}) == (
        "training.lr=0.0041347590078 gamma.kind=none"
    )


def test_a_study_s_own_run_has_no_score_of_an_earlier_choice():
    """The second call has another choice, and its test run diverged: its numbers take the place of the first call's."""
    shown = {}
    parent = SimpleNamespace(set_metrics=lambda step, metrics: shown.update(metrics), note=lambda text: None)
    experiment = toy()
    for values, finals, diverged in (
        ({"val/L1/acc": 0.5}, [final(experiment, "a"), final(experiment.repetition(1), "b")], {}),
        ({"val/L1/acc": 0.7}, [], {0: "diverged at round 4"}),
    ):
        study = Study(
            "one", None, Objective(("val/L1/acc",), ("max",)), {"algorithm.x": 0.5}, 0, values, experiment,
            pd.DataFrame({"trial": [0], "state": ["complete"], "val/L1/acc": [0.5]}), finals=finals, diverged=diverged,
        )  # fmt: skip
        presented.end(parent, study, "trials")
        tested = not diverged
        assert shown["val/L1/acc"] == values["val/L1/acc"] and shown["score/n"] == 2 * tested
        assert math.isfinite(shown["score/acc"]) == math.isfinite(shown["score/acc/std"]) == tested


def test_note_of_a_study_says_how_many_tests_have_a_score():
    """The second test run has no client to score."""
    notes = []
    parent = SimpleNamespace(set_metrics=lambda step, metrics: None, note=notes.append)
    experiment = toy()
    without = final(experiment.repetition(1), "b")
    without.final.clear()
    study = Study(
        "one", None, Objective(("val/L1/acc",), ("max",)), {"algorithm.x": 0.5}, 0, {"val/L1/acc": 0.5}, experiment,
        pd.DataFrame({"trial": [0], "state": ["complete"], "val/L1/acc": [0.5]}),
        finals=[final(experiment, "a"), without],
    )  # fmt: skip
    presented.end(parent, study, "trials")
    assert re.search(r"Tested with 2 seeds: `score/acc` [0-9.]+ \(1 of 2\)", notes[0])
    presented.end(parent, replace(study, finals=[]), "trials")
    assert "\n\nThe test data stay closed.\n\n" in notes[1]


def test_a_study_s_own_run_gets_its_numbers_if_they_can_be_ranked():
    (record,) = leaderboard.points(entry("toy", 0.9, {0: 0.5, 1: 0.7}))
    assert record.round == 2, "a step for each number of seeds: MLflow shows the last"
    assert record.metrics["leaderboard/test"] == pytest.approx(0.6) and record.metrics["leaderboard/validation"] == 0.9
    for metric in ("train/loss", ["val/L1/acc", "val/G/acc"]):
        plan = SimpleNamespace(settings=Settings.of(methods("toy")[0], SPACE, metric=metric))
        assert leaderboard.points(leaderboard.MethodStudy(plan, SimpleNamespace())) == []


def test_a_setting_with_two_ranges_is_one_column():
    """The learning rate has a range for each optimiser; MLflow's table of trials had it twice."""
    either = [SimpleNamespace(key="training.lr", when=when) for when in ("sgd", "adam")]
    goal = Objective(("val/L1/acc",), ("max",))
    settings = SimpleNamespace(
        objective=goal, goal=goal, experiment=toy(), combination=None, environments=(),
        space=SimpleNamespace(parameters=[SimpleNamespace(key="training.optimiser", when=None), *either]),
    )  # fmt: skip
    found = {}
    parent = SimpleNamespace(present=lambda note, views: found.update(note=note, views=views), note=lambda text: None)
    presented.begin(parent, SimpleNamespace(settings=settings, name="s", method="toy"), shared=False)
    assert "Varied: `training.optimiser`, `training.lr`." in found["note"]
    for each in found["views"]:
        assert len(set(each.columns)) == len(each.columns)
