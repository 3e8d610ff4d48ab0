"""Finding and loading plugins: one by one, lazily, each fault named."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import pluggy

from lightning_core import hookspecs
from lightning_core.adapter import Adapter
from lightning_core.backend import Backend
from lightning_core.engine import EngineFactory
from lightning_core.errors import PluginError
from lightning_core.executor import Executor
from lightning_core.frameworks import requirements
from lightning_core.grading import RewardFunction
from lightning_core.learn.credit import CreditRuleFactory
from lightning_core.learn.samplers import SamplerFactory
from lightning_core.records import Json
from lightning_core.settings import Settings
from lightning_core.trace import Trace

GROUP: Final = "lightning_core"
"""The entry-point group."""
BUILT_IN: Final = ("lightning_core.builtin",)
"""Modules of ours that come in through the same hooks."""

hookimpl = pluggy.HookimplMarker(GROUP)
"""Marks a plugin's functions."""


class PluginInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin that was found."""

    name: str
    """The entry point's name."""
    module: str
    """What it loads."""
    distribution: str
    """The distribution that has it."""
    version: str
    """That distribution's version."""
    hooks: tuple[str, ...] = ()
    """The hooks that it implements; empty where it could not be loaded."""
    requires: tuple[str, ...] = ()
    """The framework requirements of its extra `instruments`."""
    error: str | None = None
    """Why it could not be loaded, and the fix."""


_N = TypeVar("_N", Adapter, Backend, EngineFactory, Executor)


class Plugins:
    """The plugins that are loaded, and what they register."""

    def __init__(self, manager: pluggy.PluginManager, found: tuple[PluginInfo, ...]) -> None:
        self._manager = manager
        self.found: Final = found

    @property
    def hook(self) -> Any:
        """The hooks, to be called with keywords."""
        return self._manager.hook

    @property
    def broken(self) -> tuple[PluginInfo, ...]:
        """The plugins that could not be loaded."""
        return tuple(info for info in self.found if info.error)

    def adapters(self) -> dict[str, Adapter]:
        """Adapters by name."""
        hook = self._manager.hook.lightning_register_adapters
        return self._collect("adapter", Adapter, hook)  # type: ignore[type-abstract]  # only for isinstance

    def backends(self) -> dict[str, Backend]:
        """Backends by name."""
        hook = self._manager.hook.lightning_register_backends
        return self._collect("backend", Backend, hook)  # type: ignore[type-abstract]  # only for isinstance

    def engines(self) -> dict[str, EngineFactory]:
        """Engine factories by name."""
        hook = self._manager.hook.lightning_register_engines
        return self._collect("engine", EngineFactory, hook)  # type: ignore[type-abstract]  # only for isinstance

    def executors(self) -> dict[str, Executor]:
        """Executors by name."""
        hook = self._manager.hook.lightning_register_executors
        return self._collect("executor", Executor, hook)  # type: ignore[type-abstract]  # only for isinstance

    def rewards(self) -> dict[str, RewardFunction]:
        """Reward functions by name."""
        return self._functions("reward", self._manager.hook.lightning_register_rewards)

    def credit(self) -> dict[str, CreditRuleFactory]:
        """Factories of credit rules by name, for `parse_credit`."""
        return self._functions("credit rule", self._manager.hook.lightning_register_credit)

    def samplers(self) -> dict[str, SamplerFactory]:
        """Factories of task samplers by name, for `create_sampler`."""
        return self._functions("sampler", self._manager.hook.lightning_register_samplers)

    def _functions(self, kind: str, hook: pluggy.HookCaller) -> dict[str, Any]:
        found: dict[str, tuple[str, Any]] = {}
        for plugin, result in self._results(hook):
            if not isinstance(result, dict):
                raise _wrong(plugin, hook.name, "a dict of functions by name", result)
            for name, function in result.items():
                if not callable(function):
                    raise _wrong(plugin, hook.name, f"a function for {kind} `{name}`", function)
                _add(found, kind, name, plugin, function)
        return {name: function for name, (_, function) in sorted(found.items())}

    def _collect(self, kind: str, cls: type[_N], hook: pluggy.HookCaller) -> dict[str, _N]:
        found: dict[str, tuple[str, _N]] = {}
        for plugin, result in self._results(hook):
            if not isinstance(result, list):
                raise _wrong(plugin, hook.name, f"a list of `{cls.__name__}` objects", result)
            for item in result:
                if not isinstance(item, cls):
                    raise _wrong(plugin, hook.name, f"`{cls.__name__}` objects", item)
                _add(found, kind, item.name, plugin, item)
        return {name: item for name, (_, item) in sorted(found.items())}

    def tell_finished(self, *, folder: Path, trace: Trace) -> list[tuple[str, Exception]]:
        """Call `lightning_rollout_finished` of every plugin; the plugins that raised, and what."""
        hook = self._manager.hook.lightning_rollout_finished
        return self._tell(hook, folder=folder, trace=trace)

    def tell_step(
        self, *, folder: Path, step: int, metrics: Mapping[str, Json]
    ) -> list[tuple[str, Exception]]:
        """Call `lightning_step_finished` of every plugin; the plugins that raised, and what."""
        hook = self._manager.hook.lightning_step_finished
        return self._tell(hook, folder=folder, step=step, metrics=metrics)

    def _tell(self, hook: pluggy.HookCaller, **arguments: Any) -> list[tuple[str, Exception]]:
        failed: list[tuple[str, Exception]] = []
        for name, call in self._one_by_one(hook):
            try:
                call(**arguments)
            except Exception as error:  # An observer's fault is no fault of what it observes.
                failed.append((name, error))
        return failed

    def _one_by_one(self, hook: pluggy.HookCaller) -> Iterator[tuple[str, pluggy.HookCaller]]:
        """A caller for each plugin alone, so that a fault names its plugin."""
        plugins = {impl.plugin_name: impl.plugin for impl in hook.get_hookimpls()}
        for name in plugins:
            others = [plugin for other, plugin in plugins.items() if other != name]
            yield name, self._manager.subset_hook_caller(hook.name, others)

    def _results(self, hook: pluggy.HookCaller) -> Iterator[tuple[str, Any]]:
        """Each plugin's results."""
        for name, call in self._one_by_one(hook):
            try:
                results = call()
            except Exception as error:
                raise PluginError(
                    f"plugin `{name}`: hook `{hook.name}` raised {type(error).__name__}: {error};"
                    " leave it out with `LIGHTNING_CORE_PLUGINS=` naming the others"
                ) from error
            for result in results:
                yield name, result


def _wrong(plugin: str, hook: str, expected: str, got: object) -> PluginError:
    return PluginError(
        f"plugin `{plugin}`: hook `{hook}`: expected {expected} but got {got!r}; see docs/hooks.md"
    )


def _add(found: dict[str, tuple[str, Any]], kind: str, name: str, plugin: str, item: Any) -> None:
    if name in found:
        raise PluginError(
            f"{kind} `{name}` is registered by plugin `{found[name][0]}` and by plugin `{plugin}`;"
            " narrow with `LIGHTNING_CORE_PLUGINS=a,b` or uninstall one"
        )
    found[name] = (plugin, item)


def load(
    settings: Settings | None = None,
    *,
    entry_points: Iterable[importlib.metadata.EntryPoint] | None = None,
    write: Callable[[str], object] | None = None,
) -> Plugins:
    """Load the built-in and the installed plugins.

    Args:
        settings: which plugins, and whether hook calls are printed; by default from the environment.
        entry_points: what to load in place of what is installed.
        write: where the trace of hook calls goes; standard error by default.

    Raises:
        PluginError: a plugin that was asked for by name is missing or broken; two plugins have one name;
            a plugin implements a hook that does not exist.
    """
    settings = settings or Settings.from_environ()
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    if settings.trace_plugins:
        manager.trace.root.setwriter(write or sys.stderr.write)
        manager.enable_tracing()
    for module in BUILT_IN:
        manager.register(importlib.import_module(module), name=module)

    points: dict[str, importlib.metadata.EntryPoint] = {}
    for point in (
        importlib.metadata.entry_points(group=GROUP) if entry_points is None else entry_points
    ):
        other = points.get(point.name)
        if other is not None and (other.value, _owner(other)) != (point.value, _owner(point)):
            raise PluginError(
                f"plugin `{point.name}` comes from `{_owner(other)[0]}` and from `{_owner(point)[0]}`;"
                " uninstall one of them"
            )
        points[point.name] = point

    asked = settings.plugins
    for name in asked or ():
        if name not in points:
            raise PluginError(
                f"plugin `{name}` is named in `LIGHTNING_CORE_PLUGINS` but not installed;"
                f" installed are {', '.join(f'`{p}`' for p in sorted(points)) or 'none'}"
            )
    found = [
        _load_one(manager, point, must=asked is not None)
        for name, point in sorted(points.items())
        if asked is None or name in asked
    ]
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        plugin = manager.get_name(error.plugin)
        owner = next((f" of `{i.distribution}` {i.version}" for i in found if i.name == plugin), "")
        raise PluginError(
            f"plugin `{plugin}`{owner}: {_without_module(str(error))}; docs/hooks.md lists the hooks that exist"
        ) from error
    return Plugins(manager, tuple(found))


def _load_one(
    manager: pluggy.PluginManager, point: importlib.metadata.EntryPoint, *, must: bool
) -> PluginInfo:
    distribution, version = _owner(point)
    info = PluginInfo(
        name=point.name,
        module=point.value,
        distribution=distribution,
        version=version,
        requires=requirements(distribution),
    )
    try:
        plugin = point.load()
        manager.register(plugin, name=point.name)
    except (
        Exception
    ) as error:  # Whatever a plugin raises on import must not keep the others from loading.
        text = (
            f"plugin `{point.name}` of `{distribution}` {version} could not be loaded:"
            f" {type(error).__name__}: {_without_module(str(error))}; {_fix(error, distribution)}"
        )
        if must:
            raise PluginError(text) from error
        return msgspec.structs.replace(info, error=text)
    hooks = sorted(caller.name for caller in manager.get_hookcallers(plugin) or ())
    return msgspec.structs.replace(info, hooks=tuple(hooks))


def _fix(error: Exception, distribution: str) -> str:
    if isinstance(error, ImportError):
        return f"run `pip install --upgrade {distribution}`, or uninstall it"
    return f"it is a fault of the plugin's: tell its authors, or run `pip uninstall {distribution}`"


def _without_module(text: str) -> str:
    """pluggy's message without the module's repr, which holds a path."""
    return re.sub(
        r" in plugin <module [^>]*>", "", re.sub(r"[Pp]lugin <module [^>]*> ?", "", text)
    ).strip()


def _owner(point: importlib.metadata.EntryPoint) -> tuple[str, str]:
    return (point.dist.name, point.dist.version) if point.dist else ("unknown", "unknown")


@lru_cache(maxsize=1)
def installed() -> Plugins:
    """The plugins of this process, loaded once."""
    return load()
