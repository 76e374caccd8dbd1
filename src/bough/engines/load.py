"""From settings to an engine: local weights, a server, or vLLM."""

from __future__ import annotations

from importlib.util import find_spec

from bough.config.groups import AgentConfig, SamplingConfig
from bough.engines.base import Engine
from bough.errors import InputError
from bough.models.resolve import agent_name


async def load_engine(config: AgentConfig, sampling: SamplingConfig) -> Engine:
    """The engine that the settings name, ready to answer. What cannot work is an InputError here, not later."""
    if config.engine == "openai":
        return await _server(config, sampling)
    if config.base_url is not None and config.engine == "local":
        raise InputError(f"--base-url {config.base_url} needs --engine openai or --engine vllm")
    from bough.chat.template import load_template
    from bough.engines.chat import TemplateEngine
    from bough.policy.load import base_and_adapter

    name, folder = base_and_adapter(config.model)
    adapter = config.adapter or folder
    if adapter is not None and not adapter.is_dir():
        raise InputError(f"--adapter {adapter}: there is no such folder")
    template = load_template(name, config.chat_template)
    label = agent_name(name, adapter)
    if config.engine == "vllm":
        from bough.engines.vllm import VLLMEngine, VLLMServerEngine

        if config.base_url is None:
            return TemplateEngine(await VLLMEngine.load(name, adapter=adapter), template, sampling, name=label)
        server = await VLLMServerEngine.load(config.base_url, key_variable=config.key_variable)
        if adapter is not None:
            await server.load_adapter(adapter, policy=label)
        return TemplateEngine(server, template, sampling, name=label)
    import torch

    from bough.engines.local.engine import LocalEngine
    from bough.policy.policy import Policy

    bf16 = torch.cuda.is_available() if config.bf16 is None else config.bf16
    policy = Policy.load(name, adapter=adapter, dtype=torch.bfloat16 if bf16 else torch.float32).eval()
    policy.temperature = sampling.temperature or 1.0  # what it says of the calls afterwards is what the sampler said
    tokens = LocalEngine.of(policy, name=label, tokenizer=template.tokenizer)
    return TemplateEngine(tokens, template, sampling, scorer=policy, name=label)


def need_server() -> None:
    """Raises InputError where the packages that `bough.engines.server.app` imports are not installed."""
    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            raise InputError(f"this needs the package {name}: pip install 'bough[viewer]' installs it")


async def _server(config: AgentConfig, sampling: SamplingConfig) -> Engine:
    from bough.chat.template import load_template
    from bough.engines.openai import OpenAIEngine

    if config.base_url is None:
        raise InputError("--engine openai needs the server's address: --base-url http://127.0.0.1:8000/v1")
    if config.adapter is not None:
        raise InputError(f"--adapter {config.adapter}: a server loads its own adapters; name one with --model")
    model = "" if "model" not in config.model_fields_set else config.model
    # Its template, where a file of it is at hand, gives a call the tokenizer's own text.
    template = load_template(config.model, config.chat_template) if config.chat_template else None
    engine = OpenAIEngine(config.base_url, model, sampling, template=template, key_variable=config.key_variable)
    await engine.check()
    return engine
