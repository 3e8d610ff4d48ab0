"""Request: what a handler of the API gets, and what handlers share."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import msgspec

from lightning_core.errors import WireError
from lightning_core.tokens import Claims, Scope

ADMIN: Final = frozenset({Scope.ADMIN})
WORKER: Final = frozenset({Scope.WORKER, Scope.ADMIN})
ANYONE: Final = WORKER | {Scope.SESSION}
LONGEST_WAIT: Final = 60.0
"""Seconds that a client may ask the server to wait."""
_T = TypeVar("_T")


class Request(msgspec.Struct, frozen=True):
    """A request whose token has been checked."""

    key: str
    claims: Claims
    query: dict[str, str]
    body: dict[str, Any]
    size: int
    origin: str

    def field(self, name: str, kind: type[_T]) -> _T:
        """A field of the body, converted; `ValidationError` names it."""
        if name not in self.body:
            raise WireError(f"body: `{name}` is missing", 400)
        try:
            return msgspec.convert(self.body[name], kind)
        except msgspec.ValidationError as error:
            raise WireError(f"body: `{name}`: {error}", 400) from error

    def optional(self, name: str, kind: type[_T]) -> _T | None:
        """A field of the body that may be missing or null, and is None then."""
        return None if self.body.get(name) is None else self.field(name, kind)

    def number(self, name: str, default: float, most: float | None = None) -> float:
        """A number of the query, bounded."""
        text = self.query.get(name)
        try:
            value = default if text is None else float(text)
        except ValueError as error:
            raise WireError(f"query: `{name}`: expected a number but got {text!r}", 400) from error
        if not math.isfinite(value):
            raise WireError(f"query: `{name}`: expected a finite number but got {text!r}", 400)
        return value if most is None else min(value, most)


Handler = Callable[[Request], Awaitable[object]]
Routes = dict[tuple[str, str, str], tuple[frozenset[Scope], Handler]]
"""By method, resource and action: who may, and what answers."""


async def whole(work: Coroutine[Any, Any, _T]) -> _T:
    """Finish what changes state even where the client goes away in the middle."""
    return await asyncio.shield(asyncio.ensure_future(work))
