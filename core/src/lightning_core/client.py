"""Client: the server's API from Python. One per event loop."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import aiohttp
import msgspec

from lightning_core.errors import FencedError, WireError
from lightning_core.records import Json
from lightning_core.reward import Reward
from lightning_core.rollout import Rollout, RolloutStatus
from lightning_core.task import Task
from lightning_core.trace import Span, Trace
from lightning_core.wire import Event, Finish, Heartbeat, Lease, ServedPolicy, Status


class Client:
    """Speaks `docs/wire.md`. Every call has a time-out.

    Each method raises `WireError` where the server refuses (its `status` is the HTTP status) or cannot be reached
    (`status` is None), and `FencedError` where the attempt is no longer this worker's.
    """

    def __init__(self, url: str, token: str, *, timeout: float = 30.0) -> None:
        """Args:
        url: the server's address, `http://HOST:PORT`.
        token: an admin or worker token.
        timeout: seconds that one request may take beyond what it asks the server to wait.
        """
        self.url = url.rstrip("/")
        self._token = token
        self._timeout = timeout
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            headers={"authorization": f"Bearer {self._token}"},
            connector=aiohttp.TCPConnector(limit=0),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    # Workers -------------------------------------------------------------------------------------------------

    async def lease(
        self, worker: str, *, capacity: int, wait: float, upstream: str | None = None
    ) -> list[Lease]:
        """Up to `capacity` attempts, waiting up to `wait` seconds for the first.

        `upstream` is where observe calls go that name no target: the worker's own `OPENAI_BASE_URL`.
        """
        body = {"worker": worker, "capacity": capacity, "wait": wait, "upstream": upstream}
        answer = await self._post("/leases", body, wait=wait)
        return msgspec.convert(answer["leases"], list[Lease])

    async def heartbeat(self, attempt_id: str, fence: int) -> Heartbeat:
        """Keep the lease."""
        answer = await self._post(f"/attempts/{_part(attempt_id)}/heartbeat", {"fence": fence})
        return msgspec.convert(answer, Heartbeat)

    async def finish(self, attempt_id: str, finish: Finish) -> RolloutStatus:
        """Report the end of an attempt; the rollout's new status. Safe to repeat."""
        answer = await self._post(f"/attempts/{_part(attempt_id)}/finish", finish)
        return RolloutStatus(answer["status"])

    async def spans(self, attempt_id: str, spans: Sequence[Mapping[str, Any] | Span]) -> None:
        """Add spans to an attempt that has not ended."""
        await self._post(f"/attempts/{_part(attempt_id)}/spans", {"spans": spans})

    # Runs ----------------------------------------------------------------------------------------------------

    async def put_tasks(self, run: str, tasks: Sequence[Task]) -> None:
        """Store tasks, `expected` included."""
        for start in range(0, len(tasks), 500):
            await self._post("/tasks", {"run": run, "tasks": tasks[start : start + 500]})

    async def enqueue(self, rollouts: Sequence[Rollout]) -> int:
        """Enqueue rollouts; how many were new. Safe to repeat."""
        created = 0
        for start in range(0, len(rollouts), 500):
            answer = await self._post("/rollouts", {"rollouts": rollouts[start : start + 500]})
            created += answer["created"]
        return created

    async def rollouts(
        self,
        *,
        run: str | None = None,
        group: str | None = None,
        status: RolloutStatus | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> list[Rollout]:
        """Rollouts in the order in which they were enqueued, after the one whose id is `after`."""
        query = {"run": run, "group": group, "status": status, "after": after, "limit": str(limit)}
        answer = await self._get("/rollouts", {k: v for k, v in query.items() if v is not None})
        return msgspec.convert(answer["rollouts"], list[Rollout])

    async def trace(self, rollout_id: str, attempt: int | None = None) -> Trace:
        """Everything of one attempt, by default the last."""
        query = {} if attempt is None else {"attempt": str(attempt)}
        return Trace.from_value(await self._get(f"/rollouts/{_part(rollout_id)}/trace", query))

    async def group(self, group: str) -> list[Trace]:
        """The last attempt of each rollout of a group."""
        answer = await self._get(f"/groups/{_part(group)}/traces", {})
        return [Trace.from_value(value) for value in answer["traces"]]

    async def cancel(self, rollout_id: str, reason: str) -> RolloutStatus:
        """Cancel a rollout that has not ended."""
        answer = await self._post(f"/rollouts/{_part(rollout_id)}/cancel", {"reason": reason})
        return RolloutStatus(answer["status"])

    async def reward(self, rollout_id: str, rewards: Sequence[Reward]) -> None:
        """Give rewards to a rollout that has ended."""
        await self._post(f"/rollouts/{_part(rollout_id)}/rewards", {"rewards": rewards})

    async def events(self, after: int, *, wait: float = 20.0) -> list[Event]:
        """Events with a number above `after`, waiting up to `wait` seconds for one."""
        answer = await self._get("/events", {"after": str(after), "wait": str(wait)}, wait=wait)
        return msgspec.convert(answer["events"], list[Event])

    async def open_session(
        self, rollout: Rollout, task: Task, *, upstream: str | None, timeout: float
    ) -> Lease:
        """Enqueue a rollout and lease it to the caller at once."""
        body = {"rollout": rollout, "task": task, "upstream": upstream, "timeout": timeout}
        return msgspec.convert(await self._post("/sessions", body), Lease)

    async def set_policy(self, policy: ServedPolicy) -> None:
        """Serve a policy to train and val calls from now on."""
        await self._request("PUT", "/policy", policy)

    async def pause(self, timeout: float) -> bool:
        """Hold new train and val calls; whether those under way ended within `timeout` seconds."""
        answer = await self._post("/policy/pause", {"timeout": timeout}, wait=timeout)
        return bool(answer["drained"])

    async def resume(self) -> None:
        """Let held calls go."""
        await self._post("/policy/resume", {})

    async def status(self) -> Status:
        """How the server is doing."""
        return msgspec.convert(await self._get("/status", {}), Status)

    # The wire ------------------------------------------------------------------------------------------------

    async def _post(self, path: str, body: object, *, wait: float = 0.0) -> dict[str, Any]:
        return await self._request("POST", path, body, wait=wait)

    async def _get(
        self, path: str, query: Mapping[str, str], *, wait: float = 0.0
    ) -> dict[str, Any]:
        return await self._request("GET", path, None, query=query, wait=wait)

    async def _request(
        self,
        method: str,
        path: str,
        body: object,
        *,
        query: Mapping[str, str] | None = None,
        wait: float = 0.0,
    ) -> dict[str, Any]:
        if self._http is None:
            raise WireError("client: not open; use `async with Client(…) as client`")
        try:
            async with self._http.request(
                method,
                f"{self.url}/api/v1{path}",
                params=query,
                data=None if body is None else io.BytesIO(msgspec.json.encode(body)),
                headers={} if body is None else {"content-type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=self._timeout + wait),
            ) as response:
                data = await response.read()
        except TimeoutError as error:
            raise WireError(
                f"server {self.url}: no answer to {method} {path} within {self._timeout + wait:.0f} s"
            ) from error
        except aiohttp.ClientError as error:
            raise WireError(
                f"server {self.url}: cannot be reached: {error}; is `lightning-core serve` running there?"
            ) from error
        value = _decoded(data)
        if response.status < 400 and isinstance(value, dict):
            return value
        detail = value.get("error") if isinstance(value, dict) else None
        message = detail.get("message") if isinstance(detail, dict) else None
        text = message or f"{method} {path} answered {response.status}: {data[:200]!r}"
        kind = detail.get("type") if isinstance(detail, dict) else None
        raise (FencedError if kind == "fenced" else WireError)(text, response.status)


def _part(text: str) -> str:
    return quote(text, safe="")


def _decoded(data: bytes) -> Json:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return None
