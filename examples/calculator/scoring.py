"""The reward: whether the answer is right, and whether the calculator was made to give the values that lead to it.

`expected` is a solution as GSM8K writes it: `<<3*4=12>>` where something is calculated, and `#### 12` at the end.
"""

from __future__ import annotations

import json
import re

from lightning_core import Reward, Task, Trace
from lightning_core.rewards import numeric

TOOL_SHARE = 0.2
"""What tool use counts for beside the answer."""
STEP = re.compile(r"<<[^<>]*=\s*([^<>=]+)>>")
OPERATION = re.compile(r"[\d)]\s*[-+*/%^]")


def score(task: Task, trace: Trace) -> list[Reward]:
    """0.8 for the right answer and 0.2 for tool use; `answer` and `tool` say each."""
    answer, tool = numeric(task, trace), tool_use(task, trace)
    return [
        Reward(
            value=(1 - TOOL_SHARE) * answer + TOOL_SHARE * tool,
            feedback=None if answer == 1 else f"Expected {str(task.expected).split('####')[-1].strip()}.",
        ),
        Reward(name="answer", value=answer),
        Reward(name="tool", value=tool),
    ]  # fmt: skip


def tool_use(task: Task, trace: Trace) -> float:
    """The share of the solution's values that a calculation gave, in whatever form and order it was asked for.

    A number that was only handed to the calculator is none that it gave.
    """
    wanted = {float(text.replace(",", "")) for text in STEP.findall(str(task.expected)) if _is_number(text)}  # fmt: skip
    given = [
        float(span.attributes["gen_ai.tool.call.result"])
        for span in trace.spans
        if span.kind == "tool"
        and OPERATION.search(_expression(span.attributes.get("gen_ai.tool.call.arguments")))
        and _is_number(str(span.attributes.get("gen_ai.tool.call.result", "")))
    ]
    if not wanted:
        return float(bool(given))
    met = [value for value in wanted if any(abs(value - got) < 0.005 for got in given)]
    return len(met) / len(wanted)


def _expression(arguments: object) -> str:
    found = arguments.get("expression") if isinstance(arguments, dict) else None
    return found if isinstance(found, str) else json.dumps(found)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[\d,]*\.?\d+", text.strip()) is not None
