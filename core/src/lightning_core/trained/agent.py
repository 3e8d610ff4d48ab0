"""TrainedAgent: runs a flow from a strategy file alone, without the agent that the file was made for."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from lightning_core.errors import UsageError
from lightning_core.strategy import ErrorHandling, ModelChoice, Step, Strategy
from lightning_core.trained.asking import StepPrompts, fillable, text_of
from lightning_core.trained.chat import ChatClient
from lightning_core.trained.fences import unfenced
from lightning_core.trained.flow import DEFAULT_STEPS, Checker, Executor, Flow, Log, Plan
from lightning_core.trained.record import Attempted

_RULES: Final = ("max_attempts", "rewrite_threshold", "error_handling")
_WARN: Final = logging.getLogger(__name__).warning

Context = Mapping[str, object] | str | None
"""What fills holes, by name; a text fills `context`."""


class TrainedAgent:
    """Runs the flow of a strategy: write, execute, check, rewrite, … What the model writes is run by nothing but `executor`.

    **Flow.** The chosen option of `interaction_patterns["flow"]`; else write, execute, check, rewrite, execute, check. A
    rewrite is left out where nothing is known to be wrong, but in a flow that neither executes nor checks. After the last
    step, rewrite, execute and check go on while something is wrong and attempts are left.

    **Prompts.** Those of a step are the slots whose name or label begins with the step's name. Where none has the role `user`,
    a message with all that is known is added. Without a prompt for `rewrite`, that for `write` is used again, followed by the
    solution and what is wrong with it.

    **Holes.** They are filled from the context by name. Then come, under the usual names: the task (`task`, `question`,
    `input`, `request`); but for `write`, the solution (`solution`, `query`, `sql`, `code`, `answer`), its result (`result`,
    `rows`, `output`; cut short at 4,000 characters) and what is wrong with it (`error`, `feedback`, `problem`, `review`;
    empty for nothing); the number of the attempt (`attempt`).

    **Checks.** The checker; without one the model, where the strategy has a prompt for `check` (`read_verdict` says how its
    reply is read; what cannot be read scores 0.5); else whether it could be executed. A solution whose execution failed scores
    0 and is not checked.

    **Rules.** `max_attempts` (3) bounds the solutions that are written; a score below `rewrite_threshold` (0.5) asks for a
    rewrite; `error_handling` says what becomes of a solution whose execution fails.

    **Growing careful.** The temperature of writing falls with each attempt, in equal steps, to 0 at the last; and the best
    solution is returned, not the last.

    May be used by several threads at once, where executor and checker may.
    """

    def __init__(
        self,
        *,
        strategy_file: str | os.PathLike[str] | Strategy,
        model_endpoint: str | None = None,
        model: str | None = None,
        executor: Executor | None = None,
        checker: Checker | None = None,
        extract: Callable[[str], str] = unfenced,
        api_key_env: str | None = None,
        timeout: float = 120.0,
        temperature: float | None = 1.0,
        log: Log = _WARN,
    ) -> None:
        """
        Args:
            strategy_file: the strategy, or the path of its file.
            model_endpoint: `http://HOST/v1`; None is `OPENAI_BASE_URL`, else OpenAI's.
            model: the model, where the strategy's `models` name none for a step.
            executor: runs a solution and returns its result; raises where it fails. It must be safe against what a model may
                write. Without one nothing is executed.
            checker: says from task, solution and result how right the solution is: True, False, a score from 0 to 1, or
                `(score, feedback)`.
            extract: gives the solution of a reply; takes off code fences. For code, `last_fenced` finds it between words.
            api_key_env: the variable that holds the key. By default `OPENAI_API_KEY`, which is sent to OpenAI and to the host
                of `OPENAI_BASE_URL` alone.
            timeout: seconds that a reply may take.
            temperature: of the first attempt, where the strategy says none; None, for models that take none, asks for none. A
                check is asked at 0, where the strategy says nothing else.
            log: is told what is worth knowing and is no error: a check that cannot be read, context that no prompt asks for, parts of the strategy that the flow does not use.

        Raises:
            FormatError: the file is no strategy.
            UsageError: the file cannot be read, lacks a prompt or a model for a step, or its flow does not begin with `write`;
                an address, a key or a function cannot be used.
        """
        for name, function in (("executor", executor), ("checker", checker), ("extract", extract)):
            _check_function(name, function)
        strategy = (
            strategy_file if isinstance(strategy_file, Strategy) else Strategy.load(strategy_file)
        )
        self.strategy = strategy
        """The strategy that is run."""
        self._log = log
        steps = _steps(strategy, log)
        prompts = {
            step: found
            for step in dict.fromkeys((*steps, Step.REWRITE))
            if (found := StepPrompts.of(strategy, step))
        }
        if Step.WRITE not in prompts:
            raise UsageError(
                "strategy: has no prompt for the step `write`: expected a slot whose name or label begins with `write`; it has"
                f" {_named(strategy.prompt_templates) or 'none'}"
            )
        if unused := _unused(strategy):
            agent = strategy.provenance.agent
            log(
                f"strategy: no flow uses {', '.join(unused)}; that is for"
                f" {f'`{agent}`' if agent else 'the agent that it was made for'} alone"
            )
        rules = strategy.decision_rules
        max_attempts = int(rules.get("max_attempts", 3))
        asking = [Step.WRITE]
        if max_attempts > 1:
            asking.append(Step.REWRITE)
        if Step.CHECK in prompts and checker is None:
            asking.append(Step.CHECK)
        self._plan = Plan(
            steps=steps,
            prompts=prompts,
            choices=_choices(strategy, prompts, asking, model, temperature, log),
            max_attempts=max_attempts,
            threshold=float(rules.get("rewrite_threshold", 0.5)),
            error_handling=ErrorHandling(rules.get("error_handling", ErrorHandling.REWRITE)),
            client=ChatClient(model_endpoint, api_key_env=api_key_env, timeout=timeout),
            extract=extract,
            executor=executor,
            checker=checker,
            log=log,
        )

    def execute(self, task: str, context: Context = None) -> tuple[str, Any]:
        """The solution of a task, and the result of its execution: the exception, where that failed; None without an executor.

        Args:
            task: the task, as text.
            context: what fills holes of the prompts, by name; a text fills `context`.

        Raises:
            UsageError: nothing fills a hole, or the checker returned what is no score.
            EngineError: the model cannot be asked.
            Exception: what the checker raises; where `error_handling` is `raise`, what the executor raises.
        """
        done = self.attempt(task, context)
        return done.solution, done.result

    async def aexecute(self, task: str, context: Context = None) -> tuple[str, Any]:
        """As `execute`, without blocking the event loop: executor and checker run in a thread of the loop's default pool."""
        stop = threading.Event()
        try:
            done = await asyncio.to_thread(self._attempt, task, context, stop)
        finally:
            stop.set()
        return done.solution, done.result

    def attempt(self, task: str, context: Context = None) -> Attempted:
        """As `execute`, with all attempts, scores, errors and questions to the model."""
        return self._attempt(task, context, threading.Event())

    def _attempt(self, task: str, context: Context, stop: threading.Event) -> Attempted:
        if not isinstance(task, str):
            raise UsageError(f"`task`: expected a text but got {task!r}")
        given = {"context": context} if isinstance(context, str) else dict(context or {})
        values = {name: text_of(value) for name, value in given.items()}
        self._check_holes(values)
        return Flow(self._plan, task, values, stop).run()

    def _check_holes(self, context: Mapping[str, str]) -> None:
        """Refuse, before anything is paid for, prompts with holes that nothing fills."""
        plan = self._plan
        results = plan.executor is not None and Step.EXECUTE in plan.steps
        asked = {step: plan.prompts[step] for step in plan.choices if step in plan.prompts}
        lacking = [
            hole
            for step, prompts in asked.items()
            for hole in prompts.lacks([*fillable(step, results=results), *context])
        ]
        if lacking:
            usual, first = (fillable(s, results=results) for s in (Step.REWRITE, Step.WRITE))
            raise UsageError(
                f"strategy: nothing fills {', '.join(lacking)}; give it in `context`, by name. Given: {_named(context) or 'nothing'}."
                f" The flow fills {_named(usual)}; in the step `write` only {_named(first)}"
            )
        holes = {hole for prompts in asked.values() for hole in prompts.holes}
        for name in context:
            if name not in holes:
                self._log(f"context `{name}`: no prompt has such a hole; it is not used")


def _check_function(name: str, function: Callable[..., Any] | None) -> None:
    if function is None and name != "extract":
        return
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise UsageError(f"`{name}`: expected a function that is not async but got {function!r}")


def _steps(strategy: Strategy, log: Log) -> tuple[Step, ...]:
    pattern = strategy.interaction_patterns.get("flow")
    if pattern is None:
        return DEFAULT_STEPS
    steps = pattern.options[pattern.chosen]
    where = f"flow {pattern.chosen!r}"
    if not steps:
        log(f"{where}: the strategy has no steps for it; taking {_named(DEFAULT_STEPS)}")
        return DEFAULT_STEPS
    if steps[0] is not Step.WRITE:
        raise UsageError(f"{where}: expected `write` as its first step but got `{steps[0]}`")
    return steps


def _unused(strategy: Strategy) -> list[str]:
    """What of a strategy no flow uses: it is for the agent that it was made for alone."""
    steps = tuple(Step)
    slots = {
        name: prompt.label
        for name, prompt in strategy.prompt_templates.items()
        if any(text.casefold().startswith(steps) for text in (name, prompt.label))
    }
    every = {
        "prompt": (strategy.prompt_templates, slots),
        "rule": (strategy.decision_rules, _RULES),
        "pattern": (strategy.interaction_patterns, ("flow",)),
        "model of": (strategy.models, (*slots.values(), *steps, "*")),
    }
    return [
        f"{kind} `{name}`"
        for kind, (names, used) in every.items()
        for name in names
        if name not in used
    ]


def _choices(
    strategy: Strategy,
    prompts: Mapping[Step, StepPrompts],
    asking: list[Step],
    model: str | None,
    temperature: float | None,
    log: Log,
) -> dict[Step, ModelChoice]:
    """The model of each step in `asking`, with what its sampling is asked for."""
    found = {}
    for step in asking:
        label = prompts.get(step, prompts[Step.WRITE]).label
        choice = strategy.models.get(label) or strategy.models.get("*") or ModelChoice()
        named = choice.model or model
        if not named:
            raise UsageError(
                f"step `{step}`: no model for it; give `model`, or name one in the strategy under `models` for `{label}` or `*`"
            )
        own = temperature
        if step is Step.CHECK and temperature is not None:
            own = 0.0
        found[step] = msgspec.structs.replace(
            choice,
            model=named,
            temperature=own if choice.temperature is None else choice.temperature,
        )
    if model and all(choice.model != model for choice in found.values()):
        others = _named(dict.fromkeys(str(choice.model) for choice in found.values()))
        log(f"model `{model}`: not used, as the strategy chooses {others}")
    return found


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
