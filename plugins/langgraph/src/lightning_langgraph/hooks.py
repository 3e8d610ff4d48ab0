"""Puts wrappers where LangChain tells its callbacks of runs, and takes them away again.

A callback handler would hear the same, and LangChain has a hook to add one. But once there is any handler, LangChain goes
through the event loop for each event, which by itself takes 3 % of an agent's own time; and the handler would be seen in
the configs of the user's code. Outside attempts the wrappers do nothing.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from lightning_core.instrument import Patches
from lightning_langgraph.labels import RUNS

log = logging.getLogger(__name__)


def _start(began: Callable[..., None]) -> Callable[[Any], Any]:
    """Around the method of a manager that starts a run."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def start(self: Any, *given: Any, **named: Any) -> Any:
            run = original(self, *given, **named)
            _tell(began, self, run, given, named)
            return run

        return start

    return wrap


def _async_start(began: Callable[..., None]) -> Callable[[Any], Any]:
    """The same of an asynchronous manager, which is awaited where the run is at work."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        async def start(self: Any, *given: Any, **named: Any) -> Any:
            run = await original(self, *given, **named)
            _tell(began, self, run, given, named)
            return run

        return start

    return wrap


def _end(ended: Callable[..., None]) -> Callable[[Any], Any]:
    """Around the method of a run that ends it, be it a coroutine function or not."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def end(self: Any, *given: Any, **named: Any) -> Any:
            # Here and not where it is awaited: an asynchronous one may do that in another context.
            _tell(ended, self, given, named)
            return original(self, *given, **named)

        return end

    return wrap


def _tell(tell: Callable[..., None], *what: Any) -> None:
    """Tell of an event; the agent goes on, whatever becomes of its spans."""
    try:
        tell(*what)
    except Exception:
        log.warning("a run of LangChain cannot be recorded", exc_info=True)


_STARTS: tuple[tuple[str, Callable[..., None]], ...] = (
    ("on_chain_start", RUNS.chain_began),
    ("on_tool_start", RUNS.tool_began),
    ("on_chat_model_start", RUNS.model_began),
    ("on_llm_start", RUNS.model_began),
)
_ENDS: tuple[tuple[str, str, Callable[..., None]], ...] = (
    ("CallbackManagerForChainRun", "on_chain_end", RUNS.ended),
    ("CallbackManagerForChainRun", "on_chain_error", RUNS.failed),
    ("CallbackManagerForToolRun", "on_tool_end", RUNS.tool_ended),
    ("CallbackManagerForToolRun", "on_tool_error", RUNS.failed),
    ("CallbackManagerForLLMRun", "on_llm_end", RUNS.model_ended),
    ("CallbackManagerForLLMRun", "on_llm_error", RUNS.model_ended),
)
_MANAGER = "langchain_core.callbacks.manager"

PLACES: tuple[tuple[str, str | None, str, Callable[[Any], Any]], ...] = (
    *((_MANAGER, "CallbackManager", name, _start(began)) for name, began in _STARTS),
    *((_MANAGER, "AsyncCallbackManager", name, _async_start(began)) for name, began in _STARTS),
    *((_MANAGER, owner, name, _end(ended)) for owner, name, ended in _ENDS),
    *((_MANAGER, f"Async{owner}", name, _end(ended)) for owner, name, ended in _ENDS),
)
"""Module, class (None for the module itself), name, and what makes the wrapper of the original."""

PATCHES = Patches("langgraph", PLACES)
"""Labels while it is entered."""
