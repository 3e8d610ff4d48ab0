"""The adapters' bench runs; what it finds is for a quiet machine to say."""

from __future__ import annotations

import pytest
from bench import adapters


@pytest.mark.slow
@pytest.mark.parametrize("name", adapters.NAMES)
def test_the_bench_of_an_adapter_runs(monkeypatch, name):
    monkeypatch.setattr(adapters, "TURNS", 6)
    (row,) = adapters.rows([name])
    assert row["name"] == name
    assert row["ours"] > 0
    assert row["reference"] > 0
    assert row["with_routing"] > 0
