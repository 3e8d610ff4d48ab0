"""Async functions for code that is not async."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

from lightning_core.errors import UsageError

_P = ParamSpec("_P")
_T = TypeVar("_T")


def blocking(
    function: Callable[_P, Coroutine[Any, Any, _T]], *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    """Call a public async function and wait for what it returns.

    All calls of a thread run in one event loop, since what an agent holds between them, such as the connections of a client,
    belongs to it. It is closed with the thread or the process, and where Ctrl+C breaks a call off.

    Raises:
        UsageError: an event loop runs already in this thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass  # Not run from here: what it raises would tell of this error too.
    else:
        name = function.__name__
        raise UsageError(
            f"{name}_sync: an event loop runs in this thread already; use `await lightning_core.{name}(…)`"
        )
    return _kept_loop().run(function(*args, **kwargs))


class _KeptLoop:
    """An event loop that outlives what runs in it."""

    def __init__(self) -> None:
        self.process = os.getpid()
        loop = asyncio.new_event_loop()
        # Made elsewhere, so that `asyncio.get_event_loop` of the user's own code does not find it.
        self._runner = asyncio.Runner(loop_factory=lambda: loop)
        weakref.finalize(self, _close, loop, self.process)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` to its end, as `asyncio.run` does."""
        try:
            return self._runner.run(work, context=contextvars.copy_context())
        except Exception:
            raise
        except BaseException:  # Ctrl+C or an exit, which may have left `work` where it was
            _threads.kept = None
            self._runner.close()
            raise


class _Threads(threading.local):
    kept: _KeptLoop | None = None


_threads: Final = _Threads()
_of_parents: Final[list[_KeptLoop]] = []
"""Loops of the process that this one was forked from, which are not to be closed here."""


def _kept_loop() -> _KeptLoop:
    """The loop of this thread."""
    kept = _threads.kept
    if kept is not None and kept.process != os.getpid():
        _of_parents.append(kept)
        kept = None
    if kept is None:
        kept = _threads.kept = _KeptLoop()
    return kept


def _close(loop: asyncio.AbstractEventLoop, process: int) -> None:
    # Not by `Runner.close`, which starts a thread; a process that ends can start none.
    if process == os.getpid() and not loop.is_closed() and not loop.is_running():
        loop.run_until_complete(_leave())
        loop.close()


async def _leave() -> None:
    """End what was left running in this loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
    await asyncio.get_running_loop().shutdown_asyncgens()
