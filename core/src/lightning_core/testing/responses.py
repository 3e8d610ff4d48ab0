"""OpenAI Responses for a scripted server: as chat completions, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from lightning_core.gateway.dialects.responses_translation import ResponsesTranslator
from lightning_core.gateway.dialects.stored import response_id
from lightning_core.gateway.dialects.translation import Sieve, Translation
from lightning_core.testing.received import Received
from lightning_core.testing.rendering import Rendering

_translator = ResponsesTranslator()


class Responses:
    """What a server has said in this format, for requests that go on with it."""

    def __init__(self) -> None:
        self._said: dict[str, list[dict[str, Any]]] = {}

    def begin(self, received: Received, number: int) -> Exchange:
        """Take a request.

        Raises:
            ValueError: it is not of the format, or goes on with what was not said.
        """
        named = received.json.get("previous_response_id")
        if named is not None and named not in self._said:
            raise ValueError(f"no response {named!r} to go on with")
        call = f"scripted-{number}"
        earlier = self._said.get(named, [])
        translation = _translator.begin(received.json, call, earlier)
        path = f"{received.path.removesuffix('/responses')}/chat/completions"
        request = replace(received, path=path, json=translation.request)
        prompt = _translator.prompt({**received.json, "instructions": None}, earlier)
        self._said[response_id(call)] = prompt  # and the reply, once it is there
        return Exchange(request, translation, prompt)


class Exchange:
    """One request and its reply."""

    def __init__(
        self, request: Received, translation: Translation, said: list[dict[str, Any]]
    ) -> None:
        self.request = request
        """The request in the terms of chat completions."""
        self._translation = translation
        self._said = said

    def whole(self, rendering: Rendering) -> dict[str, Any]:
        """See `Rendering.whole`."""
        body = rendering.whole()
        self._said.append(body["choices"][0]["message"])
        found: dict[str, Any] = msgspec.json.decode(
            self._translation.reply(msgspec.json.encode(body))
        )
        return found

    def sieve(self, rendering: Rendering) -> Sieve:
        """What makes the format's events of those of `rendering`."""
        self._said.append(rendering.whole()["choices"][0]["message"])
        return self._translation.sieve()
