"""The environment that carries an attempt into a child process. Standard library only.

A Python child is hooked by our `sitecustomize`, in any virtual environment of Python 3.9 or later. Not reached are
interpreters that ignore the environment or `site` (`python -I`, `-E`, `-S`); older ones and other languages have the
addresses alone. Once a Python child imports `openai`, `anthropic` or `dotenv`, the addresses of that SDK, or all, in its
own `os.environ` are the user's again, and only children that it starts by `subprocess` or `asyncio` see ours.
"""

from __future__ import annotations

import json
import os

from .context import KEYS, PLACEHOLDER_KEY
from .variables import SESSION, STRATEGY, TOKEN

TYPE_CHECKING = False  # `typing` costs the start of every child process; a checker knows the name.
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from .context import Scope

STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")
"""The folder with our `sitecustomize.py`."""
ORIGINAL = "LIGHTNING_CORE_ORIGINAL_"
"""Prefix of the variables that keep what ours replaced."""

_ADDRESSES = {
    "OPENAI_BASE_URL": "/v1",
    "OPENAI_API_BASE": "/v1",
    # Who reads these puts `/v1` behind them.
    "ANTHROPIC_BASE_URL": "",
    "ANTHROPIC_API_BASE": "",
}
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


def child_environment(
    base: Mapping[str, str],
    *,
    gateway: str,
    session: str,
    attempt: str,
    span: str | None,
    adapters: Mapping[str, str],
    base_url: str,
    set_key: bool,
    strategy: str | None = None,
) -> dict[str, str]:
    """The environment for a child process of an attempt, made from `base`, which stays as it is.

    `gateway` is the origin `http://HOST:PORT`, `session` the token, `base_url` the session's OpenAI-compatible
    address. `adapters` gives `module:Class` by the module after whose import it is entered. `set_key` replaces
    `OPENAI_API_KEY` and `ANTHROPIC_API_KEY`: say so in train and val mode, and where the user has no key but the run names
    a model. `strategy` is the file with the attempt's strategy; None leaves what `base` says, as a child of the attempt's does.
    Making it twice gives the same, so a child may start children. The worker's own token is not in it.
    """
    environment = {name: value for name, value in base.items() if name != TOKEN}
    environment[SESSION] = json.dumps(
        {
            "gateway": gateway,
            "session": session,
            "attempt": attempt,
            "span": span,
            "adapters": dict(adapters),
        }
    )
    paths = [p for p in base.get("PYTHONPATH", "").split(os.pathsep) if p and p != STARTUP]
    environment["PYTHONPATH"] = os.pathsep.join([STARTUP, *paths])
    for name, end in _ADDRESSES.items():
        value = base.get(name)
        if value is not None and not _is_ours(value, gateway):
            environment[ORIGINAL + name] = value
        elif value is None:
            environment.pop(ORIGINAL + name, None)
        environment[name] = base_url.removesuffix("/v1") + end
    if strategy is not None:
        environment[STRATEGY] = strategy
    if set_key:
        environment |= dict.fromkeys(KEYS, PLACEHOLDER_KEY)
        environment.pop("ANTHROPIC_AUTH_TOKEN", None)  # a key too, which would compete with it
    if any(base.get(name) for name in _PROXIES):
        host = gateway.partition("://")[2].rpartition(":")[0]
        for name in ("no_proxy", "NO_PROXY"):
            hosts = [h for h in base.get(name, "").split(",") if h]
            environment[name] = ",".join(hosts if host in hosts else [*hosts, host])
    return environment


def environment_of(scope: Scope, base: Mapping[str, str]) -> dict[str, str]:
    """`child_environment` for a child of the running code, whose scope is `scope`."""
    return child_environment(
        base,
        gateway=scope.gateway,
        session=scope.session,
        attempt=scope.attempt,
        span=scope.span,
        adapters=scope.adapters,
        base_url=scope.base_url,
        set_key=scope.set_key,
        strategy=scope.strategy,
    )


def restore_addresses(environment: MutableMapping[str, str], of_sdk: str = "") -> None:
    """Give the variables with addresses back the user's values, where they have ours. `of_sdk` is what their names begin
    with: `OPENAI_`, `ANTHROPIC_`, or nothing for all."""
    session = environment.get(SESSION)
    if not session:
        return
    gateway = json.loads(session)["gateway"]
    for name in _ADDRESSES:
        if name.startswith(of_sdk) and _is_ours(environment.get(name, ""), gateway):
            original = environment.pop(ORIGINAL + name, None)
            if original is None:
                del environment[name]
            else:
                environment[name] = original


def _is_ours(address: str, gateway: str) -> bool:
    return address.startswith(gateway + "/s/")
