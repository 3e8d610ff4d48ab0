"""Models of providers, whose names look like those of the Hugging Face hub."""

import importlib.util

import pytest

from lightning_core.engines import create_engine
from lightning_core.errors import CapabilityError
from lightning_core.optimization import OptimizeConfig
from lightning_core.plugins import load
from lightning_core.running.optimize import optimize
from lightning_core.task import Task
from lightning_local.engine import LocalEngineFactory

MODEL = "anthropic/claude-sonnet-4-5"


def test_a_providers_model_is_not_taken_for_one_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert create_engine(MODEL, None, load()).name == "litellm"
    assert create_engine(MODEL, "local", load()).name == "local"
    assert create_engine("org/name", None, load()).name == "local"
    (tmp_path / MODEL).mkdir(parents=True)
    (tmp_path / MODEL / "config.json").write_text("{}")
    assert create_engine(MODEL, None, load()).name == "local"
    assert LocalEngineFactory().accepts(MODEL)


async def test_it_cannot_be_trained(tmp_path, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-0123456789")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    with pytest.raises(
        CapabilityError, match=r"backend `local` needs `logprobs`, .* but engine `litellm` gives"
    ):
        await optimize(
            lambda text: text,
            [Task(id="t", input="x")],
            OptimizeConfig(backend="local", steps=1),
            reward=lambda task, trace: 1.0,
            model=MODEL,
            runs=tmp_path,
        )
    assert list(tmp_path.iterdir()) == []
