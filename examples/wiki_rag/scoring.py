"""The reward: how well the words of the answer agree with those that are accepted; and what was found on the way.

Normalisation, F1 and exact match are those of the official scorers of SQuAD (Rajpurkar et al., 2016) and HotpotQA (Yang
et al., 2018); of several accepted answers the best counts, as in MuSiQue (Trivedi et al., 2022).
"""

from __future__ import annotations

import re
import string

from lightning_core import Reward, Task, Trace
from lightning_core.rewards import output_text, token_f1

SHOWN = re.compile(r"^\[([^\]\s]+)\] ", re.MULTILINE)
"""How the agent's tool shows a passage's id."""
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def score(task: Task, trace: Trace) -> list[Reward]:
    """Token F1; beside it `exact_match`, and `recall`, the share of the passages that are needed which a search showed."""
    f1 = token_f1(task, trace)
    needed = set(task.metadata.get("supporting", ()))
    missed = needed - shown(trace)
    rewards = [
        Reward(value=f1, feedback=None if f1 == 1 else _feedback(task, missed)),
        Reward(name="exact_match", value=exact_match(task, trace)),
    ]
    if needed:
        rewards.append(Reward(name="recall", value=1 - len(missed) / len(needed)))
    return rewards


def exact_match(task: Task, trace: Trace) -> float:
    """1 where the answer is one of those accepted, once both are normalised."""
    said = normalised(output_text(trace.output))
    return float(any(said == normalised(answer) for answer in _accepted(task)))


def normalised(text: str) -> str:
    """Lower case, without punctuation and articles, with single blanks."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def shown(trace: Trace) -> set[str]:
    """The ids of the passages that searches showed."""
    results = (
        str(span.attributes.get("gen_ai.tool.call.result", ""))
        for span in trace.spans
        if span.kind == "tool" and span.name == "search"
    )
    return {identifier for text in results for identifier in SHOWN.findall(text)}


def _accepted(task: Task) -> list[str]:
    return [str(a) for a in (task.expected if isinstance(task.expected, list) else [task.expected])]


def _feedback(task: Task, missed: set[str]) -> str:
    hint = f" No search showed {len(missed)} of the passages that say it." if missed else ""
    return f"Expected {_accepted(task)[0]!r}.{hint}"
