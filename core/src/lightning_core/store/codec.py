"""Records as bytes, and calls as a small record with the blocks it is put together from."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from lightning_core.errors import RecordError
from lightning_core.records import Record
from lightning_core.store.blocks import TOKENS, Body, body, pack, unfold, unpack
from lightning_core.trace import Call, Choice

R = TypeVar("R", bound=Record)

_LISTS = ("messages", "input")
"""Fields that hold a conversation, in the formats that there are."""
_CHAT = ("messages",)
_INLINE = 256
"""The rest of a request from this size on, in bytes, is a block: tools and schemas repeat with every call."""

_json = msgspec.json.Encoder()
_msgpack = msgspec.msgpack.Encoder()


class CallParts(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How a call is put together; `call.parts` as msgpack. Empty where its JSON is all of it."""

    key: str | None = None
    """The request field whose list was taken out."""
    messages: list[bytes] | None = None
    """That list, folded; one JSON block each."""
    request: int | None = None
    """The block of the request without that list; None where it stayed in the call's JSON."""
    prompt: list[bytes] | None = None
    """Full blocks of the prompt's token ids, folded; little-endian int32. None where no ids were taken out."""
    tail: bytes = b""
    """The token ids after the last full block, likewise."""
    choices: list[tuple[bytes | None, bytes | None]] | None = None
    """For each choice its token ids (int32) and log-probabilities (float64); None where none were taken out."""
    sent_key: str | None = None
    """The field of `overrides` whose list was taken out."""
    sent: list[bytes] | None = None
    """That list, folded; one JSON block each."""
    chat: list[bytes] | None = None
    """The messages that were taken out of `chat_request`, folded; one JSON block each."""
    chat_rest: int | None = None
    """The block of `chat_request` without its messages; None where it stayed in the call's JSON."""
    chat_sent: list[bytes] | None = None
    """The messages that were taken out of `chat_sent`, folded; one JSON block each."""


_parts = msgspec.msgpack.Decoder(CallParts)
_bodies = msgspec.msgpack.Decoder(list[bytes])


class SplitCall(msgspec.Struct, frozen=True, gc=False):
    """A call on its way into the store, before its blocks have numbers."""

    call: Call
    """The call; its ids and index."""
    data: bytes
    """Its JSON without what was taken out."""
    key: str | None
    """As in `CallParts`."""
    messages: list[Body]
    """As in `CallParts`, not folded."""
    request: Body | None
    """As in `CallParts`."""
    prompt: list[Body] | None
    """As in `CallParts`, not folded."""
    tail: bytes
    """As in `CallParts`."""
    choices: list[tuple[bytes | None, bytes | None]] | None
    """As in `CallParts`."""
    sent_key: str | None
    """As in `CallParts`."""
    sent: list[Body]
    """As in `CallParts`, not folded."""
    chat: list[Body] | None = None
    """As in `CallParts`, not folded."""
    chat_rest: Body | None = None
    """As in `CallParts`."""
    chat_sent: list[Body] | None = None
    """As in `CallParts`, not folded."""

    @property
    def whole(self) -> bool:
        """Whether nothing was taken out."""
        taken = self.key or self.request or self.sent_key or self.choices
        return not (taken or self.chat or self.chat_rest or self.chat_sent) and self.prompt is None


def encode(value: Any, what: str) -> bytes:
    """JSON of a record or a JSON value; `what` names it in the error.

    Raises:
        RecordError: JSON cannot hold it.
    """
    try:
        return _json.encode(value)
    except UnicodeEncodeError:
        # A lone surrogate, as in the output of a command that is not UTF-8, survives only as an escape.
        try:
            return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise _unfit(what, error) from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _unfit(what, error) from error


def _unfit(what: str, error: Exception) -> RecordError:
    return RecordError(f"{what}: JSON cannot hold it: {error}; give plain JSON values")


def decode_value(data: bytes) -> Any:
    """The JSON value that `encode` encoded."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return json.loads(data)


@functools.cache
def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def decode(data: bytes, kind: type[R]) -> R:
    """The record that `encode` encoded."""
    try:
        record: R = _decoder(kind).decode(data)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        record = msgspec.convert(json.loads(data), kind)
    return record


def split(call: Call) -> SplitCall:
    """Take out of a call what is large and repeats.

    Raises:
        RecordError: JSON cannot hold it.
    """
    try:
        return _split(call, _json.encode)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _split(call, functools.partial(encode, what=f"call `{call.id}`"))


def _split(call: Call, encode: Callable[[Any], bytes]) -> SplitCall:
    changes: dict[str, Any] = {}
    key, messages, request = None, list[Body](), None
    if call.request:
        key, messages, request, rest = _without_blocks(call.request, encode)
        if rest is not call.request:
            changes["request"] = rest
    # A strategy changes few messages; the others are the request's own.
    asked = call.request[key] if key is not None else ()
    sent_key, sent, overrides = _taken_out(call.overrides, encode, known=(asked, messages))
    if sent_key is not None:
        changes["overrides"] = overrides
    prompt, tail = None, b""
    if call.prompt_token_ids is not None:
        ids = _pack("i", call.prompt_token_ids)
        if ids is not None:
            size = TOKENS * 4
            full = len(ids) - len(ids) % size
            prompt, tail = [body(ids[at : at + size]) for at in range(0, full, size)], ids[full:]
            changes["prompt_token_ids"] = None
    choices = None
    for choice in call.choices:
        if choice.token_ids is not None or choice.logprobs is not None:
            choices = [(_pack("i", c.token_ids), _pack("d", c.logprobs)) for c in call.choices]
            changes["choices"] = tuple(map(_without_arrays, call.choices, choices))
            break
    chat = chat_rest = chat_sent = None
    if call.chat_request is not None:
        chat_key, said, chat_rest, rest = _without_blocks(call.chat_request, encode, _CHAT)
        chat = said if chat_key is not None else None
        changes["chat_request"] = rest
    if call.chat_sent is not None:
        chat_key, said, rest = _taken_out(call.chat_sent, encode, _CHAT)
        chat_sent = said if chat_key is not None else None
        changes["chat_sent"] = rest
    data = encode(msgspec.structs.replace(call, **changes) if changes else call)
    return SplitCall(
        call, data, key, messages, request, prompt, tail, choices, sent_key, sent, chat, chat_rest, chat_sent,
    )  # fmt: skip


def _without_blocks(
    fields: dict[str, Any], encode: Callable[[Any], bytes], names: tuple[str, ...] = _LISTS
) -> tuple[str | None, list[Body], Body | None, dict[str, Any]]:
    """What `_taken_out` gives, and before the last the block of those fields where they are large; then they are none."""
    key, messages, rest = _taken_out(fields, encode, names)
    encoded = encode(rest)
    if len(encoded) < _INLINE:
        return key, messages, None, rest
    return key, messages, body(encoded), {}


def _taken_out(
    fields: dict[str, Any],
    encode: Callable[[Any], bytes],
    names: tuple[str, ...] = _LISTS,
    known: tuple[Sequence[Any], Sequence[Body]] = ((), ()),
) -> tuple[str | None, list[Body], dict[str, Any]]:
    """The field that holds a conversation, its messages as blocks, and the fields without them.

    Args:
        fields: of a request.
        encode: makes JSON.
        names: of the fields that may hold one.
        known: messages, and the block of each; where the very object comes again, it is not encoded again.
    """
    for name in names:
        if _is_conversation(fields.get(name)):
            blocks = dict(zip(map(id, known[0]), known[1], strict=True))
            said = [blocks.get(id(item)) or body(encode(item)) for item in fields[name]]
            return name, said, {**fields, name: None}
    return None, [], fields


def _is_conversation(items: Any) -> bool:
    if type(items) is not list or not items:
        return False
    for item in items:  # noqa: SIM110 - a generator costs more than the rest of this
        if type(item) is not dict:
            return False
    return True


def _pack(code: str, values: Sequence[float] | None) -> bytes | None:
    """The numbers as bytes; None where there are none, or they do not fit and stay in the JSON."""
    if values is None:
        return None
    try:
        return pack(code, values)
    except (OverflowError, TypeError):
        return None


def _without_arrays(choice: Choice, arrays: tuple[bytes | None, bytes | None]) -> Choice:
    ids, logprobs = arrays
    return msgspec.structs.replace(
        choice,
        token_ids=choice.token_ids if ids is None else None,
        logprobs=choice.logprobs if logprobs is None else None,
    )


def encode_parts(parts: CallParts) -> bytes:
    """The bytes of `call.parts`."""
    return _msgpack.encode(parts)


def encode_bodies(bodies: list[bytes]) -> bytes | None:
    """The bytes of `call.bodies`; None where there are none."""
    return _msgpack.encode(bodies) if bodies else None


def decode_bodies(first: int, packed: bytes | None) -> dict[int, bytes]:
    """Blocks by number, of a row whose first block is `first`."""
    return dict(enumerate(_bodies.decode(packed), first)) if packed else {}


class CallJoiner:
    """Puts calls together again. What calls share is read and decoded once, so that a conversation takes memory in
    proportion to what it says, not to its turns times its length."""

    def __init__(self, fetch: Callable[[int], dict[int, bytes]]) -> None:
        """`fetch` gives a block by number, and others that it found with it."""
        self._fetch = fetch
        self._bytes: dict[int, bytes] = {}
        self._values: dict[int, Any] = {}
        self._tokens: dict[int, tuple[int, ...]] = {}

    def learn(self, blocks: dict[int, bytes]) -> None:
        """Take note of blocks that need not be fetched."""
        self._bytes.update(blocks)

    def join(self, data: bytes, packed: bytes | None) -> Call:
        """The call that `split` took apart."""
        call = decode(data, Call)
        if packed is None:
            return call
        parts = _parts.decode(packed)
        changes: dict[str, Any] = {}
        if parts.key is not None or parts.request is not None:
            changes["request"] = self._fields(
                call.request, parts.request, parts.key, parts.messages
            )
        if parts.chat is not None or parts.chat_rest is not None:
            asked = call.chat_request or {}
            changes["chat_request"] = self._fields(asked, parts.chat_rest, *_CHAT, parts.chat)
        if parts.chat_sent is not None:
            changes["chat_sent"] = self._fields(call.chat_sent or {}, None, *_CHAT, parts.chat_sent)
        if parts.sent_key is not None and parts.sent is not None:
            sent = self._json(unfold(parts.sent, self._raw))
            changes["overrides"] = {**call.overrides, parts.sent_key: sent}
        if parts.prompt is not None:
            changes["prompt_token_ids"] = self._prompt(parts.prompt, parts.tail)
        if parts.choices is not None:
            changes["choices"] = tuple(map(_with_arrays, call.choices, parts.choices))
        return msgspec.structs.replace(call, **changes)

    def _fields(
        self, rest: dict[str, Any], number: int | None, key: str | None, said: list[bytes] | None
    ) -> dict[str, Any]:
        """A request's fields; the one that was taken out keeps its place."""
        # The shared value stays as it is.
        fields = dict(rest if number is None else self._json([number])[0])
        if key is not None and said is not None:
            fields[key] = self._json(unfold(said, self._raw))
        return fields

    def _block(self, number: int) -> bytes:
        if number not in self._bytes:
            self._bytes.update(self._fetch(number))
        return self._bytes[number]

    def _raw(self, numbers: Sequence[int]) -> list[bytes]:
        return [self._block(number) for number in numbers]

    def _json(self, numbers: Sequence[int]) -> list[Any]:
        for number in numbers:
            if number not in self._values:
                self._values[number] = decode_value(self._block(number))
        return [self._values[number] for number in numbers]

    def _prompt(self, levels: Sequence[bytes], tail: bytes) -> tuple[int, ...]:
        ids: list[int] = []
        for number in unfold(levels, self._raw):
            if number not in self._tokens:
                self._tokens[number] = tuple(unpack("i", self._block(number)))
            ids.extend(self._tokens[number])
        ids.extend(unpack("i", tail))
        return tuple(ids)


def _with_arrays(choice: Choice, arrays: tuple[bytes | None, bytes | None]) -> Choice:
    ids, logprobs = arrays
    return msgspec.structs.replace(
        choice,
        token_ids=choice.token_ids if ids is None else tuple(unpack("i", ids)),
        logprobs=choice.logprobs if logprobs is None else tuple(unpack("d", logprobs)),
    )
