"""An expert: the next command and the thought that leads to it, from any state of a game.

The expert knows only what its memory contains, so that whoever reads the same texts can decide as it does: of a
drawer that was not shown it assumes that it is closed, and that it stands at a spot of its own. It searches where
things are usually kept, the best chance per move first, and of equal places the lowest number. A thought first
names what is needed and then what is known of it, in the order in which a reader would look it up. The expert
plans again at every turn, so it can also continue an episode that another agent began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from typing import NamedTuple

from bough.worlds.household import engine as goals
from bough.worlds.household.engine import Action, World
from bough.worlds.household.game import NOWHERE
from bough.worlds.household.generate import APPLIANCES, likely, rooms

# The chance to find a thing where it was never seen: in a receptacle that fits it, and in one that does not.
RARE, ODD = 0.002, 0.0002
STATES = {"C": "clean", "H": "hot", "K": "cool"}
VERBS = {"C": "clean", "H": "heat", "K": "cool"}


class Move(NamedTuple):
    """A command and the reason for it. `wanted` is the type of thing that it searches for, if it does."""

    command: str
    thought: str
    wanted: str = ""


class Expert:
    """Plays by what its memory contains."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.world, self.game = memory, memory.world, memory.world.game
        self.goal = self.game.goal

    def next(self) -> Move | None:
        """What to do now; None if the game is won or cannot be won any more."""
        held = self.world.held
        if goals.met(self.world):
            return None
        if held is None:
            return self._fetch()
        if held not in self._candidates():
            return self._leave(held)
        if self.goal.kind == "look_at_obj_in_light":
            return self._light(held)
        return self._deliver(held) if goals.ready(self.world, held) else self._change(held)

    def accepts(self, action: Action) -> bool:
        """Whether an action is as good as the expert's own: it looks into another place where such things are kept.

        The order of a search hardly matters, but a closed place at hand is opened first.
        """
        move = self.next()
        if move is None or not move.wanted or action.receptacle < 0:
            return False
        unseen = {i for i, one in enumerate(self.game.receptacles) if likely(move.wanted, one.type)} - self.memory.seen
        if action.receptacle not in unseen:
            return False
        closed = unseen & self.memory.shown
        if action.verb == "go" and not closed.isdisjoint(self.memory.at_hand):
            return False
        return action.verb == "open" or (action.verb in SHOWING and action.receptacle not in closed)

    def _candidates(self) -> list[int]:
        """The things that can satisfy the goal."""
        change = goals.CHANGES.get(self.goal.kind)
        needed = {"p", change[0]} if change else {"p"}
        return [i for i in sorted(self.world.candidates) if needed <= set(self.game.things[i].traits)]

    def _fetch(self) -> Move | None:
        target = self._target()
        stays = goals.placed(self.world, target) if target is not None else []
        need = f"I need another {self.goal.object}." if stays else f"I need {_one(self.goal.object)}."
        for thing in self._candidates():
            for receptacle in self.memory.where(thing):
                if thing in stays:
                    continue
                name, where = self.game.things[thing].name, self._name(receptacle)
                if not self._at(receptacle):
                    return Move(f"go to {where}", f"{need} I saw {name} at {where}, so I go there.")
                if not self.world.accessible(receptacle):
                    return Move(f"open {where}", f"{need} The {name} is in {where}, which is closed, so I open it.")
                return Move(f"take {name} from {where}", f"{need} Here is {name}, so I take it.")
        return self._search(self.goal.object, need)

    def _light(self, held: int) -> Move | None:
        need = f"I hold {self.game.things[held].name} and need {_one(self.goal.target)}."
        for lamp, thing in enumerate(self.game.things):
            if thing.type != self.goal.target or "t" not in thing.traits:
                continue
            for receptacle in self.memory.where(lamp):
                where = self._name(receptacle)
                if not self._at(receptacle):
                    return Move(f"go to {where}", f"{need} I saw {thing.name} at {where}, so I go there.")
                return Move(f"use {thing.name}", f"{need} Here is {thing.name}, so I use it.")
        return self._search(self.goal.target, need)

    def _change(self, held: int) -> Move | None:
        state, name = goals.CHANGES[self.goal.kind][1], self.game.things[held].name
        wanted = APPLIANCES[self.goal.kind]
        found = [i for i, receptacle in enumerate(self.game.receptacles) if receptacle.type == wanted]
        if not found:
            return None
        appliance = next((i for i in found if self._at(i)), found[-1])
        where = self._name(appliance)
        if not self._at(appliance):
            return Move(f"go to {where}", f"I have {name}. It has to be {STATES[state]} first, so I go to {where}.")
        return Move(f"{VERBS[state]} {name} with {where}", f"I am at {where} with {name}. I {VERBS[state]} it now.")

    def _deliver(self, held: int) -> Move | None:
        name, target = self.game.things[held].name, self._target(held)
        if target is None:
            return None
        change = goals.CHANGES.get(self.goal.kind)
        have = f"The {name} is {STATES[change[1]]}" if change else f"I have {name}"
        where = self._name(target)
        if not self._at(target):
            return Move(f"go to {where}", f"{have}. I bring it to {where}.")
        if target not in self.memory.shown:
            return Move(f"examine {where}", f"{have}, and I am at {where} already. I see whether it is open.")
        if not self.world.accessible(target):
            return Move(f"open {where}", f"{have}, but {where} is closed. I open it.")
        command = self.game.wording.put_command.format(o=name, r=where)
        return Move(command, f"{have}, and I am at {where}. I put it down here.")

    def _leave(self, held: int) -> Move | None:
        """Puts down a thing that is not needed, in the nearest receptacle that takes it."""
        name = self.game.things[held].name
        fitting = [i for i in range(len(self.game.receptacles)) if self.world.fits(held, i)]
        if not fitting:
            return None
        target = min(fitting, key=lambda i: (not self._at(i), not self._seems_open(i), i))
        where = self._name(target)
        if not self._at(target):
            return Move(f"go to {where}", f"I carry {name}, which I do not need. I can leave it at {where}.")
        if target not in self.memory.shown:
            return Move(f"examine {where}", f"I am at {where} already. I see whether I can leave {name} here.")
        if not self.world.accessible(target):
            return Move(f"open {where}", f"I want to leave {name} here, so I open {where}.")
        command = self.game.wording.put_command.format(o=name, r=where)
        return Move(command, f"I do not need {name}. I put it down to have my hand free.")

    def _search(self, wanted: str, need: str) -> Move | None:
        places = enumerate(self.game.receptacles)
        unseen = [i for i, one in places if i not in self.memory.seen and one.place != NOWHERE]
        if not unseen:
            return None
        types = Counter(receptacle.type for receptacle in self.game.receptacles)

        def worth(i: int) -> tuple[float, int]:
            """The chance to find such a thing there, per move that the look takes; then the lowest number."""
            type_ = self.game.receptacles[i].type
            chance = likely(wanted, type_) / types[type_] + (RARE if wanted in self.game.fits.get(type_, ()) else ODD)
            return chance / max((not self._at(i)) + (not self._seems_open(i)), 1), -self._number(i)

        best = max(unseen, key=worth)
        where, last = self._name(best), self.memory.last
        if not self._at(best):
            thought = f"It may be at {where}, so I look there."
            if last is not None and not any(self.game.things[i].type == wanted for i in self.world.contents[last]):
                thought = f"There is none at {self._name(last)}, so I look at {where}."
            return Move(f"go to {where}", f"{need} {thought}", wanted)
        if best in self.memory.shown:  # and not seen
            return Move(f"open {where}", f"{need} The {where} is closed, so I open it.", wanted)
        return Move(f"examine {where}", f"{need} I am at {where} already, so I examine it.", wanted)

    def _target(self, held: int | None = None) -> int | None:
        """The receptacle to bring things to: where the first one lies already, else the easiest to reach."""
        fitting = [i for i in self.world.targets if held is None or self.world.fits(held, i)]

        def trouble(i: int) -> tuple[int, bool, bool, int]:
            there = len(goals.placed(self.world, i)) if i in self.memory.seen else 0
            if there:  # the same choice from everywhere: with one thing in each of two, it must not change on the way
                return -there, False, False, self._number(i)
            return 0, not self._seems_open(i), not self._at(i), self._number(i)

        return min(fitting, key=trouble, default=None)

    def _at(self, receptacle: int) -> bool:
        return receptacle in self.memory.at_hand

    def _seems_open(self, receptacle: int) -> bool:
        """Whether one can reach into it, as far as that is known: a type that may have a door has one."""
        if receptacle in self.memory.shown:
            return self.world.accessible(receptacle)
        return self.game.receptacles[receptacle].type not in rooms().openable

    def _name(self, receptacle: int) -> str:
        return self.game.receptacles[receptacle].name

    def _number(self, receptacle: int) -> int:
        return int(self._name(receptacle).rpartition(" ")[2] or 0)


def _one(thing: str) -> str:
    return f"an {thing}" if thing[0] in "aeiou" else f"a {thing}"


# What an agent has been shown so far: the part of the state that it may know.
# The furniture is named at the start. What lies in a receptacle, and whether it is closed, is known once it was
# shown; from then on only the agent itself changes it. Which receptacles stand at one spot is never said at the
# start: an agent that goes to one that is at hand already is told that nothing happens.

SHOWING = ("go", "open", "examine receptacle")
# Actions that name a receptacle of the current place.
AT_HAND = (*SHOWING, "close", "take", "put", "clean", "heat", "cool")


class Memory:
    """The receptacles that were looked into, the last of them, those known to be open or closed, those at hand."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: set[int] = set()
        self.shown: set[int] = set()
        self.last: int | None = None
        self.at_hand: set[int] = set()

    def note(self, action: Action) -> None:
        """Remembers what an action showed."""
        if action.verb == "go":
            self.at_hand = set()
        if action.verb == "look":
            self.at_hand.update(self.world.here)
        if action.verb in AT_HAND:
            self.at_hand.add(action.receptacle)
        if action.verb in SHOWING:
            self.shown.add(action.receptacle)
            if self.world.accessible(action.receptacle):
                self.seen.add(action.receptacle)
                self.last = action.receptacle

    def refused(self, command: str) -> None:
        """Remembers that nothing happened: a receptacle that one cannot go to is at hand."""
        for receptacle in self.world.here:
            if command.strip() == f"go to {self.world.game.receptacles[receptacle].name}":
                self.at_hand.add(receptacle)

    def where(self, thing: int) -> list[int]:
        """The receptacles in which the thing is known to lie."""
        return [receptacle for receptacle in sorted(self.seen) if thing in self.world.contents[receptacle]]

    def knows(self, things: Set[int]) -> bool:
        """Whether the agent knows where one of these is: in its hand, or where it saw it."""
        if self.world.held in things:
            return True
        contents = self.world.contents
        return any(not things.isdisjoint(contents[receptacle]) for receptacle in self.seen)


# Progress in a game, 0 to 1: a dense signal for agents that do not win yet.


def progress(memory: Memory) -> float:
    """The share of the task that is done.

    A right thing is to be found, taken, changed where the task says so, and placed; of two
    things each counts for a half. In the light task the used lamp at hand comes last.
    """
    world = memory.world
    goal = world.game.goal
    candidates = world.candidates
    held = world.held if world.held in candidates else None
    if goal.kind == "look_at_obj_in_light":
        if goals.met(world):
            return 1.0
        found = memory.knows(candidates)
        return (found + (held is not None) + goals.lit(world)) / 3
    best = goals.best_placed(world)
    if len(best) >= goals.needed(world):
        return 1.0
    found = memory.knows(candidates.difference(best))
    changing = goal.kind in goals.CHANGES
    changed = changing and held is not None and goals.ready(world, held)
    share = (found + (held is not None) + changed) / (4 if changing else 3)
    return (len(best) + share) / 2 if goal.kind == "pick_two_obj_and_place" else share
