"""Models of providers: verl, which serves the policy itself, cannot train them either."""

import pytest

from lightning_core.errors import CapabilityError
from lightning_core.optimization import OptimizeConfig
from lightning_core.running.optimize import optimize
from lightning_core.task import Task


async def test_a_providers_model_is_refused_before_anything_is_looked_for(tmp_path):
    with pytest.raises(
        CapabilityError, match=r"backend `verl` needs `logprobs`, .* but engine `litellm` gives"
    ):
        await optimize(
            lambda text: text,
            [Task(id="t", input="x")],
            OptimizeConfig(backend="verl", steps=1),
            reward=lambda task, trace: 1.0,
            model="gemini/gemini-2.5-flash",
            runs=tmp_path,
        )
    assert list(tmp_path.iterdir()) == []
