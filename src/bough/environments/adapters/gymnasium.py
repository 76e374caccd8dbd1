"""Gymnasium's environments for language models: `gymnasium:FrozenLake-v1`.

The agent reads the text that the environment renders (`ansi`), or its observation in words
or numbers. It answers with the name of an action, or with free text where the actions are
text. The rules come from the environment's docstring, and so do the names of the actions.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
from gymnasium.envs.registration import load_env_creator
from gymnasium.spaces import Discrete, Space, Text, flatdim
from pydantic import Field, JsonValue

from bough.chat.tool_calls import Reply, spoken
from bough.config.base import Config
from bough.environments.base import Environment, EnvironmentFailedError, Observation
from bough.environments.registry import seeded_tasks, subclass
from bough.errors import InputError, did_you_mean, short_repr
from bough.types import Task

# Of an environment that sets no limit itself.
MAX_TURNS = 100
# A vector with more numbers than this is not something to read.
MAX_NUMBERS = 32
# Every step costs something here, and only the goal ends an episode.
TAXI = "TaxiEnv"
GOAL_ENDS = ("CliffWalkingEnv", TAXI)


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
        self.kind = type(self.gym.unwrapped).__name__
        self.rendered = self.renders_text and not isinstance(self.gym.observation_space, Text)
        if not self.rendered and _size(self.gym.observation_space) > MAX_NUMBERS:
            raise InputError(f"{self.name}: the observations are {self.gym.observation_space}, which is not text")
        # Docstrings of Gymnasium have a section per topic ("## Action Space").
        about, *rest = SECTION.split(LINK.sub(r"\1", inspect.getdoc(type(self.gym.unwrapped)) or ""))
        sections = {name.lower(): body.strip() for name, body in zip(rest[::2], rest[1::2], strict=True)}
        space, self.first, self.actions = self.gym.action_space, 0, list[str]()
        if isinstance(space, Discrete):
            self.first = int(space.start)
            self.actions = action_names(sections.get("action space", ""), range(self.first, int(self.first + space.n)))
        elif not isinstance(space, Text):
            raise InputError(
                f"{self.name}: the actions are {space}; an agent can only choose among names or write text"
            )
        pictured = self.rendered or self.kind == TAXI
        meaning = LEGENDS.get(self.kind) if pictured else sections.get("observation space")
        documented = "\n\n".join(filter(None, [about.strip(), sections.get("description"), meaning]))
        self.rules = options.instructions or documented
        self.returned = 0.0

    def start(self) -> Observation:
        seen, _ = self.gym.reset(seed=self.task.seed)
        return Observation.begin(f"{self.rules}\n\n{self._how()}".strip(), self._show(seen))

    def step(self, reply: Reply) -> Observation:
        action = self._read(spoken(reply).strip())
        if action is None:
            return Observation.say(self._how(), error="malformed")
        seen, given, *ends, info = self.gym.step(action)
        said = self.actions[action - self.first] if self.actions else str(action)
        terminated, truncated = map(_flag, ("terminated", "truncated"), ends)
        if isinstance(given, str | bytes):
            raise EnvironmentFailedError(f"the reward is {short_repr(given)}; it must be a number")
        reward = float(given)
        self.returned += reward
        return Observation.say(
            self._show(seen),
            reward=reward,
            terminated=terminated,
            truncated=truncated and not terminated,
            success=self._won(terminated, reward, info) if terminated or truncated else None,
            action=said,
        )

    def close(self) -> None:
        self.gym.close()

    def choices(self) -> Sequence[str]:
        return self.actions

    def _read(self, text: str) -> Any:
        """The action that a reply names; None where it names none."""
        if not self.actions:
            return text if text and self.gym.action_space.contains(text) else None
        index = read_action(text, self.actions)
        return None if index is None else index + self.first

    def _how(self) -> str:
        if self.actions:
            return f"Answer with one of these actions: {', '.join(self.actions)}."
        limit = getattr(self.gym.action_space, "max_length", "any number of")
        return f"Answer with the text of at most {limit} characters that you want to send."

    def _show(self, seen: Any) -> str:
        """An observation as the agent reads it."""
        if self.kind == TAXI:  # its picture says who is where by colours alone
            gym: Any = self.gym.unwrapped
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
        if self.rendered:
            return COLOUR.sub("", MARKED.sub(r"[\1]", str(self.gym.render() or ""))).strip("\n")
        return _plain(seen)

    def _won(self, terminated: bool, reward: float, info: dict[str, Any]) -> bool:
        """Gymnasium has no word for success: it is in the info, or it follows from the rewards."""
        for name in ("is_success", "success"):
            if name in info:
                return _flag(name, info[name])
        if self.kind in GOAL_ENDS:
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


def _size(space: Space[Any]) -> int:
    """How many numbers or words an observation has. A Discrete counts as one, whatever its range."""
    if isinstance(space, gymnasium.spaces.Dict):
        return sum(map(_size, space.spaces.values()))
    if isinstance(space, gymnasium.spaces.Tuple):
        return sum(map(_size, space.spaces))
    return 1 if isinstance(space, Discrete | Text) else flatdim(space)


# Gymnasium in words: the names of actions, observations as text, the action in a reply.

SECTION = re.compile(r"^[ \t]*##[ \t]+(.+?)[ \t]*$", re.MULTILINE)
ACTION = re.compile(r"^[ \t]*[-*][ \t]*(\d+)[ \t]*:[ \t]*(.+?)[ \t]*$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)|<[^>]+>")
# Text of another background colour marks where the player is.
MARKED = re.compile(r"\x1b\[(?:[\d;]*;)?4[0-7](?:;[\d;]*)?m(.*?)\x1b\[0m")
COLOUR = re.compile(r"\x1b\[[\d;]*m")
# What the letters of a picture mean.
LEGENDS = {
    "FrozenLakeEnv": "S is the start, F is frozen, H is a hole, G is the goal. Brackets mark where you are.",
    "CliffWalkingEnv": "x is where you are, C is the cliff, T is the goal, o is free.",
}


def action_names(section: str, numbers: range) -> list[str]:
    """The names in the docstring's list of actions, `- 0: Move left`; their numbers where not all are named."""
    named = {
        int(number): " ".join(re.sub(r"\([^)]*\)|`", "", name).lower().split())
        for number, name in ACTION.findall(section)
    }
    names = [named.get(number, "") for number in numbers]
    if not all(names) or len(set(names)) < len(names):
        return [str(number) for number in numbers]
    shorter = [name.removeprefix("move ") for name in names]
    return shorter if all(name.startswith("move ") for name in names) else names


def _plain(seen: Any) -> str:
    """Values as text: numbers with four digits, mappings line by line."""
    seen = seen.tolist() if hasattr(seen, "tolist") else seen
    if isinstance(seen, Mapping):
        return "\n".join(f"{name}: {_plain(value)}" for name, value in seen.items())
    if isinstance(seen, tuple | list):
        return f"({', '.join(map(_plain, seen))})"
    return f"{seen:.4g}" if isinstance(seen, float) else str(seen)


def read_action(text: str, actions: Sequence[str]) -> int | None:
    """The index of the action that a reply names. Models reason aloud before they commit, so the last one counts."""
    longest_first = sorted(actions, key=len, reverse=True)
    named = re.findall(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)", text.lower())
    if named:
        return list(actions).index(named[-1])
    return int(text) if text.isdecimal() and len(text) < 6 and int(text) < len(actions) else None
