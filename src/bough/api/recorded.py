"""`bough.recorded`: run an agent function once and get what it did as a trajectory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from bough.api.inputs import AgentLike, agent_name
from bough.api.models import LoadedModel, ModelLike, model_name
from bough.api.settings import make_config, settings_of
from bough.config.environment import AGENT_PREFIX
from bough.config.serving import RecordedConfig
from bough.digest import derived_seed, json_digest
from bough.environments.isolated import shut_down
from bough.environments.registry import find
from bough.rollouts.agents import ModelAgent
from bough.rollouts.episode import play
from bough.types import Task, Trajectory


@settings_of(RecordedConfig)
@asynccontextmanager
async def recorded(
    agent: AgentLike, model: ModelLike = "smollm2", task: Task | Mapping[str, Any] | str = "task", **settings: Any
) -> AsyncIterator[Trajectory]:
    """Run an agent function on one task against a model, and give the trajectory of what it did.

        async def agent(task, client):                 # or a plain function; or base_url in place of client
            answer = await client.chat.completions.create(model="any", messages=[…])
            return "42" in answer.choices[0].message.content

        async with bough.recorded(agent, "smollm2", task={"question": "6 × 7?"}) as trajectory:
            print(trajectory.success, trajectory.turns[0].call.logprobs)

    The function takes what it needs by name: `task`, `base_url`, `client` (an OpenAI client,
    async for an `async def`), `model` and `seed`. It returns a reward, True or False, a mapping
    with `reward`, `success` and other numbers, or None. `task` is a task, its data or its id.
    Raises EnvironmentFailedError if the function raises. `model` is as in `bough.collect`.
    """
    config = make_config(RecordedConfig, "recorded", settings, model=model_name(model))
    environment_class = find(f"{AGENT_PREFIX}{agent_name(agent)}")
    played = _task(task, environment_class.name)
    player = model.agent(config.sampling) if isinstance(model, LoadedModel) else await _player(config)
    try:
        trajectory, _ = await play(
            environment_class, played, player, id=f"{played.id}#0",
            seed=derived_seed(config.seed, played.id), limits=config.limits,
        )  # fmt: skip
        yield trajectory
    finally:
        await player.close()
        await shut_down(environment_class)


async def _player(config: RecordedConfig) -> ModelAgent:
    from bough.engines.load import load_engine

    return ModelAgent(await load_engine(config.agent, config.sampling))


def _task(given: Task | Mapping[str, Any] | str, environment: str) -> Task:
    if isinstance(given, Task):
        return given
    if isinstance(given, str):
        return Task(id=given, environment=environment)
    return Task(id=json_digest(dict(given), size=8), environment=environment, data=dict(given))
