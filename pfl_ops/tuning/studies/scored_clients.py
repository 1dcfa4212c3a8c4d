"""The clients behind a trial's scores: absent clients are trained for L2 in tests alone, not in a search."""

from collections.abc import Sequence
from dataclasses import dataclass

from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import ALL_UP_TO
from pfl_ops.spaces import Space
from pfl_ops.tuning.studies.objective import Objective

SHARE, WEIGHTING = "participation.share", "participation.weighting"


@dataclass(frozen=True)
class ScoredClients:
    """The clients behind a trial's scores: at L2 those of the last round's cohort, else all that a run scores.

    Attributes:
        objective: of the study. space: what it varies. experiments: in each environment, one at least.
    """

    objective: Objective
    space: Space
    experiments: Sequence[Experiment]

    @property
    def share(self) -> float:
        """Share of the clients that may take part in the last round; 1 if it does not matter.

        Of several environments, or of the values that the space has, it is the smallest.
        """
        if "L2" not in self.objective.stages:
            return 1.0
        if ranges := self.space.of(SHARE):
            return min(float(share or 0.0) for one in ranges for share in (one.choices or (one.low,)))
        return min(one.participation.share for one in self.experiments)

    @property
    def difference(self) -> str:
        """Why trials with the same seed may be scored on different clients; "": they are not."""
        if "L2" not in self.objective.stages:
            return ""
        if drawing := [key for key in self.space.varied if key.startswith("participation.") and key != WEIGHTING]:
            return f"{', '.join(drawing)} is varied"
        method = self.experiments[0].algorithm
        return f"{method.name} draws its own cohorts" if hasattr(method, "cohort") else ""

    @property
    def drawn(self) -> str:
        """Words behind `share`: the number of clients of a cohort that are scored; "": all are.

        The number of a data set's own clients is not known before it is read.
        """
        found = []
        for e in self.experiments:
            scored, known = e.evaluation.clients or ALL_UP_TO, getattr(e.partition, "clients", None)
            if known is None:
                return f", as far as they are among the clients that are scored, {scored} at most"
            if scored < known:
                found.append((e.participation.share * scored, scored))
        if not found:
            return ""
        of_cohort, scored = min(found)
        return f", if they are among the {scored} that are scored (about {of_cohort:.3g} of a cohort)"

    @property
    def note(self) -> str:
        """One line on these clients, if not all take part in a round; "": all count."""
        share, why = self.share, self.difference
        if share == 1 and not why:
            return ""
        part = f", {share:.3g} of the clients" if share < 1 else ""
        same = f"not the same in all trials ({why}), which are then not comparable" if why else ""
        if share < 1 and SHARE in self.space.varied:
            part = f", of {share:.3g} of the clients or more"
        return (
            f"a trial's scores at L2 are those of the last round's cohort{part}{self.drawn}, "
            f"{same or 'the same in all trials of a seed'}; tests score absent clients too"
        )

    def check(self, seeds: Sequence[int]) -> None:
        """Refuse seeds whose last cohort has no client that is scored at L2: they have no value.

        Nothing is checked where the number of clients or their draw is not known: the data's own clients, a method that
        draws its cohorts, a search that varies who takes part.

        Raises:
            PflOpsError: the message has the first such seed, and what to set.
        """
        varied = {parameter.key for parameter in self.space.parameters} - {WEIGHTING}
        moves = ("participation.", "partition.", "evaluation.", "training.rounds")
        own = hasattr(self.experiments[0].algorithm, "cohort")
        if self.share == 1 or own or any(key.startswith(moves) for key in varied):
            return
        import numpy as np

        from pfl_ops.federation.loop import cohort
        from pfl_ops.federation.scoring.evaluate import scored_clients

        for e in self.experiments:
            n, who = getattr(e.partition, "clients", None), e.participation
            if n is None or n <= (scored := e.evaluation.clients or ALL_UP_TO):
                continue
            for seed in seeds:
                p = cohort.probabilities(who, n, seed)
                drawn = cohort.members(cohort.size(who, n), n, seed, p, e.training.rounds - 1)
                if not np.isin(drawn, scored_clients(e.evaluation, n, seed)).any():
                    raise PflOpsError(
                        f"a trial's scores at L2 are those of the last round's cohort, {len(drawn)} of {n:,} clients, "
                        f"and with seed {seed} none of these is among the {scored} that are scored: use --set "
                        f"evaluation.clients={n}, a larger --participation, or another --metric (val/L1/acc)"
                    )
