"""Where spans go: to a list, or to the server in the background. Standard library only."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading

TYPE_CHECKING = False  # `typing` costs the start of every child process; a checker knows the name.
if TYPE_CHECKING:
    from typing import Any

    from .spans import OpenSpan

LIMIT = 10_000
"""Spans that a sink keeps."""
_BATCH = 200
_BATCH_BYTES = 4 * 2**20
_INTERVAL = 0.25
_TIMEOUT = 5.0


class ListSink:
    """Collects spans for a worker. Safe to use from many threads.

    A span that was given open and then ended is kept once, ended. Bounded: beyond `limit` spans between two calls of
    `take` the newest are dropped, and counted.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.dropped = 0
        """How many spans were lost since there were too many: those whose end was dropped."""
        self._limit = limit
        self._spans: dict[str, OpenSpan | dict[str, Any]] = {}
        self._lock = threading.Lock()

    def emit(self, span: OpenSpan) -> None:
        """Take one span; drops it where there are too many."""
        # Made JSON only when it is read, but where its attributes may change after its end.
        kept = span.as_json() if span.ended and span.attributes else span
        with self._lock:
            if span.id in self._spans or len(self._spans) < self._limit:
                self._spans[span.id] = kept
            elif span.ended:
                self.dropped += 1

    def spans(self) -> list[dict[str, Any]]:
        """The spans since the last `take`, which stay."""
        with self._lock:
            spans = list(self._spans.values())
        return [_as_json(span) for span in spans]

    def take(self) -> list[dict[str, Any]]:
        """The spans since the last `take`."""
        with self._lock:
            spans, self._spans = self._spans, {}
        return [_as_json(span) for span in spans.values()]


def _as_json(span: OpenSpan | dict[str, Any]) -> dict[str, Any]:
    return span if isinstance(span, dict) else span.as_json()


class HttpSink:
    """Posts spans to `POST GATEWAY/api/v1/attempts/ATTEMPT/spans` in batches from a daemon thread.

    Bounded: beyond 10,000 waiting spans the newest are dropped. It never raises into the program and never keeps
    it from ending for longer than a few seconds; what was lost is said once on standard error.
    """

    def __init__(self, gateway: str, session: str, attempt: str) -> None:
        self._gateway = gateway
        self._attempt = attempt
        self._session = session
        self._reset()
        atexit.register(self.close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._waiting: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._posting = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._said = False
        self._finalized = False
        self._closed = False

    def emit(self, span: OpenSpan) -> None:
        """Take one span, made bounded JSON; drops it where too many wait."""
        made = span.as_json()
        with self._lock:
            full = len(self._waiting) >= LIMIT and span.id not in self._waiting
            if not full:
                self._waiting[span.id] = made
                self._start()
        if full:
            self._say(f"more than {LIMIT} spans wait to be posted; the newest are dropped")
        elif len(self._waiting) >= _BATCH:
            self._wake.set()

    def flush(self) -> None:
        """Post what waits, now."""
        with self._posting:
            while True:
                batch = self._next_batch()
                if not batch:
                    return
                if not self._post(batch):
                    with (
                        self._lock
                    ):  # Later spans would meet the same fault; the program must be able to end.
                        self._waiting.clear()
                    return

    def _next_batch(self) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        with self._lock:
            for key in list(self._waiting)[:_BATCH]:
                if size > _BATCH_BYTES:
                    break
                batch.append(json.dumps(self._waiting.pop(key)).encode())
                size += len(batch[-1])
        return batch

    def close(self) -> None:
        """Post what waits. Called when the program ends."""
        self._closed = True
        self._wake.set()
        self.flush()

    def _start(self) -> None:
        if self._thread is not None or self._closed:
            return
        self._thread = threading.Thread(target=self._run, name="lightning-core-spans", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # The interpreter is ending; `close` posts what waits.
            self._thread = None
        if "multiprocessing.util" in sys.modules and not self._finalized:
            # Its children end by os._exit, which runs no atexit function.
            sys.modules["multiprocessing.util"].Finalize(None, self.close, exitpriority=1)
            self._finalized = True

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(_INTERVAL)
            self._wake.clear()
            self.flush()
            with self._lock:
                # It ends when there is nothing to do: Python warns of a fork beside another thread.
                if not self._waiting:
                    self._thread = None
                    return

    def _post(self, spans: list[bytes]) -> bool:
        import urllib.parse  # noqa: PLC0415 - slow to import, and most child processes have no spans
        import urllib.request  # noqa: PLC0415 - as above

        attempt = urllib.parse.quote(self._attempt, safe="")
        request = urllib.request.Request(
            f"{self._gateway}/api/v1/attempts/{attempt}/spans",
            data=b'{"spans":[' + b",".join(spans) + b"]}",
            headers={
                "content-type": "application/json",
                "authorization": f"Bearer {self._session}",
            },
            method="POST",
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=_TIMEOUT) as reply:
                reply.read()
        except Exception as error:  # Whatever goes wrong here must not reach the user's program.
            self._say(f"{len(spans)} spans could not be posted: {error}")
            return False
        return True

    def _say(self, what: str) -> None:
        if not self._said:
            self._said = True
            sys.stderr.write(f"lightning-core: {what}. The trace of this attempt lacks spans\n")
