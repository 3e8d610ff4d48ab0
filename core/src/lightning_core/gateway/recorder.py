"""Recorder: the one way by which calls get into the store."""

from __future__ import annotations

import logging

import msgspec

from lightning_core.errors import RecordError, StoreError
from lightning_core.gateway.refusal import Refusal
from lightning_core.store.base import Store
from lightning_core.trace import Call, CallError, CallErrorKind

_log = logging.getLogger(__name__)


class Recorder:
    """Puts calls into the store, and stops the traffic once one could not be recorded."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.failure: StoreError | None = None
        """The first call that was lost; the gateway takes no further ones."""

    async def put(self, call: Call) -> None:
        """Record a call; putting it again replaces it."""
        try:
            try:
                await self._store.put(call)
            except RecordError as error:
                # What an agent sends must not stop the others: what of it can be kept is.
                _log.error("call `%s` of attempt `%s`: %s", call.id, call.attempt_id, error)
                await self._store.put(_bare(call, error))
        except StoreError as error:
            self.failure = self.failure or error
            _log.error(
                "call `%s` of attempt `%s` is not recorded: %s", call.id, call.attempt_id, error
            )

    async def call(self, call_id: str) -> Call | None:
        """A call that was recorded; None where none was, or it cannot be read."""
        try:
            return await self._store.call(call_id)
        except StoreError as error:
            _log.error("call `%s` cannot be read: %s", call_id, error)
            return None

    def check(self) -> None:
        """Refuse what could not be recorded.

        Raises:
            Refusal: an earlier call was lost.
        """
        if self.failure is not None:
            message = f"the store failed, and what cannot be recorded is not run: {self.failure}"
            raise Refusal(
                500, "store", message, CallErrorKind.REFUSED, headers={"x-should-retry": "false"}
            )


def _bare(call: Call, reason: RecordError) -> Call:
    """The call without what was said in it."""
    error = CallError(
        kind=CallErrorKind.UNREADABLE, status=call.status, message=f"not kept: {reason}"[:4096]
    )
    return msgspec.structs.replace(
        call,
        request={},
        chat_request=None,
        overrides={},
        chat_sent=None,
        choices=(),
        reply={},
        labels={},
        complete=False,
        error=error,
    )
