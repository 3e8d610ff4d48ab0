"""Carries the current attempt into threads, thread pools and child processes. Standard library only.

Not covered: `multiprocessing` with the start method `spawn` or `forkserver` in a worker process that runs several
attempts, since such children get the worker's own environment. In a process that belongs to one attempt it works,
and so does `fork`, which keeps context variables; but spans that a fork opens do not reach a `ListSink`, which stays with
the parent.
"""

from __future__ import annotations

import os
import sys
from contextvars import copy_context
from functools import wraps

from .patches import Patches

TYPE_CHECKING = False  # `typing` costs the start of every child process; a checker knows the name.
if TYPE_CHECKING:
    from typing import Any

_ENV = 10  # The position of `env` among the arguments of `Popen`, `args` being 0.


def _wrap_start(original: Any) -> Any:
    @wraps(original)
    def start(self: Any) -> Any:
        # Where nothing has loaded `context` yet, no attempt was entered and there is nothing to carry.
        context = sys.modules.get(f"{__package__}.context")
        if not _patches.wanted or context is None or context.base() is None:
            return original(self)
        inherited = copy_context()
        own = vars(self).get("run")
        run = self.run

        def run_in_context() -> Any:
            if own is None:
                del self.run
            else:
                self.run = own
            return inherited.run(run)

        self.run = run_in_context
        try:
            return original(self)
        except BaseException:
            if vars(self).get("run") is run_in_context:
                if own is None:
                    del self.run
                else:
                    self.run = own
            raise

    return start


def _wrap_submit(original: Any) -> Any:
    @wraps(original)
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not _patches.wanted:
            return original(self, fn, *args, **kwargs)
        # Outside an attempt too: the pool's thread may have been started within one, and carry its context.
        return original(self, copy_context().run, fn, *args, **kwargs)

    return submit


def _wrap_popen(original: Any) -> Any:
    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        # Late, since every child process loads this module and few start another.
        from . import bootstrap, context  # noqa: PLC0415

        scope = context.current() if _patches.wanted else None
        if scope is not None:
            given = args[_ENV] if len(args) > _ENV else kwargs.get("env")
            base = os.environ if given is None else given
            text = {os.fsdecode(name): os.fsdecode(value) for name, value in base.items()}
            environment = bootstrap.environment_of(scope, text)
            if len(args) > _ENV:
                args = (*args[:_ENV], environment, *args[_ENV + 1 :])
            else:
                kwargs["env"] = environment
        original(self, *args, **kwargs)

    return __init__


_patches = Patches(
    "propagate",
    # None of the three has a hook of its own for this before Python 3.14, and there only by an interpreter flag.
    (
        ("threading", "Thread", "start", _wrap_start),
        ("concurrent.futures.thread", "ThreadPoolExecutor", "submit", _wrap_submit),
        ("subprocess", "Popen", "__init__", _wrap_popen),
    ),
)
install = _patches.install
uninstall = _patches.uninstall
