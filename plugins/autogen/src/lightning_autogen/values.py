"""The default ways from a task to what an agent is given, and from its result to an output."""

from __future__ import annotations

from typing import Any

from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import (
    BaseChatMessage,
    BaseTextChatMessage,
    StructuredMessage,
    TextMessage,
)

from lightning_core.errors import AgentError
from lightning_core.task import Task


def default_input(task: Task) -> str | list[BaseChatMessage]:
    """A string as it is; a list of messages with `role` and `content` as messages of that source.

    Raises:
        AgentError: the task's input is neither.
    """
    value = task.input
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(map(_is_message, value)):
        return [_message(item) for item in value]
    raise AgentError(
        f"task `{task.id}`: expected as its input a string, or a list of messages with `role` and `content` in"
        f" text, but got {str(value)[:60]!r}; use `AutoGenAdapter(input=...)`"
    )


def default_output(result: TaskResult) -> object:
    """The content of the last message that is no event: text, or the document of structured output."""
    said = [message for message in result.messages if isinstance(message, BaseChatMessage)]
    if not said:
        return None
    last = said[-1]
    return (
        last.content
        if isinstance(last, BaseTextChatMessage | StructuredMessage)
        else last.to_text()
    )


def _is_message(item: object) -> bool:
    return isinstance(item, dict) and all(
        isinstance(item.get(name), str) for name in ("role", "content")
    )


def _message(item: Any) -> BaseChatMessage:
    return TextMessage(source=item["role"], content=item["content"])
