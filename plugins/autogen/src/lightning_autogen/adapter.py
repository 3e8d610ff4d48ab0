"""The adapter: agents and teams of AutoGen's AgentChat."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from lightning_core.adapter import Adapter, AgentGraph, RolloutContext
from lightning_core.task import Task


class AutoGenAdapter(Adapter):
    """Runs and labels AgentChat agents (`AssistantAgent`, …) and teams (`RoundRobinGroupChat`, `Swarm`, …).

    `input` makes what `run(task=…)` is given of a Task, and `output` the rollout's output of the `TaskResult`; each
    takes the place of the default. By default the input is a string, or a list of messages with `role` and `content`,
    and the output is the content of the last message.
    """

    name: ClassVar[str] = "autogen"
    distribution: ClassVar[str | None] = "lightning-autogen"
    # The package itself, before any module of it has begun: each is hooked as soon as it has been imported.
    triggers: ClassVar[tuple[str, ...]] = ("autogen_agentchat",)

    def __init__(
        self,
        *,
        input: Callable[[Task], object] | None = None,
        output: Callable[[Any], object] | None = None,
    ) -> None:
        self._input = input
        self._output = output

    def accepts(self, agent: object) -> bool:
        """Whether `agent` is an agent or a team."""
        module = sys.modules.get("autogen_agentchat.base")
        return module is not None and isinstance(agent, module.ChatAgent | module.Team)

    def describe(self, agent: object) -> AgentGraph:
        """Teams, agents, tools, and who may speak after whom."""
        from lightning_autogen.graph import describe

        return describe(agent)

    def instrument(self) -> AbstractContextManager[None]:
        """Label the calls of every agent and team of this process while the context is open."""
        from lightning_autogen import hooks

        return hooks.PATCHES

    async def run(self, agent: object, task: Task, context: RolloutContext) -> object:
        """Run a copy of the agent once, since agents and teams keep what was said.

        Raises:
            AgentError: the agent cannot be copied or is running, or the default mapping cannot read the task's input.
        """
        from lightning_autogen.copies import fresh
        from lightning_autogen.values import default_input, default_output

        value = default_input(task) if self._input is None else self._input(task)
        result = await _run(await fresh(agent), value)
        return default_output(result) if self._output is None else self._output(result)


async def _run(agent: Any, value: object) -> Any:
    """Run the agent, and end its work where this is cancelled: a team by itself goes on to its end."""
    from autogen_core import CancellationToken

    token = CancellationToken()
    running = asyncio.ensure_future(agent.run(task=value, cancellation_token=token))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        token.cancel()
        await asyncio.gather(running, return_exceptions=True)
        raise
