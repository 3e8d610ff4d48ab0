"""The losses: against the papers' formulas written out token by token, and against verl's own functions."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lightning_local.train import losses

ROWS, TOKENS = 5, 7


@pytest.fixture(scope="module")
def case():
    """Tensors in which every branch of every loss is taken: ratios on both sides of each bound, both signs."""
    generator = torch.Generator().manual_seed(3)

    def normal(scale):
        return torch.randn(ROWS, TOKENS, generator=generator, dtype=torch.float64) * scale

    lengths = [7, 3, 1, 5, 7]
    mask = torch.tensor([[1] * n + [0] * (TOKENS - n) for n in lengths])
    mask[3, 1] = 0  # an observation within a row
    old = -normal(1.0).abs() - 0.1
    return {
        "logprobs": (old + normal(0.8)).clamp(max=-0.01),
        "old": old,
        "advantages": normal(1.5),
        "mask": mask,
        "weights": torch.rand(ROWS, TOKENS, generator=generator, dtype=torch.float64) + 0.1,
        "reference": old + normal(0.5),
        "returns": normal(1.0),
        "values": normal(1.0),
        "old_values": normal(1.0),
    }


def run(case, loss, **settings):
    """The loss and its gradient."""
    logprobs = case["logprobs"].clone().requires_grad_()
    result = loss(logprobs, case["old"], case["advantages"], case["mask"], case["weights"], **settings)  # fmt: skip
    result.loss.backward()
    return result._replace(loss=result.loss.detach()), logprobs.grad


def cells(case):
    """Each masked token's numbers, as Python floats."""
    for row in range(ROWS):
        for token in range(TOKENS):
            if case["mask"][row, token]:
                yield row, token, *(float(case[n][row, token]) for n in ("logprobs", "old", "advantages", "weights"))  # fmt: skip


LOW, HIGH, DUAL = 0.2, 0.3, 1.6


def clip_by_hand(case, dual):
    """PPO's formula, and where it is flat."""
    total, slopes, bound = 0.0, {}, 0
    for row, token, new, old, advantage, weight in cells(case):
        ratio = math.exp(new - old)
        held = min(max(ratio, 1 - LOW), 1 + HIGH)
        value, slope = ratio * advantage, ratio * advantage
        clipped = held * advantage < value
        if clipped:
            value, slope = held * advantage, 0.0
        if dual and advantage < 0 and value < dual * advantage:
            value, slope, clipped = dual * advantage, 0.0, True
        total -= weight * value
        slopes[row, token] = -weight * slope
        bound += clipped
    return total, slopes, bound


def close(found, slopes, total, grad):
    assert float(found) == pytest.approx(total, abs=1e-9)
    for row in range(ROWS):
        for token in range(TOKENS):
            assert float(grad[row, token]) == pytest.approx(slopes.get((row, token), 0.0), abs=1e-9)


@pytest.mark.parametrize("dual", [0.0, DUAL])
def test_clip_is_the_formula_of_ppo_with_two_bounds_and_dual_clip(case, dual):
    result, grad = run(case, losses.clip, low=LOW, high=HIGH, dual=dual)
    total, slopes, bound = clip_by_hand(case, dual)
    close(result.loss, slopes, total, grad)
    count = int(case["mask"].sum())
    assert 0 < bound < count
    assert float(result.clip_share) == pytest.approx(bound / count)
    ratios = [math.exp(new - old) for _, _, new, old, _, _ in cells(case)]
    assert float(result.ratio_mean) == pytest.approx(sum(ratios) / count)
    assert float(result.ratio_max) == pytest.approx(max(ratios))
    assert float(result.approx_kl) == pytest.approx(
        sum(old - new for _, _, new, old, _, _ in cells(case)) / count
    )


def test_gspo_clips_whole_rows(case):
    result, grad = run(case, losses.gspo, low=LOW, high=HIGH)
    means = {}
    for row, _, new, old, _, _ in cells(case):
        means.setdefault(row, []).append(new - old)
    total, slopes = 0.0, {}
    for row, token, _, _, advantage, weight in cells(case):
        ratio = math.exp(sum(means[row]) / len(means[row]))
        held = min(max(ratio, 1 - LOW), 1 + HIGH)
        kept = ratio * advantage <= held * advantage
        total -= weight * (ratio if kept else held) * advantage
        slopes[row, token] = -weight * ratio * advantage if kept else 0.0
    close(result.loss, slopes, total, grad)
    assert 0 < float(result.clip_share) < 1


def test_gspo_has_the_gradient_of_the_sequence_formula_where_advantage_and_weight_are_the_rows(
    case,
):
    even = {**case, "advantages": case["advantages"][:, :1].expand(ROWS, TOKENS)}
    lengths = case["mask"].sum(-1, keepdim=True)
    even["weights"] = (1.0 / lengths).expand(ROWS, TOKENS)
    _, grad = run(even, losses.gspo, low=LOW, high=HIGH)
    logprobs = case["logprobs"].clone().requires_grad_()
    mean = ((logprobs - case["old"]) * case["mask"]).sum(-1) / lengths[:, 0]
    advantage = even["advantages"][:, 0]
    ratio = mean.exp()
    want = -torch.minimum(ratio * advantage, ratio.clamp(1 - LOW, 1 + HIGH) * advantage).sum()
    want.backward()
    torch.testing.assert_close(grad, logprobs.grad)


def test_cispo_weighs_without_taking_a_gradient_away(case):
    result, grad = run(case, losses.cispo, low=1.0, high=HIGH)
    total, slopes, bound = 0.0, {}, 0
    for row, token, new, old, advantage, weight in cells(case):
        ratio = math.exp(new - old)
        held = min(ratio, 1 + HIGH)
        bound += held != ratio
        total -= weight * held * advantage * new
        slopes[row, token] = -weight * held * advantage
    close(result.loss, slopes, total, grad)
    assert float(result.clip_share) == pytest.approx(bound / int(case["mask"].sum()))


def test_reinforce_is_the_weighted_log_likelihood(case):
    result, grad = run(case, losses.reinforce)
    total = -sum(w * a * new for _, _, new, _, a, w in cells(case))
    close(result.loss, {(r, t): -w * a for r, t, _, _, a, w in cells(case)}, total, grad)
    assert float(result.clip_share) == 0


def test_nll_is_the_weighted_negative_log_likelihood(case):
    found = losses.nll(case["logprobs"], case["mask"], case["weights"])
    assert float(found) == pytest.approx(-sum(w * new for _, _, new, _, _, w in cells(case)))


def test_importance_is_truncated_and_1_outside_the_mask(case):
    found = losses.importance(case["logprobs"], case["old"], case["mask"], 1.25)
    for row, token, new, old, _, _ in cells(case):
        assert float(found[row, token]) == pytest.approx(min(math.exp(new - old), 1.25))
    assert set(found[case["mask"] == 0].tolist()) == {1.0}
    assert float(found.max()) == 1.25


def test_the_estimates_of_kl_agree_with_the_divergence_on_average():
    generator = torch.Generator().manual_seed(0)
    policy = torch.log_softmax(torch.randn(6, generator=generator), -1)
    reference = torch.log_softmax(policy + 0.3 * torch.randn(6, generator=generator), -1)
    true = float((policy.exp() * (policy - reference)).sum())
    for kind in ("k1", "k3"):
        each = losses.kl(policy, reference, kind)
        assert float((policy.exp() * each).sum()) == pytest.approx(true, abs=1e-6)
    assert float(losses.kl(policy, reference, "k3").min()) >= 0
    k2 = losses.kl(policy, reference, "k2")
    assert float((policy.exp() * k2).sum()) == pytest.approx(true, rel=0.5)
    with pytest.raises(ValueError, match="k4"):
        losses.kl(policy, reference, "k4")


def test_entropy_is_greatest_for_equal_logits():
    assert float(losses.entropy(torch.zeros(8))) == pytest.approx(math.log(8))
    assert float(losses.entropy(torch.tensor([100.0, 0.0]))) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_a_value_far_from_the_old_one_gains_nothing_by_going_on(case, clip):
    values = case["values"].clone().requires_grad_()
    found = losses.value(values, case["old_values"], case["returns"], case["mask"], case["weights"], clip=clip)  # fmt: skip
    total = 0.0
    for row, token, _, _, _, weight in cells(case):
        value, old, aim = (float(case[n][row, token]) for n in ("values", "old_values", "returns"))
        error = (value - aim) ** 2
        if clip:
            error = max(error, (min(max(value, old - clip), old + clip) - aim) ** 2)
        total += weight * error / 2
    assert float(found.detach()) == pytest.approx(total)


@pytest.mark.parametrize("loss", [losses.clip, losses.gspo, losses.cispo, losses.reinforce])
def test_rubbish_where_the_mask_is_0_changes_nothing(case, loss):
    want, want_grad = run(case, loss)
    outside = case["mask"] == 0
    spoilt = {
        name: case[name].masked_fill(outside, math.nan)
        for name in ("old", "advantages", "weights", "logprobs")
    }
    found, grad = run({**case, **spoilt}, loss)
    assert torch.equal(found.loss, want.loss)
    assert not grad[outside].nan_to_num(nan=0.0).any()
    torch.testing.assert_close(grad[~outside], want_grad[~outside])


@pytest.mark.parametrize("loss", [losses.clip, losses.gspo, losses.cispo, losses.reinforce])
def test_parts_of_a_batch_add_up_to_the_whole(case, loss):
    whole, grad = run(case, loss)
    parts = []
    for rows in (slice(0, 2), slice(2, 5)):
        part, part_grad = run({name: value[rows] for name, value in case.items()}, loss)
        parts.append((part.loss, part_grad))
    assert float(sum(p for p, _ in parts)) == pytest.approx(float(whole.loss))
    torch.testing.assert_close(torch.cat([g for _, g in parts]), grad)


@pytest.fixture(scope="module")
def verl(case, tmp_path_factory):
    """What verl's functions give for the same tensors, in a process of their own: importing verl changes torch and
    transformers."""
    if importlib.util.find_spec("verl") is None:
        pytest.skip("verl is not installed: `make install` does it")
    folder = tmp_path_factory.mktemp("verl")
    torch.save(case, folder / "case.pt")
    script = Path(__file__).with_name("verl_reference.py")
    settings = json.dumps(
        {"low": LOW, "high": HIGH, "dual": DUAL, "value_clip": 0.3, "importance_cap": 1.25}
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(folder), settings],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "verl.pt", weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "loss", "settings"),
    [
        ("vanilla", losses.clip, {"low": LOW, "high": HIGH, "dual": DUAL}),
        ("gspo", losses.gspo, {"low": LOW, "high": HIGH}),
        ("cispo", losses.cispo, {"low": 1.0, "high": HIGH}),
        ("reinforce", losses.reinforce, {}),
    ],
)
def test_policy_losses_are_those_of_verl(verl, case, name, loss, settings):
    even = {**case, "weights": torch.full((ROWS, TOKENS), 1.0 / float(case["mask"].sum()))}
    result, grad = run(even, loss, **settings)
    want = verl[name]
    assert float(result.loss) == pytest.approx(float(want["loss"]), abs=1e-5)
    torch.testing.assert_close(grad, want["grad"], atol=1e-5, rtol=0)
    assert float(result.approx_kl) == pytest.approx(want["kl"], abs=1e-5)
    if name != "reinforce":
        assert float(result.clip_share) == pytest.approx(want["clipped"], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_estimates_of_kl_are_those_of_verl(verl, case, kind):
    found = losses.kl(case["logprobs"], case["reference"], kind)
    torch.testing.assert_close(found, verl[kind], atol=1e-5, rtol=0)


@pytest.mark.slow
def test_value_loss_importance_and_entropy_are_those_of_verl(verl, case):
    weights = torch.full((ROWS, TOKENS), 1.0 / float(case["mask"].sum()), dtype=torch.float64)
    found = losses.value(case["values"], case["old_values"], case["returns"], case["mask"], weights, clip=0.3)  # fmt: skip
    assert float(found) == pytest.approx(float(verl["value"]), abs=1e-5)
    logits = torch.stack([case["logprobs"], case["old"], case["returns"]], dim=-1)
    torch.testing.assert_close(losses.entropy(logits), verl["entropy"].float(), atol=1e-5, rtol=0)
    inside = case["mask"].bool()
    weights = losses.importance(case["logprobs"], case["old"], case["mask"], 1.25)
    torch.testing.assert_close(weights[inside], verl["importance"][inside], atol=1e-5, rtol=0)
