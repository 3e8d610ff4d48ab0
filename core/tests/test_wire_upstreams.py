"""Where an agent's environment sends its calls."""

import pytest

from lightning_core.wire import Upstreams


@pytest.mark.parametrize(
    ("environ", "default", "messages"),
    [
        ({}, None, "https://api.anthropic.com/v1"),
        ({"OPENAI_BASE_URL": "http://o/v1"}, "http://o/v1", "https://api.anthropic.com/v1"),
        ({"OPENAI_API_BASE": "http://o/v1", "ANTHROPIC_API_BASE": "http://a/"}, "http://o/v1", "http://a/v1"),
        ({"OPENAI_BASE_URL": "", "ANTHROPIC_BASE_URL": "http://a/b"}, None, "http://a/b/v1"),
        ({"ANTHROPIC_BASE_URL": "", "ANTHROPIC_API_BASE": ""}, None, "https://api.anthropic.com/v1"),
    ],
)  # fmt: skip
def test_calls_go_where_an_environment_sends_them(environ, default, messages):
    assert Upstreams.own(environ) == Upstreams(default=default, by_format={"messages": messages})
