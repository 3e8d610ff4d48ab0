"""Ours: the whole server - gateway, API and SQLite store - in a process of its own."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from bench import child

_LONG = 24 * 3600.0


async def main() -> None:
    """Serve until standard input ends."""
    from lightning_core.capability import Capability
    from lightning_core.children import tune_interpreter
    from lightning_core.client import Client
    from lightning_core.engine import Endpoint
    from lightning_core.rollout import Mode, Rollout
    from lightning_core.server.app import Server, ServerConfig
    from lightning_core.strategy import Strategy
    from lightning_core.task import Task
    from lightning_core.tokens import Scope
    from lightning_core.wire import ServedPolicy

    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="where the store lies")
    folder = parser.parse_args().folder
    config = ServerConfig(folder=folder, lease_seconds=_LONG)
    async with (
        Server(config) as server,
        Client(server.url, server.token(Scope.ADMIN)) as client,
    ):

        async def session(order: dict[str, Any]) -> dict[str, Any]:
            """Open a session; the path of its address."""
            digest = None
            if "strategy" in order:
                digest = await client.put_strategy(Strategy.from_value(order["strategy"]))
            rollout = Rollout(
                id=order["id"], task_id="bench", mode=Mode(order["mode"]), strategy=digest
            )
            lease = await client.open_session(
                rollout, Task(id="bench", input="bench"), upstream=order["upstream"], timeout=_LONG
            )
            return {"path": lease.base_url.removeprefix(server.url)}

        async def policy(order: dict[str, Any]) -> dict[str, Any]:
            """Serve a policy to train calls."""
            can = {Capability.TOKEN_IDS, Capability.LOGPROBS, Capability.STREAM_TOKEN_IDS}
            endpoint = Endpoint(base_url=order["upstream"], model="bench-model")
            await client.set_policy(
                ServedPolicy(version=1, endpoints=(endpoint,), capabilities=frozenset(can))
            )
            return {}

        async def cpu(order: dict[str, Any]) -> dict[str, Any]:
            """The time used, once what was put off - parsing, the store's batches - is done."""
            before = await child.cpu({})
            for _ in range(100):
                await asyncio.sleep(0.05)
                after = await child.cpu({})
                if after["cpu"] - before["cpu"] < 0.001:
                    return after
                before = after
            raise RuntimeError("the server never came to rest")

        tune_interpreter()  # As `lightning-core serve` does.
        port = int(server.url.rsplit(":", 1)[1])
        await child.serve({"port": port}, {"session": session, "policy": policy, "cpu": cpu})


if __name__ == "__main__":
    child.run(main)
