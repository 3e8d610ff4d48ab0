"""Runs at the start of a Python child process of an attempt, and then whatever `sitecustomize` would have run.

Python finds it by `PYTHONPATH` in any virtual environment, so it takes our modules by their folder, not by import.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = "_lightning_core_instrument"


def _start() -> None:
    raw = os.environ.get("LIGHTNING_CORE_SESSION")
    if raw and sys.version_info >= (3, 9):
        package = type(sys)(_PACKAGE)
        package.__path__ = [os.path.dirname(_HERE)]
        sys.modules[_PACKAGE] = package
        __import__(_PACKAGE + ".child", fromlist=["child"]).start(raw)


def _chain() -> None:
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != _HERE]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        # The import system looks for the module that it is importing.
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


_start()
_chain()
