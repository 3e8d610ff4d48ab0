"""What trains the agent at scale: the converted data, and the run files, taken as far as a machine without a GPU goes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_core as lc
from lightning_core.cli import main, optimize
from lightning_core.optimization import OptimizeConfig
from lightning_core.runs import RunConfig
from lightning_core.sampling import SamplingPolicy

verl = pytest.importorskip("lightning_verl.config", reason="its keys are what the files make")
plan = pytest.importorskip("lightning_verl.plan", reason="its plan is what the files make")

FOLDER = Path(__file__).parents[1]
SPIDER = Path(__file__).parents[4] / "shared" / "data" / "spider"
FILES = sorted(path.name for path in FOLDER.glob("train_verl*.toml"))
COMPOSE = """
import json, sys
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from lightning_verl.trainer import private
found = {}
for name, overrides in json.load(sys.stdin).items():
    with initialize_config_dir(config_dir=private.config_folder(), version_base=None):
        config = compose(config_name="ppo_trainer", overrides=overrides)
    validate_config(config, need_reference_policy(config), need_critic(config))
    found[name] = {key: OmegaConf.select(config, key) for key in sys.argv[1:]}
print("\\n" + json.dumps(found))
"""


class Asked(Exception):
    """What a run file asks of `lightning_core.optimize`."""


def asked_by(name, *words):
    """What `lightning-core optimize FILE` asks for; nothing is started."""

    async def told(agent, tasks, config, **options):
        raise Asked({"agent": agent, "tasks": tasks, "config": config, **options})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimize, "optimize", told)
        # By its name: to load it would leave its module behind, and other examples have an `agent` too.
        patch.setattr(optimize, "reward_of", lambda spec: spec)
        with pytest.raises(Asked) as asked:
            main(["optimize", str(FOLDER / name), *words])
    return asked.value.args[0]


def overrides_of(name):
    """What verl is told by a file."""
    asked = asked_by(name)
    config = RunConfig(
        name="run", agent=asked["agent"], created_at=0.0, model=asked["model"], optimize=asked["config"],
        sampling=SamplingPolicy(temperature=asked["temperature"], max_tokens=asked["max_tokens"]),
        validation=SamplingPolicy(temperature=asked["val_temperature"], max_tokens=asked["max_tokens"]),
    )  # fmt: skip
    here = Path("/run")
    return verl.overrides(
        plan.plan_of(config), config, here, train=here / "train.jsonl", val=here / "val.jsonl",
        validates=asked["val"] is not None,
    )  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_asks_for_this_agent_on_data_beside_it(example, name):
    asked = asked_by(name)
    assert asked["agent"] == str(FOLDER / "agent.py:graph")
    assert Path(asked["tasks"]).parent in {FOLDER / "data", FOLDER / "data/spider"}
    module = "shaped_reward" if name == "train_verl_cpu.toml" else "agent"
    assert asked["reward"] == str(FOLDER / f"{module}.py:score")
    assert callable(getattr(example, module).score)
    config = asked["config"]
    assert isinstance(config, OptimizeConfig)
    assert (config.backend, config.algorithm) == ("verl", "grpo")
    nodes = set(example.agent.graph.get_graph().nodes)
    assert set(config.train_agents.split("|")) < nodes


@pytest.mark.parametrize("name", FILES)
def test_a_files_keys_are_what_verl_is_told(name):
    told = dict(each.lstrip("+").split("=", 1) for each in overrides_of(name))
    expected = asked_by(name)["config"].options
    assert {key: told[key] for key in expected if "." in key} == {
        key: value for key, value in expected.items() if "." in key
    }
    gpus = {"train_verl.toml": "1", "train_verl_8x80gb.toml": "8", "train_verl_cpu.toml": "1"}
    assert told["trainer.n_gpus_per_node"] == gpus[name]
    assert ("trainer.device" in told) == (name == "train_verl_cpu.toml")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_verl_takes_each_file():
    python = os.environ.get("LIGHTNING_CORE_VERL_PYTHON")
    if not python:
        pytest.skip(
            "`LIGHTNING_CORE_VERL_PYTHON` names no verl environment; `make verl-env` makes one"
        )
    from lightning_verl import environment

    keys = ["actor_rollout_ref.actor.optim.lr", "actor_rollout_ref.rollout.max_model_len"]
    done = subprocess.run(
        [python, "-c", COMPOSE, *keys], input=json.dumps({name: overrides_of(name) for name in FILES}),
        capture_output=True, text=True, timeout=500, env=environment.environ(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    lengths = {"train_verl.toml": 8192, "train_verl_8x80gb.toml": 8192, "train_verl_cpu.toml": 4096}
    assert found == {
        name: dict(zip(keys, (1e-6, length), strict=True)) for name, length in lengths.items()
    }


@pytest.fixture
def convert(example, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import convert_dataset

    yield convert_dataset.convert
    sys.modules.pop("convert_dataset")


@pytest.fixture
def spider(tmp_path, database):
    """A small folder as Spider itself is laid out: two lists, and items without an id."""
    folder = tmp_path / "spider"
    (folder / "database/t").mkdir(parents=True)
    shutil.move(database([(1,), (2,)]), folder / "database/t/t.sqlite")
    queries = ("SELECT c0 FROM t", "SELECT c0 FROM t WHERE 0", "SELECT nothing FROM t")
    items = [{"db_id": "t", "question": f"{n}?", "query": query} for n, query in enumerate(queries)]
    (folder / "train_spider.json").write_text(json.dumps(items))
    (folder / "dev.json").write_text(json.dumps(items[:1]))
    return folder


def test_a_spider_folder_becomes_tasks(convert, spider, tmp_path, capsys):
    convert(spider, tmp_path / "out")
    train = lc.load_tasks(tmp_path / "out/train.parquet")
    assert train == [
        lc.Task(
            id="train_spider-0001",
            input={"question": "0?", "database": str(spider / "database/t/t.sqlite")},
            expected={"query": "SELECT c0 FROM t"},
            metadata={"schema": "t"},
        )
    ]
    assert [task.split for task in lc.load_tasks(tmp_path / "out/val.parquet")] == ["val"]
    assert "train: 2 left out; first train_spider-0002: its gold query" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("database", "`database`, which holds NAME/NAME.sqlite, is missing"),
        ("database/t/t.sqlite", "its database `.*t.sqlite` does not exist"),
        ("train_spider.json", "train.jsonl` does not exist; .*or `train_spider.json`"),
        ("dev.json", "dev.jsonl` does not exist"),
    ],
)
def test_what_a_folder_lacks_is_said_and_nothing_is_written(convert, spider, tmp_path, missing, says):  # fmt: skip
    path = spider / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ValueError, match=says):
        convert(spider, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_without_any_fit_task_is_refused(convert, spider, tmp_path):
    (spider / "dev.json").write_text((spider / "train_spider.json").read_text().replace("SELECT c0 FROM t\"", "x\""))  # fmt: skip
    with pytest.raises(ValueError, match="val: no task is left; first dev-0001"):
        convert(spider, tmp_path / "out")


@pytest.mark.slow
def test_all_of_spider_is_converted(convert, tmp_path):
    if not SPIDER.exists():
        pytest.skip(f"no Spider data: {SPIDER} is absent")
    found = convert(SPIDER, tmp_path)
    for split, tasks in found.items():
        assert len(tasks) > 400
        assert lc.load_tasks(tmp_path / f"{split}.parquet") == tasks


def test_the_script_converts_and_hands_its_arguments_on(spider, tmp_path):
    commands = tmp_path / "bin"
    commands.mkdir()
    # A virtual environment's Python knows its packages by its own place, so no link will do.
    programs = {"python": f'exec {sys.executable} "$@"', "lightning-core": 'printf "%s\\n" "$@"'}
    for name, line in programs.items():
        (commands / name).write_text(f"#!/bin/sh\n{line}\n")
        (commands / name).chmod(0o755)
    script = tmp_path / "example"
    shutil.copytree(FOLDER, script, ignore=shutil.ignore_patterns("data", "runs", "tests"))
    env = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [script / "train.sh", spider, "run.toml", "--set", "a=b c"],
        cwd=tmp_path, capture_output=True, text=True, env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-4:] == ["optimize", "run.toml", "--set", "a=b c"]
    assert (script / "data/spider/train.parquet").is_file()
    bad = subprocess.run([script / "train.sh"], capture_output=True, text=True, env=env)
    assert bad.returncode != 0
    assert "usage: train.sh SPIDER_FOLDER RUN.toml" in bad.stderr
