"""Strategies: what rollouts run under, by digest. Kept as long as the store, as tasks are."""

from __future__ import annotations

import msgspec

from lightning_core.errors import WireError
from lightning_core.gateway.strategy import CompiledStrategy
from lightning_core.gateway.tally import Tally
from lightning_core.rollout import Rollout
from lightning_core.store.base import Store
from lightning_core.strategy import Provenance, Strategy


class Strategies:
    """The strategies of one server.

    Args:
        store: keeps them.
        own: what rollouts run under that name none; None leaves their calls as they are.
    """

    def __init__(self, store: Store, own: Strategy | None = None) -> None:
        self._store = store
        self._own = None if own is None else CompiledStrategy(own)
        self._known: dict[str, CompiledStrategy] = {}
        self.tally = None if self._own is None else Tally(self._own)
        """How often the server's own strategy matches."""

    async def put(self, digest: str, strategy: Strategy) -> None:
        """Keep a strategy. Safe to repeat.

        Raises:
            WireError: its digest is another (400).
            UsageError: a template of it cannot be read.
        """
        compiled = CompiledStrategy(strategy)
        if compiled.digest != digest:
            raise WireError(
                f"strategy `{digest}`: the digest of what was sent is `{compiled.digest}`;"
                " run the same release of `lightning-core` on both sides",
                400,
            )
        if digest not in self._known:
            await self._store.put_state(_key(digest), msgspec.to_builtins(strategy))
            await self._store.flush()
            self._known[digest] = compiled

    async def get(self, digest: str) -> Strategy:
        """A strategy.

        Raises:
            WireError: it is not known (404).
        """
        if not await self._knows(digest):
            raise WireError(f"strategy `{digest}`: not known", 404)
        return self._known[digest].strategy

    async def require(self, rollout: Rollout) -> None:
        """Have a rollout's strategy ready for `of`.

        Raises:
            WireError: it is not known (400).
        """
        if rollout.strategy is not None and not await self._knows(rollout.strategy):
            raise WireError(
                f"rollout `{rollout.id}`: strategy `{rollout.strategy}` is not known;"
                f" put it to /api/v1/strategies/{rollout.strategy} first",
                400,
            )

    def of(self, rollout: Rollout) -> tuple[CompiledStrategy | None, Tally | None]:
        """What a rollout's calls are changed by, and what counts that, where it is the server's own."""
        if rollout.strategy is None:
            return self._own, self.tally
        return self._known[rollout.strategy], None

    def readable(self, rollout: Rollout) -> Strategy | None:
        """What the agent's code may read by name under a rollout's strategy; None where it has none."""
        compiled, _ = self.of(rollout)
        if compiled is None:
            return None
        templates = compiled.strategy.prompt_templates
        return msgspec.structs.replace(
            compiled.strategy,
            prompt_templates={name: t for name, t in templates.items() if not t.original},
            models={},
            provenance=Provenance(run=compiled.strategy.provenance.run),
        )

    async def _knows(self, digest: str) -> bool:
        if digest not in self._known:
            kept = await self._store.get_state(_key(digest))
            if kept is None:
                return False
            self._known[digest] = CompiledStrategy(Strategy.from_value(kept))
        return True


def _key(digest: str) -> str:
    return f"strategy {digest}"
