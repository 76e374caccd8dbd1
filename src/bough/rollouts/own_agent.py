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
from dataclasses import dataclass, replace
from typing import Any, cast

from bough import event_loop
from bough.config.groups import LimitsConfig, SamplingConfig
from bough.engines.base import Answer, ModelChat
from bough.engines.server.app import Endpoint, listen, need_server
from bough.engines.server.session import Session, SessionConfig
from bough.engines.server.store import Recorder, SessionOutcome, trajectory_of
from bough.environments.base import EnvironmentFailedError, blame
from bough.environments.check import NONSENSE, CheckReport, EnvCheckConfig, check
from bough.environments.isolated import Isolated, shut_down, take_thread
from bough.environments.registry import OwnAgent, find
from bough.environments.tasks import configured, first_tasks, tasks_of
from bough.errors import InputError, short_repr
from bough.rollouts.agents import Agent, ModelAgent
from bough.types import Message, Task, Trajectory

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


# `bough env check`. An agent function or a taskset of verifiers has no step to check: each of its tasks is played with
# fixed replies in place of a model's, all at the same time. Any reply must lead to a result, and nonsense must not be
# a success.


def check_configured(config: EnvCheckConfig, name: str | None) -> CheckReport:
    """The environment or agent of the settings, checked on its first tasks."""
    environment_class = configured(find(config.environment), config.options)
    wanted = tasks_of(environment_class, options=config.options, task_file=config.task_file, seed=config.seed)
    tasks = first_tasks(wanted, config.tasks)

    async def checked() -> CheckReport:
        try:
            if issubclass(environment_class, OwnAgent):
                return await _check_agent(environment_class, tasks, config.seed)
            return await check(environment_class, name, tasks, seed=config.seed)
        finally:
            await shut_down(environment_class)

    return event_loop.run(checked())


async def _check_agent(agent_class: type[OwnAgent], tasks: list[Task], seed: int) -> CheckReport:
    report = CheckReport(agent_class.name, len(tasks), checked="bad input, episodes at the same time")

    async def play(task: Task, reply: str) -> None:
        agent, where = ModelAgent(_FixedReplies(reply)), f"task {task.id}"
        with report.looking_at(where):
            played = await play_own(agent_class, task, agent, id=task.id, seed=seed, limits=LimitsConfig())
            if played.success:
                report.add(where, f"the reply {reply!r:.40} is a success")

    for task in tasks:
        await asyncio.gather(*(play(task, reply) for reply in NONSENSE))
    return report


class _FixedReplies:
    """An engine without a model."""

    name = "fixed replies"

    def __init__(self, reply: str) -> None:
        self.reply = reply
        self.sampling = SamplingConfig()

    def open(self, episode: str, *, seed: int) -> _FixedChat:  # noqa: ARG002
        return _FixedChat(self.reply)

    async def close(self) -> None:
        return


@dataclass(frozen=True)
class _FixedChat:
    reply: str

    async def answer(
        self,
        messages: list[Message],  # noqa: ARG002
        tools: list[dict[str, Any]],  # noqa: ARG002
        *,
        sampling: SamplingConfig | None = None,  # noqa: ARG002
        seed: int | None = None,  # noqa: ARG002
    ) -> Answer:
        return Answer(Message(role="assistant", content=self.reply), None, "stop")

    def close(self) -> None:
        return
