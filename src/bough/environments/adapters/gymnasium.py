"""Gymnasium's environments for language models: `gymnasium:FrozenLake-v1`.

The agent reads the text that the environment renders (`ansi`), or its observation in words
or numbers. It answers with the name of an action, or with free text where the actions are
text. The rules come from the environment's docstring, and so do the names of the actions.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
from gymnasium.envs.registration import load_env_creator
from gymnasium.spaces import Discrete, Space, Text, flatdim
from pydantic import Field, JsonValue

from bough.chat.actions import spoken
from bough.chat.tool_calls import Reply
from bough.config.base import Config
from bough.environments.adapters.names import seeded_tasks, subclass
from bough.environments.base import Environment, EnvironmentFailedError, Observation
from bough.errors import InputError, did_you_mean, short_repr
from bough.types import Task

# Of an environment that sets no limit itself.
MAX_TURNS = 100
# A vector with more numbers than this is not something to read.
MAX_NUMBERS = 32
# Every step costs something here, and only the goal ends an episode.
GOAL_ENDS = ("CliffWalkingEnv", "TaxiEnv")


class GymnasiumEnvironment(Environment):
    """An environment of Gymnasium with text or discrete actions."""

    gym_id: ClassVar[str] = ""
    renders_text: ClassVar[bool] = False

    class Options(Config):
        """Which tasks to make."""

        arguments: dict[str, JsonValue] = Field(
            {}, description="arguments of gymnasium.make, such as {is_slippery: false}"
        )
        instructions: str | None = Field(None, description="what the agent is told instead of the documented rules")

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        yield from seeded_tasks(split, seed, options.model_dump(exclude_defaults=True))

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        options = self.Options(**{name: task.data[name] for name in self.Options.model_fields if name in task.data})
        mode = {"render_mode": "ansi"} if self.renders_text else {}
        arguments: dict[str, Any] = {**mode, **options.arguments}
        self.gym: gymnasium.Env[Any, Any] = gymnasium.make(self.gym_id, disable_env_checker=True, **arguments)
        document = GymDocument.of(self.gym)
        self.actions = self._action_names(document)
        self.rendered = self.renders_text and not isinstance(self.gym.observation_space, Text)
        if not self.rendered and _size(self.gym.observation_space) > MAX_NUMBERS:
            raise InputError(f"{self.name}: the observations are {self.gym.observation_space}, which is not text")
        self.returned = 0.0
        self.rules = options.instructions or document.rules(legend_of(self.gym, rendered=self.rendered))

    def start(self) -> Observation:
        seen, _ = self.gym.reset(seed=self.task.seed)
        return Observation.begin(f"{self.rules}\n\n{self._how()}".strip(), self._show(seen))

    def step(self, reply: Reply) -> Observation:
        action = self._read(spoken(reply).strip())
        if action is None:
            return Observation.say(self._how(), error="malformed")
        seen, given, *ends, info = self.gym.step(action)
        said = self.actions[action - self._first] if self.actions else str(action)
        terminated, truncated = map(_flag, ("terminated", "truncated"), ends)
        reward = _number(given)
        self.returned += reward
        success = self._won(terminated, reward, info) if terminated or truncated else None
        return Observation.say(
            self._show(seen),
            reward=reward,
            terminated=terminated,
            truncated=truncated and not terminated,
            success=success,
            action=said,
        )

    def close(self) -> None:
        self.gym.close()

    def choices(self) -> Sequence[str]:
        return self.actions

    def _action_names(self, document: GymDocument) -> list[str]:
        """The names of discrete actions; none where actions are text."""
        space = self.gym.action_space
        if isinstance(space, Text):
            return []
        if isinstance(space, Discrete):
            return document.actions(range(int(space.start), int(space.start + space.n)))
        raise InputError(f"{self.name}: the actions are {space}; an agent can only choose among names or write text")

    @property
    def _first(self) -> int:
        return int(getattr(self.gym.action_space, "start", 0))

    def _read(self, text: str) -> Any:
        """The action that a reply names; None where it names none."""
        if not self.actions:
            return text if text and self.gym.action_space.contains(text) else None
        index = read_action(text, self.actions)
        return None if index is None else index + self._first

    def _how(self) -> str:
        if self.actions:
            return f"Answer with one of these actions: {', '.join(self.actions)}."
        space = self.gym.action_space
        limit = f" of at most {space.max_length} characters" if isinstance(space, Text) else ""
        return f"Answer with the text{limit} that you want to send."

    def _show(self, seen: Any) -> str:
        return show(self.gym, seen, rendered=self.rendered)

    def _won(self, terminated: bool, reward: float, info: dict[str, Any]) -> bool:
        """Gymnasium has no word for success: it is in the info, or it follows from the rewards."""
        for name in ("is_success", "success"):
            if name in info:
                return _flag(name, info[name])
        if type(self.gym.unwrapped).__name__ in GOAL_ENDS:
            return terminated
        threshold = self.gym.spec.reward_threshold if self.gym.spec is not None else None
        return terminated and reward > 0 if threshold is None else self.returned >= threshold


def adapt(name: str) -> type[Environment]:
    """The environment that Gymnasium has registered under this id."""
    try:
        spec = gymnasium.spec(name)
    except ImportError as error:
        raise InputError(f"environment 'gymnasium:{name}': {error}") from None
    except gymnasium.error.Error:
        nearest = did_you_mean(name, list(gymnasium.registry))
        raise InputError(f"Gymnasium has no environment {name!r}{nearest}") from None
    creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    return subclass(
        GymnasiumEnvironment,
        f"{name} of Gymnasium.",
        gym_id=name,
        max_turns=spec.max_episode_steps or MAX_TURNS,
        renders_text="ansi" in getattr(creator, "metadata", {}).get("render_modes", ()),
    )


def _flag(name: str, value: Any) -> bool:
    """True or False, also as a number or one of NumPy's."""
    if value not in (0, 1):
        raise EnvironmentFailedError(f"{name} is {short_repr(value)}; it must be True or False")
    return bool(value)


def _number(reward: Any) -> float:
    if isinstance(reward, str | bytes):
        raise EnvironmentFailedError(f"the reward is {short_repr(reward)}; it must be a number")
    return float(reward)


def _size(space: Space[Any]) -> int:
    """How many numbers or words an observation has. A Discrete counts as one, whatever its range."""
    if isinstance(space, gymnasium.spaces.Dict):
        return sum(map(_size, space.spaces.values()))
    if isinstance(space, gymnasium.spaces.Tuple):
        return sum(map(_size, space.spaces))
    return 1 if isinstance(space, Discrete | Text) else flatdim(space)


# Gymnasium in words: what an environment's docstring says, its observations as text, the action in a reply.
# Docstrings of Gymnasium have a section per topic ("## Action Space"); the list in that one, `- 0: Move left`, names
# the actions.

SECTION = re.compile(r"^[ \t]*##[ \t]+(.+?)[ \t]*$", re.MULTILINE)
ACTION = re.compile(r"^[ \t]*[-*][ \t]*(\d+)[ \t]*:[ \t]*(.+?)[ \t]*$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)|<[^>]+>")
# Text of another background colour marks where the player is.
MARKED = re.compile(r"\x1b\[(?:[\d;]*;)?4[0-7](?:;[\d;]*)?m(.*?)\x1b\[0m")
COLOUR = re.compile(r"\x1b\[[\d;]*m")


@dataclass(frozen=True)
class GymDocument:
    """An environment's docstring by sections; "" is what precedes the first."""

    sections: Mapping[str, str]

    @classmethod
    def of(cls, gym: gymnasium.Env[Any, Any]) -> GymDocument:
        text = inspect.getdoc(type(gym.unwrapped)) or ""
        first, *rest = SECTION.split(LINK.sub(r"\1", text))
        sections = {name.lower(): body.strip() for name, body in zip(rest[::2], rest[1::2], strict=True)}
        return cls({"": first.strip(), **sections})

    def rules(self, legend: str | None) -> str:
        """What the agent needs to know: the rules, and the `legend` of a picture or else the meaning of the numbers."""
        seen = self.sections.get("observation space") if legend is None else legend
        return "\n\n".join(filter(None, [self.sections[""], self.sections.get("description"), seen]))

    def actions(self, numbers: range) -> list[str]:
        """The names of the actions, or their numbers where the docstring does not name all of them."""
        named = {
            int(number): " ".join(re.sub(r"\([^)]*\)|`", "", name).lower().split())
            for number, name in ACTION.findall(self.sections.get("action space", ""))
        }
        names = [named.get(number, "") for number in numbers]
        if not all(names) or len(set(names)) < len(names):
            return [str(number) for number in numbers]
        shorter = [name.removeprefix("move ") for name in names]
        return shorter if all(name.startswith("move ") for name in names) else names


def show(gym: gymnasium.Env[Any, Any], seen: Any, *, rendered: bool) -> str:
    """An observation as the agent reads it."""
    words = DESCRIPTIONS.get(type(gym.unwrapped).__name__)
    if words is not None:
        return str(words(gym.unwrapped, seen))
    if rendered:
        picture = str(gym.render() or "")
        return COLOUR.sub("", MARKED.sub(r"[\1]", picture)).strip("\n")
    return _plain(seen)


def _plain(seen: Any) -> str:
    if isinstance(seen, str):
        return seen
    if isinstance(seen, Mapping):
        return "\n".join(f"{name}: {_plain(value)}" for name, value in seen.items())
    if isinstance(seen, tuple | list):
        return f"({', '.join(map(_plain, seen))})"
    if hasattr(seen, "tolist"):
        values = seen.tolist()
        return _plain(values) if isinstance(values, list) else _plain_number(values)
    return _plain_number(seen)


def _plain_number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _taxi(gym: Any, seen: Any) -> str:
    """Taxi's picture says who is where by colours alone."""
    row, column, passenger, destination = gym.decode(int(seen))
    places = ("Red", "Green", "Yellow", "Blue", "the taxi")
    landmarks = ", ".join(f"{name} ({r}, {c})" for name, (r, c) in zip(places, gym.locs, strict=False))
    picture = "\n".join(line.tobytes().decode() for line in gym.desc)
    return (
        f"{picture}\nRows count from the top and columns from the left, both from 0. "
        f"The letters are the landmarks (row, column): {landmarks}.\n"
        f"The taxi is at ({row}, {column}). The passenger is in {places[passenger]}. "
        f"The destination is {places[destination]}."
    )


DESCRIPTIONS = {"TaxiEnv": _taxi}
# What the letters of a picture mean.
LEGENDS = {
    "FrozenLakeEnv": "S is the start, F is frozen, H is a hole, G is the goal. Brackets mark where you are.",
    "CliffWalkingEnv": "x is where you are, C is the cliff, T is the goal, o is free.",
}


def legend_of(gym: gymnasium.Env[Any, Any], *, rendered: bool) -> str | None:
    """How to read what `show` returns; None where it shows plain numbers."""
    name = type(gym.unwrapped).__name__
    return LEGENDS.get(name, "") if rendered or name in DESCRIPTIONS else None


def read_action(text: str, actions: Sequence[str]) -> int | None:
    """The index of the action that a reply names. Models reason aloud before they commit, so the last one counts."""
    longest_first = sorted(actions, key=len, reverse=True)
    named = re.findall(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)", text.lower())
    if named:
        return list(actions).index(named[-1])
    return int(text) if text.isdecimal() and len(text) < 6 and int(text) < len(actions) else None
