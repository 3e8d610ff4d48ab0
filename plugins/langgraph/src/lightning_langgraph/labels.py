"""Spans and labels from LangChain's runs. Imports langchain-core."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Any
from uuid import UUID

from langchain_core.runnables.config import var_child_runnable_config

from lightning_core.instrument import context
from lightning_core.instrument.context import Scope
from lightning_core.instrument.plain import plain
from lightning_core.instrument.spans import OpenSpan

Given = tuple[Any, ...]
Named = Mapping[str, Any]

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


class Runs:
    """Keeps the runs that are open, makes spans of agents, nodes and tools, and tells whose the running code is.

    Keeps nothing of what runs outside attempts. Told in the caller's context: a context variable that is set in another
    thread or task would be lost.
    """

    def __init__(self) -> None:
        self._runs: dict[UUID, _Run] = {}
        self._model_runs: dict[UUID, _ModelRun] = {}
        self._opening = threading.Lock()

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
        # Lists, since other threads begin and end runs meanwhile.
        for run_id, run in list(self._runs.items()):
            if run.scope.attempt == attempt:
                self._runs.pop(run_id, None)
        for run_id, model_run in list(self._model_runs.items()):
            if model_run.parent.scope.attempt == attempt:
                self._model_runs.pop(run_id, None)

    # LangChain's events, as its managers and runs are asked to tell of them: `given` and `named` are the arguments.

    def chain_began(self, manager: Any, chain: Any, given: Given, named: Named) -> None:
        """Open a span where the chain is a node or the outermost; a graph gets its own with its first node."""
        run = self._begin(manager, chain.run_id, _name(given, named) or "Runnable")
        if run is None:
            return
        metadata: Mapping[str, Any] = manager.metadata
        if _is_node(run, manager.tags, metadata):
            if (parent := run.parent) is not None:
                with self._opening:  # Nodes may start side by side.
                    if parent.span is None:
                        parent.open("agent", _agent_name(parent))
                run.scope = parent.inside(run.base)
            run.open("node", str(metadata.get("langgraph_node") or run.name))
        elif run.parent is None:
            run.open("agent", _agent_name(run))

    def ended(self, chain: Any, given: Given, named: Named) -> None:
        """End a chain's span."""
        run = self._runs.pop(chain.run_id, None)
        if run is not None and run.span is not None:
            context.end_span(run.span)

    def failed(self, broken: Any, given: Given, named: Named) -> None:
        """End a chain's or a tool's span with the error."""
        run = self._runs.pop(broken.run_id, None)
        if run is not None and run.span is not None:
            error: BaseException = given[0] if given else named["error"]
            flow = _is_control_flow(error)
            context.end_span(run.span, error=None if flow else context.describe_error(error))

    def tool_began(self, manager: Any, tool: Any, given: Given, named: Named) -> None:
        """Open the tool's span."""
        run = self._begin(manager, tool.run_id, _name(given, named) or "tool")
        if run is None:
            return
        arguments = named.get("inputs")
        if arguments is None:
            arguments = given[1] if len(given) > 1 else named.get("input_str")
        attributes = {
            "gen_ai.tool.name": run.name,
            "gen_ai.tool.call.arguments": plain(arguments, _MAX_VALUE),
        }
        if named.get("tool_call_id"):
            attributes["gen_ai.tool.call.id"] = str(named["tool_call_id"])
        run.open("tool", run.name, attributes)

    def tool_ended(self, tool: Any, given: Given, named: Named) -> None:
        """End the tool's span with what it gave."""
        run = self._runs.pop(tool.run_id, None)
        if run is None or run.span is None:
            return
        output = given[0] if given else named["output"]
        attributes = run.span.attributes
        result = plain(getattr(output, "content", output), _MAX_VALUE)
        attributes["gen_ai.tool.call.result"] = result
        call_id = getattr(output, "tool_call_id", None)
        if call_id:  # The oldest releases do not say it at the start.
            attributes["gen_ai.tool.call.id"] = str(call_id)
        context.end_span(run.span)

    def model_began(self, manager: Any, models: Any, given: Given, named: Named) -> None:
        """Tell whose the requests are that follow in this context."""
        parent = self._parent(manager.parent_run_id)
        if parent is None:
            return
        for model in models:
            model_run = _ModelRun(parent, _run_around())
            model_run.token = _model_run.set(model_run)
            self._model_runs[model.run_id] = model_run

    def model_ended(self, model: Any, given: Given, named: Named) -> None:
        """What follows is no longer the model run's."""
        model_run = self._model_runs.pop(model.run_id, None)
        if model_run is None:
            return
        model_run.open = False
        if model_run.token is not None:
            try:  # noqa: SIM105 - `suppress` takes longer than all the rest
                _model_run.reset(model_run.token)
            except ValueError:
                pass  # Ended in another context than it began in, which then never saw it.

    # -----------------------------------------------------------------------------------------------------------

    def _begin(self, manager: Any, run_id: UUID, name: str) -> _Run | None:
        base = context.base()
        parent = self._parent(manager.parent_run_id)
        outer = context.current() if parent is None else parent.inside(base)
        if outer is None:
            return None
        run = self._runs[run_id] = _Run(parent, base, outer, name, manager.metadata)
        return run

    def _parent(self, parent_run_id: UUID | None) -> _Run | None:
        # A config with callbacks of its own loses the parent's id; the context still knows it.
        around = _run_around() if parent_run_id is None else parent_run_id
        return None if around is None else self._runs.get(around)


RUNS = Runs()


def _run_around() -> UUID | None:
    """Id of the chain or tool that the running code is in, as LangChain's own context says."""
    config = var_child_runnable_config.get()
    callbacks = config.get("callbacks") if config else None
    return getattr(callbacks, "parent_run_id", None)


def _is_node(run: _Run, tags: Sequence[str], metadata: Mapping[str, Any]) -> bool:
    """Whether the run is a graph's node or task, and not one of the Runnables that work inside it.

    All of these have the node's metadata; only a node has the tag, and only a task a new place below its parent's.
    """
    for tag in tags:  # A generator for `any` would take as long as the span.
        if tag.startswith("graph:step:"):
            return True
    is_named = run.name == metadata.get("langgraph_node")
    return is_named and run.parent is not None and run.place != run.parent.place


def _agent_name(run: _Run) -> str:
    """`create_agent`'s name where this run brought it in, else the run's own."""
    outer = run.parent.agent_name if run.parent is not None else None
    return run.agent_name if run.agent_name and run.agent_name != outer else run.name


def _name(given: Given, named: Named) -> str | None:
    """What a chain or tool is called."""
    if name := named.get("name"):
        return str(name)
    serialized = given[0] if given else named.get("serialized")
    if not serialized:
        return None
    identifier = serialized.get("id")
    return serialized.get("name") or (identifier[-1] if identifier else None)


def _is_control_flow(error: BaseException) -> bool:
    """Whether LangGraph raises it to interrupt or to jump, not to fail."""
    errors = sys.modules.get("langgraph.errors")
    return errors is not None and isinstance(error, errors.GraphBubbleUp)
