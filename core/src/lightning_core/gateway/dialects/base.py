"""Dialect: what the gateway must know of one wire format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Protocol

import msgspec

from lightning_core.capability import Capability
from lightning_core.gateway.dialects.translation import Sieve
from lightning_core.gateway.refusal import Refusal
from lightning_core.provider import OPENAI
from lightning_core.sampling import SamplingPolicy
from lightning_core.strategy import ModelChoice
from lightning_core.trace import Choice

Fields = dict[str, msgspec.Raw]
"""A JSON object whose values are still bytes: only what must be changed is decoded."""
LEADING = ("developer", "system")
"""The roles of messages that tell the model what it is."""


class Rewritten(msgspec.Struct, frozen=True):
    """The fields of a request that hold a rewritten prompt; none where it stays. Both forms share what was not replaced
    with the request, and nobody changes it."""

    sent: Mapping[str, Any] = {}
    """As they go upstream: the agent's bytes, but for what was replaced, what is around it, and the spelling of texts in an
    object that holds nothing else."""
    read: Mapping[str, Any] = {}
    """The same, decoded."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """On what terms a call goes upstream."""

    model: str | None = None
    """The model to ask for in place of the agent's; None leaves it."""
    sampling: SamplingPolicy | None = None
    """The sampling that replaces the agent's; None leaves it (observe mode)."""
    capabilities: frozenset[Capability] = frozenset()
    """What the upstream gives beside the plain format, and is asked for."""
    index: int = 0
    """What is added to the seed: the call's index in the attempt, and a number of the rollout's own."""
    prompt: Rewritten = Rewritten()
    """What a strategy made of the prompt."""
    choice: ModelChoice | None = None
    """What a strategy says of model and sampling, which goes before all else; None says nothing."""
    stream_usage: bool = True
    """Whether streams are asked for their token counts."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it goes upstream, and what the agent is not to see of the reply."""

    body: bytes
    """The body to send."""
    overrides: dict[str, Any] = {}
    """What differs from the agent's body; None marks a field that was taken out."""
    stream: bool = False
    """Whether the agent asked for a stream."""
    remake: bool = False
    """Whether the upstream is asked for a whole reply, from which the agent's stream is made."""
    hide_usage: bool = False
    """Whether the event that only carries token counts is kept from the agent."""
    hide_ids: bool = False
    """Whether token ids are kept from the agent."""
    hide_logprobs: bool = False
    """Whether log-probabilities are kept from the agent."""

    @property
    def hides(self) -> bool:
        """Whether a whole reply must be edited before the agent sees it."""
        return self.hide_ids or self.hide_logprobs


class Reply(msgspec.Struct, kw_only=True):
    """What a reply says, in the terms of a Call. See `Call` for the fields."""

    choices: tuple[Choice, ...] = ()
    prompt_token_ids: tuple[int, ...] | None = None
    reply: dict[str, Any] = {}
    usage: dict[str, Any] | None = None
    model: str | None = None
    complete: bool = True
    """Whether the format's own end was seen."""
    failure: str | None = None
    """What the upstream said went wrong within a reply that began with success."""


class Rewriter(Protocol):
    """What replaces the texts of one request's prompt."""

    roles: Collection[str]
    """Of whose texts it is to be asked."""

    def text(self, role: str, text: str) -> str | None:
        """What a text is replaced by; None leaves it."""

    def has_examples(self) -> bool:
        """Whether messages belong before the first that is no `LEADING` one; to be asked after all texts."""


class Edits(msgspec.Struct, frozen=True):
    """What is replaced in a request's prompt."""

    fields: Mapping[str, Any] = {}
    """By field, and inwards by place and field: a dict goes further in, all else is what the value is replaced by."""
    place: tuple[str, int] | None = None
    """The field whose list examples go into, and the place that they go before; None where they cannot."""


class Dialect(ABC):
    """One wire format. Stateless; chosen by the end of the path.

    A format with typed events (OpenAI Responses, Anthropic Messages) needs nothing beyond this: `prepare` maps the sampling
    policy to its field names, `read_stream` assembles its events and knows its last one (`response.completed`,
    `message_stop`), and `conceal` and `stream_filter` take out what the agent did not ask for. The exchange that calls
    them knows no field of any format. Its `Translator` puts it into the terms of chat completions; `stored` knows what the
    server keeps between its requests.
    """

    name: str
    """The format's name, as in `Call.dialect`."""
    suffix: ClassVar[str]
    """The end of the paths that speak it, with its leading slash."""
    answered_by_policy: ClassVar[bool] = True
    """Whether the policy answers it in train and val mode; else it goes where the agent meant it to go."""
    terminator: ClassVar[bytes] = b"[DONE]"
    """What the last event of a stream holds."""
    native: ClassVar[Capability | None] = None
    """What an upstream gives that speaks it; to one that does not it is translated. None where it is never translated."""
    home: ClassVar[str] = OPENAI
    """Where observed calls go that nobody said a target for."""
    key_header: ClassVar[str] = "Authorization: Bearer"
    """What stands before a key in the request's head."""
    translated: ClassVar[bool] = False
    """Whether the upstream is spoken to in another format than the agent."""
    takes_examples: ClassVar[bool] = True
    """Whether messages can be put into its prompt."""

    @abstractmethod
    def prepare(self, body: bytes, fields: Fields, terms: Terms) -> Prepared:
        """The request as it goes upstream. `body` is returned as it is where nothing must change.

        Raises:
            msgspec.DecodeError: a field that must be changed is not of the format.
        """

    def rewrite(self, request: Mapping[str, Any], rewriter: Rewriter) -> Edits | None:
        """What `rewriter` replaces in the prompt of a request, decoded; nothing where it is not of the format. None where
        the format has no prompt."""
        return None

    @abstractmethod
    def read(self, body: bytes) -> Reply:
        """What a whole reply says.

        Raises:
            ValueError: it is not of the format.
        """

    @abstractmethod
    def read_stream(self, stream: bytes) -> Reply:
        """What a streamed reply says, whole or cut; `complete` tells which.

        Raises:
            ValueError: an event is not of the format.
        """

    @abstractmethod
    def conceal(self, body: bytes, prepared: Prepared) -> bytes:
        """A whole reply without what the agent is not to see; one that is not of the format is left as it is."""

    @abstractmethod
    def stream_filter(self, prepared: Prepared) -> Sieve | None:
        """What takes out of a stream what the agent is not to see; None where the stream can pass as it is."""

    @abstractmethod
    def remake(self, body: bytes, prepared: Prepared) -> bytes:
        """The stream that says what the whole reply `body` says, without what the agent is not to see.

        Raises:
            ValueError: `body` is not of the format.
        """

    def refusal(self, refusal: Refusal) -> bytes:
        """An error of the gateway's own in the form of the format's errors; by default OpenAI's."""
        return refusal.body()

    def failure(self, status: int, body: bytes) -> bytes:
        """What the agent is told of an upstream that refused with `status` and `body`; by default just that."""
        return body
