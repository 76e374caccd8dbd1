"""The rollout tree: attempts at one task are played together while they have said and seen the same.

A branch is one conversation, one row of the engine and one record for all of its attempts. It parts where they
draw different replies, or see different things after the same reply. Each attempt gets the record that it would
get alone. An environment that `shares_steps` is stepped once for a branch and copied where that parts; of any
other each attempt has its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, cast

from bough.config.groups import LimitsConfig
from bough.engines.base import Answer, ContextFullError, EngineError
from bough.engines.chat import TemplateChat, TemplateEngine
from bough.environments.base import Environment, EnvironmentFailedError, Observation
from bough.environments.isolated import Isolated
from bough.environments.registry import OwnAgent
from bough.environments.tools import raised_in
from bough.rollouts.episode import Agent, Episode, ModelAgent, given_up
from bough.types import Task, Trajectory

Played = tuple[Trajectory, list[tuple[int, bytes]]]
Ended = Callable[[int, Played | BaseException], None]
Seen = Observation | asyncio.Future[Observation]
FAILURES = (EnvironmentFailedError, EngineError)
LATE_S = 1.0  # after this time, attempts whose environment has answered continue without the others


@dataclass(frozen=True)
class Player:
    """One attempt: the id of its record, its seed, and its name in the engine."""

    id: str
    seed: int
    episode: str


@dataclass(eq=False)
class Branch:
    """Attempts that have said and seen the same so far. `environments` has that of each, by the attempt's place."""

    record: Episode
    environments: dict[int, Isolated]
    chat: TemplateChat


def can_share(environment_class: type[Environment], agent: Agent) -> bool:
    """Whether attempts of this agent can be played together."""
    engine = agent.engine if isinstance(agent, ModelAgent) else None
    token_engine = engine.tokens if isinstance(engine, TemplateEngine) else None
    return hasattr(token_engine, "generate_each") and not issubclass(environment_class, OwnAgent)


def _alike(one: Observation, other: Observation) -> bool:
    """Whether two observations leave the same record. `info` is for programs, but for the tools that raised."""
    same = replace(one, info={}) == replace(other, info={})
    return same and [x.place for x in raised_in(one.info)] == [x.place for x in raised_in(other.info)]


def sampled(tokens: object) -> tuple[int, int]:
    """How many tokens a token engine has drawn so far, and from how many states; zeros where it does not count them."""
    scheduler = getattr(tokens, "scheduler", None)
    return (scheduler.num_drawn, scheduler.num_states) if scheduler is not None else (0, 0)


class RolloutTree:
    """Plays attempts at one task; `ended` gets the record of each by its place, or why there is none.

    A failure of environment or engine says nothing about the agent: the attempt may be played again.
    """

    def __init__(
        self,
        environment_class: type[Environment],
        task: Task,
        agent: Agent,
        players: Sequence[Player],
        *,
        limits: LimitsConfig,
        ended: Ended,
    ) -> None:
        self.environment_class, self.task, self.players, self.limits = environment_class, task, players, limits
        self._engine = cast("TemplateEngine", cast("ModelAgent", agent).engine)
        self._name, self._ended = agent.name, ended
        self._max_turns = limits.max_turns or environment_class.max_turns
        self._names = set(range(len(players)))  # of attempts that are not over, by their places
        self._open: set[Isolated] = set()  # what is not closed yet
        self._late: set[asyncio.Future[Observation]] = set()  # steps that nobody may be waiting for

    async def play(self) -> None:
        everyone = range(len(self.players))
        made = [
            Isolated(self.environment_class, self.task, step_timeout_s=self.limits.step_timeout_s)
            for _ in (everyone[:1] if self.environment_class.shares_steps else everyone)
        ]
        self._open.update(made)
        try:
            async with asyncio.TaskGroup() as self._group:
                await self._begin({place: made[place % len(made)] for place in everyone})
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
        finally:  # of branches that were cancelled before they began, too
            for task in self._late:
                task.cancel()
            self._release(self._names)
            await self._close(self._open)

    async def _begin(self, environments: dict[int, Isolated]) -> None:
        try:
            begun = await self._observe(environments, Isolated.start)
        except FAILURES as error:
            for place in list(environments):
                self._lose(environments, place, error)
            return
        limit_s = self.limits.episode_timeout_s
        self._deadline = None if limit_s is None else asyncio.get_running_loop().time() + limit_s
        for seen, mine in begun:
            named = [(self.players[one].episode, self.players[one].seed) for one in mine]
            branch = Branch(Episode("", self.task), mine, TemplateChat(self._engine, *named))
            self._group.create_task(self._grow(branch, seen=seen))

    async def _grow(self, branch: Branch, answer: Answer | None = None, seen: Seen | None = None) -> None:
        """Plays a branch from its newest reply, or from what was seen after it, until it ends or no one is in it."""
        record = branch.record
        failure: Exception | None = None
        try:
            async with asyncio.timeout_at(self._deadline) as clock:
                if seen is not None:
                    await self._take(record, answer, seen)
                    answer = None
                while branch.environments and record.stop is None:
                    if answer is None and len(record.turns) >= self._max_turns:
                        record.stop = "max_turns"
                        break
                    answer = answer or await self._answer(branch)
                    if answer is not None:
                        await self._step(branch, answer)
                        answer = None
        except TimeoutError as error:
            record.stop = "episode_timeout"
            if not clock.expired():
                failure = EngineError(f"the answer raised {type(error).__name__}: {error}")
        except ContextFullError:
            record.stop = "context_full"
        except FAILURES as error:
            failure = error
        finally:
            self._release(set(branch.environments))
            await self._close(set(branch.environments.values()))
        self._record(branch, failure)

    async def _answer(self, branch: Branch) -> Answer | None:
        """The reply that all in the branch gave. None where they parted: each reply has a branch of its own then."""
        record, order = branch.record, list(branch.environments)
        if len(order) == 1:
            return await branch.chat.answer(list(record.messages), record.tools)
        async with aclosing(branch.chat.answers(list(record.messages), record.tools)) as answers:
            async for places, answer, chat in answers:
                if len(places) == len(order):
                    return answer
                mine = {order[place]: branch.environments[order[place]] for place in places}
                if self.environment_class.shares_steps and len(mine) < len(branch.environments):
                    try:
                        mine = dict.fromkeys(mine, await next(iter(mine.values())).copy())
                    except FAILURES as error:
                        for one in mine:
                            self._lose(branch.environments, one, error)
                        continue
                    self._open.update(mine.values())
                for one in mine:
                    del branch.environments[one]
                self._group.create_task(self._grow(Branch(record.copy(), mine, chat), answer))
        return None

    async def _step(self, branch: Branch, answer: Answer) -> None:
        """Acts on a reply. Attempts that see something else than the first have branches of their own from here on."""
        order = list(branch.environments)
        seen = await self._observe(branch.environments, lambda one: one.step(answer.message))
        chat, before = branch.chat, branch.record.copy() if len(seen) > 1 else branch.record
        for observation, mine in seen[1:]:
            part = Branch(before.copy(), mine, chat.part([order.index(one) for one in mine]))
            self._group.create_task(self._grow(part, answer, observation))
        if seen:
            observation, branch.environments = seen[0]
            branch.chat = chat.part([order.index(one) for one in branch.environments])
            await self._take(branch.record, answer, observation)

    async def _observe(
        self, environments: dict[int, Isolated], act: Callable[[Isolated], Coroutine[Any, Any, Observation]]
    ) -> list[tuple[Seen, dict[int, Isolated]]]:
        """What the environments show, each with the attempts that see it.

        Attempts whose environment fails are over. Those whose environment is late are not waited for.
        """
        if len(environments) == 1 or self.environment_class.shares_steps:
            return [(await act(next(iter(environments.values()))), environments)]
        tasks = {asyncio.ensure_future(act(one)): place for place, one in environments.items()}
        self._late.update(tasks)
        try:
            await asyncio.wait(tasks, timeout=LATE_S)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
        shown: list[tuple[Observation, dict[int, Isolated]]] = []
        late: list[tuple[Seen, dict[int, Isolated]]] = []
        for task, place in tasks.items():
            mine = {place: environments[place]}
            if not task.done():
                late.append((task, mine))
                continue
            self._late.discard(task)
            if isinstance(error := task.exception(), FAILURES):
                self._group.create_task(self._close({environments[place]}))
                self._lose(environments, place, error)
                continue
            seen = task.result()
            if (same := next((others for one, others in shown if _alike(one, seen)), None)) is not None:
                same.update(mine)
            else:
                shown.append((seen, mine))
        return [*shown, *late]

    async def _take(self, record: Episode, answer: Answer | None, seen: Seen) -> None:
        observation = seen if isinstance(seen, Observation) else await seen
        if answer is None:
            record.begin(observation)
            return
        record.take(answer, observation)
        if record.stop is None:
            record.stop = given_up(record.turns, self.limits)

    def _lose(self, environments: dict[int, Isolated], place: int, error: Exception) -> None:
        """An attempt is over whose environment failed. It may be played again at once, under the same name."""
        del environments[place]
        self._release({place})
        self._ended(place, error)

    def _release(self, places: set[int]) -> None:
        """The engine may forget what it keeps of these attempts."""
        for place in places & self._names:
            self._engine.tokens.release(self.players[place].episode)
        self._names = self._names - places

    async def _close(self, environments: set[Isolated]) -> None:
        await asyncio.gather(*(one.close() for one in environments))
        self._open = self._open - environments

    def _record(self, branch: Branch, failure: Exception | None) -> None:
        """The record of each attempt in a branch that is over. They have it in common but for their ids."""
        record, outcome = branch.record, cast("Trajectory | Exception | None", failure)
        for place in branch.environments:
            record.id = self.players[place].id
            if outcome is None:
                try:
                    outcome = record.trajectory(self._name)
                except EnvironmentFailedError as error:
                    outcome = error
            if isinstance(outcome, Exception):
                self._ended(place, outcome)
                continue
            own = outcome.model_copy(update={"id": record.id, "info": dict(outcome.info)})
            self._ended(place, (own, list(record.images)))
