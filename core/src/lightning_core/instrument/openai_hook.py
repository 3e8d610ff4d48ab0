"""Sends the model calls of the openai and anthropic SDKs through the gateway, and says whose they are.

One generator makes both, and what is hooked has the same names in both. Works below an SDK's public face, so clients built
before or after, with an own `base_url` or `http_client`, sync or async, Azure, raw and streamed replies are all reached,
and the SDK does not notice: it changes what it sends when its `base_url` is not its maker's. Standard library only.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from functools import lru_cache, partial, wraps
from urllib.parse import quote, quote_plus, urlencode

from . import context
from .patches import Patches

TYPE_CHECKING = False  # `typing` costs the start of every child process; a checker knows the name.
if TYPE_CHECKING:
    from typing import Any

# Only what a model answers. Files, images, batches and the like keep their way: the gateway has no format for them.
MODEL_CALLS = {
    "openai._base_client": re.compile(
        rb"/(?:chat/completions|completions|embeddings|models|responses(?:/[^?]*)?)/?(?:\?|$)"
    ),
    "anthropic._base_client": re.compile(rb"/(?:messages(?:/count_tokens)?|models)/?(?:\?|$)"),
}
"""The modules that are hooked, and the paths of the requests that go through the gateway."""
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
_MAX_LABEL = 512

_call: ContextVar[str | None] = ContextVar("lightning_core_call", default=None)


def _wrap_request(original: Any) -> Any:
    @wraps(original)
    def request(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _call.set(context.new_id())
        try:
            return original(self, *args, **kwargs)
        finally:
            _call.reset(token)

    return request


def _wrap_async_request(original: Any) -> Any:
    @wraps(original)
    async def request(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _call.set(context.new_id())
        try:
            return await original(self, *args, **kwargs)
        finally:
            _call.reset(token)

    return request


def _wrap_build_request(calls: re.Pattern[bytes], original: Any) -> Any:
    @wraps(original)
    def _build_request(self: Any, options: Any, **kwargs: Any) -> Any:
        request = original(self, options, **kwargs)
        scope = context.current() if _patches.wanted else None
        if scope is not None and calls.search(request.url.raw_path):
            reroute(request, scope, retry=kwargs.get("retries_taken", 0))
        return request

    return _build_request


def reroute(request: Any, scope: context.Scope, *, retry: int) -> None:
    """Send an httpx or httpx2 request through the gateway of `scope`, with its labels. Changes the request."""
    kind: Any = type(request.url)
    request.url, host, target = _moved(kind, str(request.url), scope.gateway)
    request.headers["host"] = host
    if target is not None:
        request.headers["x-lightning-target"] = target
    # Not in the path: HTTP clients log addresses.
    request.headers["x-lightning-session"] = scope.session
    request.headers["x-lightning-call"] = _call.get() or context.new_id()
    request.headers["x-lightning-retry"] = str(retry)
    labels = {"agent": scope.agent, "node": scope.node, **scope.labels}
    said = [
        _said(name, str(value)[:_MAX_LABEL]) for name, value in labels.items() if value is not None
    ]
    if scope.span is not None:
        said.append(f"span={quote_plus(scope.span)}")
    request.headers["x-lightning-labels"] = "&".join(said)


@lru_cache(maxsize=1024)  # The same again and again, but for the span.
def _said(name: str, value: str) -> str:
    """A label as the header has it."""
    return urlencode({name: value})


@lru_cache(maxsize=256)  # A client asks one address again and again, and URLs are slow to make.
def _moved(kind: Any, address: str, origin: str) -> tuple[Any, str, str | None]:
    """A URL of an HTTP library's `kind` at the gateway; its `host` header, and where it led before if that was elsewhere."""
    url, gateway = kind(address), kind(origin)
    path: bytes = url.raw_path
    target = None
    if (url.scheme, url.host, url.port) == (gateway.scheme, gateway.host, gateway.port):
        # Routed by the environment already, or by a client that was built for an earlier attempt.
        if path.startswith(b"/s/"):
            path = b"/" + path[3:].partition(b"/")[2]
    else:
        target = quote(str(url.copy_with(userinfo=b"", fragment=None)), safe=_PRINTABLE)
    moved = url.copy_with(
        scheme=gateway.scheme, host=gateway.host, port=gateway.port, raw_path=path
    )
    return moved, moved.netloc.decode("ascii"), target


_patches = Patches(
    "openai_hook",
    # The SDKs have no public place to rewrite a request that every client class shares: `_prepare_options` is
    # overridden by some of them, and an `http_client` may be the user's own.
    [
        place
        for module, calls in MODEL_CALLS.items()
        for place in (
            (module, "BaseClient", "_build_request", partial(_wrap_build_request, calls)),
            (module, "SyncAPIClient", "request", _wrap_request),
            (module, "AsyncAPIClient", "request", _wrap_async_request),
        )
    ],
)
install = _patches.install
uninstall = _patches.uninstall
