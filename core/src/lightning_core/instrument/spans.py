"""A span that an adapter has started. Standard library only."""

from __future__ import annotations

from .plain import plain_attributes, plain_error, plain_name, plain_time

TYPE_CHECKING = False  # `typing` costs the start of every child process; a checker knows the name.
if TYPE_CHECKING:
    from typing import Any

    from .context import Scope


class OpenSpan:
    """A span that has been started. Fill `attributes` until it ends."""

    # Slots, and made JSON only once somebody reads it: frameworks make several for each model call.
    __slots__ = (
        "attributes",
        "ended_at",
        "error",
        "id",
        "kind",
        "name",
        "parent",
        "scope",
        "started_at",
    )

    def __init__(
        self,
        id: str,
        scope: Scope,
        kind: str,
        name: str,
        parent: str | None,
        started_at: float,
        attributes: dict[str, Any],
    ) -> None:
        """
        Args:
            id: its id.
            scope: the scope inside it.
            kind: `agent`, `node`, `tool` or `handoff`.
            name: the agent's, node's or tool's name.
            parent: id of the span around it.
            started_at: Unix time in seconds.
            attributes: JSON values.
        """
        self.id = id
        self.scope = scope
        self.kind = kind
        self.name = name
        self.parent = parent
        self.started_at = started_at
        self.attributes = attributes
        self.ended_at: float | None = None
        """Unix time in seconds; None while it is open."""
        self.error: str | None = None
        """What went wrong in it."""

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.ended_at is not None

    def as_json(self) -> dict[str, Any]:
        """The span as it is now, with the fields of `lightning_core.trace.Span`, as bounded JSON. Never raises."""
        return {
            "id": self.id,
            "attempt_id": self.scope.attempt,
            "kind": plain_name(self.kind),
            "name": plain_name(self.name),
            "parent_id": self.parent,
            "started_at": plain_time(self.started_at),
            "ended_at": self.ended_at,
            "attributes": plain_attributes(self.attributes) if self.attributes else {},
            "error": None if self.error is None else plain_error(self.error),
        }
