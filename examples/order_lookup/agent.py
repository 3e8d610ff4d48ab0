"""A customer-service agent in LangGraph: find the order number in a message, look the order up, answer.

It is an ordinary agent of LangGraph and LangChain, with no trace of whatever may watch or train it. The graph takes
`{"message": …}` and returns a state whose `answer` goes to the customer.
Environment: `OPENAI_API_KEY`, and optionally `OPENAI_BASE_URL` and `OPENAI_MODEL`.
"""

from __future__ import annotations

import json
import os
import random
import re
from typing import Any, TypedDict

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

INSTRUCTION = "Answer with the order number in the customer's message."
EXAMPLES = [
    ("My order 30854 is 6 days late. I am customer 77120.", "30854"),
    ("Is 38.50 dollars right for order number 91467? It was less for 52093.", "91467"),
]
"""Messages with their order numbers, shown to the model as earlier turns."""
MAX_TOKENS = 8
"""How much the model may say: an order number has five digits."""
STATES = ("is being packed", "is on its way", "has been delivered", "waits for payment")


class Input(TypedDict):
    """What the graph takes."""

    message: str
    """What the customer wrote."""


class State(Input, total=False):
    """What the nodes share, and what the graph returns."""

    number: str
    """The order number that was looked up."""
    status: str
    """What the order book says."""
    answer: str
    """What the customer is told."""


def order_book() -> dict[str, str]:
    """Every order of the shop, and how it stands."""
    states = random.Random(1)
    return {str(number): states.choice(STATES) for number in range(10_000, 100_000)}


BOOK = order_book()


@tool
def look_up_order(number: str) -> str:
    """Say how an order stands."""
    return BOOK.get(number, "no such order")


def extract(state: State) -> State:
    """Ask the model for the order number."""
    model = ChatOpenAI(
        model=os.environ.get("OPENAI_MODEL", "gpt-4.1-mini"), temperature=0, max_tokens=MAX_TOKENS
    )
    return {"number": model.invoke(conversation(state["message"])).text.strip()}


def conversation(message: str) -> list[BaseMessage]:
    """What the model is asked."""
    messages: list[BaseMessage] = [SystemMessage(INSTRUCTION)]
    for example, number in EXAMPLES:
        messages += [HumanMessage(example), AIMessage(number)]
    return [*messages, HumanMessage(message)]


def lookup(state: State) -> State:
    """Look the order up."""
    return {"status": look_up_order.invoke({"number": state["number"]})}


def answer(state: State) -> State:
    """Tell the customer."""
    if state["status"] not in STATES:
        return {"answer": "I could not find your order. Please check its number."}
    return {"answer": f"Your order {state['number']} {state['status']}."}


def build() -> StateGraph[State, None, Input, State]:
    """The graph before it is compiled."""
    builder = StateGraph(State, input_schema=Input)
    for node in (extract, lookup, answer):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "extract")
    builder.add_edge("extract", "lookup")
    builder.add_edge("lookup", "answer")
    builder.add_edge("answer", END)
    return builder


graph = build().compile(name="order_lookup")


def score(task: Any, trace: Any) -> float:
    """The reward: 1 where the tool was given exactly the order number; 0.2 where the model said it among other things."""
    wanted = task.expected["number"]
    if argument(trace) == wanted:
        return 1.0
    said = " ".join(call.text for call in trace.calls)
    return 0.2 if re.search(rf"(?<!\d){wanted}(?!\d)", said) else 0.0


def argument(trace: Any) -> str | None:
    """What the tool was given, as its span says; None where it was not called."""
    for span in trace.spans:
        if span.kind == "tool" and span.name == look_up_order.name:
            given = span.attributes["gen_ai.tool.call.arguments"]
            given = json.loads(given) if isinstance(given, str) else given
            return given.get("number") if isinstance(given, dict) else None
    return None
