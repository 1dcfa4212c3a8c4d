"""Run the jobs and write down what they leave."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FIXED = ["--device", "cpu", "--way", "vmap", "--chunk", "4", "--workers", "1", "--threads", "1"]
SMALL = ["--rounds", "3", "--clients", "6"]
METHODS = ("fliu", "scaffold", "fedrep")  # one global gradient; state of each client; a part that stays local
DATA = {"digits": [], "mnist": ["--train-size", "1500"]}
LAST_LINES = 25

TIMED = re.compile(r"seconds|per_second|peak_mib|/time\b")  # metrics and columns that no two runs share
VOLATILE = {
    "pfl_ops.git_revision",
    "mlflow.user",
    "mlflow.source.name",
    "mlflow.source.git.commit",
    "mlflow.log-model.history",
}


def jobs() -> dict[str, list[list[str]]]:
    """Return the jobs: name -> the commands of one work folder, one after another."""
    found: dict[str, list[list[str]]] = {
        f"run-{method}-{data}-{state}": [
            ["run", method, "--dataset", data, *more, *SMALL, *FIXED, "--state", state],
        ]
        for method in METHODS
        for data, more in DATA.items()
        for state in ("memory", "file")
    }
    digits = ["--dataset", "digits", *SMALL, *FIXED]
    found["repetitions"] = [["run", "fedavg", *digits, "--repetitions", "3"]]
    digits += ["--confirm", "0"]  # as versions before it did
    study = ["tune", "fliu", *digits, "--name", "net", "--concurrency", "1"]
    found["study"] = [
        [*study, "--trials", "2", "--repetitions", "2"],
        [*study, "--trials", "4", "--repetitions", "2", "--resume"],
    ]
    both = ["tune", "fedavg,fliu", *digits, "--name", "both", "--concurrency", "1"]
    found["benchmark"] = [[*both, "--trials", "2", "--repetitions", "2"]]
    for suite in ("fliu/table1", "fedavg2rep/table2"):
        suite_flags = ["--scale", "smoke", "--concurrency", "1", "--device", "cpu", "--way", "vmap", "--threads", "1"]
        found[f"suite-{suite.replace('/', '-')}"] = [["reproduce", suite, *suite_flags]]
    return found


def record(folder: Path, only: Sequence[str] = ()) -> None:
    """Run the jobs (or only some) and write `net.json` after each."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "net.json"
    kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for name, commands in jobs().items():
        if only and name not in only:
            continue
        home = folder / name
        said = [_run(command, home, folder) for command in commands]
        kept[name] = {"commands": said, "runs": _runs(home)}
        file.write_text(json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False))
        print(name, [each["exit"] for each in said], len(kept[name]["runs"]), "runs", flush=True)


def _run(command: list[str], home: Path, folder: Path) -> dict[str, Any]:
    environment = {**os.environ, "PFL_OPS_HOME": str(home), "COLUMNS": "140", "NO_COLOR": "1"}
    program = [str(Path(sys.executable).with_name("pfl-ops")), *command]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, cwd=folder, check=False)
    return {
        "command": command,
        "exit": done.returncode,
        "out": [_plain(line, folder) for line in done.stdout.splitlines()[-LAST_LINES:]],
        "err": [_plain(line, folder) for line in done.stderr.splitlines()[-LAST_LINES:]],
    }


def _plain(line: str, folder: Path) -> str:
    """A line without what no two runs share: ids, times, sizes of files, addresses."""
    line = line.replace(str(folder), "FOLDER").rstrip()
    line = re.sub(r"\b[0-9a-f]{32}\b", "ID", line)
    line = re.sub(r"\b\d+(\.\d+)? ?(s|ms|min|MiB|GiB)\b", "N", line)
    line = re.sub(r"\b\d\d:\d\d(:\d\d)?\b", "CLOCK", line)
    return re.sub(r"experiments/\d+", "experiments/N", line)


def _runs(home: Path) -> dict[str, Any]:
    """Every run of a work folder by its place: experiment / parent / name."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    experiments = {each.experiment_id: each.name for each in client.search_experiments()}
    runs = [run for each in experiments for run in client.search_runs([each], max_results=5000)]
    names = {run.info.run_id: run.info.run_name for run in runs}

    def place(run: Any) -> str:
        above = names.get(run.data.tags.get("mlflow.parentRunId"), "")
        return "/".join([experiments[run.info.experiment_id], above, run.info.run_name])

    return {
        place(run): {
            "status": run.info.status,
            "params": dict(run.data.params),
            "tags": {key: _tag(value, names, home) for key, value in run.data.tags.items() if key not in VOLATILE},
            "metrics": {key: _history(client, run.info.run_id, key) for key in run.data.metrics},
            "artifacts": _artifacts(client, run.info.run_id),
            "inputs": [
                [one.dataset.name, one.dataset.digest, one.dataset.profile, one.dataset.schema]
                for one in (run.inputs.dataset_inputs if run.inputs else [])
            ],
        }
        for run in runs
    }


def _history(client: Any, run_id: str, key: str) -> list[Any]:
    """Steps and values of a metric, bit for bit; of a time the steps alone."""
    points = sorted(client.get_metric_history(run_id, key), key=lambda point: point.step)
    if TIMED.search(key):
        return [point.step for point in points]
    return [[point.step, float(point.value).hex()] for point in points]


def _tag(value: str, names: dict[str, str], home: Path) -> str:
    for run_id, name in names.items():
        value = value.replace(run_id, f"<{name}>")
    value = value.replace(str(home.parent), "FOLDER")
    value = re.sub(r"/experiments/\d+", "/experiments/N", value)
    return re.sub(r"\b\d+(\.\d+)? ?(s|ms|min|MiB|GiB)\b", "N", value)


def _artifacts(client: Any, run_id: str) -> dict[str, str]:
    """Names of all artifacts, with a digest of each file's content."""
    top = Path(re.sub("^file://", "", client.get_run(run_id).info.artifact_uri))
    return {
        path.relative_to(top).as_posix(): hashlib.sha256(_content(path)).hexdigest()[:16]
        for path in sorted(top.rglob("*"))
        if path.is_file()
    }


def _content(path: Path) -> bytes:
    """A file's content; of a table without the columns of times, of text without folders."""
    import pandas as pd

    if path.suffix in (".csv", ".parquet"):
        table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
        return table[[column for column in table if not TIMED.search(str(column))]].to_csv().encode()
    if path.suffix == ".yaml":
        return re.sub(rb"(?m)^space_source: .*$", b"", path.read_bytes())
    return path.read_bytes()
