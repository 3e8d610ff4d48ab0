"""What an agent is made of. Imports langchain-core."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables.base import Runnable, RunnableBindingBase, RunnableSequence

from lightning_core.adapter import AgentGraph, GraphEdge, GraphNode, NodeKind
from lightning_core.errors import AgentError

_ENDS = ("__start__", "__end__")


def describe(agent: object) -> AgentGraph:
    """Agents, nodes, tools and edges. A subgraph's own start is the node that holds it.

    Raises:
        AgentError: `agent` is no Runnable.
    """
    if not isinstance(agent, Runnable):
        raise AgentError(
            f"expected a compiled graph or another Runnable but got `{type(agent).__name__}`; a `StateGraph`"
            " must be compiled: `graph.compile()`"
        )
    found = _Found()
    name = found.add(agent, start="__start__", end="__end__")
    return AgentGraph(name=name, nodes=tuple(found.nodes), edges=tuple(found.edges))


class _Found:
    def __init__(self) -> None:
        # Dicts keep the order and hold each once: two subgraphs may have nodes of one name, hence one label.
        self.nodes: dict[GraphNode, None] = {}
        self.edges: dict[GraphEdge, None] = {}

    def add(self, agent: Runnable[Any, Any], *, start: str, end: str) -> str:
        """Add an agent whose first nodes follow `start` and whose last lead to `end`; gives its name."""
        while isinstance(agent, RunnableBindingBase):
            agent = agent.bound
        name = agent.get_name()
        self.nodes[GraphNode(name=name, kind=NodeKind.AGENT)] = None
        if _is_graph(agent):
            self._add_graph(agent, start, end)
        elif isinstance(agent, RunnableSequence):
            for step in agent.steps:
                while isinstance(step, RunnableBindingBase):
                    step = step.bound
                if _is_graph(step):
                    self.edges[GraphEdge(source=name, target=step.get_name())] = None
                    self.add(step, start=step.get_name(), end=name)
        return name

    def _add_graph(self, graph: Any, start: str, end: str) -> None:
        drawn = graph.get_graph()
        subgraphs = dict(graph.get_subgraphs())
        for edge in drawn.edges:
            self.edges[
                GraphEdge(
                    source=start if edge.source == "__start__" else edge.source,
                    target=end if edge.target == "__end__" else edge.target,
                    conditional=edge.conditional,
                )
            ] = None
        for node in drawn.nodes.values():
            if node.id in _ENDS:
                continue
            self.nodes[GraphNode(name=node.id)] = None
            for tool in _tools(node.data):
                self.nodes[GraphNode(name=tool, kind=NodeKind.TOOL)] = None
                self.edges[GraphEdge(source=node.id, target=tool, conditional=True)] = None
            if node.id in subgraphs:
                self.add(subgraphs[node.id], start=node.id, end=node.id)


def _is_graph(agent: object) -> bool:
    """Whether it is a Pregel; only those can be asked for subgraphs."""
    return callable(getattr(agent, "get_subgraphs", None))


def _tools(node: object) -> list[str]:
    """Names of the tools of a `ToolNode`; of anything else none."""
    tools = getattr(node, "tools_by_name", None)
    return list(tools) if isinstance(tools, dict) else []
