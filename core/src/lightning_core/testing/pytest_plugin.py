"""pytest fixtures that come with lightning-core. Nothing of ours is imported before a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lightning_core.testing.scripted import ScriptedServer

# A failed assertion of a conformance class says what was compared.
for _module in ("adapter", "backend", "engine", "store"):
    pytest.register_assert_rewrite(f"lightning_core.testing.{_module}")


@pytest.fixture
def scripted_server() -> Iterator[ScriptedServer]:
    """A scripted model server in a thread of its own, for sync and async tests alike."""
    from lightning_core.testing.scripted import ScriptedServer  # noqa: PLC0415 - fixtures load late

    with ScriptedServer.in_thread() as server:
        yield server


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """An empty folder for one run."""
    folder = tmp_path / "runs" / "test"
    folder.mkdir(parents=True)
    return folder
