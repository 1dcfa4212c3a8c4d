"""DRDM's Tables 1 to 6: three data sets, class skew and size skew."""

from pfl_ops.papers.claims import Claim, derived
from pfl_ops.papers.drdm import setting
from pfl_ops.papers.drdm.setting import AVERAGE, BASELINES, DEVIATION, WORST, class_skew, drdm_suite, size_skew
from pfl_ops.papers.exhibits import Grid
from pfl_ops.papers.published import load
from pfl_ops.papers.sources.drdm import of_table
from pfl_ops.papers.suite import Changes, Scale, Suite

PRINTED = "{!drdm_feddyn}"

FEDAVG_LAST = (
    ("average", f"*/fedavg:{AVERAGE} < min(*/{{drdm,drfa,scaffold,scaff_pd}}:{AVERAGE})"),
    ("worst-case accuracy", f"*/fedavg:{WORST} < min(*/{{drdm,drfa,scaffold,scaff_pd}}:{WORST})"),
    ("standard deviation", f"*/fedavg:{DEVIATION} > max(*/{{drdm,drfa,scaffold,scaff_pd}}:{DEVIATION})"),
)


def ahead(where: str, deviation: str) -> tuple[Claim, ...]:
    """The claims that DRDM is the best method; `deviation`: place of the last of them in the paper."""
    each = (
        ("highest average", f"*/drdm:{AVERAGE} > max(*/{BASELINES}:{AVERAGE})", where),
        ("highest worst-case accuracy", f"*/drdm:{WORST} > max(*/{BASELINES}:{WORST})", where),
        ("lowest standard deviation", f"*/drdm:{DEVIATION} < min(*/{BASELINES}:{DEVIATION})", deviation),
    )
    return tuple(
        Claim(f"DRDM has the {what}", says, said, derived=said.endswith(": ours"), main="worst-case" in what)
        for what, says, said in each
    )


def _claims(where: str, deviation: str) -> tuple[Claim, ...]:
    return (
        *ahead(where, deviation),
        derived("DRFA's worst-case accuracy is above FedAvg's", f"*/drfa:{WORST} > */fedavg:{WORST}", "derived (ours)"),
    )


LESS_SKEW_HELPS = derived(
    "Less class skew, better worst-case accuracy", f"a0.7/{PRINTED}:{WORST} > a0.1/{PRINTED}:{WORST}", "derived (ours)"
)
MORE_SKEW_HURTS = derived(
    "More size skew, worse worst-case accuracy", f"s0.7/{PRINTED}:{WORST} < s0.3/{PRINTED}:{WORST}", "derived (ours)"
)
IN_ALL = "Sec. 4: in average, worst-case and fairness, across all configurations"
IN_BOTH = "Sec. 5.8: in average and worst-case"
COMPETITIVE = "the paper says competitive (Sec. 5.8); lowest: ours"
STRONG = ("Sec. 5.8 calls it strong; highest: ours", "Sec. 5.8 calls it strong; lowest: ours")

CNN = ("Kuzushiji-MNIST, CNN", setting.KMNIST, setting.SMALL_CNN)
LINEAR = ("MNIST, linear", setting.MNIST, setting.SMALL_LINEAR)
HEAD = ("Fashion-MNIST, last layer of a ResNet-18", setting.FASHION, setting.SMALL_HEAD)


def _table(number: int, network: str, data: Changes, small: Scale, claims: tuple[Claim, ...], *damage: str) -> Suite:
    """Table 1 to 6: an odd one varies the class skew at equal sizes, the even one behind it the size skew."""
    lost: tuple[str, ...] = ()
    if number % 2:
        axis, skew = "class_skew", class_skew(0.1, 0.3, 0.5, 0.7, *[0.9] * (number == 5))
        title = f"{network}: class skew at equal sizes"
    else:
        axis, skew = "size_skew", size_skew(0.3, 0.5, 0.7)
        title, lost = f"{network}: size skew on a fixed class skew", ("The value of the fixed class skew is lost.",)
    names = "A method's name stands on its third row, the standard deviation; the two rows above belong to it."
    return drdm_suite(
        data,
        name=f"drdm/table{number}",
        title=title,
        source=f"DRDM, Table {number}: over clients, mean of an unknown number of runs",
        axes={axis: skew, "method": setting.METHODS},
        measures=setting.MEASURES,
        exhibits=(Grid(rows=("method", "measure"), columns=(axis,), caption=f"{title}, in percent"),),
        published=load(f"drdm_table{number}"),
        claims=claims,
        sources=of_table(number),
        damage=(names, *lost, *damage),
        instead={"kmnist": "fashion_mnist"},
        small=small,
        smoke=setting.SMOKE_HEAD if data is setting.FASHION else Scale(),
    )


LAST = tuple(
    derived(f"FedAvg is last in {what}", says, "Sec. 4 says it of Fig. 1; of all columns: ours")
    for what, says in FEDAVG_LAST
)
TABLE_1 = _table(1, *CNN, (*_claims(IN_ALL, IN_ALL), *LAST, LESS_SKEW_HELPS))
TABLE_2 = _table(2, *CNN, (*_claims(IN_ALL, IN_ALL), MORE_SKEW_HURTS))
TABLE_3 = _table(3, *LINEAR, (*_claims(IN_BOTH, COMPETITIVE), LESS_SKEW_HELPS))
TABLE_4 = _table(4, *LINEAR, _claims(IN_BOTH, COMPETITIVE))
TABLE_5 = _table(
    5, *HEAD, (*_claims(*STRONG), LESS_SKEW_HELPS), "SCAFFOLD's standard deviation at 0.5 has three decimals, 8.494."
)
TABLE_6 = _table(6, *HEAD, _claims(*STRONG))
