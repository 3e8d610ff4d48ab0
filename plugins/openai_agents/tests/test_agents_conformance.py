"""The adapter is held to the conformance class of core."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import openai
from agents import (
    Agent,
    GuardrailFunctionOutput,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    input_guardrail,
)

from lightning_core.testing.adapter import AdapterConformance
from lightning_openai_agents import OpenAIAgentsAdapter, hooks


class AgentsConformance(AdapterConformance):
    framework_modules = ("agents", "openai")
    kind: Any = OpenAIResponsesModel

    def make_adapter(self):
        return OpenAIAgentsAdapter()

    def model(self, base_url: str) -> Any:
        client = openai.AsyncOpenAI(base_url=base_url, api_key="k")
        self.opened = [*getattr(self, "opened", []), client]
        return self.kind(model="scripted", openai_client=client)

    async def close(self):
        for client in getattr(self, "opened", []):
            await client.close()

    def touched(self):
        places = []
        for module, owner, name, _ in hooks.PLACES:
            place = sys.modules[module]
            places.append(vars(place if owner is None else getattr(place, owner))[name])
        return places


class TestResponses(AgentsConformance):
    labels = (("helper", None),)

    def make_agent(self, base_url):
        return Agent("helper", instructions="Help.", model=self.model(base_url))


class TestChatCompletions(TestResponses):
    kind = OpenAIChatCompletionsModel


class TestStreamed(AgentsConformance):
    labels = (("helper", None),)

    def make_agent(self, base_url):
        return partial(Runner.run_streamed, Agent("helper", model=self.model(base_url)))


class TestGuardedWithoutTracing(AgentsConformance):
    labels = (("guard", "look"), ("chief", None))

    def make_agent(self, base_url):
        model = self.model(base_url)
        guard, other = Agent("guard", model=model), Agent("other", model=model)

        @input_guardrail(name="look")
        async def look(context, agent, text):
            result = await Runner.run(guard, text, run_config=off)
            return GuardrailFunctionOutput(result.final_output, tripwire_triggered=False)

        off = RunConfig(tracing_disabled=True)
        tools = [other.as_tool("ask", "Asks.")]
        # The guardrail's agent is a handoff too: what a guardrail asks, `describe` cannot know.
        chief = Agent("chief", model=model, tools=tools, handoffs=[guard], input_guardrails=[look])
        return partial(Runner.run, chief, run_config=off)
