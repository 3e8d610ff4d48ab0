"""A scripted server's routes, refusals and plain replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from lightning_core.testing.received import Received
from lightning_core.testing.replies import Error


def kind_of(received: Received) -> str | None:
    """Which format a path ends in; None for no route."""
    path = received.path
    if received.method == "GET":
        known = path.endswith("/models") or "/models/" in path
        return "models" if known else None
    if received.method == "POST":
        for kind in ("chat/completions", "completions", "embeddings", "responses"):
            if path.endswith(f"/{kind}"):
                return kind
    return None


def refusal(received: Received, kind: str) -> str | None:
    """Why a body cannot be answered; None where it can."""
    if not isinstance(received.json, dict):
        return "scripted server: the body is not a JSON object"
    messages = received.json.get("messages")
    if kind == "chat/completions" and not (
        isinstance(messages, list) and messages and all(isinstance(m, dict) for m in messages)
    ):
        return "scripted server: `messages` is not a list of objects with at least one"
    needed = {"completions": "prompt", "embeddings": "input"}.get(kind)
    if needed and needed not in received.json:
        return f"scripted server: `{needed}` is missing"
    return None


def decode(body: bytes) -> Any:
    """A body as JSON; None where it is none."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def problem(status: int, message: str) -> web.Response:
    """The server's own complaint, in OpenAI's form."""
    return error_response(Error(status, {"error": _error_body(message)}), {})


def _error_body(message: str) -> dict[str, Any]:
    return {"message": message, "type": "scripted_error", "param": None, "code": None}


def error_response(error: Error, headers: dict[str, str]) -> web.Response:
    """A scripted error."""
    body = error.body
    if body is None:
        body = {"error": _error_body(f"scripted error {error.status}")}
    headers = {**headers, **error.headers}
    if isinstance(body, str):
        return web.Response(status=error.status, text=body, headers=headers)
    return web.json_response(body, status=error.status, headers=headers)


def models_response(models: Sequence[str], path: str, headers: dict[str, str]) -> web.Response:
    """The list of models, or the one that the path names."""
    entries = [
        {"id": model, "object": "model", "created": 0, "owned_by": "scripted"} for model in models
    ]
    if path.endswith("/models"):
        return web.json_response({"object": "list", "data": entries}, headers=headers)
    wanted = path.rsplit("/models/", 1)[1]
    for entry in entries:
        if entry["id"] == wanted:
            return web.json_response(entry, headers=headers)
    return problem(404, f"scripted server: no model {wanted!r}")
