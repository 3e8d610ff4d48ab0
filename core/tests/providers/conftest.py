"""Providers that do what the prompt's last word says, each in its own wire format."""

import asyncio
import json
import struct
import zlib

import pytest_asyncio
from aiohttp import web

PIECES = ["Hé", "llo ✓"]
ARGUMENTS = {"a": 2, "b": 3}
CUT = ("break", "early", "hang")
"""Streams of which only the first piece comes."""


class Providers:
    """Anthropic Messages, Azure's chat completions, Gemini's generateContent and Bedrock's Converse at one address.

    What the last word of a prompt asks for: `hello`, `think`, `tool`, `break`, `early`, `error`, `hang`, or a status.
    """

    def __init__(self):
        self.seen = []
        """Each request: path, headers, body."""
        self.gone = asyncio.Event()
        """Set once a client has left a reply that hangs."""
        self.url = ""

    async def start(self):
        app = web.Application()
        app.router.add_post("/anthropic/v1/messages", self._answer(Anthropic))
        app.router.add_post(
            "/azure/openai/deployments/{model}/chat/completions", self._answer(Azure)
        )
        app.router.add_post("/azure/openai/deployments/{model}/embeddings", self._embed)
        app.router.add_post("/gemini/models/{call}", self._answer(Gemini))
        app.router.add_post("/bedrock/model/{model}/{call}", self._answer(Bedrock))
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self):
        await self._runner.cleanup()

    def _answer(self, form):
        async def answer(request):
            body = await request.json()
            self.seen.append((request.path_qs, dict(request.headers), body))
            word = form.prompt(body).split()[-1]
            if word.isdigit():
                headers = {"retry-after": "7"} if word == "429" else {}
                data = form.refusal(int(word), f"the status is {word}")
                return web.json_response(data, status=int(word), headers=headers)
            if not form.streams(request.path, body):
                if word == "hang":
                    await self._hang()
                return web.json_response(form.whole(word))
            response = web.StreamResponse(headers={"content-type": form.stream_type})
            await response.prepare(request)
            for event in form.events(word):
                await response.write(event)
            if word == "break":
                request.transport.abort()
            if word == "hang":
                await self._hang()
            return response

        return answer

    async def _hang(self):
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            self.gone.set()
            raise

    async def _embed(self, request):
        body = await request.json()
        self.seen.append((request.path_qs, dict(request.headers), body))
        data = [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5]}]
        usage = {"prompt_tokens": 3, "total_tokens": 3}
        return web.json_response({"object": "list", "model": "e", "data": data, "usage": usage})


def event(value, name=None):
    """A server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


def text_of(content):
    """The text of a message's content, in whatever parts."""
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", "") for part in content)


class Anthropic:
    """`POST /v1/messages`."""

    stream_type = "text/event-stream"

    @staticmethod
    def prompt(body):
        return text_of(body["messages"][-1]["content"])

    @staticmethod
    def streams(path, body):
        return body.get("stream", False)

    @staticmethod
    def refusal(status, message):
        kinds = {401: "authentication_error", 429: "rate_limit_error", 529: "overloaded_error"}
        return {
            "type": "error",
            "error": {"type": kinds.get(status, "api_error"), "message": message},
        }

    @staticmethod
    def _head(stop=None, content=(), output=1):
        return {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5-20250929",
            "content": list(content), "stop_reason": stop, "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": output},
        }  # fmt: skip

    @classmethod
    def whole(cls, word):
        text = {"type": "text", "text": "".join(PIECES)}
        if word == "tool":
            call = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": ARGUMENTS}
            return cls._head("tool_use", [call], 5)
        if word == "think":
            thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
            return cls._head("end_turn", [thought, text], 5)
        return cls._head("end_turn", [text], 5)

    @classmethod
    def events(cls, word):
        yield event({"type": "message_start", "message": cls._head()}, "message_start")
        if word == "error":
            fault = {"type": "overloaded_error", "message": "Overloaded"}
            yield event({"type": "error", "error": fault}, "error")
            return
        block, deltas = {"type": "text", "text": ""}, [
            {"type": "text_delta", "text": piece} for piece in PIECES
        ]  # fmt: skip
        if word == "tool":
            block = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}}
            said = json.dumps(ARGUMENTS)
            deltas = [{"type": "input_json_delta", "partial_json": p} for p in (said[:5], said[5:])]
        if word == "think":
            block = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": "Hm."}]
        start = {"type": "content_block_start", "index": 0, "content_block": block}
        yield event(start, "content_block_start")
        for delta in deltas[:1] if word in CUT else deltas:
            yield event(
                {"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta"
            )
        if word in CUT:
            return
        yield event({"type": "content_block_stop", "index": 0}, "content_block_stop")
        stop = {"stop_reason": "tool_use" if word == "tool" else "end_turn", "stop_sequence": None}
        usage = {"output_tokens": 5}
        yield event({"type": "message_delta", "delta": stop, "usage": usage}, "message_delta")
        yield event({"type": "message_stop"}, "message_stop")


class Azure:
    """`POST /openai/deployments/NAME/chat/completions`."""

    stream_type = "text/event-stream"
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}  # noqa: RUF012
    call = {  # noqa: RUF012
        "id": "call_1",
        "type": "function",
        "function": {"name": "add", "arguments": json.dumps(ARGUMENTS)},
    }

    @staticmethod
    def prompt(body):
        return text_of(body["messages"][-1]["content"])

    @staticmethod
    def streams(path, body):
        return body.get("stream", False)

    @staticmethod
    def refusal(status, message):
        return {
            "error": {"message": message, "type": "some_type", "param": None, "code": "some_code"}
        }

    @classmethod
    def whole(cls, word):
        message, finish = {"role": "assistant", "content": "".join(PIECES)}, "stop"
        if word == "tool":
            message = {"role": "assistant", "content": None, "tool_calls": [cls.call]}
            finish = "tool_calls"
        return {
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-4.1-mini-2025-04-14",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": cls.usage,
        }  # fmt: skip

    @classmethod
    def events(cls, word):
        def chunk(delta, finish=None, **more):
            choices = (
                [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
            )
            return event(
                {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4.1-mini-2025-04-14",
                 "choices": choices, **more}
            )  # fmt: skip

        yield chunk({"role": "assistant", "content": ""})
        if word == "error":
            yield event(
                {"error": {"message": "Overloaded", "type": "server_error", "code": "overloaded"}}
            )
            return
        if word == "tool":
            yield chunk({"tool_calls": [{"index": 0, **cls.call}]})
            yield chunk({}, "tool_calls")
        else:
            yield chunk({"content": PIECES[0]})
            if word in CUT:
                return
            yield chunk({"content": PIECES[1]})
            yield chunk({}, "stop")
        yield chunk(None, usage=cls.usage)
        yield b"data: [DONE]\n\n"


class Gemini:
    """`POST /models/NAME:generateContent` and `:streamGenerateContent?alt=sse`."""

    stream_type = "text/event-stream"

    @staticmethod
    def prompt(body):
        return text_of(body["contents"][-1]["parts"])

    @staticmethod
    def streams(path, body):
        return path.endswith(":streamGenerateContent")

    @staticmethod
    def refusal(status, message):
        return {"error": {"code": status, "message": message, "status": "SOME_STATUS"}}

    @staticmethod
    def _reply(parts, finish="STOP"):
        candidate = {"content": {"role": "model", "parts": parts}, "index": 0}
        if finish:
            candidate["finishReason"] = finish
        return {
            "candidates": [candidate],
            "modelVersion": "gemini-2.5-flash",
            "responseId": "r1",
            "usageMetadata": {
                "promptTokenCount": 10,
                "candidatesTokenCount": 5,
                "totalTokenCount": 15,
            },
        }

    @classmethod
    def whole(cls, word):
        if word == "tool":
            return cls._reply([{"functionCall": {"name": "add", "args": ARGUMENTS}}])
        thought = [{"text": "Hm.", "thought": True}] if word == "think" else []
        return cls._reply([*thought, {"text": "".join(PIECES)}])

    @classmethod
    def events(cls, word):
        if word == "tool":
            yield event(cls.whole(word))
            return
        if word == "think":
            yield event(cls._reply([{"text": "Hm.", "thought": True}], None))
        yield event(cls._reply([{"text": PIECES[0]}], None))
        if word == "error":
            yield event({"error": {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}})
        elif word not in CUT:
            yield event(cls._reply([{"text": PIECES[1]}]))


class Bedrock:
    """`POST /model/NAME/converse` and `/converse-stream`."""

    stream_type = "application/vnd.amazon.eventstream"
    usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}  # noqa: RUF012

    @staticmethod
    def prompt(body):
        return text_of(body["messages"][-1]["content"])

    @staticmethod
    def streams(path, body):
        return path.endswith("-stream")

    @staticmethod
    def refusal(status, message):
        return {"message": message}

    @classmethod
    def whole(cls, word):
        content, stop = [{"text": "".join(PIECES)}], "end_turn"
        if word == "tool":
            content, stop = (
                [{"toolUse": {"toolUseId": "t1", "name": "add", "input": ARGUMENTS}}],
                "tool_use",
            )
        message = {"role": "assistant", "content": content}
        return {
            "output": {"message": message}, "stopReason": stop, "usage": cls.usage, "metrics": {"latencyMs": 1}
        }  # fmt: skip

    @classmethod
    def events(cls, word):
        yield cls._frame("messageStart", {"role": "assistant"})
        if word == "error":
            yield cls._frame("throttlingException", {"message": "Overloaded"}, kind="exception")
            return
        deltas, stop = [{"text": piece} for piece in PIECES], "end_turn"
        if word == "tool":
            start = {"toolUse": {"toolUseId": "t1", "name": "add"}}
            yield cls._frame("contentBlockStart", {"start": start, "contentBlockIndex": 0})
            deltas, stop = [{"toolUse": {"input": json.dumps(ARGUMENTS)}}], "tool_use"
        for delta in deltas[:1] if word in CUT else deltas:
            yield cls._frame("contentBlockDelta", {"delta": delta, "contentBlockIndex": 0})
        if word in CUT:
            return
        yield cls._frame("contentBlockStop", {"contentBlockIndex": 0})
        yield cls._frame("messageStop", {"stopReason": stop})
        yield cls._frame("metadata", {"usage": cls.usage, "metrics": {"latencyMs": 1}})

    @staticmethod
    def _frame(name, value, kind="event"):
        """A message of `application/vnd.amazon.eventstream`."""
        pairs = {f":{kind}-type": name, ":content-type": "application/json", ":message-type": kind}
        head = b"".join(
            struct.pack(">B", len(key))
            + key.encode()
            + struct.pack(">BH", 7, len(text))
            + text.encode()
            for key, text in pairs.items()
        )
        payload = json.dumps(value, ensure_ascii=False).encode()
        prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
        data = prelude + struct.pack(">I", zlib.crc32(prelude)) + head + payload
        return data + struct.pack(">I", zlib.crc32(data))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def providers():
    """The providers, at one address for the module."""
    found = Providers()
    await found.start()
    try:
        yield found
    finally:
        await found.stop()
