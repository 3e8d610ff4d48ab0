"""A model server that costs next to nothing: ready-made replies from a bare protocol.

Replies are 1.3 kB whole, or 64 events; the model `slow` paces its events over three seconds. Each event of a stream
leaves in a write of its own, as from an engine. `return_token_ids` adds ids and log-probabilities, unless `--no-ids`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any, cast

from bench import child

EVENTS = 64
SLOW_EVENTS = 15
SLOW_SECONDS = 3.0
_NUMBER = b"00000000"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_WORD = "lightning strikes the tallest tree "
_TOKENS = 64


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _head(kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{_NUMBER.decode()}",
        "object": kind,
        "created": 1700000000,
        "model": "bench-model",
    }


def _logprobs(count: int) -> dict[str, Any]:
    entry = {"token": "token_id:17", "logprob": -0.25, "bytes": None, "top_logprobs": []}
    return {"content": [entry] * count}


def _whole(ids: bool) -> bytes:
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": (_WORD * 40)[:1000]},
        "finish_reason": "stop",
    }
    reply: dict[str, Any] = {**_head("chat.completion"), "choices": [choice]}
    if ids:
        choice |= {"token_ids": list(range(_TOKENS)), "logprobs": _logprobs(_TOKENS)}
        reply["prompt_token_ids"] = list(range(300))
    reply["usage"] = {"prompt_tokens": 300, "completion_tokens": _TOKENS, "total_tokens": 364}
    body = _json(reply)
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        % len(body)
        + body
    )


def _events(ids: bool, usage: bool, count: int) -> list[bytes]:
    chunks: list[dict[str, Any]] = []
    for number in range(count):
        delta = {"role": "assistant", "content": ""} if number == 0 else {"content": "lightning "}
        finish = None if number < count - 1 else "stop"
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish}
        chunk = {**_head("chat.completion.chunk"), "choices": [choice]}
        if ids:
            choice |= {"token_ids": [number], "logprobs": _logprobs(1)}
            if number == 0:
                chunk["prompt_token_ids"] = list(range(300))
        chunks.append(chunk)
    if usage:
        counts = {"prompt_tokens": 300, "completion_tokens": count, "total_tokens": 300 + count}
        chunks.append({**_head("chat.completion.chunk"), "choices": [], "usage": counts})
    data = [b"data: %s\n\n" % _json(chunk) for chunk in chunks]
    data.append(b"data: [DONE]\n\n")
    frames = [b"%x\r\n%s\r\n" % (len(each), each) for each in data]
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    return [head + frames[0], *frames[1:-1], frames[-1] + b"0\r\n\r\n"]


_WHOLE = {ids: _whole(ids) for ids in (False, True)}
_STREAMS = {
    (ids, usage, count): _events(ids, usage, count)
    for ids in (False, True)
    for usage in (False, True)
    for count in (EVENTS, SLOW_EVENTS)
}


class Upstream(asyncio.Protocol):
    """One connection."""

    served = 0
    with_ids = True

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        """Answer once the body is whole."""
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        match = _LENGTH.search(self._buffer, 0, end)
        length = int(match[1]) if match else 0
        if len(self._buffer) < end + length:
            return
        body, self._buffer = self._buffer[end : end + length], b""
        Upstream.served += 1
        number = b"%08d" % Upstream.served
        ids = self.with_ids and b'"return_token_ids":' in body
        if b'"stream":true' not in body.replace(b" ", b""):
            self._transport.write(_WHOLE[ids].replace(_NUMBER, number, 1))
            return
        slow = b'"slow"' in body
        usage = b'"include_usage":' in body
        frames = iter(_STREAMS[ids, usage, SLOW_EVENTS if slow else EVENTS])
        self._pump(frames, SLOW_SECONDS / SLOW_EVENTS if slow else 0.0, number)

    def _pump(self, frames: Iterator[bytes], pause: float, number: bytes) -> None:
        frame = next(frames, None)
        if frame is None or self._transport.is_closing():
            return
        self._transport.write(frame.replace(_NUMBER, number, 1))
        loop = asyncio.get_running_loop()
        if pause:
            loop.call_later(pause, self._pump, frames, pause, number)
        else:
            loop.call_soon(self._pump, frames, pause, number)


async def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-ids", action="store_true", help="have no token ids to give")
    Upstream.with_ids = not parser.parse_args().no_ids
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Upstream, "127.0.0.1", 0, backlog=4096)
    await child.serve({"port": server.sockets[0].getsockname()[1]})
    server.close()


if __name__ == "__main__":
    child.run(main, strict=True)
