"""DRDM's Tables 1 to 6: three data sets, class skew and size skew."""

from pfl_ops.papers.claims import Claim, derived
from pfl_ops.papers.drdm import setting
from pfl_ops.papers.drdm.setting import AVERAGE, BASELINES, DEVIATION, WORST, class_skew, drdm_suite, size_skew
from pfl_ops.papers.exhibits import Grid
from pfl_ops.papers.published import load
from pfl_ops.papers.sources.drdm import of_table
from pfl_ops.papers.suite import Axis, Changes, Scale, Suite

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


def _table(
    number: int,
    title: str,
    skew: Axis,
    data: Changes,
    claims: tuple[Claim, ...],
    small: Scale,
    *,
    damage: tuple[str, ...] = (),
    smoke: Scale | None = None,
) -> Suite:
    sizes = number % 2 == 0
    axis = "size_skew" if sizes else "class_skew"
    lost = ("The value of the fixed class skew is lost.",) if sizes else ()
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
        damage=(
            "A method's name stands on its third row, the standard deviation; the two rows above belong to it.",
            *lost,
            *damage,
        ),
        instead={"kmnist": "fashion_mnist"},
        small=small,
        smoke=smoke or Scale(),
    )


TABLE_1 = _table(
    1,
    "Kuzushiji-MNIST, CNN: class skew at equal sizes",
    class_skew(0.1, 0.3, 0.5, 0.7),
    setting.KMNIST,
    (
        *_claims(IN_ALL, IN_ALL),
        *(
            derived(f"FedAvg is last in {what}", says, "Sec. 4 says it of Fig. 1; of all columns: ours")
            for what, says in FEDAVG_LAST
        ),
        LESS_SKEW_HELPS,
    ),
    setting.SMALL_CNN,
)
TABLE_2 = _table(
    2,
    "Kuzushiji-MNIST, CNN: size skew on a fixed class skew",
    size_skew(0.3, 0.5, 0.7),
    setting.KMNIST,
    (*_claims(IN_ALL, IN_ALL), MORE_SKEW_HURTS),
    setting.SMALL_CNN,
)
TABLE_3 = _table(
    3,
    "MNIST, linear: class skew at equal sizes",
    class_skew(0.1, 0.3, 0.5, 0.7),
    setting.MNIST,
    (*_claims(IN_BOTH, COMPETITIVE), LESS_SKEW_HELPS),
    setting.SMALL_LINEAR,
)
TABLE_4 = _table(
    4,
    "MNIST, linear: size skew on a fixed class skew",
    size_skew(0.3, 0.5, 0.7),
    setting.MNIST,
    _claims(IN_BOTH, COMPETITIVE),
    setting.SMALL_LINEAR,
)
TABLE_5 = _table(
    5,
    "Fashion-MNIST, last layer of a ResNet-18: class skew at equal sizes",
    class_skew(0.1, 0.3, 0.5, 0.7, 0.9),
    setting.FASHION,
    (*_claims("Sec. 5.8 calls it strong; highest: ours", "Sec. 5.8 calls it strong; lowest: ours"), LESS_SKEW_HELPS),
    setting.SMALL_HEAD,
    damage=("SCAFFOLD's standard deviation at 0.5 has three decimals, 8.494.",),
    smoke=setting.SMOKE_HEAD,
)
TABLE_6 = _table(
    6,
    "Fashion-MNIST, last layer of a ResNet-18: size skew on a fixed class skew",
    size_skew(0.3, 0.5, 0.7),
    setting.FASHION,
    _claims("Sec. 5.8 calls it strong; highest: ours", "Sec. 5.8 calls it strong; lowest: ours"),
    setting.SMALL_HEAD,
    smoke=setting.SMOKE_HEAD,
)
