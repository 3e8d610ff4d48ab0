"""An assistant in LangGraph: the model names one call of a tool, the tool is run, the user is told.

It is an ordinary agent of LangGraph and LangChain, with no trace of whatever may watch or tune it. The graph takes
`{"request": …}` and returns a state whose `answer` goes to the user.
Environment: `OPENAI_API_KEY`, and optionally `OPENAI_BASE_URL` and `OPENAI_MODEL`.
"""

from __future__ import annotations

import os
import re
from typing import TypedDict

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from tools import TOOLS, UNKNOWN

INSTRUCTION = (
    "Answer with one call of a tool:"
    " weather(city), flight(city), price(article), order(number) or phone(person)."
)
CALL = re.compile(r"(\w+)\(\s*(['\"]?)([^()]*?)\2\s*\)\.?")
MAX_TOKENS = 12
"""How much the model may say: one call on one line."""


class Input(TypedDict):
    """What the graph takes."""

    request: str
    """What the user wants to know."""


class State(Input, total=False):
    """What the nodes share, and what the graph returns."""

    said: str
    """What the model said: a call, if all went well."""
    result: str
    """What the tool said."""
    answer: str
    """What the user is told."""


def call(state: State) -> State:
    """Ask the model for a call."""
    model = ChatOpenAI(
        model=os.environ.get("OPENAI_MODEL", "gpt-4.1-mini"),
        temperature=0,
        max_tokens=MAX_TOKENS,
        stop=["\n"],
    )
    return {"said": model.invoke([SystemMessage(INSTRUCTION), HumanMessage(state["request"])]).text}


def act(state: State) -> State:
    """Run the tool, where the model named one."""
    name, argument = parse(state["said"])
    return {"result": TOOLS[name].invoke(argument) if name in TOOLS else UNKNOWN}


def parse(said: str) -> tuple[str, str]:
    """The tool and the argument of a reply that is a call and nothing else; empty strings for any other."""
    found = CALL.fullmatch(said.strip())
    return (found[1], found[3]) if found else ("", "")


def answer(state: State) -> State:
    """Tell the user."""
    if state["result"] == UNKNOWN:
        return {"answer": "I do not know. Please ask in other words."}
    return {"answer": f"{parse(state['said'])[1]}: {state['result']}."}


def build() -> StateGraph[State, None, Input, State]:
    """The graph before it is compiled."""
    builder = StateGraph(State, input_schema=Input)
    for node in (call, act, answer):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "call")
    builder.add_edge("call", "act")
    builder.add_edge("act", "answer")
    builder.add_edge("answer", END)
    return builder


graph = build().compile(name="tool_calls")
