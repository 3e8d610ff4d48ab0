"""The backend `local` holds what every backend must."""

import pytest

from lightning_core.optimization import OptimizeConfig
from lightning_core.testing import BackendConformance
from lightning_local.backend import LocalBackend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class TestLocalBackend(BackendConformance):
    @pytest.fixture
    def backend(self):
        return LocalBackend()

    @pytest.fixture
    def asked(self, folders):
        options = {"learning_rate": "1e-2", "threads": "1"}
        return {
            "config": OptimizeConfig(
                backend="local", steps=2, batch_size=3, group_size=4, options=options
            ),
            "model": str(folders["llama"]),
            "max_tokens": 8,
            "engine_options": {"threads": "1"},
        }
