"""A small server with the worker's routes, and what the tests of the worker share."""

import asyncio
import contextlib
import os
import time
import uuid
from collections import deque
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from lightning_core.client import Client
from lightning_core.plugins import installed
from lightning_core.rollout import Attempt, Mode, Rollout
from lightning_core.task import Task
from lightning_core.wire import Finish, Lease
from lightning_core.worker import Worker


class LeaseServer:
    """Leases what is `put`, and keeps what is reported. May be stopped and started again on its port."""

    def __init__(self):
        self.heartbeat = 0.05
        self.lease_seconds = 30.0
        self.port = 0
        self.clock = 0.0  # seconds by which its clock is ahead of the worker's
        self.reports = {}
        self.spans = []
        self.beats = {}
        self.cancelled = set()
        self.fenced = set()
        self.refuse_output = False
        self.capacities = []
        self.sessions = []
        self.tokens = set()
        self.spans_status = None
        self._queue = deque()
        self._fences = 0
        self._changed = asyncio.Condition()
        self._runner = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    async def start(self):
        app = web.Application(client_max_size=64 * 2**20)
        prefix = "/api/v1"
        app.router.add_post(prefix + "/leases", self._lease)
        app.router.add_post(prefix + "/attempts/{id}/heartbeat", self._beat)
        app.router.add_post(prefix + "/attempts/{id}/finish", self._finish)
        app.router.add_post(prefix + "/attempts/{id}/spans", self._spans)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self):
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def put(self, value, *, timeout=60.0, mode=Mode.OBSERVE, id=None, strategy=None):
        """Queue a task; the id of its attempt."""
        id = id or uuid.uuid4().hex[:8]
        self._fences += 1
        attempt_id = f"{id}.1"
        async with self._changed:
            self._queue.append((id, attempt_id, value, timeout, mode, strategy, self._fences))
            self._changed.notify_all()
        return attempt_id

    async def report(self, attempt_id):
        """The report of an attempt, once it has come."""
        async with self._changed:
            await self._changed.wait_for(lambda: attempt_id in self.reports)
        return self.reports[attempt_id]

    async def until(self, predicate):
        """Wait until something that was heard makes `predicate` true."""
        async with self._changed:
            await self._changed.wait_for(predicate)

    async def _lease(self, request):
        body = await request.json()
        self.tokens.add(request.headers["authorization"].removeprefix("Bearer "))
        self.capacities.append(body["capacity"])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(body["wait"]), self._changed:
                await self._changed.wait_for(lambda: self._queue)
        leases = []
        while self._queue and len(leases) < body["capacity"]:
            leases.append(self._make(*self._queue.popleft(), body["worker"]))
        return _json({"leases": leases})

    def _make(self, id, attempt_id, value, timeout, mode, strategy, fence, worker):
        now = time.time() + self.clock
        session = f"lc1.{uuid.uuid4().hex}.a-b_c"
        self.sessions.append(session)
        return Lease(
            attempt=Attempt(
                id=attempt_id,
                rollout_id=id,
                number=1,
                fence=fence,
                worker=worker,
                started_at=now,
                deadline=now + timeout,
                lease_until=now + self.lease_seconds,
            ),
            rollout=Rollout(id=id, task_id=id, mode=mode, timeout=timeout),
            task=Task(id=id, input=value),
            session=session,
            base_url=f"{self.url}/s/{session}/v1",
            heartbeat=self.heartbeat,
            strategy=strategy,
        )

    async def _beat(self, request):
        attempt_id = request.match_info["id"]
        if attempt_id in self.fenced:
            return _fenced()
        async with self._changed:
            self.beats[attempt_id] = self.beats.get(attempt_id, 0) + 1
            self._changed.notify_all()
        cancel = attempt_id in self.cancelled
        return _json(
            {"lease_until": time.time() + self.clock + self.lease_seconds, "cancel": cancel}
        )

    async def _finish(self, request):
        attempt_id = request.match_info["id"]
        finish = msgspec.json.decode(await request.read(), type=Finish)
        if attempt_id in self.fenced:
            async with self._changed:
                self.fenced.add(f"report of {attempt_id}")
                self._changed.notify_all()
            return _fenced()
        if self.refuse_output and finish.output is not None:
            error = {"error": {"type": "too_large", "message": "too large"}}
            return web.json_response(error, status=413)
        async with self._changed:
            assert attempt_id not in self.reports
            self.reports[attempt_id] = finish
            self._changed.notify_all()
        return _json({"status": "succeeded"})

    async def _spans(self, request):
        assert request.match_info["id"] not in self.reports
        if self.spans_status is not None:
            return web.json_response({"error": {"message": "no spans"}}, status=self.spans_status)
        body = await request.json()
        async with self._changed:
            self.spans += body["spans"]
            self._changed.notify_all()
        return _json({"stored": len(body["spans"])})


def _json(value):
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _fenced():
    error = {"error": {"type": "fenced", "message": "has ended"}}
    return web.json_response(error, status=409)


@pytest.fixture
async def server():
    server = LeaseServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def worker(server):
    """Start a worker in this loop: `await worker(agent, **options)` gives it, with `stop()` as a coroutine."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(agent, **options):
            client = await stack.enter_async_context(Client(server.url, "token"))
            adapters = tuple(installed().adapters().values())
            made = Worker(client, agent, **{"adapters": adapters, **options})
            told, ready = asyncio.Event(), asyncio.Event()
            made.task = asyncio.create_task(made.run(told, ready=ready))

            async def stop():
                told.set()
                return await made.task

            made.stop = stop

            async def clean_up():
                told.set()
                await asyncio.gather(made.task, return_exceptions=True)

            stack.push_async_callback(clean_up)
            waiting = asyncio.create_task(ready.wait())
            await asyncio.wait({made.task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            return made

        yield start


def _marked(marker):
    """Ids of living processes whose environment holds `marker`."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                stat = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
                if (
                    stat[0] != "Z"
                    and marker.encode() in Path("/proc", name, "environ").read_bytes()
                ):
                    found.append(int(name))
    return found


@pytest.fixture
def marker(monkeypatch):
    """A variable in this process's environment, which all that is started inherits; `processes()` finds them."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("looks for processes in /proc")
    text = f"LIGHTNING_TEST_MARKER_{uuid.uuid4().hex}"
    monkeypatch.setenv(text, "1")

    def processes():
        return _marked(text)

    yield processes
    assert processes() == []
