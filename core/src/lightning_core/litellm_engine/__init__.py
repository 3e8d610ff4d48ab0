"""The engine `litellm`: models of providers with wire formats of their own, through LiteLLM's SDK in a process of its own."""

from lightning_core.litellm_engine.engine import GIVES, LiteLLMEngine, LiteLLMEngineFactory
from lightning_core.litellm_engine.providers import PROVIDERS, provider_of

__all__ = ["GIVES", "PROVIDERS", "LiteLLMEngine", "LiteLLMEngineFactory", "provider_of"]
