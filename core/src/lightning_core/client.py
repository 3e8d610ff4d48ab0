"""Client: the server's API from Python. One per event loop."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from lightning_core.errors import FencedError, FormatError, WireError
from lightning_core.records import Json
from lightning_core.redaction import without_userinfo
from lightning_core.reward import Reward
from lightning_core.rollout import Rollout, RolloutStatus
from lightning_core.strategy import Strategy
from lightning_core.task import Task
from lightning_core.trace import Span, Trace
from lightning_core.wire import Event, Finish, Heartbeat, Lease, ServedPolicy, Status

_T = TypeVar("_T")


class Drain(NamedTuple):
    """What a pause came to."""

    drained: bool
    """Whether every train and val call had ended in time."""
    in_flight: int
    """How many are under way still."""


class WorkerEnd(NamedTuple):
    """What became of the attempts of a worker that has ended."""

    ended: int
    """How many it held."""
    lost: int
    """How many of them ended as `lost`."""


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
        self.shown = without_userinfo(self.url)
        """The address as messages show it."""
        self._token = token
        self._timeout = timeout
        self._http: aiohttp.ClientSession | None = None

    @property
    def token(self) -> str:
        """The token that it was made with."""
        return self._token

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
        self,
        worker: str,
        *,
        capacity: int,
        wait: float,
        upstream: str | None = None,
        upstreams: Mapping[str, str] | None = None,
        run: str | None = None,
    ) -> list[Lease]:
        """Up to `capacity` attempts, of one run where named, waiting up to `wait` seconds for the first.

        `upstream` is where observe calls go that name no target, `upstreams` where those of a format go instead; see
        `Upstreams.own`.
        """
        body: dict[str, Any] = {
            "worker": worker,
            "capacity": capacity,
            "wait": wait,
            "upstream": upstream,
            "upstreams": upstreams,
        }
        body |= {} if run is None else {"run": run}
        answer = await self._post("/leases", body, wait=wait)
        return _as(list[Lease], answer, "leases")

    async def heartbeat(self, attempt_id: str, fence: int) -> Heartbeat:
        """Keep the lease."""
        answer = await self._post(f"/attempts/{_part(attempt_id)}/heartbeat", {"fence": fence})
        return _as(Heartbeat, answer)

    async def finish(self, attempt_id: str, finish: Finish) -> RolloutStatus:
        """Report the end of an attempt; the rollout's new status. Safe to repeat."""
        answer = await self._post(f"/attempts/{_part(attempt_id)}/finish", finish)
        return _as(RolloutStatus, answer, "status")

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
            created += _as(int, answer, "created")
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
        return _as(list[Rollout], answer, "rollouts")

    async def trace(self, rollout_id: str, attempt: int | None = None) -> Trace:
        """Everything of one attempt, by default the last; `FormatError` where it cannot be read."""
        query = {} if attempt is None else {"attempt": str(attempt)}
        value = await self._get(f"/rollouts/{_part(rollout_id)}/trace", query)
        try:
            return Trace.from_value(value)
        except RecursionError as error:
            raise FormatError(f"trace of `{rollout_id}`: nested too deeply to be read") from error

    async def group(self, group: str) -> list[Trace]:
        """The last attempt of each rollout of a group."""
        answer = await self._get(f"/groups/{_part(group)}/traces", {})
        return [Trace.from_value(value) for value in _as(list[Any], answer, "traces")]

    async def cancel(self, rollout_id: str, reason: str) -> RolloutStatus:
        """Cancel a rollout that has not ended."""
        answer = await self._post(f"/rollouts/{_part(rollout_id)}/cancel", {"reason": reason})
        return _as(RolloutStatus, answer, "status")

    async def reward(self, rollout_id: str, rewards: Sequence[Reward]) -> None:
        """Give rewards to a rollout that has ended."""
        await self._post(f"/rollouts/{_part(rollout_id)}/rewards", {"rewards": rewards})

    async def events(
        self, after: int, *, wait: float = 20.0, run: str | None = None
    ) -> list[Event]:
        """Events with a number above `after`, of one run where named, waiting up to `wait` seconds for one."""
        query = {"after": str(after), "wait": str(wait)} | ({} if run is None else {"run": run})
        return _as(list[Event], await self._get("/events", query, wait=wait), "events")

    async def put_strategy(self, strategy: Strategy) -> str:
        """Have the server know a strategy; its digest, by which rollouts name it. Safe to repeat."""
        digest = strategy.digest
        await self._request("PUT", f"/strategies/{digest}", strategy)
        return digest

    async def strategy(self, digest: str) -> Strategy:
        """A strategy that the server knows."""
        return Strategy.from_value(await self._get(f"/strategies/{_part(digest)}", {}))

    async def claim_run(self, name: str, owner: str) -> None:
        """Keep a run's name for the run whose `owner` this is; `WireError` with status 409 where another has it."""
        await self._request("PUT", f"/runs/{_part(name)}", {"owner": owner})

    async def worker_token(self) -> str:
        """A token for workers, which never need an admin's."""
        return _as(str, await self._post("/tokens", {"scope": "worker"}), "token")

    async def worker_gone(self, name: str) -> None:
        """Have nothing more leased under the name of a worker that is known to have ended."""
        await self._post(f"/workers/{_part(name)}/gone", {})

    async def worker_lost(
        self, name: str, reason: str, exit_status: int | None = None
    ) -> WorkerEnd:
        """End what a worker held that is known to have ended; nothing is leased under its name any more.

        Where it held one attempt alone, and `exit_status` (negative: a signal's number) says how its process ended by
        itself, that attempt ends as `agent_error`; else as `lost`. Of several workers that have ended, say so of each by
        `worker_gone` first: one that outlives that would take what another held.
        """
        body = {"reason": reason, "exit_status": exit_status}
        answer = await self._post(f"/workers/{_part(name)}/lost", body)
        return WorkerEnd(_as(int, answer, "ended"), _as(int, answer, "lost"))

    async def open_session(
        self,
        rollout: Rollout,
        task: Task,
        *,
        upstream: str | None,
        upstreams: Mapping[str, str] | None = None,
        timeout: float,
    ) -> Lease:
        """Enqueue a rollout and lease it to the caller at once. See `lease` for `upstream` and `upstreams`."""
        body = {
            "rollout": rollout,
            "task": task,
            "upstream": upstream,
            "upstreams": upstreams,
            "timeout": timeout,
        }
        return _as(Lease, await self._post("/sessions", body))

    async def set_policy(self, policy: ServedPolicy, *, run: str | None = None) -> None:
        """Serve a policy from now on to train and val calls: of one run, or of all that have none of their own.

        Of a run's policy the server must be able to reach a replica; else `WireError` with status 400.
        """
        await self._request("PUT", _policy(run), policy)

    async def drop_policy(self, run: str) -> None:
        """Forget a run's own policy. While the run has rollouts that have not ended, they wait for another one."""
        await self._request("DELETE", _policy(run), None)

    async def pause(self, timeout: float, *, run: str | None = None) -> Drain:
        """Hold new train and val calls, and wait up to `timeout` seconds for those under way to end.

        Of one run; or without `run` of all that have no policy of their own.
        """
        answer = await self._post(f"{_policy(run)}/pause", {"timeout": timeout}, wait=timeout)
        return Drain(_as(bool, answer, "drained"), _as(int, answer, "in_flight"))

    async def resume(self, *, run: str | None = None) -> None:
        """Let go what `pause` of the same `run` holds."""
        await self._post(f"{_policy(run)}/resume", {})

    async def status(self) -> Status:
        """How the server is doing."""
        return _as(Status, await self._get("/status", {}))

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
                f"server {self.shown}: no answer to {method} {path} within {self._timeout + wait:.0f} s"
            ) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # A ValueError is an address that is none.
            raise WireError(
                f"server {self.shown}: cannot be reached: {without_userinfo(str(error))};"
                " is `lightning-core serve` running there?"
            ) from error
        value = _decoded(data)
        if response.status < 400 and isinstance(value, dict):
            return value
        detail = value.get("error") if isinstance(value, dict) else None
        message = detail.get("message") if isinstance(detail, dict) else None
        if response.status < 400:
            raise FormatError(
                f"server {self.shown}: {method} {path} was answered with what is no JSON object that can be read:"
                f" {data[:200]!r}"
            )
        text = message or f"{method} {path} answered {response.status}: {data[:200]!r}"
        kind = detail.get("type") if isinstance(detail, dict) else None
        raise (FencedError if kind == "fenced" else WireError)(text, response.status)


def _policy(run: str | None) -> str:
    return "/policy" if run is None else f"/runs/{_part(run)}/policy"


def _part(text: str) -> str:
    return quote(text, safe="")


def _decoded(data: bytes) -> Json:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None


def _as(kind: type[_T], answer: dict[str, Any], key: str | None = None) -> _T:
    """The answer, or what it has under `key`."""
    try:
        return msgspec.convert(answer if key is None else answer[key], kind)
    except (msgspec.ValidationError, KeyError, RecursionError) as error:
        where = "" if key is None else f"`{key}`: "
        raise WireError(
            f"server: answered what this release does not understand: {where}{error};"
            " run the same release of `lightning-core` on both sides"
        ) from error
