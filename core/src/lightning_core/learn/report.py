"""StepReport: what a step was made of, and what was left out and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

import msgspec

from lightning_core.learn.rules import SampleRules
from lightning_core.learn.sample import NO_VERSION, Drift, Sample
from lightning_core.learn.scoring import Key, Scored
from lightning_core.learn.spread import Spread, means, spread
from lightning_core.records import Record
from lightning_core.reward import RewardScope, RewardStatus
from lightning_core.trace import Call

_NOTES: Final = 10
"""Notes that a report holds at most."""


class Lengths(Record, frozen=True, kw_only=True):
    """How long some texts are."""

    mean: float
    """Mean, in tokens."""
    max: int
    """The longest, in tokens."""


class StepReport(Record, frozen=True, kw_only=True):
    """What a step was made of.

    A group here is the rollouts of a task, or with `task_agent` what one agent did in them.
    """

    rollouts: int = 0
    """Rollouts that were given; those that are missing from a group are not among them."""
    scored: int = 0
    """Rollouts that have a number, and so a part in the statistics."""
    unscored: int = 0
    """Rollouts without a number, by the agent's or the grader's fault. Not read as 0: they are left out."""
    infra_error: int = 0
    """Rollouts without a number through no fault of the agent's. Left out too."""
    silent: int = 0
    """Scored rollouts in which no call that is learnt from has a credit: nothing of theirs can be compared."""
    causes: dict[str, int] = msgspec.field(default_factory=dict)
    """Rollouts by the cause of their end; `unfinished` where an attempt has none."""
    failures: dict[str, int] = msgspec.field(default_factory=dict)
    """Rollouts that are not scored, by why: a cause, or `not_graded`, `bad_credit`."""
    notes: tuple[str, ...] = ()
    """What went wrong with grading or credit, in words; the first few."""
    groups: int = 0
    """Groups that were given: tasks."""
    compared: int = 0
    """Groups with a signal: at least two values, not all equal."""
    equal_groups: int = 0
    """Groups whose values are all equal: every advantage is 0."""
    groups_of_one: int = 0
    """Groups with one value: there is nothing to compare with, and every group-relative advantage is 0."""
    empty_groups: int = 0
    """Tasks without any value."""
    small_groups: int = 0
    """Groups with fewer values than the rules ask for: nothing is learnt from them."""
    reward: Spread | None = None
    """The rollouts' own rewards over scored rollouts, which are taken as independent; None where none has one."""
    rewards: dict[str, float] = msgspec.field(default_factory=dict)
    """Mean of each other reward of whole rollouts, by name, over those that have it."""
    agents: dict[str, float] = msgspec.field(default_factory=dict)
    """Mean reward by agent or node, over the rollouts that have one of scope `agent`."""
    credits_missing: int = 0
    """Replies that could be learnt from but have no credit: they are context."""
    advantage: Spread | None = None
    """The replies' advantages; None where the trainer computes them."""
    samples: int = 0
    """Samples of the step."""
    dropped: int = 0
    """Chains of scored rollouts that have nothing to learn from."""
    too_long: int = 0
    """Samples that are longer than the trainer can take: left out whole."""
    tokens: int = 0
    """Tokens of the samples."""
    trainable_tokens: int = 0
    """Tokens of them that are learnt from."""
    staleness: float | None = None
    """Mean over the trainable tokens of how many versions older than the policy that is trained their policy is; None
    where no version is known."""
    staleness_max: int | None = None
    """The largest such distance."""
    prompt: Lengths | None = None
    """Prompts of the calls that are learnt from; None where no call says."""
    completion: Lengths | None = None
    """Their replies."""
    drift: Drift = Drift()
    """How the calls of all rollouts went together."""

    def metrics(self) -> dict[str, float]:
        """The numbers by name, for a line of `metrics.jsonl`; what is None is left out."""
        found: dict[str, float | None] = {
            "rollouts/all": self.rollouts,
            "rollouts/scored": self.scored,
            "rollouts/unscored": self.unscored,
            "rollouts/infra_error": self.infra_error,
            "rollouts/silent": self.silent,
            "groups/all": self.groups,
            "groups/compared": self.compared,
            "groups/equal": self.equal_groups,
            "groups/of_one": self.groups_of_one,
            "groups/empty": self.empty_groups,
            "groups/small": self.small_groups,
            "samples/all": self.samples,
            "samples/dropped": self.dropped,
            "samples/too_long": self.too_long,
            "samples/credits_missing": self.credits_missing,
            "tokens/all": self.tokens,
            "tokens/trainable": self.trainable_tokens,
            "staleness/mean": self.staleness,
            "staleness/max": self.staleness_max,
            "drift/calls": self.drift.calls,
            "drift/retokenized": self.drift.retokenized,
        }
        if self.reward is not None:
            found |= {
                "reward": self.reward.mean,
                "reward/std": self.reward.std,
                "reward/low": self.reward.low,
                "reward/high": self.reward.high,
            }
        if self.advantage is not None:
            found |= {"advantage/mean": self.advantage.mean, "advantage/std": self.advantage.std}
        for name, lengths in (("prompt", self.prompt), ("completion", self.completion)):
            if lengths is not None:
                found |= {f"{name}/mean": lengths.mean, f"{name}/max": lengths.max}
        found |= {f"rewards/{name}": value for name, value in self.rewards.items()}
        found |= {f"agents/{name}": value for name, value in self.agents.items()}
        found |= {f"failures/{name}": count for name, count in self.failures.items()}
        found |= {f"drift/joined/{name}": count for name, count in self.drift.joined.items()}
        found |= {f"drift/skipped/{name}": count for name, count in self.drift.skipped.items()}
        return {name: value for name, value in found.items() if value is not None}


def report(
    rollouts: Sequence[Scored],
    samples: Sequence[Sample],
    *,
    groups: int,
    values: Mapping[Key, Mapping[int, float]],
    compared: Set[Key],
    small: Set[Key],
    credits_missing: int,
    dropped: int,
    too_long: int,
    drift: Drift,
    rules: SampleRules,
    version: int | None,
) -> StepReport:
    """Say what a step was made of; `make_step` calls it."""
    scored = [one for one in rollouts if one.status is RewardStatus.SCORED]
    others: dict[str, list[float]] = {}
    agents: dict[str, list[float]] = {}
    for one in scored:
        for reward in one.trace.rewards:
            if reward.value is None:
                continue
            if reward.scope is RewardScope.ROLLOUT and reward.name != "reward":
                others.setdefault(reward.name, []).append(reward.value)
            elif reward.scope is RewardScope.AGENT and reward.name == "reward":
                agents.setdefault(str(reward.target), []).append(reward.value)
    calls = [
        call for one in scored for call in one.trace.calls if call.choices and rules.selects(call)
    ]
    of_one = {key for key, some in values.items() if len(some) == 1}
    staleness, oldest = _staleness(samples, version)
    advantages = [
        segment.advantage
        for sample in samples
        for segment in sample.segments
        if segment.advantage is not None
    ]
    return StepReport(
        rollouts=len(rollouts),
        scored=len(scored),
        unscored=sum(one.status is RewardStatus.UNSCORED for one in rollouts),
        infra_error=sum(one.status is RewardStatus.INFRA_ERROR for one in rollouts),
        silent=sum(not one.values for one in scored),
        causes=_counts(one.trace.attempt.cause or "unfinished" for one in rollouts),
        failures=_counts(one.failure for one in rollouts if one.failure is not None),
        notes=tuple(one.note for one in rollouts if one.note is not None)[:_NOTES],
        groups=groups,
        compared=len(compared),
        equal_groups=len(values.keys() - compared - of_one),
        groups_of_one=len(of_one),
        empty_groups=groups - len({key.group for key in values}),
        small_groups=len(small),
        reward=spread([one.trace.reward for one in scored if one.trace.reward is not None]),
        rewards=means(others),
        agents=means(agents),
        credits_missing=credits_missing,
        advantage=spread(advantages),
        samples=len(samples),
        dropped=dropped,
        too_long=too_long,
        tokens=sum(len(sample.token_ids) for sample in samples),
        trainable_tokens=sum(sample.trainable_tokens for sample in samples),
        staleness=staleness,
        staleness_max=oldest,
        prompt=_lengths(map(_prompt_tokens, calls)),
        completion=_lengths(map(_completion_tokens, calls)),
        drift=drift,
    )


def _counts(names: Iterable[str]) -> dict[str, int]:
    return {str(name): count for name, count in sorted(Counter(names).items())}


def _staleness(samples: Sequence[Sample], version: int | None) -> tuple[float | None, int | None]:
    """Mean over trainable tokens, and largest, distance to the version that is trained."""
    if version is None:
        return None, None
    distances: Counter[int] = Counter()
    for sample in samples:
        for segment in sample.segments:
            if segment.trainable and segment.version != NO_VERSION:
                distances[version - segment.version] += segment.stop - segment.start
    tokens = distances.total()
    if not tokens:
        return None, None
    mean = math.fsum(distance * count for distance, count in distances.items()) / tokens
    return mean, max(distances)


def _lengths(counts: Iterable[int | None]) -> Lengths | None:
    known = [count for count in counts if count is not None]
    return Lengths(mean=math.fsum(known) / len(known), max=max(known)) if known else None


def _prompt_tokens(call: Call) -> int | None:
    if call.prompt_token_ids is not None:
        return len(call.prompt_token_ids)
    return call.token_counts[0]


def _completion_tokens(call: Call) -> int | None:
    """Tokens of all its choices together."""
    ids = [choice.token_ids for choice in call.choices]
    counts = [len(some) for some in ids if some is not None]
    return sum(counts) if len(counts) == len(ids) else call.token_counts[1]
