"""Corrections: the agent's own episodes, trained on what should have been replied in them (DAgger).

Demonstrations show an expert's states only. An agent leaves them with its first mistake and
is then on its own. Here each turn of the agent's episodes has the label of an expert or a
stronger model as its correction. The agent's reply stays in the history, so that an episode
is one record and, in training, one tree.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from bough.config.corrections import EXPERT, CorrectionsConfig
from bough.curation.labels import ExpertLabeller, Label, Labeller, ModelLabeller
from bough.curation.lookup import EnvironmentLookup
from bough.curation.source import SourcedTrajectory
from bough.digest import text_digest
from bough.environments.isolated import shut_down
from bough.errors import InputError
from bough.ledger import Ledger
from bough.rollouts.agents import ModelAgent, make_agent
from bough.types import Trajectory, Turn

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

    @property
    def num_read(self) -> int:
        return len(self.filed)

    async def correct(self, agent: ModelAgent | None = None) -> list[Trajectory]:
        """Every episode that has something to train on, in its original order."""
        labeller: Labeller | None = None
        try:
            labeller = await self._labeller(agent)
            gate, done = asyncio.Semaphore(self.config.concurrency), 0
            label = labeller.labels

            async def labelled(item: SourcedTrajectory) -> list[Label]:
                nonlocal done
                async with gate:
                    found = await label(item)
                done += 1
                if self.tell is not None:
                    self.tell(done, len(self.filed))
                return found

            found = await asyncio.gather(*map(labelled, self.filed))
        finally:
            if labeller is not None:
                await labeller.close()
            for environment_class in self.lookup.opened:
                await shut_down(environment_class)
        kept = [self._corrected(item, labels) for item, labels in zip(self.filed, found, strict=True)]
        return [trajectory for trajectory in kept if trajectory is not None]

    async def _labeller(self, agent: ModelAgent | None) -> Labeller:
        config = self.config
        if agent is None and config.by == EXPERT:
            return ExpertLabeller(self.lookup.environment_of)
        made = agent or await make_agent(config.labeller.agent(config.by), config.sampling)
        if not isinstance(made, ModelAgent):
            raise InputError(f"--by {config.by}: it cannot label; give expert, a model or a server's address")
        return ModelLabeller(made, self.lookup.environment_of, config.seed)

    def _corrected(self, item: SourcedTrajectory, labels: list[Label]) -> Trajectory | None:
        """The episode with its corrections; None where no turn of it is trained."""
        turns = [
            self._turn(turn, label, times)
            for turn, label, times in zip(item.trajectory.turns, labels, _times(labels), strict=True)
        ]
        if not any(turn.trained for turn in turns):
            agrees = all(label.same_action or label.accepted for label in labels)
            self.ledger.drop("nothing_to_correct" if agrees else "no_correction")
            return None
        self.ledger.keep()
        by = {"source": item.place, "rule": "correction", "by": self.config.by}
        return item.trajectory.model_copy(update={"turns": turns, "info": {**item.trajectory.info, **by}})

    def _turn(self, turn: Turn, label: Label, times: int) -> Turn:
        """The turn with its label as the correction, or as context; `times` says how often in a row it was given."""
        if reason := self._untrained(label, times):
            self.turns.drop(reason)
            return turn.model_copy(update={"correction": None, "trained": False})
        assert label.reply is not None
        self.turns.keep()
        # The tokens of an identical reply are on record, unless it was cut off before its end.
        complete = turn.call is None or turn.call.finish == "stop"
        correction = None if complete and turn.reply == label.reply else label.reply
        return turn.model_copy(update={"correction": correction, "trained": True})

    def _untrained(self, label: Label, times: int) -> str:
        """Why a label is not trained on; empty if it is."""
        if label.reply is None:
            return label.reason
        self.labels[SAME if label.same_action else ACCEPTED if label.accepted else DIFFERENT] += 1
        if label.accepted:
            return "accepted"
        if label.same_action and self.config.where == "differ":
            return "same_action"
        return "repeated_label" if times > self.config.max_same_labels and not label.same_action else ""

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


def _times(labels: Sequence[Label]) -> list[int]:
    """How often in a row each label has been given by its turn, while the agent did something else."""
    found: list[int] = []
    ignored: str | None = None
    for label in labels:
        again = ignored is not None and label.action == ignored
        found.append(found[-1] + 1 if again else 1)
        ignored = None if label.same_action else label.action
    return found
