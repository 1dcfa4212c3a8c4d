"""FLIU's Figures 2 to 8: who holds what, and curves over rounds."""

from functools import partial

from pfl_ops.papers.claims import Claim, derived
from pfl_ops.papers.exhibits import Allocation, Curves
from pfl_ops.papers.fliu import setting
from pfl_ops.papers.fliu.setting import L1_LOCAL, L2_GLOBAL, L2_LOCAL, on_mnist
from pfl_ops.papers.published import load
from pfl_ops.papers.sources.fliu import ALLOCATIONS, CURVES, DEPARTURES, OF_LIBRARY
from pfl_ops.papers.suite import Measure, Scale, Suite


def _allocation(number: int, environment: str, what: str) -> Suite:
    """Figures 2 to 4: who holds what among 10 clients of CIFAR-10. Nothing is trained for it."""
    return Suite(
        name=f"fliu/fig{number}",
        title=f"Allocation of {what} to 10 clients, CIFAR-10, α = 1",
        source=f"FLIU, Fig. {number}",
        base={**setting.BASE, **setting.CIFAR, "partition.clients": 10},
        axes={"environment": {environment: setting.ENVIRONMENTS[environment]}, "method": setting.FEDAVG},
        measures=(),
        exhibits=(Allocation(f"{environment}/fedavg", f"CIFAR-10, 10 clients, {environment.upper()}, α = 1"),),
        sources=ALLOCATIONS,
        small=Scale(note="The paper's own size: nothing is trained."),
        smoke=setting.SMOKE,
    )


FIGURE_2 = _allocation(2, "ls", "labels")
FIGURE_3 = _allocation(3, "qs", "numbers of samples")
FIGURE_4 = _allocation(4, "lsqs", "numbers of samples and labels")


def _path_curves(number: int, key: str, stage: str, view: str, falls: str, remark: str) -> Suite:
    """Figure 5 or 6: a view that falls with one step of a round and rises over the rounds."""
    printed = load("fliu_table1").items()
    return on_mnist(
        name=f"fliu/fig{number}",
        title=f"{view} at {stage} over rounds, MNIST with PATH",
        source=f"FLIU, Fig. {number}; its numbers are where Table I ends",
        axes={"environment": {"path": setting.ENVIRONMENTS["path"]}, "method": setting.OWN},
        measures=(Measure(key, f"{stage} {view}"), Measure(f"{key}#1", "after round 1")),
        exhibits=(Curves(key, caption=f"MNIST, PATH: {view} at {stage}", ylabel=view),),
        published={(cell, of): n for (cell, of), n in printed if cell.startswith("path/") and of == key},
        claims=(
            Claim(
                f"Though it falls with {falls}, {view} rises over the rounds at {stage}",
                f"path/{{!local}}:{key} > path/{{!local}}:{key}#1",
                remark,
            ),
            derived("FLIU ends above FedAvg", f"path/fliu:{key} > path/fedavg:{key}", "ours, from Table I"),
        ),
        sources=CURVES,
    )


FIGURE_5 = _path_curves(5, L1_LOCAL, "L1", "Acc(L)", "each update", "Sec. V")
FIGURE_6 = _path_curves(
    6, L2_GLOBAL, "L2", "Acc(G)", "local training", "Sec. V; the text says Acc(L), the caption Acc(G)"
)

LSQS = {"environment": {"lsqs": setting.ENVIRONMENTS["lsqs"]}, "method": setting.COMPARED}
on_lsqs = partial(on_mnist, axes=LSQS, sources=CURVES, departures=(*OF_LIBRARY, *DEPARTURES))
"""A suite of Figures 7 and 8."""
THREE = "Sec. V: the average number is three; an average below 3.5 rounds to it or to less"
TO_90, ABOVE_95, WORST, MEDIAN = f"{L2_LOCAL}@90", "test/L2/local/rho_95", "test/L2/local/worst", "test/L2/local/q50"

FIGURE_7 = on_lsqs(
    name="fliu/fig7",
    title="Acc(L) at L2 over rounds, MNIST with LSQS",
    source="FLIU, Fig. 7; the prose names the rounds to 90 %",
    measures=(Measure(TO_90, "rounds to 90 %", digits=0, better="low"), Measure(L2_LOCAL, "L2 Acc(L)")),
    exhibits=(Curves(L2_LOCAL, target=0.9, caption="MNIST, LSQS: Acc(L) at L2", ylabel="Acc(L)"),),
    published=load("fliu_fig7"),
    claims=(
        Claim(
            "FedAvg and FLIU reach 90 % first, then APFL, then FedFomo",
            f"max(lsqs/{{fedavg,fliu}}:{TO_90}) < lsqs/apfl:{TO_90} < lsqs/fedfomo:{TO_90}",
            "Sec. V",
        ),
        Claim("FedAvg reaches 90 % within three rounds", f"lsqs/fedavg:{TO_90} < 3.5", THREE),
        Claim("FLIU reaches 90 % within three rounds", f"lsqs/fliu:{TO_90} < 3.5", THREE),
    ),
)

FIGURE_8 = on_lsqs(
    name="fliu/fig8",
    title="Clients below 95 % at L2 over rounds, MNIST with LSQS",
    source="FLIU, Fig. 8",
    measures=(
        Measure(ABOVE_95, "clients above 95 %", unit=1.0, digits=1),
        Measure(MEDIAN, "median client"),
        Measure(WORST, "worst client"),
    ),
    exhibits=(
        Curves(
            "test/L2/local/below_95",
            percent=False,
            caption="MNIST, LSQS: clients with Acc(L) lower than 95 % at L2",
            ylabel="clients",
        ),
    ),
    claims=(
        Claim("FedAvg and FLIU raise the majority above 95 %", f"lsqs/{{fedavg,fliu}}:{MEDIAN} > 95", "Sec. V"),
        Claim("With FedAvg and FLIU all clients are above 85 %", f"lsqs/{{fedavg,fliu}}:{WORST} > 85", "Sec. V"),
        Claim(
            "APFL and FedFomo leave more clients behind than FedAvg and FLIU",
            f"max(lsqs/{{apfl,fedfomo}}:{ABOVE_95}) < min(lsqs/{{fedavg,fliu}}:{ABOVE_95})",
            "Sec. V",
        ),
        Claim(
            "All federated methods raise more clients above 95 % than CLT",
            f"lsqs/{{fedavg,apfl,fedfomo,fliu}}:{ABOVE_95} > lsqs/local:{ABOVE_95}",
            "Sec. V",
        ),
        Claim(
            "FedAvg raises more clients above 95 % than FLIU",
            f"lsqs/fedavg:{ABOVE_95} > lsqs/fliu:{ABOVE_95}",
            'Sec. V: "FLIU, predominantly FedAvg"',
        ),
    ),
)
