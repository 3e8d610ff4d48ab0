"""Puts the labels where AutoGen runs agents, teams and tools, and takes them away again. Imports nothing of AutoGen.

AutoGen has OpenTelemetry spans and log events but no callback around what it runs, and those know neither teams nor
where a call goes. So methods are wrapped; each module's as soon as it is imported.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightning_autogen import labels
from lightning_core.instrument import postimport

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

_lock = threading.RLock()
_users = 0
_cancels: list[Callable[[], None]] = []
_patched: list[tuple[Any, str, Any, Any]] = []


@contextmanager
def installed() -> Iterator[None]:
    """Label while the context is open; contexts may nest and overlap, and the last one out restores."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            for module, owner, name, wrap in PLACES:
                patch = _patcher(module, owner, name, wrap)
                _cancels.append(postimport.on_import(module, patch))
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _restore()


def _patcher(
    module: str, owner: str | None, name: str, wrap: Callable[[Any], Any]
) -> Callable[[], None]:
    def patch() -> None:
        with _lock:
            if _users == 0:
                return
            place = sys.modules[module] if owner is None else getattr(sys.modules[module], owner)
            original = vars(place)[name]
            ours = wrap(original)
            setattr(place, name, ours)
            _patched.append((place, name, original, ours))

    return patch


def _restore() -> None:
    while _cancels:
        _cancels.pop()()
    while _patched:
        place, name, original, ours = _patched.pop()
        # Somebody may have wrapped ours since: then it stays below theirs; outside attempts it does nothing.
        if vars(place).get(name) is ours:
            setattr(place, name, original)
