"""What a trained agent did on a task, for those who want to know."""

from __future__ import annotations

from typing import Any

import msgspec

from lightning_core.strategy import Step


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A question to the model, and its reply."""

    step: Step
    """The step that it belongs to."""
    attempt: int
    """The attempt that it belongs to, from 1."""
    model: str
    """The model that was asked."""
    sampling: dict[str, float]
    """What was asked of the sampling: `temperature`, `top_p`, the bound of the reply."""
    messages: tuple[dict[str, str], ...]
    """The messages as they were sent."""
    reply: str
    """What the model said."""
    prompt_tokens: int | None = None
    """Tokens of the messages; None where the server did not count them."""
    completion_tokens: int | None = None
    """Tokens of the reply; None where the server did not count them."""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt: a solution, and what became of it."""

    solution: str
    """What the model wrote, without code fences."""
    result: Any = None
    """What the executor returned; None where nothing was executed."""
    error: Exception | None = None
    """What the executor raised."""
    score: float | None = None
    """What the check says, from 0 to 1; 0 where the execution failed; None where nothing was checked."""
    feedback: str = ""
    """What is wrong with it: the error, or the words of the check."""
    reply: str = ""
    """The model's reply that the solution was taken from."""
    executed: bool = False
    """Whether it was executed."""

    def accepted(self, threshold: float) -> bool:
        """Whether its execution did not fail, and no check scored it below `threshold`."""
        return self.error is None and (self.score is None or self.score >= threshold)


class Attempted(msgspec.Struct, frozen=True, kw_only=True):
    """All that was done on a task. What is returned is the best attempt."""

    attempts: tuple[Tried, ...]
    """The attempts, in order."""
    best: int
    """Which of them is returned, from 0: the highest score; of equals one that ran, and then the latest."""
    accepted: bool
    """Whether that one's execution did not fail, and its check was content."""
    calls: tuple[Asked, ...]
    """What the model was asked, in order."""

    @property
    def solution(self) -> str:
        """The solution that is returned."""
        return self.attempts[self.best].solution

    @property
    def result(self) -> Any:
        """What its execution gave: what the executor returned, or the exception that it raised."""
        chosen = self.attempts[self.best]
        return chosen.result if chosen.error is None else chosen.error

    @property
    def scores(self) -> tuple[float | None, ...]:
        """The score of each attempt."""
        return tuple(attempt.score for attempt in self.attempts)

    @property
    def errors(self) -> tuple[Exception | None, ...]:
        """What the execution of each attempt raised."""
        return tuple(attempt.error for attempt in self.attempts)
