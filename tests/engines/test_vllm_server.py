"""The token engine for vLLM's server, against a stand-in with the real server's answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bough.config.groups import SamplingConfig
from bough.engines.base import ContextFullError, EngineError, Generated
from bough.engines.http import ServerLimits
from bough.engines.vllm import LogprobsMode, VLLMServerEngine
from bough.errors import InputError
from tests.engines.stand_in import Json, Reply, StandIn, serving


def completion(body: Json, **changed: Any) -> Reply:
    """As vLLM 0.32 answers /v1/completions: tokens and their log-probabilities in the choice."""
    ids = [20, 21, 2][: body["max_tokens"]]
    choice = {
        "index": 0,
        "text": "hello there",
        "logprobs": {
            "text_offset": [],
            "token_logprobs": [-0.5, -0.25, -0.125][: len(ids)],
            "tokens": [],
            "top_logprobs": [],
        },
        "finish_reason": "stop" if len(ids) == 3 else "length",
        "stop_reason": None,
        "token_ids": ids,
        "prompt_token_ids": body["prompt"],
    }
    return Reply({"id": "cmpl-1", "object": "text_completion", "model": body["model"], "choices": [choice | changed]})


def use(url: str, act: Callable[[VLLMServerEngine], Awaitable[Any]], model: str = "") -> Any:
    async def run() -> Any:
        engine = await VLLMServerEngine.load(url, model, limits=ServerLimits(retries=0))
        try:
            return await act(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


async def draw(engine: VLLMServerEngine, prompt: tuple[int, ...] = (7, 8), **sampling: Any) -> Generated:
    return await engine.generate("e", list(prompt), sampling=SamplingConfig(**sampling), seed=2**62, stop_ids=[2])


def test_tokens_go_in_and_tokens_come_out():
    with serving(completion) as server:
        drawn = use(server.url, lambda engine: draw(engine, temperature=0.5))
    assert drawn == Generated([20, 21, 2], [-0.5, -0.25, -0.125], "stop", "tiny")
    body = server.asked[-1]
    assert server.paths[-1] == "/v1/completions"
    assert (body["model"], body["prompt"], body["return_token_ids"], body["logprobs"]) == ("tiny", [7, 8], True, 0)
    assert (body["temperature"], body["top_k"], body["seed"], body["stop_token_ids"]) == (0.5, 0, 2**62, [2])
    # A server would fill in its own, and end or cut answers in its own way.
    neutral = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_p": 0.0, "top_p": 1.0}
    assert body.items() >= neutral.items()
    assert body["ignore_eos"] and body["include_stop_str_in_output"] and body["skip_special_tokens"] is False


def test_an_answer_is_no_longer_than_the_servers_context():
    with serving(completion) as server:
        drawn = use(server.url, lambda engine: draw(engine, (5,) * 62))
        assert server.asked[-1]["max_tokens"] == 2 and drawn.finish == "length"
        asked = len(server.asked)
        with pytest.raises(ContextFullError):
            use(server.url, lambda engine: draw(engine, (5,) * 64))
    assert [body["prompt"] for body in server.asked[asked:]] == [[1, 2, 3]] * 2  # only the probes


@pytest.mark.parametrize(
    "mode",
    [
        lambda body: [0.0 if body["top_k"] == 1 else -0.5] * 3,  # after the cuts only one token is left
        lambda body: [-0.5 / max(body["temperature"], 1)] * 3,
        lambda body: [17.25] * 3,  # logits
    ],
)
def test_a_server_that_gives_other_log_probabilities_than_the_models_own_is_refused(mode):
    def processed(body: Json) -> Reply:
        return completion(body, logprobs={"token_logprobs": mode(body)})

    with serving(processed) as server, pytest.raises(InputError, match="--logprobs-mode raw_logprobs"):
        use(server.url, draw)


def test_a_server_that_is_no_vllm_is_refused():
    with serving(completion, models=Reply({"data": [{"id": "gpt"}]})) as server:
        with pytest.raises(InputError, match="is not vLLM"):
            use(server.url, draw)
        with pytest.raises(InputError, match="does not serve 'other'"):
            use(server.url, draw, "other")


@pytest.mark.parametrize("changed", [{"token_ids": None}, {"logprobs": None}, {"prompt_token_ids": None}])
def test_an_answer_without_tokens_is_an_engine_error(changed):
    with (
        serving(lambda body: completion(body, **changed)) as server,
        pytest.raises(EngineError, match="without tokens"),
    ):
        use(server.url, draw)


def test_a_prompt_that_the_server_changed_is_an_engine_error():
    def cut(body: Json) -> Reply:
        return completion(body, prompt_token_ids=body["prompt"][:1] if body["prompt"] == [7, 8] else body["prompt"])

    with serving(cut) as server, pytest.raises(EngineError, match="changed the prompt: 1 tokens, not 2"):
        use(server.url, draw)


def adapter(folder: Path) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": 4}))
    return folder


def loading(body: Json) -> Reply:
    return Reply(b"Success: LoRA adapter added.") if "lora_name" in body else completion(body)


def orders(server: StandIn) -> list[str]:
    return [path for path in server.paths if "lora" in path]


def test_a_new_adapter_answers_from_then_on_and_the_one_before_is_unloaded(tmp_path):
    folders = [adapter(tmp_path / name) for name in "abc"]

    async def act(engine: VLLMServerEngine) -> list[str | None]:
        policies = []
        for folder in folders:
            await engine.load_adapter(folder, f"policy-{folder.name}", temporary=folder.name == "a")
            policies.append((await draw(engine)).policy)
        return policies

    with serving(loading) as server:
        assert use(server.url, act) == ["policy-a", "policy-b", "policy-c"]
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    assert orders(server) == [load, load, unload, load, unload, unload]  # the last one when the engine is closed
    loads = [body for body in server.asked if "lora_path" in body]
    names = [body["lora_name"] for body in loads]
    assert [body["lora_path"] for body in loads] == [str(folder) for folder in folders]
    assert [body["model"] for body in server.asked if body.get("prompt") == [7, 8]] == names
    assert len(set(names)) == 3 and all(name.startswith(f"policy-{k}-") for name, k in zip(names, "abc", strict=True))
    assert [body["lora_name"] for body in server.asked if body.keys() == {"lora_name"}] == names
    assert [folder.exists() for folder in folders] == [False, True, True]


def test_a_swap_that_fails_is_an_error_and_the_old_adapter_is_not_forgotten(tmp_path):
    folders = [adapter(tmp_path / name) for name in "ab"]
    refusal = Reply({"error": {"message": "no room for the adapter"}}, 400)

    def full(body: Json) -> Reply:
        return refusal if "step-1" in body.get("lora_name", "") and "lora_path" in body else loading(body)

    async def act(engine: VLLMServerEngine) -> str | None:
        await engine.renew(folders[0], "step-0")
        with pytest.raises(EngineError, match="no room for the adapter"):
            await engine.renew(folders[1], "step-1")
        return (await draw(engine)).policy

    with serving(full) as server:
        assert use(server.url, act) == "step-0", "what is sampled all the same says which weights sampled it"


def test_an_adapter_whose_loading_was_asked_for_again_after_a_lost_answer_is_loaded(tmp_path):
    tried: list[str] = []

    def lost(body: Json) -> Reply:
        if "lora_path" not in body:
            return loading(body)
        tried.append(body["lora_name"])
        if len(tried) == 1:
            return Reply({"error": {"message": "upstream timed out"}}, 504)
        words = f"The lora adapter '{body['lora_name']}' has already been loaded."
        return Reply({"error": {"message": words, "type": "InvalidUserInput"}}, 400)

    async def act(url: str) -> str | None:
        engine = await VLLMServerEngine.load(url, limits=ServerLimits(retries=1, backoff_s=0.001))
        try:
            await engine.renew(adapter(tmp_path / "a"), "step-0")
            return (await draw(engine)).policy
        finally:
            await engine.close()

    with serving(lost) as server:
        assert asyncio.run(act(server.url)) == "step-0" and len(set(tried)) == 1


def test_adapters_that_are_left_on_a_server_do_not_hide_its_model():
    models = [{"id": "tiny", "max_model_len": 64, "parent": None}, {"id": "old", "max_model_len": 64, "parent": "tiny"}]
    with serving(completion, models=Reply({"data": models})) as server:
        assert use(server.url, draw).policy == "tiny"


def test_log_probabilities_at_the_sampling_temperature():
    def processed(body: Json) -> Reply:
        return completion(body, logprobs={"token_logprobs": [0.0 if body["top_k"] == 1 else -0.5] * 3})

    async def act(url: str, mode: LogprobsMode, **sampling: Any) -> Generated:
        engine = await VLLMServerEngine.load(url, logprobs_mode=mode, limits=ServerLimits(retries=0))
        try:
            return await draw(engine, **sampling)
        finally:
            await engine.close()

    with serving(processed) as server:
        assert asyncio.run(act(server.url, "processed_logprobs", temperature=0.7)).logprobs_temperature == 0.7
        with pytest.raises(InputError, match="top_p, top_k or min_p"):
            asyncio.run(act(server.url, "processed_logprobs", temperature=0.7, top_k=3))
    with serving(completion) as server, pytest.raises(InputError, match="--logprobs-mode processed_logprobs"):
        asyncio.run(act(server.url, "processed_logprobs"))


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (Reply({"detail": "Not Found"}, 404), InputError, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
        (Reply({"error": {"message": "bad rank"}}, 400), EngineError, "cannot load the adapter .*: bad rank"),
    ],
)
def test_an_adapter_that_the_server_does_not_take(tmp_path, reply, error, words):
    folder = adapter(tmp_path / "a")
    with serving(lambda body: reply if "lora_name" in body else completion(body)) as server:
        with pytest.raises(error, match=words):
            use(server.url, lambda engine: engine.load_adapter(folder))
        with pytest.raises(InputError, match="contains no LoRA adapter"):
            use(server.url, lambda engine: engine.load_adapter(tmp_path))
