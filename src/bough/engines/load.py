"""From settings to an engine: local weights, a server, or vLLM."""

from __future__ import annotations

from bough.config.rollouts import AgentConfig
from bough.config.sampling import SamplingConfig
from bough.engines.base import Engine
from bough.errors import InputError


async def load_engine(config: AgentConfig, sampling: SamplingConfig) -> Engine:
    """The engine that the settings name, ready to answer. What cannot work is an InputError here, not later."""
    if config.engine == "openai":
        return await _server(config, sampling)
    if config.base_url is not None and config.engine == "local":
        raise InputError(f"--base-url {config.base_url} needs --engine openai or --engine vllm")
    from bough.calls.template import load_template
    from bough.engines.chat import TemplateEngine
    from bough.training.load import base_and_adapter

    name, folder = base_and_adapter(config.model)
    adapter = config.adapter or folder
    template = load_template(name, config.chat_template)
    if config.engine == "vllm":
        from bough.engines.vllm import VLLMEngine

        return TemplateEngine(await VLLMEngine.load(name, adapter=adapter), template, sampling)
    import torch

    from bough.engines.local.engine import LocalEngine
    from bough.training.policy import Policy

    bf16 = torch.cuda.is_available() if config.bf16 is None else config.bf16
    policy = Policy.load(name, adapter=adapter, dtype=torch.bfloat16 if bf16 else torch.float32)
    return TemplateEngine(LocalEngine.of(policy, tokenizer=template.tokenizer), template, sampling)


async def _server(config: AgentConfig, sampling: SamplingConfig) -> Engine:
    from bough.engines.openai import OpenAIEngine

    if config.base_url is None:
        raise InputError("--engine openai needs the server's address: --base-url http://127.0.0.1:8000/v1")
    if config.adapter is not None:
        raise InputError(f"--adapter {config.adapter}: a server loads its own adapters; name one with --model")
    model = "" if "model" not in config.model_fields_set else config.model
    engine = OpenAIEngine(config.base_url, model, sampling, key_variable=config.key_variable)
    await engine.check()
    return engine
