"""The default ways from a task to what an agent is given, and from its result to an output."""

from __future__ import annotations

from typing import Any

from lightning_core.errors import AgentError
from lightning_core.task import Task


def default_input(task: Task) -> str | list[Any]:
    """A string, or a list of input items, as it is.

    Raises:
        AgentError: the task's input is neither.
    """
    value = task.input
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return value
    raise AgentError(
        f"task `{task.id}`: expected as its input a string, or a list of input items such as messages with `role` and"
        f" `content`, but got {str(value)[:60]!r}; use `OpenAIAgentsAdapter(input=...)`"
    )


def default_output(result: Any) -> object:
    """The final output: text, or the value of the agent's `output_type`.

    Raises:
        AgentError: the run stopped before its end, since a tool needs an approval.
    """
    if result.interruptions:
        names = ", ".join(f"`{item.name}`" for item in result.interruptions)
        raise AgentError(
            f"agent `{result.last_agent.name}`: the run stopped for the approval of {names}; give a function that"
            " approves and goes on, or tools that need none"
        )
    return result.final_output
