"""A run as a file: the options of `lightning-core optimize` in TOML.

Keys are the options' names with underscores. The table `[backend.NAME]` names the backend and holds what `--set` takes;
nested tables make dotted keys. Relative paths count from the file's folder. What the command line gives goes before.
"""

from __future__ import annotations

import datetime
import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import click
import msgspec

from lightning_core.cli import AgentCommand
from lightning_core.errors import UsageError
from lightning_core.plugins import installed
from lightning_core.running.prepare import find_backend

SUFFIX: Final = ".toml"
"""How the name of a run file ends."""
_SETTINGS: Final = "settings"
"""The parameter of `--set`, which a file has as `[backend.NAME]`."""
_KINDS: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "integer": ((int,), "a whole number"),
    "integer range": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "boolean": ((bool,), "true or false"),
}
"""For a type of click's: the types of a value, and how they are called; text for all others."""


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a run file says, its paths as the command line would have them."""

    path: Path
    """The file."""
    agent: str | None = None
    """The agent, `path.py:attr` or `module:attr`; None where there is a command line."""
    command: tuple[str, ...] = ()
    """The agent's command line; empty where there is none."""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Single values by the name of the command's parameter, `backend` among them."""
    pairs: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    """Values of options that take `KEY=VALUE`, by the name of the command's parameter."""
    backends: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    """For each backend that has a table: its values by dotted key."""

    def settings(self, backend: str) -> dict[str, str]:
        """A backend's values as `--set` takes them; none where the file has no table for it.

        Raises:
            UsageError: the backend is not installed.
        """
        values = self.backends.get(backend)
        if not values:
            return {}
        text = find_backend(backend, installed()).option_text
        return {key: text(value) for key, value in values.items()}


class RunFileCommand(AgentCommand):
    """A command whose agent may be a run file. What else the command line says goes before what the file says."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Fill in from the file what the command line leaves open.

        Raises:
            UsageError: the file cannot be read, or says what no option takes.
        """
        head = args[: args.index("--")] if "--" in args else args
        given, _, _ = self.make_parser(ctx).parse_args(list(head))
        named = given.get("agent")
        helps = any(each.is_eager and each.name in given for each in self.get_params(ctx))
        if helps or not isinstance(named, str) or not named.endswith(SUFFIX):
            return super().parse_args(ctx, args)
        file = read(Path(named), self.params)
        if len(file.backends) > 1 and not isinstance(given.get("backend"), str):
            tables = ", ".join(f"`[backend.{name}]`" for name in file.backends)
            raise UsageError(
                f"run file {named!r}: has the tables {tables}; say with `--backend` which one it is to be"
            )
        ctx.default_map = {**(ctx.default_map or {}), **file.options}
        rest = super().parse_args(ctx, args)
        line = ctx.params["command_line"]
        if file.agent is None and not file.command and not line:
            raise UsageError(
                f"run file {named!r}: expected a key `agent` or `command`, or a command line after `--`"
            )
        ctx.params["agent"] = None if line else file.agent
        ctx.params["command_line"] = line or file.command
        pairs = {**file.pairs, _SETTINGS: file.settings(ctx.params["backend"])}
        for name, values in pairs.items():
            ctx.params[name] = {**values, **ctx.params[name]}
        return rest


def read(path: Path, parameters: Sequence[click.Parameter]) -> RunFile:
    """Read a run file.

    Args:
        path: the file; relative paths in it count from its folder.
        parameters: of the command whose options it holds.

    Raises:
        UsageError: it cannot be read, has a key that is unknown, or a value that the option cannot have. The message
            names the file and the key.
    """
    content = _load(path)
    known = _known(parameters)
    _check_keys(path, content, known)
    agent, command = _agent(path, content)
    options: dict[str, Any] = {}
    pairs: dict[str, dict[str, str]] = {}
    backends: dict[str, dict[str, Any]] = {}
    for key, parameter in known.items():
        name = parameter.name
        if key not in content or name is None:
            continue
        value = content[key]
        if key == "backend" and isinstance(value, dict):
            backends = {each: _table(path, each, table) for each, table in value.items()}
            if len(backends) == 1:
                options[name] = next(iter(backends))
            elif not backends:
                _refuse(path, key, "a name, or a table `[backend.NAME]`", value)
        elif parameter.multiple:
            pairs[name] = _pairs(path, key, value)
        else:
            options[name] = _value(path, key, parameter, value)
    return RunFile(
        path=path, agent=agent, command=command, options=options, pairs=pairs, backends=backends
    )


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise UsageError(f"run file {str(path)!r}: {what} (looked from {str(Path.cwd())!r})")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"run file {str(path)!r}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # TOML's and Unicode's
        raise UsageError(f"run file {str(path)!r}: is not TOML: {error}") from error


def _known(parameters: Sequence[click.Parameter]) -> dict[str, click.Option]:
    """The options that a file may give, by key."""
    return {
        _key(each): each
        for each in parameters
        if isinstance(each, click.Option) and not each.is_eager and each.name != _SETTINGS
    }


def _key(option: click.Option) -> str:
    longest = max((text for text in option.opts if text.startswith("--")), key=len)
    return longest.removeprefix("--").replace("-", "_")


def _check_keys(path: Path, content: Mapping[str, Any], known: Mapping[str, click.Option]) -> None:
    keys = ["agent", "command", *known]
    other = {option.name: key for key, option in known.items()}
    other |= dict.fromkeys(("set", _SETTINGS), "[backend.NAME]")
    unknown = []
    for key in content:
        if key in keys:
            continue
        dashed = key.replace("-", "_")
        near = difflib.get_close_matches(dashed, keys, n=1)
        meant = other.get(dashed) or (dashed if dashed in keys else next(iter(near), None))
        unknown.append(f"`{key}`" + (f" (did you mean `{meant}`?)" if meant else ""))
    if unknown:
        raise UsageError(
            f"run file {str(path)!r}: not known: {', '.join(unknown)}; keys are the names of the options of"
            " `lightning-core optimize`, with underscores, and the backend's own stand in a table `[backend.NAME]`"
        )


def _agent(path: Path, content: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]:
    agent, command = content.get("agent"), content.get("command")
    if agent is not None and not isinstance(agent, str):
        _refuse(path, "agent", "text, `path.py:attr` or `module:attr`", agent)
    if command is not None:
        words = isinstance(command, list) and all(isinstance(word, str) for word in command)
        if not words or not command:
            _refuse(path, "command", 'a list of words, such as ["node", "agent.js"]', command)
    if agent is not None and command is not None:
        raise UsageError(f"run file {str(path)!r}: has both `agent` and `command`; leave one out")
    return None if agent is None else _place(path, agent), tuple(command or ())


def _value(path: Path, key: str, option: click.Option, value: object) -> object:
    types, called = _KINDS.get(option.type.name, ((str,), "text"))
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        _refuse(path, key, called, value)
    try:
        value = option.type.convert(value, option, None)
    except click.BadParameter as error:
        raise UsageError(f"run file {str(path)!r}: key `{key}`: {error.message}") from error
    if not isinstance(value, str):
        return value
    if key in {"tasks", "val"}:
        return _beside(path, value)
    if key == "reward":
        return _place(path, value)
    if key == "model":
        return _model(path, value)
    return value


def _pairs(path: Path, key: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        _refuse(path, key, f'a table of texts, `[{key}]` with lines such as name = "text"', value)
    return value


def _table(path: Path, backend: str, table: object) -> dict[str, Any]:
    """A backend's values by dotted key."""
    where = f"backend.{backend}"
    if not isinstance(table, dict):
        _refuse(path, where, f"a table, `[{where}]`", table)
    flat: dict[str, Any] = {}

    def add(prefix: str, part: Mapping[str, Any]) -> None:
        for name, value in part.items():
            key = prefix + name
            if isinstance(value, dict):
                add(f"{key}.", value)
                continue
            for each in value if isinstance(value, list) else [value]:
                # TOML's dates, and tables in a list, have no form as an option.
                if isinstance(each, dict | datetime.date | datetime.time):
                    _refuse(path, f"{where}.{key}", "text, a number, true or false, or a list of these", value)  # fmt: skip
            if key in flat:
                raise UsageError(f"run file {str(path)!r}: key `{where}.{key}`: is given twice")
            flat[key] = value

    add("", table)
    return flat


def _place(path: Path, spec: str) -> str:
    """`path.py:attr` from the file's folder; what is no path as it is."""
    place, colon, attribute = spec.rpartition(":")
    return f"{_beside(path, place)}:{attribute}" if colon and place.endswith(".py") else spec


def _model(path: Path, model: str) -> str:
    """A folder from the file's folder; a name as it is."""
    beside = _beside(path, model)
    looks = model.startswith(("./", "../", "~"))
    return beside if looks or Path(beside).is_dir() else model


def _beside(path: Path, name: str) -> str:
    return str(path.parent / Path(name).expanduser())


def _refuse(path: Path, key: str, expected: str, got: object) -> NoReturn:
    raise UsageError(
        f"run file {str(path)!r}: key `{key}`: expected {expected}, but got {got!r}"
    ) from None
