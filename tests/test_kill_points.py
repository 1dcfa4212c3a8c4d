"""Processes killed at each write of each durable file: done again, a job ends like one that was left alone.

See nursery.py for what is killed how, and kill_jobs.py for the jobs.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fork_server
import pytest

HERE = Path(__file__).parent
Kill = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.slow
ROUNDS = ["rename to base-#", "rename to delta-#", "rename to finished", "remove base-#/meta.json", "rmdir delta-#"]


@pytest.fixture(scope="module")
def kill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kill]:
    """A function that has the nursery kill a job; it starts once."""
    place = tmp_path_factory.mktemp("nursery")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PFL_OPS_", "MLFLOW_"))}
    environment = {
        **kept, "OMP_NUM_THREADS": "1", "PFL_OPS_CACHE": str(place / "cache"),
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path]),
    }  # fmt: skip
    with (place / "errors.txt").open("w") as errors:
        process = subprocess.Popen(
            [*fork_server.python(), str(HERE / "nursery.py")], env=environment, cwd=place,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip

    def ask(job: str, most: int) -> dict[str, Any]:
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps({"job": job, "folder": str(place / job), "most": most}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, (place / "errors.txt").read_text()[-3000:]
        answer: dict[str, Any] = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer

    yield ask
    process.stdin.close()  # type: ignore[union-attr]
    process.wait(30)


@pytest.mark.parametrize(
    ("job", "most", "events"),
    [
        # all its events, among them those of a base that replaces a base and deltas, and of results beside rounds
        ("rounds-memory", 60, [*ROUNDS, "open .writing-#/meta.json", "sync .writing-#/meta.json"]),
        ("rounds-file", 8, ROUNDS),
        ("outbox", 18, ["sync spool/#/journal.jsonl", "commit after mlflow.db: insert into latest_metrics"]),
        ("request", 40, ["sync requests/.#-#-#/files/...", "rename to requests/#-#-#", "rename to requests/.#-#-#-#"]),
        ("study-begins", 8, ["commit after studies.db: insert into study_user_attributes"]),
        ("cache", 20, ["sync .unpacking-#/x_train.npy", "rename to #"]),
        ("partition", 10, ["rename to partition/partition.json"]),
        ("page", 20, ["rename to index.html"]),
        ("single-file", 10, ["sync .a-#.json", "rename to a.json"]),
    ],
)  # fmt: skip
def test_killed_at_each_write_ends_like_one_left_alone(kill: Kill, job: str, most: int, events: list[str]) -> None:
    """The events that must be among those at which a process was killed guard against a nursery that sees nothing."""
    found = kill(job, most)
    assert not found["wrong"], f"{len(found['wrong'])} of {found['killed']}: {json.dumps(found['wrong'][:3])[:3000]}"
    assert set(events) <= set(found["names"]), found["names"]
    assert found["killed"] >= 0.9 * found["points"] > 0, found
    assert job != "rounds-memory" or found["killed"] > 50, found


def test_work_folder_killed_while_databases_are_made(kill: Kill) -> None:
    """The two first seconds of a new folder: MLflow's and Optuna's migrations are not undone by SQLite."""
    found = kill("work-folder", 2)
    assert not found["wrong"], found["wrong"]
