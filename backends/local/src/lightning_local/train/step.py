"""One step of the trainer: passes over its samples, and optimiser steps."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_core.learn.advantage import gae, whiten
from lightning_local.train import batch, losses, objective
from lightning_local.train.batch import Item, padded
from lightning_local.train.objective import Known
from lightning_local.train.report import Means, UpdateReport, explained
from lightning_local.train.rows import Pass, plan

if TYPE_CHECKING:
    from lightning_local.train.trainer import Trainer

Row = Sequence[float] | Tensor
"""One number for each trained token of a sample."""


class Step:
    """The samples of one step, what was computed of them before it, and the sums for its report.

    What is known of each sample's tokens is kept in lists by the sample's position, since a pass may hold any of them.
    """

    def __init__(self, trainer: Trainer, items: Sequence[Item], *, supervised: bool) -> None:
        self.trainer = trainer
        self.options = trainer.options
        self.policy = trainer.policy
        self.items = items
        self.supervised = supervised
        self.value = None if supervised else trainer.value
        # One optimiser step begins and ends with the policy that sampled: what is computed on the way is the old one.
        self.single = self.options.epochs * self.options.minibatches == 1
        self.advantages: list[Row] = [item.advantages for item in items]
        self.returns: list[Row] = []
        self.old: list[Row] = []
        self.reference: list[Row] = []
        self.values: list[Tensor] = []
        self.means = Means()
        self.skipped: list[str] = []
        self.steps = 0
        self.computed = 0
        self.learning_rate = 0.0

    def run(self) -> None:
        """Compute what must be known before, then go over the samples."""
        whole = self.plan(range(len(self.items)))
        self.computed = sum(micro.token_ids.numel() for micro in whole)
        if not self.supervised:
            self.look_back(whole)
        total = batch.total_weight(self.items)
        for epoch in range(self.options.epochs):
            for part in self.parts(epoch):
                share = batch.total_weight([self.items[number] for number in part])
                if not share:
                    continue
                # Supervised weights are 1, and the loss is their mean; else a part counts as the whole step does.
                scale = 1 / share if self.supervised else total / share
                self.optimize(whole if len(part) == len(self.items) else self.plan(part), scale)

    def plan(self, numbers: Sequence[int]) -> list[Pass]:
        """Passes over some of the samples, which they name by their position among all."""
        passes = plan(
            [self.items[number].source for number in numbers],
            budget=self.options.micro_batch_tokens,
            share=self.options.share_prefixes and self.policy.can_share,
            hidden=self.policy.hidden,
            device=self.policy.device,
        )
        return [p._replace(samples=[numbers[i] for i in p.samples]) for p in passes]

    def parts(self, epoch: int) -> list[list[int]]:
        """The samples of an epoch, split for its optimiser steps."""
        numbers = list(range(len(self.items)))
        count = min(self.options.minibatches, len(numbers))
        if count == 1:
            return [numbers]
        seed = f"{self.options.seed}:{self.trainer.updates}:{epoch}"
        random.Random(seed).shuffle(numbers)
        return [numbers[i::count] for i in range(count)]

    # --- before ---

    def look_back(self, passes: Sequence[Pass]) -> None:
        """Log-probabilities, reference and values before the step, without gradient."""
        options = self.options
        with torch.no_grad():
            if options.old_logprobs == "recorded":
                self.old = [item.recorded for item in self.items]
            elif not self.single:
                self.old = [
                    *self.of_all(passes, lambda p: self.policy.score(p, entropy=False).logprobs)
                ]
            if options.kl_coef:
                self.reference = [*self.of_all(passes, self.policy.reference)]
            if self.value is not None:
                self.values = self.of_all(passes, self.value)
                self.expect()

    def of_all(self, passes: Sequence[Pass], of_one: Callable[[Pass], Tensor]) -> list[Tensor]:
        """What a function says of each pass, by sample."""
        kept = [torch.zeros(0)] * len(self.items)
        for micro in passes:
            values = of_one(micro)
            for row, number in enumerate(micro.samples):
                kept[number] = values[row, : len(self.items[number].source.targets)]
        return kept

    def expect(self) -> None:
        """Advantages and returns, from rewards and the values before the step."""
        found = [
            gae(item.rewards, values.tolist(), [1] * len(item.rewards), self.options.gamma, self.options.lam)
            for item, values in zip(self.items, self.values, strict=True)
        ]  # fmt: skip
        self.returns = [each.returns for each in found]
        flat = [value for each in found for value in each.advantages]
        if self.options.whiten and all(map(math.isfinite, flat)):
            flat = whiten(flat, [1] * len(flat))
        numbers = iter(flat)
        self.advantages = [[next(numbers) for _ in each.advantages] for each in found]
        share = explained(
            torch.cat(self.values).cpu(), torch.tensor([v for e in found for v in e.returns])
        )
        self.means.add(1.0, value_explained=share)

    # --- one optimiser step ---

    def optimize(self, passes: Sequence[Pass], scale: float) -> None:
        """Gradients of all the passes, then one optimiser step, unless something is not finite."""
        means = Means()
        self.forget()
        fault = self.gradients(passes, scale, means)
        norms: dict[str, float] = {}
        if fault is None:
            norms = self.clip()
            odd = [
                f"`{name}` is {norm!r}" for name, norm in norms.items() if not math.isfinite(norm)
            ]
            fault = ", ".join(odd) or None
        if fault is None:
            means.most(**norms)
            self.means.join(means)
            if not any(norms.values()):
                fault = "the gradient is 0: every advantage is 0, or every ratio is clipped"
        if fault is None:
            self.learning_rate = self.warm()
            for optimizer, norm in zip(self.trainer.optimizers, norms.values(), strict=False):
                if norm:  # else its momentum alone would move the weights
                    optimizer.step()
            self.trainer.optimizer_steps += 1
            self.steps += 1
        else:
            self.skipped.append(fault)
        self.forget()

    def gradients(self, passes: Sequence[Pass], scale: float, means: Means) -> str | None:
        """Add up the passes' gradients; says what is not finite, if anything is."""
        for micro in passes:
            known = self.known(micro, scale)
            # One after the other: each one's activations go before the next one's come.
            for term in (self.loss, self.value_loss)[: 1 if self.value is None else 2]:
                loss = term(micro, known, means)
                if not torch.isfinite(loss):
                    return (
                        f"the loss is {float(loss.detach())!r}, on samples of {self.named(micro)}"
                    )
                loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        return None

    def known(self, micro: Pass, scale: float) -> Known:
        """What is known of a pass's targets."""

        def laid(rows: Sequence[Row]) -> Tensor:
            return padded([rows[number] for number in micro.samples], micro.mask)

        weights = [[item.weight * scale] * len(item.source.targets) for item in self.items]
        return Known(
            mask=micro.mask,
            weights=laid(weights),
            advantages=laid(self.advantages),
            recorded=laid([item.recorded for item in self.items]),
            old=laid(self.old) if self.old else None,
            reference=laid(self.reference) if self.reference else None,
        )

    def loss(self, micro: Pass, known: Known, means: Means) -> Tensor:
        """A pass's part of the policy's loss, shape []."""
        if self.supervised:
            scored = self.policy.score(micro, entropy=False, temperature=1.0)
            return objective.supervised(scored, known, means)
        scored = self.policy.score(micro, entropy=bool(self.options.entropy_coef))
        moved = self.steps > 0
        return objective.reinforced(self.options, scored, known, means, moved=moved)

    def value_loss(self, micro: Pass, known: Known, means: Means) -> Tensor:
        """A pass's part of the value network's loss, shape []."""
        assert self.value is not None
        returns = padded([self.returns[number] for number in micro.samples], micro.mask)
        before = padded([self.values[number] for number in micro.samples], micro.mask)
        loss = losses.value(
            self.value(micro), before, returns, micro.mask, known.weights, clip=self.options.value_clip
        )  # fmt: skip
        means.sum(value_loss=loss.detach())
        return loss

    def clip(self) -> dict[str, float]:
        """Bound the gradients; their norms before, in the order of the optimisers."""
        bound = self.options.grad_clip or math.inf
        norms = {"grad_norm": torch.nn.utils.clip_grad_norm_(self.policy.parameters, bound)}
        if self.value is not None:
            norms["value_grad_norm"] = torch.nn.utils.clip_grad_norm_(self.value.trained, bound)
        return {name: float(norm) for name, norm in norms.items()}

    def warm(self) -> float:
        """Set the learning rates for the next optimiser step; gives the policy's."""
        options = self.options
        done = self.trainer.optimizer_steps
        share = min(1.0, (done + 1) / options.warmup) if options.warmup else 1.0
        rates = (options.learning_rate, options.value_learning_rate)
        for optimizer, rate in zip(self.trainer.optimizers, rates, strict=False):
            for group in optimizer.param_groups:
                group["lr"] = rate * share
        return options.learning_rate * share

    def forget(self) -> None:
        """Drop all gradients."""
        for optimizer in self.trainer.optimizers:
            optimizer.zero_grad(set_to_none=True)

    # --- after ---

    def named(self, micro: Pass) -> str:
        """The first few rollouts of a pass."""
        names = sorted({f"`{self.items[n].sample.rollout_id}`" for n in micro.samples})
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    def report(self, seconds: float, version: int) -> UpdateReport:
        """What the step did."""
        items = self.items
        tokens = sum(len(item.source.token_ids) for item in items)
        age, oldest = (0.0, 0) if self.supervised else batch.staleness(items, version)
        return UpdateReport(
            samples=len(items),
            tokens=tokens,
            trained_tokens=sum(len(item.source.targets) for item in items),
            computed_tokens=self.computed,
            tokens_per_second=tokens / seconds if seconds > 0 else 0.0,
            seconds=seconds,
            optimizer_steps=self.steps,
            skipped=tuple(self.skipped) if items else ("no sample has a token to learn from",),
            learning_rate=self.learning_rate,
            staleness_mean=age,
            staleness_max=oldest,
            **self.means.values(),
        )
