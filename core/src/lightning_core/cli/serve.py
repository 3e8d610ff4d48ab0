"""`lightning-core serve`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import click

from lightning_core.children import tune_interpreter
from lightning_core.cli import pairs
from lightning_core.cli.sessions import LONGEST, kept
from lightning_core.cli.terminal import console, ending
from lightning_core.cli.traffic import Telling, take_traffic
from lightning_core.client import Client
from lightning_core.engines import ChosenEngine, create_engine
from lightning_core.errors import LightningError
from lightning_core.gateway.limits import GatewayLimits
from lightning_core.gateway.tally import Tally
from lightning_core.plugins import installed
from lightning_core.rollout import Mode, Rollout
from lightning_core.running.launch import engine_started
from lightning_core.sampling import DEFAULT_MAX_TOKENS, SamplingPolicy
from lightning_core.server.app import Server, ServerConfig, is_loopback
from lightning_core.settings import Settings
from lightning_core.strategy import Strategy
from lightning_core.task import Task
from lightning_core.tokens import Scope
from lightning_core.wire import Lease, ServedPolicy

_T = TypeVar("_T")


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
@click.option("--policy", type=click.Path(path_type=Path), metavar="DIR",
              help="A trained policy - an artifact folder, a PEFT adapter, a Hugging Face folder - for any agent to use.")  # fmt: skip
@click.option("--engine", help="The engine that serves --model, where not the obvious one.")
@click.option(
    "--engine-option", "engine_options", multiple=True, callback=pairs, metavar="KEY=VALUE"
)
@click.option(
    "--temperature",
    type=float,
    default=0.0,
    show_default=True,
    help="With --model, in val mode; with --policy or --strategy the agent says.",
)
@click.option("--max-tokens", type=click.IntRange(1), default=DEFAULT_MAX_TOKENS, show_default=True,
              help="With --model or --policy: bound of each reply.")  # fmt: skip
@click.option("--strategy", type=click.Path(path_type=Path), metavar="FILE",
              help="A strategy: what matches of it is applied to every call, but for rollouts that have their own.")  # fmt: skip
@click.option("--upstream", metavar="URL",
              help="Where calls go of agents that have only this address and their own key: https://api.openai.com/v1.")  # fmt: skip
@click.option("--upstream-speaks", type=click.Choice(["chat"]),
              help="What --upstream speaks alone, where it should not be asked: other formats are translated.")  # fmt: skip
def command(
    host: str,
    port: int,
    folder: Path | None,
    allow_targets: tuple[str, ...],
    keep_days: float | None,
    model: str | None,
    policy: Path | None,
    engine: str | None,
    engine_options: dict[str, str],
    temperature: float,
    max_tokens: int,
    strategy: Path | None,
    upstream: str | None,
    upstream_speaks: str | None,
) -> None:
    """Serve: store, gateway and API, for runs and workers elsewhere. Ends with Ctrl+C; what runs is taken up again.

    With --policy, any agent can use what was trained: an address and a key for it are printed, and its calls are recorded.
    With --upstream, an unchanged agent needs this address alone, and with --strategy it has better prompts.
    """
    if policy is not None and model is not None:
        raise click.UsageError("give either `--model` or `--policy`")
    if policy is not None and not policy.exists():
        raise click.UsageError(
            f"policy {str(policy)!r}: there is no such folder; `lightning-core export --run RUN --output DIR` writes one"
        )
    if upstream is not None:
        _check_upstream(upstream, host, allow_targets)
    elif upstream_speaks is not None:
        raise click.UsageError("`--upstream-speaks` says something of `--upstream`; give that too")
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
        strategy=None if strategy is None else Strategy.load(strategy),
        limits=GatewayLimits(chat_only=upstream_speaks == "chat"),
    )
    served = create_engine(model if policy is None else str(policy), engine, installed())
    if served is not None:
        served.check(engine_options)
    sampling = SamplingPolicy(
        temperature=temperature,
        max_tokens=max_tokens,
        as_asked=policy is not None or strategy is not None,
    )
    asyncio.run(_serve(config, served, engine_options, sampling, upstream))


def _check_upstream(upstream: str, host: str, allow_targets: tuple[str, ...]) -> None:
    try:
        parts = urlsplit(upstream)
        named = parts.hostname or ""
    except ValueError:
        named = ""
    if not named or parts.scheme not in ("http", "https"):
        raise click.UsageError(
            "--upstream: expected an address such as https://api.openai.com/v1 but got"
            f" {upstream.rpartition('@')[2]!r}"
        )
    if parts.username or parts.password or parts.query:
        raise click.UsageError(
            "--upstream: expected an address without credentials or a query; each agent sends its own key"
        )
    if not is_loopback(host) and not allow_targets:
        raise click.UsageError(
            f"--upstream: everyone who reaches {host} could use it; allow that with `--allow-target {named}`,"
            " or listen on 127.0.0.1"
        )


async def _serve(
    config: ServerConfig,
    served: ChosenEngine | None,
    options: dict[str, str],
    sampling: SamplingPolicy,
    upstream: str | None,
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, *ending()):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Server(config) as server, contextlib.AsyncExitStack() as stack:
        ends: list[Awaitable[LightningError]] = [server.failure()]
        client = await stack.enter_async_context(Client(server.url, server.token(Scope.ADMIN)))
        if served is not None:
            logs = config.folder / "logs"
            logs.mkdir(exist_ok=True)
            starting = stack.enter_async_context(engine_started(served, options, logs))
            started = await _first(stop, [starting])
            if started is None:
                return
            engine, endpoints = started
            ends.append(engine.died())
            await client.set_policy(
                ServedPolicy(
                    version=0,
                    endpoints=endpoints,
                    capabilities=engine.gives,
                    train=SamplingPolicy(max_tokens=sampling.max_tokens),
                    val=sampling,
                )
            )
        tune_interpreter()
        _announce(server, config)
        if served is not None and sampling.as_asked:
            lease = await stack.enter_async_context(_session(client))
            _announce_policy(lease, served.model)
        if server.tally is not None:
            await stack.enter_async_context(_told(server.tally))
        if upstream is not None:
            ends.append(take_traffic(server, client, upstream))
            _say(
                f"agents:   calls without a session go to {upstream} with the agent's own key\n"
                f"          OPENAI_BASE_URL={server.url}/v1"
            )
        failure = await _first(stop, ends)
        if failure is not None:
            raise failure


@contextlib.asynccontextmanager
async def _session(client: Client) -> AsyncIterator[Lease]:
    """A session for whoever uses the policy, as long as it is served."""
    lease = await client.open_session(
        Rollout(
            id=f"serve:{uuid.uuid4().hex[:12]}",
            task_id="serve",
            run="serve",
            mode=Mode.VAL,
            timeout=LONGEST,
        ),
        Task(id="serve", input=None),
        upstream=None,
        timeout=LONGEST,
    )
    async with kept(lease, client):
        yield lease


def _announce_policy(lease: Lease, model: str) -> None:
    base = lease.base_url.partition("/s/")[0]
    lines = (
        f"policy {model}; an agent uses it with",
        f"          OPENAI_BASE_URL={base}/v1",
        f"          OPENAI_API_KEY={lease.session}",
    )
    _say("\n".join(lines))


def _say(text: str) -> None:
    console().print(text, markup=False)


@contextlib.asynccontextmanager
async def _told(tally: Tally) -> AsyncIterator[None]:
    """Tell what the strategy comes to: every minute, and in the end."""
    telling = Telling(tally)
    task = asyncio.create_task(telling.tell())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        telling.say()


async def _first(stop: asyncio.Event, works: Iterable[Awaitable[_T]]) -> _T | None:
    """What the first to end gives; None where Ctrl+C came before. The others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
    done = next((task for task in tasks if task.done()), None)
    for task in (*tasks, stopped):
        task.cancel()
    await asyncio.gather(*tasks, stopped, return_exceptions=True)
    return None if done is None else done.result()


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
    out.print("\n".join(lines))
    if not is_loopback(config.host) and not config.allow_targets:
        out.print(
            "observed calls are refused here until you allow their hosts: --allow-target api.openai.com",
            style="yellow",
        )
