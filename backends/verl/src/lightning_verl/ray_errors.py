"""What Ray says of a failure, in a line. Imports no Ray."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

_MOST: Final = 400
"""Characters of a text of Ray's that are of use to a person."""
_ANSWERS: Final = 5.0
"""Seconds in which an actor that is not busy answers, and one that has died is known to have."""


def brief(error: BaseException) -> str:
    """The first and the last line of a text of Ray's, which may be a page."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " … ".join(dict.fromkeys([*lines[:1], *lines[-1:]])) or type(error).__name__


def why_died(ray: Any, actors: Iterable[Any]) -> str | None:
    """Why the first of some actors died that has, as Ray has it: killed for memory, by a signal; None where none has.

    Args:
        ray: the module, joined to the cluster.
        actors: their handles. One that is busy for seconds lives.
    """
    asked = [actor.__ray_ready__.remote() for actor in actors]
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=_ANSWERS)
    for answer in answered:
        try:
            ray.get(answer)
        except ray.exceptions.RayActorError as error:
            # Indented are the names and numbers of the actor.
            said = [line for line in str(error).splitlines()[1:] if line and line[0] != "\t"]
            return " ".join(" ".join(said).split())[:_MOST] or brief(error)
    return None
