"""Conformance of a backend: subclass `BackendConformance`, say how to make yours and what to ask of it, and pytest runs it.

    class TestMyBackend(BackendConformance):
        @pytest.fixture
        def backend(self) -> Backend:
            return MyBackend()

        @pytest.fixture
        def asked(self) -> dict[str, Any]:
            return {"config": OptimizeConfig(backend="mine", budget="60 rollouts")}

The agent is a function that asks a model for one reply, in which small letters are rewarded. Without `model` its calls go
to a scripted server, which answers in capitals unless it is told or shown otherwise. Needs the `openai` SDK, pytest and
pytest-asyncio in its auto mode.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from lightning_core.backend import Backend
from lightning_core.capability import Capability
from lightning_core.errors import LightningError, UsageError
from lightning_core.folder import RunFolder
from lightning_core.learn.compare import Gain
from lightning_core.optimization import OptimizeConfig
from lightning_core.rollout import Cause
from lightning_core.running import optimize as optimizing
from lightning_core.running import prepare as preparing
from lightning_core.runs import Artifact, OptimizeResult
from lightning_core.strategy import Strategy
from lightning_core.task import Task
from lightning_core.testing.processes import descendants
from lightning_core.testing.received import Received
from lightning_core.testing.replies import Reply
from lightning_core.testing.scripted import ScriptedServer
from lightning_core.trace import Trace

INSTRUCTION: Final = "You are a helpful assistant."
"""The agent's prompt."""
_CONCURRENCY: Final = 4
_STOP_SECONDS: Final = 60.0
_WORDS: Final = [f"the {first}{second}" for first in "abcdef" for second in "mnop"]

Agent = Callable[[str], Awaitable[str]]
Score = Callable[[Task, Trace], float]


async def ask(words: str) -> str:
    """The agent: one call, through the user's own SDK; it knows nothing of any of this."""
    from openai import AsyncOpenAI  # noqa: PLC0415 - needed by this class alone

    async with AsyncOpenAI() as client:
        reply = await client.chat.completions.create(
            model="any",
            messages=[
                {"role": "system", "content": INSTRUCTION},
                {"role": "user", "content": words},
            ],
        )
    return reply.choices[0].message.content or ""


def small_letters(task: Task, trace: Trace) -> float:
    """The share of the reply that is small letters or spaces."""
    said = str(trace.output)
    return sum(letter.islower() or letter == " " for letter in said) / max(len(said), 1)


class Stage:
    """Runs the backend, and keeps count of what it runs."""

    def __init__(
        self,
        backend: Backend,
        asked: dict[str, Any],
        runs: Path,
        server: ScriptedServer,
        patch: pytest.MonkeyPatch,
    ) -> None:
        patch.setenv("OPENAI_BASE_URL", server.base_url)
        patch.setenv("OPENAI_API_KEY", "sk-scripted")
        # Whether it is installed as a plugin or not.
        for module in (optimizing, preparing):
            patch.setattr(module, "find_backend", lambda name, plugins: backend)
        self.backend = backend
        self.runs = runs
        self.ended = 0
        """How often the agent has come to its end."""
        self._enough: Callable[[], object] = lambda: None
        self._graded = self._wanted = 0
        self._asked = asked
        self._tasks = [Task(id=f"t{n}", input=w, expected=w) for n, w in enumerate(_WORDS)]

    @property
    def config(self) -> OptimizeConfig:
        """What the subclass asks of it."""
        config = self._asked["config"]
        assert isinstance(config, OptimizeConfig)
        return config

    async def optimize(
        self,
        name: str = "run",
        *,
        agent: Agent = ask,
        reward: Score = small_letters,
        resume: bool = False,
        **changes: Any,
    ) -> OptimizeResult:
        """One run of it, on 16 tasks to learn from and 8 to validate on."""

        async def counted(words: str) -> str:
            said = await agent(words)
            self.ended += 1
            return said

        def graded(task: Task, trace: Trace) -> float:
            self._graded += 1
            if self._graded == self._wanted:
                self._enough()
            return reward(task, trace)

        given = {"concurrency": _CONCURRENCY, "max_attempts": 2, **self._asked, **changes}
        return await optimizing.optimize(
            counted, self._tasks[:16], given.pop("config"), val=self._tasks[16:], reward=graded,
            runs=self.runs, name=name, resume=resume, **given,
        )  # fmt: skip

    async def stop_after(self, count: int, name: str) -> None:
        """Begin a run and stop it once so many of its rollouts are graded; fails where it does not stop."""
        loop, reached = asyncio.get_running_loop(), asyncio.Event()
        self._graded, self._wanted = 0, count
        self._enough = lambda: loop.call_soon_threadsafe(reached.set)
        running = asyncio.create_task(self.optimize(name))
        waiting = asyncio.create_task(reached.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if running.done():
            running.result()
            pytest.fail(f"the run ended before {count} rollouts were graded")
        running.cancel()
        _, late = await asyncio.wait({running}, timeout=_STOP_SECONDS)
        assert not late, f"it goes on {_STOP_SECONDS:.0f} s after it was stopped"
        assert running.cancelled(), "it took a stop for something else"

    def lines(self, name: str = "run") -> list[dict[str, Any]]:
        """The lines of the run's `metrics.jsonl`."""
        return list(RunFolder(self.runs / name).lines())

    def rollouts(self, name: str) -> list[str]:
        """The ids of the rollouts that it told of."""
        return [line["rollout"] for line in self.lines(name) if "rollout" in line]


class BackendConformance:
    """What every backend must hold."""

    @pytest.fixture
    def backend(self) -> Backend:
        """The backend. Override it."""
        raise NotImplementedError

    @pytest.fixture
    def asked(self) -> dict[str, Any]:
        """What `lightning_core.optimize` is asked: `config`, and `model` and the like where it is needed. Override it.

        The less it takes, the better; but some forty rollouts, in a number that chance does not change much.
        """
        raise NotImplementedError

    def answer(self, request: Received) -> Reply | None:
        """What the scripted model says: the words in capitals, or as they are where that is shown or told."""
        messages = request.messages
        if not messages:
            return None
        words = str(messages[-1]["content"])
        shown = any(message["role"] == "assistant" for message in messages)
        told = "small letters" in str(messages[0]["content"])
        return words if shown or told else words.upper()

    @pytest.fixture
    def stage(
        self,
        backend: Backend,
        asked: dict[str, Any],
        scripted_server: ScriptedServer,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Stage:
        """A model to ask, and runs of the backend."""
        scripted_server.respond(self.answer)
        return Stage(backend, asked, tmp_path / "runs", scripted_server, monkeypatch)

    # ---------------------------------------------------------------------------------------------------------

    def test_it_says_what_it_is_what_it_needs_and_what_it_gives(self, backend: Backend) -> None:
        """A name, capabilities of core's, and at least one thing that it changes."""
        assert isinstance(backend.name, str)
        assert backend.name
        for declared in (backend.needs, backend.gives):
            assert isinstance(declared, frozenset)
            assert all(isinstance(each, Capability) for each in declared)
        assert backend.gives & {Capability.TRAINS_WEIGHTS, Capability.TUNES_STRATEGY}
        assert all(isinstance(each, str) for each in backend.formats)

    async def test_what_cannot_work_is_refused_before_anything_runs(
        self, stage: Stage, asked: dict[str, Any], scripted_server: ScriptedServer
    ) -> None:
        """An option that there is not, a model that is missing, and one that lacks what is needed."""
        options = {**stage.config.options, "no-such-option": "1"}
        with pytest.raises(UsageError, match="no-such-option"):
            await stage.optimize(config=msgspec.structs.replace(stage.config, options=options))
        if stage.backend.needs_model:
            with pytest.raises(UsageError, match="model"):
                await stage.optimize(model=None)
        if stage.backend.needs and not stage.backend.serves:
            address = f"scripted@{scripted_server.base_url}"
            with pytest.raises(UsageError):
                await stage.optimize(
                    model=address, engine="openai", engine_options={"capabilities": ""}
                )
        assert not stage.runs.exists(), "a folder was made"
        assert not scripted_server.requests, "a model was asked"
        assert not stage.ended, "the agent was run"

    async def test_it_ends_in_an_artifact_that_can_be_read_back_and_exported(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """What it says that it wrote is there, in each format, and `artifact.json` tells of it."""
        result = await stage.optimize()
        folder, artifact = Path(result.folder), result.artifact
        assert artifact.kind
        assert artifact.apply
        assert (folder / artifact.path).exists()
        kept = Artifact.from_json((folder / "artifact.json").read_bytes())
        assert kept == Artifact.from_json(artifact.to_json())
        if artifact.kind == "strategy":
            Strategy.load(folder / artifact.path)
        if artifact.metrics.get("val") is not None:
            msgspec.convert(artifact.metrics["val"], Gain)
        assert stage.rollouts("run"), "no rollout was told of"
        for number, form in enumerate(stage.backend.formats):
            output = tmp_path / f"export-{number}"
            written = stage.backend.export(folder, format=form, output=output)
            assert written.stat().st_size if written.is_file() else any(written.iterdir())

    async def test_a_run_that_was_stopped_goes_on_and_repeats_no_rollout_that_had_ended(
        self, stage: Stage
    ) -> None:
        """With `resume` it comes to as many rollouts as one that was not stopped, and runs each once."""
        await stage.optimize("whole")
        whole = len(stage.rollouts("whole"))
        stage.ended = 0
        await stage.stop_after(whole // 2, "stopped")
        before = stage.rollouts("stopped")
        await stage.optimize("stopped", resume=True)
        after = stage.rollouts("stopped")
        assert set(before) <= set(after)
        assert len(after) == len(set(after)), "a rollout was told of twice"
        assert len(after) <= whole + _CONCURRENCY, "it asked for others than before"
        # What was under way when it was stopped is run again.
        assert stage.ended <= len(after) + _CONCURRENCY, "rollouts were run again"

    async def test_a_stop_leaves_nothing_behind(self, stage: Stage) -> None:
        """Once it has stopped, no process that it started is left, and nothing is said to be done."""
        before = descendants()
        await stage.stop_after(6, "stopped")
        assert not descendants() - before
        assert not (stage.runs / "stopped" / "artifact.json").exists()

    async def test_an_agent_that_fails_does_not_end_the_run(self, stage: Stage) -> None:
        """Rollouts that end in an error are data; the others go on."""

        async def failing(words: str) -> str:
            if words.endswith("n"):
                raise RuntimeError("this one is not to my liking")
            return await ask(words)

        result = await stage.optimize(agent=failing)
        assert (Path(result.folder) / result.artifact.path).exists()
        causes = {line["cause"] for line in stage.lines() if "rollout" in line}
        assert causes == {str(Cause.SUCCESS), str(Cause.AGENT_ERROR)}

    async def test_a_reward_that_never_differs_is_told_and_gains_nothing(
        self, stage: Stage, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An error or a warning that names the reward, or steps that say that all groups were equal; and no gain."""

        def flat(task: Task, trace: Trace) -> float:
            return 0.5

        caplog.set_level(logging.WARNING)
        metrics: dict[str, Any] = {}
        try:
            metrics = (await stage.optimize(reward=flat)).artifact.metrics
        except LightningError as error:
            logging.getLogger(__name__).warning("%s", error)
        assert not metrics.get("improved")
        if metrics.get("val") is not None:
            gain = msgspec.convert(metrics["val"], Gain)
            assert gain.gain == 0.0
            assert not gain.improved
        equal = any(line.get("groups/equal") for line in stage.lines())
        assert equal or "reward" in caplog.text, "nobody was told"
