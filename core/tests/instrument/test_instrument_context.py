"""The context: whose code is running, and the spans that it opens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading

import pytest

from lightning_core.instrument import (
    ListSink,
    Scope,
    attempt,
    current,
    end_span,
    label,
    span,
    start_span,
)
from lightning_core.instrument.variables import SESSION as SESSION_VARIABLE
from lightning_core.trace import Span


def scope_of(name: str = "a1") -> Scope:
    return Scope(gateway="http://127.0.0.1:1", session="secret", attempt=name, sink=ListSink())


def spans(scope: Scope) -> list[Span]:
    return [Span.from_value(value) for value in scope.sink.take()]


def test_outside_an_attempt_there_is_no_scope_and_nothing_is_recorded():
    assert current() is None
    with span("agent", "a") as opened, label(node="n") as labelled:
        assert opened is None
        assert labelled is None
    assert start_span("tool", "t") is None


def test_an_attempt_ends_with_its_block_also_on_an_error():
    scope = scope_of()
    seen = []
    with pytest.raises(KeyError), attempt(scope):
        raise seen.append(current()) or KeyError
    assert seen == [scope]
    assert current() is None


def test_spans_nest_and_label_what_is_inside():
    scope = scope_of()
    with attempt(scope), span("agent", "writer") as outer:
        with span("node", "draft") as middle, span("tool", "search", {"q": 1}) as inner:
            inner.attributes["found"] = 2
            assert (current().agent, current().node, current().span) == (
                "writer",
                "draft",
                inner.id,
            )
        assert (current().agent, current().node, current().span) == ("writer", None, outer.id)
    found = {s.name: s for s in spans(scope)}
    assert [s.parent_id for s in found.values()] == [None, outer.id, middle.id]
    assert found["search"].attributes == {"q": 1, "found": 2}
    assert all(s.ended_at >= s.started_at > 0 for s in found.values())
    assert {s.attempt_id for s in found.values()} == {"a1"}


def test_labels_of_an_inner_block_win_and_end_with_it():
    with attempt(scope_of()), label(agent="a", node="n", step="1"):
        with label(agent="b", more="2"):
            assert (current().agent, current().node) == ("b", "n")
            assert current().labels == {"step": "1", "more": "2"}
        assert (current().agent, current().labels) == ("a", {"step": "1"})


def test_what_was_raised_is_noted_and_goes_on():
    scope = scope_of()
    with attempt(scope), pytest.raises(ValueError, match="broken"), span("tool", "t"):
        raise ValueError("broken")
    assert [s.error for s in spans(scope)] == ["ValueError: broken"]


def test_a_span_whose_end_is_never_seen_is_known():
    scope = scope_of()
    with attempt(scope):
        start_span("node", "hangs")
    assert [(s.name, s.ended_at) for s in spans(scope)] == [("hangs", None)]


def test_spans_have_ids_of_their_own():
    scope = scope_of()
    with attempt(scope):
        ids = {opened.id for opened in (start_span("node", "n") for _ in range(1000)) if opened}
    assert len(ids) == 1000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is POSIX")
def test_the_spans_of_a_fork_have_ids_of_their_own():
    reader, writer = os.pipe()
    with attempt(scope_of()):
        pid = os.fork()
        opened = start_span("node", "n")
        assert opened is not None
        os.write(writer, opened.id.encode())
        if pid == 0:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(writer)
    told = os.read(reader, 100)
    os.close(reader)
    assert len(told) == 64
    assert told[:32] != told[32:]


def test_a_span_ends_once():
    scope = scope_of()
    with attempt(scope):
        opened = start_span("node", "n")
        end_span(opened)
        end_span(opened, error="late")
    assert [s.error for s in spans(scope)] == [None]


async def test_tasks_keep_their_attempts_apart():
    async def work(name: str, turn: asyncio.Barrier) -> None:
        with attempt(scope_of(name)), label(agent=name):
            for _ in range(3):
                await turn.wait()
                assert (current().attempt, current().agent) == (name, name)

    turn = asyncio.Barrier(8)
    await asyncio.gather(*(work(f"a{n}", turn) for n in range(8)))


async def test_an_async_generator_closed_elsewhere_does_no_harm():
    async def numbers():
        with span("agent", "a"):
            yield 1
            yield 2

    scope = scope_of()
    with attempt(scope):
        generator = numbers()
        assert await anext(generator) == 1
        await asyncio.create_task(generator.aclose())
    assert current() is None
    assert [s.error for s in spans(scope)] == ["GeneratorExit"]


def test_threads_may_share_a_list_sink():
    scope = scope_of()

    def work() -> None:
        with attempt(scope):
            for number in range(200):
                with span("tool", str(number)):
                    pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = spans(scope)
    assert len(taken) == 800
    assert all(s.ended_at for s in taken)


def test_the_process_has_the_scope_of_the_environment(monkeypatch):
    value = {"gateway": "http://127.0.0.1:1", "session": "s", "attempt": "a9", "span": "p"}
    monkeypatch.setenv(SESSION_VARIABLE, json.dumps(value))
    seen = []
    thread = threading.Thread(target=lambda: seen.append(current()))
    thread.start()
    thread.join()
    assert (seen[0].attempt, seen[0].span) == ("a9", "p")
    with attempt(scope_of("inner")):
        assert current().attempt == "inner"
    monkeypatch.delenv(SESSION_VARIABLE)
    assert current() is None


def test_a_broken_variable_is_said_once_without_its_value(monkeypatch, capsys):
    monkeypatch.setenv(SESSION_VARIABLE, '{"session": "secret"}')
    assert current() is None
    assert current() is None
    text = capsys.readouterr().err
    assert text.count(SESSION_VARIABLE) == 1
    assert "secret" not in text


def test_the_token_does_not_show():
    assert "secret" not in repr(scope_of())


def test_a_source_can_say_more_than_the_context(monkeypatch):
    from lightning_core.instrument import context

    other = scope_of("other")

    class Source:
        def __init__(self):
            self.forgotten = []

        def resolve(self, scope):
            return other

        def forget(self, attempt):
            self.forgotten.append(attempt)

    source = Source()
    with context.source(source):
        assert current() is other
        with contextlib.suppress(KeyError), attempt(scope_of("a1")):
            raise KeyError
    assert source.forgotten == ["a1"]
    assert current() is None
