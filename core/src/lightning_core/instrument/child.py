"""What runs at the start of a Python child process of an attempt: hooks what will be imported, imports nothing."""

from __future__ import annotations

import os
import sys

from . import postimport

TYPE_CHECKING = False  # `typing` costs the start of every child process; a checker knows the name.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SHARED = (
    "bootstrap", "context", "openai_hook", "patches", "plain", "postimport", "propagate", "sinks", "variables",
)  # fmt: skip

_looked: set[str] = set()
_entered: dict[str, Any] = {}  # Contexts of adapters by target, open for the life of the process.
_propagating = False
_hooked = False


def start(raw: str) -> None:
    """Hook the openai and anthropic SDKs, threads, child processes and the adapters of `LIGHTNING_CORE_SESSION`.

    `raw` is the variable's value.
    Called once, by `sitecustomize`, in a package of another name than lightning_core's.
    """
    # An SDK must see the address that the user gave: it changes what it sends when it is another. So must
    # whatever reads it from a .env file, which does not replace what is set.
    for name, of_sdk in (("openai", "OPENAI_"), ("anthropic", "ANTHROPIC_"), ("dotenv", "")):
        postimport.on_import(name, _restorer(of_sdk), before=True)
    for name in ("openai._base_client", "anthropic._base_client"):
        postimport.on_import(name, _hook)
    # A program that uses our functions itself must get these very modules, and not read them again.
    postimport.on_import("lightning_core.instrument", _load_all, before=True)
    postimport.on_import("lightning_core.slots", _offer_strategy)
    for name in ("threading", "concurrent.futures.thread", "subprocess"):
        postimport.on_import(name, _propagate)
    postimport.on_any_import(lambda name: _look(name, raw))


def _load(name: str) -> Any:
    module = __import__(f"{__package__}.{name}", fromlist=[name])
    # An adapter imports these from lightning_core, where that is installed: it must get the same objects.
    for shared in _SHARED:
        loaded = sys.modules.get(f"{__package__}.{shared}")
        if loaded is not None:
            sys.modules.setdefault(f"lightning_core.instrument.{shared}", loaded)
    return module


def _load_all() -> None:
    for shared in _SHARED:
        _load(shared)


def _restorer(of_sdk: str) -> Callable[[], None]:
    return lambda: _load("bootstrap").restore_addresses(os.environ, of_sdk)


def _hook() -> None:
    global _hooked
    if not _hooked:
        _hooked = True
        _load("openai_hook").install()


def _offer_strategy() -> None:
    def read() -> Any:
        module = "lightning_core.instrument.declaring"
        return __import__(module, fromlist=["of_process"]).of_process()

    # Later, since what imports the slots is not imported whole yet.
    sys.modules["lightning_core.slots"].use_in_process(read)


def _propagate() -> None:
    global _propagating
    if not _propagating:
        _propagating = True
        _load("propagate").install()


def _look(name: str, raw: str) -> None:
    # A text search, since parsing the variable would cost each start more than all the rest.
    if name in _looked or f'"{name}"' not in raw:
        return
    _looked.add(name)
    import json  # noqa: PLC0415 - only where an adapter's framework is imported

    target = json.loads(raw).get("adapters", {}).get(name)
    if target is not None:
        postimport.on_import(name, lambda: _enter(target))


def _enter(target: str) -> None:
    if target in _entered:
        return
    _entered[target] = None
    _load_all()
    module, _, attribute = target.partition(":")
    try:
        adapter = getattr(__import__(module, fromlist=[attribute]), attribute)()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in (module.partition(".")[0], "lightning_core"):
            return  # This environment has the framework and not our package: its calls stay without labels.
        raise
    frameworks = __import__("lightning_core.frameworks", fromlist=["instrumented"])
    context = frameworks.instrumented(adapter)
    context.__enter__()
    _entered[target] = context
