"""A nursery: a process that imports everything once, then forks a child for each moment at which one is killed.

    python nursery.py        reads lines {"job": NAME, "folder": PATH, "most": INT}, answers each with a line of JSON

A durable event is an opened, synced, renamed or removed file, a made or removed folder, or a commit of changes to a
database (where tables are made, each statement: SQLite commits those at once). A first child records the names of all
events of a job. Then, for the chosen events, a child is killed right before the event, and a fresh child does the job
again. Its outcome must be that of a job that was left alone. What was written and not synced when the child was killed
is cut in half, as a power cut may leave it.
"""

import gc
import json
import os
import re
import shutil
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kill_jobs import JOBS, make_template, template
from sqlalchemy import Engine, event

SAFE = re.compile(r"\.db|/artifacts/|(/|\.)(lock|owner)$")
"""Files that a power cut does not shorten here: databases (SQLite has its own journal), MLflow's copies, locks."""
CHANGING = re.compile(
    r"\s*(insert\s+into|update|delete\s+from|create\s+\w+|alter\s+table|drop\s+\w+)\s+[\"`]?(\w+)", re.I
)
LOCK = re.compile(r"(^|/|\.)(lock|owner)$")
"""Files that say who works here; their content is no result."""
CHILD_SECONDS = 90


class Watch:
    """Names the durable events of this process below a folder; kills the process at one of them.

    Args:
        root: the folder.
        at: (name, how many of that name came before): where to die; None: nowhere.
        statements: count each changing SQL statement, not only commits.
    """

    def __init__(self, root: Path, at: tuple[str, int] | None, statements: bool) -> None:
        self.root, self.at, self.statements = os.path.realpath(root), at, statements
        self.names: list[str] = []
        self.seen: Counter[str] = Counter()
        self.synced: dict[str, int] = {}  # file opened for writing -> bytes of it that are safe
        self.last = threading.local()
        self.mutex = threading.Lock()
        self.dying = False
        sys.addaudithook(self.audit)
        self.patch_sync("fsync")
        self.patch_sync("fdatasync")
        event.listen(Engine, "before_cursor_execute", self.statement)
        event.listen(Engine, "commit", self.commit)

    def happens(self, name: str) -> None:
        """Count an event, and die if it is the one."""
        with self.mutex:
            number = self.seen[name]
            self.seen[name] += 1
            self.names.append(name)
            if (name, number) == self.at:
                self.dying = True
                self.halve()
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()

    def halve(self) -> None:
        """Shorten each file by half of what is not synced."""
        for file, safe in self.synced.items():
            if not SAFE.search(file) and os.path.isfile(file) and os.path.getsize(file) > safe:
                os.truncate(file, safe + (os.path.getsize(file) - safe) // 2)

    def named(self, path: Any, folder: int = -1) -> str | None:
        """A path without what is random in it; None: elsewhere."""
        try:
            text = os.fsdecode(path)
            if not os.path.isabs(text):
                text = os.path.join(os.readlink(f"/proc/self/fd/{folder}") if folder >= 0 else os.getcwd(), text)
        except (TypeError, OSError):
            return None
        text = os.path.normpath(text)
        if not text.startswith(self.root + os.sep) or LOCK.search(text):
            return None
        relative = os.path.relpath(text, self.root)
        relative = re.sub(r"(artifacts|files)/.+", r"\1/...", relative)
        relative = re.sub(r"(\.unpacking|\.report)-\w+", r"\1-#", relative)
        return re.sub(r"[0-9a-f]{8,}|\d+", "#", relative)

    def audit(self, kind: str, given: tuple[Any, ...]) -> None:
        """Python's own events."""
        if self.dying:
            return
        if kind == "open":
            path, mode, flags = given
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR)) if isinstance(flags, int) else False
            writes |= isinstance(mode, str) and any(c in mode for c in "wax+")
            name = self.named(path) if writes else None
            if name:
                self.happens(f"open {name}")
                file = os.path.abspath(os.fsdecode(path))
                append = isinstance(mode, str) and "a" in mode
                self.synced[file] = os.path.getsize(file) if append and os.path.exists(file) else 0
        elif kind == "os.rename":
            name = self.named(given[1], given[3])
            if name:
                self.happens(f"rename to {name}")
                source, target = (os.path.abspath(os.fsdecode(path)) for path in given[:2])
                for file in list(self.synced):
                    if file == source or file.startswith(source + os.sep):
                        self.synced[target + file[len(source) :]] = self.synced.pop(file)
        elif kind in ("os.remove", "os.rmdir", "os.mkdir", "os.truncate"):
            folder = given[-1] if kind != "os.truncate" else -1
            path = f"/proc/self/fd/{given[0]}" if isinstance(given[0], int) else given[0]
            name = self.named(os.path.realpath(path) if isinstance(given[0], int) else path, folder)
            if name:
                self.happens(f"{kind.removeprefix('os.')} {name}")

    def patch_sync(self, name: str) -> None:
        """Count a synced file before it is synced; then its bytes are safe."""
        real = getattr(os, name)

        def sync(handle: Any) -> None:
            number = handle if isinstance(handle, int) else handle.fileno()
            file = os.readlink(f"/proc/self/fd/{number}")
            if named := self.named(file):
                self.happens(f"sync {named}")
            real(handle)
            if file in self.synced:
                self.synced[file] = os.path.getsize(file)

        setattr(os, name, sync)

    def statement(self, connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        """A statement that changes a database."""
        if (found := CHANGING.match(statement)) and not self.dying:
            name = " ".join(found[1].lower().split()) + f" {found[2]}"
            name = f"{self.database(connection)}: {re.sub('_alembic_tmp.*', '...', name)}"
            self.last.statement = name
            if self.statements:
                self.happens(name)

    def commit(self, connection: Any) -> None:
        """A commit of changes."""
        last = getattr(self.last, "statement", None)
        if last and not self.dying:
            self.last.statement = None
            self.happens(f"commit after {last}")

    def database(self, connection: Any) -> str:
        """The database's file, by name."""
        return re.sub(r"[0-9a-f]{8,}|\d+", "#", Path(connection.engine.url.database or "?").name)


def fork(work: Callable[[], None], log: Path) -> int:
    """Run `work` in a child. Returns 0, its exit code, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(CHILD_SECONDS)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Nursery:
    """One job, killed at many events.

    Args:
        job: see kill_jobs.Job. folder: for its copies. most: kill points.
    """

    def __init__(self, job: Any, folder: Path, most: int) -> None:
        self.job, self.folder, self.most = job, folder, most
        self.log = folder / "log.txt"
        folder.mkdir(parents=True, exist_ok=True)

    def do(self, work: Callable[[], None]) -> None:
        """Run what must not fail in a child."""
        code = fork(work, self.log)
        if code:
            raise RuntimeError(f"a child ended with {code}: {self.log.read_text()[-3000:]}")

    def whole(self) -> list[str]:
        """Make the folder to begin with and the expected outcome. Returns the names of all events."""
        prepared, place = self.folder / "prepared", self.folder / "whole"
        prepared.mkdir()
        for name in self.job.needs:
            if not template(name).exists():
                self.do(lambda name=name: make_template(name))  # type: ignore[misc]
        self.job.warm()
        self.do(lambda: self.job.prepare(prepared))
        shutil.copytree(prepared, place)

        def work() -> None:
            before = set(sys.modules)
            watch = Watch(place, None, self.job.statements)
            self.job.work(place)
            found = {"names": watch.names, "modules": sorted(set(sys.modules) - before)}
            (self.folder / "names.json").write_text(json.dumps(found))

        self.do(work)
        self.do(lambda: self.keep(place, "whole"))
        found = json.loads((self.folder / "names.json").read_text())
        for module in found["modules"]:  # imported here, once, instead of in each child
            try:
                __import__(module)
            except Exception:  # part of something that is only imported by another module
                continue
        return list(found["names"])

    def keep(self, place: Path, name: str) -> None:
        """Write a folder's outcome to a file."""
        (self.folder / f"{name}.json").write_text(json.dumps(self.job.outcome(place), sort_keys=True))

    def points(self, names: list[str]) -> list[tuple[str, int]]:
        """The first event of each name, then the last of each, and so on; where names are too many, some of all."""
        counts = Counter(names)
        found = [(name, 0) for name in counts]
        for rank in range(1, max(counts.values(), default=0)):
            found += [(name, count - rank) for name, count in counts.items() if count > rank]
        if len(found) <= self.most:
            return found
        return (
            [found[i * len(found) // self.most] for i in range(self.most)]
            if len(counts) > self.most
            else found[: self.most]
        )

    def run(self) -> dict[str, Any]:
        """Kill at each chosen event, do the job again, compare."""
        names = self.whole()
        gc.collect()
        gc.freeze()  # else each child would copy the pages of all objects when it collects
        expected = json.loads((self.folder / "whole.json").read_text())
        points = self.points(names)
        wrong, killed = [], 0
        for number, at in enumerate(points):
            place = self.folder / f"cut-{number}"
            shutil.copytree(self.folder / "prepared", place)
            code = fork(
                lambda place=place, at=at: (Watch(place, at, self.job.statements), self.job.work(place)), self.log
            )  # type: ignore[misc]
            killed += code == -signal.SIGKILL
            if code not in (0, -signal.SIGKILL):
                wrong.append([*at, f"the child to be killed ended with {code}: {self.tail()}"])
                continue

            def again(place: Path = place) -> None:
                self.job.look(place)
                self.job.work(place)
                self.keep(place, "again")

            code = fork(again, self.log)
            if code:
                wrong.append([*at, f"the job can't be done again: {self.tail()}"])
                continue
            found = json.loads((self.folder / "again.json").read_text())
            differ = [key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)]
            if differ:
                wrong.append([*at, {key: [expected.get(key), found.get(key)] for key in differ}])
            shutil.rmtree(place, ignore_errors=True)
        return {
            "names": sorted(set(names)),
            "events": len(names),
            "points": len(points),
            "killed": killed,
            "wrong": wrong,
        }

    def tail(self) -> str:
        """The last line of the children's output."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:500] if lines else ""


def serve() -> None:
    """Answer lines of standard input."""
    import torch

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        assert threading.active_count() == 1, threading.enumerate()  # a thread does not live on in a fork
        try:
            answer = Nursery(JOBS[asked["job"]], Path(asked["folder"]), asked["most"]).run()
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)  # nothing is left to be done; taking down what is imported takes seconds


if __name__ == "__main__":
    serve()
