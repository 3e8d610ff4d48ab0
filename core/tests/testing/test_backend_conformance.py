"""The conformance class for backends passes a true one, and finds the faults that it is there for."""

import asyncio
import contextlib
import inspect
import subprocess
import sys

import msgspec
import pytest

from lightning_core.backend import Backend
from lightning_core.capability import Capability
from lightning_core.errors import UsageError
from lightning_core.learn.compare import paired_gain
from lightning_core.learn.validation import rewards_by_task
from lightning_core.optimization import OptimizeConfig
from lightning_core.rollout import Mode
from lightning_core.runs import Artifact, RolloutRequest
from lightning_core.strategy import PromptTemplate, Strategy
from lightning_core.testing import BackendConformance
from lightning_core.testing.backend import INSTRUCTION, Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class TwoPrompts(Backend):
    """Tries the agent's prompt and another one, and keeps the other where it is shown to be better."""

    name = "two-prompts"
    gives = frozenset({Capability.TUNES_STRATEGY})
    needs_model = False
    formats = ("strategy.json",)

    def check(self, config):
        for option in config.optimize.options:
            raise UsageError(f"backend `{self.name}`: no option {option!r}; it has none")

    async def optimize(self, run):
        other = PromptTemplate(original=INSTRUCTION, template="Answer in small letters.")
        strategy = Strategy(prompt_templates={"manner": other})
        tasks = await run.tasks("val")
        before, after = [await self.rewards(run, tasks, each) for each in (Strategy(), strategy)]
        if len({value for values in (*before.values(), *after.values()) for value in values}) < 2:
            raise UsageError("reward: is the same for all; give one that tells better from worse")
        return self.ended(run, strategy, paired_gain(before, after))

    async def rewards(self, run, tasks, strategy):
        key = strategy.digest[:8]
        requests = [
            RolloutRequest(task=task, count=2, mode=Mode.OBSERVE, key=key, strategy=strategy)
            for task in tasks
        ]
        return rewards_by_task(trace for group in await run.rollouts(requests) for trace in group)

    def ended(self, run, strategy, gain):
        (strategy if gain.improved else Strategy()).dump(run.folder / "strategy.json")
        return Artifact(
            kind="strategy", path="strategy.json", apply="lightning-core serve --strategy strategy.json",
            metrics={"val": msgspec.to_builtins(gain), "improved": gain.improved},
        )  # fmt: skip

    def export(self, folder, *, format, output):
        output.write_bytes((folder / "strategy.json").read_bytes())
        return output


CONFIG = OptimizeConfig(backend="two-prompts")


class Asked(BackendConformance):
    @pytest.fixture
    def asked(self):
        return {"config": CONFIG}


class TestTwoPrompts(Asked):
    @pytest.fixture
    def backend(self):
        return TwoPrompts()

    async def test_it_finds_what_is_better(self, stage):
        metrics = (await stage.optimize()).artifact.metrics
        assert metrics["improved"]


class Undeclared(TwoPrompts):
    gives = frozenset()


class Careless(TwoPrompts):
    """Looks at its options once the run has begun."""

    def check(self, config):
        pass

    async def optimize(self, run):
        super().check(run.config)
        return await super().optimize(run)


class Boasting(TwoPrompts):
    """Tells of a file that it has not written."""

    def ended(self, run, strategy, gain):
        return msgspec.structs.replace(super().ended(run, strategy, gain), path="other.json")


class Forgetful(TwoPrompts):
    """Asks for other rollouts each time."""

    starts = 0

    async def optimize(self, run):
        self.starts += 1
        return await super().optimize(run)

    async def rewards(self, run, tasks, strategy):
        named = msgspec.structs.replace(strategy, decision_rules={"start": self.starts})
        return await super().rewards(run, tasks, named)


class Deaf(TwoPrompts):
    """Takes a stop for the end of its work."""

    async def rewards(self, run, tasks, strategy):
        with contextlib.suppress(asyncio.CancelledError):
            return await super().rewards(run, tasks, strategy)
        return {task.id: [0.0, 1.0] for task in tasks}


class Messy(TwoPrompts):
    """Leaves a process behind."""

    async def optimize(self, run):
        self.left = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        return await super().optimize(run)


class Touchy(TwoPrompts):
    """Has no use for a rollout that failed."""

    async def rewards(self, run, tasks, strategy):
        found = await super().rewards(run, tasks, strategy)
        if not all(found.values()):
            raise RuntimeError("a rollout failed")
        return found


class Hopeful(TwoPrompts):
    """Sees a gain wherever it looks."""

    async def optimize(self, run):
        strategy, tasks = Strategy(), await run.tasks("val")
        rewards = await self.rewards(run, tasks, strategy)
        better = {task: [value + 0.1 for value in values] for task, values in rewards.items()}
        return self.ended(run, strategy, paired_gain(rewards, better))


class Silent(TwoPrompts):
    """Does not mind a reward that says nothing."""

    async def optimize(self, run):
        rewards = await self.rewards(run, await run.tasks("val"), Strategy())
        return self.ended(run, Strategy(), paired_gain(rewards, rewards))


STOPPED = "test_a_run_that_was_stopped_goes_on_and_repeats_no_rollout_that_had_ended"
FLAT = "test_a_reward_that_never_differs_is_told_and_gains_nothing"
FAULTS = [
    (Undeclared, "test_it_says_what_it_is_what_it_needs_and_what_it_gives", "trains_weights"),
    (Careless, "test_what_cannot_work_is_refused_before_anything_runs", "a folder was made"),
    (Boasting, "test_it_ends_in_an_artifact_that_can_be_read_back_and_exported", r"other\.json"),
    (Forgetful, STOPPED, "asked for others than before"),
    (Deaf, STOPPED, "took a stop for something else"),
    (Messy, "test_a_stop_leaves_nothing_behind", "descendants"),
    (Touchy, "test_an_agent_that_fails_does_not_end_the_run", "a rollout failed"),
    (Hopeful, FLAT, "improved"),
    (Silent, FLAT, "nobody was told"),
]


@pytest.mark.parametrize(("kind", "test", "said"), FAULTS)
async def test_a_fault_is_found(kind, test, said, request, scripted_server, tmp_path, monkeypatch):
    case, backend, asked = Asked(), kind(), {"config": CONFIG}
    scripted_server.respond(case.answer)
    made = {
        "backend": backend,
        "asked": asked,
        "stage": Stage(backend, asked, tmp_path / "runs", scripted_server, monkeypatch),
    }
    check = getattr(case, test)
    names = inspect.signature(check).parameters
    given = {name: made.get(name) or request.getfixturevalue(name) for name in names}

    async def checked():
        if inspect.isawaitable(done := check(**given)):
            await done

    with pytest.raises((AssertionError, RuntimeError, pytest.fail.Exception), match=said):
        await checked()
    if isinstance(backend, Messy):
        backend.left.communicate()
