"""Tools and their choice, from Anthropic Messages to chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_core.gateway.dialects.messages_prompt import OTHERWISE

_Known = tuple[
    str, dict[str, Any], list[str]
]  # the description, the properties, those that are required
_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_RANGE = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}


def _commands(*names: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(names)}


_BASH: _Known = (
    "Run a command in a bash session that stays open between calls. `restart` begins a new session.",
    {"command": _TEXT, "restart": {"type": "boolean"}},
    [],
)
_EDITOR: _Known = (
    "View, create and edit text files. `view` shows a file, of it the lines in `view_range` from 1, or a folder; `create`"
    " writes `file_text` to a file; `str_replace` replaces the only `old_str` in a file by `new_str`; `insert` puts"
    " `insert_text` after the line `insert_line`.",
    {
        "command": _commands("view", "create", "str_replace", "insert"),
        "path": _TEXT,
        "view_range": _RANGE,
        "file_text": _TEXT,
        "old_str": _TEXT,
        "new_str": _TEXT,
        "insert_line": _NUMBER,
        "insert_text": _TEXT,
    },
    ["command", "path"],
)
_MEMORY: _Known = (
    "Keep notes for later in files below `/memories`. `view` shows a file, of it the lines in `view_range` from 1, or a"
    " folder; `create` writes `file_text` to a file; `str_replace` replaces the only `old_str` in a file by `new_str`;"
    " `insert` puts `insert_text` after the line `insert_line`; `delete` removes a file or a folder; `rename` moves"
    " `old_path` to `new_path`.",
    {
        **_EDITOR[1],
        "command": _commands("view", "create", "str_replace", "insert", "delete", "rename"),
        "old_path": _TEXT,
        "new_path": _TEXT,
    },
    ["command"],
)
_KNOWN: dict[str, _Known] = {
    "bash_20250124": _BASH,
    "text_editor_20250429": _EDITOR,
    "text_editor_20250728": _EDITOR,
    "memory_20250818": _MEMORY,
}
"""What Claude knows of the tools that the agent runs though Anthropic defines them, for models that do not."""


def tool_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of chat completions that say what `tools` and `tool_choice` say; none where there are no tools.

    Examples of a tool's input become `examples` of its schema. Bash, text editor and memory, which the agent runs though
    Anthropic defines them, are described.

    Raises:
        ValueError: one is not of the format, or is run by the server; names the place and the tool.
    """
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        raise ValueError(f"`tools`: expected a list of tools but got {type(tools).__name__}")
    if not tools:
        return {}
    made = [_tool(tool, f"tools[{number}]") for number, tool in enumerate(tools)]
    return {"tools": made, **_choice(body.get("tool_choice"))}


def _tool(tool: Any, place: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("name", tool.get("type")), str):
        raise ValueError(f"`{place}`: expected an object with a `name` but got {tool!r:.200}")
    kind, name = tool.get("type") or "custom", tool.get("name")
    if kind == "custom" and isinstance(name, str):
        schema = tool.get("input_schema")
        if not isinstance(schema, dict):
            raise ValueError(f"`{place}.input_schema`: expected an object but got {schema!r:.200}")
        function = {"name": name, "description": tool.get("description"), "parameters": schema}
    elif kind in _KNOWN and isinstance(name, str):
        description, properties, required = _KNOWN[kind]
        schema = {"type": "object", "properties": properties, "required": required}
        function = {"name": name, "description": description, "parameters": schema}
    else:
        raise ValueError(
            f"`{place}`: the tool {name or kind!r} of type {kind!r} cannot be given to an upstream that speaks only chat"
            f" completions; {OTHERWISE}"
        )
    if examples := tool.get("input_examples"):
        function["parameters"] = {**schema, "examples": examples}
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    said = {key: value for key, value in function.items() if value is not None}
    return {"type": "function", "function": said}


def _choice(choice: Any) -> dict[str, Any]:
    if choice is None:
        return {}
    kind = choice.get("type") if isinstance(choice, dict) else None
    fields: dict[str, Any]
    match kind:
        case "auto" | "none":
            fields = {"tool_choice": kind}
        case "any":
            fields = {"tool_choice": "required"}
        case "tool" if isinstance(choice.get("name"), str):
            named = {"type": "function", "function": {"name": choice["name"]}}
            fields = {"tool_choice": named}
        case _:
            raise ValueError(
                "`tool_choice`: expected an object of type `auto`, `any`, `none`, or `tool` with a `name`, but got"
                f" {choice!r:.200}"
            )
    if choice.get("disable_parallel_tool_use"):
        fields["parallel_tool_calls"] = False
    return fields
