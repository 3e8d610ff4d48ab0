"""The breadth of verl's engine, on this machine's processors: two runs that have between them a critic, FSDP1, a
reference policy, offload, two workers and LoRA; each goes on from its checkpoint.

Needs the verl environment (`make verl-env`), named by `LIGHTNING_CORE_VERL_PYTHON`; takes some ten minutes.
"""

import json
import subprocess
import sys
from collections import Counter, defaultdict

import pytest

from lightning_core.cli.reading import read_traces
from lightning_core.folder import RunFolder
from lightning_core.rollout import Mode
from lightning_verl import environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

STEPS = 2
"""Of the first part of a run; it goes on for one more."""
OFFLOAD = ("param_offload=true", "optimizer_offload=true")
CRITIC = [
    "actor_rollout_ref.actor.strategy=fsdp",
    "critic.strategy=fsdp",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "critic.optim.lr=1e-3",
    "actor_rollout_ref.actor.use_kl_loss=true",
    "algorithm.use_kl_in_reward=true",
    *(f"{engine}.{key}" for engine in ("actor_rollout_ref.actor.fsdp_config", "critic.fsdp") for key in OFFLOAD),
]  # fmt: skip
WORKERS = [
    "trainer.n_gpus_per_node=2",
    "actor_rollout_ref.model.lora_rank=8",
    "actor_rollout_ref.model.lora_alpha=16",
    "actor_rollout_ref.model.lora.merge=true",
    "actor_rollout_ref.actor.optim.lr=1e-2",
    "actor_rollout_ref.actor.use_kl_loss=true",
    *(f"actor_rollout_ref.actor.fsdp_config.{key}" for key in OFFLOAD),
]
UPDATES = """
import json, sys, torch
def updates(path):
    state = torch.load(path, weights_only=False)["state"]
    # Weights that LoRA leaves alone have no steps.
    return sorted({int(each["step"]) for each in state.values() if "step" in each})
print(json.dumps([updates(path) for path in sys.argv[1:]]))
"""
COMPARED = """
import json, sys
from transformers import AutoModelForCausalLM
first, last = (AutoModelForCausalLM.from_pretrained(name).float().state_dict() for name in sys.argv[1:])
assert set(first) == set(last), set(first) ^ set(last)
print(json.dumps({name: (last[name] - first[name]).abs().mean().item() for name in first}))
"""
BITS_16 = 2e-3
"""More than probabilities part by where weights are rounded to 16 bits."""


@pytest.fixture(scope="module")
def critic(optimize_by_verl):
    """PPO with a critic on FSDP1: weights and optimisers are offloaded, a reference policy is kept near."""
    return _goes_on(optimize_by_verl, "critic", "ppo", CRITIC)


@pytest.fixture(scope="module")
def workers(optimize_by_verl):
    """GRPO on two workers with FSDP2: LoRA, offloaded, and two replicas of vLLM."""
    return _goes_on(optimize_by_verl, "workers", "grpo", WORKERS)


@pytest.fixture(params=["critic", "workers"])
def run(request):
    return request.getfixturevalue(request.param)


def _goes_on(optimize_by_verl, name, algorithm, given):
    """Two steps, then one more from the checkpoint of the second; the run's folder."""
    optimize_by_verl(name, given, steps=STEPS, algorithm=algorithm)
    return optimize_by_verl(name, given, steps=STEPS + 1, algorithm=algorithm, resume=True).folder


def _checkpoint(folder, step):
    return folder / f"verl/checkpoints/global_step_{step}"


def _steps(folder):
    """The lines of the steps."""
    return [line for line in RunFolder(folder).lines() if "update/loss" in line]


def test_every_step_learns(run):
    steps = _steps(run)
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert all(line["update/grad_norm"] > 0 for line in steps)
    assert all(line["rollouts/scored"] == 4 for line in steps)


def test_it_goes_on_with_the_weights_and_optimisers_of_its_checkpoint(run, verl_python):
    """An optimiser that begins anew has made as many updates as after the first step."""
    files = {
        step: sorted(_checkpoint(run, step).glob("*/optim_*.pt")) for step in range(1, STEPS + 2)
    }
    names = [[f"{file.parent.name}/{file.name}" for file in each] for each in files.values()]
    assert names[0]
    assert names == [names[0]] * (STEPS + 1)
    done = subprocess.run(
        [verl_python, "-c", UPDATES, *(file for each in files.values() for file in each)],
        capture_output=True, text=True, timeout=300, env=environment.environ(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    updates = json.loads(done.stdout)
    assert all(len(each) == 1 for each in updates)
    counts = [updates[n : n + len(names[0])] for n in range(0, len(updates), len(names[0]))]
    for first, second, third in zip(*counts, strict=True):
        assert first < second < third


def test_vllm_and_the_actor_agree_on_fsdp1(critic):
    parted = [line["verl/training/rollout_probs_diff_mean"] for line in _steps(critic)]
    assert max(parted) < 1e-5, parted


def test_the_actor_and_its_critic_are_on_fsdp1_and_both_are_kept(critic):
    for step in range(1, STEPS + 2):
        for model in ("actor", "critic"):
            said = json.loads((_checkpoint(critic, step) / model / "fsdp_config.json").read_bytes())
            assert said == {"FSDP_version": 1, "world_size": 1}


def test_the_critic_learns(critic):
    steps = _steps(critic)
    assert all(line["update/value_loss"] > 0 for line in steps)
    assert all(line["verl/critic/grad_norm"] > 0 for line in steps)


def test_the_policy_moves_away_from_its_reference_and_is_away_when_it_goes_on(critic):
    """A run that began anew would be its own reference."""
    far = [line["verl/actor/kl_loss"] for line in _steps(critic)]
    assert far[0] == pytest.approx(0, abs=1e-6)
    assert min(far[1:]) > 1e-4, far
    # The reward is lowered by an estimate that may have either sign.
    lowered = [abs(line["verl/actor/reward_kl_penalty"]) for line in _steps(critic)]
    assert lowered[0] == pytest.approx(0, abs=1e-6)
    assert min(lowered[1:]) > 1e-6, lowered


def test_two_workers_share_the_weights(workers):
    for step in range(1, STEPS + 2):
        actor = _checkpoint(workers, step) / "actor"
        assert json.loads((actor / "fsdp_config.json").read_bytes()) == {
            "FSDP_version": 2,
            "world_size": 2,
        }
        assert len(list(actor.glob("model_world_size_2_rank_*.pt"))) == 2


def test_each_worker_has_a_replica_that_answers(workers):
    answered = defaultdict(Counter)
    for trace in read_traces(str(workers)).traces:
        if trace.rollout.mode is Mode.TRAIN:
            answered[trace.rollout.metadata["step"]].update(call.replica for call in trace.calls)
    assert set(answered) == {1, 2, 3}
    # A rollout's replica is a matter of chance: all four of a step may have the same. The third step has other addresses.
    assert len(answered[1] | answered[2]) == 2, answered


def test_vllm_has_the_adapter_that_the_workers_learn(workers):
    """verl merges it in 16 bits. Without it they part by far more."""
    parted = [line["verl/training/rollout_probs_diff_mean"] for line in _steps(workers)]
    assert max(parted) < BITS_16, parted


def test_with_lora_the_reference_is_the_model_beneath_the_adapter(workers):
    """There is no other. A run that began anew would be at it."""
    far = [line["verl/actor/kl_loss"] for line in _steps(workers)]
    assert far[0] == pytest.approx(0, abs=1e-6)
    assert min(far[1:]) > 1e-4, far


def test_what_lora_came_to_is_exported_merged(workers, verl_python):
    output = workers / "hf"
    done = subprocess.run(
        [sys.executable, "-m", "lightning_core.cli", "export", "--run", workers.name, "--format", "hf",
         "--output", output],
        cwd=workers.parents[1], capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    compared = subprocess.run(
        [verl_python, "-c", COMPARED, workers.parents[1] / "tiny", output],
        capture_output=True, text=True, timeout=300, env=environment.environ(),
    )  # fmt: skip
    assert compared.returncode == 0, compared.stderr
    changed = json.loads(compared.stdout)
    assert changed["model.layers.0.self_attn.q_proj.weight"] > 1e-3
    assert changed["model.embed_tokens.weight"] == pytest.approx(0, abs=1e-3)
