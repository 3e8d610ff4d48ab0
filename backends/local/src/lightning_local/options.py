"""Reading `--engine-option KEY=VALUE` pairs."""

from __future__ import annotations

from collections.abc import Mapping

from lightning_core.errors import UsageError


def known(engine: str, options: Mapping[str, str], names: tuple[str, ...]) -> None:
    """Refuse an option that the engine does not have.

    Raises:
        UsageError: there is one.
    """
    for key in options:
        if key not in names:
            raise UsageError(
                f"engine `{engine}` has no option {key!r}; it has {', '.join(f'`{n}`' for n in names)}"
            )


def one_of(engine: str, options: Mapping[str, str], key: str, values: tuple[str, ...]) -> str:
    """An option with fixed values; the first is the default.

    Raises:
        UsageError: it has another value.
    """
    value = options.get(key, values[0])
    if value not in values:
        raise UsageError(
            f"option `{key}` of engine `{engine}` is {value!r}, expected {', '.join(values)}"
        )
    return value


def whole(
    engine: str, options: Mapping[str, str], key: str, default: int | None, *, least: int = 1
) -> int | None:
    """An option that is a whole number.

    Raises:
        UsageError: it is none, or too small.
    """
    text = options.get(key)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise UsageError(
            f"option `{key}` of engine `{engine}` is {text!r}, expected a whole number of at least {least}"
        )
    return value
