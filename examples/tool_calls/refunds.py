"""The contrast: an assistant that says whether a purchase is refunded, which no demonstration teaches a small model.

An ordinary LangGraph agent, as `agent.py` is. The graph takes `{"request": …}` and returns a state with `answer`.
"""

from __future__ import annotations

import os
from typing import Any, TypedDict

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

INSTRUCTION = "Purchases are refunded up to 30 days after the sale. Answer with yes or no."
MAX_TOKENS = 4
ANSWERS = {
    "yes": "You get your money back.",
    "no": "Refunds are given for 30 days only.",
}


class Input(TypedDict):
    """What the graph takes."""

    request: str
    """What the customer wrote."""


class State(Input, total=False):
    """What the nodes share, and what the graph returns."""

    decision: str
    """What the model said; `yes` or `no` is understood."""
    answer: str
    """What the customer is told."""


def decide(state: State) -> State:
    """Ask the model whether the purchase is refunded."""
    model = ChatOpenAI(
        model=os.environ.get("OPENAI_MODEL", "gpt-4.1-mini"),
        temperature=0,
        max_tokens=MAX_TOKENS,
        stop=["\n"],
    )
    said = model.invoke([SystemMessage(INSTRUCTION), HumanMessage(state["request"])]).text
    return {"decision": plain(said)}


def plain(said: str) -> str:
    """A reply in small letters, without space around it and without a full stop."""
    return said.strip().lower().removesuffix(".")


def answer(state: State) -> State:
    """Tell the customer."""
    return {"answer": ANSWERS.get(state["decision"], "A colleague will write to you.")}


def build() -> StateGraph[State, None, Input, State]:
    """The graph before it is compiled."""
    builder = StateGraph(State, input_schema=Input)
    for node in (decide, answer):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "decide")
    builder.add_edge("decide", "answer")
    builder.add_edge("answer", END)
    return builder


graph = build().compile(name="refunds")


def score(task: Any, trace: Any) -> float:
    """The reward: 1 where the decision is right, else 0."""
    return float(trace.output["decision"] == task.expected)
