"""A mathematician in AutoGen: it solves word problems, and reckons with a calculator.

It is an ordinary AutoGen agent, with no trace of whatever may watch or train it. It takes the problem as its task, and its
last message ends with the answer.
Environment: `OPENAI_API_KEY`, and optionally `OPENAI_BASE_URL` and `OPENAI_MODEL`.
"""

from __future__ import annotations

import os

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from calculator import shown, value

INSTRUCTION = (
    "Solve the problem. Call the tool `calculate` for every calculation."
    " When you know the answer, end with a line of #### and the number."
)
MAX_CALCULATIONS = 8
"""How often the model may ask for calculations before it has to answer."""


async def calculate(expression: str) -> str:
    """Calculate an arithmetic expression such as 12 * (3 + 4)."""
    try:
        return shown(value(expression))
    except (ValueError, ZeroDivisionError) as error:
        return f"Error: {error}"


def build() -> AssistantAgent:
    """The agent."""
    client = OpenAIChatCompletionClient(
        model=os.environ.get("OPENAI_MODEL", "gpt-4.1-mini"),
        temperature=0,
        # Said here, so that models whose names AutoGen does not know can be used.
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": False,
            "structured_output": False,
            "family": "unknown",
        },
    )
    return AssistantAgent(
        "mathematician",
        client,
        tools=[calculate],
        system_message=INSTRUCTION,
        max_tool_iterations=MAX_CALCULATIONS,
    )


agent = build()
