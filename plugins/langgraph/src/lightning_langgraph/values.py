"""The default ways from a task to an agent's input, and from what it returned to an output."""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import lru_cache
from typing import Any

from lightning_core.errors import AgentError
from lightning_core.task import Task


def default_input(agent: object, task: Task) -> object:
    """The agent's input.

    Raises:
        AgentError: the task's input is a string and the graph's state says not where it belongs.
    """
    value = task.input
    schema = _input_schema(agent)
    if schema is None:
        return value
    fields = _fields(schema)
    if isinstance(value, str):
        if "messages" in fields:
            return {"messages": [{"role": "user", "content": value}]}
        strings = [name for name, (kind, needed) in fields.items() if needed and kind is str]
        if len(strings) == 1:
            return {strings[0]: value}
        raise AgentError(
            f"task `{task.id}`: its input is the string {value[:60]!r}, but the graph's state has no `messages`"
            f" and {len(strings)} required string fields ({_listed(fields)}); give the task's input as an object"
            " with the state's fields, or use `LangGraphAdapter(input=...)`"
        )
    if isinstance(value, list) and "messages" in fields:
        return {"messages": value}
    return value


def default_output(value: object) -> object:
    """`value` with each message, also within dicts, lists and tuples, as a dict of OpenAI's form."""
    from langchain_core.messages import BaseMessage, convert_to_openai_messages

    if isinstance(value, BaseMessage):
        try:
            return convert_to_openai_messages(value)
        except ValueError:  # A kind of message, or of content, that OpenAI's form does not have.
            return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {name: default_output(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, BaseMessage) for item in value):
            try:  # All at once takes half as long.
                return convert_to_openai_messages(value)
            except ValueError:
                pass  # One has no such form: it alone keeps its own.
        return [default_output(item) for item in value]
    return value


def _input_schema(agent: object) -> type | None:
    """The class of a graph's input, or None where the agent has none that can be read."""
    builder = getattr(getattr(agent, "bound", agent), "builder", None)
    schema = getattr(builder, "input_schema", None)
    return schema if isinstance(schema, type) else None


@lru_cache(maxsize=64)  # Agents are run again and again, and reading annotations takes long.
def _fields(schema: type) -> dict[str, tuple[object, bool]]:
    """Each field's type, `Annotated` and `| None` taken off, and whether it must be given."""
    hints = typing.get_type_hints(schema, include_extras=True)
    return {name: (_bare(hint), _is_needed(schema, name, hint)) for name, hint in hints.items()}


def _bare(hint: Any) -> object:
    origin = typing.get_origin(hint)
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return _bare(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return _bare(kinds[0]) if len(kinds) == 1 else hint
    return hint


def _is_needed(schema: type, name: str, hint: Any) -> bool:
    if typing.get_origin(hint) is typing.NotRequired:
        return False  # Where annotations are strings, `__required_keys__` does not know.
    required = getattr(schema, "__required_keys__", None)
    if required is not None:
        return name in required
    if dataclasses.is_dataclass(schema):
        field = schema.__dataclass_fields__[name]
        return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    model_field = getattr(schema, "model_fields", {}).get(name)
    return model_field is None or bool(model_field.is_required())


def _listed(fields: dict[str, tuple[object, bool]]) -> str:
    return ", ".join(f"`{name}`" for name in fields) or "it has no fields"
