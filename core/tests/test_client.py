"""The client: the routes that runs need, and a server that answers nonsense."""

import pytest
from aiohttp import web

from lightning_core.client import Client
from lightning_core.errors import FormatError, LightningError, WireError
from lightning_core.redaction import redacted, redacted_options, redacted_words, without_userinfo
from lightning_core.rollout import Cause, Rollout
from lightning_core.server import Server, ServerConfig
from lightning_core.task import Task
from lightning_core.tokens import Scope


@pytest.fixture
async def server(tmp_path):
    async with Server(ServerConfig(folder=tmp_path / "run")) as server:
        yield server


@pytest.fixture
async def admin(server):
    async with Client(server.url, server.token(Scope.ADMIN)) as client:
        yield client


async def test_a_worker_token_leases_and_does_nothing_else(server, admin):
    async with Client(server.url, await admin.worker_token()) as worker:
        assert await worker.lease("w", capacity=1, wait=0) == []
        with pytest.raises(WireError) as refused:
            await worker.put_tasks("r", [Task(id="t", input="x")])
        assert refused.value.status == 403


async def test_what_a_lost_worker_held_ends_at_once_and_nothing_else_does(admin):
    await admin.put_tasks("r", [Task(id="t", input="x")])
    await admin.enqueue([Rollout(id=f"r:{n}", task_id="t", run="r") for n in range(3)])
    gone = await admin.lease("gone / one", capacity=2, wait=0)
    (kept,) = await admin.lease("other", capacity=1, wait=0)
    assert await admin.worker_lost("gone / one", "ended with status 7") == (2, 2)
    assert await admin.worker_lost("gone / one", "again") == (0, 0)
    for lease in gone:
        trace = await admin.trace(lease.rollout.id)
        assert trace.attempt.cause is Cause.LOST
        assert "ended with status 7" in trace.attempt.error
    await admin.heartbeat(kept.attempt.id, kept.attempt.fence)


async def test_a_runs_name_is_its_owners(admin):
    await admin.claim_run("mine", "aa")
    await admin.claim_run("mine", "aa")
    with pytest.raises(WireError) as refused:
        await admin.claim_run("mine", "bb")
    assert refused.value.status == 409


async def test_events_of_one_run_are_only_its_own(admin):
    for run in ("one", "two"):
        await admin.put_tasks(run, [Task(id="t", input="x")])
        await admin.enqueue([Rollout(id=f"{run}:0", task_id="t", run=run)])
    await admin.lease("w", capacity=2, wait=0)
    assert [e.rollout_id for e in await admin.events(0, wait=0, run="two")] == ["two:0"]
    assert len(await admin.events(0, wait=0)) == 2


DEEP = b'{"rollouts":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (DEEP, 200, FormatError),
        (DEEP, 500, WireError),
        (b"<html>", 200, FormatError),
        (b"<html>", 502, WireError),
        (b"[]", 200, FormatError),
        (b"{}", 200, WireError),
        (b'{"rollouts": [{"id": 5}]}', 200, WireError),
    ],
)
async def test_nonsense_is_one_error_of_ours(body, status, kind):
    async def answer(request):
        return web.Response(body=body, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with Client(f"http://127.0.0.1:{runner.addresses[0][1]}", "t") as client:
            with pytest.raises(LightningError) as raised:
                await client.rollouts()
            assert type(raised.value) is kind
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("url", ["http://me:hunter2@127.0.0.1:9", "no address", "http://", ""])
async def test_a_server_that_cannot_be_reached_is_one_error_without_its_password(url):
    async with Client(url, "t") as client:
        with pytest.raises(WireError, match="cannot be reached") as raised:
            await client.status()
    assert raised.value.status is None
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["a", "--api-key", "hunter2", "b"], ("a", "--api-key", "***", "b")),
        (["--api-key=hunter2"], ("--api-key=***",)),
        (["--engine-option", "api_key=hunter2"], ("--engine-option", "api_key=***")),
        (["--engine-option", "args=--api-key hunter2 --x"], ("--engine-option", "args=--api-key *** --x")),
        (["--server-token", "hunter2"], ("--server-token", "***")),
        (["OPENAI_API_KEY=hunter2"], ("OPENAI_API_KEY=***",)),
        (["-H", "Authorization: Bearer hunter2"], ("-H", "Authorization: Bearer ***")),
        (["-H", "api-key: hunter2"], ("-H", "api-key: ***")),
        (["m@http://me:hunter2@host/v1"], ("m@http://***@host/v1",)),
        (["x", "sk-proj-abcdefghijklmnopqrstuv"], ("x", "***")),
        (["--max-tokens", "5"], ("--max-tokens", "5")),
        (["--engine-option", "api_key_env=MINE"], ("--engine-option", "api_key_env=MINE")),
        (["--monkey", "banana", "a key to it"], ("--monkey", "banana", "a key to it")),
    ],
)  # fmt: skip
def test_secrets_are_taken_out_of_a_command_line_and_nothing_else(words, kept):
    assert redacted_words(words) == kept


def test_secrets_are_taken_out_of_options_and_addresses():
    options = {"api_key": "hunter2", "api_key_env": "MINE", "url": "https://u:hunter2@h/v1"}
    kept = {"api_key": "***", "api_key_env": "MINE", "url": "https://***@h/v1"}
    assert redacted_options(options) == kept
    assert without_userinfo("http://a@b:c@host/x@y") == "http://***@host/x@y"
    assert redacted("see http://host/a?b=c@d") == "see http://host/a?b=c@d"
