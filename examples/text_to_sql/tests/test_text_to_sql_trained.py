"""A strategy found in the agent's traffic runs without the agent; and what leads there from the command line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_core as lc
from lightning_core.cli import main, optimize
from lightning_core.prompts import find_prompts
from lightning_core.trained import last_fenced

FOLDER = Path(__file__).parents[1]


def reviewed(request):
    """The example's model: it writes a wrong query first, and is content with what returns rows."""
    system, prompt = (message["content"] for message in request.messages)
    if system.startswith("You check"):
        return "All well.\nVERDICT: CORRECT" if " | " in prompt else "No such table.\nVERDICT: INCORRECT"  # fmt: skip
    if system.startswith("You correct"):
        return "Here:\n```sql\nSELECT name, born FROM author\n```"
    return "```sql\nSELECT * FROM nothing\n```" if "Germany" in prompt else "```sql\nSELECT 1 WHERE 0\n```"  # fmt: skip


@pytest.fixture(scope="module")
def strategy(made, run_scripted, tmp_path_factory):
    """The file of a strategy that was made from nothing but the agent's traffic: all queries in it begin alike."""
    tasks = [*lc.load_tasks(made / "train.jsonl"), *lc.load_tasks(made / "val.jsonl")]
    queries = [task.expected["query"] for task in tasks]

    def reply(request):
        system, prompt = (message["content"] for message in request.messages)
        number = len(prompt) % 3
        if system.startswith("You check"):
            return (
                "VERDICT: CORRECT",
                f"Column {number} is wrong.\nVERDICT: INCORRECT",
                "条件不对。",
            )[number]
        return f"```sql\n{queries[len(prompt) % len(queries)]}\n```"

    result = run_scripted(tasks, reply)
    path = tmp_path_factory.mktemp("strategy") / "optimized_strategy.json"
    find_prompts(result.traces).strategy(run="own").dump(path)
    return path


def test_the_found_strategy_writes_executes_checks_and_rewrites(strategy, library, scripted_server):
    scripted_server.respond(reviewed)
    reader = lc.SqliteReader(library)
    agent = lc.TrainedAgent(
        model_endpoint=scripted_server.base_url,
        strategy_file=strategy,
        model="m",
        executor=reader,
        extract=last_fenced,
    )
    done = agent.attempt("Who is there?", {"schema": reader.schema})
    assert [call.step for call in done.calls] == ["write", "check", "rewrite", "check"]
    assert done.solution == "SELECT name, born FROM author"
    assert len(done.result.rows) > 3
    assert done.accepted


def test_what_the_model_sees_is_what_the_agent_would_have_sent(
    strategy, library, example, scripted_server
):
    scripted_server.respond(reviewed)
    reader = lc.SqliteReader(library)
    agent = lc.TrainedAgent(model_endpoint=scripted_server.base_url, strategy_file=strategy, model="m",
                            executor=reader, extract=last_fenced)  # fmt: skip
    agent.execute("Who?", {"schema": reader.schema})
    write, check, rewrite, _ = (
        [message["content"] for message in request.messages] for request in scripted_server.requests
    )
    schema = example.agent.read_schema(str(library))
    state = {"question": "Who?", "query": "SELECT 1 WHERE 0", "result": "(no rows)"}
    assert write == [example.agent.WRITE.format(schema=schema), "Question: Who?"]
    assert check == [example.agent.CHECK.format(schema=schema), example.agent.shown(state)]
    review = "No such table.\nVERDICT: INCORRECT"
    assert rewrite[1] == f"{example.agent.shown(state)}\nReview:\n{review}"


def test_the_script_answers_from_the_file_alone(strategy, library, scripted_server):
    scripted_server.respond(reviewed)
    done = subprocess.run(
        [sys.executable, FOLDER / "inference.py", strategy, library, "Who is from Germany?"],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, "OPENAI_BASE_URL": scripted_server.base_url, "OPENAI_API_KEY": "k"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("SELECT name, born FROM author\n\nname | born\n")
    assert len(scripted_server.requests) == 3  # what fails is rewritten without a check
    bad = subprocess.run([sys.executable, FOLDER / "inference.py", strategy, "none.sqlite", "x"],
                         capture_output=True, text=True, timeout=60)  # fmt: skip
    assert (bad.returncode, bad.stderr) == (1, "error: database `none.sqlite`: there is no such file\n")  # fmt: skip


def test_the_command_answers_likewise(strategy, library, scripted_server, capsys):
    scripted_server.respond(reviewed)
    status = main(["infer", "--strategy", str(strategy), "--model", "m", "--endpoint", scripted_server.base_url,
                   "--sql", str(library), "--task", "谁?"])  # fmt: skip
    assert status == 0
    assert capsys.readouterr().out.startswith("SELECT name, born FROM author\n\nname | born\n")


def test_the_run_file_asks_to_tune_this_agents_prompts(monkeypatch):
    asked = {}

    async def told(agent, tasks, config, **options):
        asked.update(agent=agent, tasks=tasks, config=config, **options)
        raise lc.errors.UsageError("enough")

    monkeypatch.setattr(optimize, "optimize", told)
    monkeypatch.setattr(optimize, "reward_of", lambda spec: spec)
    main(["optimize", str(FOLDER / "train_prompt.toml"), "--backend", "prompt"])
    assert asked["agent"] == str(FOLDER / "agent.py:graph")
    assert asked["reward"] == str(FOLDER / "agent.py:score")
    assert Path(asked["tasks"]).parent == FOLDER / "data/spider"
    assert (asked["config"].backend, asked["config"].budget) == ("prompt", "300 rollouts, 60 min")
    assert asked["config"].options == {"demonstrations": "traces"}


def test_the_training_script_takes_the_backends_own_file(tmp_path):
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, line in {"python": "true", "lightning-core": 'printf "%s\\n" "$@"'}.items():
        (commands / name).write_text(f"#!/bin/sh\n{line}\n")
        (commands / name).chmod(0o755)
    done = subprocess.run(
        [FOLDER / "train.sh", "spider", "--backend", "prompt", "--budget", "9 rollouts"],
        capture_output=True, text=True,
        env={**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "optimize", str(FOLDER / "train_prompt.toml"), "--backend", "prompt", "--budget", "9 rollouts",
    ]  # fmt: skip


def test_the_export_script_writes_what_the_command_writes(tmp_path, monkeypatch):
    done = subprocess.run([sys.executable, FOLDER / "export_strategy.py", "none"],
                          cwd=tmp_path, capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 1
    assert "none" in done.stderr
    assert not (tmp_path / "optimized_strategy.json").exists()
