"""In which forms an agent may be given, what it is made of, and how a task and its result are mapped."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    Handoff,
    MaxTurnsExceeded,
    Runner,
    SQLiteSession,
    WebSearchTool,
    function_tool,
    handoff,
    input_guardrail,
    output_guardrail,
)

from lightning_core.adapter import NodeKind, RolloutContext
from lightning_core.errors import AgentError
from lightning_core.rollout import Mode
from lightning_core.task import Task
from lightning_core.testing import Text, ToolCall, ToolCalls
from lightning_core.worker.outputs import to_json
from lightning_openai_agents import OpenAIAgentsAdapter

CONTEXT = RolloutContext(
    rollout_id="r",
    attempt_id="a",
    mode=Mode.OBSERVE,
    base_url="http://127.0.0.1:9/s/x/v1",
    deadline=time.time() + 600,
)


async def run(agent, given="do mark-a1", **options):
    task = Task(id="t", input=given)
    return await OpenAIAgentsAdapter(**options).run(agent, task, CONTEXT)


@pytest.fixture
def agents(server, agents_at):
    return agents_at(server.base_url)


@pytest.mark.parametrize("way", [Runner.run, Runner.run_sync, Runner.run_streamed])
async def test_a_partial_of_the_runner_has_the_runs_options(server, agents, way):
    agent = agents.agent("solo", "", also="use add", tools=agents.tools("", "solo"))
    for form in (partial(way, agent, max_turns=1), partial(way, max_turns=1, starting_agent=agent)):
        with pytest.raises(MaxTurnsExceeded):
            await run(form)
    server.requests.clear()
    assert await run(partial(way, agent, max_turns=2)) == "said so mark-a1"
    streams = [r.json.get("stream", False) for r in server.requests if "responses" in r.path]
    assert streams == [way == Runner.run_streamed] * 2


@pytest.mark.parametrize(
    "other",
    [
        Agent,
        Runner,
        Runner.run,
        partial(Runner.run),
        partial(Runner.run, "text"),
        partial(Runner.run, Agent("a"), "the input too"),
        partial(print, Agent("a")),
        partial(Agent, "a"),
    ],
)
def test_other_things_are_left_to_other_adapters(other):
    assert OpenAIAgentsAdapter().accepts(other) is False


@pytest.mark.parametrize("option", ["session", "conversation_id"])
async def test_what_rollouts_would_share_is_refused(agents, option):
    session = SQLiteSession("mine")
    value = session if option == "session" else "conv_1"
    form = partial(Runner.run, agents.agent("solo", ""), **{option: value})
    with pytest.raises(AgentError, match=f"`Runner.run`: its `{option}` would be shared"):
        await run(form)
    session.close()


async def test_a_list_of_items_is_given_as_it_is(server, agents):
    given = [{"role": "user", "content": "one"}, {"role": "user", "content": "two mark-b"}]
    assert await run(agents.agent("solo", ""), given) == "said so mark-b"
    assert server.requests[0].json["input"] == given


@pytest.mark.parametrize("given", [{"question": "why"}, [], ["why"], 3, None])
async def test_an_input_that_no_run_takes_is_one_error(agents, given):
    with pytest.raises(AgentError, match=r"task `t`: expected .* `OpenAIAgentsAdapter\(input="):
        await run(agents.agent("solo", ""), given)


async def test_mappings_of_the_users_own(agents):
    output = await run(
        agents.agent("solo", ""),
        {"question": "why mark-c"},
        input=lambda task: task.input["question"],
        output=lambda result: [result.final_output, result.last_agent.name],
    )
    assert output == ["said so mark-c", "solo"]


@dataclass
class Answer:
    text: str
    sure: bool


async def test_structured_output_becomes_json(server, agents):
    server.enqueue(Text('{"response": {"text": "yes", "sure": true}}'))
    output = await run(agents.agent("solo", "", output_type=Answer))
    assert to_json(output) == {"text": "yes", "sure": True}


async def test_a_run_that_waits_for_an_approval_is_an_error(server, agents):
    @function_tool(needs_approval=True)
    def drop() -> str:
        return "dropped"

    server.enqueue(ToolCalls([ToolCall("drop", {})]))
    with pytest.raises(
        AgentError, match="agent `solo`: the run stopped for the approval of `drop`"
    ):
        await run(agents.agent("solo", "", tools=[drop]))


def test_describe_tells_agents_tools_handoffs_and_guardrails():
    @function_tool
    def look(word: str) -> str:
        return word

    @input_guardrail
    def polite(context, agent, text):
        return GuardrailFunctionOutput(None, tripwire_triggered=False)

    @output_guardrail(name="right")
    def check(context, agent, text):
        return GuardrailFunctionOutput(None, tripwire_triggered=False)

    async def to_nobody(context, arguments):
        raise NotImplementedError

    helper = Agent("helper", tools=[look])
    closer = Agent("closer", output_guardrails=[check])
    other = Agent("other")
    by_hand = Handoff("transfer_to_far", "Goes.", {}, to_nobody, "far")
    triage = Agent(
        "triage",
        tools=[look, helper.as_tool("ask", "Asks."), WebSearchTool()],
        handoffs=[closer, handoff(other), by_hand],
        input_guardrails=[polite],
    )
    closer.handoffs.append(triage)  # and back
    graph = OpenAIAgentsAdapter().describe(partial(Runner.run, triage))
    assert graph.name == "triage"
    kinds = {node.name: node.kind for node in graph.nodes}
    agents = ("triage", "helper", "closer", "other", "far")
    assert kinds == {
        **dict.fromkeys(agents, NodeKind.AGENT),
        **dict.fromkeys(("look", "ask", "web_search"), NodeKind.TOOL),
        **dict.fromkeys(("polite", "right"), NodeKind.NODE),
    }
    assert {(edge.source, edge.target): edge.conditional for edge in graph.edges} == {
        ("triage", "polite"): False,
        ("triage", "look"): True,
        ("triage", "ask"): True,
        ("ask", "helper"): False,
        ("helper", "look"): True,
        ("triage", "web_search"): True,
        ("triage", "closer"): True,
        ("closer", "right"): False,
        ("closer", "triage"): True,
        ("triage", "other"): True,
        ("triage", "far"): True,
    }


def test_describe_says_what_it_cannot():
    with pytest.raises(AgentError, match=r"expected an `Agent`, .* but got `Runner`"):
        OpenAIAgentsAdapter().describe(Runner())
