"""Patches: wrappers at places of other people's code, there while somebody wants them. Standard library only."""

from __future__ import annotations

import sys
import threading

from . import postimport

TYPE_CHECKING = False  # `typing` costs the start of every child process; a checker knows the name.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


class Patches:
    """Wrappers that are put into modules as soon as these have been imported, and taken away again.

    A context manager that may be entered any number of times, nested or overlapping: the first one in puts the wrappers
    there, the last one out restores exactly what the first one changed. Imports none of the modules.
    """

    def __init__(
        self, name: str, places: Iterable[tuple[str, str | None, str, Callable[[Any], Any]]]
    ) -> None:
        """
        Args:
            name: whose they are, for messages.
            places: module, class (None for the module itself), attribute, and what makes the wrapper of the original.
        """
        self._name = name
        self._places = tuple(places)
        self._lock = threading.RLock()
        self._users = 0
        self._cancels: list[Callable[[], None]] = []
        self._patched: list[tuple[Any, str, Any, Any]] = []

    @property
    def wanted(self) -> bool:
        """Whether somebody wants them. A wrapper may outlive this, below somebody else's, and then does nothing."""
        return self._users > 0

    def install(self) -> None:
        """Put them there, now or as soon as their modules are imported. Each `install` wants one `uninstall`."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                for place in self._places:
                    self._cancels.append(postimport.on_import(place[0], self._patcher(*place)))

    def uninstall(self) -> None:
        """Undo one `install`.

        Raises:
            RuntimeError: it was called more often than `install`.
        """
        with self._lock:
            if self._users == 0:
                raise RuntimeError(f"`{self._name}.uninstall` was called more often than `install`")
            self._users -= 1
            if self._users:
                return
            while self._cancels:
                self._cancels.pop()()
            while self._patched:
                place, name, original, ours = self._patched.pop()
                # Somebody may have wrapped ours since: then it stays below theirs.
                if vars(place).get(name) is ours:
                    setattr(place, name, original)

    def __enter__(self) -> None:
        self.install()

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def _patcher(
        self, module: str, owner: str | None, name: str, wrap: Callable[[Any], Any]
    ) -> Callable[[], None]:
        def patch() -> None:
            with self._lock:
                if self._users == 0:
                    return
                place = sys.modules[module]
                if owner is not None:
                    place = getattr(place, owner)
                original = vars(place)[name]
                ours = wrap(original)
                setattr(place, name, ours)
                self._patched.append((place, name, original, ours))

        return patch
