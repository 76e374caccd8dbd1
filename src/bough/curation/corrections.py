"""Corrections: the agent's own episodes, trained on what should have been replied in them (DAgger).

Demonstrations show an expert's states only. An agent leaves them with its first mistake and
is then on its own. Here each turn of the agent's episodes has the label of an expert or a
stronger model as its correction. The agent's reply stays in the history, so that an episode
is one record and, in training, one tree.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Literal

from pydantic import Field

from bough.chat.tool_calls import MalformedError, Reply
from bough.config.base import Config
from bough.config.groups import KEY_VARIABLE, AgentConfig, SamplingConfig, is_server
from bough.curation.source import CurationConfig, SourcedTrajectory
from bough.curation.states import EnvironmentLookup, EnvironmentOf
from bough.engines.base import ContextFullError, EngineError
from bough.environments.base import EnvironmentFailedError
from bough.environments.isolated import Isolated, shut_down
from bough.environments.replay import ReplayError, rounds
from bough.errors import BoughError, InputError
from bough.files import text_digest
from bough.ledger import Ledger
from bough.rollouts.episode import NO_EXPERT, ModelAgent, make_agent
from bough.types import Message, Trajectory, Turn, conversation

log = logging.getLogger(__name__)

EXPERT = "expert"


class LabelSamplingConfig(SamplingConfig):
    """Sampling parameters of a model that labels."""

    temperature: float = Field(0.0, ge=0, description="sampling temperature; 0: greedy")


class LabellerConfig(Config):
    """The model or server that labels."""

    engine: Literal["local", "vllm"] = Field("local", description="where a model runs: in this process, or in vLLM")
    server_model: str = Field("", description="name of the model on the server (default: the only one it has)")
    key_variable: str = Field("OPENAI_API_KEY", description=KEY_VARIABLE)
    chat_template: Path | None = Field(None, description="a Jinja file to use instead of the model's own chat template")
    bf16: bool | None = Field(None, description="compute in bfloat16 (default: yes on a GPU, no on a CPU)")

    def agent(self, by: str) -> AgentConfig:
        """The agent that `by` names."""
        common = {"key_variable": self.key_variable, "chat_template": self.chat_template, "bf16": self.bf16}
        if is_server(by):
            model = {"model": self.server_model} if self.server_model else {}
            return AgentConfig(engine="openai", base_url=by, **model, **common)
        return AgentConfig(engine=self.engine, model=by, **common)


class CorrectionsConfig(CurationConfig):
    """Labels every turn of the agent's own episodes with what an expert or a stronger model would have replied."""

    command = "corrections"

    by: str = Field(
        EXPERT,
        description="who labels: expert (the environment's own), a model, or the address of an OpenAI-like server",
    )
    where: Literal["differ", "everywhere"] = Field(
        "differ",
        description="train on the labels where they take another action than the agent did, or everywhere",
    )
    max_same_labels: int = Field(
        2,
        ge=1,
        description="train on the same label at most this many times in a row: an agent that repeats its mistake "
        "would otherwise count it at every turn",
    )
    mix: list[Path] = Field(
        [],
        description="files to add to the output unchanged: demonstrations, or the corrections of earlier rounds",
    )
    mix_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="sample from --mix so that it makes up at most this fraction of the episodes (default: all of it)",
    )
    labeller: LabellerConfig = LabellerConfig()
    sampling: LabelSamplingConfig = LabelSamplingConfig()
    environment: str | None = Field(
        None, description="the environment to replay the episodes in (default: the one that each task names)"
    )
    concurrency: int = Field(8, ge=1, description="episodes labelled at the same time")
    seed: int = Field(0, ge=0, description="random seed of sampling and of --mix-share")


SAME, DIFFERENT, ACCEPTED = "same action", "other action", "accepted"


class CorrectionWork:
    """Labels episodes and counts what became of them; `turns` counts those that are trained."""

    def __init__(
        self,
        config: CorrectionsConfig,
        filed: Sequence[SourcedTrajectory],
        ledger: Ledger,
        tell: Callable[[int, int], None] | None = None,
    ) -> None:
        self.config, self.filed, self.ledger, self.tell = config, filed, ledger, tell
        self.turns = Ledger("turns")
        self.labels: Counter[str] = Counter({SAME: 0, DIFFERENT: 0, ACCEPTED: 0})
        self.lookup = EnvironmentLookup(config.environment, required=config.by == EXPERT)

    async def correct(self, agent: ModelAgent | None = None) -> list[Trajectory]:
        """Every episode that has something to train on, in its original order."""
        config, environment_of, told = self.config, self.lookup.environment_of, set[str]()
        if agent is None and config.by != EXPERT:
            made = await make_agent(config.labeller.agent(config.by), config.sampling)
            if not isinstance(made, ModelAgent):
                raise InputError(f"--by {config.by}: it cannot label; give expert, a model or a server's address")
            agent = made
        gate, done = asyncio.Semaphore(config.concurrency), 0

        async def labelled(item: SourcedTrajectory) -> list[Label]:
            nonlocal done
            async with gate:
                if agent is None:
                    found = await expert_labels(item, environment_of, told)
                else:
                    found = await model_labels(item, agent, environment_of, config.seed, told)
            done += 1
            if self.tell is not None:
                self.tell(done, len(self.filed))
            return found

        try:
            found = await asyncio.gather(*map(labelled, self.filed))
        finally:
            if agent is not None:
                await agent.close()
            for environment_class in self.lookup.opened:
                await shut_down(environment_class)
        kept = [self._corrected(item, labels) for item, labels in zip(self.filed, found, strict=True)]
        return [trajectory for trajectory in kept if trajectory is not None]

    def _corrected(self, item: SourcedTrajectory, labels: list[Label]) -> Trajectory | None:
        """The episode with its corrections; None where no turn of it is trained."""
        turns = list[Turn]()
        # How often in a row the label has been given while the agent did something else.
        times, ignored = 1, None
        for turn, label in zip(item.trajectory.turns, labels, strict=True):
            times = times + 1 if ignored is not None and label.action == ignored else 1
            ignored = None if label.same_action else label.action
            turns.append(self._turn(turn, label, times))
        if not any(turn.trained for turn in turns):
            agrees = all(label.same_action or label.accepted for label in labels)
            self.ledger.drop("nothing_to_correct" if agrees else "no_correction")
            return None
        self.ledger.keep()
        by = {"source": item.place, "rule": "correction", "by": self.config.by}
        return item.trajectory.model_copy(update={"turns": turns, "info": {**item.trajectory.info, **by}})

    def _turn(self, turn: Turn, label: Label, times: int) -> Turn:
        """The turn with its label as the correction, or as context; `times` says how often in a row it was given."""
        reason = label.reason
        if label.reply is not None:
            self.labels[SAME if label.same_action else ACCEPTED if label.accepted else DIFFERENT] += 1
            if label.accepted:
                reason = "accepted"
            elif label.same_action:
                reason = "same_action" if self.config.where == "differ" else ""
            else:
                reason = "repeated_label" if times > self.config.max_same_labels else ""
        if reason:
            self.turns.drop(reason)
            return turn.model_copy(update={"correction": None, "trained": False})
        self.turns.keep()
        # The tokens of an identical reply are on record, unless it was cut off before its end.
        complete = turn.call is None or turn.call.finish == "stop"
        correction = None if complete and turn.reply == label.reply else label.reply
        return turn.model_copy(update={"correction": correction, "trained": True})

    def mix(self, found: Sequence[Trajectory], given: Sequence[SourcedTrajectory], ledger: Ledger) -> list[Trajectory]:
        """The given episodes, or a sample of them where the settings limit their share.

        An episode that several files contain, such as a demonstration that an earlier round has mixed in, counts once.
        """
        once = {text_digest(item.trajectory.model_dump_json(), size=16): item for item in given}
        if len(once) < len(given):
            ledger.drop("duplicate", len(given) - len(once))
        given, share = list(once.values()), self.config.mix_share
        count = len(given) if share is None else min(len(given), round(len(found) * share / (1 - share)))
        rng = Random(f"{self.config.seed} mix")  # noqa: S311  no secret
        chosen = sorted(rng.sample(range(len(given)), count))
        ledger.keep(count)
        if count < len(given):
            ledger.drop("over_share", len(given) - count)
        return [given[number].trajectory for number in chosen]


# Labels: what an expert or a stronger model would have replied at each turn of a recorded episode.
# The expert is asked in the states that the episode went through, restored by one replay. A model is asked about the
# recorded conversation, so it needs no environment.

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


async def expert_labels(item: SourcedTrajectory, environment_of: EnvironmentOf, told: set[str]) -> list[Label]:
    """One label for each turn, from the expert of the episode's environment."""
    trajectory, environment_class = item.trajectory, environment_of(item)
    if environment_class is None:
        return _unlabelled(trajectory, [], "environment_unknown")
    found: dict[int, Label] = {}
    reason = ""
    try:
        async with aclosing(rounds(lambda task: Isolated(environment_class, task), trajectory)) as states:
            async for at, environment in states:
                text = await environment.expert()
                own, reply = trajectory.turns[at].reply, Message(role="assistant", content=text or "")
                if text is None or reply.empty:
                    found[at] = Label(None, reason=NO_EXPERT if text is None else EMPTY)
                    continue
                label = await _compared(own, reply, environment)
                accepted = not label.same_action and await environment.accepts(own)
                found[at] = replace(label, accepted=accepted)
    except ReplayError:
        reason = "cannot_replay"
    except EnvironmentFailedError as error:
        reason = _failed(item, error, told)
    found |= {at: Label(None, reason="own_prompt") for at, turn in enumerate(trajectory.turns) if turn.prompt}
    return [found.get(at, Label(None, reason=reason)) for at in range(len(trajectory.turns))]


async def model_labels(
    item: SourcedTrajectory, agent: ModelAgent, environment_of: EnvironmentOf, seed: int, told: set[str]
) -> list[Label]:
    """One label for each turn, from a model in this process or on a server."""
    trajectory, environment_class, found = item.trajectory, environment_of(item), list[Label]()
    # The episode's environment is created but not started: it knows how to read a reply.
    environment = None if environment_class is None else Isolated(environment_class, trajectory.task)
    try:
        if environment is not None:
            await environment.make()
    except BoughError:  # replies are then compared without it
        if environment is not None:
            await environment.close()
        environment = None
    chat = agent.engine.open(trajectory.id, seed=seed)
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
        return _unlabelled(trajectory, found, _failed(item, error, told))
    finally:
        chat.close()
        if environment is not None:
            await environment.close()
    return found


async def _compared(own: Message, other: Message, environment: Isolated | None) -> Label:
    """A label, compared with the agent's own reply by the action: what is said around it does not count."""
    left, right = Reply.of(own), Reply.of(other)
    actions: list[str | None] = [None, None]
    for number, reply in enumerate((left, right)):
        with suppress(MalformedError):
            actions[number] = reply.parsed.action if environment is None else await environment.action_in(reply)
    same = left.strip() == right.strip() or (actions[0] is not None and actions[0] == actions[1])
    return Label(other, actions[1], same)


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
