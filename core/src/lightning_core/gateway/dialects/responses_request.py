"""Requests of OpenAI Responses, as requests of chat completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lightning_core.gateway.dialects.responses_items import (
    ADVICE,
    as_list,
    as_object,
    as_string,
    messages_of,
)
from lightning_core.gateway.dialects.translation import Message

LOGPROBS: Final = "message.output_text.logprobs"
"""What `include` holds where log-probabilities are asked for."""
_OWN: Final = frozenset(
    {
        "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning",
        "max_output_tokens", "top_logprobs", "include", "stream", "stream_options",
        # What the server does with the reply, or with tools of its own.
        "background", "background_options", "max_tool_calls", "previous_response_id", "store", "truncation",
    }
)  # fmt: skip
"""The fields that do not go upstream as they are. All others do: they mean the same there, or are an engine's own."""
_REFUSED: Final = ("conversation", "prompt", "context_management", "messages")


def prompt_of(body: dict[str, Any], earlier: Sequence[Message] = ()) -> list[Message]:
    """The messages of a request. `instructions` come first, also before those of `earlier`.

    Raises:
        ValueError: see `messages_of`.
    """
    for name in _REFUSED:
        if body.get(name) is not None:
            raise ValueError(
                f"`{name}`: the upstream speaks only chat completions, for which it cannot be translated; send what is"
                " meant in `input` and `instructions`, or use an upstream that speaks Responses"
            )
    given, instructions = body.get("input"), body.get("instructions")
    messages = list(earlier) if given is None else messages_of(given, earlier)
    if instructions is None:
        return messages
    return [{"role": "system", "content": as_string(instructions, "instructions")}, *messages]


def chat_request(body: dict[str, Any], earlier: Sequence[Message] = ()) -> dict[str, Any]:
    """The request of chat completions that asks the same.

    Reasoning comes back whole, whatever `reasoning.summary` says. `truncation` is left to the upstream, which refuses a
    prompt that is too long.

    Raises:
        ValueError: it is not of the format, or asks for something that chat completions cannot say.
    """
    request = {
        name: value for name, value in body.items() if name not in _OWN and value is not None
    }
    request["messages"] = prompt_of(body, earlier)
    listed = as_list(body.get("tools") or [], "tools")
    tools = [_tool(tool, f"tools[{number}]") for number, tool in enumerate(listed)]
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        tools, choice = _chosen(tools, choice)
    text = as_object(body.get("text") or {}, "text")
    reasoning = as_object(body.get("reasoning") or {}, "reasoning")
    found: dict[str, Any] = {
        "max_completion_tokens": body.get("max_output_tokens"),
        "reasoning_effort": reasoning.get("effort"),
        "response_format": _format(as_object(text.get("format") or {}, "text.format")),
        "verbosity": text.get("verbosity"),
    }
    if tools:  # without any, servers refuse to be told how to choose among them
        parallel = body.get("parallel_tool_calls")
        found |= {"tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel}
    if LOGPROBS in as_list(body.get("include") or [], "include"):
        found |= {"logprobs": True, "top_logprobs": body.get("top_logprobs")}
    if body.get("stream"):
        found |= {"stream": True, "stream_options": {"include_usage": True}}
    return request | {name: value for name, value in found.items() if value is not None}


def _tool(tool: Any, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else tool
    if kind != "function":
        raise ValueError(
            f"`{where}`: expected a tool of type `function` but got {kind!r}, which chat completions have not; {ADVICE}"
        )
    as_string(tool.get("name"), f"{where}.name")
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {n: tool[n] for n in names if tool.get(n) is not None}}


def _chosen(
    tools: list[dict[str, Any]], choice: dict[str, Any]
) -> tuple[list[dict[str, Any]], Any]:
    """The tools that may be called, and the choice among them."""
    kind = choice.get("type")
    if kind == "function":
        return tools, {"type": "function", "function": {"name": choice.get("name")}}
    if kind != "allowed_tools":
        raise ValueError(
            f"`tool_choice`: expected `none`, `auto`, `required`, or an object of type `function` or `allowed_tools` but"
            f" got {kind!r}, which chat completions have not; {ADVICE}"
        )
    # Hardly a server knows the choice, but each the lack of a tool.
    listed = as_list(choice.get("tools"), "tool_choice.tools")
    allowed = {_tool(tool, "tool_choice.tools")["function"]["name"] for tool in listed}
    return [tool for tool in tools if tool["function"]["name"] in allowed], choice.get("mode")


def _format(wanted: dict[str, Any]) -> dict[str, Any] | None:
    if wanted.get("type") in (None, "text"):
        return None
    if wanted["type"] != "json_schema":
        return wanted
    names = ("name", "description", "schema", "strict")
    schema = {name: wanted[name] for name in names if wanted.get(name) is not None}
    return {"type": "json_schema", "json_schema": schema}
