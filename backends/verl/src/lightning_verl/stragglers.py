"""Stragglers: the rollouts of a step that are let go of once enough of the others have ended."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from functools import partial
from typing import Final

from lightning_core.client import Client
from lightning_core.optimization import OptimizeConfig
from lightning_core.rollout import Mode
from lightning_core.running.patience import Patience
from lightning_core.trace import Trace
from lightning_verl.steps import STEP
from lightning_verl.unended import unended

log = logging.getLogger("lightning_verl")

_REASON: Final = "enough of the others had ended"


class Stragglers:
    """Counts the rollouts of each step that have ended, and cancels the others at the quorum."""

    def __init__(self, asked: OptimizeConfig) -> None:
        self._quorum = asked.quorum
        self._enough = math.ceil(asked.quorum * asked.batch_size * asked.group_size)
        self._ended: Counter[int] = Counter()
        self._reached: asyncio.Queue[int] = asyncio.Queue()

    def add(self, trace: Trace) -> None:
        """Take a rollout that has ended."""
        step = trace.rollout.metadata.get(STEP)
        if self._quorum >= 1.0 or trace.rollout.mode is Mode.VAL or not isinstance(step, int):
            return
        self._ended[step] += 1
        if self._ended[step] >= self._enough:
            self._reached.put_nowait(step)

    async def cancel(self, client: Client, run: str) -> None:
        """Cancel stragglers, for ever.

        Raises:
            WireError: the server refused, or stayed away.
        """
        patience = Patience.logged(log)
        while True:
            step = await self._reached.get()
            late = [
                rollout.id
                for rollout in await unended(client, run, patience)
                if rollout.mode is not Mode.VAL and rollout.metadata.get(STEP) == step
            ]
            # Groups that replace others come later, and make the step larger.
            every = self._ended[step] + len(late)
            if not late or self._ended[step] < math.ceil(self._quorum * every):
                continue
            log.info(
                "step %d: %d of %d rollouts are late and are cancelled", step, len(late), every
            )
            for id_ in late:
                await patience.ask(partial(client.cancel, id_, _REASON))
