"""The server knows strategies by digest, and has each rollout's calls changed by its own."""

import aiohttp
import msgspec
import pytest

from lightning_core.errors import WireError
from lightning_core.rollout import Mode, Rollout
from lightning_core.strategy import (
    InteractionPattern,
    ModelChoice,
    PromptTemplate,
    Provenance,
    Strategy,
)
from lightning_core.task import Task
from lightning_core.testing import ScriptedServer
from lightning_core.tokens import Scope
from lightning_core.wire import Finish


def strategy(text="better", **fields):
    template = PromptTemplate(original="Q: {q}", template=f"{text}: {{q}}", role="user")
    return Strategy(prompt_templates={"ask": template}, **fields)


def rollout(number=0, **fields):
    return Rollout(**{"id": f"r{number}", "task_id": "t"} | fields)


async def enqueue(admin, *rollouts):
    await admin.put_tasks("default", [Task(id="t", input="q")])
    await admin.enqueue(rollouts)


async def say(lease, text):
    """Make a model call as the attempt of a lease; what the model saw of it."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{lease.base_url}/chat/completions", json=body) as answer,
    ):
        reply = await answer.json()
        return reply["choices"][0]["message"]["content"]


async def test_a_strategy_is_kept_by_digest(open_server):
    kept = strategy(provenance=Provenance(run="élan"))
    async with open_server() as (_, admin, _worker):
        assert await admin.put_strategy(kept) == kept.digest
        assert await admin.put_strategy(kept) == kept.digest
        assert await admin.strategy(kept.digest) == kept
        with pytest.raises(WireError, match=r"strategy `0123`: not known") as raised:
            await admin.strategy("0123")
        assert raised.value.status == 404


async def test_strategies_are_an_admins(open_server):
    async with open_server() as (_, _admin, worker):
        for forbidden in (worker.put_strategy(strategy()), worker.strategy("0123")):
            with pytest.raises(WireError) as raised:
                await forbidden
            assert raised.value.status == 403


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"prompt_templates": {"a": {"template": "{x", "original": "y"}}}, "prompt_templates"),
        ({"prompt_templates": {"a": {"template": "{z}", "original": "{x}"}}}, "unknown placeholder `{z}`"),
        ({"interaction_patterns": {"flow": {"chosen": "b", "options": {"a": ["fly"]}}}}, "interaction_patterns"),
        ({"format_version": 99}, "format version 99 is newer"),
        ({"prompts": {}}, "unknown field `prompts`"),
        (msgspec.to_builtins(strategy()), "the digest of what was sent is"),
    ],
)  # fmt: skip
async def test_a_bad_strategy_is_refused_with_the_reason(open_server, body, says):
    async with open_server() as (server, _, _worker):
        headers = {"authorization": f"Bearer {server.token(Scope.ADMIN)}"}
        url = f"{server.url}/api/v1/strategies/0123"
        async with (
            aiohttp.ClientSession() as http,
            http.put(url, json=body, headers=headers) as answer,
        ):
            error = (await answer.json())["error"]
            assert (answer.status, error["type"]) == (400, "bad_request")
            assert says in error["message"]


async def test_a_rollout_of_an_unknown_strategy_is_refused_and_nothing_is_queued(open_server):
    async with open_server() as (_, admin, _worker):
        with pytest.raises(WireError, match="strategy `0123` is not known; put it to") as raised:
            await enqueue(admin, rollout(0), rollout(1, strategy="0123"))
        assert raised.value.status == 400
        assert await admin.rollouts() == []
        with pytest.raises(WireError, match="strategy `0123` is not known") as raised:
            await admin.open_session(
                rollout(2, strategy="0123"), Task(id="t", input=""), upstream=None, timeout=9
            )
        assert raised.value.status == 400


async def test_a_known_rollout_asked_for_under_another_strategy_is_refused(open_server):
    async with open_server() as (_, admin, _worker):
        one, other = (
            await admin.put_strategy(strategy("a")),
            await admin.put_strategy(strategy("b")),
        )
        await enqueue(admin, rollout(strategy=one))
        assert await admin.enqueue([rollout(strategy=one)]) == 0
        for another in (other, None):
            with pytest.raises(WireError, match="is known with another `strategy`") as raised:
                await admin.enqueue([rollout(strategy=another)])
            assert raised.value.status == 409


async def test_each_attempt_sees_its_own_strategy_and_a_restarted_server_still_has_it(open_server):
    async with ScriptedServer() as model:
        async with open_server() as (_, admin, worker):
            first, second = strategy("first"), strategy("second")
            digests = [await admin.put_strategy(each) for each in (first, second)]
            await enqueue(
                admin,
                rollout(0, strategy=digests[0]),
                rollout(1, strategy=digests[1]),
                rollout(2),
                rollout(3, strategy=digests[1]),
            )
            leases = await worker.lease("w", capacity=3, wait=0, upstream=model.base_url)
            assert [await say(lease, "Q: a") for lease in leases] == [
                "first: a", "second: a", "Q: a",
            ]  # fmt: skip
            (_, _, plain) = leases
            assert plain.strategy is None
        async with open_server() as (server, admin, worker):
            # One attempt is taken up again, and one rollout still waits.
            (lease,) = await worker.lease("w", capacity=1, wait=0, upstream=model.base_url)
            assert lease.rollout.strategy == digests[1]
            assert await say(lease, "Q: b") == "second: b"
            moved = msgspec.structs.replace(
                leases[1], base_url=f"{server.url}/s/{leases[1].session}/v1"
            )
            assert await say(moved, "Q: b") == "second: b"
            trace = await admin.trace("r1")
            assert [call.strategy.digest for call in trace.calls] == [digests[1]] * 2
            assert [call.overrides["messages"][0]["content"] for call in trace.calls] == [
                "second: a", "second: b",
            ]  # fmt: skip


async def test_a_lease_has_what_code_reads_by_name_and_no_more(open_server):
    whole = Strategy(
        prompt_templates={
            "found": PromptTemplate(original="a", template="b"),
            "read": PromptTemplate(template="c {x}"),
        },
        decision_rules={"max_attempts": 3},
        interaction_patterns={"flow": InteractionPattern(chosen="a", options={"a": ()})},
        models={"*": ModelChoice(model="m")},
        provenance=Provenance(run="r", cost={"usd": 1}),
    )
    async with open_server() as (_, admin, worker):
        await enqueue(admin, rollout(strategy=await admin.put_strategy(whole)))
        (lease,) = await worker.lease("w", capacity=1, wait=0)
        assert lease.strategy == Strategy(
            prompt_templates={"read": whole.prompt_templates["read"]},
            decision_rules=whole.decision_rules,
            interaction_patterns=whole.interaction_patterns,
            provenance=Provenance(run="r"),
        )


async def test_the_servers_own_strategy_is_for_rollouts_that_have_none(open_server):
    own = strategy("own", decision_rules={"a": 1})
    async with ScriptedServer() as model, open_server(strategy=own) as (server, admin, worker):
        other = await admin.put_strategy(strategy("other"))
        await enqueue(admin, rollout(0), rollout(1, strategy=other), rollout(2))
        leases = await worker.lease("w", capacity=3, wait=0, upstream=model.base_url)
        said = [
            await say(lease, text)
            for lease, text in zip(leases, ("Q: a", "Q: a", "x"), strict=True)
        ]
        assert said == ["own: a", "other: a", "x"]
        assert leases[0].strategy.decision_rules == {"a": 1}
        # Only what is its own is counted.
        assert server.tally.calls == 2
        count = server.tally.slots["ask"]
        assert (count.matched, count.missed) == (1, 1)


async def test_a_session_of_a_run_may_name_a_strategy(open_server):
    async with ScriptedServer() as model, open_server() as (_, admin, _worker):
        digest = await admin.put_strategy(strategy("session"))
        lease = await admin.open_session(
            rollout(strategy=digest, mode=Mode.OBSERVE),
            Task(id="t", input=""),
            upstream=model.base_url,
            timeout=60,
        )
        assert await say(lease, "Q: a") == "session: a"
        await admin.finish(lease.attempt.id, Finish(fence=lease.attempt.fence, cause="success"))
