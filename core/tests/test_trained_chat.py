"""How a trained agent asks its endpoint: retries, errors, and where the key goes."""

import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from lightning_core.errors import EngineError, UsageError
from lightning_core.testing.replies import Cut, Error, Hang, Raw, Text
from lightning_core.testing.scripted import ScriptedServer
from lightning_core.trained import chat
from lightning_core.trained.chat import ChatClient, StoppedError

KEY = "geheim-0123456789abcdef"
BODY = {"model": "m", "messages": [{"role": "user", "content": "问"}]}
AT_ONCE = {"retry-after": "0"}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def ask(server, **options):
    return ChatClient(server.base_url, **options).ask(BODY, threading.Event())


@pytest.mark.parametrize("status", [429, 500, 503, 408])
def test_what_passes_is_asked_again(scripted_server, status):
    scripted_server.enqueue(*[Error(status, headers=AT_ONCE)] * 3, "答")
    assert ask(scripted_server).text == "答"
    assert [request.json for request in scripted_server.requests] == [BODY] * 4


def test_what_does_not_pass_in_a_few_tries_is_one_error(scripted_server):
    scripted_server.respond(lambda request: Error(503, {"error": {"message": "busy"}}, AT_ONCE))
    with pytest.raises(EngineError) as caught:
        ask(scripted_server)
    assert str(caught.value) == "model endpoint 127.0.0.1: answered 503: busy; given up after 4 tries"  # fmt: skip
    assert len(scripted_server.requests) == 4


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_refusal_is_one_error_at_once(scripted_server, status):
    scripted_server.enqueue(Error(status))
    with pytest.raises(EngineError, match=f"answered {status}"):
        ask(scripted_server)
    assert len(scripted_server.requests) == 1


def test_an_account_without_money_is_not_asked_again(scripted_server):
    scripted_server.enqueue(Error(429, {"error": {"message": "x", "code": "insufficient_quota"}}))
    with pytest.raises(EngineError, match="answered 429"):
        ask(scripted_server)


def test_the_wait_is_the_one_that_the_server_asks_for(scripted_server, monkeypatch):
    waits = []
    event = threading.Event()
    monkeypatch.setattr(event, "wait", waits.append)
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    for after in ("7", soon, "soon"):
        scripted_server.enqueue(Error(429, headers={"retry-after": after}))
    scripted_server.enqueue("答")
    ChatClient(scripted_server.base_url).ask(BODY, event)
    assert waits == [7.0, pytest.approx(20, abs=3), 2.0]


def test_a_long_wait_is_left_to_the_user(scripted_server):
    scripted_server.enqueue(Error(429, headers={"retry-after": "3600"}))
    with pytest.raises(EngineError, match="it asks to wait 3600 s: try again then"):
        ask(scripted_server)


def test_nobody_is_asked_where_nobody_waits(scripted_server):
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedError):
        ChatClient(scripted_server.base_url).ask(BODY, stop)
    assert not scripted_server.requests


def test_a_server_that_is_not_there_is_one_error(monkeypatch):
    monkeypatch.setattr(chat, "_FIRST_WAIT", 0.001)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        client = ChatClient(f"http://127.0.0.1:{held.getsockname()[1]}/v1")
        with pytest.raises(EngineError, match=r"cannot be reached: ConnectionRefusedError: .*given up after 4 tries"):  # fmt: skip
            client.ask(BODY, threading.Event())


@pytest.mark.parametrize("hang", [Hang(), Hang(after_chunks=1)])
def test_a_server_that_is_silent_is_one_error_in_time(scripted_server, hang):
    scripted_server.enqueue(hang)
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"no reply in 0\.3 s; give it longer with `timeout`"):
        ask(scripted_server, timeout=0.3)
    assert time.monotonic() - began < 3
    assert len(scripted_server.requests) == 1


def test_a_reply_that_drips_is_one_error_in_time():
    """Each byte comes in time, and the whole does not."""

    def drip(listening):
        with listening.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            try:
                while True:
                    connection.sendall(b" ")
                    time.sleep(0.05)
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=(listening,))
        thread.start()
        client = ChatClient(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", timeout=0.4)
        began = time.monotonic()
        with pytest.raises(EngineError, match="no reply in"):
            client.ask(BODY, threading.Event())
        assert time.monotonic() - began < 5
        thread.join()


@pytest.mark.parametrize(
    "reply",
    [Raw(b"<html>"), Raw(b'{"choices": []}'), Raw(b'{"choices": 7}'), Raw(b"[" * 100_000), Cut(), Text("  ")],
    ids=["html", "empty", "number", "deep", "cut", "blank"],
)  # fmt: skip
def test_what_is_no_reply_with_text_is_asked_again(scripted_server, monkeypatch, reply):
    monkeypatch.setattr(chat, "_FIRST_WAIT", 0.001)
    scripted_server.enqueue(reply, reply, "答")
    assert ask(scripted_server).text == "答"


def test_why_there_is_no_text_is_said(scripted_server, monkeypatch):
    monkeypatch.setattr(chat, "_FIRST_WAIT", 0.001)
    scripted_server.respond(lambda request: Text("", finish_reason="length"))
    with pytest.raises(EngineError, match="without text, finish reason 'length'; allow more `max_tokens`"):  # fmt: skip
        ask(scripted_server)


# Keys


def test_the_key_goes_to_the_host_of_the_environments_address(scripted_server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", scripted_server.base_url)
    ChatClient(None).ask(BODY, threading.Event())
    assert scripted_server.requests[0].api_key == KEY


def test_the_key_goes_nowhere_else_unless_it_is_named(scripted_server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    ask(scripted_server)
    monkeypatch.setenv("OTHER_KEY", "other")
    ask(scripted_server, api_key_env="OTHER_KEY")
    assert [request.api_key for request in scripted_server.requests] == [None, "other"]


def test_a_redirect_is_not_followed(scripted_server, monkeypatch):
    monkeypatch.setenv("K", KEY)
    with ScriptedServer.in_thread() as elsewhere:
        for status in (302, 307, 308):
            scripted_server.enqueue(
                Raw(b"", status, headers={"location": f"{elsewhere.base_url}/chat/completions"})
            )
            with pytest.raises(EngineError, match=f"answered {status}"):
                ask(scripted_server, api_key_env="K")
        assert not elsewhere.requests


def test_the_key_is_in_no_message(scripted_server, monkeypatch):
    monkeypatch.setenv("K", KEY)
    said = f"wrong key {KEY}\x1b[31m, and Bearer abcdefgh"
    for body in ({"error": {"message": said}}, said):
        scripted_server.enqueue(Error(401, body))
        with pytest.raises(EngineError) as caught:
            ask(scripted_server, api_key_env="K")
        assert "wrong key ***" in str(caught.value)
        assert "`api_key_env`" in str(caught.value)
        assert not {KEY, "\x1b", "abcdefgh"} & set(str(caught.value).replace(",", "").split())
        assert str(caught.value).isprintable()
        assert KEY not in repr(caught.value)


@pytest.mark.parametrize(
    ("address", "variable", "says"),
    [
        (None, None, "model endpoint api.openai.com: `OPENAI_API_KEY` is not set"),
        ("https://eu.api.openai.com/v1", None, "`OPENAI_API_KEY` is not set"),
        ("http://host/v1", "NOT_THERE", "`NOT_THERE` is not set"),
        ("http://host/v1", "BROKEN", "`BROKEN` holds characters that no key has"),
        ("host:8000/v1", None, "expected `http://HOST/v1`"),
        ("http:///v1", None, "expected `http://HOST/v1`"),
        ("http://host:port/v1", None, "expected `http://HOST/v1`"),
        ("ftp://host/v1", None, "expected `http://HOST/v1`"),
        ("http://ho st/v1", None, "expected `http://HOST/v1`"),
        ("http://user:word@host/v1", None, "without credentials"),
        ("http://host/v1?key=1", None, "without credentials or a query"),
    ],
)
def test_an_address_or_a_key_that_cannot_be_is_refused(monkeypatch, address, variable, says):
    monkeypatch.setenv("BROKEN", "a\nb")
    with pytest.raises(UsageError, match=says) as caught:
        ChatClient(address, api_key_env=variable)
    assert "word" not in str(caught.value)


def test_openais_own_address_has_its_own_name_for_the_bound_of_a_reply(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert ChatClient(None).is_openai
    assert not ChatClient("http://notapi.openai.com.example/v1").is_openai


def test_proxies_are_not_asked_for_loopback(scripted_server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert ask(scripted_server).text == "问"
