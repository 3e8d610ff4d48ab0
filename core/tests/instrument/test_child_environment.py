"""The environment of a child process: what it carries, and what it gives back."""

from __future__ import annotations

import json
import os

import pytest

from lightning_core.instrument import child_environment
from lightning_core.instrument.bootstrap import STARTUP, restore_addresses
from lightning_core.instrument.context import PLACEHOLDER_KEY

GATEWAY = "http://127.0.0.1:4000"


def child(base: dict[str, str], *, set_key: bool = False, session: str = "tok") -> dict[str, str]:
    return child_environment(
        base,
        gateway=GATEWAY,
        session=session,
        attempt="r.1",
        span=None,
        adapters={"langchain_core": "lightning_langgraph:LangGraphAdapter"},
        base_url=f"{GATEWAY}/s/{session}/v1",
        set_key=set_key,
    )


def test_it_says_all_that_a_child_needs_and_leaves_the_rest():
    base = {"HOME": "/home/me", "OPENAI_API_KEY": "mine"}
    made = child(base)
    assert json.loads(made.pop("LIGHTNING_CORE_SESSION")) == {
        "gateway": GATEWAY,
        "session": "tok",
        "attempt": "r.1",
        "span": None,
        "adapters": {"langchain_core": "lightning_langgraph:LangGraphAdapter"},
    }
    assert made == {
        "HOME": "/home/me",
        "OPENAI_API_KEY": "mine",
        "OPENAI_BASE_URL": f"{GATEWAY}/s/tok/v1",
        "OPENAI_API_BASE": f"{GATEWAY}/s/tok/v1",
        "ANTHROPIC_BASE_URL": f"{GATEWAY}/s/tok",
        "ANTHROPIC_API_BASE": f"{GATEWAY}/s/tok",
        "PYTHONPATH": STARTUP,
    }
    assert base == {"HOME": "/home/me", "OPENAI_API_KEY": "mine"}


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "ANTHROPIC_API_KEY"])
def test_the_key_is_replaced_where_it_is_asked_for(name):
    assert child({name: "mine"}, set_key=True)[name] == PLACEHOLDER_KEY
    assert child({name: "mine"})[name] == "mine"
    assert name not in child({})


def test_no_other_key_competes_with_the_placeholder():
    base = {"ANTHROPIC_AUTH_TOKEN": "mine"}
    assert "ANTHROPIC_AUTH_TOKEN" not in child(base, set_key=True)
    assert child(base)["ANTHROPIC_AUTH_TOKEN"] == "mine"


def test_our_folder_is_first_on_the_path_and_the_users_stay():
    made = child({"PYTHONPATH": os.pathsep.join(["/a", "/b"])})
    assert made["PYTHONPATH"].split(os.pathsep) == [STARTUP, "/a", "/b"]


def test_making_it_of_a_childs_environment_gives_the_same():
    base = {"PYTHONPATH": "/a", "OPENAI_BASE_URL": "https://llm.example/v1", "https_proxy": "p"}
    once = child(base)
    assert child(once) == once


def test_the_users_address_comes_back():
    base = {"OPENAI_BASE_URL": "https://llm.example/v1"}
    made = child(base)
    assert made["OPENAI_BASE_URL"].startswith(GATEWAY)
    restore_addresses(made)
    assert made["OPENAI_BASE_URL"] == "https://llm.example/v1"
    assert "OPENAI_API_BASE" not in made
    again = child(made)  # A child of a program that has imported the SDK.
    assert again["OPENAI_BASE_URL"].startswith(GATEWAY)
    restore_addresses(again)
    assert again["OPENAI_BASE_URL"] == "https://llm.example/v1"


def test_the_address_of_one_sdk_comes_back_alone():
    base = {"OPENAI_BASE_URL": "https://a.example/v1", "ANTHROPIC_BASE_URL": "https://b.example"}
    made = child(base)
    restore_addresses(made, "ANTHROPIC_")
    assert made["ANTHROPIC_BASE_URL"] == "https://b.example"
    assert made["OPENAI_BASE_URL"].startswith(GATEWAY)
    restore_addresses(made)
    assert made["OPENAI_BASE_URL"] == "https://a.example/v1"


def test_an_address_that_the_program_has_changed_stays():
    made = child({})
    made["OPENAI_BASE_URL"] = "https://other.example/v1"
    restore_addresses(made)
    assert made["OPENAI_BASE_URL"] == "https://other.example/v1"
    assert "OPENAI_API_BASE" not in made


def test_restoring_outside_an_attempt_does_nothing():
    base = {"OPENAI_BASE_URL": "https://llm.example/v1"}
    restore_addresses(base)
    assert base == {"OPENAI_BASE_URL": "https://llm.example/v1"}


def test_a_proxy_does_not_get_the_gateways_calls():
    made = child({"HTTP_PROXY": "http://proxy:1", "NO_PROXY": "a.example"})
    assert made["NO_PROXY"] == "a.example,127.0.0.1"
    assert made["no_proxy"] == "127.0.0.1"
    assert "no_proxy" not in child({})
