"""Learning: from recorded traces to samples with advantages. No torch: trainers are in backends."""

from lightning_core.learn.advantage import Gae, gae
from lightning_core.learn.aggregation import Aggregation
from lightning_core.learn.credit import CreditRule, CreditRuleFactory, parse_credit
from lightning_core.learn.forest import Built, build_samples
from lightning_core.learn.report import StepReport
from lightning_core.learn.rules import SampleRules
from lightning_core.learn.sample import NO_VERSION, Drift, Joined, Sample, Segment, Skipped
from lightning_core.learn.samplers import SamplerFactory, TaskSampler, create_sampler
from lightning_core.learn.scoring import GroupBy
from lightning_core.learn.step import LearningRules, Step, make_step, tasks_to_refill

__all__ = [
    "NO_VERSION",
    "Aggregation",
    "Built",
    "CreditRule",
    "CreditRuleFactory",
    "Drift",
    "Gae",
    "GroupBy",
    "Joined",
    "LearningRules",
    "Sample",
    "SampleRules",
    "SamplerFactory",
    "Segment",
    "Skipped",
    "Step",
    "StepReport",
    "TaskSampler",
    "build_samples",
    "create_sampler",
    "gae",
    "make_step",
    "parse_credit",
    "tasks_to_refill",
]
