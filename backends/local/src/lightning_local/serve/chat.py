"""Messages to prompt tokens, with or without a template's own support for tools."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from lightning_local.serve.errors import BadRequest

TOOL_TEXT = """You can call functions. They are, one a line:
{tools}
To call one, reply with exactly:
<tool_call>{{"name": "FUNCTION", "arguments": {{"ARGUMENT": "VALUE"}}}}</tool_call>"""
"""Given to models whose chat template knows no tools, as part of the system message."""


class ChatTemplate:
    """A tokenizer's chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        template = tokenizer.chat_template
        self._there = bool(template)
        texts = template.values() if isinstance(template, dict) else [template or ""]
        self.knows_tools = any("tools" in text for text in texts)
        """Whether the template renders tools itself."""

    def encode(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[int]:
        """The prompt's tokens, ending where the assistant's turn begins.

        Raises:
            BadRequest: the messages are not such that the template can render them.
        """
        text = self.text(messages, tools)
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def text(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        *,
        reply_follows: bool = True,
    ) -> str:
        """The messages as text, ending where the assistant's turn begins if a reply follows.

        Raises:
            BadRequest: the messages are not such that the template can render them.
        """
        if not self._there:
            raise BadRequest(
                "the model has no chat template; use `/v1/completions`", param="messages"
            )
        if not messages:
            raise BadRequest("`messages` is empty", param="messages")
        turns = [_normal(message, i) for i, message in enumerate(messages)]
        if self.knows_tools:
            turns = [_with_objects(turn) for turn in turns]
        else:
            turns = _as_text(turns, tools)
        try:
            rendered: str = self._tokenizer.apply_chat_template(
                turns,
                tools=tools if tools and self.knows_tools else None,
                add_generation_prompt=reply_follows,
                tokenize=False,
            )
        except Exception as error:  # templates raise what they like on messages they do not want
            raise BadRequest(
                f"the chat template refuses these messages: {error}", param="messages"
            ) from error
        return rendered


def _normal(message: dict[str, Any], i: int) -> dict[str, Any]:
    """A message with a known role and its content as one text."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadRequest(f"`messages[{i}]` is not an object with a `role`", param="messages")
    role = "system" if message["role"] == "developer" else message["role"]
    content = message.get("content")
    if content is None:
        content = ""
    elif isinstance(content, list):
        content = "".join(_part(part, i) for part in content)
    elif not isinstance(content, str):
        raise BadRequest(
            f"`messages[{i}].content` is {type(content).__name__}, expected text or parts",
            param="messages",
        )
    return {**message, "role": role, "content": content}


def _part(part: Any, i: int) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise BadRequest(
        f"`messages[{i}].content` has a part of type {kind!r}; this model takes text only",
        param="messages",
    )


def _calls(message: dict[str, Any]) -> list[tuple[str, Any]]:
    """The name and arguments of each tool call in an assistant's message."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", call) if isinstance(call, dict) else {}
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            # What a model once wrote may be no JSON; then it is shown as it was.
            with contextlib.suppress(ValueError):
                arguments = json.loads(arguments)
        calls.append((str(function.get("name", "")), arguments))
    return calls


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """Templates want arguments as objects, where the wire format has a text."""
    calls = _calls(message)
    if not calls:
        return message
    listed = [
        {"type": "function", "function": {"name": name, "arguments": arguments}}
        for name, arguments in calls
    ]
    return {**message, "tool_calls": listed}


def _as_text(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools, calls and results as plain turns, for a template that knows none."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        role, content = message["role"], message["content"]
        for name, arguments in _calls(message):
            call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
            content += f"{chr(10) if content else ''}<tool_call>{call}</tool_call>"
        if role in ("tool", "function"):
            role, content = "user", f"<tool_response>{content}</tool_response>"
        turns.append({"role": role, "content": content})
    if tools:
        listed = "\n".join(
            json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools
        )
        text = TOOL_TEXT.format(tools=listed)
        if turns and turns[0]["role"] == "system":
            turns[0] = {"role": "system", "content": f"{turns[0]['content']}\n\n{text}"}
        else:
            turns.insert(0, {"role": "system", "content": text})
    return turns
