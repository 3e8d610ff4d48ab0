"""Tiny random models with a byte-level tokenizer of their own, and servers for them in this process."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: the machine is shared

import pytest
import torch
import transformers
from aiohttp.test_utils import TestClient, TestServer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lightning_core.learn.sample import NO_VERSION, Sample, Segment
from lightning_local.models import Loaded, load
from lightning_local.serve.app import Server
from lightning_local.serve.limits import Limits
from lightning_local.serve.sampling import Logprobs

torch.set_num_threads(1)

END = "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}<tool_call>{{ c.function.arguments.a }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


def make_tokenizer(template: str | None = TEMPLATE) -> Any:
    """Bytes, a few merges, and the special tokens of ChatML."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<|im_start|>", END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(["the user says to the assistant that the tool is there"] * 3, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token=END, pad_token=END, unk_token="<|endoftext|>"
    )
    tokenizer.chat_template = template
    return tokenizer


def make_model(kind: str = "llama", seed: int = 0, **settings: Any) -> Any:
    """Random weights, large enough that no two tokens are nearly equally likely."""
    config_class, model_class = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    }[kind]
    config = config_class(
        **{
            "vocab_size": 320,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "initializer_range": 0.3,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 2,
            **settings,
        }
    )
    torch.manual_seed(seed)
    return model_class(config).eval()


def save(folder: Path, model: Any, tokenizer: Any = None) -> Path:
    """A Hugging Face folder."""
    model.save_pretrained(folder)
    (tokenizer or make_tokenizer()).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Saved models by name."""
    made = {
        "llama": make_model("llama"),
        "other": make_model("llama", seed=1),
        "tied": make_model("qwen2", tie_word_embeddings=True),
        "tied-other": make_model("qwen2", tie_word_embeddings=True, seed=1),
        "sliding": make_model("mistral", sliding_window=16),
        "wide": make_model("llama", intermediate_size=128),
    }
    root = tmp_path_factory.mktemp("models")
    return {name: save(root / name, model) for name, model in made.items()}


class Client:
    """Asks a server in this process."""

    def __init__(self, client: Any, server: Server, loaded: Loaded) -> None:
        self.client = client
        self.server = server
        self.loaded = loaded

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        async with self.client.post(path, json=body) as response:
            return response.status, await response.json(content_type=None)

    async def ok(self, path: str, **body: Any) -> Any:
        status, reply = await self.post(path, body)
        assert status == 200, reply
        return reply

    async def complete(self, prompt: Any, **body: Any) -> dict[str, Any]:
        """The only choice of a greedy completion, with its token ids."""
        fields = {"prompt": prompt, "temperature": 0, "max_tokens": 24, "return_token_ids": True}
        choice: dict[str, Any] = (await self.ok("/v1/completions", **{**fields, **body}))[
            "choices"
        ][0]
        return choice

    async def chunks(self, path: str, **body: Any) -> AsyncIterator[dict[str, Any]]:
        async with self.client.post(path, json={**body, "stream": True}) as response:
            assert response.status == 200, await response.text()
            async for line in response.content:
                data = line.decode().strip().removeprefix("data: ")
                if data == "[DONE]":
                    return
                if data:
                    yield json.loads(data)
        raise AssertionError("the stream has no end mark")

    async def stats(self) -> dict[str, Any]:
        async with self.client.get("/stats") as response:
            body: dict[str, Any] = await response.json()
            return body


Serve = Callable[..., Any]


@pytest.fixture
def serve(folders: dict[str, Path]) -> Serve:
    """`async with serve("llama", max_batch=4) as client`: a server for a saved model or a `Loaded`."""

    @asynccontextmanager
    async def serving(
        model: str | Loaded = "llama",
        *,
        api_key: str | None = "key",
        send_key: bool = True,
        logprobs: Logprobs = Logprobs.RAW,
        **limits: Any,
    ) -> AsyncIterator[Client]:
        import asyncio

        loaded = load(str(folders[model])) if isinstance(model, str) else model
        bounds = Limits(**{"max_context": 512, "prefix_bytes": 2**22, **limits})
        server = Server(
            loaded,
            name="tiny",
            limits=bounds,
            api_key=api_key,
            loop=asyncio.get_running_loop(),
            logprobs=logprobs,
        )
        server.scheduler.start()
        http = TestServer(server.app(), handler_cancellation=True)
        try:
            headers = {"authorization": f"Bearer {api_key}"} if api_key and send_key else None
            async with TestClient(http, headers=headers) as client:
                yield Client(client, server, loaded)
        finally:
            await asyncio.to_thread(server.scheduler.stop)

    return serving


@pytest.fixture
def reference() -> Callable[..., list[int]]:
    """Transformers' own greedy generation of one prompt."""

    def generate(model: Any, prompt: list[int], tokens: int) -> list[int]:
        with torch.inference_mode():
            output = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
                max_new_tokens=tokens,
                do_sample=False,
            )
        return [int(token) for token in output[0, len(prompt) :]]

    return generate


@pytest.fixture
def teacher_forced() -> Callable[..., list[float]]:
    """The log-probability of each completion token, from one pass over prompt and completion."""

    def score(model: Any, prompt: list[int], completion: list[int]) -> list[float]:
        ids = torch.tensor([prompt + completion])
        with torch.inference_mode():
            logprobs = torch.log_softmax(model(ids).logits[0].float(), dim=-1)
        return [float(logprobs[len(prompt) - 1 + i, token]) for i, token in enumerate(completion)]

    return score


@pytest.fixture
def tokenizer() -> Any:
    """The tiny models' tokenizer."""
    return make_tokenizer()


@pytest.fixture
def build() -> Callable[..., Loaded]:
    """`build(model, template)`: a `Loaded` from a model in memory."""

    def made(model: Any, template: str | None = TEMPLATE) -> Loaded:
        return Loaded(model, make_tokenizer(template), frozenset({2}), 512)

    return made


@pytest.fixture
def tool_template() -> str:
    """A template that knows tools."""
    return TOOL_TEMPLATE


@pytest.fixture
def random_model() -> Callable[..., Any]:
    """`random_model(kind, seed, **settings)`."""
    return make_model


@pytest.fixture
def save_model() -> Callable[..., Path]:
    """`save_model(folder, model)`."""
    return save


@pytest.fixture
def make_sample() -> Callable[..., Sample]:
    """`make_sample(prompt, reply, advantage=1.0)`: a sample that learns one reply; the reply is one segment."""

    def made(
        prompt: list[int],
        reply: list[int],
        *,
        advantage: float | None = 1.0,
        credit: float | None = None,
        weight: float = 1.0,
        logprobs: list[float] | None = None,
        name: str = "r",
        version: int = 0,
    ) -> Sample:
        before, after = len(prompt), len(reply)
        return Sample(
            rollout_id=name,
            task_id="t",
            token_ids=(*prompt, *reply),
            mask=(0,) * before + (1,) * after,
            logprobs=(0.0,) * before + tuple(logprobs or [-1.0] * after),
            versions=(NO_VERSION,) * before + (version,) * after,
            segments=(
                Segment(
                    call_id=f"call-{name}",
                    start=before,
                    stop=before + after,
                    version=version,
                    advantage=advantage,
                    credit=credit,
                ),
            ),
            weight=weight,
        )

    return made
