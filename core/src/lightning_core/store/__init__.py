"""Where every record of a run is kept: the `Store` protocol and `SQLiteStore`, the default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning_core.store.base import Store

if TYPE_CHECKING:
    from lightning_core.store.sqlite import SQLiteStore

__all__ = ["SQLiteStore", "Store"]


def __getattr__(name: str) -> Any:
    # Importing the protocol must not cost the import of sqlite3.
    if name == "SQLiteStore":
        from lightning_core.store.sqlite import SQLiteStore  # noqa: PLC0415 - lazy, see above

        return SQLiteStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
