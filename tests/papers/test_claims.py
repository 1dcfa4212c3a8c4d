"""Claims are read, bound and judged; derivations beside the numbers."""

import math

import pytest

from pfl_ops.errors import PflOpsError
from pfl_ops.papers.claims import Claim
from pfl_ops.papers.expression import matching

LABELS = {"environment": ["iid", "path"], "method": ["fedavg", "fliu", "apfl"]}
CELLS = [f"{e}/{m}" for e in LABELS["environment"] for m in LABELS["method"]]
ACC, WORST = "test/L1/acc", "test/L1/local/worst"


def judge(says, numbers, *, exact=True, cells=CELLS):
    """`numbers`: {cell: value or {seed: value}} of ACC; what is missing is not known."""

    def values(cell, key):
        found = numbers.get(cell, {}) if key == ACC else {}
        return found if isinstance(found, dict) else {0: found}

    return Claim("", says).judge(values, LABELS, cells, exact=exact)


PAPER = {"iid/fedavg": 197.5, "iid/fliu": 197.3, "iid/apfl": 190.0, "path/fedavg": 171.6, "path/fliu": 181.3}


@pytest.mark.parametrize(
    ("says", "status"),
    [
        (f"path/fliu:{ACC} > path/fedavg:{ACC}", "holds"),
        (f"path/fliu:{ACC} < path/fedavg:{ACC}", "does not hold"),
        (f"iid/fedavg:{ACC} > iid/fliu:{ACC} > iid/apfl:{ACC}", "holds"),  # 197.5 > 197.3 > 190
        (f"iid/fedavg:{ACC} > iid/apfl:{ACC} > iid/fliu:{ACC}", "does not hold"),
        (f"abs(iid/fliu:{ACC} - iid/fedavg:{ACC}) < 1", "holds"),  # 0.2
        (f"iid/fliu:{ACC} - iid/fedavg:{ACC} > 0", "does not hold"),
        (f"iid/fliu:{ACC} - iid/apfl:{ACC} - 7 > 0", "holds"),  # (197.3 - 190) - 7 = 0.3; 197.3 - (190 - 7) too, hence:
        (f"iid/fliu:{ACC} - iid/apfl:{ACC} - 7 < 1", "holds"),
        (f"iid/apfl:{ACC} + 2 * 3.5 < iid/fliu:{ACC}", "holds"),  # 197 < 197.3
        (f"2 * (iid/fliu:{ACC} - iid/apfl:{ACC}) > 14.5", "holds"),  # 14.6
        (f"max(iid/{{fliu,apfl}}:{ACC}) > 197", "holds"),
        (f"min(iid/{{!fedavg}}:{ACC}) > 197", "does not hold"),
        (f"mean(iid/{{fedavg,fliu,apfl}}:{ACC}) < 194.94", "holds"),  # 584.8 / 3 = 194.93
        (f"path/apfl:{ACC} > 0", "not run"),
    ],
)
def test_on_published_numbers(says, status):
    assert judge(says, PAPER).status == status


def test_a_star_is_one_label_everywhere_and_an_instance_each():
    verdict = judge(f"*/fliu:{ACC} > */fedavg:{ACC}", PAPER)
    assert [(i.where, i.status) for i in verdict.instances] == [("iid", "does not hold"), ("path", "holds")]
    assert verdict.status == "does not hold"
    assert verdict.count == "1 of 2; not at iid"


def test_braces_are_instances_outside_of_functions():
    verdict = judge(f"iid/fedavg:{ACC} > iid/{{!fedavg}}:{ACC}", PAPER)
    assert [i.where for i in verdict.instances] == ["fliu", "apfl"]
    assert verdict.status == "holds"


def test_the_same_braces_at_the_same_place_are_one_label():
    verdict = judge(f"iid/{{fliu,apfl}}:{ACC} >= iid/{{fliu,apfl}}:{ACC}", PAPER)
    assert len(verdict.instances) == 2
    assert verdict.status == "holds"


def test_braces_in_abs_are_instances_and_those_of_a_mean_beside_them_its_arguments():
    """mean(197.5, 197.3) = 197.4: each is 0.1 from it; 171.6 and 181.3 are 4.85 from theirs."""
    pair = "{fedavg,fliu}"
    near = judge(f"abs(iid/{pair}:{ACC} - mean(iid/{pair}:{ACC})) < 1", PAPER)
    assert [(i.where, i.status) for i in near.instances] == [("fedavg", "holds"), ("fliu", "holds")]
    assert judge(f"abs(iid/{pair}:{ACC} - mean(iid/{pair}:{ACC})) < 0.09", PAPER).status == "does not hold"
    assert judge(f"abs(path/{pair}:{ACC} - mean(path/{pair}:{ACC})) < 4", PAPER).count == "0 of 2"


def test_a_hole_of_the_grid_is_no_instance():
    cells = [c for c in CELLS if c != "path/fedavg"]
    assert [i.where for i in judge(f"*/fliu:{ACC} > */fedavg:{ACC}", PAPER, cells=cells).instances] == ["iid"]


def test_some_not_run_and_the_rest_holds_is_undecided():
    verdict = judge(f"*/fliu:{ACC} > */fedavg:{ACC}", {"path/fliu": 2.0, "path/fedavg": 1.0})
    assert verdict.status == "undecided"
    assert verdict.count == "1 of 1; 1 not run"


@pytest.mark.parametrize(
    ("fliu", "fedavg", "status"),
    [
        # differences 2, 3, 4: mean 3, s = 1, half width 4.303 / sqrt(3) = 2.48 -> [0.52, 5.48]
        ([92, 93, 94], [90, 90, 90], "holds"),
        ([90, 90, 90], [92, 93, 94], "does not hold"),
        # differences 1, 3, 5: mean 3, s = 2, half width 4.97 -> [-1.97, 7.97]
        ([91, 93, 95], [90, 90, 90], "undecided"),
        # the runs differ by 20 from seed to seed, their pairs do not: paired differences 2, 3, 4 again
        ([72, 93, 114], [70, 90, 110], "holds"),
        ([92, 93], [90, 90], "undecided"),  # 2, 3: half width 12.706 x 0.5
        ([95], [90], "undecided"),  # a single seed has no spread
        ([95, 95], [90, 90], "holds"),
        ([90, 90], [90, 90], "does not hold"),  # equal is not above
    ],
)
def test_ours_is_judged_by_pairs_of_seeds(fliu, fedavg, status):
    numbers = {"path/fliu": dict(enumerate(fliu)), "path/fedavg": dict(enumerate(fedavg))}
    verdict = judge(f"path/fliu:{ACC} > path/fedavg:{ACC}", numbers, exact=False)
    assert verdict.status == status
    assert verdict.instances[0].detail.endswith(f"(n = {len(fliu)})")


def test_above_a_max_is_above_each_of_its_arguments():
    """x is 10 in each of 5 seeds; each other has 8 but for one seed of its own, in which it has 10.1.

    Differences of a pair: -0.1 once, 2 four times: mean 1.58, s = 0.94, half width 2.776 x 0.42 = 1.17, so above 0. The
    largest of each seed would be 10.1 five times, and x never above it.
    """
    others = [f"m{i}" for i in range(5)]
    labels = {"method": ["x", *others]}
    numbers = {"x": dict.fromkeys(range(5), 10.0)}
    numbers |= {f"m{i}": {seed: 10.1 if seed == i else 8.0 for seed in range(5)} for i in range(5)}

    def verdict(says):
        return Claim("", says).judge(lambda cell, key: numbers[cell], labels, labels["method"])

    assert verdict(f"x:{ACC} > max({{!x}}:{ACC})").status == "holds"
    assert verdict(f"max({{!x}}:{ACC}) < x:{ACC}").status == "holds"
    assert verdict(f"x:{ACC} > max({{!x}}:{ACC})").instances[0].detail == "10 > 8.42 (n = 5)"  # (10.1 + 4 x 8) / 5
    assert verdict(f"min({{!x}}:{ACC}) > x:{ACC}").status == "does not hold"
    numbers["m3"] = dict.fromkeys(range(5), 11.0)
    assert verdict(f"x:{ACC} > max({{!x}}:{ACC})").status == "does not hold"


def test_only_common_seeds_count():
    numbers = {"path/fliu": {0: 92.0, 1: 93.0, 2: 94.0, 3: 0.0}, "path/fedavg": {0: 90.0, 1: 90.0, 2: 90.0}}
    assert judge(f"path/fliu:{ACC} > path/fedavg:{ACC}", numbers, exact=False).status == "holds"
    numbers = {"path/fliu": {0: 92.0}, "path/fedavg": {1: 90.0}}
    assert judge(f"path/fliu:{ACC} > path/fedavg:{ACC}", numbers, exact=False).status == "not run"


def test_never_reached_is_later_than_any_round():
    never = {"path/fliu": {0: 3.0, 1: 4.0}, "path/fedavg": {0: math.inf, 1: math.inf}}
    assert judge(f"path/fliu:{ACC} < path/fedavg:{ACC}", never, exact=False).status == "holds"
    assert judge(f"path/fliu:{ACC} > path/fedavg:{ACC}", never, exact=False).status == "does not hold"
    both = {"path/fliu": {0: math.inf, 1: math.inf}, "path/fedavg": {0: math.inf, 1: math.inf}}
    assert judge(f"path/fliu:{ACC} < path/fedavg:{ACC}", both, exact=False).status == "undecided"


@pytest.mark.parametrize(
    ("says", "message"),
    [
        (f"path/fliu:{ACC}", "a comparison is missing"),
        (f"path/fliu:{ACC} > ", "the end"),
        (f"path/fliu:{ACC} / 2 > 1", "can't be read at '/ 2 > 1'"),
        (f"path/flui:{ACC} > 1", "Did you mean 'fliu'"),
        (f"fliu:{ACC} > 1", "has 1 part, and cells have 2"),
        ("path/fliu:test/L3/acc > 1", "no measure 'test/L3/acc'"),
        (f"sqrt(path/fliu:{ACC}) > 1", "can't be read at 'sqrt'"),
        (f"abs(path/fliu:{ACC}, path/apfl:{ACC}) > 1", "can't be read at ','"),
        (f"max(path/{{fliu,apfl}}:{ACC} - 1) > 1", "can't be read at 'path/{fliu,apfl}"),
        (f"max(2 * path/{{fliu,apfl}}:{ACC}) > 1", "can't be read at 'path/{fliu,apfl}"),
        (f"max((path/{{fliu,apfl}}:{ACC}), 3) > 1", "can't be read at 'path/{fliu,apfl}"),
    ],
)
def test_a_claim_that_says_nothing_is_refused(says, message):
    with pytest.raises(PflOpsError, match=message.replace("(", r"\(")):
        Claim("", says).check(LABELS, CELLS, [ACC, WORST])


def test_a_claim_about_an_absent_cell_is_refused():
    with pytest.raises(PflOpsError, match="no cell path/apfl"):
        Claim("", f"path/apfl:{ACC} > 1").check(LABELS, [c for c in CELLS if c != "path/apfl"], [ACC])


def test_patterns_choose_cells():
    assert matching("path/*", LABELS) == {"path/fedavg", "path/fliu", "path/apfl"}
    assert matching("*/{!fedavg,apfl}", LABELS) == {"iid/fliu", "path/fliu"}
    assert matching("", LABELS) == set(CELLS)
