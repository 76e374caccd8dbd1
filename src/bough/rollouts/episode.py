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
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from pydantic import JsonValue, ValidationError

from bough.chat.tool_calls import reply_text
from bough.config.groups import LimitsConfig
from bough.data.base import row_error
from bough.engines.base import Answer, Chat, ContextFullError, EngineError, ModelChat
from bough.engines.server.app import Endpoint, listen, need_server
from bough.engines.server.session import Session, SessionConfig
from bough.engines.server.store import Recorder, SessionOutcome, trajectory_of
from bough.environments.base import Environment, EnvironmentFailedError, Observation, blame
from bough.environments.isolated import Isolated, take_thread
from bough.environments.registry import OwnAgent
from bough.environments.replay import ReplayError, replay
from bough.environments.tools import raised_in
from bough.errors import InputError, short_repr
from bough.rollouts.agents import NO_EXPERT, Agent, ModelAgent, NoAdviceError
from bough.types import Message, Task, Trajectory, Turn, conversation


class Replayed(NamedTuple):
    """The first `turns` turns of a recorded episode, which has more."""

    record: Trajectory
    turns: int


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
    # Turns of a recorded episode that were replayed to get here.
    num_replayed: int = 0
    # How often tools raised, by what raised where.
    raised: Counter[str] = field(default_factory=Counter)

    def begin(self, observation: Observation) -> None:
        if not observation.messages or observation.messages[-1].role == "assistant":
            raise EnvironmentFailedError("start must end with something for the agent to answer")
        self.start, self.tools = list(observation.messages), list(observation.tools)
        self.messages += self.start
        self._look(observation)

    def resume(self, replayed: Replayed) -> None:
        """Begins where a recorded episode was: its turns so far are context and are not trained."""
        record, count = replayed
        self.start, self.tools, self.num_replayed = record.start, record.tools, count
        self.turns = [turn.model_copy(update={"trained": False, "call": None}) for turn in record.turns[:count]]
        self.messages = conversation(self.start, self.turns)
        self.state = record.turns[count].state

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
        if self.num_replayed:
            info["replayed_turns"] = self.num_replayed
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
    replayed: Replayed | None = None,
    episode: str | None = None,
) -> tuple[Trajectory, list[tuple[int, bytes]]]:
    """Plays one episode; returns its record and the images of its observations, each with its turn.

    `replayed`: begin in the middle of a recorded episode of the task. `episode` is its name in the engine, by
    default its id.

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
        if replayed is None:
            record.begin(await environment.start())
        else:
            environment = await _replay(environment, replayed)
            record.resume(replayed)
        chat = agent.enter(environment, episode=episode or id, seed=seed)
        await _all_turns(record, environment, chat, limits)
    except ContextFullError:
        record.stop = "context_full"
    except NoAdviceError:
        record.stop = NO_EXPERT
    finally:
        if chat is not None:
            chat.close()
        await environment.close()
    return record.trajectory(agent.name), record.images


async def _replay(environment: Isolated, replayed: Replayed) -> Isolated:
    try:
        return await replay(lambda _: environment, *replayed)
    except ReplayError as error:
        raise EnvironmentFailedError(f"a recorded episode cannot be replayed: {error}") from error


async def _all_turns(episode: Episode, environment: Isolated, chat: Chat, limits: LimitsConfig) -> None:
    try:
        async with asyncio.timeout(limits.episode_timeout_s) as clock:
            await _turns(episode, environment, chat, limits)
    except TimeoutError as error:
        if not clock.expired():
            raise EngineError(f"the answer raised {type(error).__name__}: {error}") from error
        episode.stop = "episode_timeout"


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
    if len(latest) == limits.max_repeats > 0 and all(_same(turn, latest[0]) for turn in latest):
        return "loop"
    errors = [turn.error for turn in turns[-limits.max_errors :]] if limits.max_errors else []
    return turns[-1].error if len(errors) == limits.max_errors > 0 and all(errors) else None


def _same(left: Turn, right: Turn) -> bool:
    # Compare actions, not the thoughts before them; a reply without an action is compared as a whole.
    did = [turn.action if turn.action is not None else reply_text(turn.reply) for turn in (left, right)]
    return did[0] == did[1] and left.observation == right.observation


# One episode of a user's own agent function, against an endpoint in this process that records it.
# Every episode is a session with an address of its own, which cannot be guessed. The agent's code is not the model:
# if it raises, returns an invalid result, or makes no request for `step_timeout_s`, the episode is played again, like
# one whose environment failed. If the model could not be asked any more (its context was full, the episode had
# `max_turns` replies) and the agent raises then, the episode ends as a failure with that stop reason.

# How long an agent's thread is waited for where an episode has no time limit, in seconds.
NO_LIMIT_S = 1e8


class AgentEndpoint:
    """The endpoint that the sessions of one process's agents use."""

    def __init__(self) -> None:
        need_server()
        from bough.engines.server.app import LOOPBACK_NAMES, Access, make_app

        self.recorder = Recorder()
        app = make_app(self.recorder, Access(LOOPBACK_NAMES), model="bough")
        self.http = Endpoint(app, listen("127.0.0.1", 0))
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
    endpoint, environment = await _endpoint(environment_class), Isolated(environment_class, task)  # never started

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


async def _endpoint(environment_class: type[OwnAgent]) -> AgentEndpoint:
    """The class's endpoint, started by its first episode."""
    if environment_class.endpoint is None:
        environment_class.endpoint = AgentEndpoint()
    endpoint: AgentEndpoint = environment_class.endpoint
    await asyncio.shield(endpoint.starting)
    return endpoint


async def _outcome(
    environment_class: type[OwnAgent], task: Task, session: Session, url: str, *, seed: int, limits: LimitsConfig
) -> SessionOutcome:
    """What the agent function says of its episode."""
    thread = take_thread()
    running = asyncio.ensure_future(
        thread.run(lambda: _called(environment_class, task, url, seed), limits.episode_timeout_s or NO_LIMIT_S)
    )
    try:
        await _while_used(running, session, limits.step_timeout_s)
        if not running.done():
            waited = f"made no request for {limits.step_timeout_s:g} s and did not end"
            raise EnvironmentFailedError(f"{environment_class.name} {waited}; --step-timeout-s sets the limit")
        return read_result(environment_class.name, running.result(), session.refused)
    except TimeoutError:
        return _failed("episode_timeout")
    except EnvironmentFailedError:
        if session.failure is not None:
            raise session.failure from None
        if session.refused is None:
            raise
        return _failed(session.refused)
    finally:
        session.close("its agent has ended")
        if not running.done():
            running.cancel()
            await asyncio.wait([running])
        thread.leave()


async def _while_used(running: asyncio.Future[Any], session: Session, patience_s: float) -> None:
    """Waits until the agent has ended, or has neither a request in flight nor made one for a while."""
    while not running.done():
        left_s = patience_s if session.in_flight else session.last_used + patience_s - time.monotonic()
        if left_s <= 0:
            return
        await asyncio.wait([running], timeout=left_s)


async def _called(environment_class: type[OwnAgent], task: Task, url: str, seed: int) -> Any:
    """Calls the function with what its parameters ask for; runs in the agent's thread."""
    function = environment_class.function
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    given: dict[str, Any] = {"task": task, "base_url": url, "model": "bough", "seed": seed}
    client: Any = None
    if "client" in environment_class.parameters:
        client = given["client"] = _openai_client(url, is_async=is_async)
    given = {name: given[name] for name in environment_class.parameters}
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
    finally:
        if client is not None:
            closed = client.close()
            if inspect.isawaitable(closed):
                await closed


def _openai_client(url: str, *, is_async: bool) -> Any:
    try:
        import openai
    except ImportError:
        raise InputError("an agent that takes a client needs the package openai: pip install openai") from None
    # A failed request is the episode's, which is retried as a whole. Reading certificates takes a tenth of a second,
    # and there are none on this machine's own address.
    options: dict[str, Any] = {"base_url": url, "api_key": "none", "max_retries": 0, "timeout": None}
    if is_async:
        return openai.AsyncOpenAI(**options, http_client=openai.DefaultAsyncHttpxClient(verify=False))
    return openai.OpenAI(**options, http_client=openai.DefaultHttpxClient(verify=False))


def read_result(name: str, result: Any, refused: str | None = None) -> SessionOutcome:
    """What an agent function returned, as an outcome. An invalid result is an EnvironmentFailedError."""
    try:
        if isinstance(result, Mapping):
            rest = dict(result)
        else:
            rest = {"success" if isinstance(result, bool) else "reward": result}
        success, reward = rest.pop("success", None), rest.pop("reward", None)
        if not isinstance(success, bool | None):
            raise EnvironmentFailedError(
                f"{name} returned success {short_repr(success)}; it must be True, False or None"
            )
        outcome = None if success is None else float(success)
        rewards = {"outcome": outcome if reward is None else _number(name, "reward", reward)}
        rewards |= {str(key): _number(name, str(key), value) for key, value in rest.items()}
        return SessionOutcome(success, rewards, refused or "done")
    except EnvironmentFailedError:
        raise
    except Exception as error:  # reading a tensor or a mapping runs code of its author
        raise blame(f"the result of {name}", error) from error


def _number(name: str, what: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, str) or not math.isfinite(number):
        raise EnvironmentFailedError(
            f"{name} returned {short_repr(value)} as {what}; a reward must be a finite number, a success True or False"
        )
    return number


def _failed(stop: str) -> SessionOutcome:
    return SessionOutcome(success=False, rewards={"outcome": 0.0}, stop=stop)
