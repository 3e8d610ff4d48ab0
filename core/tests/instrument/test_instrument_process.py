"""`instrument`: everything in this process at once, adapters when their frameworks are there."""

from __future__ import annotations

import sys
import types
from contextlib import contextmanager

import pytest
from openai import _base_client

from lightning_core.instrument import instrument


class Recorded:
    """An adapter that notes when it is entered and left."""

    distribution = None

    def __init__(self, *triggers: str):
        self.triggers = triggers
        self.events: list[str] = []

    @contextmanager
    def instrument(self):
        self.events.append("in")
        try:
            yield
        finally:
            self.events.append("out")


@pytest.fixture
def framework(tmp_path, monkeypatch):
    (tmp_path / "lightning_late_framework.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "lightning_late_framework"
    sys.modules.pop("lightning_late_framework", None)


def test_a_framework_that_is_there_is_entered_at_once_and_left():
    adapter = Recorded("lightning_nowhere", "json")
    with instrument([adapter]):
        assert adapter.events == ["in"]
    assert adapter.events == ["in", "out"]


def test_a_framework_is_entered_when_it_is_imported(framework):
    adapter = Recorded(framework)
    with instrument([adapter]):
        assert adapter.events == []
        __import__(framework)
        assert adapter.events == ["in"]
    assert adapter.events == ["in", "out"]


def test_a_framework_that_is_imported_afterwards_stays_as_it_is(framework):
    adapter = Recorded(framework)
    finders = list(sys.meta_path)
    with instrument([adapter]):
        pass
    __import__(framework)
    assert adapter.events == []
    assert sys.meta_path == finders


def test_an_adapter_of_several_modules_is_entered_once(framework, monkeypatch):
    adapter = Recorded(framework, "lightning_nowhere")
    with instrument([adapter]):
        __import__(framework)
        monkeypatch.setitem(sys.modules, "lightning_nowhere", types.ModuleType("n"))
        __import__("lightning_nowhere")
        assert adapter.events == ["in"]


def test_what_was_entered_is_left_when_an_adapter_cannot_be():
    class Broken(Recorded):
        def instrument(self):
            raise RuntimeError("broken adapter")

    first = Recorded()
    before = _base_client.BaseClient._build_request
    with pytest.raises(RuntimeError, match="broken adapter"), instrument([first, Broken()]):
        pass
    assert first.events == ["in", "out"]
    assert _base_client.BaseClient._build_request is before
