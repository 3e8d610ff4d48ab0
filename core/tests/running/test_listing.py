"""All of a run's rollouts are found, however many pages they take."""

import logging

from lightning_core.client import Client
from lightning_core.rollout import Mode, Rollout, RolloutStatus
from lightning_core.running import listing
from lightning_core.running.patience import Patience
from lightning_core.server import Server, ServerConfig
from lightning_core.task import Task
from lightning_core.tokens import Scope


async def test_every_page_is_asked_for_and_each_rollout_comes_once(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "_PAGE", 2)
    ids = [f"run:{n}" for n in range(5)]
    async with (
        Server(ServerConfig(folder=tmp_path)) as server,
        Client(server.url, server.token(Scope.ADMIN)) as client,
    ):
        for run in ("run", "other"):
            await client.put_tasks(run, [Task(id="t", input="x")])
        some = [Rollout(id=each, task_id="t", run="run", mode=Mode.TRAIN) for each in ids]
        await client.enqueue([*some, Rollout(id="other:0", task_id="t", run="other")])
        await client.cancel(ids[3], "not needed")
        patience = Patience.logged(logging.getLogger("test"), 1.0)

        async def found(**which):
            return [each.id async for each in listing.listed(client, patience, "run", **which)]

        assert await found() == ids
        assert await found(status=RolloutStatus.QUEUED) == [*ids[:3], ids[4]]
        assert await found(status=RolloutStatus.RUNNING) == []
