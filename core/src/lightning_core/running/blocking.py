"""Async functions for code that is not async."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from lightning_core.errors import UsageError

_P = ParamSpec("_P")
_T = TypeVar("_T")


def blocking(
    function: Callable[_P, Coroutine[Any, Any, _T]], *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    """Call a public async function and wait for what it returns.

    Raises:
        UsageError: an event loop runs already in this thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass  # Not run from here: what it raises would tell of this error too.
    else:
        name = function.__name__
        raise UsageError(
            f"{name}_sync: an event loop runs in this thread already; use `await lightning_core.{name}(…)`"
        )
    return asyncio.run(function(*args, **kwargs))
