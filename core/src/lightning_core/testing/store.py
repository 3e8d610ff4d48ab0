"""Conformance of a store: subclass `StoreConformance`, say how to open yours, and pytest runs what every store must hold.

    class TestMyStore(StoreConformance):
        async def open_store(self, path: Path) -> Store:
            return await MyStore.open(path / "store")

Needs pytest and pytest-asyncio in its auto mode.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from lightning_core.errors import RecordError, StoreError
from lightning_core.reward import Reward, RewardScope
from lightning_core.rollout import Attempt, Cause, Rollout, RolloutStatus
from lightning_core.store.base import Store
from lightning_core.task import Task
from lightning_core.trace import (
    Call,
    CallError,
    CallErrorKind,
    Choice,
    Span,
    SpanKind,
    StrategyUse,
    Try,
)


def make_rollout(id_: str = "r", **fields: Any) -> Rollout:
    """A rollout of task `t`."""
    return Rollout(**{"id": id_, "task_id": "t", **fields})


def make_attempt(rollout_id: str = "r", number: int = 1, **fields: Any) -> Attempt:
    """Attempt `ROLLOUT.NUMBER`."""
    values: dict[str, Any] = {
        "id": f"{rollout_id}.{number}",
        "rollout_id": rollout_id,
        "number": number,
        "fence": number,
        "worker": "w",
        "started_at": 1.5,
        "deadline": 600.0,
        "lease_until": 30.0,
    }
    return Attempt(**{**values, **fields})


def make_call(id_: str = "c", rollout_id: str = "r", index: int = 0, **fields: Any) -> Call:
    """A chat call of the rollout's first attempt."""
    values: dict[str, Any] = {
        "id": id_,
        "attempt_id": f"{rollout_id}.1",
        "rollout_id": rollout_id,
        "index": index,
        "dialect": "chat",
        "request": {"model": "m", "messages": [{"role": "user", "content": f"question {id_}"}]},
    }
    return Call(**{**values, **fields})


class StoreConformance(ABC):
    """What every store must hold. Each test opens its own in an empty folder."""

    @abstractmethod
    async def open_store(self, path: Path) -> Store:
        """Open the store that lives in the folder `path`, making it the first time."""

    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        """An empty store, closed after the test."""
        store = await self.open_store(tmp_path)
        yield store
        await store.close()

    # Records -----------------------------------------------------------------------------------------------------

    async def test_an_empty_store_has_nothing(self, store: Store) -> None:
        """What is unknown is None or empty, not an error."""
        assert await store.task("default", "t") is None
        assert await store.rollout("r") is None
        assert await store.rollouts() == []
        assert await store.attempts("r") == []
        assert await store.calls("r.1") == []
        assert await store.spans("r.1") == []
        assert await store.rewards("r") == []
        assert await store.get_state("s") is None
        assert await store.trace("r") is None

    async def test_a_read_sees_every_write_awaited_before(self, store: Store) -> None:
        """No flush is needed between writing and reading."""
        for number in range(20):
            await store.put(make_rollout(metadata={"step": number}))
            found = await store.rollout("r")
            assert found is not None
            assert found.metadata == {"step": number}

    async def test_records_come_back_as_they_were_put(self, store: Store) -> None:
        """Every kind, with nested and non-ASCII values."""
        value = {"π": [1, -0.5, None, True, "\x00", {"nested": [[]]}], "big": 2**70}
        task = Task(id="t", input=value, expected=["é"], metadata=value, split="val")
        rollout = make_rollout(group="g", metadata=value, retry_on=(Cause.LOST,))
        attempt = make_attempt(
            output=value, cause=Cause.SUCCESS, ended_at=3.25, error="e", logs="l"
        )
        span = Span(
            id="s", attempt_id="r.1", kind=SpanKind.TOOL, name="tool", attributes={"a": value}
        )
        await store.put(task, rollout, attempt, span, run="run")
        assert await store.task("run", "t") == task
        assert await store.rollout("r") == rollout
        assert await store.attempts("r") == [attempt]
        assert await store.spans("r.1") == [span]

    async def test_a_task_belongs_to_its_run(self, store: Store) -> None:
        """The same task id may mean another task in another run."""
        await store.put(Task(id="t", input="a"), run="a")
        await store.put(Task(id="t", input="b"), run="b")
        found = [await store.task(run, "t") for run in "ab"]
        assert [task and task.input for task in found] == ["a", "b"]
        assert await store.task("default", "t") is None

    async def test_a_record_is_replaced_as_a_whole(self, store: Store) -> None:
        """Fields that the later record leaves at their default do not survive from the earlier."""
        await store.put(make_rollout(group="g", metadata={"a": 1}))
        await store.put(make_rollout(status=RolloutStatus.FAILED))
        assert await store.rollout("r") == make_rollout(status=RolloutStatus.FAILED)
        assert await store.rollouts(group="g") == []
        long = [{"role": "user", "content": "x" * 500}]
        await store.put(make_call(request={"messages": long}, prompt_token_ids=tuple(range(1000))))
        await store.put(make_call(error=CallError(kind=CallErrorKind.CUT)))
        assert await store.calls("r.1") == [make_call(error=CallError(kind=CallErrorKind.CUT))]

    async def test_state_is_kept_by_name(self, store: Store) -> None:
        """Any JSON value, replaced by a later one."""
        await store.put_state("fence", 1)
        await store.put_state("other", {"a": [None]})
        await store.put_state("fence", 2)
        assert await store.get_state("fence") == 2
        assert await store.get_state("other") == {"a": [None]}

    async def test_a_record_that_json_cannot_hold_is_refused_alone(self, store: Store) -> None:
        """The caller hears of it at once; the store goes on, and nothing of that put is kept."""
        with pytest.raises(RecordError, match="r2"):
            await store.put(make_rollout("r1"), make_rollout("r2", metadata={"a": object()}))
        await store.put(make_rollout("r3"))
        assert [rollout.id for rollout in await store.rollouts()] == ["r3"]

    # Order -------------------------------------------------------------------------------------------------------

    async def test_rollouts_are_listed_in_the_order_of_their_first_put(self, store: Store) -> None:
        """A later put of the same id changes what is listed, not where."""
        for id_ in ("b", "c", "a"):
            await store.put(make_rollout(id_))
        await store.put(make_rollout("c", status=RolloutStatus.RUNNING))
        listed = await store.rollouts()
        assert [rollout.id for rollout in listed] == ["b", "c", "a"]
        assert listed[1].status is RolloutStatus.RUNNING

    async def test_rollouts_are_filtered_and_paged(self, store: Store) -> None:
        """Every filter, alone and together; pages meet without gap or overlap."""
        every = [
            make_rollout(
                f"r{number}",
                run=f"run{number % 2}",
                group=f"g{number % 3}" if number % 5 else None,
                status=list(RolloutStatus)[number % 4],
            )
            for number in range(60)
        ]
        await store.put(*every)
        for run in (None, "run0", "run1", "none"):
            for group in (None, "g1"):
                for status in (None, RolloutStatus.QUEUED, RolloutStatus.FAILED):
                    wanted = [
                        rollout
                        for rollout in every
                        if run in (None, rollout.run)
                        and group in (None, rollout.group)
                        and status in (None, rollout.status)
                    ]
                    found: list[Rollout] = []
                    after = None
                    while page := await store.rollouts(
                        run=run, group=group, status=status, after=after, limit=7
                    ):
                        assert len(page) <= 7
                        found += page
                        after = page[-1].id
                    assert found == wanted

    async def test_attempts_calls_and_spans_are_in_order(self, store: Store) -> None:
        """By number, by index and by start, however they were put."""
        await store.put(*(make_attempt(number=number) for number in (2, 1, 3)))
        assert [attempt.number for attempt in await store.attempts("r")] == [1, 2, 3]
        await store.put(*(make_call(f"c{index}", index=index) for index in (2, 0, 1)))
        assert [call.index for call in await store.calls("r.1")] == [0, 1, 2]
        starts = (2.5, 0.5, 1.5)
        await store.put(
            *(
                Span(id=f"{at}", attempt_id="r.1", kind=SpanKind.NODE, name="n", started_at=at)
                for at in starts
            )
        )
        assert [span.started_at for span in await store.spans("r.1")] == sorted(starts)

    async def test_rewards_have_a_key_of_four(self, store: Store) -> None:
        """A later reward of the same name, scope and target replaces the earlier, in its place."""
        first = Reward(value=0.0)
        agent = Reward(value=1.0, scope=RewardScope.AGENT, target="a")
        other = Reward(value=2.0, scope=RewardScope.AGENT, target="b")
        named = Reward(value=3.0, name="length")
        await store.put_rewards("r", [first, agent, other])
        await store.put_rewards("r", [named, Reward(value=9.0)])
        await store.put_rewards("r2", [first])
        assert await store.rewards("r") == [Reward(value=9.0), agent, other, named]

    async def test_a_trace_is_of_the_last_attempt_or_the_one_asked_for(self, store: Store) -> None:
        """With its task, calls, spans and rewards."""
        await store.put(Task(id="t", input="q", expected="a"), run="run")
        await store.put(make_rollout(run="run"), make_attempt(), make_attempt(number=2))
        await store.put(make_call("c1"), make_call("c2", attempt_id="r.2"))
        await store.put_rewards("r", [Reward(value=1.0)])
        last, first = await store.trace("r"), await store.trace("r", 1)
        assert last is not None
        assert first is not None
        assert [call.id for call in last.calls] == ["c2"]
        assert [call.id for call in first.calls] == ["c1"]
        assert last.task.expected == "a"
        assert last.reward == 1.0
        assert await store.trace("r", 3) is None

    # Calls -------------------------------------------------------------------------------------------------------

    async def test_a_call_comes_back_exactly(self, store: Store) -> None:
        """Token ids, log-probabilities to the last bit, several choices, tries, odd requests."""
        full = make_call(
            span_id="s",
            agent="writer",
            node="write",
            labels={"a": "b"},
            overrides={
                "temperature": 1.0,
                "top_p": None,
                "messages": [{"role": "user", "content": "é"}],
            },
            strategy=StrategyUse(digest="d", applied=("write",), unmatched=2, left_out=("model",)),
            choices=(
                Choice(message={"content": "é"}, token_ids=(1, 2), logprobs=(-0.1, -math.inf)),
                Choice(index=1, message={"content": None}, token_ids=(), logprobs=()),
                Choice(index=2, finish_reason="length"),
            ),
            prompt_token_ids=tuple(range(1000, 1700)),
            reply={"id": "x"},
            chat_request={"messages": [{"role": "user", "content": "é"}], "model": "m"},
            chat_sent={"messages": [{"role": "system", "content": "f"}]},
            usage={"total_tokens": 3},
            tries=(Try(started_at=1.0, ended_at=2.0),),
            complete=True,
        )
        await store.put(full, make_call("empty", index=1, request={}, prompt_token_ids=()))
        got = await store.calls("r.1")
        assert got == [full, make_call("empty", index=1, request={}, prompt_token_ids=())]

    @pytest.mark.parametrize(
        "request_",
        [
            {"messages": None},
            {"messages": "hello"},
            {"messages": []},
            {"messages": {"role": "user"}},
            {"messages": ["a", {"role": "user"}, 3]},
            {"messages": [{}], "input": [{"role": "user"}]},
            {"input": ["a", "b"], "model": "embedding"},
            {"prompt": [1, 2, 3], "tools": [{"parameters": {"x": "y" * 1000}}]},
        ],
        ids=lambda request: ",".join(map(str, request)),
    )
    async def test_a_request_of_any_form_comes_back(
        self, store: Store, request_: dict[str, Any]
    ) -> None:
        """Malformed ones too: the record is of what the agent sent."""
        await store.put(make_call(request=request_))
        assert [call.request for call in await store.calls("r.1")] == [request_]

    @pytest.mark.parametrize(
        "overrides",
        [
            {"messages": None},
            {"messages": []},
            {"messages": [{}], "prompt": "x"},
            {"messages": [{"role": "user", "content": "question c"}]},
            {"messages": ["a", {}]},
            {"input": [{"role": "user", "content": "é" * 300}], "model": None},
            {"prompt": ["a", "b" * 400]},
        ],
        ids=lambda overrides: ",".join(map(str, overrides)),
    )
    async def test_what_went_upstream_comes_back_beside_what_the_agent_sent(
        self, store: Store, overrides: dict[str, Any]
    ) -> None:
        """In every form, with and without a request to share messages with."""
        calls = [
            make_call(overrides=overrides),
            make_call("e", index=1, request={}, overrides=overrides),
        ]
        await store.put(*calls)
        assert await store.calls("r.1") == calls

    @pytest.mark.parametrize(
        "chat",
        [
            {},
            {"messages": None},
            {"messages": []},
            {"messages": ["a", {}]},
            {"messages": [{"role": "user", "content": "question c"}]},
            {"input": [{"role": "user"}], "messages": [{}]},
            {"messages": [{}], "tools": [{"parameters": {"x": "y" * 1000}}]},
            {"tools": [{"parameters": {"x": "y" * 1000}}]},
        ],
        ids=lambda chat: ",".join(map(str, chat)),
    )
    async def test_a_request_in_the_terms_of_chat_comes_back(
        self, store: Store, chat: dict[str, Any]
    ) -> None:
        """In every form, as it was asked and as it was sent, with and without the request itself."""
        calls = [
            make_call(chat_request=chat),
            make_call("e", index=1, request={}, chat_request=chat, chat_sent=chat),
            make_call("s", index=2, prompt_token_ids=None, request={}, chat_sent=chat),
        ]
        await store.put(*calls)
        assert await store.calls("r.1") == calls

    async def test_one_call_is_found_by_its_id(self, store: Store) -> None:
        """As it comes back among others; None where there is none."""
        shared = {"messages": [{"role": "system", "content": "same " * 100}], "model": "m"}
        calls = [make_call(f"c{n}", index=n, request=shared, chat_request=shared) for n in range(3)]
        await store.put(*calls)
        assert await store.call("c1") == calls[1]
        assert await store.call("c3") is None

    async def test_conversations_that_grow_slide_and_branch_come_back(self, store: Store) -> None:
        """Whatever is shared inside, each call has its own messages and token ids, sent and overridden."""
        said = [{"role": "user", "content": f"message {n}"} for n in range(120)]
        ids = tuple(n * 7 % 50_000 for n in range(6000))
        calls: list[Call] = []
        for turn in range(40):
            for kind, messages in (
                ("grow", said[: turn * 3]),
                ("slide", [said[0], *said[turn : turn + 40]]),
                ("branch", [*said[:20], said[turn + 50]]),
            ):
                calls.append(
                    make_call(
                        f"{kind}{turn}",
                        index=len(calls),
                        request={"messages": messages, "model": kind},
                        overrides={"messages": [said[119], *messages]} if kind != "slide" else {},
                        chat_request=None if kind == "grow" else {"messages": messages[1:]},
                        prompt_token_ids=ids[: turn * 150] if kind == "grow" else ids[turn:][:700],
                    )
                )
        await store.put(*calls)
        assert await store.calls("r.1") == calls

    # Life --------------------------------------------------------------------------------------------------------

    async def test_a_closed_store_opens_again_with_all_it_had(self, tmp_path: Path) -> None:
        """Without a flush before; and what is put after goes on where it was."""
        store = await self.open_store(tmp_path)
        await store.put(make_rollout("r1"), make_call("c1", "r1"))
        await store.put_state("fence", 7)
        await store.close()
        await store.close()
        again = await self.open_store(tmp_path)
        try:
            await again.put(make_rollout("r2"), make_call("c2", "r1", 1))
            assert [rollout.id for rollout in await again.rollouts()] == ["r1", "r2"]
            assert [call.id for call in await again.calls("r1.1")] == ["c1", "c2"]
            assert await again.get_state("fence") == 7
        finally:
            await again.close()

    async def test_a_closed_store_refuses(self, tmp_path: Path) -> None:
        """Writes and reads alike."""
        store = await self.open_store(tmp_path)
        await store.close()
        with pytest.raises(StoreError, match="closed"):
            await store.put(make_rollout())
        with pytest.raises(StoreError, match="closed"):
            await store.rollout("r")

    async def test_concurrent_writers_and_readers(self, store: Store) -> None:
        """Many tasks of one loop at once; each reads its own writes, in order."""

        async def one(number: int) -> None:
            for index in range(10):
                await store.put(make_call(f"{number}-{index}", f"r{number}", index))
                found = await store.calls(f"r{number}.1")
                assert [call.index for call in found] == list(range(index + 1))

        await asyncio.gather(*(one(number) for number in range(20)))

    # Deleting ----------------------------------------------------------------------------------------------------

    async def test_delete_takes_what_belongs_to_a_rollout_and_nothing_else(
        self, store: Store
    ) -> None:
        """Even where two rollouts share messages and token ids."""
        shared = {"messages": [{"role": "system", "content": "same " * 100}], "model": "m"}
        sent = {"messages": [{"role": "system", "content": "other " * 100}]}
        ids = tuple(range(1000))
        for id_ in ("r1", "r2"):
            await store.put(
                make_rollout(id_),
                make_attempt(id_),
                make_call(id_, id_, request=shared, overrides=sent, prompt_token_ids=ids),
                Span(id="s", attempt_id=f"{id_}.1", kind=SpanKind.NODE, name="n"),
            )
            await store.put_rewards(id_, [Reward(value=1.0)])
        kept = await store.trace("r2")
        await store.delete(["r1", "unknown"])
        assert await store.rollout("r1") is None
        assert await store.attempts("r1") == []
        assert await store.calls("r1.1") == []
        assert await store.spans("r1.1") == []
        assert await store.rewards("r1") == []
        assert await store.trace("r2") == kept

    async def test_what_was_deleted_can_be_put_again(self, store: Store) -> None:
        """The store does not believe that it still has what it deleted."""
        calls = [
            make_call(
                f"c{n}",
                index=n,
                prompt_token_ids=tuple(range(n * 300)),
                overrides={"messages": [{"role": "user", "content": f"{n % 7}"}] * n},
            )
            for n in range(40)
        ]
        for _ in range(3):
            await store.put(make_rollout(), make_attempt(), *calls)
            assert await store.calls("r.1") == calls
            await store.delete(["r"])
            assert await store.calls("r.1") == []
