"""Reflection models and prices of providers that LiteLLM reaches."""

import importlib.util
import os
import signal

import pytest

from lightning_core.errors import EngineError, UsageError
from lightning_core.optimization import OptimizeConfig
from lightning_core.runs import RunConfig
from lightning_core.testing import Error
from lightning_core.testing.replies import Text
from lightning_prompt.backend import PromptBackend
from lightning_prompt.journal import Journal
from lightning_prompt.plan import plan_of
from lightning_prompt.reflection import ReflectionModel

KEY = "azure-0123456789"
MODEL = "azure/gpt-4.1-mini"
needs_litellm = pytest.mark.skipif(
    importlib.util.find_spec("litellm") is None, reason="litellm is not there"
)


@pytest.fixture
def journal(tmp_path):
    with Journal(tmp_path / "reflection.jsonl") as journal:
        yield journal


def test_what_a_providers_reply_costs_need_not_be_said(journal, monkeypatch):
    asked = OptimizeConfig(backend="prompt", budget="1 USD", reflection_model="anthropic/claude-x")
    config = RunConfig(name="r", agent="a", created_at=0.0, reward="r", optimize=asked)
    assert plan_of(config).budget.usd == 1.0
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    ReflectionModel("anthropic/claude-x", journal, priced=True)
    with pytest.raises(UsageError, match=r"what `gpt-4\.1` costs is not known"):
        ReflectionModel("openai/gpt-4.1", journal, priced=True)


def test_a_providers_key_is_in_its_own_variable(journal, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "")
    with pytest.raises(UsageError, match=r"`ANTHROPIC_API_KEY` .* is not set"):
        ReflectionModel("anthropic/claude-x", journal)
    asked = OptimizeConfig(backend="prompt", reflection_model="anthropic/claude-x")
    with pytest.raises(UsageError, match=r"`ANTHROPIC_API_KEY` .* is not set"):
        PromptBackend().check(
            RunConfig(name="r", agent="a", created_at=0.0, reward="r", optimize=asked)
        )
    with pytest.raises(UsageError, match="`api_key_env` is for a model at an address"):
        ReflectionModel("anthropic/claude-x", journal, api_key_env="MINE")


@needs_litellm
@pytest.mark.slow
async def test_a_providers_model_reflects(scripted_server, journal, monkeypatch, tmp_path):
    monkeypatch.setenv("AZURE_API_KEY", KEY)
    monkeypatch.setenv("AZURE_API_BASE", scripted_server.base_url.removesuffix("/v1"))
    usage = {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}
    scripted_server.enqueue(
        Text("better", usage=usage),
        Error(503, headers={"retry-after": "0"}),
        "best",
        Error(401, {"error": {"message": f"wrong: {KEY}"}}),
    )
    options = {"priced": True, "temperature": 0.5, "max_tokens": 99, "patience": 60.0}
    async with ReflectionModel(MODEL, journal, **options) as reflection:
        assert await reflection.ask("improve this") == "better"
        assert reflection.spent.usd == pytest.approx(1000 * 0.4e-6 + 500 * 1.6e-6)
        assert await reflection.ask("once more") == "best"
        with pytest.raises(EngineError, match=r"answered 401.*`AZURE_API_KEY`") as caught:
            await reflection.ask("and again")
        assert KEY not in str(caught.value)
        process = reflection._engine._child._process
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="ended with status -9"):
            await reflection.ask("anyone there")
    request = scripted_server.requests[0]
    assert request.path == "/openai/deployments/gpt-4.1-mini/chat/completions"
    assert request.headers["api-key"] == KEY
    assert request.json["messages"] == [{"role": "user", "content": "improve this"}]
    assert (request.json["temperature"], request.json["max_tokens"]) == (0.5, 99)
    assert (tmp_path / "logs" / "reflection" / "engine.log").exists()
