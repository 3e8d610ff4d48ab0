"""Run files: the same as the command line; and what is wrong with one is said by file and key."""

import contextlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.backend import Backend
from lightning_core.cli import main, optimize, runfile

FILES = {"agent": "agent.py:graph", "tasks": "train.jsonl", "reward": "exact"}


class Plain(Backend):
    """A backend that takes values as most do."""

    name = "plain"

    async def optimize(self, run):
        raise NotImplementedError


@contextlib.contextmanager
def listening():
    """A function that runs `lightning-core optimize`, and gives what it asks of `lightning_core.optimize`."""

    class Heard(Exception):
        """Ends the command once it has asked."""

    async def told(agent, tasks, config, **options):
        options.pop("command_line")
        raise Heard({"agent": agent, "tasks": tasks, "config": config, **options})

    def hear(*words):
        with pytest.raises(Heard) as heard:
            main(["optimize", *map(str, words)])
        return heard.value.args[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimize, "optimize", told)
        # By its name: to load it would leave its module behind.
        patch.setattr(optimize, "reward_of", lambda spec: spec)
        patch.setattr(runfile, "find_backend", lambda name, plugins: Plain())
        yield hear


@pytest.fixture
def hear():
    with listening() as heard:
        yield heard


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes `run.toml` into the current folder: the keys that are always needed, and a text."""
    monkeypatch.chdir(tmp_path)

    def write(text="", *, without=(), where="run.toml"):
        lines = [f"{key} = {toml(value)}\n" for key, value in FILES.items() if key not in without]
        (tmp_path / where).parent.mkdir(exist_ok=True)
        (tmp_path / where).write_text("".join(lines) + text, encoding="utf-8")
        return where

    return write


@pytest.fixture
def refused(write, capsys):
    """What the command says of a file; it must be one message, which names the file."""

    def refused(text, *words, without=()):
        assert main(["optimize", write(text, without=without), *words]) == 1
        said = capsys.readouterr().err
        assert said.startswith("error: run file 'run.toml'")
        return said

    return refused


def toml(value):
    """A value as TOML writes it. JSON's strings are TOML's, but for the sign 127."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(key)} = {toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
worded = text.filter(lambda it: not it.startswith("-"))
name = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)
key = st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters="._+-"), min_size=1, max_size=9)  # fmt: skip
count = st.integers(1, 10**6)
number = st.floats(allow_nan=False, allow_infinity=False)
few = st.integers(0, 9)
OPTIONS = {
    "model": name, "algorithm": worded, "steps": count, "batch_size": count, "group_size": count,
    "train_agents": worded, "credit": worded, "group_by": st.sampled_from(["task", "task_agent"]),
    "aggregation": st.sampled_from(["token", "sequence", "rollout"]), "sampler": worded, "quorum": number,
    "refill": few, "async": st.booleans(), "max_staleness": few, "allow_retokenized": st.booleans(),
    "temperature": number, "val_temperature": number, "max_tokens": count, "val_every": few, "val_repeats": count,
    "val_by": worded, "save_every": count, "seed": st.integers(), "concurrency": count, "timeout": number,
    "max_calls": count, "max_total_tokens": count, "isolate": st.booleans(), "workers": few, "name": worded,
    "resume": st.booleans(), "split": worded, "limit": count,
}  # fmt: skip


@given(
    values=st.fixed_dictionaries({}, optional=OPTIONS),
    backend=name,
    own=st.dictionaries(key, text, max_size=4),
    fields=st.dictionaries(key, text, max_size=2),
    drawn=st.data(),
)
@settings(max_examples=80, deadline=None)
def test_a_file_asks_for_what_the_command_line_asks_for(
    tmp_path_factory, values, backend, own, fields, drawn
):
    line = ["--backend", backend]
    line += [word for each in own.items() for word in ("--set", "=".join(each))]
    line += [word for each in fields.items() for word in ("--field", "=".join(each))]
    for option, value in values.items():
        flag = "--" + option.replace("_", "-")
        line += [flag] * value if isinstance(value, bool) else [flag, str(value)]

    def nested(dotted):
        """A key of verl's, say, whole or in tables; not both ways where one key is the beginning of another."""
        alone = not any(f"{a}.".startswith(f"{b}.") for o in own if o != dotted for a, b in ((o, dotted), (dotted, o)))  # fmt: skip
        parts = dotted.split(".") if alone and drawn.draw(st.booleans()) else [dotted]
        return ".".join(map(toml, parts))

    lines = [f"{k} = {toml(v)}" for k, v in ({**FILES, **values, "field": fields}).items()]
    lines += [f"[backend.{backend}]", *(f"{nested(k)} = {toml(v)}" for k, v in own.items())]
    file = tmp_path_factory.mktemp("run") / "run.toml"
    file.write_text("\n".join(lines), encoding="utf-8")
    given_alike = ("--tasks", FILES["tasks"], "--reward", FILES["reward"])
    with listening() as hear, contextlib.chdir(file.parent):
        assert hear("run.toml") == hear(FILES["agent"], *given_alike, *line)


def test_the_command_line_goes_before_the_file(hear, write):
    file = write(
        'steps = 3\nseed = 4\n[field]\ninput = "q"\nid = "n"\n[backend.plain]\nlr = 0.1\nrank = 8\n'
    )
    said = hear(file, "--steps", 9, "--set", "rank=2", "--field", "id=key")
    assert (said["config"].steps, said["config"].seed, said["config"].backend) == (9, 4, "plain")
    assert said["config"].options == {"lr": "0.1", "rank": "2"}
    assert said["fields"] == {"input": "q", "id": "key"}


def test_a_default_of_the_command_line_goes_before_nothing(hear, write):
    said = hear(write("group_size = 5\nmax_staleness = 2\nasync = true\n"))
    assert said["config"].group_size == 5
    assert (said["config"].asynchronous, said["config"].max_staleness) == (True, 2)


def test_values_of_the_backend_become_what_set_takes(hear, write):
    said = hear(
        write(
            '[backend.plain]\nflag = true\nlr = 1e-6\nnames = ["a", "b"]\n"+ray.init.address" = "h:1"\n'
            '[backend.plain.trainer]\nn = 8\nlog.to = "file"\n[backend.plain.empty]\n'
        )
    )
    assert said["config"].options == {
        "flag": "true",
        "lr": "1e-06",
        "names": "a,b",
        "+ray.init.address": "h:1",
        "trainer.n": "8",
        "trainer.log.to": "file",
    }


def test_a_table_names_the_backend_and_several_leave_the_choice_to_the_command_line(
    hear, write, refused
):
    two = "[backend.one]\na = 1\n[backend.two]\nb = 2\n"
    assert "`[backend.one]`, `[backend.two]`; say with `--backend`" in refused(two)
    said = hear(write(two), "--backend", "two")
    assert (said["config"].backend, said["config"].options) == ("two", {"b": "2"})
    said = hear(write(two), "--backend", "three")
    assert (said["config"].backend, said["config"].options) == ("three", {})
    assert hear(write('backend = "four"\n'))["config"].backend == "four"


def test_paths_count_from_the_files_folder(hear, write, tmp_path):
    (tmp_path / "sub/tiny").mkdir(parents=True)
    here = 'val = "../val.jsonl"\nreward = "judge.py:score"\nmodel = "tiny"\n'
    said = hear(write(here, without=("reward",), where="sub/run.toml"))
    assert (said["agent"], said["tasks"]) == ("sub/agent.py:graph", "sub/train.jsonl")
    assert (said["val"], said["model"]) == ("sub/../val.jsonl", "sub/tiny")
    assert said["reward"] == "sub/judge.py:score"


def test_what_is_no_path_is_left_as_it_is(hear, write, tmp_path):
    kept = (
        'agent = "package.module:graph"\ntasks = "/data/train.jsonl"\nmodel = "Organisation/Name"\n'
    )
    said = hear(write(kept, without=("agent", "tasks"), where="sub/run.toml"))
    assert (said["agent"], said["tasks"]) == ("package.module:graph", "/data/train.jsonl")
    assert (said["model"], said["reward"]) == ("Organisation/Name", "exact")


def test_an_agent_may_be_a_command(hear, write):
    file = write('command = ["node", "agent.js"]\n', without=("agent",))
    assert hear(file)["agent"] == ("node", "agent.js")
    assert hear(file, "--", "sh", "-c", "true")["agent"] == ("sh", "-c", "true")
    assert hear(write(), "--", "sh")["agent"] == ("sh",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("step = 3\n", "not known: `step` (did you mean `steps`?)"),
        ("batch-size = 3\n", "`batch-size` (did you mean `batch_size`?)"),
        ("asynchronous = true\n", "`asynchronous` (did you mean `async`?)"),
        ("set = 3\nzzzz = 1\n", "`set` (did you mean `[backend.NAME]`?), `zzzz`;"),
        ("help = true\n", "not known: `help`"),
        ('steps = "3"\n', "key `steps`: expected a whole number, but got '3'"),
        ("steps = 3.5\n", "key `steps`: expected a whole number, but got 3.5"),
        ("steps = true\n", "key `steps`: expected a whole number, but got True"),
        ("steps = 0\n", "key `steps`: 0 is not in the range x>=1"),
        ("temperature = true\n", "key `temperature`: expected a number, but got True"),
        ("async = 1\n", "key `async`: expected true or false, but got 1"),
        ("val = 1\n", "key `val`: expected text, but got 1"),
        ('group_by = "agent"\n', "key `group_by`: 'agent' is not one of 'task', 'task_agent'"),
        ("backend = 3\n", "key `backend`: expected text, but got 3"),
        ("backend = {}\n", "key `backend`: expected a name, or a table `[backend.NAME]`"),
        ("[backend]\nverl = 3\n", "key `backend.verl`: expected a table"),
        ("[backend.verl.a]\nb = 2026-01-01\n", "key `backend.verl.a.b`: expected text, a number"),
        ("[[backend.verl.a]]\nb = 1\n", "key `backend.verl.a`: expected text, a number"),
        ('[backend.verl]\n"a.b" = 1\na = { b = 2 }\n', "key `backend.verl.a.b`: is given twice"),
        ("field = 3\n", "key `field`: expected a table of texts"),
        ("[field]\ninput = 3\n", "key `field`: expected a table of texts"),
        ('command = ["a"]\n', "has both `agent` and `command`"),
        ("steps = \n", "is not TOML: Invalid value (at line 4"),
    ],
)
def test_what_is_wrong_is_said_by_file_and_key(refused, text, says):
    assert says in refused(text)


@pytest.mark.parametrize("command", ['"node agent.js"', "[]", "[1]"])
def test_a_command_is_a_list_of_words(refused, command):
    assert "key `command`: expected a list of words" in refused(
        f"command = {command}\n", without=("agent",)
    )


def test_a_file_without_an_agent_is_refused(refused):
    assert "expected a key `agent` or `command`" in refused("", without=("agent",))


def test_a_file_that_is_not_there_or_no_text(write, tmp_path, capsys):
    write()
    assert main(["optimize", "other.toml"]) == 1
    assert "run file 'other.toml': does not exist" in capsys.readouterr().err
    (tmp_path / "folder.toml").mkdir()
    assert main(["optimize", "folder.toml"]) == 1
    assert "is not a file" in capsys.readouterr().err
    (tmp_path / "run.toml").write_bytes(b"name = '\xff'")
    assert main(["optimize", "run.toml"]) == 1
    assert "is not TOML" in capsys.readouterr().err


def test_what_only_the_file_lacks_is_asked_for_as_ever(write, capsys):
    assert main(["optimize", write(without=("tasks",))]) == 2
    assert "--tasks" in capsys.readouterr().err
    assert main(["optimize", "missing.toml", "--help"]) == 0


def test_the_page_shows_a_file_that_is_taken(hear, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs/optimizing.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(re.search(r"```toml\n(.*?)```", page, re.S)[1])
    said = hear("run.toml")
    assert said["config"].options == {"learning_rate": "0.0003", "lora_targets": "q_proj,v_proj"}
    assert (said["fields"], said["config"].backend) == ({"input": "question"}, "local")
