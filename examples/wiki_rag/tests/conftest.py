"""The environment in which the agent is imported."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def environment():
    """A key, and the model that it asks for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "k")
        patch.setenv("OPENAI_MODEL", "scripted")
        yield
