"""Credit: which reward is put down to which call, by rules that plugins add to and that mix by a small grammar.

`final`, `discounted:0.95`, `agent`, `call`, and sums such as `0.7*final+0.3*call`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from lightning_core.errors import UsageError
from lightning_core.reward import RewardScope
from lightning_core.trace import Call, Trace


class CreditRule(Protocol):
    """Puts rewards down to calls."""

    def __call__(self, trace: Trace, /) -> Mapping[str, float]:
        """Credit by call id (no unit): the reward that is put down to the call, from it to the rollout's end.

        The tokens of a call that is left out are not learnt from, and that is counted. The trace has every reward
        that the store has when the step is made, late ones too. The rule must be pure: it may be asked again.
        A number that is not finite, or an exception, takes the whole rollout out of the step's statistics.
        """
        ...


class CreditRuleFactory(Protocol):
    """Makes a rule from what stands after its name in a spec."""

    def __call__(self, parameter: float | None, /) -> CreditRule:
        """The rule for the number after the colon, None where there is none.

        Raises:
            UsageError: the rule takes no number, needs one, or not this one.
        """
        ...


def final(trace: Trace) -> dict[str, float]:
    """The rollout's reward, to every call; nothing where it is not scored."""
    return {} if trace.reward is None else {call.id: trace.reward for call in trace.calls}


def discounted(gamma: float | None) -> CreditRule:
    """Makes the rule that puts γ^(K-1-k)·R down to the k-th of K calls: the earlier, the less.

    Calls that got no reply, and embeddings, do not count as steps and get nothing.

    Args:
        gamma: γ, from 0 to 1.

    Raises:
        UsageError: there is no γ, or it is not within 0 to 1.
    """
    if gamma is None or not 0.0 <= gamma <= 1.0:
        got = "nothing" if gamma is None else repr(gamma)
        raise UsageError(f"expected a discount from 0 to 1, as in `discounted:0.95`, but got {got}")

    def rule(trace: Trace) -> dict[str, float]:
        if trace.reward is None:
            return {}
        ordered = sorted(trace.calls, key=lambda call: call.index)
        calls = [call.id for call in ordered if call.choices]
        return {id_: gamma ** (len(calls) - 1 - k) * trace.reward for k, id_ in enumerate(calls)}

    return rule


def agent(trace: Trace) -> dict[str, float]:
    """Each agent's own reward, to its calls: scope `agent`, target the call's node or else its agent.

    Calls of an agent that has no reward of its own get nothing.
    """
    own = _by_target(trace, RewardScope.AGENT)
    return _credited(trace.calls, lambda call: own.get(call.node, own.get(call.agent)))


def call(trace: Trace) -> dict[str, float]:
    """Each call's own reward: scope `call`, target its id. The others get nothing."""
    own = _by_target(trace, RewardScope.CALL)
    return _credited(trace.calls, lambda call: own.get(call.id))


def _by_target(trace: Trace, scope: RewardScope) -> dict[str | None, float]:
    """The rewards of one scope that are optimised, by target; of two for one target the later holds."""
    return {
        reward.target: reward.value
        for reward in trace.rewards
        if reward.scope is scope and reward.name == "reward" and reward.value is not None
    }


def _credited(calls: Iterable[Call], of: Callable[[Call], float | None]) -> dict[str, float]:
    found = ((call.id, of(call)) for call in calls)
    return {id_: value for id_, value in found if value is not None}


def mixture(terms: Iterable[tuple[float, CreditRule]]) -> CreditRule:
    """The rule that adds up others, each times its weight.

    A rule that leaves a call out adds nothing to it; a call that all leave out gets nothing.
    """
    fixed = tuple(terms)

    def rule(trace: Trace) -> dict[str, float]:
        total: dict[str, float] = {}
        for weight, one in fixed:
            for id_, value in one(trace).items():
                total[id_] = total.get(id_, 0.0) + weight * value
        return total

    return rule


def without_parameter(rule: CreditRule) -> CreditRuleFactory:
    """The factory of a rule that takes no number."""

    def factory(parameter: float | None) -> CreditRule:
        if parameter is not None:
            raise UsageError(f"takes no number, but got {parameter!r}")
        return rule

    return factory


BUILT_IN: Final[Mapping[str, CreditRuleFactory]] = {
    "final": without_parameter(final),
    "discounted": discounted,
    "agent": without_parameter(agent),
    "call": without_parameter(call),
}
"""The rules that ship with core, by name."""

_NUMBER: Final = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_TERM: Final = re.compile(
    rf"\s*(?:(?P<weight>{_NUMBER})\s*\*\s*)?(?P<name>[A-Za-z_][\w.-]*)(?::(?P<parameter>{_NUMBER}))?\s*"
)


def parse_credit(spec: str, registered: Mapping[str, CreditRuleFactory]) -> CreditRule:
    """The rule that a spec stands for.

    Args:
        spec: terms with `+` between them; a term is `NAME`, `NAME:NUMBER`, or one of these with `NUMBER*` before it.
        registered: rules by name, as `Plugins.credit` gives them.

    Raises:
        UsageError: the spec cannot be read, names a rule that is not registered, or gives one a number that it
            does not take.
    """
    terms: list[tuple[float, CreditRule]] = []
    at = 0
    while True:
        match = _TERM.match(spec, at)
        if match is None or (match.end() < len(spec) and spec[match.end()] != "+"):
            raise UsageError(
                f"credit {spec!r}: cannot be read from {spec[at:]!r} on; expected terms such as `final`,"
                " `discounted:0.95` or `0.3*call`, with `+` between them"
            )
        terms.append((float(match["weight"] or 1.0), _made(spec, match, registered)))
        if match.end() == len(spec):
            break
        at = match.end() + 1
    return terms[0][1] if len(terms) == 1 and terms[0][0] == 1.0 else mixture(terms)


def _made(
    spec: str, match: re.Match[str], registered: Mapping[str, CreditRuleFactory]
) -> CreditRule:
    name, parameter = match["name"], match["parameter"]
    factory = registered.get(name)
    if factory is None:
        names = ", ".join(f"`{known}`" for known in sorted(registered)) or "none"
        raise UsageError(f"credit {spec!r}: no rule is named `{name}`; there are {names}")
    try:
        return factory(None if parameter is None else float(parameter))
    except UsageError as error:
        raise UsageError(f"credit {spec!r}: rule `{name}`: {error}") from None
