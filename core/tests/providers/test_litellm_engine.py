"""The engine `litellm` before it is started: which models it takes, and what is missing."""

import importlib.util
import subprocess
import sys

import pytest

from lightning_core.capability import Capability, require
from lightning_core.engines import create_engine
from lightning_core.errors import CapabilityError, UsageError
from lightning_core.litellm_engine import PROVIDERS, LiteLLMEngineFactory, provider_of
from lightning_core.litellm_engine.failures import Failure, failure_of
from lightning_core.plugins import load
from lightning_core.settings import Settings

SET = {
    "ANTHROPIC_API_KEY": "sk-ant-0123456789",
    "AZURE_API_KEY": "azure-0123456789",
    "AZURE_API_BASE": "https://mine.openai.azure.com",
    "GEMINI_API_KEY": "gemini-0123456789",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    names = {name for p in PROVIDERS.values() for name in (*p.secrets, *sum(p.needs, ()))}
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in SET.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def there(monkeypatch):
    """LiteLLM counts as installed, wherever the tests run."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "litellm" or found(name))


def engine(model, tmp_path, **options):
    return LiteLLMEngineFactory().create(model, folder=tmp_path, options=options)


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("anthropic/claude-sonnet-4-5", "anthropic"),
        ("azure/my-deployment", "azure"),
        ("gemini/gemini-2.5-flash", "gemini"),
        ("bedrock/us.amazon.nova-pro-v1:0", "bedrock"),
        ("bedrock/converse/us.amazon.nova-pro-v1:0", "bedrock"),
        ("anthropic/", None),
        ("anthropic", None),
        ("Qwen/Qwen2.5-0.5B-Instruct", None),
        ("openai/gpt-oss-20b", None),
        ("anthropic/claude@http://127.0.0.1:1/v1", None),
        ("smollm2", None),
    ],
)
def test_a_prefix_names_the_provider(model, provider):
    assert provider_of(model) == provider
    assert LiteLLMEngineFactory().accepts(model) is (provider is not None)


@pytest.mark.usefixtures("there")
def test_a_providers_model_is_served_by_this_engine_and_others_when_it_is_named(tmp_path):
    plugins = load(Settings(), entry_points=[])
    chosen = create_engine("anthropic/claude-sonnet-4-5", None, plugins)
    assert chosen.name == "litellm"
    assert chosen.check({}) == {Capability.TOOLS}
    assert create_engine("groq/llama", "litellm", plugins).check({}) == {Capability.TOOLS}
    with pytest.raises(UsageError, match=r"no engine accepts it.*--engine litellm"):
        create_engine("groq/llama", None, plugins)


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    ("model", "without", "says"),
    [
        ("anthropic/x", "ANTHROPIC_API_KEY", "`ANTHROPIC_API_KEY` (or `ANTHROPIC_AUTH_TOKEN`) is not set"),
        ("azure/x", "AZURE_API_BASE", "`AZURE_API_BASE` is not set"),
        ("azure/x", "AZURE_API_KEY", "`AZURE_API_KEY` (or `AZURE_OPENAI_API_KEY`,"),
        ("gemini/x", "GEMINI_API_KEY", "`GEMINI_API_KEY` (or `GOOGLE_API_KEY`) is not set"),
    ],
)  # fmt: skip
def test_a_missing_key_is_named_before_anything_is_started(
    tmp_path, monkeypatch, model, without, says
):
    engine(model, tmp_path)
    monkeypatch.setenv(without, "")
    with pytest.raises(UsageError) as caught:
        engine(model, tmp_path)
    assert says in str(caught.value)
    # What clients in this process are given is no key.
    monkeypatch.setenv(without, "lightning-core")
    with pytest.raises(UsageError):
        engine(model, tmp_path)


def test_without_the_extra_the_command_that_installs_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r'run `pip install "lightning-core\[litellm\]"`'):
        engine("anthropic/x", tmp_path)


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("no-provider", {}, "expected `PROVIDER/NAME`"),
        ("anthropic/x", {"api_base": "http://h"}, "option `api_base` is not known"),
        ("anthropic/x", {"drop_params": "true"}, "expected `yes` or `no` but got 'true'"),
        ("anthropic/x", {"timeout": "0"}, "expected seconds, 1 or more, but got '0'"),
    ],
)
def test_what_cannot_be_used_is_one_clear_error(tmp_path, model, options, says):
    with pytest.raises(UsageError, match=says):
        engine(model, tmp_path, **options)


@pytest.mark.usefixtures("there")
def test_a_backend_that_trains_weights_is_refused(tmp_path):
    with pytest.raises(
        CapabilityError, match="needs `token_ids` but engine `litellm` gives `tools`"
    ):
        require(
            {Capability.TOKEN_IDS},
            engine("anthropic/x", tmp_path).gives,
            by="backend `local`",
            of="engine `litellm`",
        )


@pytest.mark.usefixtures("there")
def test_the_keys_of_a_provider_are_for_its_engine_alone(tmp_path):
    assert "GEMINI_API_KEY" in engine("gemini/x", tmp_path).secrets
    assert "ANTHROPIC_API_KEY" not in engine("gemini/x", tmp_path).secrets
    assert engine("groq/x", tmp_path).secrets == {"GROQ_API_KEY"}


def test_registering_the_engine_imports_no_litellm():
    code = (
        "import sys; from lightning_core.plugins import load; engines = load().engines();"
        "engines['litellm'].accepts('anthropic/x'); print('litellm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr


class Raised(Exception):
    """Has what LiteLLM's exceptions have."""

    def __init__(self, message="no", **fields):
        super().__init__(message)
        self.__dict__.update(fields)


class RateLimitError(Raised):
    """Of LiteLLM's name."""


def test_a_failure_says_nothing_of_keys_and_paths():
    error = Raised(
        "key sk-ant-0123456789 and azure-0123456789\nTraceback (most recent call last):\n  File /x",
        status_code=401,
    )
    failure = failure_of(error, ("AZURE_API_KEY", "ANTHROPIC_API_KEY"))
    assert str(failure) == "key *** and ***"
    assert failure.status == 401


def test_a_failure_within_a_stream_is_the_one_that_it_came_from():
    within = RateLimitError(
        "slowly", status_code=429, litellm_response_headers={"retry-after": "3"}
    )
    failure = failure_of(Raised("outer", status_code=503, original_exception=within), ())
    assert (failure.status, str(failure)) == (429, "slowly")
    assert failure.code == "rate_limit_exceeded"
    assert failure.headers == {"retry-after": "3"}


@pytest.mark.parametrize("status", [None, 200, "429", 99])
def test_what_has_no_status_of_a_refusal_is_a_fault(status):
    assert failure_of(Raised(status_code=status), ()).status == 500


def test_a_providers_own_code_is_kept():
    assert failure_of(RateLimitError(status_code=429, code="insufficient_quota"), ()).code == (
        "insufficient_quota"
    )
    assert failure_of(RateLimitError(status_code=429, code="429"), ()).code == "rate_limit_exceeded"


def test_a_failure_of_ours_stays_as_it_is():
    failure = Failure(404, "not here", code="model_not_found", param="model")
    assert failure_of(failure, ()) is failure
