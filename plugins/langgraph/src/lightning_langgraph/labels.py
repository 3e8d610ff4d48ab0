"""Spans and labels from LangChain's callbacks. Imports langchain-core."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Any
from uuid import UUID

from langchain_core.callbacks.base import BaseCallbackHandler
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers import context as tracers

from lightning_core.instrument import context
from lightning_core.instrument.context import OpenSpan, Scope
from lightning_core.instrument.plain import plain

_MAX_VALUE = 16 * 1024


class _Run:
    """A chain or tool that is at work."""

    __slots__ = ("agent_name", "base", "name", "parent", "place", "scope", "span", "started_at")

    def __init__(
        self,
        parent: _Run | None,
        base: Scope | None,
        scope: Scope,
        name: str,
        metadata: Mapping[str, Any],
    ) -> None:
        self.parent = parent
        self.base = base
        """What the context variable said outside it."""
        self.scope = scope
        """What holds inside it."""
        self.name = name
        self.agent_name: str | None = metadata.get("lc_agent_name")
        self.place: str | None = metadata.get("langgraph_checkpoint_ns")
        self.span: OpenSpan | None = None
        self.started_at = time.time()

    def open(self, kind: str, name: str, attributes: dict[str, Any] | None = None) -> None:
        """Make it a span."""
        self.span = context.start_span(
            kind, name, attributes, scope=self.scope, started_at=self.started_at
        )
        if self.span is not None:
            self.scope = self.span.scope

    def inside(self, base: Scope | None) -> Scope:
        """The scope of code within it whose context variable says `base`."""
        if base is None or base is self.base or base is context.process_scope():
            return self.scope
        return base  # A span or label that was entered within the run.


class _ModelRun:
    """A model call that LangChain has announced: what is sent until it ends belongs to `parent`."""

    __slots__ = ("around", "open", "parent", "token")

    def __init__(self, parent: _Run, around: UUID | None) -> None:
        self.parent = parent
        self.around = around
        self.open = True
        self.token: Token[_ModelRun | None] | None = None


_model_run: ContextVar[_ModelRun | None] = ContextVar("lightning_langgraph_model_run", default=None)


class LabelHandler(BaseCallbackHandler):
    """Keeps the runs that are open, makes spans of agents, nodes and tools, and tells whose the running code is.

    Used within attempts only; outside it keeps nothing.
    """

    # In the caller's task: a context variable that is set in another thread would be lost.
    run_inline = True

    def __init__(self) -> None:
        self._runs: dict[UUID, _Run] = {}
        self._model_runs: dict[UUID, _ModelRun] = {}
        self._lock = threading.RLock()

    def __deepcopy__(self, memo: dict[int, Any]) -> LabelHandler:
        return self  # Users copy configs; there is one handler per process.

    __copy__ = __deepcopy__

    def __reduce__(self) -> str:
        return "HANDLER"

    # What the running code belongs to ------------------------------------------------------------------------

    def resolve(self, scope: Scope | None) -> Scope | None:
        """The scope of the innermost run around the running code, else `scope`."""
        around = _run_around()
        model_run = _model_run.get()
        if model_run is not None and model_run.open and model_run.around == around:
            return model_run.parent.inside(scope)
        run = self._runs.get(around) if around is not None else None
        return scope if run is None else run.inside(scope)

    def forget(self, attempt: str) -> None:
        """Drop the runs of an attempt that has ended: those of abandoned streams never end."""
        with self._lock:
            for run_id in [i for i, r in self._runs.items() if r.scope.attempt == attempt]:
                del self._runs[run_id]
            for run_id in [
                i for i, r in self._model_runs.items() if r.parent.scope.attempt == attempt
            ]:
                del self._model_runs[run_id]

    # Chains: agents and nodes --------------------------------------------------------------------------------

    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Open a span where the chain is a node or the outermost; a graph gets its own with its first node."""
        metadata = metadata or {}
        name = str(kwargs.get("name") or _serialized_name(serialized) or "Runnable")
        run = self._begin(run_id, parent_run_id, name, metadata)
        if run is None:
            return
        if _is_node(run, tags or (), metadata):
            parent = run.parent
            if parent is not None:
                with self._lock:  # Nodes may start side by side.
                    if parent.span is None:
                        parent.open("agent", _agent_name(parent))
                run.scope = parent.inside(run.base)
            run.open("node", str(metadata.get("langgraph_node") or name))
        elif run.parent is None:
            run.open("agent", _agent_name(run))

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """End the chain's span."""
        self._end(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """End the chain's span with the error."""
        self._end(run_id, error=error)

    # Tools -----------------------------------------------------------------------------------------------------

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Mapping[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Open the tool's span."""
        name = str(kwargs.get("name") or _serialized_name(serialized) or "tool")
        run = self._begin(run_id, parent_run_id, name, metadata or {})
        if run is None:
            return
        attributes = {
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.arguments": plain(
                input_str if inputs is None else inputs, _MAX_VALUE
            ),
        }
        if kwargs.get("tool_call_id"):
            attributes["gen_ai.tool.call.id"] = str(kwargs["tool_call_id"])
        run.open("tool", name, attributes)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """End the tool's span with what it gave."""
        attributes = {
            "gen_ai.tool.call.result": plain(getattr(output, "content", output), _MAX_VALUE)
        }
        call_id = getattr(output, "tool_call_id", None)
        if call_id:  # The oldest releases do not say it at the start.
            attributes["gen_ai.tool.call.id"] = str(call_id)
        self._end(run_id, attributes=attributes)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """End the tool's span with the error."""
        self._end(run_id, error=error)

    # Model calls -------------------------------------------------------------------------------------------------

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[Any]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        """Tell whose the requests are that follow in this context."""
        self._begin_model_run(run_id, parent_run_id)

    def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        """Tell whose the requests are that follow in this context."""
        self._begin_model_run(run_id, parent_run_id)

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """What follows is no longer the model run's."""
        self._end_model_run(run_id)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """What follows is no longer the model run's."""
        self._end_model_run(run_id)

    # -----------------------------------------------------------------------------------------------------------

    def _begin(
        self, run_id: UUID, parent_run_id: UUID | None, name: str, metadata: Mapping[str, Any]
    ) -> _Run | None:
        base = context.base()
        parent = self._parent(parent_run_id)
        outer = context.current() if parent is None else parent.inside(base)
        if outer is None:
            return None
        run = _Run(parent, base, outer, name, metadata)
        with self._lock:
            self._runs[run_id] = run
        return run

    def _parent(self, parent_run_id: UUID | None) -> _Run | None:
        # A config with callbacks of its own loses the parent's id; the context still knows it.
        around = _run_around() if parent_run_id is None else parent_run_id
        return None if around is None else self._runs.get(around)

    def _end(
        self,
        run_id: UUID,
        *,
        error: BaseException | None = None,
        attributes: dict[str, Any] | None = None,
    ) -> None:
        with self._lock:
            run = self._runs.pop(run_id, None)
        if run is None or run.span is None:
            return
        run.span.attributes.update(attributes or {})
        failed = error is not None and not _is_control_flow(error)
        context.end_span(
            run.span, error=context.describe_error(error) if failed and error else None
        )

    def _begin_model_run(self, run_id: UUID, parent_run_id: UUID | None) -> None:
        parent = self._parent(parent_run_id)
        if parent is None:
            return
        model_run = _ModelRun(parent, _run_around())
        model_run.token = _model_run.set(model_run)
        with self._lock:
            self._model_runs[run_id] = model_run

    def _end_model_run(self, run_id: UUID) -> None:
        with self._lock:
            model_run = self._model_runs.pop(run_id, None)
        if model_run is None:
            return
        model_run.open = False
        if model_run.token is not None:
            try:  # noqa: SIM105 - `suppress` takes longer than all the rest
                _model_run.reset(model_run.token)
            except ValueError:
                pass  # Ended in another context than it began in, which then never saw it.


HANDLER = LabelHandler()
_variable: ContextVar[LabelHandler | None] = ContextVar("lightning_langgraph", default=HANDLER)
"""A default is seen in every thread and context; a value that is set is not."""


def register() -> None:
    """Give the handler to every run of this process."""
    tracers.register_configure_hook(_variable, inheritable=True)
    context.add_source(HANDLER)


def unregister() -> None:
    """Take the handler away."""
    context.remove_source(HANDLER)
    # langchain-core can register a hook but has no function to remove one.
    hooks = tracers._configure_hooks
    hooks[:] = [hook for hook in hooks if hook[0] is not _variable]


def _run_around() -> UUID | None:
    """Id of the chain or tool that the running code is in, as LangChain's own context says."""
    config = var_child_runnable_config.get()
    callbacks = config.get("callbacks") if config else None
    return getattr(callbacks, "parent_run_id", None)


def _is_node(run: _Run, tags: Sequence[str], metadata: Mapping[str, Any]) -> bool:
    """Whether the run is a graph's node or task, and not one of the Runnables that work inside it.

    All of these have the node's metadata; only a node has the tag, and only a task a new place below its parent's.
    """
    if any(tag.startswith("graph:step:") for tag in tags):
        return True
    is_named = run.name == metadata.get("langgraph_node")
    return is_named and run.parent is not None and run.place != run.parent.place


def _agent_name(run: _Run) -> str:
    """`create_agent`'s name where this run brought it in, else the run's own."""
    outer = run.parent.agent_name if run.parent is not None else None
    return run.agent_name if run.agent_name and run.agent_name != outer else run.name


def _serialized_name(serialized: dict[str, Any] | None) -> str | None:
    if not serialized:
        return None
    identifier = serialized.get("id")
    return serialized.get("name") or (identifier[-1] if identifier else None)


def _is_control_flow(error: BaseException) -> bool:
    """Whether LangGraph raises it to interrupt or to jump, not to fail."""
    errors = sys.modules.get("langgraph.errors")
    return errors is not None and isinstance(error, errors.GraphBubbleUp)
