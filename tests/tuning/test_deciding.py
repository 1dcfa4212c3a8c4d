"""Further seeds go to the cells of the claim whose decision is expected to cost least, and are read when they exist."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from reproducing_work import work
from test_reproducing import planned, reproduce, worked
from toy_suite import ACC, TOY

from pfl_ops.federation.settings import Device
from pfl_ops.jobs.resources import ResourceShare
from pfl_ops.metric_keys import TIME_COSTS
from pfl_ops.papers.claims import Claim, decided
from pfl_ops.results import Result
from pfl_ops.statistics import e_process_above
from pfl_ops.tuning.resources.resource_request import ResourceRequest
from pfl_ops.tuning.suites import deciding, reproducing, reproduction
from pfl_ops.tuning.suites.cells import CellEvent
from pfl_ops.tuning.suites.deciding import OpenClaim, open_claims, prefix
from pfl_ops.tuning.suites.reproducing import FURTHER
from pfl_ops.tuning.suites.reproduction import Reproduction

LABELS = {"method": ["a", "b", "c"]}


def outcomes(seconds: Mapping[str, float], **values: list[float]) -> dict[str, list[Result]]:
    return {
        name: [
            Result.of_numbers(seed, {ACC: value}, history=pd.DataFrame({TIME_COSTS[0]: [seconds.get(name, 1.0)]}))
            for seed, value in enumerate(some)
        ]
        for name, some in values.items()
    }


def opened(
    claims: list[Claim], found: Mapping[str, list[Result]], cells: str = "abc", there: str = "abc"
) -> list[OpenClaim]:
    def values(cell: str, key: str) -> dict[int, float]:
        return {one.seed: one.metrics[key] for one in found.get(cell, [])}

    verdicts = decided([claim.judge(values, LABELS, list(there)) for claim in claims])
    return open_claims(zip(claims, verdicts, strict=True), LABELS, set(there), found, set(cells))


def test_the_cheapest_expected_decision_comes_first():
    """Both lack the same number of seeds; a run of c takes ten times as long. The third claim is wrong in both seeds,
    so that it is expected to be decided against, as early as the first; the fourth has no trend at all."""
    wave = [4.0, 2.0]
    found = outcomes({"c": 10.0}, a=[9.0, 9.0], b=[9 - w for w in wave], c=[9 - w for w in wave])
    slow, fast = Claim("slow", f"a:{ACC} > c:{ACC}"), Claim("fast", f"a:{ACC} > b:{ACC}")
    none = Claim("none", f"b:{ACC} > c:{ACC}")
    first, second, last = opened([none, slow, fast], found)
    assert [one.claim.text for one in (first, second, last)] == ["fast", "slow", "none"]
    assert first.needed == second.needed is not None and last.needed is None
    assert (first.n, first.seconds, second.seconds) == (2, 2.0, 11.0)
    assert first.cost == (False, 2.0 * (first.needed - 2))
    assert list(first.seeds())[:4] == [("a", 2), ("b", 2), ("a", 3), ("b", 3)]


def test_decided_claims_and_claims_about_cells_that_do_not_run_get_no_seeds():
    found = outcomes({}, a=[9.0, 9.1, 9.2, 9.0, 9.1, 9.0, 9.2], b=[5.0, 5.1, 5.0, 5.2, 5.1, 5.0, 5.0], c=[5.0])
    clear, other = Claim("clear", f"a:{ACC} > b:{ACC}"), Claim("other", f"b:{ACC} > c:{ACC}")
    assert [one.claim.text for one in opened([clear, other], found)] == ["other"]
    assert opened([clear, other], found, cells="ab") == []
    (one,) = opened([other], {})
    assert (one.n, one.needed) == (0, None)


def test_claim_with_an_instance_at_a_hole_of_the_grid_gets_seeds_for_the_others():
    """The suite has no cell c: "every other method is below a" is about b alone, and is not left out."""
    found = outcomes({}, a=[9.0, 9.2], b=[5.0, 8.9])
    (one,) = opened([Claim("best", f"{{b,c}}:{ACC} < a:{ACC}")], found, cells="ab", there="ab")
    assert one.cells == ("a", "b")


A = [9.0, 9.1, 9.2, 9.0, 9.1]
CLEAR = [value - 4 + wave for value, wave in zip(A, [0.1, -0.1, 0.0, 0.1, -0.1], strict=True)]
WEAK = [value - 0.5 + wave for value, wave in zip(A, [0.4, -0.4, 0.3, -0.3, 0.4], strict=True)]
REVERSED = [value + 0.5 + wave for value, wave in zip(A, [0.5, -0.5, 0.4, -0.4, 0.5], strict=True)]


def test_instances_with_evidence_enough_get_no_more_seeds():
    """c is far below a; all that is lacking is evidence that b is. A third of the time is saved."""
    found = outcomes({}, a=A, b=WEAK, c=CLEAR)
    claim = Claim("both", f"{{b,c}}:{ACC} < a:{ACC}")
    (one,) = opened([claim], found)
    (alone,) = opened([Claim("b alone", f"b:{ACC} < a:{ACC}")], found)
    assert one.cells == ("a", "b") and (one.n, one.seconds) == (5, 2.0)
    assert one.needed == alone.needed is not None
    assert {cell for cell, _ in one.seeds()} == {"a", "b"}


def test_the_instance_that_refutes_a_claim_gets_the_seeds():
    """Evidence against "all hold" is the mean of two e-values, so that c alone needs twice as large a one: it comes
    with further seeds of c, which are cheaper than seeds of both."""
    found = outcomes({}, a=A, b=WEAK, c=REVERSED)
    (one,) = opened([Claim("both", f"{{b,c}}:{ACC} < a:{ACC}")], found)
    assert one.cells == ("a", "c") and one.needed is not None
    longer = outcomes({}, **{cell: (each * 9)[: one.needed] for cell, each in {"a": A, "c": REVERSED}.items()}, b=WEAK)
    assert opened([Claim("both", f"{{b,c}}:{ACC} < a:{ACC}")], longer) == []  # decided, with five seeds of b


def test_one_instance_in_two_is_decided_by_the_strongest():
    found = outcomes({}, a=A, b=WEAK, c=[value - 0.2 for value in WEAK])
    (one,) = opened([Claim("one of two", f"{{b,c}}:{ACC} < a:{ACC}", share="1/2")], found)
    assert one.cells == ("a", "c")


@pytest.mark.parametrize("several", [2, 12, 108])
def test_seeds_for_the_strongest_evidence_keep_the_error(several):
    """Comparisons, none true, with three seeds each. The next seed goes to the one with most evidence that has fewer
    than 30: sequences in which the mean of e⁺ ever reaches 20 are below 5 % (standard error at most 0.5 points)."""
    rng = np.random.default_rng(7)
    shared, own = rng.normal(size=(2000, 30)), rng.normal(size=(several, 2000, 30))
    e = e_process_above((shared + own) / math.sqrt(2)).transpose(1, 0, 2)
    reached = (e[:, :, :3].mean(axis=1) >= 20).any(axis=1)
    seeds, now, total = np.full((2000, several), 3), e[:, :, 2].copy(), e[:, :, 2].sum(axis=1)
    further, sequences = now.copy(), np.arange(2000)  # further: e⁺ of those with fewer than 30 seeds
    for _ in range(27 * several):
        strongest = further.argmax(axis=1)
        at = sequences, strongest
        then = e[*at, seeds[at]]
        total += then - now[at]
        now[at] = then
        seeds[at] += 1
        further[at] = np.where(seeds[at] < 30, then, -1)
        reached |= total >= 20 * several
    assert 0.01 < reached.mean() < 0.04


def test_a_gap_ends_the_common_seeds():
    assert prefix([]) == 0
    assert prefix([Result.of_numbers(seed, {}) for seed in (3, 4, 6)]) == 0
    assert prefix([Result.of_numbers(seed, {}) for seed in (3, 4, 6)], first=3) == 2
    assert math.isnan(Result.of_numbers(0, {}).seconds)
    (one,) = opened([Claim("above", f"a:{ACC} > b:{ACC}")], outcomes({}, a=[9.0, 9.2, 9.1], b=[5.0, 8.9]))
    assert one.n == 2 and list(one.seeds())[:2] == [("a", 2), ("b", 2)]


def test_the_claim_that_gets_seeds_is_told_with_the_seeds_and_cells_that_it_takes():
    found = outcomes({}, a=A, b=WEAK, c=CLEAR)
    (one,) = opened([Claim("b and c are below a", f"{{b,c}}:{ACC} < a:{ACC}")], found)
    told: list[str] = []
    call: Any = SimpleNamespace(claim=one, announced=None, tell=lambda kind, text: told.append(text))
    for _ in range(2):
        Reproduction.announce(call)
    call.claim = replace(one, claim=Claim("other", ""), needed=None)
    Reproduction.announce(call)
    assert told == [
        f"more seeds for: b and c are below a (5 so far, about {one.needed} seeds of 2 cells)",
        "more seeds for: other (5 so far, no number of seeds is expected to decide it)",
    ]


@pytest.fixture
def few_seeds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(deciding, "MOST_SEEDS", 3)
    yield


def test_hours_begin_when_all_planned_cells_have_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned cells of two hours left none of one hour: no seed was added, without a word."""
    now = [0.0]
    monkeypatch.setattr(reproduction.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(reproduction.Job, "of", lambda kind, name, i, *rest, planned: (name, i))
    cell: Any = SimpleNamespace(name="c", experiment=None, digest="")
    call: Any = SimpleNamespace(hours=1.0, data_dir=None, more=lambda: [cell], announce=lambda: None)
    nothing: Any = None  # neither a share nor an execution is read: no job is made
    source = reproduction._Cells(call, [cell, cell], {}, nothing, nothing)
    given = []
    for hours in (0.0, 2.0, 2.1, 3.0, 3.2):
        now[0] = 3600 * hours
        given.append(source.next())
    assert given == [("c", 0), ("c", 1), ("c", 2), ("c", 3), None]


@pytest.mark.slow
def test_seeds_are_added_until_claims_are_decided_or_no_more_may_be(
    one_ray, few_seeds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One seed is planned; the claims of two cells get two more, together. Again, all of it is read."""
    cells = tuple(TOY.cell(name) for name in ("iid/fedavg", "iid/local"))
    suite = replace(TOY, claims=(Claim("", f"iid/local:{ACC} < iid/fedavg:{ACC}"),))
    told: list = []
    (found,) = reproduce(
        planned(suite, cells=cells, repetitions=1), home=tmp_path, work=work, hours=1.0, on_event=told.append
    )
    assert {cell: [one.seed for one in each] for cell, each in found.outcomes.items()} == {
        "iid/fedavg": [0, 1, 2], "iid/local": [0, 1, 2],
    }  # fmt: skip
    assert next(one.text for one in told if one.kind == "claim").startswith("more seeds for:")
    assert told[-1].done == told[-1].wanted == 6
    count = worked(tmp_path)
    monkeypatch.setattr(reproduction, "cluster", lambda *_: pytest.fail("nothing is left: Ray is not needed"))
    told.clear()
    (again,) = reproduce(
        planned(suite, cells=cells, repetitions=1), home=tmp_path, work=work, hours=1.0, on_event=told.append
    )
    assert [(one.kind, one.text) for one in told] == [("begin", "")]
    assert worked(tmp_path) == count and set(count.values()) == {1}
    assert {cell: len(each) for cell, each in again.outcomes.items()} == {"iid/fedavg": 3, "iid/local": 3}


@pytest.mark.slow
def test_further_seeds_run_side_by_side(
    one_ray: None, few_seeds: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All planned runs but one exist: everything after this one ran alone too, with one processor in use."""
    cells = tuple(TOY.cell(name) for name in ("iid/fedavg", "iid/local"))
    suite = replace(TOY, claims=(Claim("", f"iid/local:{ACC} < iid/fedavg:{ACC}"),))
    reproduce(planned(suite, cells=cells[:1], repetitions=1), home=tmp_path, work=work)
    asked: list[int] = []

    class Share(ResourceRequest):
        def share(self, trials: int, device: Device) -> ResourceShare:
            asked.append(trials)
            return super().share(trials, device)

    monkeypatch.setattr(reproducing, "ResourceRequest", Share)
    reproduce(planned(suite, cells=cells, repetitions=1), home=tmp_path, work=work, hours=1.0)
    assert asked[-1] >= 5  # one planned run, two further seeds of two cells
    reproduce(planned(suite, cells=cells, repetitions=4), home=tmp_path, work=work)
    assert asked[-1] == 2  # without further seeds no more than there are runs


@pytest.mark.slow
def test_finished_seeds_of_cells_that_get_no_more_count_too(one_ray: None, few_seeds: None, tmp_path: Path) -> None:
    """Two seeds of all cells are there, one is planned, and the claim is about two cells. The third, which it leaves
    out, had one seed in the report."""
    cells = tuple(TOY.cell(name) for name in ("iid/fedavg", "iid/local", "path/fedavg"))
    suite = replace(TOY, claims=(Claim("", f"iid/local:{ACC} < iid/fedavg:{ACC}"),))
    reproduce(planned(suite, cells=cells, repetitions=2), home=tmp_path, work=work)
    (found,) = reproduce(planned(suite, cells=cells, repetitions=1), home=tmp_path, work=work, hours=1.0)
    assert {cell: len(each) for cell, each in found.outcomes.items()} == {
        "iid/fedavg": 3, "iid/local": 3, "path/fedavg": 2,
    }  # fmt: skip


@pytest.mark.slow
def test_further_seeds_alone_are_told_before_their_claim(one_ray: None, few_seeds: None, tmp_path: Path) -> None:
    """All planned runs exist: it was said that everything was finished, and then which claim got more seeds."""
    cells = tuple(TOY.cell(name) for name in ("iid/fedavg", "iid/local"))
    suite = replace(TOY, claims=(Claim("", f"iid/local:{ACC} < iid/fedavg:{ACC}"),))
    plan, told = planned(suite, cells=cells, repetitions=1), list[CellEvent]()
    reproduce(plan, home=tmp_path, work=work)
    assert reproduce(plan, home=tmp_path, work=work, hours=1.0, dry_run=True, on_event=told.append) == []
    assert [(one.kind, one.text) for one in told] == [("begin", FURTHER)] and len(worked(tmp_path)) == 2
    told.clear()
    (found,) = reproduce(plan, home=tmp_path, work=work, hours=1.0, on_event=told.append)
    assert [one.kind for one in told[:3]] == ["begin", "claim", "start"] and told[0].text == FURTHER
    assert told[1].text.startswith("more seeds for:") and told[-1].done == told[-1].wanted == 4
    assert [one.kind for one in told].count("claim") == 1
    assert {cell: len(each) for cell, each in found.outcomes.items()} == {"iid/fedavg": 3, "iid/local": 3}
