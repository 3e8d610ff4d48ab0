"""The SQLite store holds what every store must."""

from __future__ import annotations

from pathlib import Path

from lightning_core.store import SQLiteStore, Store
from lightning_core.testing.store import StoreConformance


class TestSQLiteStore(StoreConformance):
    async def open_store(self, path: Path) -> Store:
        return await SQLiteStore.open(path / "store.db")


class TestSQLiteStoreWithATinyQueue(StoreConformance):
    """Every put meets back-pressure; nothing else may change."""

    async def open_store(self, path: Path) -> Store:
        return await SQLiteStore.open(path / "store.db", queue_rows=1)
