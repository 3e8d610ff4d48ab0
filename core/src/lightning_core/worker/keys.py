"""`OPENAI_API_KEY` for agents whose model calls the gateway answers.

Clients refuse to be built without a key, though the gateway needs none: the session is part of the address.
"""

from __future__ import annotations

import logging
import os

from lightning_core.agents import load_agent
from lightning_core.errors import AgentError
from lightning_core.instrument.context import PLACEHOLDER_KEY
from lightning_core.rollout import Mode

_KEY = "OPENAI_API_KEY"

_log = logging.getLogger("lightning_core.worker")


def load_without_key(spec: str | None) -> object:
    """Load an agent; where that fails and the user has no key, once more with a placeholder in its place.

    Raises:
        AgentError: the agent cannot be loaded.
    """
    try:
        return load_agent(spec)
    except AgentError as error:
        if os.environ.get(_KEY):
            raise
        first = error
    os.environ[_KEY] = PLACEHOLDER_KEY
    try:
        agent = load_agent(spec)
    except AgentError:
        # The key was not what was missing; the same fault twice would only bury itself.
        raise first from first.__cause__
    finally:
        del os.environ[_KEY]
    _log.warning(
        "agent %r: could be loaded only with a placeholder as `%s`, which is not set; it does where a run names a model,"
        " but elsewhere model calls will be refused",
        spec,
        _KEY,
    )
    return agent


def provide_key(mode: Mode) -> None:
    """Give this process a placeholder as its key, where the gateway answers the calls and the user has none."""
    if mode is not Mode.OBSERVE and not os.environ.get(_KEY):
        os.environ[_KEY] = PLACEHOLDER_KEY
