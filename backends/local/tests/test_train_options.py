"""What `--set KEY=VALUE` may say to the trainer, and what it says back."""

import msgspec
import pytest

from lightning_core.errors import UsageError
from lightning_local.train import LocalOptions


def test_nothing_said_gives_the_defaults():
    assert LocalOptions.parse({}) == LocalOptions()


def test_values_of_every_kind_are_read():
    options = LocalOptions.parse(
        {
            "algorithm": "gspo",
            "learning_rate": "1e-5",
            "betas": "0.8, 0.9",
            "lora_rank": "0",
            "lora_targets": "q_proj,v_proj",
            "gradient_checkpointing": "true",
            "clip_low": "0.1",
            "device": "cuda:1",
        }
    )
    assert options.algorithm == "gspo"
    assert options.learning_rate == 1e-5
    assert options.betas == (0.8, 0.9)
    assert options.lora_rank == 0
    assert options.lora_targets == ("q_proj", "v_proj")
    assert options.gradient_checkpointing is True
    assert options.clip_low == 0.1
    assert options.device == "cuda:1"


def test_an_unknown_key_lists_every_option():
    with pytest.raises(UsageError, match="no option 'lerning_rate'") as caught:
        LocalOptions.parse({"lerning_rate": "1"})
    for field in msgspec.structs.fields(LocalOptions):
        assert f"`{field.name}=" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("learning_rate", "fast", "float"),
        ("learning_rate", "0", "> 0"),
        ("entropy_coef", "nan", "finite"),
        ("learning_rate", "inf", "finite"),
        ("epochs", "1.5", "int"),
        ("epochs", "0", ">= 1"),
        ("lora_rank", "-1", ">= 0"),
        ("clip_low", "2", "<= 1"),
        ("betas", "0.9", "length 2"),
        ("betas", "0.9,1.0", "< 1"),
        ("algorithm", "dpo", "`grpo`"),
        ("kl_kind", "k4", "`k3`"),
        ("gradient_checkpointing", "maybe", "bool"),
        ("lora_targets", " , ", "at least one"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_what_was_expected(key, value, hint):
    with pytest.raises(UsageError) as caught:
        LocalOptions.parse({key: value})
    assert f"`{key}`" in str(caught.value)
    assert f" is {value!r}" in str(caught.value)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("algorithm", "loss"),
    [
        ("grpo", "clip"),
        ("dr_grpo", "clip"),
        ("ppo", "clip"),
        ("reinforce_pp", "clip"),
        ("rloo", "reinforce"),
        ("gspo", "gspo"),
        ("cispo", "cispo"),
    ],
)
def test_each_algorithm_has_a_loss_that_may_be_changed(algorithm, loss):
    assert LocalOptions.parse({"algorithm": algorithm}).policy_loss == loss
    assert LocalOptions.parse({"algorithm": algorithm, "loss": "cispo"}).policy_loss == "cispo"


def test_bounds_of_the_ratio_follow_the_loss_unless_given():
    gspo = LocalOptions.parse({"algorithm": "gspo"})
    assert max(gspo.clip_bounds) < 1e-2
    given = LocalOptions.parse({"algorithm": "gspo", "clip_high": "0.5"})
    assert given.clip_bounds == (gspo.clip_bounds[0], 0.5)
