"""GatewayLimits: the bounds within which the gateway works."""

from __future__ import annotations

import msgspec


class GatewayLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on sizes and waits. Every structure that grows with a session is bounded by one of them."""

    max_body: int = 16 * 2**20
    """Bytes of a request's body, decompressed; a larger one is answered 413."""
    max_reply: int = 256 * 2**20
    """Bytes of a reply that are recorded; a longer one still reaches the agent, but its Call is incomplete."""
    connect_timeout: float = 30.0
    """Seconds in which an upstream must take the connection."""
    idle_timeout: float = 600.0
    """Seconds that an upstream may be silent, before its first byte and between two."""
    max_pause: float = 600.0
    """Seconds that a call may wait while the policy is paused."""
    dead_time: float = 5.0
    """Seconds for which a replica that refused a connection is asked last."""
    remember: int = 512
    """Calls of a session in which the try before a retry is looked for."""
    replay_bytes: int = 2**20
    """Bytes of a session's latest calls (requests and replies) kept to be given again to a retry."""
    stream_usage: bool = True
    """Whether streams are asked for their token counts where the agent did not ask; the agent sees no trace of it."""
    lineage_bytes: int = 4 * 2**20
    """Bytes of a session's latest conversations kept for requests that name them by `previous_response_id`; of a translated
    one that has left, the store is asked."""
    chat_only: bool = False
    """Whether the sessions' own upstreams are taken to speak only chat completions; else that is found out by asking."""
