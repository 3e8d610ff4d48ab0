"""Puts the labels where AutoGen runs agents, teams and tools, and takes them away again. Imports nothing of AutoGen.

AutoGen has OpenTelemetry spans and log events but no callback around what it runs, and those know neither teams nor
where a call goes. So methods are wrapped; each module's as soon as it is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning_autogen import labels
from lightning_core.instrument import Patches

_CHAT = "autogen_agentchat"
_AGENT = f"{_CHAT}.agents._base_chat_agent"
_ASSISTANT = f"{_CHAT}.agents._assistant_agent"
_TEAM = f"{_CHAT}.teams._group_chat._base_group_chat"
_CONTAINER = f"{_CHAT}.teams._group_chat._chat_agent_container"
_MESSAGE = "autogen_core._message_handler_context"

PLACES: tuple[tuple[str, str | None, str, Callable[[Any], Any]], ...] = (
    (_AGENT, "BaseChatAgent", "run", labels.agent_run),
    (_AGENT, "BaseChatAgent", "run_stream", labels.agent_stream),
    (_ASSISTANT, "AssistantAgent", "on_messages_stream", labels.agent_stream),
    (_ASSISTANT, "AssistantAgent", "_execute_tool_call", labels.tool_call),
    (_TEAM, "BaseGroupChat", "run_stream", labels.team_stream),
    # The turn of an agent of any kind in a team. The handler around it is bound when a team first runs.
    (_CONTAINER, None, "trace_invoke_agent_span", labels.agent_turn),
    (_MESSAGE, "MessageHandlerContext", "populate_context", labels.message),
    ("autogen_core.tools._base", "BaseTool", "run_json", labels.tool_run),
)
"""Module, class (None for the module itself), name, and what makes the wrapper of the original."""

PATCHES = Patches("autogen", PLACES)
"""Labels while it is entered."""
