"""An MLflow client that keeps everything in memory: what `Sender` asks of MLflow, and no more."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mlflow.exceptions import MlflowException

from pfl_ops.tracking.home import TrackingTarget
from pfl_ops.tracking.sending.sender import Sender
from pfl_ops.tracking.target.run_info import PARENT


class MemoryMlflow:
    """Runs by id; `down` makes each call fail as with a server that is gone."""

    def __init__(self) -> None:
        self.down = False
        self.runs: dict[str, Any] = {}
        self.points: dict[str, dict[tuple[str, int], tuple[float, int]]] = {}
        self.files: dict[str, dict[str, bytes]] = {}

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if callable(found) and not name.startswith("_") and object.__getattribute__(self, "down"):
            raise MlflowException("API request failed with exception: connection refused")
        return found

    def search_experiments(self, max_results: int = 1) -> list[Any]:
        return []

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id=name, lifecycle_stage="active")

    def create_run(self, experiment: str, start: int, tags: dict[str, str], name: str) -> Any:
        run_id = f"run{len(self.runs)}"
        self.runs[run_id] = SimpleNamespace(
            info=SimpleNamespace(
                run_id=run_id, start_time=start, status="RUNNING", experiment_id=experiment, name=name
            ),
            data=SimpleNamespace(tags=dict(tags), params={}),
        )
        self.points[run_id], self.files[run_id] = {}, {}
        return self.runs[run_id]

    def search_runs(self, experiments: list[str], where: str, order_by: Any = None, max_results: int = 0) -> list[Any]:
        wanted = dict(re.findall(r"tags\.`([^`]+)` = '([^']*)'", where))
        found = [
            run
            for run in self.runs.values()
            if run.info.experiment_id in experiments and wanted.items() <= run.data.tags.items()
        ]
        return sorted(found, key=lambda run: -run.info.start_time)

    def get_run(self, run_id: str) -> Any:
        return self.runs[run_id]

    def update_run(self, run_id: str, status: str, name: str) -> None:
        self.runs[run_id].info.status = status

    def set_terminated(self, run_id: str, status: str, end_time: int) -> None:
        self.runs[run_id].info.status = status

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        self.runs[run_id].data.tags[key] = value

    def delete_tag(self, run_id: str, key: str) -> None:
        del self.runs[run_id].data.tags[key]

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        self.runs[run_id].data.tags.update({tag.key: tag.value for tag in tags})
        self.runs[run_id].data.params.update({param.key: param.value for param in params})
        for metric in metrics:
            place = (metric.key, metric.step)
            assert self.points[run_id].get(place, (metric.value, metric.timestamp)) == (metric.value, metric.timestamp)
            self.points[run_id][place] = (metric.value, metric.timestamp)

    def get_metric_history(self, run_id: str, key: str) -> list[Any]:
        return [SimpleNamespace(step=step) for name, step in self.points[run_id] if name == key]

    def log_artifact(self, run_id: str, path: str, folder: str | None) -> None:
        self.files[run_id]["/".join(part for part in (folder, Path(path).name) if part)] = Path(path).read_bytes()

    def log_artifacts(self, run_id: str, path: str, folder: str) -> None:
        for file in Path(path).rglob("*"):
            if file.is_file():
                self.files[run_id][f"{folder}/{file.relative_to(path).as_posix()}"] = file.read_bytes()

    def list_artifacts(self, run_id: str, folder: str | None) -> list[Any]:
        return [
            SimpleNamespace(path=path, is_dir=False, file_size=len(data))
            for path, data in self.files[run_id].items()
            if path.rpartition("/")[0] == (folder or "")
        ]

    def by_identity(self, identity: str) -> list[Any]:
        """All runs of an identity at the top, in the order in which they were made."""
        runs = object.__getattribute__(self, "runs").values()
        return [r for r in runs if r.data.tags["pfl_ops.identity"] == identity and PARENT not in r.data.tags]


def memory_sender(client: MemoryMlflow) -> Sender:
    """A sender to such a client, as it is in a new process."""
    sender = Sender(TrackingTarget("http://a", None))
    sender._client = client
    return sender
