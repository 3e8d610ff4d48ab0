"""One step of the trainer: what it changes, what it must not, and what it says."""

import math

import msgspec
import pytest
import torch

from lightning_core.errors import UsageError
from lightning_core.learn.sample import NO_VERSION, Sample, Segment
from lightning_local.train import LocalOptions, Trainer

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]


@pytest.fixture
def trainer(folders):
    """`trainer(algorithm=…)`: one of a tiny model."""

    def made(model="llama", temperature=1.0, **options):
        settings = {"lora_rank": 4, "learning_rate": 1e-3, **options}
        return Trainer(str(folders[model]), LocalOptions(**settings), temperature=temperature)

    return made


@pytest.fixture
def group(make_sample):
    """Two groups, of replies with different lengths."""
    made = []
    for n in range(8):
        prompt = PROMPT if n < 4 else [20, 21, 22]
        reply = [30 + n, 40, 50, 60 + n][: 1 + n % 4]
        made.append(
            make_sample(
                prompt, reply, advantage=1.0 if n % 2 else -0.6, credit=float(n % 2), weight=1 / 20,
                name=f"r{n}", logprobs=[-5.0 - n / 10] * len(reply),
            )
        )  # fmt: skip
    return made


def snapshot(trainer):
    """All that a step may change."""
    states = [p.detach().clone() for p in trainer.policy.parameters]
    if trainer.value is not None:
        states += [p.detach().clone() for p in trainer.value.trained]
    for optimizer in (trainer.optimizer, trainer.value_optimizer):
        if optimizer is not None:
            states += [
                torch.as_tensor(v).clone() for s in optimizer.state.values() for v in s.values()
            ]
    return states


@pytest.fixture
def gradients(monkeypatch):
    """`gradients(trainer, samples)`: those of the step's first optimiser step, by the parameter's name."""

    def taken(trainer, samples):
        found = {}

        def step():
            for name, each in trainer.policy.network.named_parameters():
                if each.requires_grad:
                    found.setdefault(name, None if each.grad is None else each.grad.clone())

        monkeypatch.setattr(trainer.optimizer, "step", step)
        trainer.update(samples, version=0)
        assert found
        return found

    return taken


def two_agents(train, advantage=1.0):
    """One conversation of two agents, of which those in `train` are learnt from."""
    spans = {"writer": (4, 8), "critic": (10, 13)}
    ids = [5, 6, 7, 8, 30, 31, 32, 33, 9, 10, 40, 41, 42]
    mask = [0] * len(ids)
    segments = []
    for agent, (start, stop) in spans.items():
        if agent in train:
            mask[start:stop] = [1] * (stop - start)
        segments.append(
            Segment(
                call_id=agent, start=start, stop=stop, agent=agent, version=0, trainable=agent in train,
                advantage=advantage if agent in train else None,
            )
        )  # fmt: skip
    return Sample(
        rollout_id="r",
        task_id="t",
        token_ids=tuple(ids),
        mask=tuple(mask),
        logprobs=tuple(-1.0 if one else 0.0 for one in mask),
        versions=tuple(0 if one else NO_VERSION for one in mask),
        segments=tuple(segments),
        weight=0.25,
    )


def test_tokens_of_an_agent_that_is_not_trained_get_no_gradient(trainer, monkeypatch):
    """Of the states that the vocabulary is multiplied with, only those before the trained agent's tokens get any."""
    made = trainer(lora_rank=0, tis_cap=0.0)
    decoder, caught = made.policy.base.get_decoder(), []

    def keep(_module, _args, output):
        output.last_hidden_state.retain_grad()
        caught.append(output.last_hidden_state)

    handle = decoder.register_forward_hook(keep)
    made.update([two_agents({"critic"})], version=0)
    handle.remove()
    got = caught[-1].grad[0].abs().sum(-1).nonzero()[:, 0].tolist()
    assert got == [9, 10, 11]


def test_both_agents_gradients_are_the_sum_of_each_ones(trainer, gradients):
    both = gradients(trainer(grad_clip=0.0), [two_agents({"writer", "critic"})])
    parts = [gradients(trainer(grad_clip=0.0), [two_agents({a})]) for a in ("writer", "critic")]
    for name, grad in both.items():
        torch.testing.assert_close(parts[0][name] + parts[1][name], grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("algorithm", ["grpo", "gspo", "cispo", "rloo", "ppo", "sft"])
@pytest.mark.parametrize("lora_rank", [0, 4])
def test_gradients_do_not_depend_on_how_the_step_is_split(
    trainer, group, gradients, algorithm, lora_rank
):
    settings = {
        "algorithm": algorithm, "lora_rank": lora_rank, "grad_clip": 0.0, "kl_coef": 0.1, "entropy_coef": 0.01,
    }  # fmt: skip
    want = gradients(trainer(**settings), group)
    assert any(grad is not None and grad.abs().sum() > 0 for grad in want.values())
    for tokens, share in ((1, True), (17, True), (17, False), (4096, False)):
        made = trainer(**settings, micro_batch_tokens=tokens, share_prefixes=share)
        found = gradients(made, group)
        for name, grad in want.items():
            torch.testing.assert_close(found[name], grad, atol=2e-5, rtol=1e-3)


def test_gradient_checkpointing_changes_no_gradient(trainer, group, gradients):
    want = gradients(trainer(), group)
    found = gradients(trainer(gradient_checkpointing=True), group)
    for name, grad in want.items():
        torch.testing.assert_close(found[name], grad, atol=2e-5, rtol=1e-3)


def test_a_first_step_is_the_policy_gradient_under_the_temperature(trainer, make_sample, gradients):
    """Against autograd on transformers' own forward pass, with importance weights worked out by hand."""
    sample = make_sample(PROMPT, [30, 31], advantage=0.7, weight=0.5, logprobs=[-4.0, -9.0])
    found = gradients(trainer(lora_rank=0, temperature=0.8, grad_clip=0.0, tis_cap=2.0), [sample])
    other = trainer(lora_rank=0)
    logits = other.policy.base(torch.tensor([list(sample.token_ids)])).logits[0] / 0.8
    logs = torch.log_softmax(logits, -1)
    loss = torch.zeros(())
    for place, recorded in ((8, -4.0), (9, -9.0)):
        log = logs[place - 1, sample.token_ids[place]]
        importance = min(math.exp(float(log.detach()) - recorded), 2.0)
        loss = loss - 0.5 * 0.7 * importance * log
    loss.backward()
    for name, each in other.policy.network.named_parameters():
        torch.testing.assert_close(found[name], each.grad, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_step_that_is_not_finite_leaves_everything_as_it_was(trainer, group, algorithm, value):
    made = trainer(algorithm=algorithm)
    made.update(group, version=0)
    before, steps = snapshot(made), made.optimizer_steps
    segment = msgspec.structs.replace(group[3].segments[0], advantage=value, credit=value)
    bad = msgspec.structs.replace(group[3], segments=(segment,))
    report = made.update([*group[:3], bad, *group[4:]], version=1)
    assert report.optimizer_steps == 0
    assert len(report.skipped) == 1
    assert "loss" in report.skipped[0] or "norm" in report.skipped[0]
    assert made.optimizer_steps == steps
    for old, new in zip(before, snapshot(made), strict=True):
        assert torch.equal(old, new)
    good = made.update(group, version=2)
    assert good.optimizer_steps == 1
    assert good.skipped == ()
    assert math.isfinite(good.loss)


def test_the_rollouts_of_a_loss_that_is_not_finite_are_named(trainer, group):
    segment = msgspec.structs.replace(group[3].segments[0], advantage=math.nan)
    bad = msgspec.structs.replace(group[3], segments=(segment,), rollout_id="the-bad-one")
    report = trainer(micro_batch_tokens=1).update([bad], version=0)
    assert "`the-bad-one`" in report.skipped[0]


def test_advantages_of_zero_do_not_move_the_policy(trainer, group, make_sample):
    made = trainer()
    made.update(group, version=0)  # momentum that would go on moving it
    before = snapshot(made)
    report = made.update([make_sample(PROMPT, [30], advantage=0.0)], version=1)
    assert report.optimizer_steps == 0
    assert "gradient is 0" in report.skipped[0]
    assert all(torch.equal(a, b) for a, b in zip(before, snapshot(made), strict=True))


def test_epochs_and_minibatches_are_optimiser_steps(trainer, group):
    made = trainer(epochs=3, minibatches=2)
    report = made.update(group, version=0)
    assert report.optimizer_steps == made.optimizer_steps == 6
    assert report.ratio_max > 1.0
    assert trainer(minibatches=100).update(group, version=0).optimizer_steps == len(group)


def test_a_minibatch_counts_as_the_whole_step_does(trainer, make_sample):
    """Else clipping the gradient would mean something else in each split."""
    copies = [make_sample(PROMPT, [30, 31], weight=1 / 8, name=f"{n}") for n in range(4)]
    still = {"learning_rate": 1e-12, "grad_clip": 0.0}
    whole = trainer(**still).update(copies, version=0)
    split = trainer(minibatches=4, **still).update(copies, version=0)
    assert split.optimizer_steps == 4
    assert split.grad_norm == pytest.approx(whole.grad_norm, rel=1e-4)
    assert split.loss == pytest.approx(whole.loss, rel=1e-4)


def test_a_gradient_is_clipped_to_its_greatest_norm(trainer, group, gradients):
    made = trainer(grad_clip=1e-3)
    found = gradients(made, group)
    norm = math.sqrt(sum(float(grad.square().sum()) for grad in found.values()))
    assert norm == pytest.approx(1e-3, rel=1e-2)


def test_where_only_the_value_network_has_a_gradient_only_it_moves(trainer, group, make_sample):
    made = trainer(algorithm="ppo")
    made.update(group, version=0)  # momentum that would go on moving the policy
    policy = [p.detach().clone() for p in made.policy.parameters]
    value = [p.detach().clone() for p in made.value.trained]
    report = made.update([make_sample(PROMPT, [30], credit=1.0)], version=1)  # whitened to 0
    assert report.optimizer_steps == 1
    assert all(torch.equal(a, b) for a, b in zip(policy, made.policy.parameters, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(value, made.value.trained, strict=True))


def test_minibatches_see_the_old_policy_of_before_the_step(trainer, group):
    """After many passes over the same samples the ratio to the policy before is far from 1, so it is clipped."""
    report = trainer(epochs=8, learning_rate=3e-2).update(group, version=0)
    assert report.clip_share > 0.1
    assert trainer(epochs=1, learning_rate=3e-2).update(group, version=0).clip_share == 0.0


def test_recorded_log_probabilities_can_be_the_old_ones(trainer, make_sample):
    made = trainer(old_logprobs="recorded")
    report = made.update([make_sample(PROMPT, [30, 31], logprobs=[-30.0, -30.0])], version=0)
    assert report.ratio_mean > 100
    assert report.importance_mean is None
    assert report.drift_mean == pytest.approx(30, abs=25)


def test_drift_and_importance_are_measured_against_what_was_recorded(trainer, make_sample):
    made = trainer(temperature=0.7)
    ids = [*PROMPT, 30, 31]
    with torch.no_grad():
        logs = torch.log_softmax(made.policy.base(torch.tensor([ids])).logits[0] / 0.7, -1)
    true = [float(logs[7, 30]), float(logs[8, 31])]
    same = made.update([make_sample(PROMPT, [30, 31], logprobs=true)], version=0)
    assert same.drift_max < 1e-4
    assert same.importance_mean == pytest.approx(1.0, abs=1e-4)
    made = trainer(temperature=0.7)
    off = [true[0] + 0.5, true[1] - 3.0]
    report = made.update([make_sample(PROMPT, [30, 31], logprobs=off)], version=0)
    assert report.drift_mean == pytest.approx(1.75, abs=1e-3)
    assert report.drift_max == pytest.approx(3.0, abs=1e-3)
    assert report.importance_mean == pytest.approx((math.exp(-0.5) + 2.0) / 2, abs=1e-3)


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_the_divergence_is_from_the_model_before_training(trainer, group, lora_rank):
    made = trainer(lora_rank=lora_rank, kl_coef=0.1)
    assert made.update(group, version=0).kl == pytest.approx(0.0, abs=1e-6)
    for _ in range(3):
        report = made.update(group, version=1)
    assert report.kl > 1e-4
    assert trainer(lora_rank=lora_rank).update(group, version=0).kl is None


def test_a_strong_pull_to_the_reference_keeps_the_policy_there(trainer, group):
    free, held = trainer(kl_coef=1e-9), trainer(kl_coef=10.0)
    for _ in range(12):
        away = free.update(group, version=0)
        near = held.update(group, version=0)
    assert near.kl < away.kl / 3


def test_warmup_raises_the_rate_step_by_step(trainer, group):
    made = trainer(warmup=4, learning_rate=1e-3)
    rates = [made.update(group, version=0).learning_rate for _ in range(6)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


def test_staleness_is_counted_in_versions(trainer, make_sample):
    old = make_sample(PROMPT, [30, 31], version=2, name="a")
    new = make_sample(PROMPT, [32, 33], version=5, name="b", advantage=-1.0)
    report = trainer().update([old, new], version=5)
    assert report.staleness_mean == 1.5
    assert report.staleness_max == 3


def test_samples_without_anything_to_learn_are_left_out(trainer, make_sample):
    nothing = msgspec.structs.replace(make_sample(PROMPT, [30]), mask=(0,) * 9, segments=())
    report = trainer().update([nothing], version=0)
    assert report.samples == 0
    assert report.skipped == ("no sample has a token to learn from",)


def spoilt(sample, **fields):
    return msgspec.structs.replace(sample, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logprobs": (0.0,)}, "`logprobs` has length 1, expected 9"),
        ({"mask": (1,) * 9}, "first token is trained"),
        ({"token_ids": (5, 6, 7, 8, 9, 10, 11, 12, 320)}, "token 320 is not among the model's 320"),
        ({"weight": math.nan}, "weight nan"),
        ({"weight": -1.0}, "weight -1.0"),
        ({"weight": 0.0}, "weight 0"),
        ({"logprobs": (0.0,) * 8 + (math.nan,)}, "not finite"),
    ],
)
def test_a_sample_that_is_not_consistent_is_refused_by_name(trainer, make_sample, fields, message):
    made = trainer()
    with pytest.raises(UsageError, match=message):
        made.update([spoilt(make_sample(PROMPT, [30], name="x"), **fields)], version=0)
    assert made.updates == 0


def test_an_advantage_or_credit_that_is_missing_is_said(trainer, make_sample):
    with pytest.raises(UsageError, match=r"`x`.*advantage is not computed"):
        trainer().update([make_sample(PROMPT, [30], advantage=None, name="x")], version=0)
    with pytest.raises(UsageError, match="`call-x` has no credit"):
        trainer(algorithm="ppo").update([make_sample(PROMPT, [30], name="x")], version=0)


def test_a_temperature_of_zero_is_refused(folders):
    with pytest.raises(UsageError, match="temperature"):
        Trainer(str(folders["llama"]), LocalOptions(), temperature=0.0)


def test_a_lora_target_that_does_not_exist_is_refused_with_those_that_do(folders):
    options = LocalOptions(lora_targets=("q_proj", "c_attn"))
    with pytest.raises(UsageError, match="'c_attn'") as caught:
        Trainer(str(folders["llama"]), options, temperature=1.0)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
        assert f"`{name}`" in str(caught.value)
    assert "lm_head" not in str(caught.value)


def test_all_linear_modules_can_be_adapted(folders):
    trainer = Trainer(
        str(folders["llama"]),
        LocalOptions(lora_targets=("all-linear",), lora_rank=2),
        temperature=1.0,
    )
    assert len(trainer.policy.parameters) == 2 * 7 * 2  # A and B of seven modules in two layers


def test_a_value_network_learns_what_follows(trainer, make_sample):
    """Two prompts, one always good and one always bad: the values tell them apart."""
    made = trainer(algorithm="ppo", value_learning_rate=1e-2, gamma=1.0, lam=1.0, value_clip=0.0)
    samples = [
        make_sample([prompt, 6, 7], [30 + n, 31], credit=credit, weight=1 / 16, name=f"{prompt}{n}")
        for prompt, credit in ((5, 1.0), (9, 0.0))
        for n in range(4)
    ]
    reports = [made.update(samples, version=0) for _ in range(25)]
    assert reports[0].value_explained == pytest.approx(0.0, abs=1e-6)
    assert reports[-1].value_explained > 0.8
    assert reports[-1].value_loss < reports[0].value_loss / 5


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_the_value_network_and_the_policy_do_not_touch_each_other(trainer, group, lora_rank):
    made = trainer(algorithm="ppo", lora_rank=lora_rank)
    shared = {id(p) for p in made.policy.parameters} & {id(p) for p in made.value.trained}
    assert not shared
    frozen = {n: p.clone() for n, p in made.policy.base.named_parameters() if not p.requires_grad}
    made.update(group, version=0)
    now = dict(made.policy.base.named_parameters())
    assert all(torch.equal(now[name], value) for name, value in frozen.items())
    if lora_rank:
        ours = {p.data_ptr() for p in made.policy.base.parameters() if not p.requires_grad}
        theirs = {p.data_ptr() for p in made.value.decoder.parameters() if not p.requires_grad}
        assert theirs <= ours  # the frozen weights are in memory once
