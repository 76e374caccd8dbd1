"""When two attempts are in the same state: same task, same start, same actions and observations since.

Only actions count, not the words around them: two replies that give different reasons
for one action lead to the same state, though to different histories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from pydantic import JsonValue

from bough.config.base import is_code
from bough.config.groups import make_options
from bough.curation.source import SourcedTrajectory
from bough.environments.base import Environment, MistakeRules, action_of
from bough.environments.mistakes import all_rules
from bough.environments.registry import find, find_listed
from bough.errors import InputError, did_you_mean
from bough.files import json_digest
from bough.types import Trajectory, Turn

State = str


def task_key(trajectory: Trajectory) -> State:
    """Equal for attempts that can be compared: the same task, the same first messages, the same tools."""
    task = trajectory.task
    return _digest((task.environment, task.id, task.seed), trajectory.start, trajectory.tools)


def states(trajectory: Trajectory, rules: MistakeRules) -> list[State]:
    """The environment's state before each turn, and after the last."""
    found = [task_key(trajectory)]
    for turn in trajectory.turns:
        # Ids of tool calls are random and say nothing about the environment.
        seen = [message.model_copy(update={"tool_call_id": None}) for message in turn.observation]
        stays = rules.without_effect(turn)
        found.append(found[-1] if stays else _digest(found[-1], action_of(turn), seen))
    return found


def first_difference(left: Sequence[Turn], right: Sequence[Turn]) -> int:
    """How many turns at the start are equal in every message."""
    return _common(((t.reply, t.observation) for t in left), ((t.reply, t.observation) for t in right))


def shared_actions(left: Sequence[Turn], right: Sequence[Turn]) -> int:
    """How many actions at the start are equal."""
    return _common(map(action_of, left), map(action_of, right))


def actions(turns: Iterable[Turn]) -> tuple[str, ...]:
    """What was done, in order."""
    return tuple(map(action_of, turns))


def _common(left: Iterable[object], right: Iterable[object]) -> int:
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(left, right, strict=False)))


def _digest(*parts: object) -> State:
    return json_digest(parts, size=16)


# Replays at a time: each may hold a page of a browser.
REPLAYS = 8


# The environments of recorded episodes, and the mistake rules that apply to them.
# A record may name an environment that is built in or installed. Code that a record names is never run: the user
# names it with `--environment`. `--rules` gives the rules of an environment to records that name none, such as files
# from elsewhere.

EnvironmentOf = Callable[[SourcedTrajectory], type[Environment] | None]
RulesOf = Callable[[SourcedTrajectory], MistakeRules]


@dataclass
class EnvironmentLookup:
    """Finds each record's environment once. `required`: an environment that is not installed is an error."""

    environment: str | None = None
    rules: str | None = None
    rule_options: Mapping[str, JsonValue] = field(default_factory=dict)
    required: bool = False
    _found: dict[str, type[Environment] | None] = field(default_factory=dict, init=False)
    _rules: dict[str | None, MistakeRules] = field(default_factory=dict, init=False)

    @property
    def opened(self) -> list[type[Environment]]:
        """The environments that episodes may have been replayed in."""
        return [found for found in self._found.values() if found is not None]

    def environment_of(self, item: SourcedTrajectory) -> type[Environment] | None:
        """The environment that an episode was played in; None where its task names none, or one not installed."""
        name = self.environment or item.trajectory.task.environment
        if not name:
            return None
        if name not in self._found:
            if not self.environment and is_code(name):
                raise InputError(
                    f"{item.file}:{item.line}: the task's environment is {name!r}. Code that a file names is not run; "
                    f"if you trust it, give --environment {name}"
                )
            self._found[name] = find(name) if self.environment else _installed(name, required=self.required)
        return self._found[name]

    def rules_of(self, item: SourcedTrajectory) -> MistakeRules:
        """The mistake rules for an episode: those of its environment, where that is known."""
        name = self._rules_name(item)
        if name not in self._rules:
            if name is not None and name in (self.rules, self.environment):
                found: type[Environment] | None = find(name)
            else:  # whatever a file names that is not installed here has no rules but the generic ones
                found = None if name is None or is_code(name) else _installed(name)
            self._rules[name] = MistakeRules() if found is None else found.mistake_rules()
        return self._rules[name]

    def learn(self, items: Sequence[SourcedTrajectory]) -> None:
        """Adapts each environment's rules to its episodes. Raises InputError for options that no rules have."""
        of_rules: dict[str | None, list[SourcedTrajectory]] = {}
        for item in items:
            of_rules.setdefault(self._rules_name(item), []).append(item)
        every = {name: self.rules_of(members[0]) for name, members in of_rules.items()}
        known = {option for rules in every.values() for option in type(rules).Options.model_fields}
        if unknown := [option for option in self.rule_options if option not in known]:
            raise InputError(
                f"--rule-options {unknown[0]} is not an option of these episodes' rules"
                f"{did_you_mean(unknown[0], sorted(known))}; --rules NAME chooses an environment's rules"
            )
        for name, rules in every.items():
            fields = type(rules).Options.model_fields
            options = {option: value for option, value in self.rule_options.items() if option in fields}
            trajectories = (item.trajectory for item in of_rules[name])
            self._rules[name] = rules.learn(trajectories, make_options(type(rules).Options, options))

    def check_reasons(self, reasons: Iterable[str], items: Iterable[SourcedTrajectory], also: Iterable[str]) -> None:
        """Raises InputError for a reason that neither the episodes' rules nor `also` give."""
        wanted = list(reasons)
        if not wanted:
            return
        distinct = {id(rules): rules for rules in map(self.rules_of, items)}
        known = {*also, *(reason for rules in distinct.values() for reason in all_rules(rules))}
        if unknown := [reason for reason in wanted if reason not in known]:
            raise InputError(
                f"no rule for these episodes gives the reason {unknown[0]!r}{did_you_mean(unknown[0], sorted(known))}; "
                "--rules NAME applies the rules of an environment that the episodes do not name"
            )

    def _rules_name(self, item: SourcedTrajectory) -> str | None:
        return self.rules or self.environment or item.trajectory.task.environment


def _installed(name: str, *, required: bool = False) -> type[Environment] | None:
    try:
        return find_listed(name)
    except InputError:
        if required:
            raise
        return None
