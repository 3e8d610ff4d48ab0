"""Adapter: what knows one agent framework, and the graph and context that it deals in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import ClassVar

import msgspec

from lightning_core.records import Record
from lightning_core.rollout import Mode
from lightning_core.task import Task


class NodeKind(StrEnum):
    """What a node of a graph is."""

    AGENT = "agent"
    """An agent, or a graph within the graph."""
    NODE = "node"
    """A step."""
    TOOL = "tool"
    """A tool."""


class GraphNode(Record, frozen=True, kw_only=True):
    """An agent, node or tool of a framework's graph."""

    name: str
    """The label that its calls and spans carry."""
    kind: NodeKind = NodeKind.NODE
    """What it is."""


class GraphEdge(Record, frozen=True, kw_only=True):
    """A way from one node to another."""

    source: str
    """Name of the node it leaves."""
    target: str
    """Name of the node it reaches."""
    conditional: bool = False
    """Whether the agent decides at run time to take it."""


class AgentGraph(Record, frozen=True, kw_only=True):
    """What an agent is made of."""

    name: str
    """The agent's name."""
    nodes: tuple[GraphNode, ...] = ()
    """Its agents, nodes and tools."""
    edges: tuple[GraphEdge, ...] = ()
    """The ways between them."""


class RolloutContext(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter may know of the attempt that it runs."""

    rollout_id: str
    """The rollout."""
    attempt_id: str
    """The attempt."""
    mode: Mode
    """What the gateway does with the model calls."""
    base_url: str
    """The gateway's address for this attempt, ending in `/v1`: the session's token is part of it. Only for
    frameworks whose clients the instrumentation cannot reach; never log it."""
    deadline: float
    """Unix time in seconds at which the attempt is ended."""


class Adapter(ABC):
    """Knows one agent framework. Stateless; one per framework.

    The gateway is the only recorder of model calls: an adapter labels them, it does not record them.
    """

    name: ClassVar[str]
    """The framework's name, as `lightning-core plugins` lists it."""
    distribution: ClassVar[str | None] = None
    """The distribution whose extra `instruments` declares the supported framework versions."""
    triggers: ClassVar[tuple[str, ...]] = ()
    """Modules of the framework after whose import `instrument` can be entered. In a child process that the
    user's command starts, the start-up hook enters it once the first of them has been imported."""

    @abstractmethod
    def accepts(self, agent: object) -> bool:
        """Whether `agent` is of this framework. Must not import the framework: if the framework's module is not
        in `sys.modules`, no object of it exists."""

    @abstractmethod
    def describe(self, agent: object) -> AgentGraph:
        """What the agent is made of."""

    @abstractmethod
    def instrument(self) -> AbstractContextManager[None]:
        """Label the framework's model calls while the context is open.

        Idempotent and re-entrant: contexts may nest and overlap, and the last one out restores exactly what the
        first one in changed. Outside an attempt the instrumentation does nothing.
        """

    @abstractmethod
    async def run(self, agent: object, task: Task, context: RolloutContext) -> object:
        """Run the agent once on `task` and return its output.

        Concurrent runs of one agent object in one loop must not disturb one another. The output is made
        JSON by the worker, which knows dataclasses, pydantic models and message objects with `model_dump`.
        """
