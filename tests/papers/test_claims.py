"""Claims are read, bound and judged; derivations beside the numbers."""

import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from pfl_ops.errors import PflOpsError
from pfl_ops.papers import conditions
from pfl_ops.papers.claims import Claim, decided
from pfl_ops.papers.conditions import Expansion
from pfl_ops.papers.evidence import ClaimEvidence, SeedDifferences, at_least, of_differences
from pfl_ops.papers.expression import matching, sides
from pfl_ops.statistics import e_process_above

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


@pytest.mark.parametrize(
    ("says", "status"),
    [
        (f"iid/fedavg:{ACC} - iid/fliu:{ACC} > 0.1", "does not hold"),  # 0.10000000000000853 in floats
        (f"abs(iid/fedavg:{ACC} - iid/fliu:{ACC}) <= 0.1", "holds"),
        (f"path/fedavg:{ACC} - path/fliu:{ACC} >= 0.2", "holds"),  # 0.19999999999999998
        (f"iid/fedavg:{ACC} - iid/fliu:{ACC} - 0.1 > 0", "does not hold"),
        (f"11 * path/fedavg:{ACC} > 3.3", "does not hold"),  # 3.3000000000000003
        (f"iid/fedavg:{ACC} - iid/apfl:{ACC} > 0.1", "holds"),
    ],
)
def test_a_printed_number_at_its_limit_is_equal_to_it(says, status):
    """ "0.1 > 0.1" was said to hold: sums and products of numbers with two decimals are rounded."""
    numbers = {"iid/fedavg": 90.31, "iid/fliu": 90.21, "iid/apfl": 90.20999, "path/fedavg": 0.3, "path/fliu": 0.1}
    assert judge(says, numbers).status == status


def test_seeds_count_from_the_suite_s_own_up_to_one_that_is_missing():
    """Seeds 5, 6 and 8; 7 diverged, 9 of the other: two count, and two at most. The paper's numbers stand at 0."""
    by_seed = {"path/fliu": {5: 1.23451, 6: 1.23453, 8: 9.0}, "path/fedavg": {5: 0.25, 6: 0.25, 8: 0.25}}
    claim = Claim("", f"path/fliu:{ACC} > path/fedavg:{ACC}")
    how = {"diverged": {"path/fliu": [7], "path/fedavg": [9]}}
    (one,) = claim.judge(lambda cell, key: by_seed.get(cell, {}), LABELS, CELLS, first=5, **how).instances
    assert (one.detail, one.most, one.agrees) == ("1.235 > 0.25 (n = 2)", 2, True)
    assert claim.judge(lambda cell, key: by_seed.get(cell, {}), LABELS, CELLS).status == "not run"
    assert claim.judge(lambda cell, key: {0: PAPER[cell]}, LABELS, CELLS, exact=True, first=5).status == "holds"


def test_a_star_is_one_label_everywhere_and_an_instance_each():
    verdict = judge(f"*/fliu:{ACC} > */fedavg:{ACC}", PAPER)
    assert [(i.where, i.agrees) for i in verdict.instances] == [("iid", False), ("path", True)]
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
    assert [(i.where, i.agrees) for i in near.instances] == [("fedavg", True), ("fliu", True)]
    assert judge(f"abs(iid/{pair}:{ACC} - mean(iid/{pair}:{ACC})) < 0.09", PAPER).status == "does not hold"
    assert judge(f"abs(path/{pair}:{ACC} - mean(path/{pair}:{ACC})) < 4", PAPER).count == "0 of 2"


def test_instances_over_two_axes_are_named_by_both():
    """The line was "not at iid, fliu, iid, apfl, path, apfl"; with one label on both sides it was that label alone."""
    numbers = {
        "iid/fedavg": 3.0,
        "iid/fliu": 2.0,
        "iid/apfl": 1.0,
        "path/fedavg": 2.0,
        "path/fliu": 3.0,
        "path/apfl": 1.0,
    }
    verdict = judge(f"*/{{!fedavg}}:{ACC} > */fedavg:{ACC}", numbers)
    assert verdict.count == "1 of 4; not at iid/fliu, iid/apfl, path/apfl"
    assert judge(f"iid/{{fliu,apfl}}:{ACC} > */fedavg:{ACC}", numbers).instances[0].where == "iid/fliu"
    sides = judge(f"iid/{{fliu,apfl}}:{ACC} > path/{{apfl,fliu}}:{ACC}", numbers)
    assert sides.count == "1 of 4; not at fliu with fliu, apfl with apfl, apfl with fliu"


def test_share_of_instances_is_rounded_up():
    """Two of three are 67 %, three of four 75 %: fewer than 80 %. Half of four is not most of them."""
    assert [Claim("", "", share="8/10").least(n) for n in (3, 4, 5)] == [3, 4, 4]
    assert [Claim("", "", share="most").least(n) for n in (3, 4, 5)] == [2, 3, 3]
    assert Claim("", "", share="1").least(3) == 3


def test_numbers_that_differ_are_shown_with_enough_digits():
    """Four digits of 12.34561 and 12.34563 read the same, and seven do not; large numbers have no exponent."""
    numbers = {"iid/fliu": 12.34561, "iid/fedavg": 12.34563, "path/fliu": 1234.5, "path/fedavg": 99999.6}
    assert judge(f"iid/fliu:{ACC} < iid/fedavg:{ACC}", numbers).instances[0].detail == "12.34561 < 12.34563"
    difference = judge(f"path/fliu:{ACC} - path/fedavg:{ACC} < path/fedavg:{ACC} < 1", numbers)
    assert difference.instances[0].detail == "-98765 < 100000 < 1"


def test_a_hole_of_the_grid_is_no_instance():
    cells = [c for c in CELLS if c != "path/fedavg"]
    assert [i.where for i in judge(f"*/fliu:{ACC} > */fedavg:{ACC}", PAPER, cells=cells).instances] == ["iid"]


def test_some_not_run_and_the_rest_holds_is_undecided():
    verdict = judge(f"*/fliu:{ACC} > */fedavg:{ACC}", {"path/fliu": 2.0, "path/fedavg": 1.0})
    assert verdict.status == "undecided"
    assert verdict.count == "1 of 1; 1 not run"


def ours(says, numbers, **more):
    """The verdict on a claim that is alone in its family: both directions, so that e = 40 decides (2 / 0.05)."""
    (verdict,) = decided([judge(says, numbers, exact=False, **more)])
    return verdict


def pair(fliu, fedavg):
    return {"path/fliu": dict(enumerate(fliu)), "path/fedavg": dict(enumerate(fedavg))}


ABOVE = f"path/fliu:{ACC} > path/fedavg:{ACC}"


@pytest.mark.parametrize(
    ("fliu", "fedavg", "status", "seeds"),
    [
        # differences 2, 3, 4, 3, 3: s = 15, v = 47, D = 47 − 225/5.1 = 2.88; e = √(0.1/5.1) (47/2.88)^2.5 = 151, twice
        # the t distribution's CDF at 15 √(5/(5.1 x 2.88)) = 8.8, which is nearly 1: 302. After four 2, 3, 4, 3:
        # s = 12, v = 38, D = 2.88, e = √(0.1/4.1) (38/2.88)² = 27.2 and twice 27.2 x 0.9996 = 54.4, above 40
        ([92, 93, 94, 93, 93], [90] * 5, "holds", 4),
        ([90] * 5, [92, 93, 94, 93, 93], "does not hold", 4),
        ([92, 93, 94], [90] * 3, "undecided", 5),  # if the next two are 2 and 3 again
        # the runs differ by 20 from seed to seed, their pairs do not
        ([72, 93, 114, 93, 93], [70, 90, 110, 90, 90], "holds", 4),
        ([91, 89, 91, 89, 91, 89], [90] * 6, "undecided", None),
        ([95], [90], "undecided", None),  # a single seed has no spread
        ([95] * 9, [90] * 9, "undecided", None),  # nor have equal differences
    ],
)
def test_ours_is_decided_by_evidence_over_pairs_of_seeds(fliu, fedavg, status, seeds):
    verdict = ours(ABOVE, pair(fliu, fedavg))
    assert (verdict.status, verdict.seeds) == (status, seeds)
    assert verdict.instances[0].detail.endswith(f"(n = {len(fliu)})")


def test_e_values_are_those_of_the_derivation():
    verdict = ours(ABOVE, pair([92, 93, 94, 93, 93], [90] * 5))
    d = 47 - 225 / 5.1
    e = math.sqrt(0.1 / 5.1) * (47 / d) ** 2.5
    cdf = stats.t(5).cdf(15 * math.sqrt(5 / (5.1 * d)))
    assert verdict.evidence.largest[0] == pytest.approx(2 * e * cdf)
    assert verdict.evidence.opposing[-1] == pytest.approx(2 * e * (1 - cdf))


def test_an_e_value_below_1_is_none():
    """e⁺ of one difference is 2 F(±√10), F: t with one degree of freedom; the lower one is no evidence: 1."""
    for fliu, side in ((95, 0), (85, 1)):
        largest = ours(ABOVE, pair([fliu], [90])).evidence.largest
        assert largest[side] > 1 and largest[1 - side] == 1


def test_each_direction_has_the_e_value_that_it_needs():
    """Against the claim e is 54 after four seeds and 302 after five, see above."""
    verdict = judge(ABOVE, pair([90] * 5, [92, 93, 94, 93, 93]), exact=False)
    found = {needed: replace(verdict, needed=needed) for needed in ((40, 100), (40, 400), (400, 40))}
    assert [one.status for one in found.values()] == ["does not hold", "undecided", "does not hold"]
    assert [found[needed].seeds for needed in ((40, 100), (400, 40))] == [5, 4]


def test_the_seeds_foreseen_of_one_of_two_are_those_that_decide_it():
    """max(a, b) > c with the differences 2, 3, 4 and −1, 1, −2, over again: the mean of two e⁺ reaches 40."""
    says = f"max(path/{{fliu,apfl}}:{ACC}) > path/fedavg:{ACC}"

    def after(n):
        of = {"fliu": [92, 93, 94], "apfl": [89, 91, 88], "fedavg": [90, 90, 90]}
        return ours(says, {f"path/{label}": dict(enumerate(np.resize(each, n))) for label, each in of.items()})

    seeds = after(3).seeds
    assert seeds and [after(n).status for n in (3, seeds - 1, seeds)] == ["undecided", "undecided", "holds"]


def test_an_instance_with_fewer_seeds_keeps_its_last_value():
    """Of both the smaller evidence for, and the mean of the evidence against."""
    short = ClaimEvidence(np.array([1.0, 9.0, 4.0]), np.array([1.0, 0.5, 2.0]))
    both = at_least(2, [short, ClaimEvidence(np.array([1.0, 5.0, 6.0, 7.0, 8.0]), np.ones(5))])
    assert both.supporting.tolist() == [1, 5, 4, 4, 4] and both.opposing.tolist() == [1, 0.75, 1.5, 1.5, 1.5]


def test_one_equal_difference_of_several_is_told():
    """c − a is 1 in both seeds, so that "c > max(a, b)" can't be decided for."""
    (one,) = verdict_of_four(f"c:{ACC} > max({{a,b}}:{ACC})", {"a": [8, 9], "b": [8, 8], "c": [9, 10]}).instances
    assert one.equal


def test_above_a_max_is_above_each_of_its_arguments():
    """x is about 10; each of two others is below by the differences below: evidence for is the smaller of theirs,
    evidence against the mean of the reversed ones. Of each seed the larger one would be nearer to x than either."""
    labels = {"method": ["x", "a", "b"]}
    one, two = [2.0, 1.0, 3.0, 2.5], [1.0, 3.0, 2.0, 0.5]
    numbers = {"x": dict(enumerate([10.0] * 4)), "a": {}, "b": {}}
    for seed in range(4):
        numbers["a"][seed], numbers["b"][seed] = 10 - one[seed], 10 - two[seed]

    def verdict(says):
        return Claim("", says).judge(lambda cell, key: numbers[cell], labels, labels["method"])

    each = [of_differences(differences, [10.0] * 4) for differences in (one, two)]
    for says in (f"x:{ACC} > max({{!x}}:{ACC})", f"max({{!x}}:{ACC}) < x:{ACC}"):
        found = verdict(says)
        assert found.evidence.supporting == pytest.approx(np.minimum(each[0].supporting, each[1].supporting))
        assert found.evidence.opposing == pytest.approx((each[0].opposing + each[1].opposing) / 2)
    assert verdict(f"x:{ACC} > max({{!x}}:{ACC})").instances[0].detail == "10 > 8.375 (n = 4)"  # 10 − 1.625


def verdict_of_four(says, numbers, **more):
    """A verdict on cells x, a, b, c with {seed: value}."""
    labels = {"method": ["x", "a", "b", "c"]}
    each = {cell: dict(enumerate(numbers[cell])) for cell in numbers}
    return Claim("", says).judge(lambda cell, key: each[cell], labels, labels["method"], **more)


FOUR = {
    "x": np.array([10.0, 11.0, 10.5, 9.0, 10.0]),
    "a": np.array([9.0, 9.5, 8.0, 8.0, 9.25]),
    "b": np.array([8.0, 10.0, 9.0, 7.5, 9.0]),
    "c": np.array([9.5, 8.0, 9.0, 8.5, 8.0]),
}
X, A, B, C = FOUR.values()


def beyond_limit(difference, limit):
    """The evidence for "a − b > d" of a and b that are not the same in the first seed: the t process of a − b − d, and
    19/20 of it in the direction (for d < 0 for it, else against it) in which the same numbers count for the rest."""
    t = of_differences(difference - limit, np.full(len(difference), 200.0))
    return ClaimEvidence(t.supporting * (0.95 if limit < 0 else 1), t.opposing * (0.95 if limit > 0 else 1))


@pytest.mark.parametrize(
    ("says", "clauses"),
    [
        ("max({a,b}:K) > c:K", [[A - C, B - C]]),  # one of two
        ("c:K < max({a,b}:K)", [[A - C, B - C]]),
        ("min({a,b}:K) < c:K", [[C - A, C - B]]),
        ("min({a,b}:K) > c:K", [[A - C], [B - C]]),  # both
        (
            "x:K - max({a,b}:K) > 0.5",
            [[beyond_limit(X - A, 0.5)], [beyond_limit(X - B, 0.5)]],
        ),  # −max is the min of the negative ones: both
        ("x:K - max({a,b}:K) < 0.5", [[beyond_limit(A - X, -0.5), beyond_limit(B - X, -0.5)]]),  # max > x − 0.5: one
        (
            "0.5 < x:K - max({a,b}:K) < 2",
            [
                [beyond_limit(X - A, 0.5)],
                [beyond_limit(X - B, 0.5)],
                [beyond_limit(A - X, -2), beyond_limit(B - X, -2)],
            ],
        ),
        ("2 * max({a,b}:K) > 2 * c:K", [[2 * A - 2 * C, 2 * B - 2 * C]]),
        ("-2 * max({a,b}:K) < -2 * c:K", [[2 * A - 2 * C, 2 * B - 2 * C]]),
        # a range: every ordered pair of two, and of a cell with itself 1 > 0, which is true and left out
        ("max({a,b}:K) - min({a,b}:K) < 1", [[beyond_limit(B - A, -1)], [beyond_limit(A - B, -1)]]),
        (
            "max({a,b}:K) - min({a,b}:K) > 1",
            [[beyond_limit(A - B, 1), beyond_limit(B - A, 1)]],
        ),  # a − a > 1 is false: no way to be one of them
        ("max({x,a}:K) > max({b,c}:K)", [[X - B, A - B], [X - C, A - C]]),  # against each of b, c one of x, a
        ("min({x,a}:K) > max({b,c}:K)", [[X - B], [X - C], [A - B], [A - C]]),
        ("max(c:K, min({a,b}:K)) > 8", [[C - 8, A - 8], [C - 8, B - 8]]),
        (
            "abs(x:K - max({a,b}:K)) > 1",
            [
                [beyond_limit(X - A, 1), beyond_limit(A - X, 1), beyond_limit(B - X, 1)],
                [beyond_limit(X - B, 1), beyond_limit(A - X, 1), beyond_limit(B - X, 1)],
            ],
        ),
        (
            "abs(x:K - max({a,b}:K)) < 2",
            [
                [beyond_limit(A - X, -2), beyond_limit(B - X, -2)],
                [beyond_limit(X - A, -2)],
                [beyond_limit(X - B, -2)],
            ],
        ),
        ("mean(c:K, max({a,b}:K)) > 8", [[C / 2 + A / 2 - 8, C / 2 + B / 2 - 8]]),
        ("a:K * b:K > 70", [[A * B - 70]]),  # in each seed
        ("2 * a:K * b:K > 140", [[2 * A * B - 140]]),
        ("a:K <= c:K", [[C - A]]),
        ("a:K >= c:K", [[A - C]]),
    ],
)
def test_max_and_min_are_conditions_on_means(says, clauses):
    """Of a clause one has to be above 0: the mean of the e⁺ is evidence for it, the smallest reversed one against it.
    All clauses have to be true: the smallest, and the mean of the reversed ones. FOUR's sides are below 200."""
    found = verdict_of_four(says.replace("K", ACC), FOUR).evidence
    each = [
        [one if isinstance(one, ClaimEvidence) else of_differences(one, np.full(5, 200.0)) for one in clause]
        for clause in clauses
    ]
    supporting = np.min([np.mean([one.supporting for one in clause], axis=0) for clause in each], axis=0)
    opposing = np.mean([np.min([one.opposing for one in clause], axis=0) for clause in each], axis=0)
    assert found.supporting == pytest.approx(supporting)
    assert found.opposing == pytest.approx(opposing)


def test_conditions_are_those_of_the_expression():
    """300 random expressions of four numbers: the form has the expression's value, and "above 0" its sign."""
    choose = random.Random(1)
    numbers = {cell: choose.uniform(-3, 3) for cell in "abcd"}

    def written(depth):
        operation = choose.choice(["+", "-", "max", "min", "mean", "abs", "*", "term", "term"]) if depth else "term"
        if operation == "term":
            return choose.choice([*(f"{cell}:x" for cell in "abcd"), "1.5"])
        if operation == "abs":
            return f"abs({written(depth - 1)})"
        if operation == "*":
            return f"({choose.choice(['2', '0', '-0.5'])} * {written(depth - 1)})"
        of = written(depth - 1), written(depth - 1)
        return f"({of[0]} {operation} {of[1]})" if operation in "+-" else f"{operation}({of[0]}, {of[1]})"

    def of(one):
        return np.array([numbers[one.cell]])

    for _ in range(300):
        says = written(3)
        (_, left), (_, right) = sides(f"{says} > 0")
        expansion = Expansion(says, {term: term.parts for term in left.terms()})
        form = expansion.form(left)
        code = re.sub(r"([abcd]):x", r"\1", says)
        value = eval(code, {"mean": lambda *several: np.mean(several)}, dict(numbers))
        assert conditions.mean(form, of) == pytest.approx(value, abs=1e-12)
        above = expansion.conditions(form, expansion.form(right), strict=True)
        if abs(value) > 1e-9:
            assert all(any(one.mean(of) > 0 for one in clause) for clause in above) == (value > 0)


def test_the_max_shown_is_that_of_the_means():
    """Means of the seeds 0 and 1: a 1, b 1; the larger one of each seed is 2, and the smaller one 0."""
    numbers = {"x": [5.0, 5.0], "a": [0.0, 2.0], "b": [2.0, 0.0], "c": [3.0, 4.0]}
    (one,) = verdict_of_four(f"max({{a,b}}:{ACC}) - min({{a,b}}:{ACC}) < 1", numbers).instances
    assert (one.detail, one.agrees) == ("0 < 1 (n = 2)", True)
    (one,) = verdict_of_four(f"x:{ACC} - max({{a,b}}:{ACC}) > 3.5", numbers).instances
    assert (one.detail, one.agrees) == ("4 > 3.5 (n = 2)", True)
    (one,) = verdict_of_four(f"x:{ACC} * c:{ACC} > abs(a:{ACC} - 3)", numbers).instances
    assert one.detail == "17.5 > 2 (n = 2)"  # mean(15, 20); 3 − 1


def test_a_range_of_equal_methods_holds_and_the_best_of_equal_ones_is_not_above_another():
    """Spread 1 a seed: the largest of three less the smallest is 1.7 on average, the larger of two 0.56 above a third.
    With 40 seeds, means that are equal are within 1.5 in most of 100 studies and beyond it in none; that the better of
    two is above a third, which is false, is decided in 5 % at most: 400 studies, standard error 1 point."""
    rng = np.random.default_rng(5)

    def statuses(says, studies):
        for _ in range(studies):
            numbers = {cell: rng.normal(80, 1, 40) for cell in "xabc"}
            yield decided([verdict_of_four(says, numbers)])[0].status

    within = list(statuses(f"max({{a,b,c}}:{ACC}) - min({{a,b,c}}:{ACC}) < 1.5", 100))
    assert within.count("holds") > 50 and "does not hold" not in within
    assert list(statuses(f"max({{a,b}}:{ACC}) > c:{ACC}", 400)).count("holds") < 20


def test_within_and_beyond_are_shifted_tests():
    """|x| < 1 is 1 − x > 0 and 1 + x > 0; |x| > 1 is x − 1 > 0 or −x − 1 > 0."""
    x = np.array([0.25, -0.25, 0.125, 0.0])
    numbers = pair(90 + x, [90.0] * 4)
    low, high = (beyond_limit(sign * x, -1) for sign in (1, -1))
    within = ours(f"abs(path/fliu:{ACC} - path/fedavg:{ACC}) < 1", numbers)
    assert within.evidence.supporting == pytest.approx(np.minimum(low.supporting, high.supporting))
    assert within.evidence.opposing == pytest.approx((low.opposing + high.opposing) / 2)
    beyond = ours(f"abs(path/fliu:{ACC} - path/fedavg:{ACC}) > 1", numbers)
    assert beyond.evidence.opposing == pytest.approx(within.evidence.supporting)
    assert beyond.evidence.supporting == pytest.approx(within.evidence.opposing)
    assert within.instances[0].detail == "0.03125 < 1 (n = 4)" and within.instances[0].agrees


def test_numbers_that_are_the_same_in_every_seed_are_within_any_limit():
    """4 after a seed, then 16, 64, 256 and 1,024, with a weight of 1/20; the rest is that of differences without a
    spread, √(0.1/(n + 0.1)) from the second seed on."""
    a = [90.0, 91.0, 92.0, 93.0, 94.0]
    within = f"abs(path/fliu:{ACC} - path/fedavg:{ACC}) < 1"
    same = ours(within, pair(a, a))
    spread = [of_differences([1.0], [90.0]).supporting[0], *np.sqrt(0.1 / np.array([2.1, 3.1, 4.1, 5.1]))]
    assert same.evidence.supporting == pytest.approx(0.95 * np.array(spread) + [0.2, 0.8, 3.2, 12.8, 51.2])
    assert same.evidence.opposing == pytest.approx(of_differences([1.0] * 5, [90.0] * 5).opposing)
    assert (same.status, same.seeds, same.instances[0].equal) == ("holds", 5, False)
    assert (ours(within, pair(a[:3], a[:3])).status, ours(within, pair(a[:3], a[:3])).seeds) == ("undecided", 5)
    assert ours(f"path/fliu:{ACC} - path/fedavg:{ACC} > 1", pair(a, a)).status == "does not hold"
    for above in ("", " - 0"):  # without a limit the same numbers decide nothing
        assert ours(f"path/fliu:{ACC}{above} > path/fedavg:{ACC}", pair(a, a)).evidence.largest[0] < 2


def test_numbers_that_are_the_same_in_some_seeds_only_do_not_count():
    """One that differs ends it; a number that occurred before, as the 0 % of a worst client, is not counted again."""
    within = f"abs(path/fliu:{ACC} - path/fedavg:{ACC}) < 1"
    a, last = np.array([90.0, 91.0, 92.0, 93.0]), np.array([0, 0, 0, 0.5])
    ended = ours(within, pair(a, a + last)).evidence.supporting
    t = min(of_differences(1 + sign * last, [94.0] * 4).supporting[-1] for sign in (1, -1))
    assert ended[2:] == pytest.approx([0.95 * np.sqrt(0.1 / 3.1) + 3.2, 0.95 * t])
    zero = ours(within, pair([0.0] * 4, [0.0] * 4))
    assert zero.evidence.supporting[1:] == pytest.approx(0.95 * np.sqrt(0.1 / np.array([2.1, 3.1, 4.1])) + 0.2)
    assert (zero.status, zero.seeds, zero.instances[0].equal) == ("undecided", None, True)


def test_the_same_numbers_are_rarer_than_one_in_four_at_the_limit():
    """a − b is N(−d, σ²), and both are rounded to r = d, the coarsest that the proof allows: 2,000 pairs of each of 30
    spreads, standard error 1 point."""
    rng = np.random.default_rng(5)
    for spread in np.geomspace(0.1, 10, 30):
        a = rng.uniform(0, 100, 2000)
        b = a + 1 + spread * rng.normal(size=2000)
        assert np.mean(np.round(a) == np.round(b)) < 0.27


def test_a_share_of_the_instances_is_enough():
    """Of three, two: the mean of the 3 − 2 + 1 = 2 smallest for it, and of the 2 smallest reversed ones against it."""
    labels = {"environment": ["a", "b", "c"], "method": ["x", "y"]}
    differences = {"a": [2.0, 3.0, 4.0, 3.0], "b": [1.0, 1.5, 1.0, 1.25], "c": [-3.0, -2.0, -1.0, -2.0]}
    numbers = {f"{e}/x": dict(enumerate(10 + np.array(d))) for e, d in differences.items()}
    numbers |= {f"{e}/y": dict(enumerate([10.0] * 4)) for e in differences}

    def verdict(share):
        claim = Claim("", f"*/x:{ACC} > */y:{ACC}", share=share)
        return claim.judge(lambda cell, key: numbers[cell], labels, list(numbers))

    most, every = verdict("most"), verdict("all")
    e = sorted(instance.evidence.supporting[-1] for instance in most.instances)
    against = sorted(instance.evidence.opposing[-1] for instance in most.instances)
    assert most.evidence.supporting[-1] == pytest.approx((e[0] + e[1]) / 2)
    assert most.evidence.opposing[-1] == pytest.approx((against[0] + against[1]) / 2)
    assert every.evidence.supporting[-1] == pytest.approx(e[0])
    assert every.evidence.opposing[-1] == pytest.approx(sum(against) / 3)
    assert (most.least, every.least, verdict("1/3").least, most.count) == (2, 3, 1, "2 of 3; not at c")


@pytest.mark.parametrize(("true", "share"), [((True, False, False), "all"), ((True, False, False), "most")])
def test_false_decisions_are_rare_under_looks_at_every_seed(true, share):
    """1,000 sequences of 20 seeds in which the claim is just wrong: false "holds" stay below 5 %. Without effects at
    all neither direction is ever true, and one family of both stays below 5 % too."""
    rng = np.random.default_rng(3)
    labels = {"environment": ["a", "b", "c"], "method": ["x", "y"]}
    claim = Claim("", f"*/x:{ACC} > */y:{ACC}", share=share)

    def wrong(effects):
        count = 0
        for _ in range(1000):
            x = rng.normal(np.array(effects)[:, None], 1.0, (3, 20))
            numbers = {f"{e}/x": dict(enumerate(50 + x[i])) for i, e in enumerate("abc")}
            numbers |= {f"{e}/y": dict.fromkeys(range(20), 50.0) for e in "abc"}
            of = numbers.__getitem__
            (found,) = decided([claim.judge(lambda cell, key, of=of: of(cell), labels, list(numbers))])
            count += found.status != "undecided"
        return count

    assert wrong([3.0 if each else 0.0 for each in true]) < 50
    assert wrong([0.0, 0.0, 0.0]) < 50


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_means_of_evidence_reach_their_bound_seldom_with_unequal_seeds(correlation):
    """4 comparisons, none true, 30 seeds, each at the number of seeds that is best for it: 4,000 sequences in which the
    mean of e⁺ reaches 20 are below 5 % (standard error 0.3 points). The proof has no bound for these looks."""
    rng = np.random.default_rng(5)
    shared, own = rng.normal(size=(4000, 30)), rng.normal(size=(4, 4000, 30))
    x = math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own
    largest = e_process_above(x).max(axis=-1)
    assert 0.015 < np.mean(largest.mean(axis=0) >= 20) < 0.04


def test_all_claims_of_a_suite_are_one_family():
    """Holm for 2 x 3 directions at 0.05: the largest e needs 6 / 0.05 = 120, the next 100; the third has 3.9 of 80."""
    claims = [([92, 93, 94, 93, 93, 92], [90] * 6), ([90] * 6, [92, 93, 94, 93, 93, 93]), ([91, 93], [90] * 2)]
    alone = [ours(ABOVE, pair(*each)) for each in claims]
    found = decided([judge(ABOVE, pair(*each), exact=False) for each in claims])
    assert [one.status for one in found] == ["holds", "does not hold", "undecided"]
    e = [max(one.evidence.largest) for one in alone]
    assert e[1] > e[0] > 120 and e[2] < 40
    assert found[1].needed[1] == 120 and found[0].needed[0] == 100
    assert set(found[2].needed) == {80.0} == {found[0].needed[1], found[1].needed[0]}
    near = [judge(ABOVE, {}, exact=False) for _ in range(3)]
    vars(near[1])["evidence"] = ClaimEvidence(np.array([110.0]), np.ones(1))  # less than 120: no other needs only 100
    assert {e for one in decided(near) for e in one.needed} == {120.0}
    weak = decided([judge(ABOVE, pair([92, 93, 94, 93], [90] * 4), exact=False)] * 3)
    assert [one.status for one in weak] == ["undecided"] * 3  # alone 54 of 40; here of 120
    assert decided([judge(f"path/apfl:{ACC} > 0", {}, exact=False)])[0].status == "not run"


def test_a_seed_that_a_term_lacks_ends_the_test_there():
    """A repetition that diverged or is not there is never left out: later seeds count once it is."""
    numbers = pair([92, 93, 94, 93, 93], [90] * 5)
    del numbers["path/fedavg"][3]
    assert ours(ABOVE, numbers).instances[0].detail == "93 > 90 (n = 3)"
    numbers["path/fliu"] = {3: 92.0}
    assert ours(ABOVE, numbers).status == "not run"
    both = pair([92, 93, 94, 93, 93], [90] * 5)
    for values in both.values():
        del values[2]  # diverged in both: the seed was planned all the same
    assert ours(ABOVE, both).instances[0].detail.endswith("(n = 2)")
    for values in both.values():
        del values[0]
    assert ours(ABOVE, both).status == "not run"


def test_no_seed_is_foreseen_behind_one_whose_training_diverged():
    """A claim was said to take "about 6 seeds" whose third had diverged, so that no later one can count."""
    numbers = pair([92, 93, 94], [90, 90.5, 90.2])
    claim, cells = Claim("", ABOVE), list(numbers)
    (open_,) = decided([claim.judge(lambda cell, key: numbers[cell], LABELS, cells)])
    assert open_.status == "undecided" and open_.seeds and 3 < open_.seeds < 12
    assert open_.instances[0].most is None
    for seed in (3, open_.seeds - 1, open_.seeds):  # the next one; the last one that would be needed; one behind it
        lost = {"path/fedavg": {seed: "diverged at round 7"}}
        (found,) = decided([claim.judge(lambda cell, key: numbers[cell], LABELS, cells, diverged=lost)])
        assert found.instances[0].most == seed and found.seeds == (open_.seeds if seed == open_.seeds else None)
        assert found.evidence.largest == open_.evidence.largest


def test_an_instance_that_was_not_run_keeps_a_claim_undecided():
    numbers = pair([92, 93, 94, 93, 93], [90] * 5)
    verdict = ours(f"*/fliu:{ACC} > */fedavg:{ACC}", numbers)
    assert (verdict.status, verdict.count, verdict.seeds) == ("undecided", "1 of 1; 1 not run", None)
    assert verdict.evidence.supporting.tolist() == [1.0] * 5


def test_an_instance_without_a_common_seed_is_not_called_not_run():
    """On PATH training diverged with the first seed; in IID all is there, and for APFL nothing was run."""
    numbers = pair([92, 93, 94], [90, 91, 90]) | {"iid/fliu": {0: 95.0, 1: 94.0}, "iid/fedavg": {0: 90.0, 1: 91.0}}
    del numbers["path/fliu"][0]
    claim = Claim("", f"*/fliu:{ACC} > */{{fedavg,apfl}}:{ACC}")
    for diverged in ({}, {"path/fliu": {0: "diverged at round 7"}}):
        found = claim.judge(lambda cell, key: numbers.get(cell, {}), LABELS, CELLS, diverged=diverged)
        told = {one.where: one.unpaired for one in found.instances}
        if diverged:  # whatever else is run: no seed of PATH will count
            assert told.pop("path/apfl")
            assert found.count == "1 of 1; 1 not run; 2 without a common seed"
        else:
            assert not told.pop("path/apfl")
            assert found.count == "1 of 1; 2 not run; 1 without a common seed"
        assert told == {"iid/fedavg": False, "iid/apfl": False, "path/fedavg": True}
    told = claim.judge(lambda cell, key: numbers.get(cell.replace("apfl", "fedavg"), {}), LABELS, CELLS).count
    assert told == "2 of 2; 2 without a common seed"


def rounds(says, numbers):
    """The verdict on rounds to a target, {cell: of seed 0, 1, ...}, alone in its family: e = 40 decides."""
    labels = {"method": list(numbers)}
    each = {cell: dict(enumerate(of)) for cell, of in numbers.items()}
    return decided([Claim("", says).judge(lambda cell, key: each[cell], labels, list(numbers))])[0]


SOONER = f"a:{ACC}@90 < b:{ACC}@90"
LATER = f"a:{ACC}@90 > b:{ACC}@90"


def test_never_reached_is_later_than_any_round():
    """The t process stays at 1; the signs have 2^(n+1) (1 − 2^−(n+1)) / (n + 1) after n of n: 56.8 after 8 and 102.3
    after 9. The means with 1 are 28.9 and 51.6."""
    for n, status in ((8, "undecided"), (9, "holds")):
        never = {"a": range(n), "b": [math.inf] * n}
        assert rounds(SOONER, never).status == status
        assert rounds(LATER, never).status == ("does not hold" if n == 9 else status)
    assert rounds(SOONER, {"a": range(5), "b": [math.inf] * 5}).seeds == 9
    verdict = rounds(SOONER, {"a": [math.inf] * 9, "b": [math.inf] * 9})
    assert verdict.status == "undecided" and not verdict.instances[0].agrees
    assert verdict.evidence.largest == (1.0, 1.0)


def test_differences_of_rounds_that_were_never_reached_are_told_in_words():
    """The texts were "nan < 5" and, of 3 less never, "never > 5"."""
    numbers = {"a": [math.inf] * 2, "b": [math.inf] * 2, "c": [3.0] * 2}
    told = {
        f"abs(a:{ACC}@90 - b:{ACC}@90) < 5": "never − never < 5 (n = 2)",
        f"c:{ACC}@90 - a:{ACC}@90 > 5": "−never > 5 (n = 2)",
        f"a:{ACC}@90 - c:{ACC}@90 > 5": "never > 5 (n = 2)",
    }
    assert {says: rounds(says, numbers).instances[0].detail for says in told} == told


def test_a_target_that_is_not_reached_later_on_keeps_the_evidence():
    """Six differences of 10 to 14 rounds: t as for any other measure, and 2^7 (1 − 2^−7) / 7 = 127/7 of six signs. In
    seed 6 b never reaches the target, which is for a: t stays, and the signs have 255/8. In seed 7 a never does: the
    signs have 7 of 8, 2^9 ∫ p^7 (1 − p) dp from 1/2 to 1 = 2^9 ((1 − 2^−8)/8 − (1 − 2^−9)/9) = 7.0."""
    a, b = [20.0, 20.5, 20.0, 20.5, 20.0, 20.5], [30.0, 33.0, 31.0, 34.0, 32.0, 33.0]
    t = of_differences(np.subtract(b, a), [40.0] * 6).supporting
    assert t[-1] > 1e4
    six = rounds(SOONER, {"a": a, "b": b})
    eight = rounds(SOONER, {"a": [*a, 20.0, math.inf], "b": [*b, math.inf, 32.0]})
    assert six.evidence.supporting[-1] == pytest.approx((t[-1] + 127 / 7) / 2)
    of_signs = [255 / 8, 2**9 * ((1 - 2**-8) / 8 - (1 - 2**-9) / 9)]
    assert eight.evidence.supporting == pytest.approx([*six.evidence.supporting, *((t[-1] + np.array(of_signs)) / 2)])
    assert (six.status, eight.status, eight.seeds) == ("holds", "holds", six.seeds)


def test_rounds_and_a_number_of_them_that_is_infinite_elsewhere():
    """Every measure "@" has signs from the first seed on, in products too; infinite values of others end the test."""
    x = [3.0, 4.0, 2.0]
    both = of_differences(x, [9.0] * 3, infinite=True).supporting
    assert rounds(f"a:{ACC}@90 > 2", {"a": np.add(x, 2)}).evidence.supporting == pytest.approx(both)
    assert rounds(f"a:{ACC} * a:{ACC}@90 > 0", {"a": np.sqrt(x)}).evidence.supporting == pytest.approx(both)
    one = of_differences(x, [9.0] * 3).supporting
    assert not np.allclose(one, both)
    ended = rounds(f"a:{ACC} > 2", {"a": [*np.add(x, 2), math.inf, 9.0]}).evidence.supporting
    assert ended == pytest.approx([*one, one[-1], one[-1]])


def test_a_tie_counts_for_neither_side_of_the_signs():
    """inf, then 0. By signs e_1 = 2² ∫ p dp over [1/2, 1] = 3/2, of the reverse 2² ∫ (1 − p) dp = 1/2. A tie changes
    nothing; counted as a loss it would make e_2 = 2³ ∫ p (1 − p) dp = 2/3. The other half of the evidence is 1."""
    found = of_differences([math.inf, 0.0], [9.0] * 2, infinite=True)
    assert found.supporting == pytest.approx([5 / 4] * 2) and found.opposing == pytest.approx([3 / 4] * 2)


@pytest.mark.parametrize(
    ("values", "equal"), [([1.0], False), ([1.0, 1.0 + 1e-12], True), ([1.0, 1.1], False), ([math.inf] * 2, False)]
)
def test_equal_differences_are_those_of_two_seeds_or_more(values, equal):
    assert SeedDifferences(np.array(values), np.full(len(values), 90.0)).equal is equal


def test_equal_rounds_to_a_target_decide_by_their_signs():
    """Nine of nine that are 5 rounds sooner have e = 51.6, see above, as if never reached; ties have no sign."""
    a, b = [20.0] * 9, [25.0] * 9
    assert rounds(SOONER, {"a": a, "b": b}).status == "holds"
    assert not SeedDifferences(np.subtract(b, a), np.array(b), infinite=True).equal
    assert SeedDifferences(np.zeros(9), np.array(b), infinite=True).equal


@pytest.mark.parametrize("never", [0.0, 0.1, 0.5])
def test_false_decisions_on_rounds_are_rare(never):
    """Two equal methods, 20 seeds, a look after each; a share of runs never reaches the target. 1,000 sequences: below
    5 %, standard error 0.7 points."""
    rng = np.random.default_rng(7)
    count = 0
    for _ in range(1000):
        a, b = np.where(rng.random((2, 20)) < never, math.inf, rng.normal(30, 5, (2, 20)))
        count += rounds(SOONER, {"a": a, "b": b}).status != "undecided"
    assert count < 50


@pytest.mark.parametrize(
    ("says", "message"),
    [
        (f"path/fliu:{ACC}", "a comparison is missing"),
        (f"path/fliu:{ACC} > ", "the end"),
        (f"path/fliu:{ACC} / 2 > 1", f"can't be read at 'path/fliu:{ACC} / 2'"),
        (f"path/flui:{ACC} > 1", "Did you mean 'fliu'"),
        (f"fliu:{ACC} > 1", "has 1 part, and cells have 2"),
        ("path/fliu:test/L3/acc > 1", "no measure 'test/L3/acc'"),
        (f"sqrt(path/fliu:{ACC}) > 1", "can't be read at 'sqrt("),
        (f"abs(path/fliu:{ACC}, path/apfl:{ACC}) > 1", "can't be read at 'abs("),
        (f"(path/fliu:{ACC} > 1", "can't be read at '(path/fliu:"),
        (f"path/fliu:{ACC} == 1", "can't be read at 'path/fliu:"),
        (f"max(path/{{fliu,apfl}}:{ACC} - 1) > 1", "can't be read at 'path/{fliu,apfl}"),
        (f"max(2 * path/{{fliu,apfl}}:{ACC}) > 1", "can't be read at 'path/{fliu,apfl}"),
        (f"mean(*/fliu:{ACC}) > 1", r"mean has one argument, since \* is one label in each instance"),
        (f"path/fliu:{ACC} * max(path/{{fliu,apfl}}:{ACC}) > 1", "max, min and abs can be multiplied by numbers only"),
        (f"path/fliu:{ACC} * abs(path/apfl:{ACC} - 1) > 1", "max, min and abs can be multiplied by numbers only"),
        (
            " + ".join([f"max(path/{{fliu,apfl}}:{ACC})"] * 11) + " > 1",  # 2^11 = 2,048 sums
            "stand for more than 2,000 comparisons",
        ),
        (f"path/fliu:{ACC} > 1 # in percent", "can't be read at '# in percent'"),
        (f"path/fliu:{ACC} > path/apfl:{WORST}#last", "can't be read at '#last'"),
        (f"term_0 > path/fliu:{ACC}", "can't be read at 'term_0'"),
        (f"path/fliu:{ACC} < 1e999", "can't be read at '1e999'"),
        (f"path/fliu:{ACC} < True", "can't be read at 'True'"),
        (f"0 * path/fliu:{ACC} > 1", "is false whatever the numbers"),
        ("2 > 1", "is about no cell"),
        (f"*/{{fliu,fliu}}:{ACC} > */apfl:{ACC}", "names label fliu twice"),
        (f"max(path/{{!fliu,apfl,fedavg}}:{ACC}) > 1", "means no label"),
        (f"*/*:{ACC} > */fliu:{ACC}", "is false at iid/fliu whatever the numbers"),
        (f"*/*:{ACC} >= */fliu:{ACC}", "is true at iid/fliu whatever the numbers"),
        (f"path/fliu:{ACC} > max(path/{{fliu,apfl}}:{ACC})", "is false whatever the numbers"),
    ],
)
def test_a_claim_that_says_nothing_is_refused(says, message):
    with pytest.raises(PflOpsError, match=message.replace("(", r"\(")):
        Claim("", says).check(LABELS, CELLS, [ACC, WORST])


def test_a_measure_of_the_best_round_is_a_term():
    """It was cut off as a comment: the claim was judged on the last round's number."""
    last, best = {"path/fliu": 60.0, "path/apfl": 70.0}, {"path/fliu": 80.0, "path/apfl": 75.0}
    claim = Claim("", f"path/fliu:{ACC}#best > path/apfl:{ACC}#best")
    claim.check(LABELS, CELLS, [ACC, f"{ACC}#best"])
    verdict = claim.judge(lambda cell, key: {0: (last if key == ACC else best)[cell]}, LABELS, CELLS, exact=True)
    assert [instance.detail for instance in verdict.instances] == ["80 > 75"]


@pytest.mark.parametrize("share", ["12/10", "80", "80%", "0", "-1/2", "1/0", "Most", "", None])
def test_a_share_that_is_none_is_refused(share):
    """Of 12/10 of ten instances the nine best were judged."""
    with pytest.raises(PflOpsError, match="share must be all, most, or a fraction"):
        Claim("", f"*/fliu:{ACC} > */apfl:{ACC}", share=share).check(LABELS, CELLS, [ACC])


def test_a_share_as_a_number_is_the_printed_one():
    """0.8 as a float is a bit more than 8/10, of which ten instances would need nine."""
    assert Claim("", "", share=0.8).least(10) == 8


def test_a_claim_about_an_absent_cell_is_refused():
    with pytest.raises(PflOpsError, match="no cell path/apfl"):
        Claim("", f"path/apfl:{ACC} > 1").check(LABELS, [c for c in CELLS if c != "path/apfl"], [ACC])


def test_patterns_choose_cells():
    assert matching("path/*", LABELS) == {"path/fedavg", "path/fliu", "path/apfl"}
    assert matching("*/{!fedavg,apfl}", LABELS) == {"iid/fliu", "path/fliu"}
    assert matching("", LABELS) == set(CELLS)
