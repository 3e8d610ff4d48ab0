"""The adapter is held to the conformance class of core."""

from __future__ import annotations

import operator
import sys
from typing import Annotated, Any, TypedDict

import openai
from langchain.agents import create_agent
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph

from lightning_core.instrument import context
from lightning_core.testing.adapter import AdapterConformance
from lightning_langgraph import LangGraphAdapter, hooks


class LangGraphConformance(AdapterConformance):
    framework_modules = ("langgraph", "langchain", "langchain_core", "openai")

    def make_adapter(self):
        return LangGraphAdapter()

    def clients(self) -> dict[str, Any]:
        """Clients of this agent alone: ChatOpenAI's own are shared, and never closed."""
        sync, concurrent = openai.DefaultHttpxClient(), openai.DefaultAsyncHttpxClient()
        self.opened = [*getattr(self, "opened", []), (sync, concurrent)]
        return {"http_client": sync, "http_async_client": concurrent}

    def model(self, base_url: str) -> ChatOpenAI:
        return ChatOpenAI(model="scripted", api_key="k", base_url=base_url, **self.clients())

    async def close(self):
        for sync, concurrent in self.opened:
            sync.close()
            await concurrent.aclose()

    def touched(self):
        places = [vars(getattr(sys.modules[m], owner))[name] for m, owner, name, _ in hooks.PLACES]
        return (places, list(context._sources))


class State(TypedDict):
    question: str
    said: Annotated[list[Any], operator.add]


class TestGraph(LangGraphConformance):
    labels = (("team", "left"), ("team", "right"), ("inner", "deep"), ("team", "last"))

    def make_agent(self, base_url):
        chat = self.model(base_url)

        async def ask(state: State) -> dict[str, Any]:
            return {"said": [await chat.ainvoke(state["question"])]}

        def ask_in_thread(state: State) -> dict[str, Any]:
            return {"said": [chat.invoke(state["question"])]}

        inner = StateGraph(State).add_node("deep", ask).add_edge(START, "deep")
        graph = StateGraph(State)
        graph.add_node("left", ask)
        graph.add_node("right", ask_in_thread)
        graph.add_node("sub", inner.compile(name="inner"))
        graph.add_node("last", ask)
        for name in ("left", "right", "sub"):
            graph.add_edge(START, name)
        graph.add_edge(["left", "right", "sub"], "last")
        return graph.compile(name="team")


class TestCreateAgent(LangGraphConformance):
    labels = (("helper", "model"),)

    def make_agent(self, base_url):
        return create_agent(self.model(base_url), tools=[], name="helper")


class TestChain(LangGraphConformance):
    labels = (("RunnableSequence", None),)

    def make_agent(self, base_url):
        return ChatPromptTemplate.from_messages([("user", "{text}")]) | self.model(base_url)


class TestBareClientInANode(LangGraphConformance):
    labels = (("LangGraph", "ask"),)

    def make_agent(self, base_url):
        clients = self.clients()
        client = openai.AsyncOpenAI(
            base_url=base_url, api_key="k", http_client=clients["http_async_client"]
        )

        async def ask(state: State) -> dict[str, Any]:
            reply = await client.chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": state["question"]}]
            )
            return {"said": [reply.choices[0].message.content]}

        return StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile()
