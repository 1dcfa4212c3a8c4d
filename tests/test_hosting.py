"""An object in a process of its own: answers, errors, deaths, and work that goes on between two calls."""

import os
import signal
import sys
import time

import pytest

from pfl_ops.errors import PflOpsError
from pfl_ops.system.hosting import AnswerWithWork, HostedProcess, OutOfMemory, ProcessDeath, answers

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_children")]


class Thing:
    """The object that is made in the process."""

    def __init__(self, start: int) -> None:
        if start < 0:
            raise PflOpsError("below zero")
        self.count = start

    def add(self, n: int) -> int:
        self.count += n
        return self.count

    def go_on(self) -> AnswerWithWork:
        return AnswerWithWork(self.count, lambda: self.add(1))

    def fail(self) -> None:
        raise ZeroDivisionError("a bug\nof it")

    def leave(self) -> None:
        sys.exit(0)

    def fill(self) -> None:
        raise MemoryError("no room")

    def be_killed(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def number(self) -> int:
        return os.getpid()

    def answer_much(self) -> bytes:
        return bytes(8_000_000)

    def end(self, code: int) -> None:
        print("said before the end", flush=True)
        os._exit(code)


@pytest.fixture
def host(monkeypatch):
    """Things in processes, which are ended at the end."""
    made = []
    monkeypatch.syspath_prepend(os.path.dirname(__file__))  # where the process finds this module

    def make(start=0):
        made.append(HostedProcess("test_hosting.Thing", start))
        return made[-1]

    yield make
    for one in made:
        one.kill()


def test_methods_answer_in_turn_and_errors_leave_the_object_as_it_is(host):
    one = host(5)
    assert one.call("add", 2) == 7
    with pytest.raises(PflOpsError, match=r"^ZeroDivisionError: a bug of it$"):
        one.call("fail")
    with pytest.raises(PflOpsError, match=r"^SystemExit: 0$"):
        one.call("leave")
    with pytest.raises(OutOfMemory):
        one.call("fill")
    assert one.call("add", 1) == 8


def test_an_object_that_can_not_be_made_says_so_with_the_first_call(host):
    with pytest.raises(PflOpsError, match=r"^below zero$"):
        host(-1).call("add", 1)


def test_work_goes_on_between_two_calls(host):
    one = host()
    assert one.call("go_on") == 0
    deadline = time.monotonic() + 30
    while (now := one.call("add", 0)) == 0:
        assert time.monotonic() < deadline
        one.call("go_on")
        time.sleep(0.01)
    assert now > 0


def test_several_answer_in_their_order(host):
    several = [host(n) for n in range(3)]
    for one in several:
        one.begin("add", 10)
    assert answers(several, 60) == [10, 11, 12]
    with pytest.raises(PflOpsError, match="gave no answer for 0 s"):
        answers(several, 0.0)


@pytest.mark.parametrize(
    ("accident", "error", "line"),
    [
        (("end", 3), PflOpsError, r"^a child process died: said before the end$"),
        (("be_killed",), OutOfMemory, r"^a process was killed, as the system does when memory runs out$"),
    ],
)
def test_a_death_is_told_by_the_answer_that_does_not_come(accident, error, line, host):
    one = host()
    assert one.call("add", 1) == 1
    with pytest.raises(error, match=line):
        one.call(*accident)


def test_a_death_in_the_middle_of_an_answer_is_told(host):
    """The answer is larger than the pipe's buffer, and is not read before the process is killed."""
    one = host()
    answering = one.call("number")  # with a fork another than `one.pid`
    one.begin("answer_much")
    assert one.pipe.poll(60)
    os.kill(answering, signal.SIGKILL)
    while one.alive:
        time.sleep(0.01)
    with pytest.raises(ProcessDeath):
        one.answer()
