"""A small stand-in for verifiers: what the adapter uses of it, with the same names and meanings.

The real one is tested in `verifiers_environment`, by `make test-verifiers`.
"""

import asyncio
import json
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, ConfigDict

ADAPTER = ("verifiers",)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class HarnessConfig(Strict):
    id: str


class SubprocessConfig(Strict):
    type: str = "subprocess"


class DockerConfig(Strict):
    type: str


class AgentConfig(Strict):
    harness: HarnessConfig | None = None
    runtime: Any = None


class TasksetConfig(Strict):
    id: str = ""
    size: int = 3
    task: dict[str, Any] = {}


class Config(Strict):
    taskset: TasksetConfig
    agent: AgentConfig = AgentConfig()

    def agent_harnesses(self) -> dict[str, HarnessConfig | None]:
        return {"agent": self.agent.harness}


class TwoAgents(Config):
    judge: AgentConfig = AgentConfig()


class Data(BaseModel):
    idx: int | None = None
    id: str | None = None
    name: str | None = None
    prompt: str = ""
    answer: str = ""


class Task:
    NEEDS_CONTAINER: ClassVar[bool] = False

    def __init__(self, data: Data, config: Any = None) -> None:
        self.data, self.config = data, config

    @classmethod
    def data_type(cls) -> type[Data]:
        return Data


class InContainers(Task):
    NEEDS_CONTAINER = True


class Words:
    """Words to repeat."""

    bounded = True

    def __init__(self, config: TasksetConfig) -> None:
        self.config = config

    def __iter__(self) -> Iterator[Task]:
        return (
            Task(Data(idx=number, name=f"word {number}", prompt=f"Say w{number}.", answer=f"w{number}"))
            for number in range(self.config.size)
        )


TASKSETS: dict[str, Any] = {"words": Words, "two-agents": Words, "containers": Words}


class Environment:
    """Its harness makes one request per line of the prompt and may then crash."""

    loops: ClassVar[set[Any]] = set()
    crashes: ClassVar[bool] = False

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        yield

    async def run_episode(self, task: Task, context: Any) -> Any:
        Environment.loops.add(asyncio.get_running_loop())
        reply = ""
        errors = []
        try:
            for line in task.data.prompt.splitlines():
                reply = await asyncio.to_thread(_ask, context.client.base_url, context.model, line)
            if self.crashes:
                raise RuntimeError("exit code 3")
        except Exception as error:
            errors.append(SimpleNamespace(type="HarnessError", message=str(error)))
        return episode(errors=errors, correct=float(reply == task.data.answer))


def _ask(base_url: str, model: str, line: str) -> str:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": line}]}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{base_url}/chat/completions", body)) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


def episode(*, errors: Any = (), stop: str | None = None, traces: int = 1, **scores: float | None) -> Any:
    rewards = {name: None if score is None else SimpleNamespace(score=score) for name, score in scores.items()}
    trace = SimpleNamespace(
        ok=not errors,
        errors=list(errors),
        stop_condition=stop,
        rewards=rewards,
        metrics={"turns": 1.0, "unknown": None},
        reward=sum(score for score in scores.values() if score is not None),
    )
    return SimpleNamespace(ok=not errors, errors=[], traces=[trace] * traces)


def _resolve(raw: dict[str, Any]) -> Config:
    config = (TwoAgents if raw["taskset"]["id"] == "two-agents" else Config).model_validate(raw)
    if config.agent.runtime["type"] == "subprocess":
        config.agent.runtime = SubprocessConfig()
    return config


def _load_harness(config: HarnessConfig) -> Any:
    return SimpleNamespace(config=config, NEEDS_CONTAINER=False, EXECUTES_CODE=config.id == "bash")


def install(patch: pytest.MonkeyPatch) -> None:
    """Makes it importable; the adapter is imported again with it."""
    v1, loaders = ModuleType("verifiers.v1"), ModuleType("loaders")
    vars(v1).update(
        AgentConfig=AgentConfig,
        SubprocessConfig=SubprocessConfig,
        EvalClientConfig=lambda **given: SimpleNamespace(**given),
        ModelContext=lambda **given: SimpleNamespace(**given),
        env_config_type=lambda id: TwoAgents if id == "two-agents" else Config,
        default_harness_id=lambda id: "bash",
        resolve_env_config=_resolve,
        load_taskset=lambda config: TASKSETS[config.id](config),
        load_harness=_load_harness,
        load_environment=lambda config: Environment(),
        task_type=lambda id: InContainers if id == "containers" else Task,
    )
    vars(loaders)["taskset_class"] = TASKSETS.__getitem__
    package, tools = ModuleType("verifiers"), ModuleType("verifiers.v1.utils")
    vars(package)["v1"] = v1
    for name, module in {
        "verifiers": package,
        "verifiers.v1": v1,
        "verifiers.v1.utils": tools,
        "verifiers.v1.utils.loaders": loaders,
    }.items():
        patch.setitem(sys.modules, name, module)
    for name in ADAPTER:
        patch.delitem(sys.modules, f"bough.environments.adapters.{name}", raising=False)
