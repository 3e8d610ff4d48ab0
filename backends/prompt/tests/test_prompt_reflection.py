"""The reflection model: asked once, asked again where that helps, counted, and with no key in any word."""

import asyncio
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from lightning_core.errors import EngineError, FormatError, UsageError
from lightning_core.testing import Cut, Error, Hang, Raw
from lightning_core.testing.replies import Delay, Text, ToolCall, ToolCalls
from lightning_prompt import retrying
from lightning_prompt.budget import Spent
from lightning_prompt.journal import Journal
from lightning_prompt.prices import Prices
from lightning_prompt.reflection import ReflectionModel

KEY = "own-key-9f2c7a"
REFUSED = {"error": {"message": f"you said {KEY} \x1b[31mand sk-proj-abcdefghijklmnop"}}


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch):
    monkeypatch.setattr(retrying, "_FIRST_WAIT", 0.02)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def journal(tmp_path: Path):
    with Journal(tmp_path / "reflection.jsonl") as journal:
        yield journal


@pytest.fixture
def model(scripted_server, journal, monkeypatch):
    """Make a model at the scripted server."""
    monkeypatch.setenv("THEIR_KEY", KEY)

    def make(**options):
        options = {"api_key_env": "THEIR_KEY", "timeout": 5.0, "patience": 10.0} | options
        return ReflectionModel(f"big@{scripted_server.base_url}", journal, **options)

    return make


async def test_a_prompt_is_asked_with_the_key_and_the_sampling_that_was_given(
    scripted_server, model
):
    scripted_server.enqueue("better", "best")
    async with model(temperature=0.5, max_tokens=99) as reflection:
        assert await reflection.ask("improve this") == "better"
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "go"}]
        assert await reflection.ask(messages) == "best"
    first, second = scripted_server.requests
    assert first.path == "/v1/chat/completions"
    assert first.headers["authorization"] == f"Bearer {KEY}"
    assert first.json == {
        "model": "big", "messages": [{"role": "user", "content": "improve this"}], "temperature": 0.5,
        "max_tokens": 99,
    }  # fmt: skip
    assert second.json["messages"] == messages


async def test_the_same_prompts_after_a_restart_make_no_request_and_cost_nothing_more(
    scripted_server, model
):
    usage = {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}
    scripted_server.enqueue(
        Text("one", usage=usage), Text("two", usage=usage, finish_reason="length")
    )
    priced = {"prices": Prices.parse("big=1,2"), "priced": True}
    spent = Spent(calls=2, tokens=3000, usd=0.004, reflection_usd=0.004)
    async with model(**priced) as reflection:
        assert [await reflection.ask("same"), await reflection.ask("same")] == ["one", "two"]
        assert reflection.spent == spent
    async with model(**priced) as again:
        again._journal._asked.clear()  # As in a process of its own.
        assert [await again.ask("same"), await again.ask("same")] == ["one", "two"]
        assert (again.spent, again.cut_short) == (spent, 1)
        assert len(scripted_server.requests) == 2
        assert await again.ask("same") == "same"
    assert len(scripted_server.requests) == 3


@pytest.mark.parametrize(
    "fault",
    [Error(429), Error(500), Error(503, "busy"), Error(408), Hang(), Cut(0), Cut(1), Raw(b"<html>", status=502)],
    ids=str,
)  # fmt: skip
async def test_what_passes_is_asked_again_and_told(scripted_server, model, fault):
    scripted_server.enqueue(fault, fault, "at last")
    told: list[str | None] = []
    async with model(tell=told.append, timeout=0.4) as reflection:
        assert await reflection.ask("go") == "at last"
        assert reflection.spent.calls == 1
    assert len(scripted_server.requests) == 3
    assert told[-1] is None
    assert len(told) == 3
    assert all("reflection model `big` at 127.0.0.1: " in text for text in told[:-1])
    assert all("asked again in" in text for text in told[:-1])


async def test_a_server_that_asks_for_time_gets_it(scripted_server, model):
    scripted_server.enqueue(Error(429, headers={"retry-after": "1"}), "now")
    began = time.monotonic()
    async with model() as reflection:
        assert await reflection.ask("go") == "now"
    assert time.monotonic() - began >= 1.0


async def test_a_server_that_asks_for_more_time_than_there_is_is_not_waited_for(
    scripted_server, model
):
    scripted_server.enqueue(Error(429, headers={"retry-after": "90000"}))
    async with model() as reflection:
        with pytest.raises(EngineError, match=r"given up after 1 try .*asks for 90000 s.*--resume"):
            await reflection.ask("go")


@pytest.mark.parametrize("fault", [Error(503), Hang()], ids=str)
async def test_patience_ends(scripted_server, model, fault):
    scripted_server.respond(lambda request: fault)
    began = time.monotonic()
    async with model(patience=0.6, timeout=0.2) as reflection:
        with pytest.raises(EngineError, match=r"given up after [2-9] tries .*what was paid for"):
            await reflection.ask("go")
    assert time.monotonic() - began < 3.0


async def test_a_server_that_is_not_there_is_waited_for_until_patience_ends(journal):
    async with ReflectionModel("m@http://127.0.0.1:9/v1", journal, patience=0.3) as reflection:
        with pytest.raises(EngineError, match="cannot be reached: ClientConnectorError"):
            await reflection.ask("go")


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Error(400, REFUSED), "answered 400: you said"),
        (Error(401, REFUSED), "the key is missing or wrong; set `OPENAI_API_KEY`"),
        (Error(403, REFUSED), "may not use this model"),
        (Error(404, f"no {KEY} here"), "has no such model"),
        (Error(429, {"error": {"message": KEY, "code": "insufficient_quota"}}), "out of credit"),
        (Error(422, {"detail": [1]}), "answered 422: {"),
        (Raw(b"", status=307, headers={"location": "http://127.0.0.1:9/"}), "answered 307: nothing"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
async def test_a_refusal_is_one_error_at_once_without_the_key(scripted_server, model, reply, says):
    scripted_server.respond(lambda request: reply)
    async with model() as reflection:
        with pytest.raises(EngineError) as caught:
            await reflection.ask("go")
    assert says in str(caught.value)
    assert len(scripted_server.requests) == 1
    for secret in (KEY, "sk-proj-", "\x1b"):
        assert secret not in str(caught.value)


@pytest.mark.parametrize(
    "reply",
    [Text("  \n"), ToolCalls([ToolCall("f")]), Raw(b"<html>"), Raw(b'{"choices": []}'), Raw(b"[1]"),
     Raw(b'{"choices": [{"message": {"content": [1]}}]}'), Raw(b'{"choices": [{"message": null}]}')],
    ids=lambda reply: str(reply)[:40],
)  # fmt: skip
async def test_replies_without_text_are_an_error_after_three(scripted_server, model, reply):
    scripted_server.respond(lambda request: reply)
    async with model() as reflection:
        with pytest.raises(EngineError, match="3 replies without text"):
            await reflection.ask("go")
    assert len(scripted_server.requests) == 3


async def test_a_reply_without_text_is_asked_for_again_and_was_paid_for(scripted_server, model):
    scripted_server.enqueue(Text(""), "text")
    async with model() as reflection:
        assert await reflection.ask("go") == "text"
        assert reflection.spent.calls == 2


async def test_under_a_budget_in_dollars_a_cost_that_nobody_knows_is_an_error_and_the_reply_kept(
    scripted_server, model, journal
):
    scripted_server.enqueue("costly", Text("told", usage={"cost": 0.25}), Text("", usage={}))
    scripted_server.enqueue(Text("uncounted", usage={"total_tokens": 3}))
    async with model(priced=True) as reflection:
        with pytest.raises(UsageError, match=r"what `big` costs is not known"):
            await reflection.ask("one")
        assert await reflection.ask("two") == "told"
        assert reflection.spent.usd == 0.25
    async with model(priced=True, prices=Prices.parse("big=1,1")) as reflection:
        journal._asked.clear()  # As in a process of its own.
        assert await reflection.ask("one") == "costly"
        assert reflection.spent.usd > 0
        with pytest.raises(EngineError, match="no token counts"):
            await reflection.ask("three")
    assert [value["text"] for value in journal] == ["costly", "told", "uncounted"]


async def test_another_thread_may_ask_and_is_let_go_when_the_model_is_closed(
    scripted_server, model
):
    scripted_server.enqueue("sync", Hang())
    async with model() as reflection:
        assert await asyncio.to_thread(reflection, "go") == "sync"
        blocked = asyncio.create_task(asyncio.to_thread(reflection, "hang"))
        await asyncio.to_thread(scripted_server.wait_for(2).wait, 10)
    with pytest.raises(EngineError, match="is not open"):
        await asyncio.wait_for(blocked, 10)
    with pytest.raises(EngineError, match="is not open"):
        await asyncio.to_thread(reflection, "late")
    with pytest.raises(EngineError, match="is not open"):
        await reflection.ask("late")


async def test_the_loops_own_thread_cannot_block_on_itself(model):
    async with model() as reflection:
        with pytest.raises(RuntimeError, match="`await ask"):
            reflection("go")


async def test_many_prompts_may_be_asked_at_once(scripted_server, model):
    async with model() as reflection:
        prompts = [f"p{number % 7}" for number in range(30)]
        assert await asyncio.gather(*map(reflection.ask, prompts)) == prompts
    assert len(scripted_server.requests) == 30


@pytest.mark.parametrize(
    ("name", "base", "model", "url"),
    [
        ("gpt-x", None, "gpt-x", "https://api.openai.com/v1"),
        ("openai/gpt-x", None, "gpt-x", "https://api.openai.com/v1"),
        ("openai/gpt-x", "https://eu.api.openai.com/v1/", "gpt-x", "https://eu.api.openai.com/v1"),
        ("openai/gpt-oss", "http://own:8000/v1", "openai/gpt-oss", "http://own:8000/v1"),
        ("org/m:free@https://host/api/v1/", None, "org/m:free", "https://host/api/v1"),
        ("m@http://[::1]:8000/v1", "http://other/v1", "m", "http://[::1]:8000/v1"),
    ],
)
def test_a_name_says_which_model_where(name, base, model, url, journal, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    if base:
        monkeypatch.setenv("OPENAI_BASE_URL", base)
    reflection = ReflectionModel(name, journal)
    assert (reflection.model, str(reflection._url)) == (model, url)


@pytest.mark.parametrize(
    "name",
    ["", "two words", "http://host/v1", "m@", "m@ftp://host", "m@http:///v1", "m@host/v1", "m@http://[::1/v1",
     "m@http://user:secret@host/v1"],
)  # fmt: skip
def test_what_names_no_model_is_refused(name, journal, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(UsageError, match="reflection model") as caught:
        ReflectionModel(name, journal)
    assert "secret" not in str(caught.value)


def test_an_address_in_the_environment_that_is_none_is_refused(journal, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "own:8000/v1")
    with pytest.raises(UsageError, match="expected `http://HOST/v1`"):
        ReflectionModel("gpt-x", journal)


def test_a_key_that_is_needed_and_not_set_is_an_error(journal, monkeypatch):
    with pytest.raises(UsageError, match="`OPENAI_API_KEY` is not set"):
        ReflectionModel("gpt-x", journal)
    with pytest.raises(UsageError, match="`MINE` is not set"):
        ReflectionModel("gpt-x@http://own/v1", journal, api_key_env="MINE")
    monkeypatch.setenv("OPENAI_API_KEY", "a\nb")
    with pytest.raises(UsageError, match="characters that no key has"):
        ReflectionModel("gpt-x", journal)


async def test_the_users_key_goes_to_no_other_host_than_the_users_own(
    scripted_server, journal, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    async with ReflectionModel(f"m@{scripted_server.base_url}", journal) as reflection:
        await reflection.ask("go")
    monkeypatch.setenv("OPENAI_BASE_URL", scripted_server.base_url)
    async with ReflectionModel("m", journal) as reflection:
        await reflection.ask("go")
    first, second = scripted_server.requests
    assert "authorization" not in first.headers
    assert second.headers["authorization"] == f"Bearer {KEY}"


def test_openais_models_need_their_price_before_anything_is_asked(journal, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(UsageError, match="what `gpt-x` costs is not known"):
        ReflectionModel("openai/gpt-x", journal, priced=True)
    bounded = ReflectionModel(
        "openai/gpt-x", journal, priced=True, prices=Prices.parse("gpt-x=1,2"), max_tokens=9
    )
    assert bounded._sampling == {"max_completion_tokens": 9}


def test_a_journal_of_something_else_is_refused(journal, scripted_server):
    journal.put("key", {"reward": 1.0})
    with pytest.raises(FormatError):
        ReflectionModel(f"m@{scripted_server.base_url}", journal)


def test_a_program_that_is_killed_pays_for_no_reply_twice(scripted_server, tmp_path):
    program = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        from lightning_prompt.journal import Journal
        from lightning_prompt.reflection import ReflectionModel

        async def main():
            with Journal(Path(sys.argv[1]), tell=lambda text: None) as journal:
                async with ReflectionModel(f"m@{sys.argv[2]}", journal) as reflection:
                    for number in range(12):
                        print(await reflection.ask(f"prompt {number % 5}"), flush=True)

        asyncio.run(main())
        """
    )
    served: list[str] = []

    def reply(request):
        served.append(f"reply {len(served)}")
        return Delay(0.03, Text(served[-1]))

    scripted_server.respond(reply)
    seen: list[list[str]] = []
    for lines in (1, 4, 5, None):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "j.jsonl"), scripted_server.base_url],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        seen.append([])
        for line in process.stdout:
            seen[-1].append(line.strip())
            if len(seen[-1]) == lines:
                process.send_signal(signal.SIGKILL)
                break
        rest = process.stdout.read().split("\n")
        seen[-1] += [line for line in rest if line]
        process.wait()
        process.stdout.close()
    *killed, whole = seen
    assert len(whole) == len(set(whole)) == 12
    for part in killed:
        assert part == whole[: len(part)]
    # At each kill one request may have been under way.
    assert 12 <= len(served) <= 12 + len(killed)
