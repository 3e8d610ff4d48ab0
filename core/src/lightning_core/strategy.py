"""Strategy: what can be tuned without weights, as `strategy.json` holds it.

Code that opts in reads it by `strategy.prompt`, `strategy.rule` and `strategy.choose`, see `lightning_core.slots`.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Self

import msgspec

from lightning_core.errors import FormatError, FormatVersionError, StoreError, UsageError
from lightning_core.records import Json, Record
from lightning_core.slots import choose, prompt, rule, using
from lightning_core.template import Template

__all__ = [
    "ErrorHandling",
    "InteractionPattern",
    "Message",
    "ModelChoice",
    "PromptTemplate",
    "Provenance",
    "Step",
    "Strategy",
    "choose",
    "prompt",
    "rule",
    "using",
]

_ROLES: Final = ("system", "developer", "user")


class Step(StrEnum):
    """A step of an interaction pattern."""

    WRITE = "write"
    """The model writes a solution."""
    EXECUTE = "execute"
    """The executor runs it; nothing of the model."""
    CHECK = "check"
    """The checker, or the model, says whether the result is right."""
    REWRITE = "rewrite"
    """The model writes another solution, told of what was wrong. Skipped where the check was content."""


class ErrorHandling(StrEnum):
    """What becomes of a solution whose execution fails."""

    REWRITE = "rewrite"
    """It is written anew, told of the error, while attempts are left."""
    RETURN = "return"
    """It is returned as it is, with the error."""
    RAISE = "raise"
    """The error is raised."""


# What `extra_json_schema` says is for `strategy.schema.json`; `__post_init__` checks the same, from JSON and from code.
_RULES: Final = {
    "properties": {
        "max_attempts": {"type": "integer", "minimum": 1},
        "rewrite_threshold": {"type": "number", "minimum": 0, "maximum": 1},
        "error_handling": {"enum": list(ErrorHandling)},
    },
    "additionalProperties": {"type": ["number", "string", "boolean"]},
}
_PAIR: Final = {
    "prefixItems": [
        {"$ref": "#/$defs/Message", "properties": {"role": {"const": role}}}
        for role in ("user", "assistant")
    ],
    "minItems": 2,
    "maxItems": 2,
}


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message of a demonstration."""

    role: str
    """`user` or `assistant`."""
    content: str
    """What was said."""


class PromptTemplate(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A prompt of the agent's, and what it is replaced by.

    Templates have holes in braces, `{question}`; a brace that is none is doubled, `{{`.

    Raises:
        UsageError: a template has unbalanced braces; the holes of `template` are not those of `original`, where there
            is one; a role is unknown; a demonstration is no user's message and the assistant's reply.
    """

    template: str
    """What is sent: it has the holes of `original`, each at least once."""
    original: str = ""
    """What the agent sends, as found in its traffic; empty for a prompt that the agent's code reads by name."""
    role: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(_ROLES)})] = "system"
    """The role of the message: `system`, `developer` or `user`; for text completions `user`."""
    label: str = ""
    """The node, or else the agent, whose calls have it; empty is any. Calls without a label, as of a program that no adapter
    watches, go by their text alone."""
    demonstrations: tuple[
        Annotated[tuple[Message, ...], msgspec.Meta(extra_json_schema=_PAIR)], ...
    ] = ()
    """Examples, each a user's message and the assistant's reply, sent before the call's first message that is neither
    `system` nor `developer`."""

    def __post_init__(self) -> None:
        holes = _template("template", self.template).holes
        if self.original:
            known = _template("original", self.original).holes
            if unknown := [name for name in holes if name not in known]:
                raise UsageError(
                    f"`template`: unknown placeholder `{{{unknown[0]}}}`; `original` has {_named(known, '{{{}}}')}"
                )
            if missing := [name for name in known if name not in holes]:
                raise UsageError(
                    f"`template`: `{{{missing[0]}}}` of `original` is missing; put it where its text is to go"
                )
        if self.role not in _ROLES:
            raise UsageError(f"`role`: expected {_named(_ROLES)} but got {self.role!r}")
        for number, messages in enumerate(self.demonstrations):
            roles = [message.role for message in messages]
            if roles != ["user", "assistant"]:
                raise UsageError(
                    f"`demonstrations[{number}]`: expected messages of the roles `user`, `assistant`, in this order,"
                    f" but got {_named(roles)}"
                )
            for message in messages:
                _encodable(message.content)


class InteractionPattern(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Which of several ways the agent goes.

    Raises:
        UsageError: `chosen` is none of the options.
    """

    chosen: str
    """The name of one of the options."""
    options: dict[str, tuple[Step, ...]]
    """The options, and the steps of each; none where the agent's own code knows what the name means."""

    def __post_init__(self) -> None:
        if self.chosen not in self.options:
            raise UsageError(
                f"`chosen`: expected one of the options {_named(self.options)} but got {self.chosen!r}"
            )


class ModelChoice(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Which model answers, and how it is sampled; None leaves what the agent asks for.

    Raises:
        UsageError: a number is out of its range.
    """

    model: Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1})] | None = None
    """The model's name, as its provider has it."""
    temperature: Annotated[float, msgspec.Meta(extra_json_schema={"minimum": 0})] | None = None
    """Softmax temperature, 0 or more."""
    top_p: (
        Annotated[float, msgspec.Meta(extra_json_schema={"exclusiveMinimum": 0, "maximum": 1})]
        | None
    ) = None
    """Nucleus mass, above 0 and at most 1."""
    max_tokens: Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 1})] | None = None
    """Bound of a reply, in tokens."""

    def __post_init__(self) -> None:
        if self.model == "":
            raise UsageError(
                "`model`: expected a model's name but got ''; leave it out for the agent's own"
            )
        if self.temperature is not None and not 0 <= self.temperature < math.inf:
            raise UsageError(f"`temperature`: expected 0 or more but got {self.temperature!r}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"`top_p`: expected above 0 and at most 1 but got {self.top_p!r}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"`max_tokens`: expected 1 or more but got {self.max_tokens!r}")


class Provenance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a strategy comes from. Unknown fields are ignored."""

    run: str = ""
    """The run that made it."""
    agent: str = ""
    """The agent that it was made for."""
    fingerprint: str = ""
    """A digest of that agent's prompts as found in its traffic, in hexadecimal."""
    created_at: float = 0.0
    """Unix time in seconds."""
    scores: dict[str, Json] = msgspec.field(default_factory=dict)
    """Mean rewards on held-out tasks: `before`, `after`, `difference`, its `interval` (95 %), `tasks`, `repeats`."""
    cost: dict[str, Json] = msgspec.field(default_factory=dict)
    """What it took: `rollouts`, `calls`, `tokens`, `usd`, of it `reflection_usd`, `seconds`."""


class Strategy(Record, frozen=True, kw_only=True):
    """What can be tuned without weights. `strategy.json` is its JSON.

    Unlike other records it refuses fields that it does not know, but for those of `provenance`: people write it, and a
    misspelt field must not be lost in silence.

    Raises:
        UsageError: a decision rule has no value that it can have.
    """

    prompt_templates: dict[str, PromptTemplate] = msgspec.field(default_factory=dict)
    """By the slot's name."""
    decision_rules: Annotated[dict[str, Any], msgspec.Meta(extra_json_schema=_RULES)] = (
        msgspec.field(default_factory=dict)
    )
    """Values by name. `max_attempts` (1 or more), `rewrite_threshold` (0 to 1: a check's score below it asks for a
    rewrite) and `error_handling` are known to `TrainedAgent`; others are the agent's own: numbers, strings, booleans."""
    interaction_patterns: dict[str, InteractionPattern] = msgspec.field(default_factory=dict)
    """By name; `TrainedAgent` runs the one named `flow`."""
    models: dict[str, ModelChoice] = msgspec.field(default_factory=dict)
    """By the label of a node or agent; `*` is for all others."""
    provenance: Provenance = Provenance()
    """Where it comes from."""

    def __post_init__(self) -> None:
        for name, value in self.decision_rules.items():
            if expected := _expected(name, value):
                raise UsageError(
                    f"at `$.decision_rules.{name}`: expected {expected} but got {value!r}"
                )

    @classmethod
    def from_value(cls, value: Json) -> Self:
        """Convert decoded JSON to a strategy; raises as `from_json` does."""
        try:
            made = super().from_value(value)
        except FormatVersionError:
            raise
        except FormatError:
            _locate(value)
            raise
        fields = ("format_version", *cls.__struct_fields__)
        for key in value:
            if key not in fields:
                raise FormatError(
                    f"{cls.__name__}: unknown field `{key}`; expected {_named(fields)}"
                )
        return made

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a strategy file.

        Raises:
            FormatVersionError: the file was written in a newer format.
            FormatError: it is no strategy; the message names the file, the JSON path, and what is expected there.
            UsageError: it cannot be read.
        """
        try:
            text = Path(path).read_bytes().decode("utf-8-sig")
            return cls.from_json(text)
        except OSError as error:
            raise UsageError(
                f"strategy file `{path}`: cannot be read: {error.strerror}; check the path"
            ) from error
        except UnicodeDecodeError as error:
            raise FormatError(
                f"strategy file `{path}`: not UTF-8 at byte {error.start}; save it as UTF-8"
            ) from error
        except FormatError as error:
            raise type(error)(f"strategy file `{path}`: {error}") from error

    def dump(self, path: str | os.PathLike[str]) -> None:
        """Write a strategy file: indented, UTF-8, names in order. A reader sees the old file or the new, never a part.

        Raises:
            StoreError: the file cannot be written.
        """
        value = msgspec.to_builtins(self, order="deterministic")
        data = msgspec.json.encode({"format_version": self.VERSION, **value})
        target = Path(path)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with temporary.open("wb") as file:
                file.write(msgspec.json.format(data) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise StoreError(
                f"strategy file `{path}`: cannot be written: {error.strerror}; choose another place"
            ) from error

    @property
    def is_empty(self) -> bool:
        """Whether nothing is tuned: applied, it changes nothing."""
        return not (
            self.prompt_templates or self.decision_rules or self.interaction_patterns or self.models
        )

    @property
    def digest(self) -> str:
        """What it is known by, wherever it comes from: SHA-256 of its JSON without `provenance`, in hexadecimal."""
        bare = msgspec.structs.replace(self, provenance=Provenance())
        return hashlib.sha256(msgspec.json.encode(bare, order="sorted")).hexdigest()


def _template(field: str, source: str) -> Template:
    _encodable(source)
    try:
        return Template(source)
    except UsageError as error:
        # The error of a template calls it so, and says where in it.
        raise UsageError(f"`{field}`{str(error).removeprefix('template')}") from error


def _encodable(text: str) -> None:
    """Refuse what no file can hold: models write such text, and it must not be met first when a run's result is written."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"text with {text[error.start]!r}, character {error.start + 1}, half of a surrogate pair, which UTF-8"
            " cannot hold; leave it out"
        ) from error


def _expected(name: str, value: Any) -> str:
    """What a decision rule's value should be; empty where it is that."""
    if name == "max_attempts":
        return "" if type(value) is int and value >= 1 else "a whole number, 1 or more"
    if name == "rewrite_threshold":
        fits = type(value) in (int, float) and 0 <= value <= 1
        return "" if fits else "a number from 0 to 1"
    if name == "error_handling":
        return "" if value in list(ErrorHandling) else _named(ErrorHandling)
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    return "" if isinstance(value, (int, float, str)) else "a number, string or boolean"


def _locate(value: Json) -> None:
    """Raise the error of the first part that cannot be converted, with its name in the path; msgspec leaves names out."""
    for section, type_ in (
        ("prompt_templates", PromptTemplate),
        ("interaction_patterns", InteractionPattern),
        ("models", ModelChoice),
    ):
        parts = value.get(section) if isinstance(value, dict) else None
        for name, part in parts.items() if isinstance(parts, dict) else ():
            try:
                msgspec.convert(part, type_)
            except msgspec.ValidationError as error:
                why, _, inner = str(error).rpartition(" - at `$")
                path = f"$.{section}.{name}{inner.removesuffix('`') if why else ''}"
                why = (why or inner).replace("Invalid enum value", "unknown step")
                if why.startswith("unknown step"):
                    why += f"; steps are {_named(Step)}"
                elif path == f"$.{section}.{name}" and "unknown field" in why:
                    why += f"; expected {_named(type_.__struct_fields__)}"
                raise FormatError(f"Strategy: at `{path}`: {why}") from error


def _named(names: Any, form: str = "{}") -> str:
    return ", ".join(f"`{form.format(name)}`" for name in names) or "none"
