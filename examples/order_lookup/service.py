"""The same shop's agent as a conversation: the model asks for an order itself, is told how it stands, and answers.

Two turns of one conversation at least, so that a reward at its end has to teach both. An ordinary LangGraph agent, as
`agent.py` is; it shares that one's order book and tasks.
"""

from __future__ import annotations

import os
import re
from typing import Any, TypedDict

from agent import STATES, look_up_order
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

INSTRUCTION = "Say LOOK UP and the number of the customer's order. Then tell the customer how the order stands."
EXAMPLES = [
    ("My order 30854 is 6 days late. I am customer 77120.", "30854", "is on its way"),
    ("Is 38.50 dollars right for order number 91467? It was less for 52093.", "91467", "waits for payment"),
]  # fmt: skip
"""Messages with their order numbers and what the order book said, shown to the model as earlier conversations."""
ASKED = re.compile(r"LOOK UP (\d+)\W*")
MAX_TURNS = 3
MAX_TOKENS = 16


class Input(TypedDict):
    """What the graph takes."""

    message: str
    """What the customer wrote."""


class State(Input, total=False):
    """What the nodes share, and what the graph returns."""

    turns: list[tuple[str, str]]
    """What the model asked for, and what it was told, in order."""
    answer: str
    """What the customer is told."""


def assistant(state: State) -> State:
    """Let the model ask or answer."""
    model = ChatOpenAI(
        model=os.environ.get("OPENAI_MODEL", "gpt-4.1-mini"), temperature=0, max_tokens=MAX_TOKENS
    )
    turns = state.get("turns", [])
    said = model.invoke(conversation(state["message"], turns)).text
    asked = ASKED.fullmatch(said.strip())
    if asked is None or len(turns) == MAX_TURNS:
        return {"answer": said.strip()}
    return {"turns": [*turns, (said, look_up_order.invoke({"number": asked[1]}))]}


def conversation(message: str, turns: list[tuple[str, str]]) -> list[BaseMessage]:
    """What the model is asked."""
    messages: list[BaseMessage] = [SystemMessage(INSTRUCTION)]
    for example, number, status in EXAMPLES:
        messages += [
            HumanMessage(example),
            AIMessage(f"LOOK UP {number}"),
            HumanMessage(f"RESULT {status}"),
            AIMessage(f"Your order {status}."),
        ]
    messages.append(HumanMessage(message))
    for said, told in turns:
        messages += [AIMessage(said), HumanMessage(f"RESULT {told}")]
    return messages


def build() -> StateGraph[State, None, Input, State]:
    """The graph before it is compiled."""
    builder = StateGraph(State, input_schema=Input)
    builder.add_node("assistant", assistant)
    builder.add_edge(START, "assistant")
    builder.add_conditional_edges(
        "assistant", lambda state: END if "answer" in state else "assistant"
    )
    return builder


graph = build().compile(name="order_service")


def score(task: Any, trace: Any) -> float:
    """The reward: 1 where the right order was looked up and the customer was told how it stands; 0.3 for the first alone;
    0.1 for looking up another."""
    numbers = [match[1] for call in trace.calls if (match := ASKED.fullmatch(call.text.strip()))]
    if task.expected["number"] not in numbers:
        return 0.1 if numbers else 0.0
    right = look_up_order.invoke({"number": task.expected["number"]})
    answer = trace.output.get("answer") or ""
    told = [status for status in STATES if status in answer]
    return 1.0 if told == [right] else 0.3
