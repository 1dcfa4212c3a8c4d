"""What a finished run answers: its curves, its models, the round in which it got somewhere, the energy that took."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pfl_ops import metrics
from pfl_ops.config.experiment import Experiment
from pfl_ops.energy import Effort, grid, linear
from pfl_ops.errors import PflOpsError, unknown

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from torch import Tensor

    from pfl_ops.federation.loop.simulate import Simulation


VIEWS = {"Acc(L)": "local", "Acc(G)": "global"}


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        run_id: MLflow's; None while the tracking server was never reached, and where a courier tracks the run.
        experiment: what was run. rounds: one row a round, a column a tracked key.
        final: `final/…` and `best/…` keys. clients: one row a client and stage, of the full last evaluation.
        folder: its checkpoints. complaints: damaged checkpoints that were passed over, and what a resumed run keeps.
        hints: a line where another precision would have been much faster.
        origin: a line where the run was read and not computed, or where the same settings were run before with other
            code; "": neither.
        page: where MLflow's page shows it beside its like, behind the server's address; None: it was never reached.
    """

    run_id: str | None
    experiment: Experiment
    rounds: "pd.DataFrame"
    final: dict[str, float]
    clients: "pd.DataFrame"
    folder: Path
    complaints: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    data_dir: str | None = field(default=None, repr=False)
    page: str | None = None
    origin: str = ""

    def __repr__(self) -> str:
        split, stage = self._split, self.experiment.algorithm.own_stage
        found = {name: self.final.get(f"final/{split}/{stage}/{view}/mean") for name, view in VIEWS.items()}
        scores = ", ".join(f"{name} {100 * value:.1f} %" for name, value in found.items() if value is not None)
        said = f", {stage} {scores}" if scores else ""
        return f"Result({self._title}, {self._rounds}{said})"

    def _repr_html_(self) -> str:
        from pfl_ops.display import cards, tables

        return cards.card(
            lambda: cards.heading(self._title, self._rounds),
            lambda: cards.table(tables.scores([self], self._split)),
            lambda: cards.note(*tables.score_notes([self], self._split), *self.complaints, self.origin),
            lambda: cards.picture(self.plot, f"Accuracy over rounds of {self._title}"),
        )

    @property
    def hash(self) -> str:
        """The experiment's hash, in hexadecimal; its first digits name the run in commands."""
        return self.folder.name

    @property
    def _title(self) -> str:
        return f"{self.experiment.label} seed {self.experiment.seed}"

    @property
    def _rounds(self) -> str:
        rounds = self.experiment.training.rounds
        return f"{rounds} round{'s' * (rounds != 1)}"

    @property
    def _split(self) -> Literal["val", "test"]:
        return "val" if self.experiment.evaluation.split == "validation" else "test"

    def global_model(self) -> "dict[str, Tensor] | None":
        """G of the last round by parameter name; None where the method has none."""
        return self._simulation().global_model()

    def model(self, client: int) -> "dict[str, Tensor]":
        """What a client holds after the last round (L1), by name: parameters, and what else it answers with."""
        import torch

        simulation = self._simulation()
        n = simulation.task.n_clients
        if not 0 <= client < n:
            raise PflOpsError(f"there is no client {client}; clients are 0 to {n - 1}")
        models = simulation.personal_models(torch.tensor([client]))
        if models is None:
            raise PflOpsError(f"{self.experiment.algorithm.name} leaves no model with its clients")
        return models.named(simulation.task.layout)

    def curve(self, stage: str = "L1", view: str = "local", statistic: str = "mean") -> "pd.Series":
        """A tracked value by round, where it was evaluated: `curve("L2", "local", "worst")`, `curve("L1", "acc")`.

        Raises:
            PflOpsError: no such key was tracked; the nearest one is named.
        """
        rest = (view,) if view == "acc" else (view, statistic)
        return self._column(metrics.key(self.experiment.evaluation.split, stage, *rest))

    def plot(self, title: str | None = None) -> "Figure":
        """Draw accuracy over rounds by stage, as in the tracked run's figure "accuracy".

        A line goes through rounds in which its view was not scored; in `rounds` these are NaN.

        Args:
            title: above the picture.
        Raises:
            PflOpsError: the run has no accuracies.

        >>> list(result.rounds["test/L1/global/mean"])
        [0.1, nan, 0.5]
        >>> figure = result.plot("digits")
        >>> [line.get_xdata().tolist() for line in figure.axes[1].lines]
        [[0, 2]]
        """
        from pfl_ops import figures

        rows = self.rounds.to_dict("index").items()
        return figures.curves([(int(str(t)), {str(key): row[key] for key in row}) for t, row in rows], title)

    def rounds_to(self, target: float, stage: str = "L1", view: str = "local", statistic: str = "mean") -> int | None:
        """The first round in which that value is the target or more; None: never (FLIU, Fig. 7; DRDM).

        Raises:
            PflOpsError: as for `curve`.
        """
        curve = self.curve(stage, view, statistic)
        return metrics.rounds_to(dict(zip(curve.index.tolist(), curve.tolist(), strict=True)), target)

    def clients_above(self, eps: float = 0.95, stage: str = "L1") -> "pd.Series":
        """ρ_ε by round: how many clients' own accuracy lies above ε, one of the experiment's `evaluation.eps`.

        Raises:
            PflOpsError: this ε was not tracked, or no client has this stage.
        """
        return self.curve(stage, "local", metrics.rho_name(eps))

    def clients_below(self, eps: float = 0.95, stage: str = "L1") -> "pd.Series":
        """By round, how many of the scored clients do not lie above ε (FLIU, Fig. 8).

        Raises:
            PflOpsError: as for `clients_above`.
        """
        return self.curve(stage, "local", "clients") - self.clients_above(eps, stage)

    def effort(self, target: float = 0.8, stage: str = "L1", view: str = "local", statistic: str = "worst") -> Effort:
        """Local steps τ, rounds R to the target, and the bits that a client really sent a round: for `energy_table`.

        Raises:
            PflOpsError: the run has local epochs instead of steps, or as for `curve`.
        """
        steps = self.experiment.training.local_steps
        if steps is None:
            raise PflOpsError("energy is counted by local steps (τ): run with training.local_steps, not local_epochs")
        sent, clients = self._column("cost/up_bytes"), self._column("cost/clients")
        return Effort(steps, self.rounds_to(target, stage, view, statistic), 8 * float(sent.sum() / clients.sum()))

    def _column(self, key: str) -> "pd.Series":
        if key not in self.rounds:
            raise unknown("tracked value", key, map(str, self.rounds))
        return self.rounds[key].dropna()

    def _simulation(self) -> "Simulation":
        """The finished run, read again from its checkpoint: a result that is kept holds no client's model in memory."""
        simulation = self.experiment.build(data_dir=self.data_dir, folder=self.folder)
        for _ in simulation.run():
            pass
        return simulation


def energy_table(
    efforts: Sequence[Effort],
    *,
    snr_db: Sequence[float],
    bandwidth: Sequence[float],
    power: float,
    step_energy: float,
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
        PflOpsError: as for `energy.grid`.
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
