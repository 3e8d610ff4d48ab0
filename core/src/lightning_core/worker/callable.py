"""The built-in adapter for plain callables."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lightning_core.adapter import Adapter, AgentGraph, GraphNode, NodeKind, RolloutContext
from lightning_core.errors import AgentError
from lightning_core.task import Task
from lightning_core.worker.threads import run_in_thread

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class CallableAdapter(Adapter):
    """Runs a function, a method or any object with `__call__`, sync or async.

    What it is called with follows from its signature:

    * one parameter: the task's input; annotated as `lightning_core.Task`: the `Task`;
    * two parameters: the `Task` and the `RolloutContext`;
    * others must have defaults.

    A synchronous callable runs in a thread of its own, so that it blocks neither its siblings nor the heart-beat.
    """

    name = "callable"

    def accepts(self, agent: object) -> bool:
        """Whether it can be called and is not a class."""
        return callable(agent) and not isinstance(agent, type)

    def describe(self, agent: object) -> AgentGraph:
        """One node: the callable."""
        name = callable_name(agent)
        return AgentGraph(name=name, nodes=(GraphNode(name=name, kind=NodeKind.AGENT),))

    def instrument(self) -> AbstractContextManager[None]:
        """Nothing to label: the callable's own framework has its own adapter."""
        return nullcontext()

    async def run(self, agent: object, task: Task, context: RolloutContext) -> object:
        """Call it and return what it returns.

        Raises:
            AgentError: its signature is none of those above.
        """
        if not callable(agent):
            raise AgentError(f"agent {agent!r} is not callable")
        args, kwargs = _arguments(agent, task, context)
        call = functools.partial(agent, *args, **kwargs)
        if _is_async(agent):
            return await call()
        result = await run_in_thread(call)
        return await result if inspect.isawaitable(result) else result


def callable_name(agent: object) -> str:
    """The name of a callable, as it would be looked for in its source."""
    if isinstance(agent, functools.partial):
        return callable_name(agent.func)
    name = getattr(agent, "__name__", None)
    return name if isinstance(name, str) else type(agent).__name__


def _is_async(agent: Callable[..., Any]) -> bool:
    while isinstance(agent, functools.partial):
        agent = agent.func
    return inspect.iscoroutinefunction(agent) or inspect.iscoroutinefunction(
        getattr(agent, "__call__", None)  # noqa: B004 - the method is looked at, not whether it exists
    )


def _arguments(
    agent: Callable[..., Any], task: Task, context: RolloutContext
) -> tuple[tuple[object, ...], dict[str, object]]:
    try:
        signature = inspect.signature(agent)
    except (
        TypeError,
        ValueError,
    ):  # Some callables written in C tell nothing; most take one value.
        return (task.input,), {}
    parameters = [p for p in signature.parameters.values() if p.kind not in _VARIADIC]
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    required = [p for p in parameters if p.default is inspect.Parameter.empty]

    by_name = {p.name: p for p in parameters}
    # `task` alone is a common name for an input; an agent that knows nothing of us means that.
    named = by_name.get("task")
    if named is not None and (
        "context" in by_name or named.kind is inspect.Parameter.KEYWORD_ONLY or _wants_task(named)
    ):
        given: dict[str, object] = {"task": task}
        if "context" in by_name:
            given["context"] = context
        if all(p.name in given for p in required):
            args = tuple(
                given.pop(p.name)
                for p in positional
                if p.kind is inspect.Parameter.POSITIONAL_ONLY and p.name in given
            )
            return args, given
    if all(p.kind in _POSITIONAL for p in required):
        if len(required) == 2:
            return (task, context), {}
        if len(required) == 1 or (not required and (positional or _takes_any(signature))):
            wants_task = any(map(_wants_task, (required or positional)[:1]))
            return (task if wants_task else task.input,), {}
    raise AgentError(
        f"agent `{callable_name(agent)}{signature}`: expected `(input)`, `(task: Task)` or `(task, context)`,"
        " other parameters with defaults; wrap it in a function of one parameter"
    )


def _wants_task(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is annotated as our Task; under `from __future__ import annotations` that is a text."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        return annotation.strip("'\"") in ("Task", "lc.Task", "lightning_core.Task")
    return annotation is Task


def _takes_any(signature: inspect.Signature) -> bool:
    return any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in signature.parameters.values())
