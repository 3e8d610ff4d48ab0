"""A copy of an agent or a team for each rollout, since they keep what was said and cannot run twice at once.

AutoGen's own way, `dump_component` and `load_component`, will not do: it leaves out what is no data (`selector_func`,
message types, formatters) and executes the source of tools' functions anew. So the object graph is copied, and what
is no state of the conversation is shared: model clients, functions, classes, runtimes, sessions with other services.
"""

from __future__ import annotations

import asyncio
import io
import pickle
import sys
import types
import uuid
from contextlib import suppress
from typing import Any

from autogen_agentchat.base import ChatAgent, Team
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import AgentRuntime, SingleThreadedAgentRuntime
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import StaticWorkbench, Workbench

from lightning_core.errors import AgentError

_SHARED = (
    type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType,
    ChatCompletionClient, AgentRuntime,
)  # fmt: skip
_WAY_OUT = (
    "give a function that makes and runs one for each task, such as"
    " `async def agent(task): return await make_agent().run(task=task)`"
)


async def fresh(agent: Any) -> Any:
    """A copy that is as `agent` is now and shares no conversation with it.

    Raises:
        AgentError: the agent, or a team in it, is running; or it holds something that cannot be copied.
    """
    pickler = _Pickler()
    try:
        pickler.dump(agent)
        copied = _Unpickler(pickler).load()
    except AgentError:
        raise
    except Exception as error:  # Whatever the user's objects raise when they are taken apart.
        raise AgentError(
            f"agent `{agent.name}` cannot be copied for a rollout: a `{_culprit(agent)}` that it holds raised"
            f" {type(error).__name__}: {error}; {_WAY_OUT}"
        ) from error
    if pickler.has_run:  # What a team's manager knows lies in the runtime, which is not copied.
        await copied.load_state(await agent.save_state())
    return copied


class _Pickler(pickle.Pickler):
    """Takes an object graph apart in memory; what is shared is kept aside."""

    def __init__(self) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, protocol=5)
        self.shared: list[Any] = []
        self.has_run = False

    def persistent_id(self, obj: Any) -> int | None:
        if not _SHARES[type(obj)] or (
            # A method is shared with the object of the user's that it belongs to, unless that is copied itself.
            isinstance(obj, types.MethodType) and isinstance(obj.__self__, ChatAgent | Team)
        ):
            return None
        self.shared.append(obj)
        return len(self.shared) - 1

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, BaseGroupChat):
            return NotImplemented
        if obj._is_running:
            raise AgentError(
                f"team `{obj.name}` is running already, and cannot be run or copied until it has stopped; {_WAY_OUT}"
            )
        self.has_run = self.has_run or obj._initialized
        return _restored, (type(obj), _state(obj))


class _Unpickler(pickle.Unpickler):
    def __init__(self, pickler: _Pickler) -> None:
        pickler.file.seek(0)
        super().__init__(pickler.file)
        self._shared = pickler.shared

    def persistent_load(self, pid: int) -> Any:
        return self._shared[pid]


class _Shares(dict[type, bool]):
    """Whether objects of a type are shared. Asked for every object, and telling an abstract class takes long."""

    def __missing__(self, cls: type) -> bool:
        openai: Any = sys.modules.get("openai")
        self[cls] = (
            issubclass(cls, _SHARED)
            or (issubclass(cls, Workbench) and not issubclass(cls, StaticWorkbench))
            or (openai is not None and issubclass(cls, openai.OpenAI | openai.AsyncOpenAI))
        )
        return self[cls]


_SHARES = _Shares()


def _culprit(agent: Any) -> str:
    """The type of what cannot be taken apart: the last that is asked for."""

    class Tracing(_Pickler):
        def persistent_id(self, obj: Any) -> int | None:
            seen.append(type(obj).__name__)
            return super().persistent_id(obj)

    seen: list[str] = [type(agent).__name__]
    with suppress(Exception):
        Tracing().dump(agent)
    return seen[-1]


def _state(team: BaseGroupChat) -> dict[str, Any]:
    """The team's attributes, as those of one that has not run, without its runtime and queue.

    The id is another: by it the messages of a team find their way where several share a runtime.
    """
    old, new = team._team_id, str(uuid.uuid4())

    def renamed(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(old, new)
        return [renamed(item) for item in value] if isinstance(value, list) else value

    state = {name: renamed(value) for name, value in vars(team).items()}
    del state["_output_message_queue"]
    if team._embedded_runtime:
        del state["_runtime"]
    return {**state, "_initialized": False}


def _restored(cls: type[BaseGroupChat], state: dict[str, Any]) -> BaseGroupChat:
    team = cls.__new__(cls)
    vars(team).update(state)
    team._output_message_queue = asyncio.Queue()
    if team._embedded_runtime:
        team._runtime = SingleThreadedAgentRuntime(ignore_unhandled_exceptions=False)
    return team
