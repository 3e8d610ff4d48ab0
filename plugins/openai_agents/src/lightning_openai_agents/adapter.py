"""The adapter: agents of the OpenAI Agents SDK."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from lightning_core.adapter import Adapter, AgentGraph, RolloutContext
from lightning_core.task import Task


class OpenAIAgentsAdapter(Adapter):
    """Runs and labels an `Agent`, also given as `partial(Runner.run, agent, max_turns=…)` with the run's own options.

    `input` makes what `Runner.run` is given of a Task, and `output` the rollout's output of the `RunResult`; each takes the
    place of the default. By default the input is a string or a list of input items, and the output is `final_output`.
    """

    name: ClassVar[str] = "openai-agents"
    distribution: ClassVar[str | None] = "lightning-openai-agents"
    # A name that a folder `agents` of the user's own has not; each module is hooked as soon as it has been imported.
    triggers: ClassVar[tuple[str, ...]] = ("agents.tracing.spans",)

    def __init__(
        self,
        *,
        input: Callable[[Task], object] | None = None,
        output: Callable[[Any], object] | None = None,
    ) -> None:
        self._input = input
        self._output = output

    def accepts(self, agent: object) -> bool:
        """Whether `agent` is an `Agent`, or a `partial` of a method of `Runner` that has one."""
        if any(name not in sys.modules for name in self.triggers):
            return False
        from lightning_openai_agents.forms import starting_agent

        return starting_agent(agent) is not None

    def describe(self, agent: object) -> AgentGraph:
        """Agents, tools, handoffs, agents as tools, and guardrails."""
        from lightning_openai_agents.graph import describe

        return describe(agent)

    def instrument(self) -> AbstractContextManager[None]:
        """Label the calls of every run of this process while the context is open."""
        from lightning_openai_agents import hooks

        return hooks.PATCHES

    async def run(self, agent: object, task: Task, context: RolloutContext) -> object:
        """Run the agent once.

        Raises:
            AgentError: the default mapping cannot read the task's input, the run stopped for an approval, or the `partial`
                has a session or conversation, which all rollouts would share.
        """
        from lightning_openai_agents.forms import run
        from lightning_openai_agents.values import default_input, default_output

        value = default_input(task) if self._input is None else self._input(task)
        result = await run(agent, value)
        return default_output(result) if self._output is None else self._output(result)
