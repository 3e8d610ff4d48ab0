"""One optimisation, from the run to the artifact."""

from __future__ import annotations

from contextlib import AsyncExitStack

from lightning_core.runs import Artifact, Run
from lightning_prompt.budget import Spent
from lightning_prompt.journal import Journal
from lightning_prompt.plan import plan_of
from lightning_prompt.reflection import ReflectionModel
from lightning_prompt.search import Search

_JOURNAL = "reflection.jsonl"
"""The file in the run's folder with what the reflection model was asked and said."""


async def optimize(run: Run) -> Artifact:
    """Search a strategy for the run's agent. See `Search.run` for what is raised."""
    plan = plan_of(run.config)
    async with AsyncExitStack() as stack:
        model = None
        if plan.asked.reflection_model is not None:
            model = await stack.enter_async_context(
                ReflectionModel(
                    plan.asked.reflection_model,
                    stack.enter_context(Journal(run.folder / _JOURNAL)),
                    prices=plan.prices,
                    priced=plan.budget.usd is not None or plan.budget.reflection_usd is not None,
                    api_key_env=plan.reflection_key_env,
                    temperature=plan.reflection_temperature,
                    max_tokens=plan.reflection_max_tokens,
                    patience=plan.patience,
                    tell=lambda text: run.say(text or "the reflection model answers again"),
                )
            )
        search = Search(
            run, plan, reflect=model, reflected=lambda: Spent() if model is None else model.spent
        )
        artifact = await search.run()
        if model is not None and model.cut_short:
            run.say(
                f"{model.cut_short} replies of the reflection model ended at {plan.reflection_max_tokens} tokens, and were used"
                " as far as they went; give more with `--set reflection_max_tokens=`"
            )
        return artifact
