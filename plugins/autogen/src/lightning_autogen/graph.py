"""What an agent or a team is made of."""

from __future__ import annotations

from autogen_agentchat.agents import AssistantAgent, MessageFilterAgent, SocietyOfMindAgent
from autogen_agentchat.base import ChatAgent, Team
from autogen_agentchat.teams import (
    BaseGroupChat,
    DiGraph,
    GraphFlow,
    RoundRobinGroupChat,
    Swarm,
)
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core.tools import StaticWorkbench

from lightning_core.adapter import AgentGraph, GraphEdge, GraphNode, NodeKind
from lightning_core.errors import AgentError

_START, _END = "__start__", "__end__"


def describe(agent: object) -> AgentGraph:
    """Teams and agents as agents, tools, and who may speak after whom.

    A team is the node from which its participants are reached and to which they lead back. In a round-robin team they
    follow one another, in a swarm they hand off, a graph has its own edges; in any other the team itself, by whose name
    the calls of its selector are labelled, chooses. A handoff to somebody outside leads to the end.

    Raises:
        AgentError: `agent` is no agent or team of AgentChat.
    """
    if not isinstance(agent, ChatAgent | Team):
        raise AgentError(f"expected an AgentChat agent or team but got `{type(agent).__name__}`")
    found = _Found()
    found.edge(_START, agent.name)
    found.add(agent)
    found.edge(agent.name, _END)
    return AgentGraph(name=agent.name, nodes=tuple(found.nodes), edges=tuple(found.edges))


class _Found:
    def __init__(self) -> None:
        # Dicts keep the order and hold each once.
        self.nodes: dict[GraphNode, None] = {}
        self.edges: dict[GraphEdge, None] = {}

    def edge(self, source: str, target: str, *, conditional: bool = False) -> None:
        if source != target or conditional:
            edge = GraphEdge(source=source, target=target, conditional=conditional)
            self.edges[edge] = None

    def add(self, agent: ChatAgent | Team, peers: tuple[str, ...] = ()) -> None:
        """Add an agent or a team, which is one of `peers` where it takes part in one."""
        self.nodes[GraphNode(name=agent.name, kind=NodeKind.AGENT)] = None
        match agent:
            case BaseGroupChat():
                self._add_team(agent)
            case AssistantAgent():
                self._add_assistant(agent, peers)
            case SocietyOfMindAgent():
                self._add_inner(agent.name, agent._team)
            case MessageFilterAgent():
                self._add_inner(agent.name, agent._wrapped_agent, peers)
            case _:
                pass

    def _add_inner(self, outer: str, inner: ChatAgent | Team, peers: tuple[str, ...] = ()) -> None:
        """Add what works within another and gives back to it; `outer` may be a tool of the same name."""
        self.edge(outer, inner.name)
        self.add(inner, peers)
        self.edge(inner.name, outer)

    def _add_team(self, team: BaseGroupChat) -> None:
        names = tuple(participant.name for participant in team._participants)
        for participant in team._participants:
            self.add(participant, names)
        match team:
            case RoundRobinGroupChat():
                self.edge(team.name, names[0])
                for name, following in zip(names, (*names[1:], names[0]), strict=True):
                    self.edge(name, following)
                    self.edge(name, team.name, conditional=True)
            case Swarm():
                self.edge(team.name, names[0])
                for name in names:
                    self.edge(name, team.name, conditional=True)
            case GraphFlow():
                self._add_graph(team.name, team._graph)
            case _:
                for name in names:
                    self.edge(team.name, name, conditional=True)
                    self.edge(name, team.name)

    def _add_graph(self, team: str, graph: DiGraph) -> None:
        for name in sorted(graph.get_start_nodes()):
            self.edge(team, name)
        for node in graph.nodes.values():
            for edge in node.edges:
                conditional = edge.condition is not None or edge.condition_function is not None
                self.edge(node.name, edge.target, conditional=conditional)
        for name in sorted(graph.get_leaf_nodes()):
            self.edge(name, team)

    def _add_assistant(self, agent: AssistantAgent, peers: tuple[str, ...]) -> None:
        for workbench in agent._workbench:
            # Others have their tools elsewhere, and must be asked.
            for tool in workbench._tools if isinstance(workbench, StaticWorkbench) else ():
                self.nodes[GraphNode(name=tool.name, kind=NodeKind.TOOL)] = None
                self.edge(agent.name, tool.name, conditional=True)
                if isinstance(tool, AgentTool):
                    self._add_inner(tool.name, tool._agent)
                elif isinstance(tool, TeamTool):
                    self._add_inner(tool.name, tool._team)
        for handoff in agent._handoffs.values():
            target = handoff.target if handoff.target in peers else _END
            self.edge(agent.name, target, conditional=True)
