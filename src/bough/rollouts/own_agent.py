"""One episode of a user's own agent function, against an endpoint in this process that records it.

Every episode is a session with an address of its own, which cannot be guessed. The agent's code is not the model:
if it raises, returns an invalid result, or makes no request for `step_timeout_s`, the episode is played again, like
one whose environment failed. If the model could not be asked any more (its context was full, the episode had
`max_turns` replies) and the agent raises then, the episode ends as a failure with that stop reason.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from bough.config.groups import LimitsConfig
from bough.engines.base import ModelChat
from bough.engines.server.app import Endpoint, listen, need_server
from bough.engines.server.session import Session, SessionConfig
from bough.engines.server.store import Recorder, SessionOutcome, trajectory_of
from bough.environments.base import EnvironmentFailedError, blame
from bough.environments.isolated import Isolated, take_thread
from bough.environments.registry import OwnAgent
from bough.errors import InputError, short_repr
from bough.rollouts.agents import Agent, ModelAgent
from bough.types import Task, Trajectory

# How long an agent's thread is waited for where an episode has no time limit, in seconds.
NO_LIMIT_S = 1e8


class AgentEndpoint:
    """The endpoint that the sessions of one process's agents use."""

    def __init__(self) -> None:
        need_server()
        from bough.engines.server.app import LOOPBACK_NAMES, Access, make_app

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
