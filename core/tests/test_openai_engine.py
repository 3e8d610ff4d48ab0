"""The engine `openai`: what somebody else serves."""

import pytest

from lightning_core.capability import Capability, require
from lightning_core.engines import create_engine
from lightning_core.errors import CapabilityError, EngineError, UsageError
from lightning_core.openai_engine import OpenAIEngineFactory
from lightning_core.plugins import load
from lightning_core.settings import Settings
from lightning_core.testing import Error, Raw


def engine(model, tmp_path, **options):
    return OpenAIEngineFactory().create(model, folder=tmp_path, options=options)


@pytest.mark.parametrize(
    ("model", "accepted"),
    [
        ("http://127.0.0.1:1/v1", True),
        ("https://host/v1", True),
        ("some/name@https://host/v1", True),
        ("smollm2", False),
        ("ftp://host", False),
        ("", False),
        ("two words@http://host", False),
    ],
)
def test_an_address_is_accepted_and_nothing_else(model, accepted):
    assert OpenAIEngineFactory().accepts(model) is accepted


async def test_the_first_listed_model_is_served_unless_one_is_named(
    scripted_server, tmp_path, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("OPENAI_BASE_URL", scripted_server.base_url)
    (first,) = await engine(scripted_server.base_url, tmp_path).start()
    assert (first.model, first.api_key) == ("scripted", "sk-1")
    (named,) = await engine(f"other@{scripted_server.base_url}/", tmp_path).start()
    assert (named.model, named.base_url) == ("other", scripted_server.base_url)


async def test_the_users_key_goes_to_no_other_host_than_the_users_own(
    scripted_server, tmp_path, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    (endpoint,) = await engine(scripted_server.base_url, tmp_path).start()
    assert endpoint.api_key is None
    assert all("authorization" not in request.headers for request in scripted_server.requests)


async def test_a_server_known_to_give_token_ids_is_asked_for_them(scripted_server, tmp_path):
    listing = Raw(b'{"data": [{"id": "m", "owned_by": "vllm"}]}', content_type="application/json")
    scripted_server.respond(lambda request: listing)
    one = engine(scripted_server.base_url, tmp_path)
    await one.start()
    assert Capability.TOKEN_IDS in one.gives
    declared = engine(scripted_server.base_url, tmp_path, capabilities="logprobs, tools")
    await declared.start()
    assert declared.gives == {Capability.LOGPROBS, Capability.TOOLS}


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Error(401, {"error": {"message": "no"}}), "the key is missing or wrong"),
        (Error(404, "not here"), "name the model"),
        (Raw(b"<html>", content_type="text/html"), "did not answer with a model list"),
        (Raw(b'{"data": []}', content_type="application/json"), "lists no model"),
    ],
)
async def test_what_is_no_model_server_is_one_clear_error(scripted_server, tmp_path, reply, says):
    scripted_server.respond(lambda request: reply)
    with pytest.raises(EngineError, match=says):
        await engine(scripted_server.base_url, tmp_path).start()


async def test_a_named_model_needs_no_list(scripted_server, tmp_path):
    scripted_server.respond(lambda request: Error(404, "no list here"))
    (endpoint,) = await engine(f"mine@{scripted_server.base_url}", tmp_path).start()
    assert endpoint.model == "mine"


async def test_the_key_may_have_a_name_of_its_own(scripted_server, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-mine")
    (endpoint,) = await engine(scripted_server.base_url, tmp_path, api_key_env="MY_KEY").start()
    assert endpoint.api_key == "sk-mine"
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(UsageError, match=r"engine `openai` at 127\.0\.0\.1: `MY_KEY` is not set"):
        await engine(scripted_server.base_url, tmp_path, api_key_env="MY_KEY").start()


def test_options_are_checked(tmp_path):
    with pytest.raises(UsageError, match="option `capabilites` is not known"):
        engine("http://host/v1", tmp_path, capabilites="tools")
    with pytest.raises(UsageError, match="'telepathy'"):
        engine("http://host/v1", tmp_path, capabilities="telepathy")


def test_choosing_an_engine_names_what_there_is():
    plugins = load(Settings(), entry_points=[])
    assert create_engine(None, None, plugins) is None
    assert create_engine("http://host/v1", None, plugins).name == "openai"
    for model, name, says in (
        ("smollm2", None, "no engine accepts it"),
        ("smollm2", "absent", "installed are `litellm`, `openai`"),
        (None, "openai", "which model"),
    ):
        with pytest.raises(UsageError, match=says):
            create_engine(model, name, plugins)


def test_an_impossible_combination_is_refused_with_the_reason():
    require({Capability.TOOLS}, {Capability.TOOLS, Capability.LOGPROBS}, by="x", of="y")
    with pytest.raises(
        CapabilityError,
        match="backend `local` needs `logprobs`, `token_ids` but engine `openai` gives `tools`",
    ):
        require(
            {Capability.TOKEN_IDS, Capability.LOGPROBS, Capability.TOOLS},
            {Capability.TOOLS},
            by="backend `local`",
            of="engine `openai`",
        )
