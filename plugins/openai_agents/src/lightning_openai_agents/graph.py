"""What an agent is made of. Imports the SDK."""

from __future__ import annotations

from typing import Any

from agents import Agent

from lightning_core.adapter import AgentGraph, GraphEdge, GraphNode, NodeKind
from lightning_core.errors import AgentError
from lightning_openai_agents.forms import starting_agent


def describe(agent: object) -> AgentGraph:
    """Agents, tools and guardrails. A handoff is a conditional edge, as is the way to a tool; from a tool that is an agent
    an edge leads to that agent. The tools of MCP servers are known to those alone.

    Raises:
        AgentError: `agent` is none of the forms.
    """
    start = starting_agent(agent)
    if start is None:
        raise AgentError(
            f"expected an `Agent`, or `partial(Runner.run, agent, …)`, but got `{type(agent).__name__}`"
        )
    found = _Found()
    found.add(start)
    return AgentGraph(name=start.name, nodes=tuple(found.nodes), edges=tuple(found.edges))


class _Found:
    def __init__(self) -> None:
        # Dicts keep the order and hold each once: agents may share a tool.
        self.nodes: dict[GraphNode, None] = {}
        self.edges: dict[GraphEdge, None] = {}
        self._seen: set[int] = set()

    def add(self, agent: Agent[Any]) -> None:
        if id(agent) in self._seen:
            return
        self._seen.add(id(agent))
        self.nodes[GraphNode(name=agent.name, kind=NodeKind.AGENT)] = None
        guardrails: tuple[Any, ...] = (*agent.input_guardrails, *agent.output_guardrails)
        for guardrail in guardrails:
            self._join(agent.name, guardrail.get_name(), NodeKind.NODE, conditional=False)
        for tool in agent.tools:
            name = getattr(tool, "qualified_name", tool.name)
            self._join(agent.name, name, NodeKind.TOOL)
            inner = getattr(tool, "_agent_instance", None)
            if inner is not None:
                self._join(name, inner.name, NodeKind.AGENT, conditional=False)
                self.add(inner)
        for handoff in agent.handoffs:
            target = handoff if isinstance(handoff, Agent) else _target(handoff)
            name = handoff.agent_name if target is None else target.name  # type: ignore[union-attr]
            self._join(agent.name, name, NodeKind.AGENT)
            if target is not None:
                self.add(target)

    def _join(self, source: str, target: str, kind: NodeKind, *, conditional: bool = True) -> None:
        self.nodes[GraphNode(name=target, kind=kind)] = None
        self.edges[GraphEdge(source=source, target=target, conditional=conditional)] = None


def _target(handoff: Any) -> Agent[Any] | None:
    """The agent of a `Handoff`; None where it was made by hand, or the agent is gone."""
    reference = getattr(handoff, "_agent_ref", None)
    return None if reference is None else reference()
