"""The server over HTTP: formats, streams, refusals, new weights, clients that go away."""

from __future__ import annotations

import asyncio
import json
import math
import threading

import pytest

HELLO = [{"role": "user", "content": "hello there"}]


async def test_a_chat_reply_has_the_fields_that_the_gateway_records(serve, teacher_forced):
    async with serve() as client:
        reply = await client.ok(
            "/v1/chat/completions", model="tiny", messages=HELLO, temperature=0, max_tokens=10,
            logprobs=True, top_logprobs=3, return_token_ids=True,
        )  # fmt: skip
        tokenizer = client.loaded.tokenizer
        prompt = "<|im_start|>user\nhello there<|im_end|>\n<|im_start|>assistant\n"
        assert reply["prompt_token_ids"] == tokenizer(prompt)["input_ids"]
        (choice,) = reply["choices"]
        ids = choice["token_ids"]
        content = choice["logprobs"]["content"]
        assert [entry["logprob"] for entry in content] == pytest.approx(
            teacher_forced(client.loaded.model, reply["prompt_token_ids"], ids), abs=1e-4
        )
        assert [entry["token"] for entry in content] == [tokenizer.decode([i]) for i in ids]
        for entry in content:
            assert len(entry["top_logprobs"]) == 3
            assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]
            assert sum(math.exp(top["logprob"]) for top in entry["top_logprobs"]) < 1.0001
        assert choice["message"]["content"] == tokenizer.decode(ids, skip_special_tokens=True)
        assert reply["usage"] == {
            "prompt_tokens": len(reply["prompt_token_ids"]),
            "completion_tokens": len(ids),
            "total_tokens": len(reply["prompt_token_ids"]) + len(ids),
        }
        assert reply["system_fingerprint"] == "weights-0"


async def test_what_was_not_asked_for_is_not_sent(serve):
    async with serve() as client:
        reply = await client.ok("/v1/chat/completions", messages=HELLO, max_tokens=2)
        assert "prompt_token_ids" not in reply
        assert "token_ids" not in reply["choices"][0]
        assert reply["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_stream_says_what_the_whole_reply_says(serve, path, n):
    async with serve() as client:
        chat = "chat" in path
        body = {
            **({"messages": HELLO, "logprobs": True} if chat else {"prompt": "hello", "logprobs": 1}),
            "n": n, "seed": 3, "max_tokens": 30, "return_token_ids": True, "stop": ["he", "\ufffd"],
        }  # fmt: skip
        whole = await client.ok(path, **body)
        usage = {"stream_options": {"include_usage": True}}
        chunks = [chunk async for chunk in client.chunks(path, **body, **usage)]
        prompt = whole["prompt_token_ids"]
        assert chunks[0]["prompt_token_ids"] == prompt
        assert chunks[-1]["usage"] == whole["usage"]
        assert not chunks[-1]["choices"]
        for choice in whole["choices"]:
            own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
            ids = [token for c in own for token in c.get("token_ids", ())]
            assert ids == choice["token_ids"]
            assert [c["finish_reason"] for c in own][-1] == choice["finish_reason"]
            shown = [c["logprobs"] for c in own if c["logprobs"]]
            if chat:
                assert own[0]["delta"] == {"role": "assistant", "content": ""}
                text = "".join(c["delta"].get("content", "") for c in own)
                assert text == choice["message"]["content"]
                logprobs = [e["logprob"] for part in shown for e in part["content"]]
                wanted = [e["logprob"] for e in choice["logprobs"]["content"]]
            else:
                assert "".join(c["text"] for c in own) == choice["text"]
                logprobs = [e for part in shown for e in part["token_logprobs"]]
                wanted = choice["logprobs"]["token_logprobs"]
                offsets = [e for part in shown for e in part["text_offset"]]
                assert offsets == choice["logprobs"]["text_offset"]
            assert logprobs == pytest.approx(wanted, abs=1e-4)


async def test_the_tokens_of_a_prompt_can_be_counted(serve):
    async with serve() as client:
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        for body in ({"messages": HELLO}, {"messages": HELLO, "tools": [tool]}):
            reply = await client.ok(
                "/v1/chat/completions", **body, max_tokens=1, return_token_ids=True
            )
            assert await client.ok("/tokenize", **body) == {
                "count": reply["usage"]["prompt_tokens"],
                "max_model_len": 512,
                "tokens": reply["prompt_token_ids"],
                "token_strs": None,
            }


async def test_completions_take_text_ids_and_lists_of_them(serve):
    async with serve() as client:
        ids = client.loaded.tokenizer("the user")["input_ids"]
        other = client.loaded.tokenizer("says")["input_ids"]
        text = await client.complete("the user")
        assert text["prompt_token_ids"] == ids
        assert await client.complete(ids) == text
        for prompt in (["the user", "says"], [ids, other]):
            reply = await client.ok(
                "/v1/completions", prompt=prompt, n=2, temperature=0, return_token_ids=True, max_tokens=24
            )  # fmt: skip
            assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
            assert reply["choices"][0]["token_ids"] == text["token_ids"]
            assert [c["prompt_token_ids"] for c in reply["choices"]] == [ids, ids, other, other]


async def test_a_completion_ends_for_the_reason_given(serve):
    async with serve() as client:
        free = await client.complete([5, 6], max_tokens=20, ignore_eos=True)
        assert free["finish_reason"] == "length"
        assert len(free["token_ids"]) == 20
        third = free["token_ids"][2]
        cut = await client.complete([5, 6], stop_token_ids=[third], ignore_eos=True)
        end = free["token_ids"].index(third) + 1
        assert cut["token_ids"] == free["token_ids"][:end]
        assert cut["finish_reason"] == "stop"
        assert (free["stop_reason"], cut["stop_reason"]) == (None, third)
        word = free["text"][4:7]
        stopped = await client.complete([5, 6], stop=word, ignore_eos=True)
        assert stopped["text"] == free["text"][: free["text"].find(word)]
        assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", word)
        asked = {
            "prompt": [5, 6],
            "temperature": 0,
            "max_tokens": 24,
            "stop": word,
            "ignore_eos": True,
        }
        chunks = [chunk["choices"][0] async for chunk in client.chunks("/v1/completions", **asked)]
        assert [c["stop_reason"] for c in chunks if "stop_reason" in c] == [word]
        assert "stop_reason" in chunks[-1]
        # What was sampled stays whole: it is what a trainer sees.
        size = len(stopped["token_ids"])
        assert stopped["token_ids"] == free["token_ids"][:size]
        assert word in client.loaded.tokenizer.decode(
            stopped["token_ids"], skip_special_tokens=True
        )


async def test_the_end_token_is_sampled_but_not_shown(serve, build, random_model):
    model = random_model("llama")
    async with serve(build(model)) as client:
        choice = await client.complete(
            [5, 6], logit_bias={"2": 100.0}, logprobs=0, stop_token_ids=[2]
        )
        assert choice["token_ids"] == [2]
        assert choice["text"] == ""
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
        assert len(choice["logprobs"]["token_logprobs"]) == 1


async def test_sixteen_clients_at_once_are_batched(serve):
    async with serve() as client:
        most = 0

        async def watch():
            nonlocal most
            while True:
                most = max(most, (await client.stats())["running"])
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        alone = [
            await client.complete([4, 5, 6 + i], max_tokens=40, ignore_eos=True) for i in range(16)
        ]
        most = 0
        together = await asyncio.gather(
            *(client.complete([4, 5, 6 + i], max_tokens=40, ignore_eos=True) for i in range(16))
        )
        watching.cancel()
        assert [c["token_ids"] for c in together] == [c["token_ids"] for c in alone]
        assert most > 8


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_leaves_the_batch(serve, stream):
    async with serve(max_batch=1) as client:
        body = {"prompt": [5], "max_tokens": 500, "ignore_eos": True, "stream": stream}

        async def until(running: int) -> None:
            while (await client.stats())["running"] != running:
                await asyncio.sleep(0.01)

        task = asyncio.create_task(client.client.post("/v1/completions", json=body))
        if stream:
            response = await task
            await response.content.readline()
            response.close()
        else:
            await asyncio.wait_for(until(1), 60)
            task.cancel()
        await asyncio.wait_for(until(0), 60)
        stats = await client.stats()
        assert stats["sampled_tokens"] < 490
        assert len((await client.complete([5]))["token_ids"]) > 0


@pytest.mark.parametrize(
    ("body", "status", "param", "code"),
    [
        ({"messages": HELLO, "model": "gpt-9"}, 404, "model", "model_not_found"),
        ({}, 400, None, None),
        ({"messages": "hello"}, 400, "messages", None),
        ({"messages": []}, 400, "messages", None),
        ({"messages": [{"content": "no role"}]}, 400, "messages", None),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "messages",
            None,
        ),
        ({"messages": HELLO, "max_tokens": "many"}, 400, "max_tokens", None),
        ({"messages": HELLO, "max_tokens": 0}, 400, "max_tokens", None),
        ({"messages": HELLO, "temperature": -1}, 400, "temperature", None),
        ({"messages": HELLO, "top_p": 1.5}, 400, "top_p", None),
        ({"messages": HELLO, "n": 0}, 400, "n", None),
        ({"messages": HELLO, "n": 1000}, 400, "n", None),
        ({"messages": HELLO, "top_logprobs": 3}, 400, "top_logprobs", None),
        ({"messages": HELLO, "logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", None),
        ({"messages": HELLO, "stop": [""]}, 400, "stop", None),
        ({"messages": HELLO, "logit_bias": {"x": 1}}, 400, "logit_bias", None),
        ({"messages": HELLO, "logit_bias": {"100000": 1}}, 400, "logit_bias", None),
        ({"messages": HELLO, "tool_choice": "required"}, 400, "tool_choice", "unsupported"),
        ({"messages": HELLO, "tools": [{"type": "function"}]}, 400, "tools", None),
        (
            {"messages": HELLO, "response_format": {"type": "json_object"}},
            400,
            "response_format",
            "unsupported",
        ),
        ({"messages": HELLO, "max_tokens": 600}, 400, "messages", "context_length_exceeded"),
        (
            {"messages": [{"role": "user", "content": "x" * 600}]},
            400,
            "messages",
            "context_length_exceeded",
        ),
    ],
)
async def test_bad_requests_are_refused_and_name_the_field(serve, body, status, param, code):
    async with serve() as client:
        got, reply = await client.post("/v1/chat/completions", body)
        assert (got, reply["error"]["param"], reply["error"]["code"]) == (status, param, code)
        assert reply["error"]["type"] == "invalid_request_error"
        assert (await client.stats())["waiting"] == 0


@pytest.mark.parametrize(
    "prompt", ["", [], [1, "a"], [[]], [400], [-1], [True], {"a": 1}, None, [[1], "a"]]
)
async def test_prompts_that_are_none_are_refused(serve, prompt):
    async with serve() as client:
        status, reply = await client.post("/v1/completions", {"prompt": prompt})
        assert status == 400
        assert reply["error"]["param"] == "prompt"


async def test_bytes_that_are_no_json_and_routes_that_are_none(serve):
    async with serve() as client:
        for data in (b"", b"{", b"[]", b"\xff"):
            response = await client.client.post("/v1/chat/completions", data=data)
            assert response.status == 400, data
            assert (await response.json())["error"]["message"]
        response = await client.client.post("/v1/embeddings", json={})
        assert response.status == 404
        assert "/v1/embeddings" in (await response.json())["error"]["message"]


async def test_a_key_is_asked_for_everywhere_but_at_health(serve):
    async with serve(api_key="secret", send_key=False) as client:
        assert (await client.client.get("/health")).status == 200
        for path in ("/v1/models", "/stats"):
            assert (await client.client.get(path)).status == 401
        for key in ("wrong", "sécret"):
            headers = {"authorization": f"Bearer {key}"}
            assert (await client.client.get("/stats", headers=headers)).status == 401
        assert (await client.client.post("/admin/weights", json={"folder": "/"})).status == 401
        headers = {"authorization": "Bearer secret"}
        assert (await client.client.get("/v1/models", headers=headers)).status == 200


async def test_without_a_key_nobody_may_change_the_weights(serve, folders):
    async with serve(api_key=None) as client:
        status, reply = await client.post("/admin/weights", {"folder": str(folders["other"])})
        assert (status, reply["error"]["code"]) == (403, "no_key")
        assert (await client.client.get("/v1/models")).status == 200


@pytest.mark.parametrize("pair", [("llama", "other"), ("tied", "tied-other")])
async def test_new_weights_answer_as_if_freshly_loaded(serve, folders, pair):
    prompts = [[5, 6, 7 + i] for i in range(4)]

    async def answers(client):
        return [await client.complete(prompt, logprobs=0) for prompt in prompts]

    async with serve(pair[1]) as client:
        fresh = await answers(client)
    async with serve(pair[0]) as client:
        before = await answers(client)
        reply = await client.ok("/admin/weights", folder=str(folders[pair[1]]))
        assert reply == {"weights_version": 1}
        after = await answers(client)
        assert [c["token_ids"] for c in after] == [c["token_ids"] for c in fresh]
        for one, other in zip(after, fresh, strict=True):
            wanted = other["logprobs"]["token_logprobs"]
            assert one["logprobs"]["token_logprobs"] == pytest.approx(wanted, abs=1e-4)
        assert [c["token_ids"] for c in after] != [c["token_ids"] for c in before]
        whole = await client.ok("/v1/completions", prompt=[5])
        assert whole["system_fingerprint"] == "weights-1"
        assert (await client.stats())["weights_version"] == 1


async def test_new_weights_wait_for_what_is_half_done(serve, folders, reference):
    async with serve(max_batch=2) as client:
        client.loaded.model.generation_config.eos_token_id = None
        prompts = [[5, 6], [5, 7], [5, 8], [5, 9]]
        old = [reference(client.loaded.model, prompt, 60) for prompt in prompts]
        body = {"temperature": 0, "ignore_eos": True, "return_token_ids": True, "max_tokens": 60}
        # Two of the four prompts run when the weights come, and two wait.
        begun = client.chunks("/v1/completions", prompt=prompts, **body)
        chunks = [await anext(begun)]
        swap = asyncio.create_task(client.ok("/admin/weights", folder=str(folders["other"])))
        chunks += [chunk async for chunk in begun]
        await swap
        for i in range(4):
            own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == i]
            assert [token for c in own for token in c["token_ids"]] == old[i]
        assert {chunk["system_fingerprint"] for chunk in chunks} == {"weights-0"}


async def test_new_weights_that_nobody_waits_for_any_more_are_not_taken(
    serve, folders, monkeypatch
):
    async with serve() as client:
        gate, forward = threading.Event(), client.loaded.model.model.forward

        def gated(*args, **kwargs):
            assert gate.wait(60)
            return forward(*args, **kwargs)

        monkeypatch.setattr(client.loaded.model.model, "forward", gated)
        gate.set()
        long = client.chunks("/v1/completions", prompt=[5], max_tokens=400, ignore_eos=True)
        await anext(long)
        gate.clear()
        body = {"folder": str(folders["other"])}
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.client.post("/admin/weights", json=body), 0.5)
        gate.set()
        async for _ in long:
            pass
        assert (await client.complete([5]))["token_ids"]
        assert (await client.stats())["weights_version"] == 0


@pytest.mark.parametrize(
    ("other", "words"), [("wide", "fit"), ("tied", "Qwen2"), ("missing", "config.json")]
)
async def test_weights_that_do_not_fit_are_refused_and_the_old_stay(
    serve, folders, tmp_path, other, words
):
    async with serve() as client:
        before = await client.complete([5, 6])
        folder = folders.get(other, tmp_path)
        status, reply = await client.post("/admin/weights", {"folder": str(folder)})
        assert status == 409
        assert words in reply["error"]["message"]
        assert await client.complete([5, 6]) == before
        assert (await client.stats())["weights_version"] == 0


async def test_weights_with_a_hole_are_refused(serve, tmp_path, random_model, save_model):
    import torch
    from safetensors.torch import load_file, save_file

    folder = save_model(tmp_path / "holes", random_model("llama", seed=1))
    state = load_file(folder / "model.safetensors")
    async with serve() as client:
        before = await client.complete([5, 6])
        poisoned = {
            **state,
            "model.norm.weight": torch.full_like(state["model.norm.weight"], torch.nan),
        }
        save_file(poisoned, folder / "model.safetensors", metadata={"format": "pt"})
        status, reply = await client.post("/admin/weights", {"folder": str(folder)})
        assert (status, "model.norm.weight" in reply["error"]["message"]) == (409, True)
        del state["model.norm.weight"]
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        status, reply = await client.post("/admin/weights", {"folder": str(folder)})
        assert (status, "model.norm.weight" in reply["error"]["message"]) == (409, True)
        (folder / "model.safetensors").write_bytes(b"rubbish")
        status, reply = await client.post("/admin/weights", {"folder": str(folder)})
        assert status == 409
        for body in ({}, [], {"folder": 3}):
            assert (await client.post("/admin/weights", body))[0] == 400
        assert await client.complete([5, 6]) == before


async def test_models_lists_what_is_served(serve):
    async with serve() as client:
        response = await client.client.get("/v1/models")
        (model,) = json.loads(await response.text())["data"]
        assert (model["id"], model["owned_by"]) == ("tiny", "lightning-local")
        assert (await client.client.get("/v1/models/tiny")).status == 200
        assert (await client.client.get("/v1/models/other")).status == 404
