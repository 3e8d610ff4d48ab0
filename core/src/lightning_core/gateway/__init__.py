"""The gateway: an OpenAI-compatible proxy that records every model call."""

from __future__ import annotations

from lightning_core.gateway.app import Gateway
from lightning_core.gateway.limits import GatewayLimits
from lightning_core.gateway.session import Session

__all__ = ["Gateway", "GatewayLimits", "Session"]
