"""`OPENAI_API_KEY` and `ANTHROPIC_API_KEY` for agents whose model calls the gateway answers.

Clients refuse to be built without a key, though the gateway needs none: the session is part of the address.
"""

from __future__ import annotations

import logging
import os

from lightning_core.agents import load_agent
from lightning_core.errors import AgentError
from lightning_core.instrument.context import KEYS, PLACEHOLDER_KEY
from lightning_core.rollout import Mode

_log = logging.getLogger("lightning_core.worker")


def load_without_key(spec: str | None) -> object:
    """Load an agent; where that fails and the user lacks a key, once more with a placeholder in its place.

    Raises:
        AgentError: the agent cannot be loaded.
    """
    missing = _missing()
    try:
        return load_agent(spec)
    except AgentError as error:
        if not missing:
            raise
        first = error
    os.environ.update(dict.fromkeys(missing, PLACEHOLDER_KEY))
    try:
        agent = load_agent(spec)
    except AgentError:
        # The key was not what was missing; the same fault twice would only bury itself.
        raise first from first.__cause__
    finally:
        for name in missing:
            del os.environ[name]
    _log.warning(
        "agent %r: could be loaded only with a placeholder as %s, not set here; it does where a run names a model, but"
        " elsewhere model calls will be refused",
        spec,
        " and ".join(f"`{name}`" for name in missing),
    )
    return agent


def provide_key(mode: Mode) -> None:
    """Give this process placeholders as its keys, where the gateway answers the calls and the user has none."""
    if mode is not Mode.OBSERVE:
        os.environ.update(dict.fromkeys(_missing(), PLACEHOLDER_KEY))


def _missing() -> list[str]:
    return [name for name in KEYS if not os.environ.get(name)]
