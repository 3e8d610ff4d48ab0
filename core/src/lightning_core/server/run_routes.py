"""RunRoutes: what a run asks of the API: tasks, rollouts, traces, rewards, events."""

from __future__ import annotations

import msgspec

from lightning_core.errors import WireError
from lightning_core.reward import Reward
from lightning_core.rollout import Rollout, RolloutStatus
from lightning_core.server.policies import RunPolicies
from lightning_core.server.request import ADMIN, LONGEST_WAIT, Request, Routes, whole
from lightning_core.server.scheduler import Scheduler
from lightning_core.server.strategies import Strategies
from lightning_core.store.base import Store
from lightning_core.strategy import Strategy
from lightning_core.task import Task
from lightning_core.tokens import Scope, TokenSigner
from lightning_core.wire import EventKind


class RunRoutes:
    """Handlers for runs, over scheduler and store."""

    def __init__(
        self,
        store: Store,
        scheduler: Scheduler,
        policies: RunPolicies,
        strategies: Strategies,
        signer: TokenSigner,
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._policies = policies
        self._strategies = strategies
        self._signer = signer

    @property
    def routes(self) -> Routes:
        """What they answer."""
        return {
            ("POST", "tasks", ""): (ADMIN, self._put_tasks),
            ("POST", "rollouts", ""): (ADMIN, self._enqueue),
            ("GET", "rollouts", ""): (ADMIN, self._list),
            ("GET", "rollouts", "trace"): (ADMIN, self._trace),
            ("POST", "rollouts", "cancel"): (ADMIN, self._cancel),
            ("POST", "rollouts", "rewards"): (ADMIN, self._reward),
            ("GET", "groups", "traces"): (ADMIN, self._group),
            ("GET", "events", ""): (ADMIN, self._events),
            ("PUT", "runs", ""): (ADMIN, self._claim_run),
            ("PUT", "strategies", ""): (ADMIN, self._put_strategy),
            ("GET", "strategies", ""): (ADMIN, self._strategy),
            ("POST", "tokens", ""): (ADMIN, self._worker_token),
            ("POST", "workers", "gone"): (ADMIN, self._refuse_worker),
            ("POST", "workers", "lost"): (ADMIN, self._lose_worker),
        }

    async def _claim_run(self, request: Request) -> object:
        await whole(self._scheduler.claim_run(request.key, request.field("owner", str)))
        return {"run": request.key}

    async def _put_strategy(self, request: Request) -> object:
        await whole(self._strategies.put(request.key, Strategy.from_value(request.body)))
        return {"strategy": request.key}

    async def _strategy(self, request: Request) -> object:
        return await self._strategies.get(request.key)

    async def _worker_token(self, request: Request) -> object:
        if request.body.get("scope") != Scope.WORKER:
            raise WireError(
                f"body: `scope`: expected 'worker' but got {request.body.get('scope')!r}", 400
            )
        return {"token": self._signer.issue(Scope.WORKER)}

    async def _refuse_worker(self, request: Request) -> object:
        self._scheduler.refuse_worker(request.key)
        return {}

    async def _lose_worker(self, request: Request) -> object:
        ended, lost = await whole(
            self._scheduler.lose_worker(
                request.key,
                request.field("reason", str),
                request.optional("exit_status", int),
            )
        )
        return {"ended": ended, "lost": lost}

    async def _put_tasks(self, request: Request) -> object:
        tasks = request.field("tasks", list[Task])
        await self._store.put(*tasks, run=request.field("run", str))
        await self._store.flush()
        return {"stored": len(tasks)}

    async def _enqueue(self, request: Request) -> object:
        rollouts = request.field("rollouts", list[Rollout])
        created, known = await whole(self._scheduler.enqueue(rollouts))
        return {"created": created, "known": known}

    async def _list(self, request: Request) -> object:
        query = request.query
        status = query.get("status")
        rollouts = await self._store.rollouts(
            run=query.get("run"),
            group=query.get("group"),
            status=msgspec.convert(status, RolloutStatus) if status else None,
            after=query.get("after"),
            limit=int(request.number("limit", 1000, 10_000)),
        )
        return {"rollouts": rollouts}

    async def _trace(self, request: Request) -> object:
        number = request.query.get("attempt")
        trace = await self._store.trace(
            request.key, int(request.number("attempt", 1)) if number else None
        )
        if trace is None:
            which = f"attempt {number}" if number else "attempt"
            raise WireError(f"rollout `{request.key}`: not known, or has no {which} yet", 404)
        return trace

    async def _group(self, request: Request) -> object:
        rollouts = await self._store.rollouts(group=request.key, limit=10_000)
        if not rollouts:
            raise WireError(f"group `{request.key}`: not known", 404)
        traces = [await self._store.trace(rollout.id) for rollout in rollouts]
        return {"traces": [trace for trace in traces if trace is not None]}

    async def _cancel(self, request: Request) -> object:
        reason = str(request.body.get("reason", ""))
        return {"status": await whole(self._scheduler.cancel(request.key, reason))}

    async def _reward(self, request: Request) -> object:
        rollout = await self._store.rollout(request.key)
        if rollout is None:
            raise WireError(f"rollout `{request.key}`: not known", 404)
        if not rollout.status.ended:
            raise WireError(
                f"rollout `{request.key}`: is `{rollout.status}`; reward it once it has ended", 409
            )
        rewards = request.field("rewards", list[Reward])
        await self._store.put_rewards(request.key, rewards)
        await self._store.flush()
        await self._scheduler.events.add(EventKind.REWARDED, rollout)
        return {"stored": len(rewards)}

    async def _events(self, request: Request) -> object:
        events, after = self._scheduler.events, int(request.number("after", 0))
        run = request.query.get("run")
        if run is not None:
            self._policies.heard(run)
        if events.missed(after):
            raise WireError(
                f"events after {after} are gone; list the rollouts, then ask with `after=0`", 410
            )
        wait = request.number("wait", 0, LONGEST_WAIT)
        found = await events.after(after, wait=wait, run=run)
        return {"events": found, "last": events.last}
