"""One episode, from the first observation to its end, as a trajectory.

Whatever the agent does is data: invalid replies, loops and a full context end the episode
with a stop reason of their own. Only a failing environment or engine raises.

| stop | the episode |
|---|---|
| the environment's own word, or `done` | ended by itself |
| `truncated` | was cut short by the environment |
| `max_turns` | used up its turns |
| `loop` | took the same action `max_repeats` times in a row with the same result |
| `malformed`, `tool_misuse`, … | had `max_errors` invalid replies in a row |
| `context_full` | exceeded the model's context |
| `episode_timeout` | took too long |
| `no_expert` | got to where the expert that played it has no advice |
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue, ValidationError

from bough.chat.tool_calls import reply_text
from bough.config.groups import LimitsConfig
from bough.data.base import row_error
from bough.engines.base import Answer, Chat, ContextFullError, EngineError
from bough.environments.base import Environment, EnvironmentFailedError, Observation
from bough.environments.isolated import Isolated
from bough.environments.registry import OwnAgent
from bough.environments.tools import raised_in
from bough.rollouts.agents import NO_EXPERT, Agent, NoAdviceError
from bough.rollouts.own_agent import play_own
from bough.types import Message, Task, Trajectory, Turn


@dataclass
class Episode:
    """What has happened so far. `ended` is set if the environment ended it, not a limit."""

    id: str
    task: Task
    turns: list[Turn] = field(default_factory=list)
    start: list[Message] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    images: list[tuple[int, bytes]] = field(default_factory=list)
    ended: bool = False
    success: bool | None = None
    stop: str | None = None
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    # The environment's name of its state now.
    state: str | None = None
    # How often tools raised, by what raised where.
    raised: Counter[str] = field(default_factory=Counter)

    def begin(self, observation: Observation) -> None:
        if not observation.messages or observation.messages[-1].role == "assistant":
            raise EnvironmentFailedError("start must end with something for the agent to answer")
        self.start, self.tools = list(observation.messages), list(observation.tools)
        self.messages += self.start
        self._look(observation)

    def take(self, answer: Answer, observation: Observation) -> None:
        try:
            turn = Turn(
                reply=answer.message,
                call=answer.call,
                action=observation.action,
                observation=list(observation.messages),
                reward=observation.reward,
                progress=observation.progress,
                error=observation.error,
                state=self.state,
            )
        except ValidationError as error:
            raise EnvironmentFailedError(
                f"step returned an observation that cannot be kept: {row_error(error)}"
            ) from None
        self.turns.append(turn)
        self.messages += [turn.reply, *turn.observation]
        self.num_prompt_tokens += answer.num_prompt_tokens
        self.num_completion_tokens += answer.num_completion_tokens
        self._look(observation)

    def _look(self, observation: Observation) -> None:
        self.images += [(len(self.turns), image) for image in observation.images]
        self.state = observation.state
        for one in raised_in(observation.info):
            self.raised[one.place] += 1
        if observation.done:
            self.ended, self.success = True, observation.success
            self.stop = observation.stop or ("done" if observation.terminated else "truncated")

    def trajectory(self, agent: str) -> Trajectory:
        """The record. An episode that a limit ended is not a success; one that the environment ended may be unknown."""
        rewards = [turn.reward for turn in self.turns if turn.reward is not None]
        success = self.success if self.ended else False
        outcome = sum(rewards) if rewards else None if success is None else float(success)
        info: dict[str, JsonValue] = {
            "agent": agent,
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_completion_tokens,
        }
        if self.raised:
            info["tools_raised"] = dict(self.raised)
        try:
            return Trajectory(
                id=self.id,
                task=self.task,
                start=self.start,
                turns=self.turns,
                tools=self.tools,
                rewards={"outcome": outcome},
                success=success,
                stop=self.stop,
                info=info,
            )
        except ValidationError as error:
            raise EnvironmentFailedError(f"the episode cannot be kept: {row_error(error)}") from None


async def play(
    environment_class: type[Environment],
    task: Task,
    agent: Agent,
    *,
    id: str,
    seed: int,
    limits: LimitsConfig,
    episode: str | None = None,
) -> tuple[Trajectory, list[tuple[int, bytes]]]:
    """Plays one episode; returns its record and the images of its observations, each with its turn.

    `episode` is its name in the engine, by default its id.

    Raises EnvironmentFailedError or EngineError if environment or engine failed: that says nothing
    about the agent, and the episode may be played again.
    """
    if issubclass(environment_class, OwnAgent):
        played = await play_own(environment_class, task, agent, id=id, seed=seed, limits=limits, episode=episode)
        return played, []
    record = Episode(id, task)
    environment = Isolated(environment_class, task, step_timeout_s=limits.step_timeout_s)
    chat: Chat | None = None
    try:
        record.begin(await environment.start())
        chat = agent.enter(environment, episode=episode or id, seed=seed)
        async with asyncio.timeout(limits.episode_timeout_s) as clock:
            await _turns(record, environment, chat, limits)
    except TimeoutError as error:
        if not clock.expired():
            raise EngineError(f"the answer raised {type(error).__name__}: {error}") from error
        record.stop = "episode_timeout"
    except ContextFullError:
        record.stop = "context_full"
    except NoAdviceError:
        record.stop = NO_EXPERT
    finally:
        if chat is not None:
            chat.close()
        await environment.close()
    return record.trajectory(agent.name), record.images


async def _turns(episode: Episode, environment: Isolated, chat: Chat, limits: LimitsConfig) -> None:
    max_turns = limits.max_turns or environment.environment_class.max_turns
    while episode.stop is None:
        if len(episode.turns) >= max_turns:
            episode.stop = "max_turns"
            break
        answer = await chat.answer(list(episode.messages), episode.tools)
        observation = await environment.step(answer.message)
        episode.take(answer, observation)
        if episode.stop is None:
            episode.stop = _given_up(episode.turns, limits)


def _given_up(turns: list[Turn], limits: LimitsConfig) -> str | None:
    """The reason to stop an agent that makes no progress, if there is one."""
    latest = turns[-limits.max_repeats :] if limits.max_repeats else []
    # Compare actions, not the thoughts before them; a reply without an action is compared as a whole.
    did = {turn.action if turn.action is not None else reply_text(turn.reply) for turn in latest}
    repeated = len(did) == 1 and all(turn.observation == latest[0].observation for turn in latest)
    if len(latest) == limits.max_repeats > 0 and repeated:
        return "loop"
    errors = [turn.error for turn in turns[-limits.max_errors :]] if limits.max_errors else []
    return turns[-1].error if len(errors) == limits.max_errors > 0 and all(errors) else None
