"""Started by test_kill.py: processes that are killed, and what is left at the end. Prints one line of JSON.

A nursery: it imports everything once and then forks the processes that run and die, so that many deaths cost little.

    python kill_script.py saves FOLDER     one that only saves, killed at random moments
    python kill_script.py tracked FOLDER   tracked runs: two processes on one run, and one killed at random moments
"""

import functools
import importlib
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from little import LOOP, timeless

from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.method.contract import ClientRows, State
from pfl_ops.federation.state.checkpoint import Checkpoints, Record


def fork(work: Callable[[], None]) -> int:
    """A process that does this and ends; its number."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def ended(pid: int) -> int:
    """Wait for it: 0, 1, or minus the signal that it died of."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def digest(value: Any) -> str:
    """A number for tensors, bit for bit."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)}{hash(value.contiguous().numpy().tobytes())}"
    return repr(value)


# -- killed while it saves, at random moments --------------------------------------------------------------------------

SAVED_CLIENTS, SAVED_WIDTH = 200, 4000


def state_after(t: int) -> State:
    """Return the state of a run that trains nothing after round t; ten clients a round."""
    s: State = {"central": torch.full((10,), float(t)), "rows": ClientRows(torch.zeros(SAVED_WIDTH), SAVED_CLIENTS)}
    for i in range(1, t + 1):
        play(s, i)
    return s


def play(s: State, t: int) -> None:
    who = torch.arange(10) * 17 * t % SAVED_CLIENTS
    who = who.unique()
    s["rows"].write(who, torch.full((len(who), SAVED_WIDTH), float(t)))
    s["central"] = torch.full((10,), float(t))


def saving_run(folder: Path, said: int) -> None:
    """Save for ever; say the number of each round that is kept."""
    kept = Checkpoints(folder, "mine")
    t = -1 if kept.latest is None else kept.latest.round
    s = state_after(0) if kept.latest is None else kept.latest.restore(state_after(0))
    records = [] if kept.latest is None else kept.latest.records
    while True:
        t += 1
        if t:
            play(s, t)
        records.append(Record(t, {"x": t / 3}, t))
        kept.save(t, s, records, {})
        os.write(said, f"{t}\n".encode())


def at_random_saves(folder: Path) -> dict[str, Any]:
    """A process that saves is killed again and again; what it had said to be kept is always there, bit for bit."""
    draws = random.Random(3)
    reached, wrong, kinds = [-1], [], set()
    for _ in range(15):
        listen, said = os.pipe()
        pid = fork(functools.partial(saving_run, folder, said))
        os.close(said)
        with os.fdopen(listen) as lines:
            told = [int(lines.readline()) for _ in range(draws.randint(0, 5))]
            time.sleep(draws.uniform(0, 0.02))
            os.kill(pid, signal.SIGKILL)
            assert ended(pid) == -signal.SIGKILL
            told += [int(line) for line in lines]
        kept = Checkpoints(folder, "mine")
        found = -1 if kept.latest is None else kept.latest.round
        kinds |= {"".join(sorted({p.name[0] for p in folder.glob("*")}))}
        good = found >= max([*told, reached[-1]]) and not kept.complaints
        if kept.latest is not None:
            s, expected = kept.latest.restore(state_after(0)), state_after(found)
            everyone = torch.arange(SAVED_CLIENTS)
            good &= torch.equal(s["rows"][everyone], expected["rows"][everyone])
            good &= torch.equal(s["central"], expected["central"])
            good &= [r.round for r in kept.latest.records] == list(range(found + 1))
        if not good:
            wrong.append({"found": found, "told": told, "complaints": kept.complaints})
        reached.append(found)
    return {"reached": reached, "wrong": wrong, "kinds": sorted(kinds)}


# -- killed at random moments ------------------------------------------------------------------------------------------


def experiment() -> Experiment:
    return Experiment.of(
        "fliu", dataset="digits", model="cnn_tiny", clients=4, rounds=6, participation=0.5, batch_size=20,
        **{"data.train_size": 160, "evaluation.subset": 40, "evaluation.global_every": 2},
    )  # fmt: skip


IMPORTED_BY_A_RUN = (
    *(
        "pfl_ops.figures",
        "pfl_ops.runs",
        "pfl_ops.tracking.target.saving",
        "pfl_ops.models.cnn_tiny",
        "pyarrow.parquet",
    ),
    *("matplotlib.backends.backend_agg", "mlflow.pyfunc", "mlflow.store.tracking.sqlalchemy_store", "alembic.command"),
)
"""Half of the seconds that a tracked run takes: a fork that finds them imported does without."""


def tracked_run(home: Path, out: Path) -> None:
    from pfl_ops import runs
    from pfl_ops.tracking.runs.store import Store

    result = runs.run(experiment(), home=home, execution=LOOP)
    models = {name: digest(value) for name, value in (result.global_model() or {}).items()}
    models |= {f"{k}/{name}": digest(value) for k in range(4) for name, value in result.model(k).items()}
    rounds = {int(t): timeless(row.dropna().to_dict()) for t, row in result.rounds.iterrows()}  # type: ignore[call-overload]
    with Store.open(home) as store:
        there = store.runs()
        history = store.history(there[0].run_id)
    curves = [name for name in rounds[6] if name in history.columns]
    mlflow = {int(t): row[curves].dropna().to_dict() for t, row in history.iterrows()}  # type: ignore[call-overload]
    found = {
        "rounds": rounds, "final": timeless(result.final), "clients": result.clients.to_dict("list"), "models": models,
        "tracked": mlflow, "runs": [run.status for run in there],
    }  # fmt: skip
    out.write_text(json.dumps(found, sort_keys=True))


def tracked(folder: Path) -> dict[str, Any]:
    """All tests with MLflow: its modules are imported, and its empty database made, once."""
    for name in IMPORTED_BY_A_RUN:
        importlib.import_module(name)
    from pfl_ops.tracking.runs.store import Store

    homes = [folder / name for name in ("whole", "killed", "two")]
    assert ended(fork(lambda: Store.open(homes[0]).close() and None)) == 0
    for home in homes[1:]:
        shutil.copytree(homes[0], home)
    assert ended(fork(lambda: tracked_run(homes[0], folder / "whole.json"))) == 0
    return {**at_random_moments(folder, homes[1]), "two": two_at_once(folder, homes[2])}


def at_random_moments(folder: Path, home: Path) -> dict[str, Any]:
    """Killed soon after rounds 1, 4 and 6 are kept, the last time while tables, figures and models are."""
    draws = random.Random(8)
    moments = [(1, 0.05), (4, 0.1), (6, 1.0)]
    kills, reached = 0, []
    for round_, seconds in [*moments, (99, 0.0)]:
        pid = fork(lambda: tracked_run(home, folder / "killed.json"))
        while _reached(home) < round_ and not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            time.sleep(0.002)
        if round_ < 99:
            time.sleep(draws.uniform(0, seconds))
            os.kill(pid, signal.SIGKILL)
        code = ended(pid)
        assert code in (0, -signal.SIGKILL), f"it ended with {code}"
        kills += code != 0
        reached.append(_reached(home))
    one, other = (json.loads((folder / f"{name}.json").read_text()) for name in ("whole", "killed"))
    differing = [key for key in one if json.dumps(one[key]) != json.dumps(other[key])]
    return {"kills": kills, "reached": reached, "differing": differing, "tracked": len(other["tracked"])}


def _reached(home: Path) -> int:
    """The last round that is kept."""
    finished = list((home / "checkpoints").glob("*/finished"))
    rounds = (int(p.name.partition("-")[2]) for p in (home / "checkpoints").glob("*/[bd]*-*"))
    return 6 if finished else max(rounds, default=-1)


# -- two at once -------------------------------------------------------------------------------------------------------


def two_at_once(folder: Path, home: Path) -> dict[str, Any]:
    """The first stands still after its first round while the second tries."""
    from pfl_ops import runs

    flag, told = folder / "flag", folder / "told"

    def first() -> None:
        def wait(record: Record) -> None:
            if record.round == 1:
                flag.touch()
                while not told.exists():
                    time.sleep(0.02)

        runs.run(experiment(), home=home, execution=LOOP, on_record=wait)

    def second() -> None:
        try:
            runs.run(experiment(), home=home, execution=LOOP)
            told.write_text("it ran")
        except PflOpsError as error:
            told.write_text(str(error))

    pid = fork(first)
    while not flag.exists():
        time.sleep(0.02)
    second_code = ended(fork(second))
    return {"first": ended(pid), "second": second_code, "told": told.read_text()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    work = {"saves": at_random_saves, "tracked": tracked}[sys.argv[1]]
    print(json.dumps(work(Path(sys.argv[2]))))
