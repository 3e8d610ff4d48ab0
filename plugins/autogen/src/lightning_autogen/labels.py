"""Spans and labels of agents, teams, tools and handoffs: wrappers of what runs them. Imports nothing of AutoGen.

An async generator runs in the context of whoever asks it for its next item, so a label is set for each step and taken
away before the item is given out: else it would hold for the code that reads the stream.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import Any

from lightning_core.instrument import context
from lightning_core.instrument.plain import plain
from lightning_core.instrument.spans import OpenSpan

_MAX_VALUE = 16 * 1024
_NOTHING = nullcontext()

_place: ContextVar[tuple[OpenSpan | None, OpenSpan | None]] = ContextVar(
    "lightning_autogen", default=(None, None)
)
"""The innermost span that was opened here, and that of the innermost team's run."""
_runs: dict[str, OpenSpan] = {}
"""The runs of teams that go on, by the team's id."""


# Agents --------------------------------------------------------------------------------------------------------------


def agent_run(original: Any) -> Any:
    """Wrap `BaseChatAgent.run`."""

    @wraps(original)
    async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _span("agent", self.name):
            return await original(self, *args, **kwargs)

    return run


def agent_stream(original: Any) -> Any:
    """Wrap `BaseChatAgent.run_stream` or `AssistantAgent.on_messages_stream`, which stand within one another."""

    @wraps(original)
    def stream(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        return _steps(
            original(self, *args, **kwargs), lambda: _open("agent", self.name), each=_tell_response
        )

    return stream


def agent_turn(original: Any) -> Any:
    """Wrap `trace_invoke_agent_span` where the participant of a team has its turn."""

    @wraps(original)
    @contextmanager
    def trace_invoke_agent_span(agent_name: str, **kwargs: Any) -> Iterator[Any]:
        with _span("agent", agent_name), original(agent_name, **kwargs) as traced:
            yield traced

    return trace_invoke_agent_span


# Teams ---------------------------------------------------------------------------------------------------------------


def team_stream(original: Any) -> Any:
    """Wrap `BaseGroupChat.run_stream`, which `run` calls."""

    @wraps(original)
    def run_stream(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        def start() -> OpenSpan | None:
            scope = context.current()
            if scope is None:
                return None
            inside = context.relabelled(scope, team=self.name)
            opened = context.start_span("agent", self.name, scope=inside)
            if opened is not None:
                # A team that is running already says so itself; its first run is the one that goes on.
                _runs.setdefault(self._team_id, opened)
            return opened

        def finish(opened: OpenSpan) -> None:
            if _runs.get(self._team_id) is opened:
                _runs.pop(self._team_id, None)

        return _steps(original(self, *args, **kwargs), start, finish=finish, is_team=True)

    return run_stream


def message(original: Any) -> Any:
    """Wrap `MessageHandlerContext.populate_context`, within which an agent or a team's manager handles a message.

    A runtime that was started before the team ran handles it in a task of old, whose context knows nothing of the run.
    """
    function = original.__func__

    @wraps(function)
    def populate_context(cls: Any, ctx: Any) -> AbstractContextManager[None]:
        run = _runs.get(ctx.key)
        if run is None or _place.get()[1] is run:
            entered: AbstractContextManager[None] = function(cls, ctx)
            return entered
        return handled(cls, ctx, run)

    @contextmanager
    def handled(cls: Any, ctx: Any, run: OpenSpan) -> Iterator[None]:
        with _Inside(run, run), function(cls, ctx):
            yield

    return classmethod(populate_context)


# Tools and handoffs --------------------------------------------------------------------------------------------------


def tool_call(original: Any) -> Any:
    """Wrap `AssistantAgent._execute_tool_call`: tools of every workbench, and calls that name none or cannot be read."""
    function = original.__func__

    @wraps(function)
    async def execute(tool_call: Any, *args: Any, **kwargs: Any) -> Any:
        def attributes() -> dict[str, Any]:
            return _tool_attributes(tool_call.name, _parsed(tool_call.arguments), tool_call.id)

        with _span("tool", tool_call.name, attributes) as opened:
            result = await function(tool_call, *args, **kwargs)
            if opened is not None:
                _tell_result(opened, result[1].content, is_error=result[1].is_error)
            return result

    return staticmethod(execute)


def tool_run(original: Any) -> Any:
    """Wrap `BaseTool.run_json`, for tools that something else than an `AssistantAgent` runs."""

    @wraps(original)
    async def run_json(self: Any, args: Any, *rest: Any, **kwargs: Any) -> Any:
        def attributes() -> dict[str, Any]:
            return _tool_attributes(self.name, args, kwargs.get("call_id"))

        with _span("tool", self.name, attributes) as opened:
            result = await original(self, args, *rest, **kwargs)
            if opened is not None:
                _tell_result(opened, result)
            return result

    return run_json


def _tool_attributes(name: str, arguments: object, call_id: str | None) -> dict[str, Any]:
    attributes = {
        "gen_ai.tool.name": name,
        "gen_ai.tool.call.arguments": plain(arguments, _MAX_VALUE),
    }
    return attributes if call_id is None else {**attributes, "gen_ai.tool.call.id": call_id}


def _parsed(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments  # As the model said it.


def _tell_result(opened: OpenSpan, result: object, *, is_error: bool | None = False) -> None:
    opened.attributes["gen_ai.tool.call.result"] = plain(result, _MAX_VALUE)
    if is_error:
        context.end_span(opened, error=str(result)[:4096])


def _tell_response(item: Any, opened: OpenSpan | None) -> None:
    """A span for the handoff that an agent's response may be; it takes no time."""
    said: Any = getattr(item, "chat_message", None)
    around = opened or _place.get()[0]
    if around is None or said is None:
        return
    if getattr(said, "type", None) == "HandoffMessage":
        attributes = {"lightning.handoff.from": said.source, "lightning.handoff.to": said.target}
        handed = context.start_span("handoff", said.target, attributes, scope=around.scope)
        if handed is not None:
            context.end_span(handed)
    if opened is not None:
        context.end_span(opened)  # Nothing follows, and `on_messages` reads no further.


# Spans ---------------------------------------------------------------------------------------------------------------


def _open(
    kind: str, name: str, attributes: Callable[[], dict[str, Any]] | None = None
) -> OpenSpan | None:
    """Start a span; None outside an attempt, and where the innermost one is this very one: hooks stand within hooks."""
    scope = context.current()
    if scope is None:
        return None
    top, _ = _place.get()
    asked = (scope.span, kind, name)
    if top is not None and not top.ended and (top.id, top.kind, top.name) == asked:
        return None
    return context.start_span(kind, name, attributes and attributes(), scope=scope)


@contextmanager
def _span(
    kind: str, name: str, attributes: Callable[[], dict[str, Any]] | None = None
) -> Iterator[OpenSpan | None]:
    """A span around what is inside, unless `_open` gives none."""
    opened = _open(kind, name, attributes)
    if opened is None:
        yield None
        return
    try:
        with _Inside(opened, _place.get()[1]):
            yield opened
    except BaseException as error:
        _end(opened, error)
        raise
    else:
        context.end_span(opened)


def _end(opened: OpenSpan, error: BaseException) -> None:
    """End a span with what was raised; where it says that nobody reads the stream any more, that is no fault."""
    gone = isinstance(error, GeneratorExit)
    context.end_span(opened, error=None if gone else context.describe_error(error))


class _Inside:
    """Enters a span's scope, and the run of a team, any number of times. A class, since a stream enters it for each item."""

    __slots__ = ("_entered", "_here", "_token")

    def __init__(self, opened: OpenSpan, team: OpenSpan | None) -> None:
        self._here = (opened, team)
        self._entered = context.entered(opened.scope)

    def __enter__(self) -> None:
        self._token = _place.set(self._here)
        self._entered.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._entered.__exit__(None, None, None)
        try:  # noqa: SIM105 - `suppress` takes longer than all the rest
            _place.reset(self._token)
        except ValueError:
            # A stream that is dropped in the middle of a step is closed in a context that never saw the value.
            pass


async def _steps(
    stream: AsyncGenerator[Any, None],
    start: Callable[[], OpenSpan | None],
    *,
    each: Callable[[Any, OpenSpan | None], None] | None = None,
    finish: Callable[[OpenSpan], None] | None = None,
    is_team: bool = False,
) -> AsyncGenerator[Any, None]:
    """The items of `stream`, each step of which runs inside the span that `start` gives; it ends with the stream."""
    opened = start()
    team = opened if is_team else _place.get()[1]
    inside = _NOTHING if opened is None else _Inside(opened, team)
    try:
        try:
            while True:
                with inside:
                    try:
                        item = await anext(stream)
                    except StopAsyncIteration:
                        break
                if each is not None:
                    each(item, opened)
                yield item
        finally:
            with inside:
                await stream.aclose()
    except BaseException as error:
        if opened is not None:
            _end(opened, error)
        raise
    finally:
        if opened is not None:
            context.end_span(opened)
            if finish is not None:
                finish(opened)
