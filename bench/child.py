"""The child's side of a bench process: says where it listens, answers orders, ends with its parent.

An order is a line of JSON `{"do": NAME, …}` on standard input; the answer is a line on standard output. The end
of standard input is the end of the process, so that none outlives a bench that was killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Order = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def run(main: Callable[[], Awaitable[None]], *, strict: bool = False) -> None:
    """Run a child's main, on uvloop where it is installed, with as many open files as are allowed.

    Args:
        main: what it does.
        strict: end the process when a callback raises, instead of leaving the parent to wait.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        if strict:
            runner.get_loop().set_exception_handler(_die)
        runner.run(_call(main))


async def serve(ready: dict[str, Any], orders: dict[str, Order] | None = None) -> None:
    """Print `ready`, then answer orders until standard input ends. `cpu` is always known."""
    known: dict[str, Order] = {"cpu": cpu, **(orders or {})}
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print(json.dumps(ready), flush=True)
    while line := await reader.readline():
        order = json.loads(line)
        try:
            answer = await known[order.pop("do")](order)
        except Exception as error:  # the parent raises it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


async def cpu(order: dict[str, Any]) -> dict[str, Any]:
    """User and system time of this process so far, all threads, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu": usage.ru_utime + usage.ru_stime}


def _die(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    loop.default_exception_handler(context)
    sys.stderr.flush()
    os._exit(1)


async def _call(main: Callable[[], Awaitable[None]]) -> None:
    await main()
