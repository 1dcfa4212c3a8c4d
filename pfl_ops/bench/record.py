"""A report as an MLflow run."""

import json
import time
from pathlib import Path

from pfl_ops.bench.report import Report
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.tracking import Store, provenance
from pfl_ops.tracking.runs.run import now

EXPERIMENT = "bench"


def record(report: Report, *, home: Path | str | None = None, tracking_uri: str | None = None) -> str | None:
    """Keep a report: machine and settings as parameters, medians and ratios as metrics, the whole as `bench.json`.

    Args:
        home: the work folder; none: `PFL_OPS_HOME`, else ./mlruns. tracking_uri: none: the work folder's own store.
    Returns:
        MLflow's run id; None while the tracking server was never reached.
    """
    machine = {key: " ".join(value) if isinstance(value, list) else value for key, value in report.machine.items()}
    asked = {key: json.dumps(value) for key, value in report.settings.model_dump(mode="json").items()}
    models = "-".join(dict.fromkeys(case.model for case in report.cases))
    with Store.open(home, tracking_uri, offline=True) as store:
        run = store.run(
            EXPERIMENT,
            f"bench-{models or 'nothing'}",
            identity=f"bench {time.time_ns()}",  # each benchmark is a run of its own
            params={**{f"machine.{k}": v for k, v in machine.items()}, **{f"bench.{k}": v for k, v in asked.items()}},
            tags=provenance(device=str(report.machine["device"])),
        )
        with run:
            metrics = dict(metric for case in report.cases for metric in case.metrics())
            run.log([Record(0, metrics, now())])
            run.text(json.dumps(report.to_dict(), indent=1), "bench.json")
        return run.run_id
