"""The forms in which an agent may be given, and how each is run. Imports the SDK."""

from __future__ import annotations

from functools import partial
from typing import Any

from agents import Agent, Runner

from lightning_core.errors import AgentError

_WAYS = ("run", "run_sync", "run_streamed")
_SHARED = ("session", "conversation_id")
"""Options that would let rollouts read one another's messages."""


def starting_agent(agent: object) -> Agent[Any] | None:
    """The agent that a run begins with; None where it is none of the forms."""
    if isinstance(agent, Agent):
        return agent
    if not isinstance(agent, partial) or _way(agent) is None:
        return None
    first = agent.args[0] if agent.args else agent.keywords.get("starting_agent")
    return first if isinstance(first, Agent) and len(agent.args) < 2 else None


async def run(agent: Any, value: Any) -> Any:
    """Run an agent of any form on `value`; gives the `RunResult`.

    Raises:
        AgentError: the form has an option that all rollouts would share.
    """
    start = starting_agent(agent)
    options = dict(agent.keywords) if isinstance(agent, partial) else {}
    options.pop("starting_agent", None)
    for name in _SHARED:
        if options.get(name) is not None:
            raise AgentError(
                f"agent `{agent.func.__qualname__}`: its `{name}` would be shared by all rollouts; give a function that"
                " makes one for each run: `async def agent(task): return (await Runner.run(…)).final_output`"
            )
    assert start is not None  # `accepts` has looked
    if not isinstance(agent, partial) or _way(agent) != "run_streamed":
        return await Runner.run(start, value, **options)
    streamed = Runner.run_streamed(start, value, **options)
    async for _ in streamed.stream_events():
        pass
    return streamed


def _way(form: partial[Any]) -> str | None:
    """Which of the runner's methods it calls."""
    function = getattr(form.func, "__func__", None)
    ways = (way for way in _WAYS if function is vars(Runner)[way].__func__)
    return next(ways, None)
