"""Doing something when a module is imported, without importing it. Standard library only, cheap to import."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # `typing` costs the start of every child process; a checker knows the name.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_callbacks: dict[str, list[Callable[[], None]]] = {}
_before: dict[str, list[Callable[[], None]]] = {}
_ran: set[str] = set()  # Their code has run, though the import system may not be done with them.


def on_import(
    module: str, callback: Callable[[], None], *, before: bool = False
) -> Callable[[], None]:
    """Call `callback` once `module` has been imported, now if it has been already.

    With `before`, it is called just before the module's code runs. What it raises is said on standard error: a
    hook of ours must not break an import. Returns a function that cancels.
    """
    table = _before if before else _callbacks
    if _is_imported(module):
        _call(module, callback)
        return lambda: None
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    table.setdefault(module, []).append(callback)

    def cancel() -> None:
        waiting = table.get(module, [])
        if callback in waiting:
            waiting.remove(callback)
        if not waiting:
            table.pop(module, None)
        _retire()

    return cancel


def on_any_import(predicate: Callable[[str], None]) -> None:
    """Call `predicate` with the name of each module before it is looked for; it may call `on_import`."""
    _finder.predicates.append(predicate)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _retire() -> None:
    if not (_callbacks or _before or _finder.predicates) and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def _is_imported(name: str) -> bool:
    module = sys.modules.get(name)
    if module is not None and name in _ran:
        return True
    spec = getattr(module, "__spec__", None)
    return module is not None and not getattr(spec, "_initializing", False)


def _call(module: str, callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception as error:  # Whatever a hook raises must not break the user's import.
        sys.stderr.write(
            f"lightning-core: the hook on `{module}` failed, its calls are not labelled:"
            f" {type(error).__name__}: {error}\n"
        )


class _Loader:
    """Runs the callbacks around the real loader, and then takes itself out of the module."""

    def __init__(self, name: str, loader: Any) -> None:
        self._name = name
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        for callback in _before.pop(self._name, ()):
            _call(self._name, callback)
        self._loader.exec_module(module)
        _ran.add(self._name)
        for callback in _callbacks.pop(self._name, ()):
            _call(self._name, callback)
        _retire()


class _Finder:
    """First on `sys.meta_path`; asks the others, and wraps the loader of the modules that are waited for."""

    def __init__(self) -> None:
        self.predicates: list[Callable[[str], None]] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        for predicate in self.predicates:
            predicate(name)
        if name not in _callbacks and name not in _before:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    wrapped: Any = _Loader(name, spec.loader)
                    spec.loader = wrapped
                return spec
        return None


_finder: Any = _Finder()
