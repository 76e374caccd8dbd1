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
import inspect
import math
import random
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from pydantic import JsonValue, ValidationError

from bough.chat.tool_calls import reply_text
from bough.config.groups import AgentConfig, LimitsConfig, SamplingConfig
from bough.data.base import row_error
from bough.engines.base import Answer, Chat, ContextFullError, Engine, EngineError, ModelChat
from bough.engines.load import load_engine, need_server
from bough.engines.server.session import Session, SessionConfig
from bough.engines.server.store import Recorder, SessionOutcome, trajectory_of
from bough.environments.base import Environment, EnvironmentFailedError, Observation, blame
from bough.environments.isolated import Isolated, take_thread
from bough.environments.registry import OwnAgent
from bough.environments.tools import raised_in
from bough.errors import BoughError, InputError, short_repr
from bough.types import Message, Task, Trajectory, Turn

# Agents: a model, the environment's expert, or random actions.

# How an episode ends, or why a turn has no label, where the environment's expert has no advice.
NO_EXPERT = "no_expert"


class NoAdviceError(BoughError):
    """The environment has an expert, but not for this task or not in this state."""


class Agent(Protocol):
    """Plays episodes. `name` is how records name it."""

    @property
    def name(self) -> str: ...

    def enter(self, environment: Isolated, *, episode: str, seed: int) -> Chat:
        """Begins one episode."""

    async def close(self) -> None:
        """Releases what the agent holds."""


@dataclass(frozen=True)
class ModelAgent:
    """A model. It sees messages only."""

    engine: Engine

    @property
    def name(self) -> str:
        return self.engine.name

    def enter(self, environment: Isolated, *, episode: str, seed: int) -> Chat:  # noqa: ARG002
        return self.engine.open(episode, seed=seed)

    async def close(self) -> None:
        await self.engine.close()


async def make_agent(config: AgentConfig, sampling: SamplingConfig) -> Agent:
    """The agent that the settings name."""
    if config.model == ExpertAgent.name:
        return ExpertAgent()
    if config.model == RandomAgent.name:
        return RandomAgent()
    return ModelAgent(await load_engine(config, sampling))


class ExpertAgent:
    """The environment's own expert."""

    name = "expert"

    def enter(self, environment: Isolated, *, episode: str, seed: int) -> Chat:  # noqa: ARG002
        environment_class = environment.environment_class
        if environment_class.expert is Environment.expert:
            raise InputError(f"{environment_class.name} has no expert; give a model (--model)")

        async def reply() -> str:
            if (advice := await environment.expert()) is None:
                raise NoAdviceError(f"the expert has no advice for task {environment.task.id}")
            return advice

        return _Script(reply)

    async def close(self) -> None:
        return


class RandomAgent:
    """Takes one of the possible actions, each with the same probability."""

    name = "random"

    def enter(self, environment: Isolated, *, episode: str, seed: int) -> Chat:
        rng = random.Random(f"{seed} {episode}")  # noqa: S311  no secret

        async def reply() -> str:
            if not (choices := await environment.choices()):
                raise InputError(
                    f"{environment.environment_class.name} does not list its possible actions (choices), which the "
                    "random agent needs"
                )
            return await environment.say(rng.choice(sorted(choices)))

        return _Script(reply)

    async def close(self) -> None:
        return


@dataclass(frozen=True)
class _Script:
    """A chat without a model."""

    reply: Callable[[], Awaitable[str]]

    async def answer(self, messages: list[Message], tools: list[dict[str, Any]]) -> Answer:  # noqa: ARG002
        return Answer(Message(role="assistant", content=await self.reply()), None, "stop")

    def close(self) -> None:
        return


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

    def copy(self) -> Episode:
        """The same until now."""
        return replace(
            self,
            turns=list(self.turns),
            messages=list(self.messages),
            images=list(self.images),
            raised=Counter(self.raised),
        )

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
    clock: asyncio.Timeout | None = None
    try:
        record.begin(await environment.start())
        chat = agent.enter(environment, episode=episode or id, seed=seed)
        async with asyncio.timeout(limits.episode_timeout_s) as clock:
            await _turns(record, environment, chat, limits)
    except TimeoutError as error:
        if clock is None or not clock.expired():
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
            episode.stop = given_up(episode.turns, limits)


def given_up(turns: list[Turn], limits: LimitsConfig) -> str | None:
    """The reason to stop an agent that makes no progress, if there is one."""
    latest = turns[-limits.max_repeats :] if limits.max_repeats else []
    # Compare actions, not the thoughts before them; a reply without an action is compared as a whole.
    did = {turn.action if turn.action is not None else reply_text(turn.reply) for turn in latest}
    repeated = len(did) == 1 and all(turn.observation == latest[0].observation for turn in latest)
    if len(latest) == limits.max_repeats > 0 and repeated:
        return "loop"
    errors = [turn.error for turn in turns[-limits.max_errors :]] if limits.max_errors else []
    return turns[-1].error if len(errors) == limits.max_errors > 0 and all(errors) else None


# One episode of a user's own agent function, against an endpoint in this process that records it.

# How long an agent's thread is waited for where an episode has no time limit, in seconds.
NO_LIMIT_S = 1e8


class AgentEndpoint:
    """The endpoint that the sessions of one process's agents use."""

    def __init__(self) -> None:
        need_server()
        from bough.engines.server.app import LOOPBACK_NAMES, Access, Endpoint, listen, make_app

        self.recorder = Recorder()
        self.http = Endpoint(make_app(self.recorder, Access(LOOPBACK_NAMES), model="bough"), listen("127.0.0.1", 0))
        self.starting = asyncio.ensure_future(self.http.start())

    async def close(self) -> None:
        await self.http.close()


async def play_own(
    environment_class: type[OwnAgent],
    task: Task,
    agent: Agent,
    *,
    id: str,
    seed: int,
    limits: LimitsConfig,
    episode: str | None = None,
) -> Trajectory:
    """Plays one episode. Raises EnvironmentFailedError or EngineError if agent function or engine failed."""
    if not isinstance(agent, ModelAgent):
        raise InputError(f"--agent needs a model; {agent.name} cannot answer requests")
    if environment_class.endpoint is None:
        environment_class.endpoint = AgentEndpoint()
    endpoint: AgentEndpoint = environment_class.endpoint
    await asyncio.shield(endpoint.starting)
    environment = Isolated(environment_class, task)  # never started

    def open_chat(number: int) -> ModelChat:
        return cast(ModelChat, agent.enter(environment, episode=f"{episode or id}/{number}", seed=seed))

    max_calls = limits.max_turns or environment_class.max_turns
    config = SessionConfig(open_chat, agent.engine.sampling, seed=seed, fixed_sampling=True, max_calls=max_calls)
    session = endpoint.recorder.open(secrets.token_hex(16), config)
    url = endpoint.http.base_url(session.name)
    try:
        outcome = await _outcome(environment_class, task, session, url, seed=seed, limits=limits)
        if session.failure is not None:  # whatever the agent made of it
            raise session.failure
        if not session.calls:
            why = f"; its last request was refused: {session.refusal}" if session.refusal else ""
            happened = "got no reply from its base_url" if session.refusal else "made no request to its base_url"
            raise EnvironmentFailedError(f"{environment_class.name} {happened}{why}")
        return trajectory_of(session, replace(outcome, task=task), agent=agent.name, id=id)
    finally:
        endpoint.recorder.drop(session)


async def _outcome(
    environment_class: type[OwnAgent], task: Task, session: Session, url: str, *, seed: int, limits: LimitsConfig
) -> SessionOutcome:
    """What the agent function says of its episode."""
    thread = take_thread()
    running = asyncio.ensure_future(
        thread.run(lambda: _called(environment_class, task, url, seed), limits.episode_timeout_s or NO_LIMIT_S)
    )
    try:
        while not running.done():
            patience_s = limits.step_timeout_s
            left_s = patience_s if session.in_flight else session.last_used + patience_s - time.monotonic()
            if left_s <= 0:
                waited = f"made no request for {patience_s:g} s and did not end"
                raise EnvironmentFailedError(f"{environment_class.name} {waited}; --step-timeout-s sets the limit")
            await asyncio.wait([running], timeout=left_s)
        return read_result(environment_class.name, running.result(), session.refused)
    except TimeoutError:
        stop = "episode_timeout"
    except EnvironmentFailedError:
        if session.failure is not None:
            raise session.failure from None
        if session.refused is None:
            raise
        stop = session.refused
    finally:
        session.close("its agent has ended")
        if not running.done():
            running.cancel()
            await asyncio.wait([running])
        thread.leave()
    return SessionOutcome(success=False, rewards={"outcome": 0.0}, stop=stop)


async def _called(environment_class: type[OwnAgent], task: Task, url: str, seed: int) -> Any:
    """Calls the function with what its parameters ask for; runs in the agent's thread."""
    function = environment_class.function
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    offered: dict[str, Any] = {"task": task, "base_url": url, "model": "bough", "seed": seed}
    given = {name: offered[name] for name in environment_class.parameters}
    try:
        if is_async:
            return await function(**given)
        result = await asyncio.get_running_loop().run_in_executor(None, lambda: function(**given))
        return await result if inspect.isawaitable(result) else result
    except (InputError, EnvironmentFailedError):
        raise
    except BaseException as error:
        running = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and running is not None and running.cancelling():
            raise  # by us; otherwise the agent cancelled something of its own
        raise blame(environment_class.name, error) from error


def read_result(name: str, result: Any, refused: str | None = None) -> SessionOutcome:
    """What an agent function returned, as an outcome. An invalid result is an EnvironmentFailedError."""
    try:
        given = dict(result) if isinstance(result, Mapping) else {}
        if not isinstance(result, Mapping):
            given["success" if isinstance(result, bool) else "reward"] = result
        success, reward = given.pop("success", None), given.pop("reward", None)
        outcome = success if reward is None else reward
        numbers = {str(key): value for key, value in given.items()} | ({} if outcome is None else {"outcome": outcome})
        rewards: dict[str, float | None] = {"outcome": None} | {key: float(value) for key, value in numbers.items()}
        fine = all(value is None or math.isfinite(value) for value in rewards.values())
        if not fine or not isinstance(success, bool | None) or any(isinstance(one, str) for one in numbers.values()):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        allowed = "rewards must be finite numbers, a success True, False or None"
        raise EnvironmentFailedError(f"{name} returned {short_repr(result)}; {allowed}") from None
    except Exception as error:  # reading a tensor or a mapping runs code of its author
        raise blame(f"the result of {name}", error) from error
    return SessionOutcome(success, rewards, refused or "done")
