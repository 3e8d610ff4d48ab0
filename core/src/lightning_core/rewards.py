"""The built-in rewards. Each gives 1.0 for right and 0.0 for wrong; `token_f1` also what lies between.

All of them compare the agent's output, read as `output_text` says, with the task's `expected`. Nothing in an output
is ever evaluated as code.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from lightning_core.errors import RewardError
from lightning_core.records import Json
from lightning_core.task import Task
from lightning_core.trace import Trace


def output_text(output: Json) -> str:
    """The text of an agent's output.

    - A string is taken as it is; None is the empty text.
    - Of a list of messages, or an object with `messages`, the content of the last one whose `role` or `type` is
      `assistant` or `ai`; of content in blocks, the text blocks put together.
    - Of an object with `output`, else with `answer`, that value, read by these same rules.
    - Anything else as JSON.
    """
    if output is None:
        return ""
    if isinstance(output, str):
        return output
    messages = output.get("messages") if isinstance(output, Mapping) else output
    if isinstance(messages, list):
        for message in reversed(messages):
            if isinstance(message, Mapping) and (
                message.get("role") in _ASSISTANT or message.get("type") in _ASSISTANT
            ):
                return _content_text(message.get("content"))
    if isinstance(output, Mapping):
        for key in ("output", "answer"):
            if key in output:
                return output_text(output[key])
    return json.dumps(output, ensure_ascii=False)


def exact_match(task: Task, trace: Trace) -> float:
    """1.0 where the output is the expected answer.

    An `expected` that is a string is compared with the output's text: white space at both ends does not count,
    everything else does, case too. Any other `expected` is compared as JSON, with the output or, failing that,
    with its text read as JSON: key order does not count, 1 equals 1.0, true does not equal 1.

    Raises:
        RewardError: the task has no `expected`.
    """
    expected = _expected(task, "exact_match")
    text = output_text(trace.output).strip()
    if isinstance(expected, str):
        return float(text == expected.strip())
    if _same(trace.output, expected):
        return 1.0
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return 0.0
    return float(_same(value, expected))


def contains(task: Task, trace: Trace) -> float:
    """1.0 where the expected answer occurs in the output's text.

    Case does not count, and any run of white space is as good as one blank. `expected` may be a list of accepted
    answers, of which one must occur.

    Raises:
        RewardError: the task has no `expected`, or it is empty and would occur in everything.
    """
    text = _plain(output_text(trace.output))
    answers = [_plain(answer) for answer in _answers(task, "contains")]
    if not all(answers):
        raise RewardError(
            f"task `{task.id}`: `contains` got an empty `expected`, which every output contains"
        )
    return float(any(answer in text for answer in answers))


def numeric(task: Task, trace: Trace) -> float:
    """1.0 where the number that the output gives is the expected one.

    A text's number is its last, or, where `####` occurs, the first after the last `####`. Signs, `$`, thousands
    commas, decimals, exponents up to three digits and fractions such as `3/4` are read; a `%` is not. An expected
    integer must be met exactly, anything else to a relative 1e-6. `expected` is a number, a text with one, or a
    list of accepted ones.

    Raises:
        RewardError: the task has no `expected`, or there is no number in it.
    """
    expected = []
    for answer in _answers(task, "numeric"):
        number = last_number(answer)
        if number is None:
            raise RewardError(
                f"task `{task.id}`: `numeric` expected a number in `expected` but got {answer[:80]!r}"
            )
        expected.append(number)
    got = last_number(output_text(trace.output))
    return float(got is not None and any(_close(got, number) for number in expected))


def token_f1(task: Task, trace: Trace) -> float:
    """Harmonic mean of precision and recall over the words of output and expected answer, from 0.0 to 1.0.

    Both are normalised: lower case, punctuation deleted, then the words a, an and the left out. Words count as
    often as they occur. Where one side is yes, no or noanswer and the other is not the same, it is 0.0; where one
    side has no words left, 1.0 only if neither has. `expected` may be a list of accepted answers; the best counts.

    Raises:
        RewardError: the task has no `expected`.
    """
    text = output_text(trace.output)
    return max(_f1(text, answer) for answer in _answers(task, "token_f1"))


_ASSISTANT: Final = ("assistant", "ai", "AIMessageChunk")
_NUMBER: Final = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
# A sign counts only where it cannot be a hyphen or a minus between two numbers.
_NUMBERS: Final = re.compile(
    rf"(?P<sign>(?<![\w)\].])[-+\u2212])?(?<![^\W_])(?<!\.)\$?(?P<sign2>(?<=\$)[-\u2212])?"
    rf"(?P<number>{_NUMBER})(?P<exponent>[eE][-+]?[0-9]{{1,3}}(?![0-9]))?(?![eE][-+]?[0-9])(?:/(?P<below>[0-9]+)(?![0-9/.]))?"
)
_DIGITS_LIMIT: Final = 1000
_TOLERANCE: Final = Fraction(1, 1_000_000)
_DELETE_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_CLOSED_ANSWERS: Final = ("yes", "no", "noanswer")


def last_number(text: str) -> Fraction | None:
    """The number that a text gives, as `numeric` reads it; None where there is none."""
    _, mark, tail = text.rpartition("####")
    found = None
    for match in _NUMBERS.finditer(tail):
        value = _fraction(match)
        if value is None:
            continue
        found = value
        if mark:
            break
    return found


def _fraction(match: re.Match[str]) -> Fraction | None:
    number, below = match["number"].replace(",", ""), match["below"] or "1"
    if len(number) > _DIGITS_LIMIT or len(below) > _DIGITS_LIMIT:
        return None
    whole = Fraction(("0" if number.startswith(".") else "") + number + (match["exponent"] or ""))
    denominator = int(below)
    if not denominator:
        return None
    negative = "-" in (sign := (match["sign"] or "") + (match["sign2"] or "")) or "\u2212" in sign
    return (-whole if negative else whole) / denominator


def _close(got: Fraction, expected: Fraction) -> bool:
    if expected.denominator == 1:
        return got == expected
    return abs(got - expected) <= _TOLERANCE * abs(expected)


def _expected(task: Task, reward: str) -> Json:
    if task.expected is None:
        raise RewardError(
            f"task `{task.id}` has no `expected`, which reward `{reward}` compares with; add it to the"
            " task, or name its column with `--field expected=COLUMN`"
        )
    return task.expected


def _answers(task: Task, reward: str) -> list[str]:
    """The accepted answers as texts; at least one."""
    expected = _expected(task, reward)
    answers = expected if isinstance(expected, list) else [expected]
    if not answers or any(
        answer is None or isinstance(answer, bool | dict | list) for answer in answers
    ):
        raise RewardError(
            f"task `{task.id}`: reward `{reward}` expected a string, a number or a list of them in"
            f" `expected` but got {json.dumps(expected)[:80]}"
        )
    return [answer if isinstance(answer, str) else json.dumps(answer) for answer in answers]


def _content_text(content: Any) -> str:
    if not isinstance(content, list):
        return output_text(content)
    parts = (block.get("text") if isinstance(block, Mapping) else block for block in content)
    return "".join(part for part in parts if isinstance(part, str))


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _same(one: Json, other: Json) -> bool:
    """Equality of JSON values, where Python would also take True for 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _f1(text: str, answer: str) -> float:
    one, other = _words(text), _words(answer)
    if not one or not other:
        return float(one == other)
    closed = any(" ".join(words) in _CLOSED_ANSWERS for words in (one, other))
    if closed and one != other:
        return 0.0
    shared = sum((Counter(one) & Counter(other)).values())
    return 2 * shared / (len(one) + len(other))


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_DELETE_PUNCTUATION)).split()
