"""The adapter is held to the conformance class of core."""

from __future__ import annotations

import sys
from typing import Any

from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent
from autogen_agentchat.teams import RoundRobinGroupChat, Swarm
from autogen_agentchat.tools import AgentTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

from lightning_autogen import AutoGenAdapter, hooks
from lightning_core.testing.adapter import AdapterConformance

INFO: Any = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "structured_output": False,
    "family": "unknown",
}


class AutoGenConformance(AdapterConformance):
    framework_modules = ("autogen_agentchat", "autogen_core", "autogen_ext", "openai")

    def make_adapter(self):
        return AutoGenAdapter()

    def model(self, base_url: str) -> OpenAIChatCompletionClient:
        client = OpenAIChatCompletionClient(
            model="scripted", api_key="k", base_url=base_url, model_info=INFO
        )
        self.opened = [*getattr(self, "opened", []), client]
        return client

    async def close(self):
        for client in self.opened:
            await client.close()

    def touched(self):
        places = []
        for module, owner, name, _ in hooks.PLACES:
            place = sys.modules[module]
            places.append(vars(place if owner is None else getattr(place, owner))[name])
        return places


class TestAgent(AutoGenConformance):
    labels = (("helper", None),)

    def make_agent(self, base_url):
        return AssistantAgent("helper", self.model(base_url), tools=[print_nothing])


class TestStreamingAgent(TestAgent):
    def make_agent(self, base_url):
        return AssistantAgent("helper", self.model(base_url), model_client_stream=True)


class TestTeam(AutoGenConformance):
    labels = (
        ("first", None), ("x", None), ("y", None), ("society", None), ("p", None), ("last", None),
    )  # fmt: skip

    def make_agent(self, base_url):
        client = self.model(base_url)
        first, x, y, p, last, other = (
            AssistantAgent(name, client) for name in ("first", "x", "y", "p", "last", "other")
        )
        inner = RoundRobinGroupChat([x, y], name="inner", max_turns=2)
        society = SocietyOfMindAgent("society", inner, client)
        swarm = Swarm([p, other], name="swarm", max_turns=1)
        return RoundRobinGroupChat([first, society, swarm, last], name="team", max_turns=4)


class TestAgentWithAnAgentAsATool(AutoGenConformance):
    labels = (("chief", None),)

    def make_agent(self, base_url):
        client = self.model(base_url)
        helper = AgentTool(AssistantAgent("helper", client))
        return AssistantAgent("chief", client, tools=[helper], handoffs=["user"])


def print_nothing(text: str) -> str:
    """Print nothing."""
    return text
