"""The reward of `agent.py`: whether the model said the one call that answers the request, and if not, what it said."""

from __future__ import annotations

from agent import parse

from lightning_core import Reward, Task, Trace

RIGHT_TOOL = 0.3
"""For the right tool with another argument."""


def score(task: Task, trace: Trace) -> list[Reward]:
    """1 where tool and argument are right, 0.3 where the tool alone is, else 0. `tool` and `argument` say each."""
    (tool, argument), (named, given) = parse(task.expected), parse(trace.output["said"])
    # Tools do not mind capitals. The right argument alone earns nothing: naming the same tool each time would get it.
    right_tool, right_argument = named == tool, given.lower() == argument.lower()
    value = (1.0 if right_argument else RIGHT_TOOL) if right_tool else 0.0
    said = trace.output["said"].strip()
    return [
        Reward(value=value, feedback=None if value == 1 else f"Expected `{task.expected}` but got {said!r}."),
        Reward(name="tool", value=float(right_tool)),
        Reward(name="argument", value=float(right_argument)),
    ]  # fmt: skip
