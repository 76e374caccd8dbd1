"""Labels: what an expert or a stronger model would have replied at each turn of a recorded episode.

The expert is asked in the states that the episode went through, restored by one replay. A
model is asked about the recorded conversation, so it needs no environment.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Protocol

from bough.curation.lookup import EnvironmentOf
from bough.curation.source import SourcedTrajectory
from bough.engines.base import ContextFullError, EngineError
from bough.environments.base import EnvironmentFailedError
from bough.environments.isolated import Isolated
from bough.environments.replay import ReplayError, rounds
from bough.errors import BoughError
from bough.rollouts.agents import NO_EXPERT, ModelAgent
from bough.speech.base import MalformedError
from bough.speech.reply import Reply
from bough.types import Message, Trajectory, conversation

log = logging.getLogger(__name__)
EMPTY = "label_empty"


@dataclass(frozen=True)
class Label:
    """The reply for one turn, its action, and whether the agent took that too; without a reply, the reason why.

    The agent's own reply is `accepted` where the environment calls it as good as the expert's.
    """

    reply: Message | None
    action: str | None = None
    same_action: bool = False
    accepted: bool = False
    reason: str = ""


class Labeller(Protocol):
    """Labels whole episodes."""

    async def labels(self, item: SourcedTrajectory) -> list[Label]:
        """One label for each turn."""

    async def close(self) -> None:
        """Releases what the labeller holds."""


@dataclass(frozen=True)
class ExpertLabeller:
    """The expert of each episode's environment."""

    environment_of: EnvironmentOf
    told: set[str] = field(default_factory=set)

    async def labels(self, item: SourcedTrajectory) -> list[Label]:
        trajectory, environment_class = item.trajectory, self.environment_of(item)
        if environment_class is None:
            return _unlabelled(trajectory, [], "environment_unknown")
        asides = {at: Label(None, reason="own_prompt") for at, turn in enumerate(trajectory.turns) if turn.prompt}
        found: dict[int, Label] = {}
        reason = ""
        try:
            async with aclosing(rounds(lambda task: Isolated(environment_class, task), trajectory)) as states:
                async for at, environment in states:
                    text = await environment.expert()
                    if text is None:
                        found[at] = Label(None, reason=NO_EXPERT)
                        continue
                    own, reply = trajectory.turns[at].reply, Message(role="assistant", content=text)
                    if reply.empty:
                        found[at] = Label(None, reason=EMPTY)
                        continue
                    label = await _compared(own, reply, environment)
                    accepted = not label.same_action and await environment.accepts(own)
                    found[at] = replace(label, accepted=accepted)
        except ReplayError:
            reason = "cannot_replay"
        except EnvironmentFailedError as error:
            reason = _failed(item, error, self.told)
        found |= asides
        return [found.get(at, Label(None, reason=reason)) for at in range(len(trajectory.turns))]

    async def close(self) -> None:
        return


@dataclass(frozen=True)
class ModelLabeller:
    """A model, in this process or on a server."""

    agent: ModelAgent
    environment_of: EnvironmentOf
    seed: int
    told: set[str] = field(default_factory=set)

    async def labels(self, item: SourcedTrajectory) -> list[Label]:
        trajectory = item.trajectory
        found: list[Label] = []
        environment = await self._made(item)
        chat = self.agent.engine.open(trajectory.id, seed=self.seed)
        try:
            for at, turn in enumerate(trajectory.turns):
                said = turn.prompt or conversation(trajectory.start, trajectory.turns[:at])
                answer = await chat.answer(said, trajectory.tools if turn.tools is None else turn.tools)
                if answer.finish != "stop":
                    found.append(Label(None, reason="label_cut_off"))
                elif answer.message.empty:
                    found.append(Label(None, reason=EMPTY))
                else:
                    found.append(await _compared(turn.reply, answer.message, environment))
        except ContextFullError:
            return _unlabelled(trajectory, found, "context_full")
        except EngineError:
            return _unlabelled(trajectory, found, "engine_failed")
        except EnvironmentFailedError as error:
            return _unlabelled(trajectory, found, _failed(item, error, self.told))
        finally:
            chat.close()
            if environment is not None:
                await environment.close()
        return found

    async def _made(self, item: SourcedTrajectory) -> Isolated | None:
        """The episode's environment, created but not started: it knows how to read a reply."""
        environment_class = self.environment_of(item)
        if environment_class is None:
            return None
        environment = Isolated(environment_class, item.trajectory.task)
        try:
            await environment.make()
        except BoughError:  # replies are then compared without it
            await environment.close()
            return None
        return environment

    async def close(self) -> None:
        await self.agent.close()


async def _compared(own: Message, other: Message, environment: Isolated | None) -> Label:
    """A label, compared with the agent's own reply by the action: what is said around it does not count."""
    left, right = Reply.of(own), Reply.of(other)
    if environment is None:
        actions = [_action(reply) for reply in (left, right)]
    else:
        actions = [await environment.action_in(reply) for reply in (left, right)]
    same = left.strip() == right.strip() or (actions[0] is not None and actions[0] == actions[1])
    return Label(other, actions[1], same)


def _action(reply: Reply) -> str | None:
    try:
        return reply.parsed.action
    except MalformedError:
        return None


def _failed(item: SourcedTrajectory, error: EnvironmentFailedError, told: set[str]) -> str:
    """Why the turns from there on have no label. What the environment's code did wrong is told once."""
    if str(error) not in told:
        told.add(str(error))
        log.warning(
            "%s:%d: its environment failed; the turns after that have no label: %s", item.file, item.line, error
        )
    return "environment_failed"


def _unlabelled(trajectory: Trajectory, found: list[Label], reason: str) -> list[Label]:
    """The labels so far, and the reason why the other turns have none."""
    return found + [Label(None, reason=reason)] * (len(trajectory.turns) - len(found))
