"""Labelling and routing what an agent does, without a change to its code.

`context` says which attempt, agent and node the running code belongs to, `openai_hook` sends model calls through
the gateway, `propagate` carries the attempt into threads and child processes, `bootstrap` into programs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from lightning_core.adapter import Adapter
from lightning_core.frameworks import instrumented
from lightning_core.instrument import openai_hook, postimport, propagate
from lightning_core.instrument.bootstrap import child_environment
from lightning_core.instrument.context import (
    Scope,
    attempt,
    current,
    end_span,
    label,
    span,
    start_span,
)
from lightning_core.instrument.patches import Patches
from lightning_core.instrument.sinks import HttpSink, ListSink
from lightning_core.instrument.spans import OpenSpan

__all__ = [
    "HttpSink",
    "ListSink",
    "OpenSpan",
    "Patches",
    "Scope",
    "attempt",
    "child_environment",
    "current",
    "end_span",
    "instrument",
    "label",
    "span",
    "start_span",
]


@contextmanager
def instrument(adapters: Iterable[Adapter] = ()) -> Iterator[None]:
    """Instrument this process: the openai and anthropic SDKs, threads, child processes, and each adapter's framework.

    A framework that has not been imported yet is instrumented when it is. Outside an attempt nothing changes for
    the code that runs. May be nested; on leaving, everything is as it was before.
    """
    with ExitStack() as stack:
        openai_hook.install()
        stack.callback(openai_hook.uninstall)
        propagate.install()
        stack.callback(propagate.uninstall)
        for adapter in adapters:
            _enter(adapter, stack)
        yield


def _enter(adapter: Adapter, stack: ExitStack) -> None:
    if not adapter.triggers or any(trigger in sys.modules for trigger in adapter.triggers):
        stack.enter_context(instrumented(adapter))
        return
    cancels: list[Callable[[], None]] = []
    entered: list[bool] = []

    def enter() -> None:
        if not entered:
            entered.append(True)
            stack.enter_context(instrumented(adapter))

    def cancel() -> None:
        for undo in cancels:
            undo()

    stack.callback(cancel)
    for trigger in adapter.triggers:
        cancels.append(postimport.on_import(trigger, enter))
