"""Studies replayed on tables made by hand, whose regrets are derived by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from pfl_ops import spaces, statistics
from pfl_ops.errors import PflOpsError
from pfl_ops.tuning.session.confirm import judge
from pfl_ops.tuning.tables.regrets import as_csv, notes, regrets
from pfl_ops.tuning.tables.replay import (
    Choice,
    ReplayedStudy,
    StudyRule,
    _Replay,
    check,
    confirmed,
    nearest,
    regret,
    replay,
)
from pfl_ops.tuning.tables.trial_table import SearchProblem

METRIC = "val/L1/acc"
SPACE = spaces.parse("algorithm.x: {float: [0, 1]}")


def problem(values, truths, samples=None, larger=True, space=SPACE, points=None):
    """A table; values, truths: a row a configuration, a column a seed. Configuration i has x = i/10."""
    runs = [(c, s) for c in range(len(values)) for s in range(len(values[0]))]
    return SearchProblem(
        "toy",
        "path",
        METRIC,
        larger,
        space,
        4,
        1,
        tuple(points or ({"algorithm.x": c / 10} for c in range(len(values)))),
        tuple(range(len(values[0]))),
        {(c, s): values[c][s] for c, s in runs},
        {(c, s): truths[c][s] for c, s in runs},
        {(c, s): {4: samples[c] if samples else 10} for c, s in runs},
        {(c, s): {4: values[c][s]} if math.isfinite(values[c][s]) else {} for c, s in runs},
    )


LUCKY = problem(
    [[0.6] * 5, [0.9, 0.1, 0.1, 0.1, 0.1], [0.5] * 5],
    [[0.6] * 5, [0.2] * 5, [0.5] * 5],
)


def test_replay_lucky_seed_costs_argmax_the_difference():
    """Configuration 1 has 0.9 with seed 0 and 0.1 with the others. All three are tried. Where seed 0 is the search's,
    argmax takes 1: regret 0.6 − 0.2. The three new seeds do not have seed 0, so 0 is chosen: regret 0. Where another
    seed is the search's, 0 has the best value, and 1 has a mean of at most (0.9 + 0.1 + 0.1)/3 < 0.6: no regret."""
    studies = replay(LUCKY, StudyRule(trials=3, confirm=3, confirm_top=3), studies=20)
    lucky = [study for study in studies if study.seed == 0]
    assert 0 < len(lucky) < 20
    assert all(study.confirm.configuration == 0 and study.confirm.regret == 0 for study in studies)
    assert all(study.argmax.configuration == (1 if study in lucky else 0) for study in studies)
    assert all((study.first.configuration, study.first.runs) == (study.argmax.configuration, 3) for study in studies)
    (found,) = regrets(studies)
    assert (found.label, found.n, found.without) == ("toy, path", 20, 0)
    assert found.confirm == (0, (0, 0)) and found.argmax[0] == pytest.approx(0.4 * len(lucky) / 20)
    assert found.difference[0] == pytest.approx(-0.4 * len(lucky) / 20) and found.changed == len(lucky) / 20
    assert found.argmax[1] == statistics.interval([0.4 * (study in lucky) for study in studies])


def test_replay_is_the_same_for_a_seed_and_others_differ():
    rule = StudyRule(trials=3, confirm=3)
    assert replay(LUCKY, rule, studies=5) == replay(LUCKY, rule, studies=5)
    assert [s.seed for s in replay(LUCKY, rule, studies=5)] != [s.seed for s in replay(LUCKY, rule, studies=5, seed=1)]


def test_replay_gives_argmax_the_samples_of_the_confirmation():
    """Every run costs 10 samples. Three trials and 2 configurations with one new seed: 5 runs, so argmax has 5."""
    table = problem([[c / 10] * 3 for c in range(8)], [[c / 10] * 3 for c in range(8)])
    for study in replay(table, StudyRule(trials=3, confirm=1, confirm_top=2), studies=4):
        assert (study.confirm.runs, study.confirm.samples) == (5, 50)
        assert (study.argmax.runs, study.argmax.samples, study.exhausted) == (5, 50, False)
        assert study.argmax.regret <= study.confirm.regret  # without noise more trials are never worse


def test_replay_trial_that_passes_the_budget_still_counts():
    """Trials cost 7 and 11 samples in some order: argmax ends with the first that reaches the samples of the other."""
    table = problem([[c / 10] * 3 for c in range(8)], [[0.0] * 3] * 8, samples=[7, 11] * 4)
    for study in replay(table, StudyRule(trials=2, confirm=1, confirm_top=2), studies=6):
        assert study.confirm.samples <= study.argmax.samples < study.confirm.samples + 11


def test_replay_that_runs_out_of_configurations_says_so():
    studies = replay(LUCKY, StudyRule(trials=3, confirm=3, confirm_top=3), studies=3)
    assert all(study.exhausted and study.argmax.runs == 3 for study in studies)
    assert "in 3 studies the search tried all configurations before its samples were equal" in notes(studies, [LUCKY])


def test_replay_with_a_smaller_is_better_metric():
    """The signs are turned: configuration 0 has 0.4 in truth, 2 has 0.5; the best is 0, and 1 is worse by 0.4."""
    turned = problem(
        [[1 - v for v in row] for row in ([0.6] * 5, [0.9, 0.1, 0.1, 0.1, 0.1], [0.5] * 5)],
        [[0.4] * 5, [0.8] * 5, [0.5] * 5],
        larger=False,
    )
    for study in replay(turned, StudyRule(trials=3, confirm=3, confirm_top=3), studies=12):
        assert study.confirm.regret == 0
        assert study.argmax.regret == (pytest.approx(0.4) if study.seed == 0 else 0)


# -- the confirmation -------------------------------------------------------------------------------------------------


def test_confirmed_looks_after_three_seeds_and_stops_when_separated():
    """The values of `test_confirm`: two are separated with three seeds (6 runs of 10), three with four (12 of 15)."""
    apart = [[0.9, 0.901, 0.899, 0.9, 0], [0.1, 0.102, 0.097, 0.1, 0], [0.2, 0.2, 0.203, 0.2, 0]]
    for top, looked in (([1, 0], 3), ([1, 2, 0], 4)):
        winner, runs = confirmed(problem(apart, apart), top, [0, 1, 2, 3, 4])
        assert winner == 0 and len(runs) == len(top) * looked and {seed for _, seed in runs} == set(range(looked))


def test_confirmed_chooses_as_judge_does_after_all_seeds():
    draw = np.random.default_rng(1)
    for _ in range(20):
        values = draw.standard_normal((3, 5)).tolist()
        winner, runs = confirmed(problem(values, values), [2, 0, 1], range(5))
        looked = len(runs) // 3
        known = {c: dict(enumerate(values[c])) for c in (2, 0, 1)}
        assert winner == judge(METRIC, True, known, {}, list(range(looked))).winner


def test_confirmed_drops_a_configuration_without_a_result():
    """Configuration 0 has no result with the second seed: it is run no further, and the others are compared."""
    values = [[0.9, math.nan, 0.9, 0.9, 0.9], [0.5, 0.4, 0.6, 0.5, 0.5], [0.4, 0.5, 0.5, 0.4, 0.4]]
    winner, runs = confirmed(problem(values, values), [0, 1, 2], range(5))
    assert winner == 1 and [run for run in runs if run[0] == 0] == [(0, 0), (0, 1)]


def test_confirmed_gives_the_last_one_left_the_first_look():
    """As in `tune`, where it may diverge too: then nothing is confirmed, and the search's choice stays."""
    values = [[math.nan] * 5, [0.5, 0.4, 0.6, 0.5, 0.5], [0.5, 0.4, math.nan, 0.5, 0.5]]
    for other, winner in ((1, 1), (2, 0)):
        runs = [(0, 0), (other, 0), (other, 1), (other, 2)]
        assert confirmed(problem(values, values), [0, other], range(5)) == (winner, runs)


def test_confirmed_ends_a_later_look_that_was_begun():
    """As in `tune`: configuration 0 diverges with the fourth seed, and the run of the other was queued with it."""
    values = [[0.5, 0.7, 0.4, math.nan, 0.5], [0.6, 0.5, 0.5, 0.6, 0.5]]
    runs = [(number, seed) for seed in range(4) for number in (0, 1)]
    assert confirmed(problem(values, values), [0, 1], range(5)) == (1, runs)


def test_confirmed_with_one_configuration_or_none_takes_no_run():
    assert confirmed(LUCKY, [2], [0, 1, 2]) == (2, [])
    assert confirmed(LUCKY, [], [0, 1, 2]) == (None, [])


# -- the search -------------------------------------------------------------------------------------------------------


def test_search_knows_each_configuration_with_its_own_score_once():
    """Twelve configurations x = 0, 0.1, ..., 1.1; after twelve steps each is a complete trial with its own value."""
    points = [{"algorithm.x": c / 11} for c in range(12)]
    table = problem([[math.sin(c)] * 3 for c in range(12)], [[0.0] * 3] * 12, points=points)
    search = _Replay(table, StudyRule(scheduler="none"), [1], 5)
    for _ in range(12):
        search.step()
    known = [(t.params["algorithm.x"], t.values[0]) for t in search.study_storage.raw() if t.values]
    assert sorted(known) == [(c / 11, math.sin(c)) for c in range(12)]
    assert not search.left and search.samples == 120 and search.best() == 8  # sin 8 = 0.989, the largest


def test_search_begins_with_the_first_points_of_the_space():
    space = replace(SPACE, first=({"algorithm.x": 0.7}, {"algorithm.x": 0.2}))
    table = problem([[0.0] * 3] * 10, [[0.0] * 3] * 10, space=space)
    search = _Replay(table, StudyRule(scheduler="none"), [0], 0)
    search.step()
    search.step()
    assert [t.user_attrs["configuration"] for t in search.study_storage.raw() if t.values] == [7, 2]


def curves_to(*last):
    """Scores that rise evenly to `last` over four rounds, 5 samples a round, the same with each of three seeds."""
    table = problem([[value] * 3 for value in last], [[value] * 3 for value in last])
    runs = list(table.values)
    curves = {(c, s): {t: last[c] * t / 4 for t in range(5)} for c, s in runs}
    return replace(table, curves=curves, samples={run: {t: 5 * t for t in range(5)} for run in runs})


def test_search_stops_bad_trials_as_asha_does():
    """Rungs lie at rounds 1 and 3; the best third goes on. x = 0.3 is first with 0.9, so the three that follow are
    below its values and stop at round 1: 20 + 3·5 samples. Without ASHA all run to their ends: 80 samples."""
    space = replace(SPACE, first=({"algorithm.x": 0.3},))
    table = replace(curves_to(0.1, 0.2, 0.3, 0.9), space=space)
    for scheduler, samples in (("asha", 35), ("none", 80)):
        search = _Replay(table, StudyRule(scheduler=scheduler), [0], 0)
        for _ in range(4):
            search.step()
        assert search.samples == samples and search.best() == 3
        pruned = [t for t in search.study_storage.raw() if t.state.name == "PRUNED"]
        assert len(pruned) == (3 if scheduler == "asha" else 0)
        assert all(set(t.intermediate_values) == {0, 1} for t in pruned)
        assert search.top(3) == ([3] if scheduler == "asha" else [3, 2, 1])


def test_search_with_a_later_first_rung_stops_later():
    """As above with the rung at round 2 alone (3 times 2 is beyond the end): 20 + 3·10 samples."""
    table = replace(curves_to(0.1, 0.2, 0.3, 0.9), space=replace(SPACE, first=({"algorithm.x": 0.3},)))
    search = _Replay(table, StudyRule(grace=2), [0], 0)
    for _ in range(4):
        search.step()
    assert search.samples == 50


def test_search_with_a_long_random_start_is_random():
    """With twelve random trials the values do not matter to the first twelve of 24; with two they do."""
    points = [{"algorithm.x": c / 23} for c in range(24)]

    def order(sign, start):
        table = problem([[sign * c / 23] * 3 for c in range(24)], [[0.0] * 3] * 24, points=points)
        search = _Replay(table, StudyRule(scheduler="none", random_start=start), [0], 0)
        for _ in range(12):
            search.step()
        return [t.user_attrs["configuration"] for t in search.study_storage.raw() if t.values]

    assert order(1, 12) == order(-1, 12)
    assert order(1, 2) != order(-1, 2)


def test_search_with_the_random_sampler_never_learns():
    """The values do not matter to any of 24 points, where TPE's model has them from the third on."""
    points = [{"algorithm.x": c / 23} for c in range(24)]

    def order(sign, sampler):
        table = problem([[sign * c / 23] * 3 for c in range(24)], [[0.0] * 3] * 24, points=points)
        search = _Replay(table, StudyRule(scheduler="none", random_start=2, sampler=sampler), [0], 0)
        for _ in range(24):
            search.step()
        return [t.user_attrs["configuration"] for t in search.study_storage.raw() if t.values]

    assert order(1, "random") == order(-1, "random")
    assert order(1, "tpe") != order(-1, "tpe")


def test_search_with_several_seeds_takes_their_mean():
    """Seeds 0 and 1: (0.9 + 0.1)/2 = 0.5 is below (0.6 + 0.6)/2. Three trials have six runs; one that has no result
    with its first seed is not run with the second, and has no value."""
    table = problem([[0.9, 0.1], [0.6, 0.6], [math.nan, 0.9]], [[0.0] * 2] * 3)
    search = _Replay(table, StudyRule(seeds_per_trial=2), [0, 1], 0)
    for _ in range(3):
        search.step()
    assert search.top(3) == [1, 0] and (search.runs, search.samples) == (5, 50)
    assert sorted(t.values[0] for t in search.study_storage.raw() if t.values) == pytest.approx([0.5, 0.6])


def test_search_with_the_paired_pruner_ends_a_trial_that_is_worse_in_every_group():
    """x = 0 is first, with 0.9 in all ten groups. The others are 0.4 to 0.8 below it in each, so that Wilcoxon's
    one-sided p of ten pairs, 1/2^10, is below 0.1 after one run: 2 + 3 runs instead of 8."""
    last = (0.9, 0.5, 0.3, 0.1)
    table = problem([[value] * 4 for value in last], [[0.0] * 4] * 4, space=replace(SPACE, first=({"algorithm.x": 0},)))
    table = replace(table, groups={(c, s): {str(g): last[c] + g / 1000 for g in range(10)} for c, s in table.values})
    for scheduler, runs in (("paired", 5), (None, 8)):
        search = _Replay(table, StudyRule(scheduler=scheduler, seeds_per_trial=2), [2, 0], 0)
        for _ in range(4):
            search.step()
        assert (search.runs, search.samples) == (runs, 10 * runs)
        assert search.top(4) == ([0] if scheduler else [0, 1, 2, 3])
        pruned = [t for t in search.study_storage.raw() if t.state.name == "PRUNED"]
        assert [set(t.intermediate_values) for t in pruned] == ([{2}] * 3 if scheduler else []), "half of four rounds"
    study, *_ = replay(table, StudyRule(trials=2, confirm=1, scheduler="paired", seeds_per_trial=2), studies=1)
    assert study.first.runs == 3 and study.argmax.runs == study.first.runs


def test_search_run_without_a_result_is_no_rival_of_others():
    """It has 0.9 at rounds 1 to 3 and diverges in the last: it is taken out of the rungs, and 0.3 runs to its end."""
    table = curves_to(0.9, 0.3)
    run = {t: 0.9 for t in range(4)}
    table = replace(table, values={**table.values, (0, 0): math.nan}, curves={**table.curves, (0, 0): run})
    table = replace(table, space=replace(SPACE, first=({"algorithm.x": 0.0},)))
    search = _Replay(table, StudyRule(), [0], 0)
    search.step()
    search.step()
    assert search.best() == 1 and search.samples == 40


def test_search_run_without_a_result_is_a_pruned_trial():
    """As in `tune`: a trial that diverged is PRUNED, with what it had reported, and is never the best."""
    table = problem([[math.nan] * 3, [0.1] * 3], [[0.5] * 3, [0.2] * 3])
    table = replace(table, curves={(0, s): {0: 0.3} for s in range(3)} | {(1, s): {4: 0.1} for s in range(3)})
    search = _Replay(table, StudyRule(scheduler="none"), [0], 0)
    search.step()
    search.step()
    pruned = [t for t in search.study_storage.raw() if t.state.name == "PRUNED"]
    assert [t.intermediate_values for t in pruned] == [{0: 0.3}]
    assert search.best() == 1 and search.top(3) == [1]


def test_nearest_counts_a_logarithmic_range_by_its_logarithm():
    """0.01 lies 1/2 of [1e-4, 1] from 1e-4 and 1/4 from 0.1; on a linear scale 1e-4 would be nearer."""
    space = spaces.parse("training.lr: {float: [1.0e-4, 1.0], log: true}")
    points = {0: {"training.lr": 1e-4}, 1: {"training.lr": 0.1}}
    assert nearest(space, points, {"training.lr": 0.01}) == 1


def test_nearest_counts_another_choice_and_a_missing_parameter_as_one():
    """From (fixed, 0.2): (fixed, 0.9) is 0.7 away, (adaptive) is √(1 + 1)."""
    space = spaces.parse("kind: {choice: [fixed, adaptive]}\nvalue: {float: [0, 1], when: {kind: fixed}}")
    points = {0: {"kind": "adaptive"}, 1: {"kind": "fixed", "value": 0.9}}
    assert nearest(space, points, {"kind": "fixed", "value": 0.2}) == 1
    assert nearest(space, points, {"kind": "adaptive"}) == 0
    space = spaces.parse(
        "kind: {choice: [fixed, adaptive]}\nvalue: {float: [0, 1], when: {kind: fixed}}\nother: {float: [0, 1]}"
    )  # √2 from the first point, √(0.8² + 0.8²) = 1.13 from the second
    points = {0: {"kind": "adaptive", "other": 0}, 1: {"kind": "fixed", "value": 0.8, "other": 0.8}}
    assert nearest(space, points, {"kind": "fixed", "value": 0, "other": 0}) == 1


# -- regrets ----------------------------------------------------------------------------------------------------------


def test_regret_is_over_the_given_seeds_and_leaves_out_what_diverged():
    """Over seeds 1 and 2 the means are 0.3, 0.5 and none: the best is 0.5, and the last one has no regret."""
    table = problem([[0.0] * 3] * 3, [[9.0, 0.2, 0.4], [0.0, 0.5, 0.5], [1.0, math.nan, 1.0]])
    assert regret(table, 0, [1, 2]) == pytest.approx(0.2) and regret(table, 1, [1, 2]) == 0
    assert math.isnan(regret(table, 2, [1, 2])) and math.isnan(regret(table, None, [1, 2]))


def test_regrets_over_all_count_each_method_and_environment_once():
    """Means 0.1 (of two studies) and 0.5 (of one): over all 0.3, not 0.7/3; a study without a regret is left out."""

    def study(environment, number, a, b):
        first = Choice(number, 3, 90, 0.8)
        return ReplayedStudy("m", environment, number, 0, first, Choice(0, 9, 1270, a), Choice(1, 8, 1280, b))

    studies = [
        study("path", 0, 0.0, 0.4),
        study("path", 1, 0.2, 0.6),
        study("ls", 0, 0.5, 0.7),
        study("ls", 1, 0.1, math.nan),
    ]
    path, ls, every = regrets(studies)
    assert path.confirm[0] == pytest.approx(0.1) and (ls.n, ls.without) == (1, 1) and ls.confirm == (0.5, None)
    assert every.label == "all" and (every.n, every.without) == (3, 1)
    assert every.confirm[0] == pytest.approx(0.3) and every.argmax[0] == pytest.approx(0.6)
    assert every.difference[0] == pytest.approx(-0.3) and every.first[0] == pytest.approx(0.8)
    assert (path.changed, ls.changed, every.changed) == (0.5, 0.0, 0.25), "study 1 is changed; that of ls is left out"
    assert every.confirm[1] == statistics.interval([path.confirm[0], 0.5])
    told = notes(studies, [LUCKY])
    assert told[0] == "runs a study: 3.0 first pick, 9.0 with confirmation, 8.0 best value; samples 90, 1,270, 1,280"
    assert told[2].startswith("1 study is left out")
    assert as_csv(studies).splitlines()[0] == "method,environment,study,seed,rule,configuration,runs,samples,regret"
    assert len(as_csv(studies).splitlines()) == 13


@pytest.mark.parametrize(
    ("how", "expects"),
    [
        ({"studies": 0}, "--studies must be in"),
        ({"trials": 4}, "--trials must be in [1, 3], the configurations that the table has of toy in path; got 4"),
        ({"trials": 0}, "--trials must be in"),
        ({"confirm": 4}, "the table has 5 seeds of toy in path: --confirm 4 needs 6"),
        ({"confirm": 0}, "--confirm must be at least 1"),
        ({"confirm_top": 1}, "--confirm-top must be in"),
        ({"random_start": -1}, "--random-start must be >= 0"),
        ({"grace": 0}, "--grace >= 1"),
        ({"seeds_per_trial": 0}, "--seeds-per-trial must be >= 1, got 0"),
        ({"seeds_per_trial": 2}, "--confirm 3 needs 6, 2 for the search"),
        ({"seeds_per_trial": 2, "scheduler": "asha"}, "asha stops trials of one run"),
        ({"scheduler": "paired"}, "--seeds-per-trial 2 or more"),
        (
            {"scheduler": "paired", "seeds_per_trial": 2, "confirm": 1},
            "no scores by client group (column groups) of toy",
        ),
    ],
)
def test_check_refuses_what_the_table_can_not_answer(how, expects):
    with pytest.raises(PflOpsError) as caught:
        rule = {"trials": 3, "confirm": 3, **how}
        studies = rule.pop("studies", 1)
        check(LUCKY, StudyRule(**rule), studies)
    assert expects in str(caught.value) and "\n" not in str(caught.value)
