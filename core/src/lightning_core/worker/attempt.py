"""One attempt from its lease to its report: heart-beats, deadline, cancellation, retries of the report."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import Any, Final

import msgspec

from lightning_core.client import Client
from lightning_core.errors import FencedError, WireError
from lightning_core.rollout import Cause
from lightning_core.wire import Finish, Lease
from lightning_core.worker.execution import Execution, Executor, Job, Leftover
from lightning_core.worker.logs import without_tokens
from lightning_core.worker.outcome import Outcome, bounded, raised
from lightning_core.worker.spans import SpanPoster, refused_for_good

STOP_SECONDS: Final = 5.0
"""Seconds that reports may take once the worker is told to stop."""
REPORT_PATIENCE: Final = 600.0
"""Seconds beyond the lease for which a report is tried again while the server cannot be reached."""
_SPAN_SECONDS: Final = 1.0
_SPAN_TRIES: Final = 3  # After so many a report does not wait for its spans any more.
_BEAT_SECONDS: Final = 2.0
_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0

_log = logging.getLogger("lightning_core.worker")


class AttemptRun:
    """Executes one lease.

    Args:
        client: where to report.
        executor: what runs the agent.
        lease: the lease, just received.
        stop: set when the worker is to stop.
        patience: seconds beyond the lease for which the report is tried again.
    """

    def __init__(
        self,
        client: Client,
        executor: Executor,
        lease: Lease,
        stop: asyncio.Event,
        *,
        patience: float = REPORT_PATIENCE,
    ) -> None:
        # The server's clock may differ from ours: what counts is how long after the lease.
        skew = time.time() - lease.attempt.started_at
        self._job = Job(lease=lease, deadline=lease.attempt.deadline + skew)
        self._id = lease.attempt.id
        self._fence = lease.attempt.fence
        self._client = client
        self._executor = executor
        self._stop = stop
        self._skew = skew
        self._lease_until = lease.attempt.lease_until + skew
        self._patience = patience
        self._spans: SpanPoster | None = None
        self._revoked: asyncio.Future[Cause | None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Execute and report. Raises nothing but cancellation."""
        beat = asyncio.create_task(self._heartbeat(), name=f"heart-beat {self._id}")
        try:
            outcome = await self._execute()
            if outcome is not None:
                await self._report(await self._put_down(outcome))
        finally:
            beat.cancel()
            await asyncio.gather(beat, return_exceptions=True)

    async def _put_down(self, outcome: Outcome) -> Outcome:
        """The outcome with its cause: an agent that failed while the gateway was away failed because of that."""
        if outcome.cause is not Cause.AGENT_ERROR:
            return outcome
        try:
            async with asyncio.timeout(_BEAT_SECONDS):
                await self._client.heartbeat(self._id, self._fence)
        except TimeoutError:
            pass
        except WireError as error:
            if error.status is not None and error.status < 500:
                return outcome
        else:
            return outcome
        text = f"the server could not be reached when the agent failed\n{outcome.error or ''}"
        return msgspec.structs.replace(outcome, cause=Cause.WORKER_ERROR, error=bounded(text))

    async def _execute(self) -> Outcome | None:
        """The outcome, or None where the attempt is no longer ours."""
        _log.debug("%s: begins", self._job.name)
        try:
            execution = await self._executor.start(self._job)
        except Exception as error:  # Whatever keeps an agent from starting is an outcome.
            _log.exception("%s: could not be started", self._job.name)
            return raised(error, Cause.WORKER_ERROR)
        self._spans = SpanPoster(self._client, self._id, execution.take_spans)
        posting = asyncio.create_task(self._post_spans(self._spans), name=f"spans {self._id}")
        try:
            return await self._until_ended(execution)
        finally:
            posting.cancel()
            await asyncio.gather(posting, return_exceptions=True)

    async def _until_ended(self, execution: Execution) -> Outcome | None:
        ended = asyncio.create_task(execution.wait())
        stopped = asyncio.create_task(self._stop.wait())
        try:
            ends: list[asyncio.Future[Any]] = [ended, stopped, self._revoked]
            await asyncio.wait(
                ends,
                timeout=max(0.0, self._job.deadline - time.time()),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if ended.done():
                return ended.result()
            logs = execution.logs()
            leftover = await execution.end(quickly=self._stop.is_set())
            logs = execution.logs() or logs
            if self._revoked.done() and self._revoked.result() is None:
                self._warn(leftover)
                return None
            if self._revoked.done():
                outcome = Outcome(cause=Cause.CANCELLED, error="the run no longer wants it")
            elif stopped.done():
                outcome = Outcome(cause=Cause.CANCELLED, error="the worker was told to stop")
            else:
                outcome = self._timed_out(leftover)
            self._warn(leftover)
            return msgspec.structs.replace(outcome, logs=logs)
        finally:
            ended.cancel()
            stopped.cancel()
            await asyncio.gather(ended, stopped, return_exceptions=True)

    def _timed_out(self, leftover: Leftover | None) -> Outcome:
        if leftover is not None and leftover.innocent:
            return Outcome(cause=Cause.WORKER_ERROR, error=bounded(leftover.note))
        attempt = self._job.lease.attempt
        text = f"the agent did not end within {attempt.deadline - attempt.started_at:g} s and was ended"
        if leftover is not None:
            text += f"\n{leftover.note}"
        return Outcome(cause=Cause.TIMEOUT, error=bounded(text))

    def _warn(self, leftover: Leftover | None) -> None:
        if leftover is not None:
            _log.warning("%s", leftover.note)

    # The server ----------------------------------------------------------------------------------------------

    async def _heartbeat(self) -> None:
        """Keep the lease until the attempt is over, revoked, or this task is cancelled."""
        interval = self._job.lease.heartbeat
        pause = interval
        unreachable = False
        while True:
            await asyncio.sleep(pause)
            try:
                async with asyncio.timeout(max(interval, _BEAT_SECONDS)):
                    beat = await self._client.heartbeat(self._id, self._fence)
            except FencedError as error:
                _log.warning("%s: is no longer ours, its agent is ended: %s", self._job.name, error)
                self._revoke(None)
                return
            except (WireError, TimeoutError) as error:
                if not unreachable:
                    _log.warning("%s: heart-beat failed, trying again: %s", self._job.name, error)
                unreachable = True
                pause = max(interval / 4, _PAUSE)
                continue
            unreachable = False
            pause = interval
            self._lease_until = beat.lease_until + self._skew
            if beat.cancel:
                self._revoke(Cause.CANCELLED)

    def _revoke(self, cause: Cause | None) -> None:
        if not self._revoked.done():
            self._revoked.set_result(cause)

    async def _report(self, outcome: Outcome) -> None:
        """Send the outcome, again and again while the server cannot be reached and may still take it."""
        finish = Finish(
            fence=self._fence,
            cause=outcome.cause,
            output=outcome.output,
            error=_clean(outcome.error),
            logs=_clean(outcome.logs),
        )
        pause = _PAUSE
        stop_by: float | None = None
        tries = 0
        while True:
            tries += 1
            if stop_by is None and self._stop.is_set():
                stop_by = time.time() + STOP_SECONDS
            give_up_at = min(self._lease_until + self._patience, stop_by or float("inf"))
            left = None if stop_by is None else max(0.1, stop_by - time.time())
            try:
                async with asyncio.timeout(left):
                    await self._post_last_spans(may_fail=tries >= _SPAN_TRIES)
                    await self._client.finish(self._id, finish)
            except FencedError as error:
                _log.info("%s: its report was refused and is dropped: %s", self._job.name, error)
                return
            except (WireError, TimeoutError) as error:
                if isinstance(error, WireError) and refused_for_good(error):
                    smaller = _without_output(finish, error)
                    if smaller is None:
                        _log.error("%s: its report was refused: %s", self._job.name, error)
                        return
                    finish = smaller
                    continue
                if time.time() >= give_up_at:
                    _log.error("%s: its report is given up: %s", self._job.name, error)
                    return
                await self._sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, _LONGEST_PAUSE)
                continue
            _log.debug("%s: ended as `%s`", self._job.name, outcome.cause)
            return

    async def _post_last_spans(self, *, may_fail: bool) -> None:
        """Post what waits before the attempt ends; where it fails in the end, the report goes without."""
        if self._spans is None:
            return
        try:
            await self._spans.flush()
        except Exception as error:
            if isinstance(error, WireError) and not may_fail:
                raise
            _log.warning(
                "%s: its report goes without %d spans: %s",
                self._job.name,
                self._spans.waiting,
                error,
            )

    async def _sleep(self, seconds: float) -> None:
        """Sleep, less where the worker is told to stop meanwhile."""
        if self._stop.is_set():
            await asyncio.sleep(min(seconds, 0.5))
            return
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return

    async def _post_spans(self, spans: SpanPoster) -> None:
        while True:
            await asyncio.sleep(_SPAN_SECONDS)
            # What cannot be posted now is posted later, before the report at the latest.
            try:
                await spans.flush()
            except WireError as error:
                _log.debug("%s: spans are posted later: %s", self._job.name, error)
            except Exception:
                _log.exception("%s: spans could not be posted", self._job.name)


def _clean(text: str | None) -> str | None:
    return None if text is None else bounded(without_tokens(text))


def _without_output(finish: Finish, error: WireError) -> Finish | None:
    """A report that the server may take where it refused this one for what is in it."""
    if error.status not in (400, 413) or finish.output is None:
        return None
    return msgspec.structs.replace(
        finish,
        cause=Cause.AGENT_ERROR,
        output=None,
        error=bounded(f"the server refused the output: {error}"),
    )
