"""One search of another optimiser, in the environment that `bench.prompt` makes: `gepa` alone, or one of DSPy's.

Its order is a JSON object on standard input, its answer one in the file that the order names. What it prints is the
optimiser's own.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy
import gepa
from dspy.teleprompt import BootstrapFewShotWithRandomSearch, LabeledFewShot
from gepa.adapters.default_adapter.default_adapter import DefaultAdapter, EvaluationResult
from gepa.lm import LM

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "tool_calls"))
from agent import INSTRUCTION, MAX_TOKENS
from scoring import score

THREADS = 8
SHOWN = 8
"""Demonstrations at most, as ours."""
BOOTSTRAPPED = 4
"""How many of them at most are the program's own right answers: DSPy's default. The others are expected ones."""
PROPOSAL_TOKENS = 96
"""Of what is reflected or proposed at most."""
CHAT_TOKENS = 48
"""Of a reply in the default format of DSPy's: a call takes 12, the fields around it the rest."""

rollouts = 0
"""Runs of the agent so far."""


def graded(said: str, expected: str) -> Any:
    """The reward of the example's own score function."""
    return score(SimpleNamespace(expected=expected), SimpleNamespace(output={"said": said}))[0]


class Plain(dspy.Adapter):
    """Messages as the agent's own: the instruction, demonstrations as turns, the request; the reply is the answer.

    `dspy.Adapter` is made to be subclassed for this. A model of 135M often fails to keep to the default's
    `[[ ## field ## ]]`.
    """

    def format_system_message(self, signature: Any) -> str:
        """The instruction alone."""
        return str(signature.instructions)

    def format_user_message_content(
        self, signature: Any, inputs: dict[str, Any], prefix: str = "", suffix: str = "", main_request: bool = False
    ) -> str:  # fmt: skip
        """The one input; several, as the proposer's, by name."""
        given = {name: inputs[name] for name in signature.input_fields if name in inputs}
        if len(given) == 1:
            return str(next(iter(given.values())))
        (wanted,) = signature.output_fields.values()
        told = "\n\n".join(f"{name}: {value}" for name, value in given.items())
        return f"{told}\n\n{wanted.json_schema_extra['desc']}"

    def format_assistant_message_content(
        self, signature: Any, outputs: dict[str, Any], missing_field_message: str | None = None
    ) -> str:
        """The one output."""
        (name,) = signature.output_fields
        return str(outputs[name])

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        """The reply is the output, whatever it is."""
        (name,) = signature.output_fields
        return {name: completion}


class Agent(dspy.Module):
    """The agent as a user of DSPy would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.call = dspy.Predict(dspy.Signature("request -> call", INSTRUCTION))

    def forward(self, request: str) -> Any:
        """One rollout."""
        global rollouts
        rollouts += 1
        return self.call(request=request)


def metric(example: Any, prediction: Any, trace: Any = None) -> float:
    """The same reward; where a demonstration is made of it, only what is right will do, as DSPy's documents have it."""
    value = float(graded(prediction.call or "", example.call).value)
    return value if trace is None else float(value == 1.0)


def examples(tasks: Sequence[dict[str, Any]]) -> list[Any]:
    """Tasks as DSPy has them."""
    return [
        dspy.Example(request=task["input"]["request"], call=task["expected"]).with_inputs("request")
        for task in tasks
    ]


def labeled(order: dict[str, Any], learn: list[Any], choose: list[Any]) -> Any:
    """Demonstrations at random, with expected answers; nothing is tried."""
    # Its own draw is the same each time, so that the seed's order of the tasks decides.
    return LabeledFewShot(k=SHOWN).compile(Agent(), trainset=learn + choose, sample=False)


def bootstrap(order: dict[str, Any], learn: list[Any], choose: list[Any]) -> Any:
    """`BootstrapFewShot`: the first right answers of a teacher that is shown expected ones, filled up with these."""
    optimizer = dspy.BootstrapFewShot(
        metric=metric, max_bootstrapped_demos=BOOTSTRAPPED, max_labeled_demos=SHOWN, max_errors=10_000
    )  # fmt: skip
    return optimizer.compile(Agent(), trainset=learn + choose)


def own(order: dict[str, Any], learn: list[Any], choose: list[Any]) -> Any:
    """`BootstrapFewShot` without expected answers: the agent's own right answers alone."""
    optimizer = dspy.BootstrapFewShot(
        metric=metric, max_bootstrapped_demos=SHOWN, max_labeled_demos=0, max_errors=10_000
    )
    return optimizer.compile(Agent(), trainset=learn + choose)


def search(order: dict[str, Any], learn: list[Any], choose: list[Any]) -> Any:
    """Many bootstrapped sets, the best on tasks to choose by; as many as the budget allows, with three that are always."""
    optimizer = BootstrapFewShotWithRandomSearch(
        metric=metric, max_bootstrapped_demos=BOOTSTRAPPED, max_labeled_demos=SHOWN, max_errors=10_000,
        num_candidate_programs=max(1, order["budget"] // (len(choose) + 2 * BOOTSTRAPPED) - 3), num_threads=THREADS,
    )  # fmt: skip
    return optimizer.compile(Agent(), trainset=learn, valset=choose)


def mipro(order: dict[str, Any], learn: list[Any], choose: list[Any]) -> Any:
    """`MIPROv2` of six instructions and six sets of demonstrations, as its `auto="light"` has.

    Its proposer is not shown the program's source, which is thousands of tokens that say nothing of the task.
    """
    candidates = 6
    taken = candidates * 2 * BOOTSTRAPPED
    optimizer = dspy.MIPROv2(
        metric=metric, auto=None, num_candidates=candidates, max_bootstrapped_demos=BOOTSTRAPPED, max_errors=10_000,
        max_labeled_demos=SHOWN, num_threads=THREADS, prompt_model=proposer(order), seed=order["seed"] + 1,
    )  # fmt: skip
    return optimizer.compile(
        Agent(), trainset=learn, valset=choose, minibatch=False, program_aware_proposer=False,
        num_trials=max(1, (order["budget"] - taken) // len(choose) - 1),
    )  # fmt: skip


def proposer(order: dict[str, Any]) -> Any:
    """The same model, that proposes."""
    return dspy.LM(
        f"openai/{order['model']}", api_base=order["address"], api_key="any", cache=False, temperature=1.0,
        max_tokens=PROPOSAL_TOKENS,
    )  # fmt: skip


DSPY: dict[str, Callable[[dict[str, Any], list[Any], list[Any]], Any]] = {
    "labeled": labeled,
    "bootstrap": bootstrap,
    "own": own,
    "search": search,
    "mipro": mipro,
}


def by_dspy(order: dict[str, Any], learn: Sequence[Any], choose: Sequence[Any]) -> dict[str, Any]:
    """Search, then run what was found on the held-out tasks."""
    plain = order["adapter"] == "plain"
    sampling = {"max_tokens": MAX_TOKENS, "stop": ["\n"]} if plain else {"max_tokens": CHAT_TOKENS}
    lm = dspy.LM(
        f"openai/{order['model']}", api_base=order["address"], api_key="any", cache=False, temperature=0, **sampling
    )  # fmt: skip
    dspy.configure(lm=lm, adapter=Plain() if plain else dspy.ChatAdapter())
    began = time.monotonic()
    program = DSPY[order["method"]](order, examples(learn), examples(choose))
    taken, seconds = rollouts, time.monotonic() - began
    evaluate = dspy.Evaluate(
        devset=examples(order["held_out"]), metric=metric, num_threads=THREADS, max_errors=10_000
    )
    rewards = [value for _, _, value in evaluate(program).results]
    return {
        "rewards": dict(zip([task["id"] for task in order["held_out"]], rewards, strict=True)),
        "rollouts": taken,
        "seconds": seconds,
        "found": {
            "instruction": program.call.signature.instructions,
            "demonstrations": [[demo["request"], demo["call"]] for demo in program.call.demos],
        },
    }


def by_gepa(order: dict[str, Any], learn: Sequence[Any], choose: Sequence[Any]) -> dict[str, Any]:
    """`gepa.optimize` with its own adapter and template, then what was found on the held-out tasks."""
    name = f"openai/{order['model']}"
    at = {"api_base": order["address"], "api_key": "any"}

    def evaluated(data: Any, response: str) -> EvaluationResult:
        reward = graded(response, data["answer"])
        return EvaluationResult(score=float(reward.value), feedback=reward.feedback or "Right.")

    def instances(tasks: Sequence[Any]) -> list[Any]:
        return [
            {
                "input": task["input"]["request"],
                "additional_context": {},
                "answer": task["expected"],
            }
            for task in tasks
        ]

    adapter = DefaultAdapter(
        model=name, evaluator=evaluated, max_litellm_workers=THREADS,
        litellm_batch_completion_kwargs={**at, "temperature": 0, "max_tokens": MAX_TOKENS, "stop": ["\n"]},
    )  # fmt: skip
    began = time.monotonic()
    result = gepa.optimize(
        seed_candidate={"instruction": INSTRUCTION}, trainset=instances(learn), valset=instances(choose),
        adapter=adapter, reflection_lm=LM(name, temperature=1.0, max_tokens=PROPOSAL_TOKENS, **at),
        max_metric_calls=order["budget"], seed=order["seed"],
    )  # fmt: skip
    seconds = time.monotonic() - began
    rewards = adapter.evaluate(instances(order["held_out"]), result.best_candidate).scores
    return {
        "rewards": dict(zip([task["id"] for task in order["held_out"]], rewards, strict=True)),
        "rollouts": result.total_metric_calls,
        "seconds": seconds,
        "found": {"candidates": result.candidates, "scores": result.val_aggregate_scores},
    }


def main() -> None:
    """Do what the order says."""
    order = json.load(sys.stdin)
    tasks = list(order["train"])
    random.Random(order["seed"]).shuffle(tasks)
    choose, learn = tasks[: order["choose"]], tasks[order["choose"] :]
    do = by_gepa if order["method"] == "gepa" else by_dspy
    Path(order["answer"]).write_text(json.dumps(do(order, learn, choose)))


if __name__ == "__main__":
    main()
