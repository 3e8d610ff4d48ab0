"""A researcher in the OpenAI Agents SDK: it answers questions by searching passages, in as many steps as it takes.

It is an ordinary agent, with no trace of whatever may watch or train it. It takes the question and gives the answer.
Environment: `OPENAI_API_KEY`, and optionally `OPENAI_BASE_URL`, `OPENAI_MODEL` and `WIKI_RAG_CORPUS`, the file with the
passages.
"""

from __future__ import annotations

import os
from pathlib import Path

import passages
from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelSettings,
    Runner,
    function_tool,
)

INSTRUCTION = (
    "Answer the question. Call the tool `search` to find what you need to know: look up one thing at a time, and search"
    " again with what you have learnt. When you know the answer, say it in a few words and nothing else."
)
PASSAGES = 3
"""How many passages a search shows."""
MAX_TURNS = 8
"""How often the model may speak before it has to answer."""
CORPUS = Path(os.environ.get("WIKI_RAG_CORPUS", Path(__file__).parent / "data" / "corpus.jsonl"))


@function_tool
async def search(query: str) -> str:
    """Search the passages. Name the person, place or thing that you look for."""
    found = passages.load(CORPUS).search(query, PASSAGES)
    return "\n".join(f"[{p.id}] {p.title}: {p.text}" for p in found) or "Nothing was found."


researcher = Agent(
    "researcher",
    instructions=INSTRUCTION,
    tools=[search],
    model=os.environ.get("OPENAI_MODEL", "gpt-4.1-mini"),
    model_settings=ModelSettings(temperature=0),
)


async def agent(question: str) -> str:
    """Answer a question; nothing where the model searches on and on, is cut off, or calls a tool that there is not."""
    try:
        result = await Runner.run(researcher, question, max_turns=MAX_TURNS)
    except (MaxTurnsExceeded, ModelBehaviorError):
        return ""
    return str(result.final_output)
