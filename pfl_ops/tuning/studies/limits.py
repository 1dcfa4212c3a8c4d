"""The limits that a call gives to a study, and numbers of trials in words."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from pfl_ops.errors import PflOpsError, count, echo

MOST_TRIALS = 100_000
MOST_HOURS = 1e6
MOST_SAMPLES = 10**15
MOST_CONFIRMED = 1000  # seeds, or configurations

Cause: TypeAlias = Literal["trials", "hours", "samples", "terminate"]


@dataclass(frozen=True)
class StudyLimits:
    """The limits that a call gives to a study; None: not given. See `Settings`.

    Raises:
        PflOpsError: one is not finite, too small or too large; or samples are no whole number.
    """

    trials: int | None = None
    hours: float | None = None
    samples: float | None = None
    terminate: int | None = None
    confirm: int | None = None
    confirm_top: int | None = None

    def __post_init__(self) -> None:
        hours, samples = self.hours, self.samples
        if self.trials is not None and not 1 <= self.trials <= MOST_TRIALS:
            raise PflOpsError(f"trials must be in [1, {MOST_TRIALS:,}], got {echo(self.trials)}")
        if hours is not None and not (math.isfinite(hours) and 0 < hours <= MOST_HOURS):
            raise PflOpsError(f"--hours must be above 0 and at most {MOST_HOURS:,.0f}, got {echo(hours)}")
        whole = samples is not None and math.isfinite(samples) and samples == int(samples)
        if samples is not None and not (whole and 1 <= samples <= MOST_SAMPLES):
            raise PflOpsError(
                f"--samples must be a whole number of gradient samples in [1, {MOST_SAMPLES:,}], got {echo(samples)}"
            )
        if self.terminate is not None and not 0 <= self.terminate <= MOST_TRIALS:
            raise PflOpsError(f"--terminate must be in [0, {MOST_TRIALS:,}] trials, got {self.terminate}")
        check_confirmation(self.confirm, self.confirm_top)

    @property
    def given(self) -> dict[str, Any]:
        """Those that were given, by name."""
        found = {name: value for name, value in asdict(self).items() if value is not None}
        return {name: float(value) if name == "hours" else int(value) for name, value in found.items()}

    def else_of(self, other: "StudyLimits") -> "StudyLimits":
        """Return these limits, with those of another call where none are given."""
        return StudyLimits(**{**other.given, **self.given})


def check_confirmation(confirm: int | None, top: int | None) -> None:
    """Refuse numbers of seeds and configurations that can't be.

    Raises:
        PflOpsError: one is out of its range.
    """
    for name, value, least in (("--confirm", confirm, 0), ("--confirm-top", top, 2)):
        if value is not None and not least <= value <= MOST_CONFIRMED:
            raise PflOpsError(f"{name} must be in [{least}, {MOST_CONFIRMED:,}], got {value}")


NO_LIMITS = StudyLimits()


def done_of(done: int, wanted: int) -> str:
    """Return "3 of 12", or "3" where the number of trials is not limited.

    >>> done_of(3, 12), done_of(3, MOST_TRIALS)
    ('3 of 12', '3')
    """
    return f"{done} of {wanted}" if wanted < MOST_TRIALS else str(done)


def trials_done(done: int, wanted: int) -> str:
    """Return "3 of 12 trials", or "3 trials" where their number is not limited.

    >>> trials_done(3, 12), trials_done(1, 1), trials_done(1, MOST_TRIALS)
    ('3 of 12 trials', '1 of 1 trial', '1 trial')
    """
    return f"{done} of {count(wanted, 'trial')}" if wanted < MOST_TRIALS else count(done, "trial")
