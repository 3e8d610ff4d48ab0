"""Train the agent: `python train.py --backend local`, `verl` or `prompt`; see README.md for what each needs.

The agent is named, not imported: it runs in worker processes, and its code knows nothing of this.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from scoring import score

import lightning_core as lc

HERE = Path(__file__).parent


def main() -> None:
    """Train, and say what it gave."""
    parser = argparse.ArgumentParser(description="Train the mathematician.")
    parser.add_argument("--backend", choices=("local", "verl", "prompt"), default="local")
    parser.add_argument("--model", default="smollm2", help="a name, a folder, or an address")
    parser.add_argument(
        "--train", default=str(HERE / "data/train.jsonl"), help="tasks to learn from"
    )
    parser.add_argument("--val", default=str(HERE / "data/val.jsonl"), help="tasks to validate on")
    parser.add_argument("--gsm8k", action="store_true", help="the files have GSM8K's fields")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--limit", type=int, help="only the first so many of --train")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--budget", help='of --backend prompt, such as "500 rollouts"')
    parser.add_argument("--reflection-model", help="of --backend prompt: writes new prompts")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the backend's own",
    )
    given = parser.parse_args()
    result = lc.optimize_sync(
        f"{HERE / 'agent.py'}:agent",
        given.train,
        lc.OptimizeConfig(
            backend=given.backend,
            steps=given.steps,
            group_size=given.group_size,
            budget=given.budget,
            reflection_model=given.reflection_model,
            options=dict(each.split("=", 1) for each in given.set),
        ),
        val=given.val,
        reward=score,
        model=given.model,
        max_tokens=given.max_tokens,
        fields={"input": "question", "expected": "answer"} if given.gsm8k else None,
        limit=given.limit,
    )
    print(f"{result.folder}: {result.artifact.metrics.get('val')}\nuse it: {result.artifact.apply}")


if __name__ == "__main__":
    main()
