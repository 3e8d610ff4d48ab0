"""Flow: one execution of a strategy's steps on a task, by its decision rules."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from lightning_core.strategy import ErrorHandling, ModelChoice, Step
from lightning_core.trained.asking import Known, StepPrompts, shortened, text_of
from lightning_core.trained.chat import ChatClient
from lightning_core.trained.record import Asked, Attempted, Tried
from lightning_core.trained.verdict import UNSURE, read_checked, read_verdict

Executor = Callable[[str], Any]
"""Runs a solution and returns its result; raises where it fails."""
Checker = Callable[[str, str, Any], Any]
"""Says how right a solution is, from the task, the solution and its result: True, False, a score from 0 to 1, or
`(score, feedback)`."""
Log = Callable[[str], None]
"""Is told what is worth knowing and is no error."""

DEFAULT_STEPS: Final = (
    Step.WRITE, Step.EXECUTE, Step.CHECK, Step.REWRITE, Step.EXECUTE, Step.CHECK,
)  # fmt: skip
"""The flow of a strategy that has none."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All that one flow is run by, whatever the task."""

    steps: tuple[Step, ...]
    """The flow."""
    prompts: dict[Step, StepPrompts]
    """What the model is asked with: `write` at least."""
    choices: dict[Step, ModelChoice]
    """The model of each step that asks one, with what its sampling is asked for."""
    max_attempts: int
    """How many solutions may be written."""
    threshold: float
    """A score below it asks for a rewrite."""
    error_handling: ErrorHandling
    """What becomes of a solution whose execution fails."""
    client: ChatClient
    """What is asked."""
    extract: Callable[[str], str]
    """The solution of a reply."""
    executor: Executor | None
    """Runs solutions."""
    checker: Checker | None
    """Checks them."""
    log: Log
    """Is told what is worth knowing."""


class Flow:
    """One task on its way through a flow. Single-use."""

    def __init__(
        self, plan: Plan, task: str, context: Mapping[str, str], stop: threading.Event
    ) -> None:
        self._plan = plan
        self._task = task
        self._shown_task = text_of(task)
        self._context = context
        self._stop = stop
        self._is_blind = not {Step.EXECUTE, Step.CHECK} & set(plan.steps)
        self._attempts: list[Tried] = []
        self._calls: list[Asked] = []

    def run(self) -> Attempted:
        """Take the flow's steps, and then rewrite while that is asked for. See `TrainedAgent.attempt` for what is raised."""
        for step in self._plan.steps:
            self._take(step)
        while self._may_write() and self._is_wrong():
            for step in (Step.REWRITE, Step.EXECUTE, Step.CHECK):
                # A flow may do without executing or checking.
                if step is Step.REWRITE or step in self._plan.steps:
                    self._take(step)
        attempts = tuple(self._attempts)
        best = max(range(len(attempts)), key=self._rank)
        return Attempted(
            attempts=attempts,
            best=best,
            accepted=attempts[best].accepted(self._plan.threshold),
            calls=tuple(self._calls),
        )

    def _take(self, step: Step) -> None:
        if step in (Step.WRITE, Step.REWRITE):
            if self._may_write() and (step is Step.WRITE or self._is_blind or self._is_wrong()):
                self._write(step)
        elif step is Step.EXECUTE and not self._attempts[-1].executed:
            self._execute()
        elif step is Step.CHECK and self._attempts[-1].score is None:
            self._check()

    def _may_write(self) -> bool:
        """Whether attempts are left, and no error is to be returned."""
        returns = self._plan.error_handling is ErrorHandling.RETURN
        failed = bool(self._attempts) and self._attempts[-1].error is not None
        return len(self._attempts) < self._plan.max_attempts and not (failed and returns)

    def _is_wrong(self) -> bool:
        """Whether something is known to be wrong with the latest solution."""
        return not self._attempts[-1].accepted(self._plan.threshold)

    def _rank(self, number: int) -> tuple[float, bool, int]:
        """What the best attempt has most of. One that nothing was said of is taken for content."""
        attempt = self._attempts[number]
        score = self._plan.threshold if attempt.score is None else attempt.score
        return score, attempt.error is None, number

    def _write(self, step: Step) -> None:
        number = len(self._attempts) + 1
        known = Known(self._shown_task, str(number))
        if step is Step.WRITE:
            messages = self._plan.prompts[step].messages(self._context, known)
        elif step in self._plan.prompts:
            messages = self._plan.prompts[step].messages(self._context, self._known(number))
        else:
            latest = self._attempts[-1]
            wrong = latest.feedback or "Nothing is known to be wrong with it: look at it again."
            messages = [
                *self._plan.prompts[Step.WRITE].messages(self._context, known),
                {"role": "assistant", "content": latest.reply},
                {"role": "user", "content": f"What is wrong with it:\n{text_of(wrong)}\n\nWrite a better one, in the same form."},
            ]  # fmt: skip
        reply = self._ask(step, messages, number)
        self._attempts.append(Tried(solution=self._plan.extract(reply), reply=reply))

    def _execute(self) -> None:
        latest = self._attempts[-1]
        if self._plan.executor is None:
            return
        try:
            result = self._plan.executor(latest.solution)
        except Exception as error:  # whatever the user's executor raises is the solution's failure
            if self._plan.error_handling is ErrorHandling.RAISE:
                raise
            said = f"{type(error).__name__}: {error}"
            self._change(executed=True, error=error, score=0.0, feedback=said)
        else:
            self._change(executed=True, result=result)

    def _check(self) -> None:
        latest = self._attempts[-1]
        if self._plan.checker is not None:
            score, feedback = read_checked(
                self._plan.checker(self._task, latest.solution, latest.result)
            )
        elif Step.CHECK in self._plan.prompts:
            number = len(self._attempts)
            messages = self._plan.prompts[Step.CHECK].messages(self._context, self._known(number))
            feedback = self._ask(Step.CHECK, messages, number)
            read = read_verdict(feedback)
            if read is None:
                self._plan.log(
                    f"check of attempt {number}: no verdict in {feedback[-80:]!r}; scored {UNSURE}. Have the prompt ask for"
                    " a last line that is `yes`, `no`, or a number from 0 to 1"
                )
            score = UNSURE if read is None else read
        elif latest.executed:
            score, feedback = 1.0, ""
        else:
            return
        if not feedback and score < self._plan.threshold:
            feedback = f"The check scores it {score:g}; {self._plan.threshold:g} is needed."
        self._change(score=score, feedback=feedback)

    def _change(self, **fields: Any) -> None:
        self._attempts[-1] = msgspec.structs.replace(self._attempts[-1], **fields)

    def _known(self, number: int) -> Known:
        """What is known of the latest solution."""
        latest = self._attempts[-1]
        result = text_of(latest.result) if latest.executed else ""
        if latest.error is not None:
            result = f"Error: {latest.error}"
        return Known(
            task=self._shown_task,
            attempt=str(number),
            solution=text_of(latest.solution),
            result=shortened(text_of(result)),
            problem=shortened(text_of(latest.feedback)),
        )

    def _ask(self, step: Step, messages: list[dict[str, str]], number: int) -> str:
        choice = self._plan.choices[step]
        sampling = self._sampling(step, choice, number)
        reply = self._plan.client.ask(
            {"model": choice.model, "messages": messages, **sampling}, self._stop
        )
        self._calls.append(
            Asked(
                step=step,
                attempt=number,
                model=choice.model or "",
                sampling=sampling,
                messages=tuple(messages),
                reply=reply.text,
                prompt_tokens=reply.prompt_tokens,
                completion_tokens=reply.completion_tokens,
            )
        )
        return reply.text

    def _sampling(self, step: Step, choice: ModelChoice, number: int) -> dict[str, float]:
        temperature = choice.temperature
        if temperature is not None and step is not Step.CHECK and number > 1:
            temperature *= 1 - (number - 1) / (self._plan.max_attempts - 1)
        # OpenAI's reasoning models refuse `max_tokens`; other servers know nothing else.
        bound = "max_completion_tokens" if self._plan.client.is_openai else "max_tokens"
        asked = {"temperature": temperature, "top_p": choice.top_p, bound: choice.max_tokens}
        return {name: value for name, value in asked.items() if value is not None}
