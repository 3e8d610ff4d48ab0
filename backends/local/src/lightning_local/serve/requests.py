"""Request bodies: their fields, and the checks that the types do not make."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from lightning_local.serve.errors import BadRequest
from lightning_local.serve.sampling import MAX_TOP, Params

MOST_CHOICES = 128
"""Most choices of one request."""
MOST_STOPS = 16
"""Most stop texts."""


class StreamOptions(msgspec.Struct, frozen=True):
    """How a stream is sent."""

    include_usage: bool | None = None
    """Whether a last chunk carries the usage."""


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """What both formats have. A field that is null counts as not sent; unknown fields are ignored."""

    model: str | None = None
    """The model's name; the served one where it is missing."""
    max_tokens: int | None = None
    """Most tokens to sample."""
    temperature: float | None = None
    """Softmax temperature; 0 is greedy."""
    top_p: float | None = None
    """Nucleus mass."""
    top_k: int | None = None
    """Number of candidates; 0 or -1 for all."""
    min_p: float | None = None
    """Least probability, as a share of the likeliest token's."""
    n: int | None = None
    """Choices per prompt."""
    stream: bool | None = None
    """Whether the reply is sent piece by piece."""
    stream_options: StreamOptions | None = None
    """How it is streamed."""
    stop: str | list[str] | None = None
    """Texts that end a completion."""
    stop_token_ids: list[int] | None = None
    """Tokens that end a completion."""
    seed: int | None = None
    """Makes the draws repeatable."""
    presence_penalty: float | None = None
    """Taken off the logit of each token already in the completion."""
    frequency_penalty: float | None = None
    """Taken off it once for each time that the token is there."""
    repetition_penalty: float | None = None
    """Divides or multiplies the logits of tokens already in prompt or completion."""
    logit_bias: dict[str, float] | None = None
    """Added to the logits, by token id."""
    min_tokens: int | None = None
    """Tokens before which the completion does not end."""
    ignore_eos: bool | None = None
    """Whether to go on past the end token."""
    return_token_ids: bool | None = None
    """Whether the reply has token ids."""
    best_of: int | None = None
    """Only as many as `n`."""
    use_beam_search: bool | None = None
    """Refused."""
    response_format: dict[str, Any] | None = None
    """Only text."""


class ChatRequest(Common, frozen=True, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: list[dict[str, Any]]
    """The conversation."""
    max_completion_tokens: int | None = None
    """OpenAI's newer name of `max_tokens`; goes first."""
    logprobs: bool | None = None
    """Whether each token's log-probability is sent."""
    top_logprobs: int | None = None
    """How many alternatives are listed with it."""
    tools: list[dict[str, Any]] | None = None
    """Functions that the model may call."""
    tool_choice: str | dict[str, Any] | None = None
    """`auto` or `none`."""
    functions: list[Any] | None = None
    """Refused; `tools` replaced it."""

    def usable_tools(self) -> list[dict[str, Any]]:
        """The tools that the model may call.

        Raises:
            BadRequest: a tool is malformed, or a call is demanded, which this server cannot enforce.
        """
        if self.functions:
            raise _unsupported("functions", "use `tools`")
        tools = self.tools or []
        for i, tool in enumerate(tools):
            function = tool.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise BadRequest(
                    f"`tools[{i}]` is not of the form"
                    ' {"type": "function", "function": {"name": ..., "parameters": ...}}',
                    param="tools",
                )
        if self.tool_choice == "none":
            return []
        if self.tool_choice not in (None, "auto"):
            raise _unsupported(
                "tool_choice",
                "a call cannot be enforced here; use `auto`, `none` or `--engine vllm`",
            )
        return tools


class CompletionRequest(Common, frozen=True, kw_only=True):
    """The body of `/v1/completions`."""

    prompt: str | list[Any]
    """One text, token ids, or a list of either."""
    logprobs: int | None = None
    """How many alternatives are listed per token; None for no log-probabilities."""
    echo: bool | None = None
    """Refused."""
    suffix: str | None = None
    """Refused."""

    def prompts(self) -> list[str | list[int]]:
        """The prompts: one or several, each as text or as token ids.

        Raises:
            BadRequest: the list mixes kinds, or is empty.
        """
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if prompt and all(_is_id(item) for item in prompt):
            return [prompt]
        if prompt and all(isinstance(item, str) for item in prompt):
            return prompt
        if prompt and all(
            isinstance(item, list) and item and all(_is_id(i) for i in item) for item in prompt
        ):
            return prompt
        raise BadRequest(
            "`prompt` is neither text, nor token ids, nor a list of either", param="prompt"
        )


R = TypeVar("R", ChatRequest, CompletionRequest)


def decode(body: bytes, kind: type[R]) -> R:
    """A request from its body.

    Raises:
        BadRequest: no JSON, a missing or mistyped field, or a field that this server cannot honour.
    """
    try:
        request = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        at = str(error).partition("`$")[2].rstrip("`").lstrip(".") or None
        raise BadRequest(f"the body does not fit: {error}", param=at) from error
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if request.use_beam_search:
        raise _unsupported("use_beam_search", "sample instead")
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise _unsupported("best_of", "ask for `n` choices instead")
    if (request.response_format or {}).get("type", "text") != "text":
        raise _unsupported("response_format", "only text can be had; use `--engine vllm`")
    if isinstance(request, CompletionRequest):
        if request.echo:
            raise _unsupported("echo", "ask for `return_token_ids` to see the prompt's tokens")
        if request.suffix:
            raise _unsupported("suffix", "leave it out")
    return request


def choices(request: Common) -> int:
    """How many choices are wanted per prompt."""
    return int(_within("n", request.n, 1, 1, MOST_CHOICES))


def params(
    request: ChatRequest | CompletionRequest, *, prompt: int, context: int, vocabulary: int
) -> Params:
    """The sampling parameters of a request.

    Args:
        request: the request.
        prompt: the prompt's length in tokens.
        context: most tokens of prompt and completion.
        vocabulary: number of token ids.

    Raises:
        BadRequest: a value out of range, or more tokens than fit.
    """
    if prompt >= context:
        raise _too_long(f"the prompt has {prompt} tokens, and at most {context - 1} fit")
    asked, fallback = request.max_tokens, min(16, context - prompt)
    if isinstance(request, ChatRequest):
        fallback = context - prompt
        if request.max_completion_tokens is not None:
            asked = request.max_completion_tokens
    most = int(_within("max_tokens", asked, fallback, 1, None))
    if prompt + most > context:
        raise _too_long(
            f"the prompt's {prompt} tokens and `max_tokens={most}` are more than the {context} that fit"
        )
    if isinstance(request, ChatRequest):
        listed = _within("top_logprobs", request.top_logprobs, 0, 0, MAX_TOP)
        if listed and not request.logprobs:
            raise BadRequest("`top_logprobs` needs `logprobs: true`", param="top_logprobs")
        logprobs = int(listed) if request.logprobs else None
    else:
        wanted = request.logprobs
        logprobs = None if wanted is None else int(_within("logprobs", wanted, 0, 0, MAX_TOP))
    top_k = int(_within("top_k", request.top_k, 0, -1, None))
    return Params(
        temperature=_within("temperature", request.temperature, 1.0, 0.0, 100.0),
        top_p=_within("top_p", request.top_p, 1.0, 0.0, 1.0),
        top_k=max(top_k, 0),
        min_p=_within("min_p", request.min_p, 0.0, 0.0, 1.0),
        presence_penalty=_within("presence_penalty", request.presence_penalty, 0.0, -2.0, 2.0),
        frequency_penalty=_within("frequency_penalty", request.frequency_penalty, 0.0, -2.0, 2.0),
        repetition_penalty=_within(
            "repetition_penalty", request.repetition_penalty, 1.0, 0.01, 100.0
        ),
        logit_bias=_biases(request.logit_bias or {}, vocabulary),
        seed=request.seed,
        max_tokens=most,
        min_tokens=int(_within("min_tokens", request.min_tokens, 0, 0, most)),
        ignore_eos=bool(request.ignore_eos),
        stop=_stops(request.stop),
        stop_token_ids=check_ids(request.stop_token_ids or [], vocabulary, "stop_token_ids"),
        logprobs=logprobs,
    )


def check_ids(ids: list[int], vocabulary: int, param: str) -> tuple[int, ...]:
    """The ids, each of which the model knows.

    Raises:
        BadRequest: one is not in the vocabulary.
    """
    bad = next((i for i in ids if not 0 <= i < vocabulary), None)
    if bad is not None:
        raise BadRequest(
            f"`{param}` has token id {bad}; the model's are 0 to {vocabulary - 1}", param=param
        )
    return tuple(ids)


def _is_id(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _within(
    name: str, value: float | None, default: float, least: float, most: float | None
) -> float:
    if value is None:
        return default
    if not value >= least or (most is not None and value > most):
        limit = f"at least {least}" if most is None else f"{least} to {most}"
        raise BadRequest(f"`{name}` is {value!r}, expected {limit}", param=name)
    return value


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MOST_STOPS or not all(stops):
        raise BadRequest(
            f"`stop` has {len(stops)} texts, expected at most {MOST_STOPS}, none of them empty",
            param="stop",
        )
    return stops


def _biases(biases: dict[str, float], vocabulary: int) -> dict[int, float]:
    try:
        known = {int(token): bias for token, bias in biases.items()}
    except ValueError as error:
        raise BadRequest(
            f"`logit_bias` has a key that is no token id: {error}", param="logit_bias"
        ) from error
    check_ids(list(known), vocabulary, "logit_bias")
    return known


def _too_long(message: str) -> BadRequest:
    return BadRequest(
        f"{message}; shorten it or serve with a larger `max_context`",
        param="messages",
        code="context_length_exceeded",
    )


def _unsupported(param: str, instead: str) -> BadRequest:
    return BadRequest(
        f"`{param}` is not supported by engine `local`: {instead}", param=param, code="unsupported"
    )
