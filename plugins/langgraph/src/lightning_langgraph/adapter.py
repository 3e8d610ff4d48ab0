"""The adapter: compiled graphs and any other LangChain Runnable."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

from lightning_core.adapter import Adapter, AgentGraph, RolloutContext
from lightning_core.task import Task


class LangGraphAdapter(Adapter):
    """Runs and labels compiled LangGraph graphs (`create_agent` included) and LangChain Runnables.

    `input` makes the agent's input of a Task, and `output` the rollout's output of what the agent returned; each
    takes the place of the default. By default a string becomes a human message where the graph's state has
    `messages`, or fills its only string field; anything else is given as it is, and in the output messages become
    dicts of OpenAI's form.
    """

    name: ClassVar[str] = "langgraph"
    distribution: ClassVar[str | None] = "lightning-langgraph"
    # Every run needs it, and after it the handler's own imports close no circle.
    triggers: ClassVar[tuple[str, ...]] = ("langchain_core.runnables.config",)

    def __init__(
        self,
        *,
        input: Callable[[Task], object] | None = None,
        output: Callable[[Any], object] | None = None,
    ) -> None:
        self._input = input
        self._output = output

    def accepts(self, agent: object) -> bool:
        """Whether `agent` is a Runnable; a compiled graph is one."""
        module = sys.modules.get("langchain_core.runnables.base")
        return module is not None and isinstance(agent, module.Runnable)

    def describe(self, agent: object) -> AgentGraph:
        """Agents, nodes, tools and edges, those of subgraphs included."""
        from lightning_langgraph.graph import describe

        return describe(agent)

    def instrument(self) -> AbstractContextManager[None]:
        """Label the calls of every Runnable of this process while the context is open."""
        return _instrumented()

    async def run(self, agent: object, task: Task, context: RolloutContext) -> object:
        """Invoke the agent once.

        The attempt's id is the `thread_id`, so that attempts share no checkpoint.

        Raises:
            AgentError: the default mapping cannot make the agent's input of the task's.
        """
        from lightning_langgraph.values import default_input, default_output

        value = default_input(agent, task) if self._input is None else self._input(task)
        runnable: Any = agent
        result = await runnable.ainvoke(value, {"configurable": {"thread_id": context.attempt_id}})
        return default_output(result) if self._output is None else self._output(result)


@contextmanager
def _instrumented() -> Iterator[None]:
    from lightning_core.instrument import context
    from lightning_langgraph.hooks import PATCHES
    from lightning_langgraph.labels import RUNS

    with PATCHES, context.source(RUNS):
        yield
