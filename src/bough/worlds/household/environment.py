"""Household: find a thing, perhaps clean, heat or cool it, and bring it where it belongs.

ALFWorld as AgentBench has agents play it: the agent reads the game's text and answers with
`THOUGHT:` and `ACTION:` lines; a command that is not possible now has no effect.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field

from bough.chat import tool_calls
from bough.chat.tool_calls import MalformedError, Reply
from bough.config.base import Config
from bough.environments.base import Environment, MistakeRules, Observation
from bough.errors import InputError
from bough.types import Task
from bough.worlds.household import engine, generate
from bough.worlds.household.engine import GameEngine
from bough.worlds.household.expert import Expert, Memory, progress
from bough.worlds.household.game import KINDS, Game, Kind, Wording
from bough.worlds.household.mistakes import HouseholdRules

RULES = """\
You are in a household. At each turn you are told what you see, and you answer with one action. The actions are:
go to (receptacle)
open (receptacle)
close (receptacle)
take (object) from (receptacle)
{put}
examine (receptacle or object)
use (object)
heat (object) with (receptacle)
clean (object) with (receptacle)
cool (object) with (receptacle)
slice (object) with (object)
look
inventory

Name things with their numbers, as they are shown to you: mug 1, drawer 2. You can hold one object at a time. \
You see what lies in a closed receptacle once you have opened it. {end}; if an action cannot be taken, nothing happens.
"""
CLAIM = "task succeeded"
ENDS = "The episode ends by itself when the task is done"
CLAIMS = f"When the task is done, say so with the action: {CLAIM}"
HINT = "\nAVAILABLE ACTIONS: "
WON: dict[str, Any] = {"terminated": True, "success": True, "reward": 1.0}
PREMATURE: dict[str, Any] = {"terminated": True, "success": False, "stop": "premature_success", "reward": 0.0}


# Games that are kept: attempts at one task share it, and reading it takes as long as several steps.
MAX_GAMES = 256
_games: dict[str, tuple[dict[str, Any], Game]] = {}


def _game(task: Task) -> Game:
    data = task.data.get("game")
    if not isinstance(data, dict):
        raise InputError(f'task {task.id}: its data has no "game"; tasks of this environment contain the whole game')
    known = _games.get(task.id)
    if known is None or known[0] != data:
        if len(_games) >= MAX_GAMES:
            _games.clear()
        known = _games[task.id] = data, Game.from_data(data)
    return known[1]


class Household(Environment):
    """ALFWorld's text games: find, clean, heat, cool and place objects in a house.

    A game still answers after its end, like the original; only the first end counts.
    """

    name: ClassVar[str] = "household"
    max_turns: ClassVar[int] = 50
    reward_range = (0.0, 1.0)
    shares_loop: ClassVar[bool] = True
    shares_steps: ClassVar[bool] = True

    class Options(Config):
        """Which games, and how they are shown."""

        games: Path | None = Field(
            None, description="a game.tw-pddl file or a folder of them; unset: games are generated"
        )
        types: list[Kind] = Field(list(KINDS), min_length=1, description="which of the six task types")
        admissible: bool = Field(False, description="show the admissible commands after the newest observation")
        thoughts: bool = Field(True, description="ask for a thought before each action; else for the action alone")
        example: bool = Field(False, description="show a solved game in the rules")
        claim: bool = Field(
            False, description=f"the agent ends the game by saying `{CLAIM}`; else it ends by itself when it is won"
        )

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.engine = GameEngine(_game(task))
        self.memory = Memory(self.engine.world)
        self.claim = bool(task.data.get("claim"))
        self.thoughts = bool(task.data.get("thoughts", True))
        self.prompt = tool_calls.LINE_PROMPT if self.thoughts else tool_calls.ACTION_PROMPT
        self.ended: dict[str, Any] = {}

    def copy(self) -> Self:
        world = self.engine.world
        unchanged = (self.task, world.game, world.at, world.targets, world.candidates, world.ways)
        return deepcopy(self, {id(kept): kept for kept in unchanged})

    @classmethod
    def tasks(cls, options: Config, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        assert isinstance(options, cls.Options)
        # Recorded tasks stay equal: they have an expert's name, and these two only where they are not the default.
        shown = {"admissible": options.admissible, "expert": "explore", "claim": options.claim}
        shown |= {"thoughts": False} if not options.thoughts else {}
        shown |= {"example": True} if options.example else {}
        if options.games is None:
            found = generate.generated(options.types, split, seed)
        else:
            found = generate.official(options.games, options.types, split, random.Random(seed))  # noqa: S311  no secret
        for identity, game in found:
            data = {"game": game.to_data(), "type": game.goal.kind, **shown}
            # A game from a file is the same whatever the seed, which only shuffles their order.
            yield Task(id=identity, environment=cls.name, seed=seed if options.games is None else None, data=data)

    async def start(self) -> Observation:
        put = self.engine.world.game.wording.put_command.format(o="(object)", r="(receptacle)")
        rules = f"{RULES.format(put=put, end=CLAIMS if self.claim else ENDS)}\n{self.prompt}"
        if self.task.data.get("example"):
            rules += f"\n\n{solved_game(self.engine.world.game.wording, thoughts=self.thoughts)}"
        intro = self.engine.intro.removeprefix(engine.BANNER)
        info = {**self._info("", self.engine.intro), "intro": self.engine.intro}
        return Observation.begin(rules, intro, hint=self._hint(), **self._facts(), info=info)

    async def step(self, reply: str) -> Observation:
        try:
            command = self._command(reply)
        except MalformedError as error:
            return self._answer(str(error), "", engine.NOTHING, error="malformed")
        if command.strip().lower().rstrip(".!") == CLAIM:
            self.ended = self.ended or (WON if self.engine.won else PREMATURE)
            return self._answer(engine.NOTHING, command, engine.NOTHING, action=command)
        text, action = self.engine.step(command)
        if action is None:
            self.memory.refused(command)
            return self._answer(text, command, text, action=command, error="invalid_action")
        self.memory.note(action)
        return self._answer(text, command, text, action=command)

    def _answer(self, said: str, command: str, text: str, **more: Any) -> Observation:
        if not self.ended and self.engine.won and not self.claim:
            self.ended = WON
        info = self._info(command, text)
        hint = None if self.ended else self._hint()
        return Observation.say(said, hint=hint, **self._facts(), info=info, **more, **self.ended)

    def _facts(self) -> dict[str, Any]:
        return {"progress": progress(self.memory), "state": self.engine.world.digest()}

    def _info(self, command: str, text: str) -> dict[str, Any]:
        return {"command": command, "feedback": text, "won": self.engine.won}

    def _hint(self) -> str | None:
        return HINT + ", ".join(self.choices()) if self.task.data.get("admissible") else None

    def say(self, action: str, thought: str = "") -> str:
        return tool_calls.write_line(action, thought if self.thoughts else "")

    def action_in(self, reply: Reply) -> str | None:
        try:
            return self._command(reply)
        except MalformedError:
            return None

    def _command(self, reply: str) -> str:
        """The command of a reply. Where no thought is asked for, a possible command needs no tag before it.

        Untrained small models write `go to shelf 1` or `GO TO SHELF 1` whatever the rules say about the form.
        """
        bare = reply.strip().lower()
        if not self.thoughts and bare in self.engine.commands:
            return bare
        return tool_calls.parse_line(reply, self.prompt).action

    def accepts(self, reply: Reply) -> bool:
        action = self.engine.commands.get((self.action_in(reply) or "").strip())
        return action is not None and Expert(self.memory).accepts(action)

    async def expert(self) -> str | None:
        if self.claim and self.engine.won and not self.ended:
            return self.say(CLAIM, "I have done what was asked, so the task is done.")
        move = Expert(self.memory).next()
        return None if move is None else self.say(move.command, move.thought)

    def choices(self) -> Sequence[str]:
        return [*self.engine.admissible, CLAIM] if self.claim else self.engine.admissible

    @classmethod
    def mistake_rules(cls) -> MistakeRules:
        return HouseholdRules()


# A solved game to show an agent that has seen none: written by hand, its task one of the training split's.

START = """\
You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a cart 1, and a garbagecan 1.

Your task is to: put some soapbottle in garbagecan."""
# Thought, command, what is seen then.
MOVES = """\
A soapbottle may be in the cabinet. | go to cabinet 1 | You arrive at cabinet 1. The cabinet 1 is closed.
I cannot see into it yet. | open cabinet 1 | You open the cabinet 1. The cabinet 1 is open. In it, you see a cloth 1, \
and a soapbottle 2.
There is a soapbottle. | take soapbottle 2 from cabinet 1 | You pick up the soapbottle 2 from the cabinet 1.
Now I bring it to the garbagecan. | go to garbagecan 1 | You arrive at garbagecan 1. On the garbagecan 1, you see \
nothing.
I put it in. | {put} | {seen}"""


def solved_game(wording: Wording, *, thoughts: bool) -> str:
    """The whole game as a conversation, in the words of an edition."""
    put, seen = (
        said.format(o="soapbottle 2", r="garbagecan 1") for said in (wording.put_command, wording.put_feedback)
    )
    shown = [f"An example of a whole game:\n{START}"]
    for move in MOVES.format(put=put, seen=seen).splitlines():
        thought, command, answer = move.split(" | ")
        shown += [tool_calls.write_line(command, thought if thoughts else ""), answer]
    return "\n".join(shown)
