"""verl's configuration from what was asked: what is set, what may be, what is refused and why."""

import json
import re
import subprocess
import sys

import msgspec
import pytest

from lightning_core.errors import UsageError
from lightning_core.learn.samplers import create_sampler
from lightning_core.optimization import OptimizeConfig
from lightning_core.plugins import installed
from lightning_core.rollout import Mode
from lightning_core.runs import RunConfig
from lightning_core.sampling import SamplingPolicy
from lightning_core.task import Task
from lightning_verl.config import overrides
from lightning_verl.dataset import drawn, write_rows
from lightning_verl.options import GROUPS, OWN, TAKEN, hydra_value
from lightning_verl.plan import plan_of


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def asked(model):
    def make(options=None, *, sampling=None, named=None, **changes):
        wanted = {"backend": "verl", "steps": 3, "batch_size": 4, "group_size": 2}
        return RunConfig(
            name="run", agent="a.py:a", created_at=0.0, model=named or str(model),
            sampling=sampling or SamplingPolicy(temperature=0.7, max_tokens=32),
            validation=SamplingPolicy(temperature=0.0, max_tokens=32),
            optimize=OptimizeConfig(options=options or {}, **wanted | changes),
        )  # fmt: skip

    return make


def settings(config, tmp_path, *, validates=False):
    given = overrides(
        plan_of(config), config, tmp_path,
        train=tmp_path / "train.jsonl", val=tmp_path / "val.jsonl", validates=validates,
    )  # fmt: skip
    return dict(each.lstrip("+").split("=", 1) for each in given)


def test_what_was_asked_of_the_run_is_what_verl_is_told(asked, tmp_path, model):
    keys = settings(asked(seed=5, save_every=2), tmp_path)
    assert keys["actor_rollout_ref.model.path"] == f"'{model}'"
    assert keys["trainer.total_training_steps"] == "3"
    assert keys["data.train_batch_size"] == "4"
    assert keys["actor_rollout_ref.rollout.n"] == "2"
    assert keys["actor_rollout_ref.rollout.temperature"] == "0.7"
    assert keys["data.max_response_length"] == "32"
    assert keys["actor_rollout_ref.rollout.seed"] == "5"
    assert keys["data.shuffle"] == "false"
    assert keys["trainer.save_freq"] == "2"
    assert keys["trainer.default_local_dir"] == f"'{tmp_path}/checkpoints'"


def test_validation_only_where_there_are_tasks_for_it(asked, tmp_path):
    without = settings(asked(), tmp_path)
    assert (without["trainer.val_before_train"], without["trainer.test_freq"]) == ("false", "-1")
    ends = settings(asked(), tmp_path, validates=True)
    assert (ends["trainer.val_before_train"], ends["trainer.test_freq"]) == ("true", "3")
    config = asked()
    again = overrides(
        plan_of(config),
        config,
        tmp_path,
        train=tmp_path,
        val=tmp_path,
        validates=True,
        resumes=True,
    )
    assert "++trainer.val_before_train=false" in again
    assert settings(asked(val_every=1), tmp_path, validates=True)["trainer.test_freq"] == "1"


def test_a_key_of_verls_own_goes_before_ours(asked, tmp_path):
    config = asked({"actor_rollout_ref.actor.optim.lr": "1e-5", "trainer.n_gpus_per_node": "8"})
    keys = settings(config, tmp_path)
    assert keys["actor_rollout_ref.actor.optim.lr"] == "1e-5"
    assert keys["trainer.n_gpus_per_node"] == "8"


@pytest.mark.parametrize(
    ("algorithm", "estimator", "loss"),
    [
        ("grpo", "'grpo'", "'vanilla'"),
        ("dr_grpo", "'grpo'", "'vanilla'"),
        ("rloo", "'grpo'", "'vanilla'"),
        ("reinforce_pp", "'grpo'", "'vanilla'"),
        ("gspo", "'grpo'", "'gspo'"),
        ("cispo", "'grpo'", "'cispo'"),
        ("ppo", "'gae'", "'vanilla'"),
    ],
)
def test_verl_is_told_of_the_loss_and_of_a_value_network(
    asked, tmp_path, model, algorithm, estimator, loss
):
    keys = settings(asked(algorithm=algorithm), tmp_path)
    assert keys["algorithm.adv_estimator"] == estimator
    assert keys["actor_rollout_ref.actor.policy_loss.loss_mode"] == loss
    # Every weight is in the advantages: verl's own mean is over tokens.
    assert keys["actor_rollout_ref.actor.loss_agg_mode"] == "'token-mean'"
    assert keys.get("critic.model.path") == (f"'{model}'" if algorithm == "ppo" else None)


def test_asynchronous_rollouts_are_bounded_in_age_and_waited_for(asked, tmp_path):
    keys = settings(asked(asynchronous=True, max_staleness=2), tmp_path)
    assert keys["trainer.v1.sampler.max_off_policy_threshold"] == "3"
    assert keys["trainer.v1.sampler.max_off_policy_strategy"] == "'wait'"
    assert keys["trainer.v1.sampler.custom_sampler.name"] == "'AsyncSampler'"
    assert "trainer.v1.sampler.max_off_policy_threshold" not in settings(asked(), tmp_path)


def test_vllm_has_devices_of_its_own_where_they_are_named(asked, tmp_path):
    given = {
        "actor_rollout_ref.rollout.nnodes": "1",
        "actor_rollout_ref.rollout.n_gpus_per_node": "3",
        "trainer.n_gpus_per_node": "2",
    }
    keys = settings(asked(given, asynchronous=True, max_staleness=1), tmp_path)
    assert keys["actor_rollout_ref.hybrid_engine"] == "false"
    assert keys["trainer.v1.separate_async.num_warmup_batches"] == "1"
    assert keys["actor_rollout_ref.rollout.checkpoint_engine.backend"] == "'nccl'"
    given["platform"] = "cpu"
    keys = settings(asked(given, asynchronous=True, max_staleness=1), tmp_path)
    assert keys["ray_kwargs.ray_init.num_gpus"] == "5"
    assert keys["actor_rollout_ref.rollout.checkpoint_engine.backend"] == "'lightning_gloo'"
    plain = settings(asked(asynchronous=True, max_staleness=1), tmp_path)
    assert "actor_rollout_ref.hybrid_engine" not in plain
    assert "trainer.v1.separate_async.num_warmup_batches" not in plain


def test_groups_are_replaced_one_by_one(asked, tmp_path):
    keys = settings(asked(refill=2), tmp_path)
    assert keys["data.gen_batch_size"] == "1"
    assert keys["trainer.v1.sampler.sampler_kwargs.refill"] == "2"
    assert "data.gen_batch_size" not in settings(asked(), tmp_path)


def test_lora_is_merged_into_the_weights_that_vllm_is_given(asked, tmp_path):
    merge = "actor_rollout_ref.model.lora.merge"
    assert merge not in settings(asked(), tmp_path)
    for rank in ("actor_rollout_ref.model.lora_rank", "+actor_rollout_ref.model.lora.rank"):
        assert settings(asked({rank: "8"}), tmp_path)[merge] == "true"


def test_sequences_are_not_shared_out_without_flash_attention(asked, tmp_path):
    """verl would compute other log-probabilities, without an error."""
    config = asked({"actor_rollout_ref.actor.ulysses_sequence_parallel_size": "2"})
    files = {"train": tmp_path / "t", "val": tmp_path / "v", "validates": False}
    assert overrides(plan_of(config), config, tmp_path, **files)
    with pytest.raises(UsageError, match="flash-attn"):
        overrides(plan_of(config), config, tmp_path, flash=False, **files)
    on_cpu = asked({"platform": "cpu", **config.optimize.options})
    with pytest.raises(UsageError, match="flash-attn"):
        overrides(plan_of(on_cpu), on_cpu, tmp_path, **files)


def test_without_flash_attention_torchs_own_is_asked_for(asked, tmp_path):
    config, name = asked(), "actor_rollout_ref.model.override_config.attn_implementation"
    files = {"train": tmp_path / "t", "val": tmp_path / "v", "validates": False}
    assert f"++{name}='sdpa'" in overrides(plan_of(config), config, tmp_path, flash=False, **files)
    assert name not in settings(config, tmp_path)


def test_the_longest_sample_is_what_one_pass_of_the_trainer_holds(asked):
    assert plan_of(asked()).learning.max_tokens == 16384
    given = {
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "5000",
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size": "2",
    }
    assert plan_of(asked(given)).learning.max_tokens == 10_000


def test_on_a_processor_the_platform_is_ours_and_else_nothing_of_it_is_there(asked, tmp_path):
    ours = settings(asked({"platform": "cpu"}), tmp_path)
    assert ours["trainer.device"] == "'cpu'"
    assert "lightning_verl" in str(ours)
    keys = settings(asked(), tmp_path)
    assert "trainer.device" not in keys
    assert not any("vllm_cpu" in value for value in keys.values())


def test_a_ray_of_our_own_listens_here_alone_and_one_that_is_named_is_joined(asked, tmp_path):
    address = "ray_kwargs.ray_init._node_ip_address"
    own = settings(asked(), tmp_path)
    assert own[address] == "'127.0.0.1'"
    # Else Ray would join whatever other one runs on this machine.
    assert own["ray_kwargs.ray_init.address"] == "'local'"
    joined = settings(asked({"+ray_kwargs.ray_init.address": "10.0.0.1:6379"}), tmp_path)
    assert address not in joined
    assert joined["ray_kwargs.ray_init.address"] == "10.0.0.1:6379"
    on_cpu = {"+ray_kwargs.ray_init.address": "10.0.0.1:6379", "platform": "cpu"}
    assert not any("ray_init.num_" in key for key in settings(asked(on_cpu), tmp_path))


@pytest.mark.parametrize("key", sorted(set(TAKEN) - {"algorithm.adv_estimator"}))
def test_what_the_run_says_already_is_refused_with_what_to_give_instead(asked, key):
    for prefix in ("", "+", "++"):
        with pytest.raises(UsageError, match=re.escape(TAKEN[key])):
            plan_of(asked({prefix + key: "1"}))


def test_the_algorithm_may_be_said_twice_where_both_agree(asked, tmp_path):
    keys = settings(asked({"algorithm.adv_estimator": "grpo"}), tmp_path)
    assert keys["algorithm.adv_estimator"] == "'grpo'"
    assert plan_of(asked({"algorithm.adv_estimator": "gae"}, algorithm="ppo"))
    for said in ("gae", "remax"):
        with pytest.raises(UsageError, match="--algorithm"):
            plan_of(asked({"algorithm.adv_estimator": said}))


@pytest.mark.parametrize("key", ["learning_rate", "trainer", "model.path", "pyhton"])
def test_an_unknown_key_lists_those_there_are(asked, key):
    with pytest.raises(UsageError) as refused:
        plan_of(asked({key: "1"}))
    assert all(f"`{name}`" in str(refused.value) for name in OWN)
    assert all(f"`{group}.`" in str(refused.value) for group in GROUPS)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"algorithm": "sft"}, "`grpo`, `dr_grpo`, .*`ppo`"),
        ({"group_size": 1}, "take 2 or more"),
        ({"credit": "luck"}, "no rule is named `luck`"),
        ({"options": {"actor_rollout_ref.model.lora.merge": "false"}}, "without the adapter"),
        ({"sampler": "success"}, "sampler: .*`shuffled` or `difficulty`"),
        ({"asynchronous": True, "max_staleness": 1, "refill": 1}, "refill: cannot be had"),
        ({"options": {"actor_rollout_ref.rollout.nnodes": "1"}}, "only with `--async`"),
        (
            {"options": {"actor_rollout_ref.rollout.agent.num_workers": "2"}, "refill": 1},
            "expected 1 with `--refill`",
        ),
        ({"options": {"actor_rollout_ref.hybrid_engine": "false"}}, "rollout.nnodes"),
        ({"options": {"algorithm.use_kl_in_reward": "true"}}, "use_kl_loss=true"),
        (
            {"options": {"actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "lots"}},
            "whole number",
        ),
        ({"options": {"platform": "tpu"}}, "`accelerator` or `cpu`"),
        ({"options": {"grading_timeout": "soon"}}, "positive number of seconds"),
        ({"options": {"trainer.n_gpus_per_node": "3"}}, "8 rollouts a step, which 3 devices"),
        ({"options": {"trainer.nnodes": "none"}}, "whole number"),
        ({"options": {"~trainer.logger": ""}}, "only set"),
        ({"sampling": SamplingPolicy(top_p=0.9)}, "leaves tokens out"),
        ({"named": "smollm2"}, "`ORGANISATION/NAME`"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(asked, changes, says):
    with pytest.raises(UsageError, match=says):
        plan_of(asked(**changes))


def test_a_folder_without_a_model_is_refused(asked, tmp_path):
    with pytest.raises(UsageError, match=r"no `config.json`"):
        plan_of(asked(named=str(tmp_path)))


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "null"),
        (True, "true"),
        (3, "3"),
        (1e-6, "1e-06"),
        (["file", "console"], "['file','console']"),
        ("/a b,c=d", "'/a b,c=d'"),
        ("it's", r"'it\'s'"),
        ("end\\", "'end\\\\'"),
    ],
)
def test_values_are_written_in_hydras_grammar(value, written):
    assert hydra_value(value) == written


def test_a_value_that_hydra_would_replace_is_refused():
    with pytest.raises(UsageError, match="would replace"):
        hydra_value("/data/${USER}")


def rows(path):
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def test_rows_name_tasks_and_hold_nothing_that_only_the_grader_may_see(tmp_path):
    tasks = [
        Task(id=f"t{n}", input="q", expected="the secret", metadata={"kind": "ab"[n % 2]})
        for n in range(3)
    ]
    write_rows(tmp_path / "a.jsonl", tasks, Mode.VAL, kind="kind")
    written = rows(tmp_path / "a.jsonl")
    assert [row["extra_info"] for row in written] == [
        {"index": n, "task": f"t{n}", "mode": "val"} for n in range(3)
    ]
    assert [row["data_source"] for row in written] == ["a", "b", "a"]
    assert "secret" not in (tmp_path / "a.jsonl").read_text()


def test_each_step_is_drawn_by_the_runs_sampler_and_each_row_has_an_index_of_its_own(tmp_path):
    tasks = [Task(id=f"t{n}", input="q", metadata={"level": 3 - n}) for n in range(3)]
    asked = OptimizeConfig(
        backend="verl", steps=2, batch_size=4, refill=1, sampler="difficulty:level"
    )
    sampler = create_sampler(asked.sampler, tasks, asked.seed, installed().samplers())
    write_rows(tmp_path / "a.jsonl", drawn(asked, sampler), Mode.TRAIN)
    again = create_sampler(asked.sampler, tasks, asked.seed, installed().samplers())
    found = [
        (row["extra_info"]["task"], row["extra_info"]["index"])
        for row in rows(tmp_path / "a.jsonl")
    ]
    expected = [task.id for _ in range(4) for task in again.draw(4)]
    assert [task for task, _ in found] == expected
    assert expected[0] == "t2", "the easiest first"
    assert [index for _, index in found] == list(range(2 * 2 * 4))


def test_the_light_half_imports_nothing_heavy():
    heavy = ["torch", "verl", "ray", "vllm", "transformers", "hydra", "omegaconf", "numpy"]
    code = (
        "import sys, json, lightning_verl.backend, lightning_verl.process;"
        f"print(json.dumps(sorted(set({heavy}) & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout) == [], done.stderr
