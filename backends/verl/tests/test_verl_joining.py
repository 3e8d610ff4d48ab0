"""Where verl is joined: in the verl environment, without Ray or vLLM being started."""

import subprocess
import textwrap

import pytest

from lightning_verl import environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def in_verl(verl_python):
    def run(code, **variables):
        return subprocess.run(
            [str(verl_python), "-c", textwrap.dedent(code)],
            capture_output=True, text=True, timeout=300,
            env=environment.environ({"OMP_NUM_THREADS": "1", **variables}),
        )  # fmt: skip

    return run


CHECKED = """
    import importlib
    from lightning_verl.trainer import private
    private.check()
    for owner, name in (
        ("verl.trainer.main_ppo", "run_ppo"),
        ("verl.trainer.ppo.v1.trainer_base.PPOTrainer", "on_sample_end"),
        ("verl.trainer.ppo.v1.trainer_base.PPOTrainer", "_compute_advantage"),
        ("verl.trainer.ppo.v1.replay_buffer.ReplayBuffer", "_wait_for_next_poll"),
        ("verl.workers.rollout.llm_server.LLMServerManager", "get_addresses"),
        ("verl.trainer.main_ppo.TaskRunnerV1.__ray_metadata__", "modified_class"),
    ):
        place, here = owner.split("."), None
        for length in range(len(place), 0, -1):
            try:
                here = importlib.import_module(".".join(place[:length]))
                break
            except ImportError:
                pass
        for attribute in place[length:]:
            here = getattr(here, attribute)
        kept = getattr(here, name)
        bases = [each for each in getattr(here, "__mro__", [here]) if name in vars(each)]
        saved = [(each, vars(each)[name]) for each in bases]
        for each, _ in saved:
            delattr(each, name)
        try:
            private.check()
            print("NOT SEEN", name)
        except private.ChangedError as error:
            print(name in str(error), error)
        for each, value in saved:
            setattr(each, name, value)
    private.check()
    print("whole again")
    private._SET["verl.workers.rollout.llm_server", "LLMServerManager"] = ("server_hands",)
    try:
        private.check()
        print("NOT SEEN server_hands")
    except private.ChangedError as error:
        print("server_hands" in str(error), error)
"""


def test_a_name_that_verl_has_changed_is_named(in_verl):
    done = in_verl(CHECKED)
    lines = [
        line for line in done.stdout.splitlines() if line.startswith(("True ", "False ", "NOT"))
    ]
    assert len(lines) == 7, done.stderr[-2000:]
    assert all(line.startswith("True ") for line in lines), lines
    assert "whole again" in done.stdout


CONFIGURED = """
    import json, sys
    from pathlib import Path
    from lightning_core.errors import LightningError
    from lightning_core.optimization import OptimizeConfig
    from lightning_core.runs import RunConfig
    from lightning_core.sampling import SamplingPolicy
    from lightning_verl.config import overrides
    from lightning_verl.plan import plan_of
    from lightning_verl.job import Job
    from lightning_verl.trainer.__main__ import _config
    def config(options):
        asked = OptimizeConfig(backend="verl", steps=3, batch_size=4, group_size=2, options=options)
        run = RunConfig(name="r", agent="a", created_at=0.0, model="some/model",
                        sampling=SamplingPolicy(max_tokens=16), optimize=asked)
        folder = Path("/a folder, it's=odd")
        given = overrides(plan_of(run), run, folder, train=folder / "t", val=folder / "v", validates=True)
        return _config(Job(run="r", url="", token="", overrides=given, train=run.sampling, val=run.validation,
                           timeout=1.0, max_attempts=1, consumed="", learning=plan_of(run).learning))
    for options in ({}, {"platform": "cpu"}, {"trainer.n_gpus_per_node": "8", "actor_rollout_ref.actor.optim.lr": "1e-5"}):
        made = config(options)
        print("MADE", json.dumps([made.data.train_files, made.actor_rollout_ref.rollout.n, made.trainer.n_gpus_per_node,
                                  made.actor_rollout_ref.actor.optim.lr, made.trainer.device]))
    for options in ({"trainer.nosuchkey": "1"}, {"trainer.n_gpus_per_node": "8", "trainer.nnodes": "["}):
        try:
            config(options)
        except LightningError as error:
            print("REFUSED", json.dumps(str(error)))
"""


def test_verl_takes_the_configuration_and_names_a_key_that_it_does_not_have(in_verl):
    done = in_verl(CONFIGURED)
    made = [line for line in done.stdout.splitlines() if line.startswith("MADE")]
    assert made == [
        'MADE ["/a folder, it\'s=odd/t", 2, 1, 1e-06, "cuda"]',
        'MADE ["/a folder, it\'s=odd/t", 2, 1, 1e-06, "cpu"]',
        'MADE ["/a folder, it\'s=odd/t", 2, 8, 1e-05, "cuda"]',
    ], done.stderr[-3000:]
    refused = [line for line in done.stdout.splitlines() if line.startswith("REFUSED")]
    assert len(refused) == 2
    assert "nosuchkey" in refused[0]
    assert "--set +KEY=VALUE" in refused[0]


def test_the_platform_takes_part_only_where_it_is_asked_for(in_verl):
    code = "from verl.plugin.platform import get_platform; print(get_platform().device_name)"
    asked = in_verl(code, VERL_PLATFORM="lightning_cpu")
    assert asked.stdout.split()[-1] == "cpu", asked.stderr[-2000:]
    assert in_verl(code).stdout.split()[-1] != "cpu"
