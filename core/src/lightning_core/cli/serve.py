"""`lightning-core serve`."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path

import click

from lightning_core.children import tune_garbage_collection
from lightning_core.cli import pairs
from lightning_core.cli.terminal import console
from lightning_core.client import Client
from lightning_core.engines import create_engine
from lightning_core.plugins import installed
from lightning_core.sampling import SamplingPolicy
from lightning_core.server.app import Server, ServerConfig, is_loopback
from lightning_core.settings import Settings
from lightning_core.tokens import Scope
from lightning_core.wire import ServedPolicy


@click.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9999,
    show_default=True,
    help="0 takes a free one.",
)
@click.option(
    "--folder", type=click.Path(path_type=Path), help="The run folder; runs/serve by default."
)
@click.option("--allow-target", "allow_targets", multiple=True, metavar="HOST",
              help="A host to which observed calls may go; needed on an address that is not loopback.")  # fmt: skip
@click.option("--keep", "keep_days", type=click.FloatRange(0, min_open=True), metavar="DAYS",
              help="Delete rollouts that ended longer ago; by default all are kept.")  # fmt: skip
@click.option("--model", help="What train and val calls go to: smollm2, a folder, an address.")
@click.option("--engine", help="The engine that serves --model, where not the obvious one.")
@click.option(
    "--engine-option", "engine_options", multiple=True, callback=pairs, metavar="KEY=VALUE"
)
def command(
    host: str,
    port: int,
    folder: Path | None,
    allow_targets: tuple[str, ...],
    keep_days: float | None,
    model: str | None,
    engine: str | None,
    engine_options: dict[str, str],
) -> None:
    """Serve: store, gateway and API, for runs and workers elsewhere. Ends with Ctrl+C; what runs is taken up again."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    place = folder or Path(Settings.from_environ().runs) / "serve"
    config = ServerConfig(
        folder=place,
        host=host,
        port=port,
        allow_targets=allow_targets,
        keep_seconds=keep_days and keep_days * 86400,
    )
    asyncio.run(_serve(config, model, engine, engine_options))


async def _serve(
    config: ServerConfig, model: str | None, engine_name: str | None, options: dict[str, str]
) -> None:
    served = create_engine(model, engine_name, installed())
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Server(config) as server:
        engine = served.create(folder=config.folder, options=options) if served else None
        try:
            if engine is not None:
                endpoints = await engine.start()
                async with Client(server.url, server.token(Scope.ADMIN)) as client:
                    await client.set_policy(
                        ServedPolicy(
                            version=0,
                            endpoints=endpoints,
                            capabilities=engine.gives,
                            val=SamplingPolicy(temperature=0.0),
                        )
                    )
            tune_garbage_collection()
            _announce(server, config)
            failure = asyncio.ensure_future(server.failure())
            stopped = asyncio.ensure_future(stop.wait())
            await asyncio.wait([failure, stopped], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if failure.done():
                raise failure.result()
            failure.cancel()
        finally:
            if engine is not None:
                await engine.stop()


def _announce(server: Server, config: ServerConfig) -> None:
    out = console()
    reach = (
        server.url if is_loopback(config.host) else f"http://HOST:{server.url.rpartition(':')[2]}"
    )
    lines = (
        f"serving on {server.url}, folder {config.folder}; Ctrl+C ends it",
        "workers:  LIGHTNING_CORE_TOKEN=" + server.token(Scope.WORKER),
        f"          lightning-core work agent.py:graph --server {reach}",
        "runs:     LIGHTNING_CORE_TOKEN=" + server.token(Scope.ADMIN),
        f"          lightning-core run agent.py:graph --tasks tasks.jsonl --workers 0 --server {reach}",
    )
    out.print("\n".join(lines), soft_wrap=True)
    if not is_loopback(config.host) and not config.allow_targets:
        out.print(
            "observed calls are refused here until you allow their hosts: --allow-target api.openai.com",
            style="yellow",
        )
