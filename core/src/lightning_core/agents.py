"""Finding the user's agent: an object in a module or file, or a command line; and the adapter that runs it."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import shlex
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import msgspec

from lightning_core.adapter import Adapter
from lightning_core.errors import AgentError, UsageError
from lightning_core.frameworks import misfit
from lightning_core.redaction import redacted_words
from lightning_core.worker.callable import CallableAdapter, callable_name


class Command(msgspec.Struct, frozen=True):
    """An agent that is a command line in any language."""

    argv: tuple[str, ...]
    """The program and its arguments; no shell reads them."""

    def __str__(self) -> str:
        """The command line, without the values of flags that hold secrets."""
        return shlex.join(redacted_words(self.argv))


class Adapted(msgspec.Struct, frozen=True, eq=False):
    """An agent together with the adapter that runs it, where the one that is installed must be told something.

    Accepted wherever an agent is: `agent = Adapted(graph, LangGraphAdapter(input=…))`.
    """

    agent: Any
    """The agent, an object that `adapter` accepts."""
    adapter: Adapter
    """What runs it."""


def load_agent(spec: object = None, command: Sequence[str] | None = None) -> object:
    """The agent that the user means.

    Args:
        spec: `module:attr`, `path.py:attr` (relative to the current folder), or a live object, which is returned.
        command: a command line instead; gives a `Command`.

    Raises:
        AgentError: neither or both are given, or the agent cannot be loaded.
    """
    if command:
        if spec is not None:
            raise AgentError(
                f"agent {spec!r} and command `{Command(tuple(command))}` are both given; leave one out"
            )
        return Command(tuple(command))
    if spec is None:
        raise AgentError("no agent is given; name `module:attr`, `path.py:attr`, or `-- command …`")
    return load_object(spec) if isinstance(spec, str) else spec


def load_object(spec: str, *, what: str = "agent", error: type[UsageError] = AgentError) -> object:
    """The object that `spec` names: `module:attr` or `path.py:attr`; `attr` may be dotted.

    A file's folder is put first on `sys.path`, so that it finds its siblings, and the file is imported once, under its
    own name where that leads back to it, so that what it defines can be pickled.

    Args:
        spec: what to load.
        what: what it is for, in messages: `agent`, `reward`.
        error: what to raise.

    Raises:
        UsageError: of the kind `error`: the file, module or attribute is missing, or the import raised.
    """
    place, colon, attribute = spec.rpartition(":")
    if not colon or not place or not attribute:
        place, attribute = spec.rstrip(":"), ""
    try:
        module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    except _LoadError as problem:
        raise error(f"{what} {spec!r}: {problem}") from problem.__cause__
    if not attribute:
        raise error(f"{what} {spec!r}: expected `{place}:NAME`; {_names(module)}")
    target: object = module
    for part in attribute.split("."):
        try:
            target = getattr(target, part)
        except AttributeError as missing:
            raise error(
                f"{what} {spec!r}: `{place}` has no `{attribute}`; {_names(module, attribute)}"
            ) from missing
    return target


def find_adapter(agent: object, adapters: Mapping[str, Adapter]) -> Adapter:
    """The one adapter that accepts `agent`, its own where it is `Adapted`.

    The adapter for plain callables stands back behind any other.

    Raises:
        AgentError: none accepts it, several do, one raised when it was asked, or it does not support the framework's
            release that is installed.
    """
    if isinstance(agent, Adapted):
        return _own_adapter(agent)
    accepting: list[Adapter] = []
    for name, adapter in sorted(adapters.items()):
        if _accepts(
            name, adapter, agent, "leave it out with `LIGHTNING_CORE_PLUGINS=` naming the others"
        ):
            accepting.append(adapter)
    framework = [a for a in accepting if not isinstance(a, CallableAdapter)]
    if len(framework) > 1:
        names = " and ".join(f"`{a.name}`" for a in framework)
        raise AgentError(
            f"adapters {names} both accept {_describe(agent)}; name the plugin to use in `LIGHTNING_CORE_PLUGINS`"
        )
    if framework:
        if (why := misfit(framework[0])) is not None:
            raise AgentError(f"{_describe(agent)}: {why}, or give a function that calls the agent")
        return framework[0]
    if accepting:
        return accepting[0]
    if CallableAdapter().accepts(agent):
        return CallableAdapter()
    hint = (
        "it is a class: give an instance of it"
        if isinstance(agent, type)
        else "install its framework's adapter package, or give a function of one parameter"
    )
    known = ", ".join(f"`{name}`" for name in sorted(adapters)) or "none"
    raise AgentError(f"no adapter accepts {_describe(agent)} (installed: {known}); {hint}")


def unwrapped(agent: object) -> object:
    """The agent that its adapter runs: what is `Adapted`, else `agent` itself."""
    return agent.agent if isinstance(agent, Adapted) else agent


def _own_adapter(adapted: Adapted) -> Adapter:
    agent, adapter = adapted.agent, adapted.adapter
    if not isinstance(adapter, Adapter):
        raise AgentError(
            f"Adapted: expected an adapter, such as `LangGraphAdapter(…)`, but got {adapter!r}"
        )
    name = type(adapter).__name__
    if not _accepts(name, adapter, agent, "give `Adapted` another adapter"):
        raise AgentError(f"Adapted: adapter `{name}` does not accept {_describe(agent)}")
    return adapter


def _accepts(name: str, adapter: Adapter, agent: object, way_out: str) -> bool:
    try:
        return adapter.accepts(agent)
    except Exception as error:  # The adapter is a third party's.
        raise AgentError(
            f"adapter `{name}` raised {type(error).__name__}: {error} when asked whether it accepts"
            f" {_describe(agent)}; {way_out}"
        ) from error


def agent_name(agent: object) -> str:
    """What to call the agent in lists: its `name`, its function's name, the command line, or its type's name."""
    agent = unwrapped(agent)
    if isinstance(agent, Command):
        return str(agent)
    name = getattr(agent, "name", None)
    if isinstance(name, str) and name:
        return name
    return callable_name(agent)


class _LoadError(Exception):
    """The module cannot be had; the text says why."""


def _load_module(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # As `python -m` does.
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None and name not in sys.modules:
        as_file = Path(name.replace(".", "/") + ".py")
        hint = f"; did you mean `{as_file}:…`?" if as_file.exists() else ""
        if Path(name).exists():
            hint = "; a file must end in `.py`"
        raise _LoadError(f"there is no module `{name}` (current folder: {Path.cwd()}){hint}")
    return _execute(name, None)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        folder = path.parent
        near = sorted(p.name for p in folder.glob("*.py")) if folder.is_dir() else []
        hint = f"; {folder} has {_quoted(near[:10])}" if near else ""
        raise _LoadError(f"there is no file `{path}` (current folder: {Path.cwd()}){hint}")
    path = path.resolve()
    for module in list(sys.modules.values()):
        known = getattr(module, "__file__", None)
        if known and module.__name__ != "__main__" and Path(known) == path:
            return module
    siblings = str(path.parent)
    if siblings in sys.path:
        sys.path.remove(siblings)
    sys.path.insert(0, siblings)
    importlib.invalidate_caches()
    if path.stem.isidentifier() and path.stem not in sys.modules:
        found = importlib.util.find_spec(path.stem)
        if found is not None and found.origin and Path(found.origin) == path:
            return _execute(path.stem, None)
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    return _execute(f"lightning_core_agent_{digest}", path)


def _execute(name: str, path: Path | None) -> ModuleType:
    try:
        if path is None:
            return importlib.import_module(name)
        found = importlib.util.spec_from_file_location(name, path)
        if found is None or found.loader is None:
            raise _LoadError(f"`{path}` cannot be imported as Python")
        module = importlib.util.module_from_spec(found)
        sys.modules[name] = module
        try:
            found.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
        return module
    except (Exception, SystemExit) as error:  # The user's code may raise anything.
        if isinstance(error, _LoadError):
            raise
        raise _LoadError(
            f"its import raised {type(error).__name__}: {error}\n\n{_trimmed(error)}"
        ) from error


def _trimmed(error: BaseException) -> str:
    """The traceback without the frames of this module and of the import machinery."""
    shown = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = shown
    while part is not None:
        frames = [f for f in part.stack if f.filename != __file__ and "importlib" not in f.filename]
        part.stack = traceback.StackSummary.from_list(frames)
        part = part.__cause__ or part.__context__
    text = "".join(shown.format()).rstrip()
    return text if len(text) <= 8192 else text[:2048] + "\n…\n" + text[-6144:]


def _names(module: ModuleType, wanted: str = "") -> str:
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    own = [
        name
        for name, value in public.items()
        if not isinstance(value, ModuleType)
        and name != "annotations"
        and (not isinstance(value, type | FunctionType) or value.__module__ == module.__name__)
    ]
    close = difflib.get_close_matches(wanted, public, n=3) if wanted else []
    if close:
        return f"did you mean {_quoted(close)}?"
    return f"it defines {_quoted(own[:10])}" if own else "it defines nothing public"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _describe(agent: object) -> str:
    kind = agent if isinstance(agent, type) else type(agent)
    return f"an agent of type `{kind.__module__}.{kind.__qualname__}`"
