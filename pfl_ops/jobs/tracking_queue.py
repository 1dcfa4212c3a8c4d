"""Tracking of finished jobs, one at a time, in a thread of its own: no job waits for it."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class TrackingQueue(Generic[T]):
    """Tasks by number, done in the order in which they came.

    `Runner.run` closes its queue before it returns: a thread that frees Ray's objects while Ray shuts down ends the
    process.

    >>> with TrackingQueue() as queue:
    ...     queue.submit(0, lambda: "tracked")
    ...     queue.fail(1, ValueError("its process died"))
    >>> queue.result(0), 1 in queue, 2 in queue
    ('tracked', True, False)
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pfl-ops tracking queue")
        self._results: dict[int, Future[T]] = {}

    def submit(self, number: int, task: Callable[[], T]) -> None:
        """Do a task when the ones before it are done."""
        self._results[number] = self._thread.submit(task)

    def fail(self, number: int, error: Exception) -> None:
        """Note that a job left nothing to track."""
        self._results[number] = Future()
        self._results[number].set_exception(error)

    def __contains__(self, number: int) -> bool:
        return number in self._results

    def result(self, number: int) -> T:
        """Return what a task returned, after waiting for it.

        Raises:
            Exception: what the task raised, or the error given to `fail`.
            CancelledError: the queue was closed before it began.
        """
        return self._results[number].result()

    def close(self, *, cancel: bool = False) -> None:
        """Wait for all tasks; `cancel`: drop those that have not begun. May be called again."""
        self._thread.shutdown(wait=True, cancel_futures=cancel)

    def __enter__(self) -> "TrackingQueue[T]":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(cancel=kind is not None)
