"""Callbacks after the import of a module, and their undoing."""

from __future__ import annotations

import importlib
import sys

import pytest

from lightning_core.instrument.postimport import on_import


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Name of a module that notes in `LOG` that its code ran; nothing of it stays."""
    (tmp_path / "lightning_waited_for.py").write_text("LOG = ['ran']\n__file__\n")
    (tmp_path / "lightning_fails.py").write_text("raise ImportError('broken')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    before = list(sys.meta_path)
    yield "lightning_waited_for"
    sys.modules.pop("lightning_waited_for", None)
    assert sys.meta_path == before


def test_it_is_called_once_after_the_modules_code(module):
    seen = []
    on_import(module, lambda: seen.append(list(sys.modules[module].LOG)))
    assert seen == []
    importlib.import_module(module)
    importlib.reload(sys.modules[module])
    assert seen == [["ran"]]


def test_it_can_be_called_before_the_modules_code(module):
    seen = []
    on_import(module, lambda: seen.append(hasattr(sys.modules[module], "LOG")), before=True)
    importlib.import_module(module)
    assert seen == [False]


def test_a_module_that_is_there_already_counts(module):
    importlib.import_module(module)
    seen = []
    on_import(module, lambda: seen.append(1))
    assert seen == [1]


def test_the_module_keeps_its_own_loader(module):
    plain = importlib.import_module(module)
    kind = type(plain.__loader__)
    del sys.modules[module]
    on_import(module, lambda: None)
    loaded = importlib.import_module(module)
    assert type(loaded.__loader__) is kind
    assert type(loaded.__spec__.loader) is kind


def test_it_can_be_cancelled(module):
    seen = []
    before = list(sys.meta_path)
    cancel = on_import(module, lambda: seen.append(1))
    cancel()
    cancel()
    importlib.import_module(module)
    assert seen == []
    assert sys.meta_path == before


def test_a_callback_that_raises_does_not_break_the_import(module, capsys):
    on_import(module, lambda: 1 / 0)
    assert importlib.import_module(module).LOG == ["ran"]
    assert f"the hook on `{module}` failed" in capsys.readouterr().err


def test_an_import_that_fails_fails_as_before_and_calls_nothing(module):
    seen = []
    cancel = on_import("lightning_fails", lambda: seen.append(1))
    with pytest.raises(ImportError, match="broken"):
        import lightning_fails  # noqa: F401 - it raises
    cancel()
    assert seen == []


def test_a_module_that_does_not_exist_is_reported_as_before(module):
    cancel = on_import("lightning_nowhere", lambda: None)
    with pytest.raises(ModuleNotFoundError, match="lightning_nowhere"):
        importlib.import_module("lightning_nowhere")
    cancel()
