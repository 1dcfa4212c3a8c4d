"""A state taken apart and put together again."""

from typing import Any

import pytest
import torch

from pfl_ops.federation.method.contract import ClientRows, State
from pfl_ops.federation.state import snapshot


def state(number: float = 0.0, clients: int = 5) -> State:
    rows, alpha = ClientRows(torch.tensor([1.0, 2.0]), clients), ClientRows(torch.tensor(0.5), clients)
    rows.write(torch.tensor([1, 3]), torch.tensor([[number, 1.0], [2.0, number]]))
    return {"central": torch.arange(3) + number, "rows": rows, "count": torch.tensor(7), "alpha": alpha}


def fresh(clients: int = 5) -> State:
    return {
        "central": torch.zeros(3), "rows": ClientRows(torch.tensor([1.0, 2.0]), clients),
        "count": torch.tensor(0), "alpha": ClientRows(torch.tensor(0.5), clients),
    }  # fmt: skip


def same(one: State, other: State) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        if isinstance(value, ClientRows):
            assert torch.equal(value.written, other[name].written), name
            assert torch.equal(value[torch.arange(len(value))], other[name][torch.arange(len(value))]), name
        else:
            assert torch.equal(value, other[name]), name


def copied(parts: Any) -> list[dict[str, Any]]:
    return [{name: t.clone() for name, t in part.items()} for part in parts]


def test_what_is_little_is_one_part() -> None:
    (part,) = snapshot.parts(state(3.0), whole=True, extra={"more": torch.ones(1)})
    assert list(part) == [
        "more", "central", "rows/base", "rows/clients", "rows/values", "count", "alpha/base",
    ]  # fmt: skip
    same(snapshot.restore([part], fresh()), state(3.0))


@pytest.mark.parametrize("limit", [1, 8, 24, 40, 60])
def test_what_is_much_is_many(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No part above the limit but for one row, and whatever the cut, it is the same state."""
    monkeypatch.setattr(snapshot, "PART", limit)
    parts = copied(snapshot.parts(state(3.0), whole=True))
    assert len(parts) > 1
    for part in parts:
        size = sum(t.numel() * t.element_size() for t in part.values())
        assert size <= limit or len({name.partition("/")[0] for name in part}) == 1, part
        assert all(len(t) == 1 for name, t in part.items() if name.endswith("/values") and size > limit)
    same(snapshot.restore(parts, fresh()), state(3.0))


def test_changes_come_after_the_whole() -> None:
    s = state(3.0)
    s["rows"].mean()
    whole = copied(snapshot.parts(s, whole=True))
    assert snapshot.changed_bytes(s) == 12 + 16 + 8
    for name in ("rows", "alpha"):
        s[name].kept()
    times = [whole]
    for t in range(3):
        s["rows"].write(torch.tensor([t]), torch.tensor([[5.0 + t, 6.0]]))
        s["alpha"].write(torch.tensor([4]), torch.tensor([t / 3]))
        s["central"] = s["central"] + t
        assert snapshot.changed_bytes(s) == 12 + 8 + 8 + 4
        times.append(copied(snapshot.parts(s, whole=False)))
        for name in ("rows", "alpha"):
            s[name].kept()
        again = snapshot.restore([part for parts in times for part in parts], fresh())
        same(again, s)
        assert torch.equal(again["rows"].mean(), s["rows"].mean())
        assert again["rows"].changed == set(), "nothing that a next checkpoint would have to add"


def test_names_for_one_memory_and_views() -> None:
    whole = torch.arange(6.0)
    given = {"a": whole, "b": whole, "c": whole[1:4], "d": whole.view(2, 3).T}
    (part,) = snapshot.parts(given, whole=True)
    assert len({t.untyped_storage().data_ptr() for t in part.values()}) == 4
    for name, value in snapshot.restore([part], given).items():
        assert torch.equal(value, given[name]), name


@pytest.mark.parametrize("other", [
    {"late": torch.zeros(1)},
    {"central": torch.zeros(4)},
    {"central": torch.zeros(3).double()},
    {"central": ClientRows(torch.zeros(3), 2)},
    {"rows": torch.zeros(2)},
    {"rows": ClientRows(torch.zeros(3), 5)},
    {"rows": ClientRows(torch.zeros(2), 2)},
])  # fmt: skip
def test_a_state_of_another_form_is_refused(other: State) -> None:
    with pytest.raises(ValueError, match=rf"^'{next(iter(other))}' \(.+\)$"):
        snapshot.restore(snapshot.parts(state(), whole=True), other)
