"""Checkpoints: the next step after them is the one that would have come, and they are whole or not there."""

import json
import os
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM

from lightning_core.errors import StoreError, UsageError
from lightning_local.train import LocalOptions, Trainer

PROMPT = [5, 6, 7, 8]
SHAPES = [
    {"algorithm": "grpo", "lora_rank": 4},
    {"algorithm": "grpo", "lora_rank": 0, "kl_coef": 0.1},
    {"algorithm": "ppo", "lora_rank": 4},
    {"algorithm": "ppo", "lora_rank": 0},
    {"algorithm": "sft", "lora_rank": 4},
]


def make(folder, **options):
    settings = {"learning_rate": 1e-3, "epochs": 2, "minibatches": 2, "warmup": 5, **options}
    return Trainer(str(folder), LocalOptions(**settings), temperature=0.9)


@pytest.fixture
def step(make_sample):
    """`step(n)`: the samples of step `n`."""

    def made(n):
        return [
            make_sample(
                PROMPT, [30 + n, 40 + i, 50], advantage=1.0 - i % 3, credit=float(i % 2), weight=1 / 18,
                name=f"{n}-{i}",
            )
            for i in range(6)
        ]  # fmt: skip

    return made


def state(trainer):
    found = [p.detach().clone() for p in trainer.policy.parameters]
    return found + ([p.detach().clone() for p in trainer.value.trained] if trainer.value else [])


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s['algorithm']}-{s['lora_rank']}")
def test_a_resumed_run_takes_the_step_that_an_unbroken_one_takes(folders, tmp_path, step, shape):
    unbroken = make(folders["llama"], **shape)
    for n in range(3):
        unbroken.update(step(n), version=n)
    unbroken.save(tmp_path / "checkpoint")
    want = unbroken.update(step(3), version=3)

    resumed = make(folders["llama"], **shape)
    resumed.restore(tmp_path / "checkpoint")
    assert (resumed.updates, resumed.optimizer_steps, resumed.version) == (3, 12, 2)
    found = resumed.update(step(3), version=3)
    assert found.loss == want.loss
    assert found.learning_rate == want.learning_rate
    for ours, theirs in zip(state(resumed), state(unbroken), strict=True):
        assert torch.equal(ours, theirs)


def test_saving_changes_nothing_and_a_step_differs_without_the_optimisers_state(
    folders, tmp_path, step
):
    one, other = make(folders["llama"]), make(folders["llama"])
    for n in range(2):
        one.update(step(n), version=n)
        one.save(tmp_path / "checkpoint")
        other.update(step(n), version=n)
    assert all(torch.equal(a, b) for a, b in zip(state(one), state(other), strict=True))
    fresh = make(folders["llama"])
    fresh.policy.read(tmp_path / "checkpoint" / "weights")
    fresh.update(step(2), version=2)
    one.update(step(2), version=2)
    assert not all(torch.equal(a, b) for a, b in zip(state(one), state(fresh), strict=True))


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_weights_of_lora_are_a_peft_adapter(folders, tmp_path, step):
    import peft

    trainer = make(folders["llama"], lora_rank=4)
    trainer.update(step(0), version=0)
    trainer.weights(tmp_path / "weights")
    assert {path.name for path in (tmp_path / "weights").iterdir()} == {
        "adapter_model.safetensors",
        "adapter_config.json",
    }
    base = AutoModelForCausalLM.from_pretrained(folders["llama"])
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "weights")
    ids = torch.tensor([[5, 6, 7, 30]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, trainer.policy.network(ids).logits)


def test_full_weights_are_a_hugging_face_folder(folders, tmp_path, step):
    trainer = make(folders["tied"], lora_rank=0)
    trainer.update(step(0), version=0)
    trainer.weights(tmp_path / "weights")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "weights")
    before = AutoModelForCausalLM.from_pretrained(folders["tied"])
    ids = torch.tensor([[5, 6, 7, 30]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, trainer.policy.network(ids).logits)
        assert not torch.allclose(loaded(ids).logits, before(ids).logits)


def test_what_the_engine_loads_scores_as_the_trainer_does(folders, tmp_path, step):
    """Through the engine's own loader, adapter and all."""
    from lightning_local import models

    for rank in (0, 4):
        trainer = make(folders["llama"], lora_rank=rank)
        trainer.update(step(0), version=0)
        folder = tmp_path / f"weights-{rank}"
        trainer.weights(folder)
        loaded = models.load(str(folder))
        ids = torch.tensor([[5, 6, 7, 30]])
        with torch.no_grad():
            want = trainer.policy.network(ids).logits
            torch.testing.assert_close(loaded.model(ids).logits, want, atol=1e-4, rtol=1e-4)


def test_a_checkpoint_of_another_base_model_is_refused(folders, tmp_path, step):
    make(folders["llama"]).save(tmp_path / "checkpoint")
    other = make(folders["other"])
    before = state(other)
    with pytest.raises(UsageError, match=r"is of base model .*/llama'.* not of .*/other'"):
        other.restore(tmp_path / "checkpoint")
    assert all(torch.equal(a, b) for a, b in zip(before, state(other), strict=True))


def test_the_same_base_model_under_another_name_is_taken(folders, tmp_path, step):
    import shutil

    trainer = make(folders["llama"])
    trainer.update(step(0), version=0)
    trainer.save(tmp_path / "checkpoint")
    shutil.copytree(folders["llama"], tmp_path / "moved")
    moved = make(tmp_path / "moved")
    moved.restore(tmp_path / "checkpoint")
    assert all(torch.equal(a, b) for a, b in zip(state(trainer), state(moved), strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_rank": 8}, "`lora_rank=4`.*`lora_rank=8`"),
        ({"lora_alpha": 8.0}, "`lora_alpha=32.0`.*`lora_alpha=8.0`"),
        ({"lora_targets": ("q_proj",)}, "lora_targets=q_proj`"),
        ({"lora_rank": 0}, "full weights"),
    ],
)
def test_another_shape_of_lora_is_refused(folders, tmp_path, options, message):
    make(folders["llama"], lora_rank=4).save(tmp_path / "checkpoint")
    with pytest.raises(UsageError, match=message):
        make(folders["llama"], **{"lora_rank": 4, **options}).restore(tmp_path / "checkpoint")


def test_a_checkpoint_without_value_network_is_refused_for_ppo(folders, tmp_path):
    make(folders["llama"]).save(tmp_path / "checkpoint")
    with pytest.raises(UsageError, match="no value network"):
        make(folders["llama"], algorithm="ppo").restore(tmp_path / "checkpoint")


def test_no_checkpoint_and_a_broken_one_are_refused(folders, tmp_path):
    trainer = make(folders["llama"])
    with pytest.raises(UsageError, match="holds no checkpoint"):
        trainer.restore(tmp_path / "nothing")
    trainer.save(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "optimizer.pt").write_bytes(b"rubbish")
    with pytest.raises(UsageError, match="cannot be read"):
        trainer.restore(tmp_path / "checkpoint")


@pytest.mark.parametrize("part", ["weights/adapter_model.safetensors", "value.pt"])
def test_a_part_of_another_checkpoint_is_refused(folders, tmp_path, part):
    import shutil

    for rank in (4, 8):
        make(folders["llama"], lora_rank=rank, algorithm="ppo").save(tmp_path / f"{rank}")
    shutil.copyfile(tmp_path / "8" / part, tmp_path / "4" / part)
    with pytest.raises(UsageError, match=r"shape \(8, 64\), expected \(4, 64\)"):
        make(folders["llama"], lora_rank=4, algorithm="ppo").restore(tmp_path / "4")


def test_a_checkpoint_replaces_the_one_before_and_leaves_nothing_beside_it(folders, tmp_path, step):
    trainer = make(folders["llama"])
    for n in range(2):
        trainer.update(step(n), version=n)
        trainer.save(tmp_path / "checkpoint")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert json.loads((tmp_path / "checkpoint" / "trainer.json").read_bytes())["updates"] == 2


def test_a_program_that_died_between_taking_away_and_putting_there_has_lost_nothing(
    folders, tmp_path, step
):
    trainer = make(folders["llama"])
    trainer.update(step(0), version=0)
    trainer.save(tmp_path / "checkpoint")
    (tmp_path / "checkpoint").rename(tmp_path / ".checkpoint.lightning-previous")
    (tmp_path / ".checkpoint.lightning-part-x").mkdir()  # and one that was being written
    resumed = make(folders["llama"])
    resumed.restore(tmp_path / "checkpoint")
    assert resumed.updates == 1
    resumed.save(tmp_path / "checkpoint")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


FULL = """
import resource, signal, sys
from pathlib import Path
from lightning_core.errors import StoreError
from lightning_local.train import LocalOptions, Trainer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
trainer = Trainer(sys.argv[1], LocalOptions(lora_rank=int(sys.argv[3])), temperature=1.0)
trainer.save(Path(sys.argv[2]))
trainer.updates = 99
resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
for write in (trainer.save, trainer.weights):
    try:
        write(Path(sys.argv[2]))
    except StoreError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files to run into")
@pytest.mark.parametrize("rank", [0, 4])
def test_a_disk_that_is_full_leaves_the_checkpoint_before(folders, tmp_path, rank):
    """The limit on a file's size fails a write as a full disk does, in the middle of it."""
    place = tmp_path / "checkpoint"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(folders["llama"]), str(place), str(rank)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stdout + done.stderr
    for line in lines:
        assert "cannot be written" in line
        assert "unchanged" in line
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    resumed = make(folders["llama"], lora_rank=rank)
    resumed.restore(place)
    assert resumed.updates == 0


def test_a_place_that_cannot_be_written_is_said(folders, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        make(folders["llama"]).save(tmp_path / "file" / "checkpoint")


def test_an_adapter_is_small(folders, tmp_path):
    make(folders["llama"], lora_rank=2).weights(tmp_path / "weights")
    state = safetensors.torch.load_file(tmp_path / "weights" / "adapter_model.safetensors")
    assert all(".lora_A." in key or ".lora_B." in key for key in state)
