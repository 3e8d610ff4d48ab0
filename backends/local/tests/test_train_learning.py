"""Each algorithm learns: on a tiny random model, what is rewarded becomes likely.

The policy is sampled from, rewarded, and updated, as in a run, with torch alone in between.
"""

import math

import pytest
import torch

from lightning_core.learn.advantage import ESTIMATORS
from lightning_core.learn.sample import NO_VERSION, Sample, Segment
from lightning_local.train import LocalOptions, Trainer

PROMPTS = [[5, 6, 7, 8, 9], [20, 21, 22]]
GOOD = range(100, 140)
"""A reply is rewarded by its share of these 40 of 320 tokens: a random policy gets about an eighth."""
LENGTH, GROUP, TEMPERATURE = 3, 12, 0.9
WAY = {
    "grpo": "grpo", "gspo": "grpo", "cispo": "grpo", "dr_grpo": "dr_grpo", "rloo": "rloo",
    "reinforce_pp": "reinforce_pp_baseline", "ppo": None, "sft": None,
}  # fmt: skip


def sample_replies(trainer, prompt, generator):
    """A group of replies and their log-probabilities."""
    ids = torch.tensor([prompt] * GROUP)
    logprobs = []
    with torch.no_grad():
        for _ in range(LENGTH):
            logits = trainer.policy.network(ids).logits[:, -1] / TEMPERATURE
            logs = torch.log_softmax(logits, -1)
            drawn = torch.multinomial(logs.exp(), 1, generator=generator)
            logprobs.append(logs.gather(1, drawn))
            ids = torch.cat([ids, drawn], dim=1)
    return ids[:, len(prompt) :].tolist(), torch.cat(logprobs, dim=1).tolist()


def collect(trainer, generator, algorithm, version):
    """One step's samples with rewards, advantages and weights, and the mean reward."""
    samples, rewards = [], []
    for prompt in PROMPTS:
        replies, logprobs = sample_replies(trainer, prompt, generator)
        scores = [sum(token in GOOD for token in reply) / LENGTH for reply in replies]
        rewards += scores
        estimator = ESTIMATORS[WAY[algorithm]] if WAY[algorithm] else None
        standings = estimator(scores) if estimator else [None] * GROUP
        for n, (reply, logs, score, standing) in enumerate(
            zip(replies, logprobs, scores, standings, strict=True)
        ):
            before = len(prompt)
            samples.append(
                Sample(
                    rollout_id=f"{version}-{prompt[0]}-{n}",
                    task_id=str(prompt[0]),
                    token_ids=(*prompt, *reply),
                    mask=(0,) * before + (1,) * LENGTH,
                    logprobs=(0.0,) * before + tuple(logs),
                    versions=(NO_VERSION,) * before + (version,) * LENGTH,
                    segments=(
                        Segment(
                            call_id=f"{n}", start=before, stop=before + LENGTH, version=version, credit=score,
                            advantage=standing.advantage(score) if standing else None,
                        ),
                    ),
                    weight=1 / (GROUP * len(PROMPTS) * LENGTH),
                )
            )  # fmt: skip
    if algorithm == "sft":  # rejection sampling: only the best are learnt from
        best = max(rewards)
        samples = [s for s, r in zip(samples, rewards, strict=True) if r == best]
    return samples, sum(rewards) / len(rewards)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", sorted(WAY))
@pytest.mark.parametrize("lora_rank", [0, 8])
def test_what_is_rewarded_becomes_likely(folders, algorithm, lora_rank):
    options = LocalOptions(
        algorithm=algorithm,
        lora_rank=lora_rank,
        lora_targets=("all-linear",),
        learning_rate=1e-2 if lora_rank else 3e-3,
        value_learning_rate=3e-3,
        minibatches=2,
        clip_low=0.2 if algorithm == "gspo" else None,
        clip_high=0.2 if algorithm == "gspo" else None,
    )
    trainer = Trainer(str(folders["llama"]), options, temperature=TEMPERATURE)
    generator = torch.Generator().manual_seed(1)
    first = last = 0.0
    for version in range(30):
        samples, reward = collect(trainer, generator, algorithm, version)
        first, last = (first + reward / 3, last) if version < 3 else (first, 0.7 * last + 0.3 * reward)  # fmt: skip
        report = trainer.update(samples, version=version)
        assert math.isfinite(report.loss)
        assert report.drift_max is None or report.drift_max < 1e-3
    assert first < 0.3
    assert last > first + 0.4
