"""`lightning-core samples`: the table, the audit, JSON; from a folder and from words of the user's that do not fit."""

import asyncio
import json

import pytest

from lightning_core.cli import main
from lightning_core.folder import RunFolder
from lightning_core.learn import Built
from lightning_core.reward import Reward, RewardStatus
from lightning_core.rollout import Attempt, Cause, Mode, Rollout, RolloutStatus
from lightning_core.runs import RunConfig
from lightning_core.server import Server, ServerConfig
from lightning_core.store.sqlite import SQLiteStore
from lightning_core.task import Task
from lightning_core.tokens import Scope
from lightning_core.trace import Call, Choice, TokenSource


def call(rollout, index, messages, prompt, reply, sampled, agent, **fields):
    return Call(
        id=f"{rollout}-{index}", attempt_id=f"demo:{rollout}.1", rollout_id=f"demo:{rollout}",
        index=index, dialect="chat", request={"messages": messages}, prompt_token_ids=tuple(prompt),
        choices=(
            Choice(
                message={"role": "assistant", "content": reply}, finish_reason="stop",
                token_ids=tuple(sampled), logprobs=(-0.5,) * len(sampled),
            ),
        ),
        token_source=TokenSource.ENGINE, mode=Mode.VAL, policy_version=3, complete=True, agent=agent,
        **fields,
    )  # fmt: skip


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Writer and critic in turns, then a call with the first prompt: two rollouts of a group, in which the template
    changes before the third call, and one alone, in which it does not."""
    monkeypatch.setenv("LIGHTNING_CORE_RUNS", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    folder = RunFolder.create(tmp_path, "demo", hint="")
    folder.write_config(RunConfig(name="demo", agent="a", created_at=1))
    asyncio.run(fill(folder.store))
    return tmp_path


async def fill(path):
    first = [user("write\x1b[2J a poem")]
    second = [*first, said("roses"), user("and now?")]
    third = [*second, said("violets"), user("more")]
    async with await SQLiteStore.open(path) as store:
        for name, reward, group in (("x", 1.0, "g"), ("y", 0.0, "g"), ("z", 1.0, None)):
            rollout = Rollout(
                id=f"demo:{name}", task_id="t", run="demo", group=group, status=RolloutStatus.SUCCEEDED
            )  # fmt: skip
            attempt = Attempt(
                id=f"demo:{name}.1", rollout_id=rollout.id, number=1, fence=1, worker="w",
                started_at=0, deadline=9, lease_until=9, ended_at=1, cause=Cause.SUCCESS, output="o",
            )  # fmt: skip
            await store.put(Task(id="t", input="i"), run="demo")
            await store.put(
                rollout,
                attempt,
                call(name, 0, first, [1, 2], "roses", [3, 4], "writer"),
                call(name, 1, second, [1, 2, 3, 4, 5], "violets", [6], "critic"),
                call(name, 2, third, [1 if name == "z" else 9, 2, 3, 4, 5, 6, 7], "blue", [8, 8], "writer"),
                call(name, 3, first, [1, 2], "", [] if name == "y" else [3], "writer"),
            )  # fmt: skip
            status = RewardStatus.SCORED
            await store.put_rewards(rollout.id, [Reward(value=reward, status=status)])


@pytest.fixture
async def server(tmp_path, monkeypatch):
    """A server elsewhere that has the run; nothing of it is in this user's runs."""
    monkeypatch.setenv("LIGHTNING_CORE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("COLUMNS", "160")
    folder = tmp_path / "server"
    folder.mkdir()
    await fill(folder / "store.sqlite")
    async with Server(ServerConfig(folder=folder)) as server:
        yield server


def table(text):
    lines = [line.split() for line in text.splitlines()]
    head = next(line for line in lines if line[:1] == ["rollout"])
    return {
        line[0]: dict(zip(head[1:], line[1:], strict=False)) for line in lines if line[:1] in (["x"], ["y"])
    }  # fmt: skip


def test_a_run_is_a_table_and_a_report(runs, capsys):
    assert main(["samples", "demo"]) == 0
    text = capsys.readouterr().out
    rows = table(text)
    assert rows["x"] == {
        "reward": "1", "calls": "4", "samples": "3", "tokens": "18", "learnt": "6", "new": "1",
        "joined": "1", "forked": "1", "apart": "1", "skipped": "0", "why": "template_changed",
    }  # fmt: skip
    assert rows["y"]["skipped"] == "1"
    assert "calls 12, replies to learn from 11, of which not merged 2" in text
    assert "(such as x call 2, y call 2)" in text
    assert "no token ids (such as y call 3)" in text


def test_another_agent_is_left_out(runs, capsys):
    assert main(["samples", "demo", "--train-agents", "critic"]) == 0
    assert table(capsys.readouterr().out)["x"]["learnt"] == "1"


def test_a_rollout_is_shown_reply_by_reply(runs, capsys):
    assert main(["samples", "demo", "x", "--ids"]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    at = lines.index("▌ roses")
    assert "user: write␛[2J a poem" in lines[at - 3]
    assert lines[at - 2] == "  1 2"
    assert lines[at - 1].startswith("▌ call 0  writer  2-4, version 3, mean log-probability -0.50")
    assert "credit 1, advantage +" in lines[at - 1]
    assert lines[at + 1] == "▌ 3 4"
    assert lines[at + 3] == "  user: and now?"
    assert lines.count("▌ roses") == lines.count("▌ violets") == lines.count("▌ blue") == 1
    assert any(line.startswith("sample 2 of 3") and "template_changed" in line for line in lines)


def test_words_of_an_agent_that_is_not_trained_are_marked_as_context(runs, capsys):
    assert main(["samples", "demo", "z", "--train-agents", "writer"]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert "▌ roses" in lines
    assert lines[lines.index("  violets") - 1] == "  call 1  critic  5-6, context"
    assert "▌ blue" in lines


def test_the_advantage_of_a_rollout_that_nothing_is_compared_with_is_not_shown(runs, capsys):
    assert main(["samples", "demo", "z"]) == 0
    text = capsys.readouterr().out
    assert "credit 1" in text
    assert "advantage" not in text


def test_a_call_without_tokens_is_listed_with_its_reason(runs, capsys):
    assert main(["samples", "demo", "y", "--train-agents", "writer"]) == 0
    text = capsys.readouterr().out
    assert "▌ violets" not in text
    assert "call 1 critic not learnt from: not_selected" in text
    assert "call 3 writer not learnt from: no_token_ids" in text


def test_json_is_the_samples_with_credit(runs, capsys):
    assert main(["samples", "demo", "y", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    value = json.loads(line)
    assert value["rollout_id"] == "demo:y"
    built = Built.from_json(line)
    assert [s.credit for s in built.samples[0].segments] == [0.0, 0.0]
    assert all(s.advantage < 0 for s in built.samples[0].segments)
    assert built.skipped == {"y-3": "no_token_ids"}


def test_the_text_of_the_tokens_comes_from_a_tokenizer(runs, capsys, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{n}": n for n in range(10)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    made.save(str(tmp_path / "tokenizer.json"))
    assert main(["samples", "demo", "x", "--tokenizer", str(tmp_path)]) == 0
    assert "▌ w3 w4" in capsys.readouterr().out
    made.save(str(runs / "demo" / "tokenizer.json"))
    assert main(["samples", "demo", "x"]) == 0
    assert "▌ w3 w4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["samples", "none"], "run `none`: not found"),
        (["samples", "demo", "q"], "rollout `q`: not in run `demo`; it has `x`, `y`, `z`"),
        (
            ["samples", "demo", "--train-agents", "("],
            "`train_agents` '(': not a regular expression",
        ),
    ],
)
def test_what_does_not_fit_is_one_clear_error(runs, capsys, arguments, message):
    assert main(arguments) == 1
    assert message in capsys.readouterr().err


def test_a_tokenizer_that_cannot_be_had_is_one_clear_error(runs, capsys, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "tokenizer.json").write_text("{")
    assert main(["samples", "demo", "x", "--tokenizer", str(tmp_path / "bad")]) == 1
    assert "cannot be read" in capsys.readouterr().err


async def test_a_run_on_a_server_is_read_from_there(server, capsys, monkeypatch):
    async def samples(*arguments):
        monkeypatch.setenv("LIGHTNING_CORE_TOKEN", server.token(Scope.ADMIN))
        status = await asyncio.to_thread(main, ["samples", *arguments, "--server", server.url])
        assert status == 0
        return capsys.readouterr().out

    rows = table(await samples("demo"))
    assert sorted(rows) == ["x", "y"]
    assert (rows["x"]["calls"], rows["x"]["learnt"]) == ("4", "6")
    # The group is read too: credit and advantage are by the reward within it.
    built = Built.from_json(await samples("demo", "y", "--json"))
    assert [s.credit for s in built.samples[0].segments] == [0.0, 0.0]
    assert all(s.advantage < 0 for s in built.samples[0].segments)


@pytest.mark.parametrize(
    ("run", "token", "message"),
    [
        ("demo", None, "an admin token is needed; set `LIGHTNING_CORE_TOKEN`"),
        ("demo", "wrong", "token: not one of this server's"),
        ("none", "right", "run `none`: not on server http://127.0.0.1"),
    ],
)
async def test_a_server_that_does_not_tell_is_one_clear_error(
    server, capsys, monkeypatch, run, token, message
):
    monkeypatch.delenv("LIGHTNING_CORE_TOKEN", raising=False)
    if token is not None:
        given = server.token(Scope.ADMIN) if token == "right" else token
        monkeypatch.setenv("LIGHTNING_CORE_TOKEN", given)
    assert await asyncio.to_thread(main, ["samples", run, "--server", server.url]) == 1
    assert message in capsys.readouterr().err
