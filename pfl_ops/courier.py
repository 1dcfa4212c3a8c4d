"""The courier: a process that tracks the runs of requests, beside and after the process that simulates them.

The rounds of the first request come as lines of standard input, which ends with the simulating process. Everything
else comes from the run's checkpoint. See `tracking.spools.requests`.
"""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from pfl_ops import files
from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.system import child, machine
from pfl_ops.tracking.home import TrackingTarget, WorkFolder
from pfl_ops.tracking.spools import requests
from pfl_ops.tracking.spools.requests import LOCK, LOG, OWNER, PROCESS, REQUEST, Request, RunEnd

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment


PROBE_SECONDS = 0.5  # a lock that is held longer is another courier's
AT_ONCE = max(3, machine.cores())  # couriers of a folder that track runs which are over, of 0.4 GiB each
TURN_SECONDS = 30.0  # without a turn for so long, a courier goes on: those before it may hang


def track(niceness: int, *folders: str) -> None:
    """Track the runs of some requests, and end the process; its exit code is 1 if one of them failed.

    Args:
        niceness: how much the system prefers other processes, 0 to 19.
    """
    child.lower_priority(niceness)
    failed = False
    for folder in map(Path, folders):
        if len(folders) > 1 and _has_code(folder):  # that of another request may have its names, or end the process
            alone = child.lasting_command("pfl_ops.courier.track", 0, str(folder))
            failed |= subprocess.run(alone, check=False).returncode != 0
            continue
        lock = FileLock(folder / LOCK)
        try:
            lock.acquire(timeout=PROBE_SECONDS, poll_interval=0.01)  # `is_locked` takes it for a moment
        except (Timeout, OSError):  # another courier has it, or has done it
            continue
        try:
            if (folder / REQUEST).exists():  # else another courier has done it since
                with suppress(OSError):  # a full disk
                    (folder / PROCESS).write_text(str(os.getpid()))
                with _turn(folder):
                    _track(folder)
            requests.remove(folder)
        except Exception as error:
            import traceback

            failed = True
            account = "".join(traceback.format_exception(error)) + in_a_line(error) + "\n"
            with suppress(OSError), (folder / LOG).open("a") as file:
                file.write(account)
        finally:
            with suppress(OSError):
                lock.release()
    sys.exit(failed)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Wait while `AT_ONCE` others are at work: of many short runs each leaves a courier, within seconds.

    A run that goes on now needs no turn: its rounds come in the meantime.
    """
    with ExitStack() as held:
        until = time.monotonic() + TURN_SECONDS
        for n in itertools.cycle(range(AT_ONCE)):
            if requests.is_locked(folder / OWNER) or time.monotonic() > until:
                break
            with suppress(Timeout):
                held.enter_context(FileLock(folder.parents[1] / f".courier-{n}.lock", timeout=0))
                break
            time.sleep(PROBE_SECONDS / AT_ONCE)
        yield


def _has_code(folder: Path) -> bool:
    """True if a request has code of the user."""
    with suppress(PflOpsError):
        request = requests.read(folder)
        return bool(request.plugins or request.modules)
    return False


def _track(folder: Path) -> None:
    """Track the run of one request.

    Raises:
        PflOpsError: the experiment can't be made again as it was, or its results can't be read.
    """
    request = requests.read(folder)
    with suppress(OSError):  # a folder that is gone; only relative paths need it
        os.chdir(request.folder)
    for variable in requests.VARIABLES:
        os.environ.pop(variable, None)
    os.environ.update(request.variables)

    from pfl_ops import runs
    from pfl_ops.config.experiment import Experiment
    from pfl_ops.data.store import cache_folder, pin
    from pfl_ops.federation.settings import Execution
    from pfl_ops.federation.state.checkpoint import FINISHED, Record
    from pfl_ops.registry import PackedModules, load_packed, load_plugin
    from pfl_ops.tracking.runs.store import Store

    sys.meta_path.insert(0, PackedModules(request.modules))
    load_packed([one for one in request.plugins if not isinstance(one, str)], cache_folder() / "plugins")
    for plugin in request.plugins:
        if isinstance(plugin, str):
            load_plugin(Path(plugin))
    if request.data is not None:
        pin(Path(request.data[0]), request.data[1])
    for file, copy in requests.copies(folder, request):
        files.pin(file, copy)
    experiment = Experiment.model_validate(request.experiment)
    home = WorkFolder.open(folder.parents[1])
    whole = home.checkpoints / request.digest / FINISHED
    is_live = requests.is_locked(folder / OWNER)
    if not is_live:
        end = requests.read_end(folder)
        if end.status == "FINISHED":
            _check(experiment, home, request)
        elif end.time and whole.is_dir() and whole.stat().st_mtime_ns // 1_000_000 > end.time:
            return  # the run has gone on and is over: a later request says how it ended
    with Store(home, TrackingTarget.of(home, f"sqlite:///{home.database}"), offline=True) as store:
        kept = runs.records_of(home, request.digest)
        rerun = request.rerun or store.rerun_of(request.group, request.digest, lambda: kept)
        if rerun and not (request.rerun or kept):  # killed before round 0; MLflow has another computation
            return
        run = store.run(
            request.group,
            request.name,
            identity=request.digest,
            params=request.params,
            tags=request.tags,
            rerun=rerun,
            start=min([requests.begun(folder), *(record.time for record in kept[:1])]),
            read=whole.is_dir(),
        )
        if is_live:
            for line in sys.stdin:
                run.log([Record(**json.loads(line))])
        end = requests.read_end(folder)
        if end.status == "KILLED" and not request.rerun and whole.is_dir():  # stopped while it was read, or at its end
            done = runs.is_finished(experiment, home=home.root, data_dir=request.data_dir)
            end = RunEnd("FINISHED") if done else end
        records = runs.records_of(home, request.digest)
        last = records[-1].time if records else requests.begun(folder)
        run.ended_at(end.time or last, read=end.time is None and end.status != "KILLED")
        if end.status != "FINISHED":
            run.log(records)
            run.tags(end.tags)
            run.finish(end.status)
            return
        _check(experiment, home, request)
        run.flush()
        with suppress(runs.Diverged):  # the end says so
            runs.run(
                experiment,
                home=home.root,
                data_dir=request.data_dir,
                execution=Execution.model_validate(request.execution),
                progress=False,
                store=store,
                name=request.name,
                tags=request.tags,
                computed=True,
            )


def _check(experiment: "Experiment", home: WorkFolder, request: Request) -> None:
    """Refuse to compute a run: its checkpoint must be there, and belong to this experiment."""
    from pfl_ops import runs

    if experiment.digest(request.data_dir) != request.digest:
        raise PflOpsError(
            f"its data, or the code of its method, network or partition, have changed since it was run; "
            f"{request.digest[:12]} is in the checkpoints only"
        )
    if not runs.is_finished(experiment, home=home.root, data_dir=request.data_dir):
        raise PflOpsError("its checkpoint was removed; the same command computes it again")
