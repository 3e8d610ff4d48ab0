"""What the SQLite store keeps once, what it gives back, and that nothing is lost on the way."""

from __future__ import annotations

import asyncio
import math
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lightning_core.store import SQLiteStore
from lightning_core.store.blocks import BlockNumbers, RecentlyUsed, body, pack, unfold
from lightning_core.store.codec import CallJoiner, CallParts
from lightning_core.testing.store import make_attempt, make_call, make_rollout
from lightning_core.trace import Call, Choice, Span, SpanKind

SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

TEXT = st.text(st.characters())  # lone surrogates among them
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=4)
REQUESTS = st.builds(
    lambda rest, key, messages: {**rest, key: messages},
    OBJECTS,
    st.sampled_from(["messages", "input", "prompt"]),
    st.lists(OBJECTS, max_size=70) | st.lists(VALUES, max_size=4) | VALUES,
)
IDS = (
    st.none()
    | st.lists(st.integers(0, 2**31 - 1), max_size=600).map(tuple)
    | st.lists(st.integers(), max_size=5).map(tuple)
)
LOGPROBS = st.none() | st.lists(st.floats(allow_nan=False), max_size=40).map(tuple)
CHOICES = st.lists(
    st.builds(
        lambda index, message, ids, logprobs: Choice(
            index=index, message=message, token_ids=ids, logprobs=logprobs
        ),
        st.integers(0, 9),
        OBJECTS,
        IDS,
        LOGPROBS,
    ),
    max_size=3,
).map(tuple)
CALLS = st.builds(
    lambda fields: make_call(**fields),
    st.fixed_dictionaries(
        {"request": REQUESTS | OBJECTS},
        optional={
            "choices": CHOICES,
            "prompt_token_ids": IDS,
            "reply": OBJECTS,
            "usage": st.none() | OBJECTS,
            "overrides": REQUESTS | OBJECTS,
            "chat_request": st.none() | REQUESTS | OBJECTS,
            "chat_sent": st.none() | REQUESTS | OBJECTS,
            "labels": st.dictionaries(TEXT, TEXT, max_size=3),
            "agent": st.none() | TEXT,
            "started_at": st.floats(allow_nan=False, allow_infinity=False),
        },
    ),
)


def in_store(path: Path, work: Any) -> Any:
    async def run() -> Any:
        async with await SQLiteStore.open(path) as store:
            return await work(store)

    return asyncio.run(run())


@SETTINGS
@given(st.lists(CALLS, min_size=1, max_size=4))
def test_every_call_comes_back_exactly(calls: list[Call]) -> None:
    calls = [
        Call(**{**{f: getattr(call, f) for f in call.__struct_fields__}, "id": f"c{n}", "index": n})
        for n, call in enumerate(calls)
    ]

    async def work(store: SQLiteStore) -> list[Call]:
        await store.put(*calls)
        return await store.calls("r.1")

    with tempfile.TemporaryDirectory() as folder:
        got = in_store(Path(folder) / "s.db", work)
    assert got == calls
    for one, other in zip(got, calls, strict=True):
        assert list(one.request) == list(other.request)
        assert repr(one.request) == repr(
            other.request
        )  # 1, 1.0 and True are equal but not the same


def test_parts_that_an_older_release_wrote_are_read() -> None:
    """They end before what came later."""
    blocks = {7: b'{"role":"user"}'}
    joiner = CallJoiner(lambda _: blocks)
    older = CallParts("messages", [pack("I", [7])], sent_key=None)
    packed = msgspec.msgpack.encode(list(msgspec.structs.astuple(older))[:8])
    data = make_call(request={"messages": None, "model": "m"}).to_json()
    call = joiner.join(data, packed)
    assert call.request == {"messages": [{"role": "user"}], "model": "m"}
    assert (call.chat_request, call.chat_sent) == (None, None)


@SETTINGS
@given(st.lists(st.integers(0, 40), max_size=4000))
def test_a_folded_list_unfolds(content: list[int]) -> None:
    blocks = BlockNumbers(1, capacity=50)
    kept: dict[int, bytes] = {}
    levels = blocks.fold([body(b"%d" % number) for number in content], owner=1)
    new = blocks.take()
    kept.update(enumerate(new.bodies, new.first))
    assert new.refs == []
    assert all(len(level) <= 32 * 4 for level in levels)
    numbers = unfold(levels, lambda wanted: [kept[number] for number in wanted])
    assert [int(kept[number]) for number in numbers] == content


def test_the_memory_of_known_blocks_is_bounded_and_keeps_what_is_used() -> None:
    cache: RecentlyUsed[int, int] = RecentlyUsed(100)
    for key in range(1000):
        if cache[key] is None:
            cache[key] = key
        assert cache[0] == 0
    assert sum(cache[key] is not None for key in range(1000)) <= 101


class Retention(RuleBasedStateMachine):
    """Puts, replacements, deletions and reopenings in any order, against a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.store = self.open()
        self.calls: dict[str, Call] = {}

    def open(self) -> SQLiteStore:
        return self.loop.run_until_complete(SQLiteStore.open(Path(self.folder.name) / "s.db"))

    @rule(
        rollout=st.integers(0, 3),
        index=st.integers(0, 3),
        start=st.integers(0, 3),
        length=st.integers(0, 70),
        tools=st.booleans(),
    )
    def put(self, rollout: int, index: int, start: int, length: int, tools: bool) -> None:
        said = [{"role": "user", "content": f"m{n}"} for n in range(start, start + length)]
        request: dict[str, Any] = {"messages": said}
        if tools:
            request["tools"] = [{"description": "x" * 400}]
        id_ = f"{rollout}-{index}"
        self.calls[id_] = make_call(
            id_,
            f"r{rollout}",
            index,
            request=request,
            overrides={"messages": [{"role": "system", "content": "s"}, *said]} if tools else {},
            prompt_token_ids=tuple(range(start, length * 9)),
        )
        self.loop.run_until_complete(
            self.store.put(
                make_rollout(f"r{rollout}"), make_attempt(f"r{rollout}"), self.calls[id_]
            )
        )

    @rule(rollouts=st.sets(st.integers(0, 3)))
    def delete(self, rollouts: set[int]) -> None:
        names = [f"r{rollout}" for rollout in rollouts]
        self.loop.run_until_complete(self.store.delete(names))
        self.calls = {id_: call for id_, call in self.calls.items() if call.rollout_id not in names}

    @rule()
    def reopen(self) -> None:
        self.loop.run_until_complete(self.store.close())
        self.store = self.open()

    @invariant()
    def holds_what_was_put(self) -> None:
        for rollout in range(4):
            wanted = [call for call in self.calls.values() if call.rollout_id == f"r{rollout}"]
            got = self.loop.run_until_complete(self.store.calls(f"r{rollout}.1"))
            assert got == sorted(wanted, key=lambda call: call.index)
        if not self.calls:
            usage = self.loop.run_until_complete(self.store.usage())
            assert (usage.calls, usage.blocks, usage.block_bytes) == (0, 0, 0)

    def teardown(self) -> None:
        self.loop.run_until_complete(self.store.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.folder.cleanup()


Retention.TestCase.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
TestRetention = Retention.TestCase


async def test_a_message_is_stored_once_whatever_window_shows_it(tmp_path: Path) -> None:
    said = [{"role": "user", "content": f"{n} " * 50} for n in range(200)]
    async with await SQLiteStore.open(tmp_path / "s.db") as store:
        for turn in range(180):
            window = [said[0], *said[turn : turn + 20]]
            await store.put(
                make_call(f"a{turn}", index=turn, request={"messages": window}),
                make_call(f"b{turn}", "other", turn, request={"messages": said[: turn + 1]}),
            )
        usage = await store.usage()
        bodies = sum(len(f'{{"role":"user","content":"{m["content"]}"}}') for m in said)
        assert usage.calls == 360
        # The messages once, and a few short lists of numbers.
        assert bodies <= usage.block_bytes <= bodies * 1.1


async def test_what_went_upstream_takes_no_more_than_what_differs(tmp_path: Path) -> None:
    said = [{"role": "user", "content": f"{n} " * 50} for n in range(180)]
    system = {"role": "system", "content": "as the agent has it " * 20}
    sent = [{"role": "system", "content": "as the strategy has it " * 20}, said[7], said[8]]

    async def used(name: str, **overrides: Any) -> int:
        async with await SQLiteStore.open(tmp_path / name) as store:
            for turn in range(0, 180, 2):
                messages = said[: turn + 1]
                if overrides:
                    overrides["messages"] = [*sent, *messages]
                request = {"messages": [system, *messages]}
                await store.put(
                    make_call(f"c{turn}", index=turn, request=request, overrides=dict(overrides))
                )
            return (await store.usage()).block_bytes

    plain, changed = await used("a.db"), await used("b.db", model="m")
    # One message, and a few short lists of numbers.
    assert plain + 400 < changed < plain + 2000


async def test_messages_are_shared_across_a_restart(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": f"{n} " * 500} for n in range(20)]
    used = []
    for part in range(3):
        async with await SQLiteStore.open(tmp_path / "s.db") as store:
            await store.put(make_call(f"c{part}", index=part, request={"messages": messages}))
            used.append((await store.usage()).block_bytes)
    assert len(set(used)) == 1


async def test_blocks_go_with_the_last_rollout_that_uses_them(tmp_path: Path) -> None:
    system = {"role": "system", "content": "shared by all " * 50}

    def call(name: str) -> Call:
        own = {"role": "user", "content": f"secret of {name} " * 50}
        return make_call(name, name, request={"messages": [system, own]})

    path = tmp_path / "s.db"
    async with await SQLiteStore.open(path) as store:
        await store.put(call("a"), call("b"), call("c"))
        assert (await store.usage()).blocks == 4
        # A block goes from heir to heir.
        for gone, left in (("a", 3), ("b", 2), ("c", 0)):
            await store.delete([gone])
            assert (await store.usage()).blocks == left
            for name in "abc":
                wanted = [call(name)] if name > gone else []
                assert await store.calls(f"{name}.1") == wanted


async def test_what_a_replaced_call_had_goes_with_its_rollout(tmp_path: Path) -> None:
    async with await SQLiteStore.open(tmp_path / "s.db") as store:
        for version in range(3):
            await store.put(
                make_call(request={"messages": [{"role": "user", "content": f"{version}"}]})
            )
        assert len(await store.calls("r.1")) == 1
        await store.delete(["r"])
        assert (await store.usage()).blocks == 0


async def test_spans_of_an_attempt_known_only_by_its_calls_are_deleted(tmp_path: Path) -> None:
    async with await SQLiteStore.open(tmp_path / "s.db") as store:
        await store.put(make_call(), Span(id="s", attempt_id="r.1", kind=SpanKind.NODE, name="n"))
        await store.delete(["r"])
        assert await store.spans("r.1") == []


async def test_space_of_deleted_rollouts_is_used_again(tmp_path: Path) -> None:
    sizes = []
    async with await SQLiteStore.open(tmp_path / "s.db") as store:
        for step in range(6):
            for n in range(50):
                content = f"{step} {n} " * 500
                await store.put(
                    make_call(
                        f"{step}-{n}", f"r{step}", n,
                        request={"messages": [{"role": "user", "content": content}]},
                    )
                )  # fmt: skip
            await store.delete([f"r{step}"])
            sizes.append((await store.usage()).file_bytes)
    assert sizes[-1] <= sizes[0] * 1.2


async def test_a_record_is_kept_as_it_was_when_it_was_put(tmp_path: Path) -> None:
    request = {"messages": [{"role": "user", "content": "before"}]}
    async with await SQLiteStore.open(tmp_path / "s.db") as store:
        await store.put(make_call(request=request))
        request["messages"][0]["content"] = "after"
        assert (await store.calls("r.1"))[0].messages[0]["content"] == "before"


async def test_infinite_log_probabilities_survive(tmp_path: Path) -> None:
    logprobs = (-math.inf, 5e-324, -0.1)
    async with await SQLiteStore.open(tmp_path / "s.db") as store:
        await store.put(make_call(choices=(Choice(logprobs=logprobs),)))
        assert (await store.calls("r.1"))[0].choices[0].logprobs == logprobs
