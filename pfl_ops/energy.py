"""The energy that training and sending cost a client, and the number of local steps that costs least.

More local steps a round mean fewer rounds to a target, and fewer models sent: where the channel is poor and sending
dear, long rounds pay; where it is good, short ones.

Source: DRDM (second seed), Eq. 18 and Fig. 4. Its closed form of the transmission is lost; Shannon's rate is
(unverified), and so is that a client is counted as taking part in every round.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pfl_ops.errors import PflOpsError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Effort:
    """The cost, with one number of local steps, of reaching a target accuracy.

    Attributes:
        steps: τ, local steps a round. rounds: R, rounds to the target; None: never reached.
        bits: that a client sends a round: 32 P u for u models of P float32 numbers.
    """

    steps: int
    rounds: int | None
    bits: float


@dataclass(frozen=True, eq=False)
class Grid:
    """A client's energy by number of local steps, signal-to-noise ratio and bandwidth.

    Attributes:
        steps: the τ that were tried, ascending, int [T]. snr_db: in decibel, [A]. bandwidth: W in Hz, [B].
        joule: [T, A, B]; infinite where the target was not reached.
    """

    steps: NDArray[np.int64]
    snr_db: NDArray[np.float64]
    bandwidth: NDArray[np.float64]
    joule: NDArray[np.float64]

    @property
    def least(self) -> NDArray[np.float64]:
        """The least energy to the target, [A, B]; infinite where no τ reached it."""
        return np.asarray(self.joule.min(axis=0))

    @property
    def best(self) -> NDArray[np.int64]:
        """The τ of least energy, int64 [A, B]; the smaller of equals; 0 where none reached the target."""
        return np.where(np.isfinite(self.least), self.steps[self.joule.argmin(axis=0)], 0)


def linear(db: ArrayLike) -> NDArray[np.float64]:
    """A ratio of powers out of decibel: 10^(dB/10)."""
    return np.asarray(10.0 ** (np.asarray(db, dtype=np.float64) / 10))


def transmission(bits: ArrayLike, *, power: ArrayLike, bandwidth: ArrayLike, snr: ArrayLike) -> NDArray[np.float64]:
    """e_tx = p_tx · bits / (W log2(1 + SNR)): power times the time that the channel's capacity allows. Broadcasts.

    Args:
        bits: sent in a round. power: p_tx, in Watt. bandwidth: W, in Hz. snr: a ratio, not decibel (see `linear`).
    Returns:
        Joule.
    Raises:
        PflOpsError: a bandwidth or ratio that is not above 0, a negative power or number of bits.
    """
    w, ratio = _checked(bandwidth, "bandwidth (Hz)", strict=True), _checked(snr, "SNR (a ratio)", strict=True)
    watt, sent = _checked(power, "power (W)"), _checked(bits, "bits sent")
    return np.asarray(watt * sent / (w * np.log2(1 + ratio)))


def total(rounds: ArrayLike, steps: ArrayLike, *, step_energy: float, transmission: ArrayLike) -> NDArray[np.float64]:
    """E = R (τ e_step + e_tx), of one client that takes part in each of R rounds (DRDM, Eq. 18). Broadcasts.

    Args:
        rounds: R. steps: τ. step_energy: e_step, Joule a local step. transmission: e_tx, Joule a round.
    Returns:
        Joule.
    """
    return np.asarray(np.asarray(rounds) * (np.asarray(steps) * step_energy + np.asarray(transmission)))


def grid(
    efforts: Sequence[Effort], *, snr_db: ArrayLike, bandwidth: ArrayLike, power: float, step_energy: float
) -> Grid:
    """Energy to the target for every τ, signal-to-noise ratio and bandwidth.

    Args:
        efforts: one or more for each τ; repetitions of one τ are averaged, and one that never reached the target
            makes it infinite.
        snr_db: in decibel, [A]. bandwidth: W in Hz, [B]. power: p_tx in Watt. step_energy: e_step in Joule.
    Raises:
        PflOpsError: no effort, a negative energy, or as for `transmission`.
    """
    if not efforts:
        raise PflOpsError("energy needs at least one run")
    _checked(step_energy, "energy of a local step (J)")
    db, width = (np.atleast_1d(np.asarray(v, dtype=np.float64)) for v in (snr_db, bandwidth))
    steps = np.unique([effort.steps for effort in efforts])
    joule = np.zeros((len(steps), len(db), len(width)))
    for i, tau in enumerate(steps):
        same = [effort for effort in efforts if effort.steps == tau]
        for effort in same:
            sent = transmission(effort.bits, power=power, bandwidth=width[None, :], snr=linear(db)[:, None])
            if effort.rounds is None:
                joule[i] = np.inf
            else:
                joule[i] += total(effort.rounds, effort.steps, step_energy=step_energy, transmission=sent) / len(same)
    return Grid(steps, db, width, joule)


def energy_table(
    efforts: Sequence[Effort], *, snr_db: Sequence[float], bandwidth: Sequence[float], power: float, step_energy: float
) -> "pd.DataFrame":
    """The number of local steps with least energy to a target accuracy, for each channel (DRDM, Fig. 4).

        efforts = [run(e.override({"training.local_steps": tau})).effort(0.8) for tau in (1, 5, 10)]
        energy_table(efforts, snr_db=[-10, 0, 10], bandwidth=[1e5, 1e6], power=0.1, step_energy=1e-3)

    Args:
        efforts: of runs that differ in their local steps; repetitions of one number are averaged.
        snr_db: signal-to-noise ratios in decibel. bandwidth: W, in Hz.
        power: p_tx, of a client's transmitter in Watt. step_energy: e_step, of one local step in Joule.
    Returns:
        one row a channel: snr_db, snr (the ratio), bandwidth, steps (τ; 0: none reached the target), joule (of a
        client, to the target), and joule_<τ> for each τ that was tried.
    Raises:
        PflOpsError: as for `grid`.
    """
    import pandas as pd

    found = grid(efforts, snr_db=snr_db, bandwidth=bandwidth, power=power, step_energy=step_energy)
    rows = [
        {
            "snr_db": db,
            "snr": float(linear(db)),
            "bandwidth": w,
            "steps": int(found.best[a, b]),
            "joule": found.least[a, b],
        }
        | {f"joule_{tau}": found.joule[i, a, b] for i, tau in enumerate(found.steps.tolist())}
        for a, db in enumerate(found.snr_db.tolist())
        for b, w in enumerate(found.bandwidth.tolist())
    ]
    return pd.DataFrame(rows)


def _checked(value: ArrayLike, name: str, strict: bool = False) -> NDArray[np.float64]:
    found = np.asarray(value, dtype=np.float64)
    if not np.isfinite(found).all() or (found < 0).any() or (strict and (found == 0).any()):
        raise PflOpsError(f"{name} must be {'> 0' if strict else '>= 0'}, got {found.tolist()}")
    return found
