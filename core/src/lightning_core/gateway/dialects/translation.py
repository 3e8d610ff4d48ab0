"""Translation: a format on its way through an upstream that speaks only chat completions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Protocol

Message = dict[str, Any]
"""A message of chat completions."""


ENDED_EARLY: Final = "the upstream's stream ended before its reply did"
"""What an agent is told whose translated stream has no end."""


class Sieve(Protocol):
    """What makes the bytes of a stream that the agent sees of those that the upstream sends."""

    def feed(self, chunk: bytes) -> bytes:
        """What may be passed on now that `chunk` has come; perhaps nothing yet."""

    def close(self) -> bytes:
        """What is left when the stream has ended, whole or cut."""


class Translation(ABC):
    """One request, put to an upstream that speaks only chat completions, and its reply put back. One per call.

    The chat reply that it is given has no more than the agent may see: token ids and log-probabilities that it did not ask
    for are gone.
    """

    request: dict[str, Any]
    """The chat request that asks the same; `stream` as the agent asked, and then its token counts too."""

    @abstractmethod
    def reply(self, body: bytes) -> bytes:
        """A whole chat reply in the agent's format.

        Raises:
            ValueError: it is no chat reply.
        """

    @abstractmethod
    def sieve(self) -> Sieve:
        """Makes the agent's stream of events of a chat reply's. An upstream that fails within the stream, or ends it early,
        makes it end in the format's own event of an error: some SDKs take a stream without an end for a whole reply."""

    @abstractmethod
    def failure(self, status: int, body: bytes) -> bytes:
        """What the agent is told where the upstream refused with `status` and `body`, in the shape of its format's errors."""


class Translator(ABC):
    """What translates one format. Stateless."""

    name: ClassVar[str]
    """The format's name, as in `Call.dialect`."""

    @abstractmethod
    def prompt(self, body: dict[str, Any], earlier: Sequence[Message] = ()) -> list[Message]:
        """The messages of chat completions that say what the prompt of `body` says.

        Args:
            body: a request of the format, decoded.
            earlier: the conversation that it goes on with, where the format leaves that to the server: prompt and reply.

        Raises:
            ValueError: it is not of the format.
        """

    @abstractmethod
    def message(self, reply: dict[str, Any]) -> Message:
        """The assistant message of chat completions that says what a whole reply of the format says.

        Raises:
            ValueError: it is not of the format.
        """

    @abstractmethod
    def begin(
        self, body: dict[str, Any], call_id: str, earlier: Sequence[Message] = ()
    ) -> Translation:
        """Translate one request.

        Args:
            body: the request, decoded.
            call_id: the Call's id, of which the reply's own is made.
            earlier: see `prompt`.

        Raises:
            ValueError: it is not of the format, or asks for something that chat completions cannot say; says which field, what
                was expected, and what to do.
        """
