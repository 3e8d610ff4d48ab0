"""`python -m lightning_core.worker`: a worker for the process that started it; ends when standard input closes.

The worker's token is the first line of standard input, as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys

from lightning_core.children import be_child, read_secret, say_error, say_ready, take_lifeline
from lightning_core.errors import WireError
from lightning_core.worker.entry import work
from lightning_core.worker.logs import log_to_stderr


async def _work(options: argparse.Namespace, token: str) -> bool:
    # Agents read nothing from our lifeline, and what they print goes to the log.
    sys.stdin = open(os.devnull)  # noqa: SIM115 - open for the life of the process
    ready = asyncio.Event()
    working = asyncio.create_task(
        work(
            options.agent,
            options.command,
            url=options.server,
            token=token,
            concurrency=options.concurrency,
            isolate=options.isolate,
            name=options.name,
            for_run=options.run,
            ready=ready,
        )
    )
    waiting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if ready.is_set():
            say_ready()
            os.dup2(2, 1)
        return await working
    finally:
        waiting.cancel()
        working.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)


def main() -> int:
    """Parse the command line and work."""
    parser = argparse.ArgumentParser(prog="python -m lightning_core.worker", description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--agent")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--isolate", action="store_true")
    parser.add_argument("--name")
    parser.add_argument("--run")
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()
    log_to_stderr()
    try:
        token = read_secret()
    except WireError as error:
        say_error(error)
        return 1
    sys.stdin = os.fdopen(take_lifeline())
    status = be_child(_work(options, token))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread of an agent's that hangs would keep the interpreter from ending.
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
