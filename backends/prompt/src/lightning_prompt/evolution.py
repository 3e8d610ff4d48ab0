"""Evolution: better prompts by reflection on what the agent did, with GEPA's search (Agrawal et al. 2025, arXiv:2507.19457)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from gepa.api import optimize as gepa_optimize
from gepa.core.adapter import EvaluationBatch, GEPAAdapter
from gepa.strategies.instruction_proposal import InstructionProposalSignature

from lightning_core.errors import UsageError
from lightning_core.strategy import Strategy
from lightning_core.task import Task
from lightning_core.template import Template
from lightning_core.trace import Call, Trace
from lightning_prompt.evaluation import Evaluator, RefusedError, Scores
from lightning_prompt.marks import Marks
from lightning_prompt.space import Space

log = logging.getLogger("lightning_prompt")

_IDLE: Final = 30
"""Iterations without a rollout of the search's own after which it has nothing left to try."""
_REFUSED: Final = 3
"""New prompts in turn under which no rollout can be run, after which it is not they that are refused."""
_LONGEST: Final = 4000
"""Characters of a text that are shown to the reflection model."""
_MINIBATCH: Final = 3
_ASK: Final = """I provided an assistant with the following prompt to perform a task for me:
```
<curr_param>
```
{holes}
The following are examples of what was put in, what the assistant responded, and feedback on it:
```
<side_info>
```

Write a better prompt for the assistant. Work out from the examples what the task is, what form the answer has, what facts of
the domain the assistant would otherwise not know, and what went wrong; say it in the prompt. Do not repeat the examples.
Provide the new prompt within ``` blocks."""
_HOLES: Final = """
In it {marks} stand for text that is put in each time. The new prompt must contain each of them, written exactly so.
"""


class Evolution:
    """One search for better prompts.

    GEPA runs in a thread of its own, since it is not async; rollouts run in the run's event loop.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        space: Space,
        reflect: Callable[[str], str],
        *,
        compose: Callable[[Mapping[str, str]], Strategy],
        on_scores: Callable[[Scores], Coroutine[Any, Any, None]],
        on_refused: Callable[[Strategy, RefusedError], None],
        seed: int = 0,
    ) -> None:
        """
        Args:
            evaluator: runs the rollouts.
            space: the prompts.
            reflect: the reflection model; called in a thread.
            compose: makes a strategy of the texts of prompts.
            on_scores: told of each strategy that was tried on all of the tasks to choose by.
            on_refused: told of each under which no rollout can be run, such as by a prompt that is too long for the model.
            seed: of the search's draws.
        """
        self._evaluator = evaluator
        self._space = space
        self._reflect = reflect
        self._compose = compose
        self._on_scores = on_scores
        self._on_refused = on_refused
        self._seed = seed

    async def run(
        self,
        seeds: Mapping[str, str],
        learn: Sequence[Task],
        choose: Sequence[Task],
        stop: Callable[[], bool],
    ) -> None:
        """Search until a bound of the budget is reached, or nothing is left to try.

        Args:
            seeds: the prompts to begin with, by slot.
            learn: tasks whose rollouts are reflected on.
            choose: tasks by which prompts are chosen.
            stop: whether the share of the budget for this is used up.

        Raises:
            BudgetReached: the whole budget is.
            RefusedError: under prompts that were tried before, or under several new ones in turn, no rollout can be run.
            LightningError: the reflection model or the agent's could not be asked.
        """
        adapter = _Adapter(self, list(choose), asyncio.get_running_loop())
        idle = _Idle(self._evaluator)
        try:
            await asyncio.to_thread(
                gepa_optimize,
                seed_candidate=dict(seeds),
                trainset=list(learn),
                valset=list(choose),
                adapter=adapter,
                reflection_minibatch_size=min(_MINIBATCH, len(learn)),
                stop_callbacks=[lambda _: adapter.fault is not None or stop() or idle()],
                use_merge=len(seeds) > 1,
                logger=_Quiet(),
                seed=self._seed,
            )
        except Exception:
            if adapter.fault is None:
                raise
        if adapter.fault is not None:
            raise adapter.fault

    async def evaluate(
        self, texts: Mapping[str, str], tasks: Sequence[Task], whole: bool
    ) -> Scores:
        """Run the agent with these prompts."""
        scores = await self._evaluator.evaluate(self._compose(texts), tasks)
        if whole:
            await self._on_scores(scores)
        return scores

    def refused(self, texts: Mapping[str, str], error: RefusedError) -> None:
        """Tell of prompts under which no rollout can be run."""
        self._on_refused(self._compose(texts), error)

    @property
    def lowest(self) -> float:
        """What a rollout counts for that has no reward."""
        return self._evaluator.lowest

    def reflective(self, slot: str, traces: Sequence[Trace]) -> list[dict[str, Any]]:
        """What the reflection model is shown of a prompt's calls: what was put in, what was said, how it was scored."""
        found = self._space.seen(slot)
        records = []
        for trace in traces:
            for call in trace.calls:
                if found is None or call.label == found.label:
                    records.append(
                        {
                            "Inputs": _inputs(call, None if found is None else found.parsed),
                            "Generated Outputs": _shortened(call.text or str(call.tool_calls)),
                            "Feedback": feedback_of(trace),
                        }
                    )
                    break
        return records

    def propose(self, text: str, records: Sequence[Mapping[str, Any]]) -> str:
        """A new text for a prompt; the old one where the reflection model twice gives none that can be used."""
        marks = Marks.of(Template(text))
        ask = _ASK.replace("{holes}", _HOLES.format(marks=marks.listed) if marks.names else "")
        prompt = InstructionProposalSignature.prompt_renderer(
            {
                "current_instruction_doc": marks.shown,
                "dataset_with_feedback": list(records),
                "prompt_template": ask,
            }
        )
        self._evaluator.proposed()
        why = fault = ""
        for _ in range(2):
            reply = self._reflect(f"{prompt}{why}")
            said = InstructionProposalSignature.output_extractor(reply)["new_instruction"]
            try:
                return marks.read(said).source
            except UsageError as error:
                fault = str(error)
                why = f"\n\nYour last answer could not be used: {fault}"
        log.warning("what was proposed could twice not be used: %s; the old prompt stays", fault)
        return text


class _Adapter(GEPAAdapter[Task, Trace, None]):
    """GEPA's view of the run. What goes wrong ends the search: GEPA itself would go on."""

    def __init__(
        self, evolution: Evolution, choose: list[Task], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._evolution = evolution
        self._choose = choose
        self._loop = loop
        self._ran: list[dict[str, str]] = []
        self._refused = 0
        self.fault: Exception | None = None

    def evaluate(
        self, batch: list[Task], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[Trace, None]:
        work = self._evolution.evaluate(candidate, batch, whole=batch == self._choose)
        try:
            scores = asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except RefusedError as error:
            self._refused += 1
            # What refuses prompts that were run before refuses all.
            if candidate in self._ran or self._refused >= _REFUSED:
                self.fault = error
                raise
            self._loop.call_soon_threadsafe(self._evolution.refused, dict(candidate), error)
            none = [self._evolution.lowest] * len(batch)
            return EvaluationBatch(outputs=[None] * len(batch), scores=none)
        except Exception as error:
            self.fault = error
            raise
        if candidate not in self._ran:
            self._ran.append(dict(candidate))
            self._refused = 0
        lowest = self._evolution.lowest
        rewards = [values[0] for values in scores.rewards(lowest).values()]
        return EvaluationBatch(
            outputs=[None] * len(batch),
            # What failed through no fault of the agent counts as the lowest here: GEPA takes numbers alone.
            scores=[lowest if value is None else value for value in rewards],
            trajectories=scores.all if capture_traces else None,
        )

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[Trace, None],
        components_to_update: list[str],
    ) -> dict[str, list[dict[str, Any]]]:
        traces = eval_batch.trajectories or []
        return {name: self._evolution.reflective(name, traces) for name in components_to_update}

    def propose_new_texts(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> dict[str, str]:
        try:
            return {
                name: self._evolution.propose(candidate[name], reflective_dataset[name])
                for name in components_to_update
            }
        except Exception as error:
            self.fault = error
            raise


class _Idle:
    """Whether the search has gone on for long without a rollout of its own."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._last, self._count = -1, 0

    def __call__(self) -> bool:
        now = self._evaluator.requested
        self._count = self._count + 1 if now == self._last else 0
        self._last = now
        return self._count >= _IDLE


class _Quiet:
    def log(self, message: str) -> None:
        log.debug("gepa: %s", message)


def feedback_of(trace: Trace) -> str:
    """What is known of how a rollout went: its reward, the grader's own words, what went wrong."""
    parts = []
    if trace.reward is not None:
        parts.append(f"Score: {trace.reward:g}.")
    parts += [reward.feedback for reward in trace.rewards if reward.feedback]
    if trace.attempt.error:
        parts.append(f"The run failed: {trace.attempt.error.strip().splitlines()[-1]}")
    return _shortened(" ".join(parts))


def _inputs(call: Call, template: Template | None) -> dict[str, str]:
    for message in call.messages if template is not None else ():
        content = message.get("content")
        values = template.match(content) if template and isinstance(content, str) else None
        if isinstance(values, dict) and values:
            return {name: _shortened(value) for name, value in values.items()}
    asked = [m for m in call.messages if m.get("role") == "user"]
    return {"message": _shortened(str(asked[-1].get("content")))} if asked else {}


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
