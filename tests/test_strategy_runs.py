"""Strategies on the whole path: each rollout under its own, code that reads them by name, and a server for any program."""

import asyncio
import collections
import json
import re
import signal
import subprocess

import openai
import pytest

from lightning_core import strategy as slots
from lightning_core.errors import WireError
from lightning_core.running.launch import launched
from lightning_core.running.prepare import prepare
from lightning_core.runs import RolloutRequest
from lightning_core.slots import SlotKind
from lightning_core.strategy import InteractionPattern, PromptTemplate, Strategy
from lightning_core.task import Task

pytestmark = pytest.mark.slow

TASKS = [Task(id=f"t{number}", input=f"{number}") for number in range(3)]
OPTED_IN = """
import json, os
from lightning_core import strategy


def read(question):
    return [strategy.prompt("ask", "Default {x}"), strategy.rule("tries", 2, low=1, high=5),
            strategy.choose("flow", ["short", "long"])]


if __name__ == "__main__":
    print(json.dumps(read(None)))
"""
TUNED = Strategy(
    prompt_templates={"ask": PromptTemplate(template="问 {x}")},
    decision_rules={"tries": 4},
    interaction_patterns={
        "flow": InteractionPattern(chosen="long", options={"short": (), "long": ()})
    },
)


def asking(text):
    """A strategy that has the agent ask in other words."""
    template = PromptTemplate(original="Say {what}.", template=f"{text}: {{what}}", role="user")
    return Strategy(prompt_templates={"say": template})


def wish(strategy=None, *, count=1, key=None, tasks=TASKS):
    return [
        RolloutRequest(task=task, mode="observe", count=count, strategy=strategy, key=key)
        for task in tasks
    ]


async def test_rollouts_at_one_time_in_one_process_each_see_their_own_strategy(
    tmp_path, scripted_server
):
    together = asyncio.Barrier(2)

    async def agent(question):
        async with together:
            pass  # Two at a time, of whatever strategy.
        client = openai.AsyncOpenAI(base_url=scripted_server.base_url, api_key="own")
        said = []
        async with client:
            for turn in range(5):
                stream = await client.chat.completions.create(
                    model="m", stream=True, messages=[{"role": "user", "content": f"Say {question}-{turn}."}]
                )  # fmt: skip
                said.append(
                    "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
                )
        return said

    one, other = asking("一"), asking("二")
    plan = await prepare(agent, TASKS, runs=tmp_path, concurrency=12)
    async with launched(plan) as run:
        groups = await run.rollouts(
            [*wish(one, count=7), *wish(other, count=7), *wish(None, count=2)]
        )
    wanted = [*["一: {}"] * 3, *["二: {}"] * 3, *["Say {}."] * 3]
    digests = [*[one.digest] * 3, *[other.digest] * 3, *[None] * 3]
    seen = collections.Counter()
    for template, digest, group in zip(wanted, digests, groups, strict=True):
        for trace in group:
            assert trace.rollout.strategy == digest
            assert trace.output == [
                template.format(f"{trace.task.input}-{turn}") for turn in range(5)
            ]
            for call in trace.calls:
                assert (call.strategy and call.strategy.digest) == digest
                assert call.sent_messages[0]["content"] == call.text
                assert call.messages[0]["content"].startswith("Say ")
                seen[digest] += 1
    assert seen == {one.digest: 105, other.digest: 105, None: 30}


async def test_the_same_key_under_another_strategy_is_an_error(tmp_path):
    plan = await prepare(lambda question: question, TASKS, runs=tmp_path)
    async with launched(plan) as run:
        first = await run.rollouts(wish(asking("a"), key="k"))
        again = await run.rollouts(wish(asking("a"), key="k"))
        assert [t.attempt.id for (t,) in again] == [t.attempt.id for (t,) in first]
        with pytest.raises(WireError, match="is known with another `strategy`"):
            await run.rollouts(wish(asking("b"), key="k"))


@pytest.mark.parametrize("way", ["live", "isolated", "command"])
async def test_code_reads_its_strategy_by_name_and_what_it_reads_is_found_in_traces(
    tmp_path, monkeypatch, environment, way
):
    (tmp_path / "opted.py").write_text(OPTED_IN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", environment["PATH"])

    def live(question):
        return [slots.prompt("ask", "Default {x}"), slots.rule("tries", 2, low=1, high=5),
                slots.choose("flow", ["short", "long"])]  # fmt: skip

    agent = {"live": live, "isolated": "opted.py:read", "command": ["python", "opted.py"]}[way]
    plan = await prepare(agent, TASKS, runs=tmp_path, isolate=way == "isolated")
    async with launched(plan) as run:
        tuned, plain = await run.rollouts([*wish(TUNED, tasks=TASKS[:1]), *wish(tasks=TASKS[1:2])])
    for (trace,), expected in (
        (tuned, ["问 {x}", 4, "long"]),
        (plain, ["Default {x}", 2, "short"]),
    ):
        assert trace.output == expected, trace.attempt.error
        found = {declared.kind: declared for declared in trace.slots}
        assert found[SlotKind.PROMPT].default == "Default {x}"
        assert (found[SlotKind.RULE].low, found[SlotKind.RULE].high) == (1, 5)
        assert found[SlotKind.CHOICE].options == ("short", "long")


PROGRAM = """
import sys
from openai import OpenAI

client = OpenAI()
for number in range(12):
    for stream in (False, True):
        reply = client.chat.completions.create(
            model="m", stream=stream, messages=[{"role": "user", "content": f"Say {number}."}])
        if stream:
            reply = "".join(c.choices[0].delta.content or "" for c in reply if c.choices)
        else:
            reply = reply.choices[0].message.content
        assert reply == f"说: {number}", reply
print(client.completions.create(model="m", prompt="Say it.").choices[0].text)
print(client.chat.completions.create(model="m", messages=[{"role": "user", "content": "else"}]).choices[0].message.content)
print([model.id for model in client.models.list()])
print(len(client.embeddings.create(model="m", input="Say x.").data))
"""


def test_a_plain_program_has_better_prompts_by_the_servers_address_alone(
    folder, environment, scripted_server, cli
):
    own = asking("说")
    missing = PromptTemplate(original="of another agent", template="x")
    other = Strategy(prompt_templates={**own.prompt_templates, "other": missing})
    other.dump(folder / "strategy.json")
    (folder / "program.py").write_text(PROGRAM)
    process = subprocess.Popen(
        ["lightning-core", "serve", "--port", "0", "--strategy", "strategy.json",
         "--upstream", scripted_server.base_url],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        said = []
        while not said or not said[-1].startswith("          OPENAI_BASE_URL="):
            said.append(process.stdout.readline())
            assert said[-1], said
        address = said[-1].partition("=")[2].strip()
        done = subprocess.run(
            ["python", "program.py"], cwd=folder, capture_output=True, text=True, timeout=120,
            env=environment | {"OPENAI_BASE_URL": address, "OPENAI_API_KEY": "sk-own"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["说: it", "else", "['scripted']", "1"]
    finally:
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    keys = {request.headers["authorization"] for request in scripted_server.requests}
    assert keys == {"Bearer sk-own"}
    assert "strategy: 26 calls" in rest
    assert "`say`: 25 matched, 1 did not" in rest
    assert "`other`: 0 matched, 26 did not" in rest
    assert rest.count("slot `other` fits none of") == 1
    assert "slot `say`" not in rest
    shown = cli("show", "serve", "--json")
    (trace,) = [json.loads(line) for line in shown.stdout.splitlines()]
    assert trace["rollout"]["run"] == "traffic"
    assert len(trace["calls"]) == 27
    assert re.search(r'"content": ?"说: 11"', json.dumps(trace["calls"][-5], ensure_ascii=False))
    for path in folder.glob("runs/**/*"):
        if path.is_file():
            assert b"sk-own" not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--strategy", "none.json"], "strategy file `none.json`: cannot be read"),
        (["--strategy", "bad.json"], "unknown placeholder `{y}`"),
        (["--upstream", "api.openai.com"], "expected an address such as https://api.openai.com/v1"),
        (["--upstream", "https://api.openai.com/v1", "--host", "0.0.0.0"],
         "everyone who reaches 0.0.0.0 could use it; allow that with `--allow-target api.openai.com`"),
        (["--upstream", "http://me:secret@127.0.0.1/v1"], "without credentials or a query"),
        (["--upstream", "me:secret@127.0.0.1/v1"], "expected an address such as"),
        (["--upstream-speaks", "chat"], "`--upstream-speaks` says something of `--upstream`; give that too"),
    ],
)  # fmt: skip
def test_what_serve_is_given_wrong_is_one_clear_error(cli, folder, options, says):
    bad = {"prompt_templates": {"a": {"original": "{x}", "template": "{y}"}}}
    (folder / "bad.json").write_text(json.dumps(bad))
    done = cli("serve", "--port", "0", *options, timeout=60)
    assert done.returncode not in (0, -signal.SIGKILL)
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr + done.stdout
    assert not (folder / "runs").exists()
