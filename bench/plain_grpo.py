"""GRPO in plain torch: what `local-step` is compared with, and a check of what a model learns on an example's tasks.

One script, no server, no agent: prompts are sampled with transformers' `generate`, answers scored, the policy updated
once. `python -m bench.plain_grpo --steps 20` runs it on `examples/order_lookup` and says how well the model does on the
held-out wordings before and after. It spares itself what any good loop would: prompts of one batch begin the same,
samples of one group share their prompt, and equal samples are computed once.

The method is GRPO (arXiv 2402.03300) with one on-policy update per batch, so that the probability ratio is 1: the
gradient of `-advantage * log p`, the mean over each completion's tokens, then over the completions.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[1] / "examples" / "order_lookup"

STUDENT_T = 2.09
"""Its 97.5 % point for 19 degrees of freedom: there are 20 held-out wordings."""

Messages = Sequence[dict[str, str]]
"""A prompt, as chat messages."""


def order_reward(text: str, answer: str) -> float:
    """1 for the number alone, 0.2 where it is among other things, else 0: as the example's `score`."""
    if text.strip() == answer:
        return 1.0
    return 0.2 if re.search(rf"(?<!\d){re.escape(answer)}(?!\d)", text) else 0.0


class PlainGRPO:
    """A model with a LoRA adapter, its optimiser, and one step after the other."""

    def __init__(
        self,
        *,
        model: str = "smollm2",
        group: int = 8,
        max_new_tokens: int = 8,
        temperature: float = 0.8,
        rank: int = 16,
        alpha: int = 32,
        targets: Sequence[str] = ("q_proj", "k_proj", "v_proj", "o_proj"),
        learning_rate: float = 3e-4,
        reward: Callable[[str, str], float] = order_reward,
        seed: int = 0,
    ) -> None:
        """Load the model.

        Args:
            model: `smollm2`, a Hugging Face folder, or a hub id.
            group: samples per prompt.
            max_new_tokens: most tokens of a sample.
            temperature: softmax temperature of the samples.
            rank: rank of the adapter.
            alpha: its scale, times the rank.
            targets: names of the layers that get one.
            learning_rate: of AdamW.
            reward: from a sample's text and the right answer.
            seed: of the samples and the adapter's start.
        """
        import peft
        import torch
        import transformers

        from lightning_local import models

        source = models.locate(model)
        torch.manual_seed(seed)
        tokenizers: Any = transformers.AutoTokenizer  # typed only in part
        networks: Any = transformers.AutoModelForCausalLM
        self.tokenizer = tokenizers.from_pretrained(source)
        base = networks.from_pretrained(source, dtype=torch.float32)
        config = peft.LoraConfig(
            r=rank, lora_alpha=alpha, target_modules=list(targets), task_type="CAUSAL_LM"
        )
        self.model: Any = peft.get_peft_model(base, config).eval()
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimiser = torch.optim.AdamW(
            self.trained, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )
        self.eos = base.generation_config.eos_token_id
        self.group = group
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature
        self.reward = reward

    def encode(self, prompts: Sequence[Messages]) -> list[list[int]]:
        """Token ids of prompts."""
        return [
            self.tokenizer.apply_chat_template(
                list(prompt), add_generation_prompt=True, return_dict=True
            )["input_ids"]
            for prompt in prompts
        ]

    def step(self, prompts: Sequence[Messages], answers: Sequence[str]) -> dict[str, float]:
        """Sample a group for each prompt, score them, update once.

        Returns:
            `reward`, the mean; `active`, groups whose rewards differ; `prompt_tokens` and `sampled_tokens`; seconds:
            `generate_s`, `update_s`, `step_s`, and the same of CPU time: `generate_cpu_s` and so on.
        """
        began, began_cpu = time.perf_counter(), time.process_time()
        ids = self.encode(prompts)
        samples = self.generate(ids, count=self.group, temperature=self.temperature)
        texts = [self.tokenizer.batch_decode(s, skip_special_tokens=True) for s in samples]
        generated, generated_cpu = time.perf_counter(), time.process_time()
        rewards = [
            [self.reward(text, answer) for text in group]
            for group, answer in zip(texts, answers, strict=True)
        ]
        active = self.update(ids, samples, rewards)
        ended, ended_cpu = time.perf_counter(), time.process_time()
        return {
            "reward": statistics.fmean(r for group in rewards for r in group),
            "active": float(active),
            "prompt_tokens": float(sum(map(len, ids))),
            "sampled_tokens": float(sum(len(s) for group in samples for s in group)),
            "generate_s": generated - began,
            "update_s": ended - generated,
            "step_s": ended - began,
            "generate_cpu_s": generated_cpu - began_cpu,
            "update_cpu_s": ended_cpu - generated_cpu,
            "step_cpu_s": ended_cpu - began_cpu,
        }

    def generate(
        self, prompts: Sequence[Sequence[int]], *, count: int, temperature: float
    ) -> list[list[list[int]]]:
        """`count` completions of each prompt, with the end token where there is one; temperature 0 is greedy."""
        import torch
        from transformers import DynamicCache

        common = _common(prompts)
        longest = max(map(len, prompts))
        pad = self.eos
        rows, mask = [], []
        for prompt in prompts:
            # What is padded lies between the common beginning and the rest, where the mask hides it.
            gap = longest - len(prompt)
            rows.append([*prompt[:common], *[pad] * gap, *prompt[common:]])
            mask.append([1] * common + [0] * gap + [1] * (len(prompt) - common))
        ids, seen = torch.tensor(rows), torch.tensor(mask)
        with torch.no_grad(), self.merged():
            cache = DynamicCache()
            body = self.model.get_base_model().model
            body(input_ids=ids[:1, :common], past_key_values=cache)
            cache.batch_repeat_interleave(len(prompts))
            if common < longest - 1:
                body(
                    input_ids=ids[:, common:-1],
                    attention_mask=seen[:, :-1],
                    position_ids=(seen.cumsum(1) - 1).clamp(min=0)[:, common:-1],
                    past_key_values=cache,
                )
            cache.batch_repeat_interleave(count)
            choice: dict[str, Any] = (
                {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
                if temperature > 0
                else {"do_sample": False}
            )
            output = self.model.generate(
                input_ids=ids.repeat_interleave(count, 0),
                attention_mask=seen.repeat_interleave(count, 0),
                past_key_values=cache,
                max_new_tokens=self.max_new_tokens,
                pad_token_id=pad,
                **choice,
            )
        ends = [self._until_end(row) for row in output[:, longest:].tolist()]
        return [ends[i : i + count] for i in range(0, len(ends), count)]

    def update(
        self,
        prompts: Sequence[Sequence[int]],
        samples: Sequence[Sequence[Sequence[int]]],
        rewards: Sequence[Sequence[float]],
    ) -> int:
        """One step of the optimiser; how many groups had something to teach."""
        import torch

        total = sum(len(group) for group in samples)
        active = 0
        for prompt, group, values in zip(prompts, samples, rewards, strict=True):
            spread = statistics.pstdev(values)
            if spread == 0:
                continue
            active += 1
            middle = statistics.fmean(values)
            advantages: dict[tuple[int, ...], float] = defaultdict(float)
            for sample, value in zip(group, values, strict=True):
                advantages[tuple(sample)] += (value - middle) / (spread + 1e-4)
            loss = self._loss(list(prompt), advantages) / total
            loss.backward()
        if active:
            torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=True)
        return active

    def _loss(self, prompt: list[int], advantages: dict[tuple[int, ...], float]) -> Any:
        """The summed loss of one group, whose equal samples were put together."""
        import torch
        from transformers import DynamicCache

        network = self.model.get_base_model()
        rows = list(advantages)
        width = max(map(len, rows))
        # The prompt is run once, up to its last token; that one goes before each sample.
        cache = DynamicCache()
        network.model(input_ids=torch.tensor([prompt[:-1]]), past_key_values=cache)
        cache.batch_repeat_interleave(len(rows))
        inputs = torch.full((len(rows), width), self.eos)
        targets = torch.full((len(rows), width), self.eos)
        weight = torch.zeros(len(rows), width)
        for i, row in enumerate(rows):
            inputs[i, : len(row)] = torch.tensor([prompt[-1], *row[:-1]])
            targets[i, : len(row)] = torch.tensor(row)
            weight[i, : len(row)] = advantages[row] / len(row)
        # Padding is on the right, where nothing that counts looks at it.
        states = network.model(input_ids=inputs, past_key_values=cache).last_hidden_state
        wanted = weight != 0
        logits = network.lm_head(states[wanted]) / self.temperature
        logprobs = torch.log_softmax(logits, -1).gather(1, targets[wanted][:, None])[:, 0]
        return -(weight[wanted] * logprobs).sum()

    def _until_end(self, tokens: list[int]) -> list[int]:
        return tokens[: tokens.index(self.eos) + 1] if self.eos in tokens else tokens

    @contextmanager
    def merged(self) -> Iterator[None]:
        """The adapter added to the weights for a while, exactly taken back after: sampling is faster so."""
        layers = [m for m in self.model.modules() if hasattr(m, "lora_A") and hasattr(m, "merge")]
        kept = [layer.base_layer.weight.clone() for layer in layers]
        for layer in layers:
            layer.merge()
        try:
            yield
        finally:
            for layer, weight in zip(layers, kept, strict=True):
                layer.merged_adapters.clear()
                layer.base_layer.weight.data.copy_(weight)


def plain_steps(
    prompts: Sequence[Messages],
    answers: Sequence[str],
    steps: int,
    *,
    batch: int = 6,
    seed: int = 0,
    on_step: Callable[[int, dict[str, float], PlainGRPO], None] | None = None,
    **settings: Any,
) -> list[dict[str, float]]:
    """Train for `steps` steps of `batch` prompts each.

    Args:
        prompts: chat messages; taken in order from a shuffled list, which begins anew when it is used up.
        answers: what `reward` compares with, one for each.
        steps: how many steps.
        batch: prompts per step.
        seed: of the order, the samples and the adapter's start.
        on_step: told of each step: its number from 1, what it returned, and the trainer.
        settings: of `PlainGRPO`.

    Returns:
        What each step returned; see `PlainGRPO.step`.
    """
    trainer = PlainGRPO(seed=seed, **settings)
    order = random.Random(seed)
    queue: list[int] = []
    done = []
    for number in range(1, steps + 1):
        while len(queue) < batch:
            again = list(range(len(prompts)))
            order.shuffle(again)
            queue += again
        chosen, queue = queue[:batch], queue[batch:]
        result = trainer.step([prompts[i] for i in chosen], [answers[i] for i in chosen])
        done.append(result)
        if on_step is not None:
            on_step(number, result, trainer)
    return done


def evaluate(
    trainer: PlainGRPO, tasks: Sequence[dict[str, Any]], conversation: Any
) -> dict[str, list[str]]:
    """Greedy answers to tasks: by wording, `exact`, `among` or `wrong` for each."""
    found: dict[str, list[str]] = defaultdict(list)
    for start in range(0, len(tasks), 20):
        part = tasks[start : start + 20]
        ids = trainer.encode([conversation(task) for task in part])
        for task, (row,) in zip(part, trainer.generate(ids, count=1, temperature=0), strict=True):
            text = trainer.tokenizer.decode(row, skip_special_tokens=True)
            value = order_reward(text, task["expected"]["number"])
            word = {1.0: "exact", 0.2: "among"}.get(value, "wrong")
            found[task["metadata"]["wording"]].append(word)
    return dict(found)


def accuracy(found: dict[str, list[str]]) -> dict[str, float]:
    """Share of exact answers, by wording."""
    return {wording: Counter(words)["exact"] / len(words) for wording, words in found.items()}


def interval(shares: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval over wordings: items of one wording stand or fall together."""
    mean = statistics.fmean(shares)
    half = STUDENT_T * statistics.stdev(shares) / math.sqrt(len(shares))
    return mean, mean - half, mean + half


def _common(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens the prompts have in common at the start, but for their last."""
    least, most = min(map(list, prompts)), max(map(list, prompts))
    short = min(map(len, prompts)) - 1
    for i in range(short):
        if least[i] != most[i]:
            return i
    return short


def example_module(name: str) -> Any:
    """A module of `examples/order_lookup`, by name."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        spec = importlib.util.spec_from_file_location(
            f"order_lookup_{name}", EXAMPLE / f"{name}.py"
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(EXAMPLE))
    return module


def main() -> None:
    """Train on the example's tasks, and evaluate before and after."""
    import torch
    from langchain_core.messages import convert_to_openai_messages

    parser = argparse.ArgumentParser(description="GRPO in plain torch on examples/order_lookup.")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--no-evaluation", action="store_true", help="only time the steps")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    agent = example_module("agent")
    with tempfile.TemporaryDirectory() as folder:
        made = example_module("tasks").write_tasks(Path(folder))

    def conversation(task: dict[str, Any]) -> Messages:
        messages: Messages = convert_to_openai_messages(
            agent.conversation(task["input"]["message"])
        )
        return messages

    before: dict[str, float] = {}

    def told(trainer: PlainGRPO, when: str) -> dict[str, float]:
        began = time.perf_counter()
        shares = accuracy(evaluate(trainer, made["val"], conversation))
        mean, low, high = interval(list(shares.values()))
        seconds = time.perf_counter() - began
        print(
            f"{when}: {mean:.3f} [{low:.3f}, {high:.3f}] exact on {len(made['val'])} tasks, {seconds:.1f} s",
            flush=True,
        )
        return shares

    def on_step(number: int, result: dict[str, float], trainer: PlainGRPO) -> None:
        line = {key: round(value, 3) for key, value in result.items()}
        print(number, json.dumps(line), flush=True)
        if number == options.steps and not options.no_evaluation:
            after = told(trainer, "after")
            for wording, share in after.items():
                print(f"  {wording:<16} {before[wording]:.2f} -> {share:.2f}")
            mean, low, high = interval([after[wording] - before[wording] for wording in before])
            print(f"gain: {mean:.3f} [{low:.3f}, {high:.3f}]")

    if not options.no_evaluation:
        before.update(told(PlainGRPO(seed=options.seed), "before"))
    done = plain_steps(
        [conversation(task) for task in made["train"]],
        [task["expected"]["number"] for task in made["train"]],
        options.steps,
        seed=options.seed,
        learning_rate=options.learning_rate,
        on_step=on_step,
    )
    for key in ("generate_s", "update_s", "step_s", "generate_cpu_s", "update_cpu_s", "step_cpu_s"):
        print(f"{key:<14} median {statistics.median(step[key] for step in done):.2f}")


if __name__ == "__main__":
    main()
