"""docs/any-agent.md: every program on it is run as it stands, by the command that the page gives."""

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lightning_core import Cause, RolloutStatus, Trace
from lightning_core.strategy import Strategy
from lightning_core.testing import END, Text

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[1] / "docs/any-agent.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+) (\S+)\n(.*?)^```", PAGE, re.S | re.M)
FILES = {name: text for _, name, text in BLOCKS if name != "run"}
COMMANDS = {
    re.search(r"--name (\w+)", command)[1]: command.replace("\\\n", " ")
    for _, name, text in BLOCKS
    if name == "run"
    for command in re.findall(r"lightning-core (?:.*\\\n)*.*", text)
}
"""The commands of the page by the name that each gives its run."""
CAPITALS = {"France": "Paris", "Peru": "Lima"}

needs_shell = pytest.mark.skipif(
    not all(map(shutil.which, ("bash", "curl", "jq"))), reason="needs bash, curl and jq"
)
needs_litellm = pytest.mark.skipif(
    importlib.util.find_spec("litellm") is None, reason="pip install litellm"
)


@pytest.fixture
def page(folder):
    """The files of the page, where a reader would put them."""
    for name, text in FILES.items():
        (folder / name).write_text(text, "utf-8")
    return folder


@pytest.fixture
def node(page, npm_packages):
    (page / "node_modules").symlink_to(npm_packages)


@pytest.fixture
def model(scripted_server):
    """Answers a question in a sentence, and with the name alone what comes after it."""

    def answer(request):
        if request.method == "GET":
            return None
        said = json.dumps(request.messages)
        capital = next(city for land, city in CAPITALS.items() if land in said or city in said)
        last = str(request.messages[-1]["content"])
        return Text(f"It is {capital}, I think." if "What is" in last else capital)

    scripted_server.respond(answer)
    return scripted_server


@pytest.fixture
def shell(page, environment, model):
    """Run a line of shell in the page's folder, with the scripted server as the provider; what it printed."""
    own = {
        "OPENAI_BASE_URL": model.base_url,
        "OPENAI_API_KEY": "sk-own",
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": "sk-own",
    }

    def call(line, **variables):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=page, env=environment | own | variables, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return call


@pytest.fixture
def traces(shell):
    """Run a command of the page; the traces of its run, by task."""

    def call(name, command=None, **variables):
        shell(command or COMMANDS[name], **variables)
        lines = shell(f"lightning-core show {name} --json").splitlines()
        found = {trace.task.id: trace for trace in map(Trace.from_json, lines)}
        assert found
        for trace in found.values():
            assert trace.attempt.cause is Cause.SUCCESS, trace.attempt
        return found

    return call


def rewards(trace):
    return [reward.value for reward in trace.rewards]


def who(call):
    return (call.dialect, call.agent, call.node)


def test_every_command_of_the_page_is_tested():
    tested = Path(__file__).read_text("utf-8")
    assert len(COMMANDS) == PAGE.count(" --name ")
    assert [name for name in COMMANDS if f'traces("{name}"' not in tested] == []


def test_every_file_of_the_page_is_run():
    unused = [name for name in FILES if not re.search(rf"(?<!`){name}", "".join(COMMANDS.values()))]
    assert unused == ["grade.mjs", "harness.sh"]


@needs_shell
def test_a_shell_script_with_curl_is_recorded_and_scored(traces, model):
    found = traces("shell")
    for trace, capital in ((found["france"], "Paris"), (found["peru"], "Lima")):
        assert trace.output == {"answer": f"It is {capital}, I think."}
        assert rewards(trace) == [1.0]
        assert [who(call) for call in trace.calls] == [("chat", None, None)]
        (call,) = trace.calls
        assert call.messages[0]["content"] == trace.task.input
    assert {request.api_key for request in model.requests} == {"sk-own"}


@needs_shell
def test_responses_by_curl_are_recorded_with_the_whole_prompt(traces):
    trace = traces("responses")["peru"]
    assert trace.output == {"answer": "Lima"}
    assert rewards(trace) == [1.0]
    first, second = trace.calls
    assert (who(first), who(second)) == (("responses", None, None),) * 2
    assert [m["content"] for m in second.messages] == [
        "What is the capital of Peru?",
        "It is Lima, I think.",
        "Say it in one word.",
    ]


@needs_shell
def test_messages_by_curl_are_recorded_and_scored(traces):
    for trace in traces("messages").values():
        assert trace.output["answer"].startswith("It is ")
        assert rewards(trace) == [1.0]
        assert [who(call) for call in trace.calls] == [("messages", None, None)]


@pytest.mark.usefixtures("node")
def test_a_traced_node_program_keeps_its_arguments_and_its_output(traces, shell):
    assert shell(COMMANDS["look"]) == "Paris\n"
    trace = traces("look", "true")["command"]
    assert [call.node for call in trace.calls] == ["draft", "check"]


@pytest.mark.usefixtures("node")
def test_a_node_agent_is_labelled_and_scored(traces, model):
    for trace in traces("node").values():
        assert rewards(trace) == [1.0]
        assert trace.output["answer"] == trace.task.expected
        assert [who(call) for call in trace.calls] == [
            ("chat", "solver", "draft"),
            ("chat", "solver", "check"),
        ]
        assert all(call.stream for call in trace.calls)
    assert len(model.requests) == 4
    for request in model.requests:
        assert not [name for name in request.headers if name.lower().startswith("x-lightning")]


@pytest.mark.usefixtures("node")
def test_a_runs_model_answers_a_node_agent_without_its_key_and_with_token_ids(traces, model):
    options = f"--model {model.base_url} --engine-option capabilities=token_ids,logprobs"
    command = COMMANDS["node"].replace(" -- ", f" {options} -- ")
    elsewhere = {"OPENAI_BASE_URL": "https://llm.example/v1"}
    for trace in traces("node", command, **elsewhere).values():
        assert rewards(trace) == [1.0]
        for call in trace.calls:
            *ids, end = call.choices[0].token_ids
            assert (bytes(ids).decode(), end) == (call.text, END)
    assert "sk-own" not in {request.api_key for request in model.requests}


def test_raw_httpx_says_who_spoke_and_within_which_tool(traces):
    for trace in traces("raw").values():
        assert rewards(trace) == [1.0]
        (span,) = trace.spans
        assert (span.kind, span.name) == ("tool", "look_up")
        assert span.attributes == {"gen_ai.tool.call.arguments": {"key": trace.task.id}}
        assert span.started_at < span.ended_at
        (call,) = trace.calls
        assert who(call) == ("chat", "reader", "read")
        assert call.span_id == span.id


@needs_litellm
def test_a_litellm_agent_is_recorded_and_scored(traces):
    for trace in traces("lite").values():
        assert rewards(trace) == [1.0]
        assert [who(call) for call in trace.calls] == [("chat", None, None)]


@needs_shell
def test_a_command_line_agent_gets_its_prompt_as_an_argument(traces):
    for trace in traces("argument").values():
        assert trace.output.startswith("It is ")
        assert trace.attempt.logs == "thinking…"
        assert rewards(trace) == [1.0]
        assert [who(call) for call in trace.calls] == [("chat", None, None)]


@needs_shell
def test_a_command_line_agent_of_anthropics_sdk_gets_its_prompt_on_standard_input(traces, model):
    for trace in traces("input").values():
        assert rewards(trace) == [1.0]
        (call,) = trace.calls
        assert who(call) == ("messages", None, None)
        assert call.stream
    assert {request.path.rpartition("/v1")[2] for request in model.requests} == {
        "/messages",
        "/chat/completions",
    }


@pytest.mark.usefixtures("node")
def test_a_grader_in_another_language_scores_the_whole_and_a_part(traces):
    for trace in traces("graded").values():
        scored = [(reward.scope, reward.target, reward.value) for reward in trace.rewards]
        assert scored == [("rollout", None, 1.0), ("agent", "draft", 1.0)]


def test_a_harness_that_grades_itself_puts_its_score_in_the_output(traces):
    command = "lightning-core run --tasks tasks.jsonl --reward rewards.py:own_score --name own -- "
    for trace in traces("own", command + "echo '{\"score\": 0.25}'").values():
        assert rewards(trace) == [0.25]


@needs_shell
@pytest.mark.usefixtures("node")
def test_a_harness_with_a_loop_of_its_own_needs_no_worker(shell, page, serve):
    with serve() as server:
        shell("bash harness.sh", SERVER=server.url, TOKEN=server.admin_token)
    trace = Trace.from_json((page / "trace.json").read_bytes())
    assert trace.output == "Paris"
    assert trace.rollout.status is RolloutStatus.SUCCEEDED
    assert rewards(trace) == [1.0]
    assert [call.node for call in trace.calls] == ["draft", "check"]


LANDS = (
    "Albania", "Benin", "Chile", "Denmark", "Eritrea", "Finland", "Gabon", "Haiti", "India", "Jordan",
    "Kenya", "Latvia", "Malta", "Nepal", "Oman", "Poland", "Qatar", "Rwanda", "Senegal", "Togo",
)  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("node")
def test_a_node_agent_is_tuned_as_it_stands(page, shell, model):
    capitals = {land: land[::-1].title() for land in LANDS}

    def answer(request):
        if request.method == "GET":
            return None
        *shown, last = request.messages
        found = [pair for pair in capitals.items() if any(name in str(last) for name in pair)]
        ((land, capital),) = found
        if "What is" in str(last):
            return Text(f"It is {capital}, I think.")
        return Text(capital if shown or land < "F" else "Which name?")

    model.respond(answer)
    tasks = [
        {"id": land, "input": f"What is the capital of {land}?", "expected": capital}
        for land, capital in capitals.items()
    ]
    for name, part in (("train", tasks[::2]), ("val", tasks[1::2])):
        (page / f"{name}.jsonl").write_text("".join(json.dumps(task) + "\n" for task in part))
    (command,) = re.findall(r"lightning-core optimize .* --backend prompt -- node .*", PAGE)[-1:]
    options = "--budget '80 rollouts' --set sizes=1 --set draws=1 --name tuned"
    said = shell(command.replace(" -- ", f" {options} -- "))
    assert "validation: 0.200 before, 1.000 after" in said
    tuned = Strategy.load(page / "runs/tuned/strategy.json").prompt_templates
    assert {template.label: template.original for template in tuned.values()} == {
        "draft": "{input}",
        "check": "Repeat the name alone: {alone}",
    }
    ((question, shown),) = tuned["check.user"].demonstrations
    assert question.content == f"Repeat the name alone: It is {shown.content}, I think."


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("node")
def test_the_model_of_a_node_agent_is_trained(page, shell, tiny_model):
    (page / "length.py").write_text(
        "def reward(task, trace):\n    return len(trace.output['answer'])\n"
    )
    shutil.copy(page / "tasks.jsonl", page / "train.jsonl")
    shutil.copy(page / "tasks.jsonl", page / "val.jsonl")
    (command,) = re.findall(r"lightning-core optimize .* --backend local .*", PAGE)
    command = command.replace("--reward contains", "--reward length.py:reward")
    command = command.replace("smollm2", str(tiny_model))
    options = "--steps 1 --batch-size 2 --group-size 2 --max-tokens 6 --set threads=1 --name learnt"
    shell(command.replace(" -- ", f" {options} -- "), OMP_NUM_THREADS="1")
    assert (page / "runs/learnt/artifact/policy.pt").is_file()
    learnt = shell("lightning-core samples learnt").splitlines()
    assert [line for line in learnt if "france:step-" in line]
