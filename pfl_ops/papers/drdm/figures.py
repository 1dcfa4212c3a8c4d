"""DRDM's Figures 1 to 6: curves over rounds, local steps, energy."""

from collections.abc import Mapping

from pfl_ops.papers.claims import Claim, derived
from pfl_ops.papers.drdm import setting
from pfl_ops.papers.drdm.setting import AVERAGE, BASELINES, DEVIATION, WORST, class_skew, drdm_suite, size_skew
from pfl_ops.papers.drdm.tables import CNN, COMPETITIVE, FEDAVG_LAST, IN_BOTH, LINEAR, ahead
from pfl_ops.papers.exhibits import Curves, Energy, Exhibit
from pfl_ops.papers.published import Published, load
from pfl_ops.papers.sources.drdm import OF_STEPS, of_curves
from pfl_ops.papers.suite import Axis, Changes, Level, Measure, Scale, Suite

TO_70, TO_80 = f"{WORST}@70", f"{WORST}@80"


def _curves(
    number: int, network: str, data: Changes, small: Scale, where: str, skew: Axis, table: int,
    claims: tuple[Claim, ...], target: str,
) -> Suite:  # fmt: skip
    """Average, standard deviation and worst accuracy over rounds; they end where a column of the table stands."""
    title = f"{network}, {where}"
    axis = "size_skew" if table % 2 == 0 else "class_skew"
    published: Mapping[tuple[str, str], Published] = load(f"drdm_table{table}")
    percent = target.partition("@")[2]
    return drdm_suite(
        data,
        name=f"drdm/fig{number}",
        title=title,
        source=f"DRDM, Fig. {number}. Its skews are lost: that they are those of a column of Table {table}, whose "
        "numbers stand here, is our assumption",
        axes={axis: skew, "method": setting.METHODS},
        measures=(*setting.MEASURES, Measure(target, f"rounds to a worst case of {percent} %", digits=0, better="low")),
        exhibits=(
            Curves(AVERAGE, panel=axis, caption=f"{title}: average over clients", ylabel="average accuracy"),
            Curves(DEVIATION, panel=axis, caption=f"{title}: deviation over clients", ylabel="standard deviation"),
            Curves(WORST, panel=axis, caption=f"{title}: worst client", ylabel="worst accuracy"),
        ),
        published={place: value for place, value in published.items() if place[0].partition("/")[0] in skew},
        claims=(
            *claims,
            derived(
                f"DRDM needs the fewest rounds to a worst case of {percent} %",
                f"*/drdm:{target} < min(*/{BASELINES}:{target})",
                f"abstract: fewer communication rounds; {percent}: ours",
                main=True,
            ),
        ),
        sources=of_curves(number),
        damage=("The values of both skews are lost.",),
        instead={"kmnist": "fashion_mnist"},
        small=small,
    )


OUTPERFORMS = ahead("Sec. 4", "Sec. 4")
ON_MNIST = ahead(IN_BOTH, COMPETITIVE)[:2]

LAST = tuple(Claim(f"FedAvg is last in {what}", says, "Sec. 4: in all metrics") for what, says in FEDAVG_LAST)

FIGURE_1 = _curves(1, *CNN, "equal sizes", class_skew(0.1), 1, (*OUTPERFORMS, *LAST), TO_70)
FIGURE_2 = _curves(2, *CNN, "with size skew", size_skew(0.5), 2, OUTPERFORMS, TO_70)
FIGURE_5 = _curves(5, *LINEAR, "with size skew 0.3", size_skew(0.3), 4, ON_MNIST, TO_80)
FIGURE_6 = _curves(6, *LINEAR, "with size skew 0.7", size_skew(0.7), 4, ON_MNIST, TO_80)

STEPS: Axis = {f"t{tau}": Level({"training.local_steps": tau}, str(tau)) for tau in (1, 2, 5, 10, 20)}


def _steps(number: int, title: str, exhibit: Exhibit, claims: tuple[Claim, ...]) -> Suite:
    """DRDM with several numbers of local steps: the same runs for both figures."""
    return drdm_suite(
        setting.MNIST,
        name=f"drdm/fig{number}",
        title=title,
        source=f"DRDM, Fig. {number}",
        axes={"tau": STEPS, "method": setting.DRDM},
        measures=(Measure(TO_80, "rounds to a worst case of 80 %", digits=0, better="low"), setting.MEASURES[1]),
        exhibits=(exhibit,),
        claims=claims,
        sources=OF_STEPS,
        damage=("The numbers of local steps, and the rounds that each needs, are lost.",),
        small=setting.SMALL_LINEAR,
    )


FIGURE_3 = _steps(
    3,
    "DRDM's worst case over rounds for several numbers of local steps",
    Curves(WORST, target=0.8, caption="Worst client, by local steps τ", ylabel="worst accuracy"),
    (
        derived(
            "More local steps reach a worst case of 80 % in fewer rounds",
            f"t20/drdm:{TO_80} < t10/drdm:{TO_80} < t5/drdm:{TO_80} < t2/drdm:{TO_80} < t1/drdm:{TO_80}",
            "Sec. 4; the target is lost: that it is Figure 4's is ours",
        ),
    ),
)
FIGURE_4 = _steps(
    4,
    "The number of local steps with least energy to a worst case of 80 %",
    Energy(
        "tau",
        0.8,
        WORST,
        snr_db=(-20.0, -10.0, 0.0, 10.0, 20.0),
        bandwidth=(1e5, 1e6, 1e7),
        power=0.1,
        step_energy=1e-3,
        caption="Local steps τ of least energy, by signal-to-noise ratio and bandwidth: a transmitter of 0.1 W, 1 mJ a "
        "local step (ours)",
    ),
    (
        Claim(
            "Where sending is dear, many local steps cost least: the rounds, which then decide, fall with τ",
            f"t20/drdm:{TO_80} < t5/drdm:{TO_80} < t1/drdm:{TO_80}",
            "Abstract and Sec. 4, by Eq. 18 without the energy of steps",
            main=True,
        ),
        Claim(
            "Where sending is cheap, few do: the local steps in all, which then decide, rise with τ",
            f"1 * t1/drdm:{TO_80} < 5 * t5/drdm:{TO_80} < 20 * t20/drdm:{TO_80}",
            "Abstract and Sec. 4, by Eq. 18 without the energy of sending",
            main=True,
        ),
    ),
)
