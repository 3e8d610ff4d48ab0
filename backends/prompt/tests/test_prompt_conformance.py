"""The backend `prompt` holds what every backend must."""

import pytest

from lightning_core.optimization import OptimizeConfig
from lightning_core.testing import BackendConformance
from lightning_prompt.backend import PromptBackend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class TestPromptBackend(BackendConformance):
    @pytest.fixture
    def backend(self):
        return PromptBackend()

    @pytest.fixture
    def asked(self):
        options = {"demonstrations": "expected"}
        return {"config": OptimizeConfig(backend="prompt", budget="120 rollouts", options=options)}
