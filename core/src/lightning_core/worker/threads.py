"""Threads for synchronous agents: daemons, so that one that hangs cannot keep the process from ending.

A thread cannot be killed. What can be done is to know of it: each attempt has a `Tracker`, and the work that its agent
starts in threads is noted there, so that the worker can tell what still runs after the attempt has ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Tracker:
    """The work in threads of one attempt."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[Future[Any]] = set()

    def add(self, future: Future[Any]) -> None:
        """Note work that has been submitted."""
        with self._lock:
            self._open.add(future)
        future.add_done_callback(self._drop)

    def _drop(self, future: Future[Any]) -> None:
        with self._lock:
            self._open.discard(future)

    @property
    def running(self) -> int:
        """How much of it runs still."""
        with self._lock:
            return sum(future.running() for future in self._open)


TRACKER: Final[contextvars.ContextVar[Tracker | None]] = contextvars.ContextVar(
    "lightning_core_threads", default=None
)
"""The tracker of the attempt that runs in this context."""


async def run_in_thread(function: Callable[[], _T]) -> _T:
    """Run `function` in a daemon thread of its own, within a copy of this context, and return its result.

    Cancelling the caller returns at once; the thread goes on until `function` returns.
    """
    future: Future[_T] = Future()
    _note(future)
    context = contextvars.copy_context()
    threading.Thread(
        target=_work, args=(future, context.run, (function,), {}), name="agent", daemon=True
    ).start()
    return await asyncio.wrap_future(future)


class DaemonPool(ThreadPoolExecutor):
    """A pool of daemon threads, fit to be a loop's default executor.

    The standard pool's threads are joined when the interpreter ends, so that one hanging call would keep the worker
    alive for ever. Here `shutdown` does not wait for work that runs.
    """

    def __init__(self, max_workers: int) -> None:
        super().__init__(max_workers=max_workers)
        self._limit = max_workers
        self._jobs: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._threads_started = 0
        self._idle = 0
        self._closed = False

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """As `ThreadPoolExecutor.submit`, within a copy of the caller's context."""
        future: Future[_T] = Future()
        with self._guard:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            _note(future)
            self._jobs.put((future, contextvars.copy_context().run, (fn, *args), kwargs))
            if self._idle > 0:
                self._idle -= 1
            elif self._threads_started < self._limit:
                self._threads_started += 1
                threading.Thread(target=self._serve, name="agent-pool", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work; idle threads end, and those that work end after it. Never waits."""
        with self._guard:
            self._closed = True
            for _ in range(self._threads_started):
                self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            _work(*job)
            del job  # The result must not live on in a thread that waits.
            with self._guard:
                self._idle += 1


def _note(future: Future[Any]) -> None:
    tracker = TRACKER.get()
    if tracker is not None:
        tracker.add(future)


def _work(
    future: Future[Any],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function(*args, **kwargs)
    except StopIteration as error:  # A coroutine that awaits cannot be given a StopIteration.
        wrapped = RuntimeError("StopIteration was raised")
        wrapped.__cause__ = error
        future.set_exception(wrapped)
    except BaseException as error:  # SystemExit of an agent is its failure, not the thread's.
        future.set_exception(error)
    else:
        future.set_result(result)
