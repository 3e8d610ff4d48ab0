"""Where model calls and traces go within attempts, and in which event loop. Imports nothing of the SDK."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from functools import wraps
from typing import Any

from lightning_core.instrument import context

_log = logging.getLogger("lightning_openai_agents")
_lock = threading.Lock()
_told = False
_clients: dict[asyncio.AbstractEventLoop, Any] = {}
_sync: tuple[threading.Thread, asyncio.AbstractEventLoop] | None = None


def export(original: Any) -> Any:
    """Wrap `BatchTraceProcessor.on_trace_start` or `on_span_end`: what happens within an attempt is not posted."""

    @wraps(original)
    def take(self: Any, item: Any) -> Any:
        exporter = sys.modules["agents.tracing.processors"].BackendSpanExporter
        if isinstance(self._exporter, exporter) and context.current() is not None:
            return None
        return original(self, item)

    return take


def fetch(original: Any) -> Any:
    """Wrap `OpenAIResponsesWSModel._fetch_response`: within an attempt the request goes over HTTP."""

    @wraps(original)
    async def _fetch_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        if context.current() is None:
            return await original(self, *args, **kwargs)
        _tell()
        model = sys.modules["agents.models.openai_responses"].OpenAIResponsesModel
        return await model._fetch_response(self, *args, **kwargs)

    return _fetch_response


def _tell() -> None:
    global _told
    if not _told:
        _told = True
        _log.warning(
            "the model's WebSocket transport is replaced by HTTP within rollouts, so that its calls are recorded"
        )


def http_client(original: Any) -> Any:
    """Wrap `shared_http_client`: within attempts each event loop has a client of its own, since the connections of one
    that another loop has used are dead."""

    @wraps(original)
    def shared_http_client() -> Any:
        shared = original()
        if context.current() is None:
            return shared
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return shared
        with _lock:
            for closed in [known for known in _clients if known.is_closed()]:
                del _clients[closed]
            if loop not in _clients:
                _clients[loop] = type(shared)()
            return _clients[loop]

    return shared_http_client


def run_sync(original: Any) -> Any:
    """Wrap `AgentRunner._run_sync_impl`: within an attempt, threads that have no event loop share one.

    A worker runs each synchronous agent in a thread of its own, where the SDK would make a loop for each; a client that
    these share would then be used in all of them.
    """

    @wraps(original)
    def _run_sync_impl(self: Any, starting_agent: Any, input: Any, **kwargs: Any) -> Any:
        if context.current() is None or _has_loop():
            return original(self, starting_agent, input, **kwargs)
        running = asyncio.run_coroutine_threadsafe(
            self.run(starting_agent, input, **kwargs), _sync_loop()
        )
        try:
            return running.result()
        finally:
            running.cancel()

    return _run_sync_impl


def _has_loop() -> bool:
    """Whether this thread has an event loop, or is the main one, whose loop is the program's own affair."""
    if threading.current_thread() is threading.main_thread():
        return True
    try:
        asyncio.get_event_loop()
    except RuntimeError:
        return False
    return True


def _sync_loop() -> asyncio.AbstractEventLoop:
    """The loop of all synchronous runs. It is never closed: clients outlive a run of ours."""
    global _sync
    with _lock:
        if _sync is None or not _sync[0].is_alive():  # As it is after a fork.
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="agents-sync", daemon=True)
            thread.start()
            _sync = thread, loop
        return _sync[1]
