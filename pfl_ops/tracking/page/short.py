"""Short addresses of MLflow's page, as `pfl-ops ui` serves them: /study/NAME, /experiment/NAME and /run/ID."""

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from pfl_ops import tag_names
from pfl_ops.tracking.descriptions.views import FIRST, TAG, run_address, view_address

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

KINDS = ("study", "experiment", "run")


def short_address(kind: str, name: str) -> str:
    """Return the short address behind the server's.

    >>> short_address("study", "fliu digits")
    '/study/fliu%20digits'

    Args:
        kind: one of `KINDS`. name: of a study or an MLflow experiment; a run's id, or the first digits of its hash.
    """
    return f"/{kind}/{quote(name, safe='')}"


def find_page(client: "MlflowClient", kind: str, name: str) -> str | None:
    """Return where MLflow's page shows what a short address names: the address behind the server's; None: not there.

    A study: the charts of its trials. An experiment: the charts of its first saved view (`FIRST`), or its runs. A run:
    its own page.
    """
    from mlflow.exceptions import MlflowException

    if kind == "run":
        try:
            found = [client.get_run(name)]
        except MlflowException:
            found = _with_hash(client, name)
        return run_address(found[0].info.experiment_id, found[0].info.run_id) if found else None
    if kind == "study" and "'" not in name:
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        where = f"tags.`{tag_names.KIND}` = 'study' and tags.`{tag_names.STUDY}` = '{name}'"
        for run in client.search_runs(experiments, where, max_results=1):
            tags = client.get_experiment(run.info.experiment_id).tags
            own = f"trials-{run.data.tags.get('algorithm', '')}"  # several studies share a benchmark's experiment
            return view_address(run.info.experiment_id, own if TAG + own in tags else "trials")
    if kind == "experiment":
        experiment = client.get_experiment_by_name(name)
        if experiment is not None:
            key = next((key for key in FIRST if TAG + key in experiment.tags), "")
            return view_address(experiment.experiment_id, key, charts=bool(key))
    return None


def _with_hash(client: "MlflowClient", digits: str) -> "list[Run]":
    """Return the runs whose experiment's hash begins so: first those with no run above, the newest first."""
    if not re.fullmatch("[0-9a-f]{8,64}", digits):
        return []
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    where = f"tags.`{tag_names.EXPERIMENT_HASH}` LIKE '{digits}%'"
    found = client.search_runs(experiments, where, order_by=["attributes.start_time DESC"])
    return sorted(found, key=lambda run: "mlflow.parentRunId" in run.data.tags)
