"""A wrong address or resource request is refused before a study, a run or a lock file is made."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "papers"))

from toy_suite import TOY
from tuning_fake import toy

from pfl_ops import spaces, tuning
from pfl_ops.errors import PflOpsError
from pfl_ops.jobs import resources
from pfl_ops.tuning.commands.benchmark import benchmark

SPACE = spaces.parse("algorithm.x: {float: [0, 1]}")
TRIAL, CELL = ("cpus_per_trial", "gpus_per_trial"), ("cpus_per_cell", "gpus_per_cell")
NOBODY = "127.0.0.1:1"  # a port that needs privileges to listen on

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"address": NOBODY}, f"no Ray cluster answers at '{NOBODY}' ("),
    ({"address": "nonsense"}, "--address is auto or HOST:PORT, with a port from 1 to 65535, got 'nonsense'"),
    ({"address": "host:0"}, "--address is auto or HOST:PORT"),
    ({"cpus": 100_000}, "this machine does not have 100000 CPUs for one trial; use --cpus-per-trial "),
    ({"cpus": float("nan")}, "--cpus-per-trial must be a number above 0 or auto, got 'nan'"),
    ({"cpus": -1}, "--cpus-per-trial must be a number above 0 or auto, got '-1'"),
    ({"cpus": 1e-9}, "--cpus-per-trial must be 0.01 or more, got '1e-09'"),
    ({"gpus": 1000}, "--gpus-per-trial must be a share of a GPU, at most 1 (0.25, 0.5), or auto, got '1000'"),
    ({"gpus": float("inf")}, "--gpus-per-trial must be a share of a GPU"),
    ({"concurrency": 0}, "--concurrency must be >= 1, got 0"),
    ({"concurrency": -3}, "--concurrency must be >= 1, got -3"),
]


def tune(home: Path, **request: Any) -> None:
    tuning.tune(toy(), space=SPACE, home=home, **request)


def tune_several(home: Path, **request: Any) -> None:
    benchmark([toy(), toy().override({"algorithm": {"name": "rival"}})], space=SPACE, home=home, **request)


def reproduce(home: Path, **request: Any) -> None:
    tuning.reproduce(tuning.plan([(TOY, TOY.cells)], "smoke"), home=home, **request)


@pytest.mark.parametrize(("command", "flags"), [(tune, TRIAL), (tune_several, TRIAL), (reproduce, CELL)])
@pytest.mark.parametrize(("request_", "message"), WRONG, ids=[str(request) for request, _ in WRONG])
def test_a_wrong_request_leaves_nothing(command, flags, request_, message, tmp_path, monkeypatch):
    monkeypatch.setattr(resources.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(resources.ray, "init", None)  # would be called
    names = {"cpus": flags[0], "gpus": flags[1]}
    with pytest.raises(PflOpsError) as caught:
        command(tmp_path / "home", **{names.get(key, key): value for key, value in request_.items()})
    said = message.replace("trial", "cell") if flags is CELL else message  # the flags that the command has
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
