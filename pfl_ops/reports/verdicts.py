"""A suite's claims: whether each holds in the paper's own numbers, and in ours."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from pfl_ops.papers import Verdict
from pfl_ops.reports.document import Block, Entry, Head, Mark, Row, Table, Text
from pfl_ops.reports.ran import Ran

STANDINGS: Mapping[str, tuple[str, Mark]] = {
    "holds": ("✓ holds", "good"),
    "does not hold": ("✗ does not hold", "bad"),
    "undecided": ("? undecided", "open"),
    "not run": ("– not run", "muted"),
    "not judged": ("– not judged", "muted"),
    "not printed": ("– not printed", "muted"),
}
"""How a claim can stand, in words and with a sign that needs no colour."""

HOW = (
    "In the paper's numbers: as printed. In ours: by the 95 % t interval of the mean of the differences, paired over "
    "seeds, valid if their number was fixed before the runs; undecided where it covers zero, and always with a single "
    "repetition. A claim about several cells holds where it holds in each; below it stands in how many it does. "
    "Nothing is corrected for how many claims there are."
)


def blocks(ran: Ran) -> Iterator[Block]:
    """The table of claims."""
    if not ran.suite.claims:
        return
    if any(verdict is None for verdict in ran.verdicts):
        yield Text("Claims about cells that ran on stand-in data are not judged.", "note")
    rows = [
        Row((
            Entry(claim.text, below=(claim.remark,) if claim.remark else (), more=(f"`{claim.says}`",)),
            _entry(paper, "not printed"),
            _entry(ours, "not run"),
        ))
        for claim, paper, ours in zip(ran.suite.claims, ran.suite.judged(), ran.verdicts, strict=True)
    ]  # fmt: skip
    head = (Head("claim"), Head("in the paper's numbers"), Head("in ours"))
    yield Table("claims", "Sentences that can be true or false of numbers", (head,), tuple(rows), (HOW,))


def in_paper(ran: Ran) -> list[str]:
    """How each claim stands in the paper's own numbers."""
    return ["not printed" if v.status == "not run" else v.status for v in ran.suite.judged()]


def in_ours(ran: Ran) -> list[str]:
    """How each claim stands in ours."""
    return ["not judged" if v is None else v.status for v in ran.verdicts]


def count(standings: Sequence[str]) -> str:
    """4 hold, 2 do not hold, 1 undecided"""
    plural = {"holds": "hold", "does not hold": "do not hold"}
    counted = Counter(standings)
    return ", ".join(f"{counted[s]} {plural.get(s, s) if counted[s] > 1 else s}" for s in STANDINGS if counted[s])


def _entry(verdict: Verdict | None, absent: str) -> Entry:
    if verdict is None:
        text, mark = STANDINGS["not judged"]
        return Entry(text, mark=mark)
    text, mark = STANDINGS[absent if verdict.status == "not run" else verdict.status]
    if len(verdict.instances) == 1 or verdict.status == "not run":
        detail = verdict.instances[0].detail if verdict.instances else ""
        return Entry(text, mark=mark, below=(detail,) if detail else ())
    more = [
        f"{instance.where}: {instance.detail or absent}{'' if instance.status in ('holds', 'not run') else ', '}"
        f"{'' if instance.status in ('holds', 'not run') else instance.status}"
        for instance in verdict.instances
    ]
    return Entry(text, mark=mark, below=(verdict.count.replace("not run", absent),), more=tuple(more))
