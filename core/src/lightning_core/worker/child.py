"""`python -m lightning_core.worker.child FOLDER`: one attempt in a process of its own.

Reads `order.json` in FOLDER and leaves `outcome.json` there. `--check SPEC` only loads the agent. Model calls are
labelled and routed by the start-up hook, as in any Python process of an attempt.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

import msgspec

from lightning_core.adapter import Adapter
from lightning_core.agents import find_adapter, load_agent, unwrapped
from lightning_core.errors import LightningError
from lightning_core.frameworks import instrumented
from lightning_core.plugins import installed
from lightning_core.rollout import Cause
from lightning_core.worker.adapters import is_among
from lightning_core.worker.isolated import Order
from lightning_core.worker.keys import load_without_key
from lightning_core.worker.outcome import Outcome, bounded, raised
from lightning_core.worker.outputs import OutputError, to_json

_LINGER_SECONDS: Final = 3.0


def main(arguments: list[str]) -> int:
    """Run one attempt, or check an agent; the exit status."""
    if arguments[0] == "--check":
        try:
            find_adapter(load_without_key(arguments[1]), installed().adapters())
        except LightningError as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    folder = Path(arguments[0])
    order = msgspec.json.decode((folder / "order.json").read_bytes(), type=Order)
    try:
        agent = load_agent(order.spec)
        adapter = find_adapter(agent, installed().adapters())
    except LightningError as error:
        _leave(Outcome(cause=Cause.WORKER_ERROR, error=bounded(str(error))), folder)
        return 0
    with _instrumented(adapter):
        asyncio.run(_execute(unwrapped(agent), adapter, order, folder))
    return 0


def _instrumented(adapter: Adapter) -> AbstractContextManager[None]:
    """The start-up hook enters the adapters that are installed; an agent's own one may be another."""
    return (
        nullcontext()
        if is_among(installed().adapters().values(), adapter)
        else instrumented(adapter)
    )


async def _execute(agent: object, adapter: Adapter, order: Order, folder: Path) -> None:
    try:
        output = await adapter.run(agent, order.job.lease.task, order.job.context())
        outcome = Outcome(cause=Cause.SUCCESS, output=to_json(output, limit=order.output_limit))
    except OutputError as error:
        outcome = Outcome(cause=Cause.AGENT_ERROR, error=bounded(str(error)))
    except BaseException as error:  # An agent may raise anything, SystemExit included.
        outcome = raised(error)
    _leave(outcome, folder)
    # Tasks and threads that the agent left behind would keep the process from ending, and the attempt with it.
    threading.Thread(target=_end_late, daemon=True).start()


def _leave(outcome: Outcome, folder: Path) -> None:
    part = folder / "outcome.part"
    part.write_bytes(outcome.to_json())
    part.replace(folder / "outcome.json")


def _end_late() -> None:
    time.sleep(_LINGER_SECONDS)
    os._exit(0)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.exit(status)
