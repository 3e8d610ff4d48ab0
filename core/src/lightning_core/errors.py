"""Every error that lightning-core raises, as one tree.

LightningError
├── UsageError (ValueError)            the caller gave something that cannot work
│   ├── TaskError                      a task source or a row in it
│   ├── RewardError                    a reward function or what it returned
│   ├── AgentError                     an agent that no adapter accepts, or that cannot be loaded
│   ├── CapabilityError                a needed ability that nothing here has
│   └── RecordError                    a record that cannot be kept, or an id that nothing has
├── PluginError (RuntimeError)         a plugin that is broken, duplicated or misspelt
├── FormatError (ValueError)           bytes that are not the record they should be
│   └── FormatVersionError             a record or store written by a newer release
├── StoreError (OSError)               the store cannot be opened, read or written
├── TokenError (PermissionError)       a token that is missing, forged or expired
│   └── ScopeError                     a good token that is for something else
├── WireError (RuntimeError)           the server refused a request, or cannot be reached
│   └── FencedError                    the attempt has ended or belongs to another worker
└── EngineError (RuntimeError)         a model server that did not start or has died

A message says what, where, expected and got, and the next step. Identifiers stand in backticks.
How an *attempt* ended is no exception but data: see `lightning_core.rollout.Cause`.
"""

from __future__ import annotations


class LightningError(Exception):
    """Base of every error of ours; its text is meant for the user."""


class UsageError(LightningError, ValueError):
    """The caller gave something that cannot work."""


class TaskError(UsageError):
    """A task source, or one row of it, is not usable."""


class RewardError(UsageError):
    """A reward function is not usable, or returned something that is no reward."""


class AgentError(UsageError):
    """The agent cannot be loaded, or no adapter accepts it."""


class CapabilityError(UsageError):
    """Something is needed that the chosen engine, backend or adapter does not have."""


class RecordError(UsageError):
    """A record that cannot be kept, such as one that JSON cannot hold; or an id that nothing has. The store goes on."""


class PluginError(LightningError, RuntimeError):
    """A plugin is broken, registered twice, or implements a hook that does not exist."""


class FormatError(LightningError, ValueError):
    """The bytes are not the record they should be."""


class FormatVersionError(FormatError):
    """The record or store was written by a newer release than this one."""


class StoreError(LightningError, OSError):
    """The store cannot be opened, read or written."""


class TokenError(LightningError, PermissionError):
    """A token is missing, forged or expired."""


class ScopeError(TokenError):
    """A token is good, but for something else."""


class WireError(LightningError, RuntimeError):
    """The server refused a request or cannot be reached.

    `status` is the HTTP status, or None where no answer came.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class FencedError(WireError):
    """The attempt has already ended, or its lease has passed to another worker."""


class EngineError(LightningError, RuntimeError):
    """A model server did not start, or has died."""
