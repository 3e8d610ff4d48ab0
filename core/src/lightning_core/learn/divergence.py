"""Why a call's tokens do not go on from those of the conversation that its messages continue.

Told by the first token that differs. Within a reply that held reasoning, or where its reasoning opens, the thinking was
dropped; within another reply its text became other tokens; anywhere else the template renders the prompt otherwise.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, Final

from lightning_core.learn.conversation import held_reasoning
from lightning_core.learn.prefixes import common
from lightning_core.learn.replies import WIDTH
from lightning_core.learn.sample import Joined
from lightning_core.trace import Call

_OPENING: Final = 8
"""Tokens at the end of a prompt that may open the reasoning."""
_TAG: Final = 2
"""Tokens of a reply that may open its reasoning, and that a template may write without any."""
_PROBE: Final = 6
"""Tokens of the reasoning that are looked for."""


class Reply:
    """A choice in the forest."""

    __slots__ = ("call", "chain", "choice", "learnt", "parent", "start", "stop")

    def __init__(
        self,
        *,
        call: Call,
        choice: int,
        learnt: bool,
        start: int,
        stop: int,
        parent: Reply | None,
        chain: list[Reply],
    ) -> None:
        self.call = call
        self.choice = choice
        """Position among the call's choices."""
        self.learnt = learnt
        """Whether it is learnt from."""
        self.start = start
        """Tokens before it: those of the prompt."""
        self.stop = stop
        """Tokens to its end."""
        self.parent = parent
        """The node that its call joined."""
        self.chain = chain
        """The replies of its chain so far, shared by all of them."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Its sampled token ids."""
        return self.call.choices[self.choice].token_ids or ()

    @property
    def message(self) -> dict[str, Any]:
        """Its message as the engine gave it."""
        return self.call.choices[self.choice].message

    def lineage(self) -> Iterator[Reply]:
        """It and the replies that its prompt holds, last first."""
        reply: Reply | None = self
        while reply is not None:
            yield reply
            reply = reply.parent


def why_apart(call: Call, prompt: bytes, earlier: Reply) -> Joined:
    """Why `prompt`, whose messages begin with those of `earlier` and its reply, has other tokens.

    Args:
        call: the later call.
        prompt: its packed prompt.
        earlier: the reply that it goes on from.
    """
    before = _packed((earlier.call.prompt_token_ids or ()) + earlier.token_ids)
    place = common(prompt, before) // WIDTH
    replies = list(earlier.lineage())
    within = [reply for reply in replies if reply.start <= place < reply.stop]
    opening = [reply for reply in replies if reply.start - _OPENING <= place < reply.start]
    for reply in within or opening:
        if held_reasoning(reply.message) and _lacks_reasoning(call, prompt, reply, place):
            return Joined.THINKING_DROPPED
    return Joined.RETOKENIZED if within else Joined.TEMPLATE_CHANGED


def _lacks_reasoning(call: Call, prompt: bytes, reply: Reply, place: int) -> bool:
    """Whether the reasoning of a reply is not in a later prompt that differs from `place` on."""
    if place > reply.start + _TAG:
        # Its beginning is there. What an agent cut out further on is not in the message that it sent back.
        sent = call.messages[len(reply.call.messages) :][:1]
        return bool(sent) and isinstance(sent[0], dict) and not held_reasoning(sent[0])
    probe = _packed(reply.token_ids[_TAG : _TAG + _PROBE])
    at = prompt.find(probe, place * WIDTH)
    while at >= 0 and at % WIDTH:
        at = prompt.find(probe, at + 1)
    return at < 0


def _packed(ids: tuple[int, ...]) -> bytes:
    return array("I", ids).tobytes()
