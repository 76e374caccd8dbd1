"""What to call next in a multi-turn task, also after calls that were not asked for.

The gold calls that are still missing are enough if other calls have changed nothing. Otherwise
those that did are undone first, where a back end has a function for that. Every plan is tried on
back ends of its own before it is advised, so nothing here has to know what a call changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from bough.types import ToolCall
from bough.worlds.functions import back_ends
from bough.worlds.functions.back_ends import CHANGES, changes
from bough.worlds.functions.conversation import MAX_STEPS, Conversation

Arguments = Mapping[str, Any]
Calls = list[ToolCall]


@dataclass
class Recovery:
    """Plans for one conversation. What a call changes is found out once."""

    conversation: Conversation
    timeout_s: float
    _harm: dict[str, bool] = field(default_factory=dict)

    async def next_calls(self) -> Calls:
        """The calls of the next reply; none if the user's turn is done, or nothing helps any more."""
        conversation = self.conversation
        missing = conversation.missing()
        if conversation.failure is not None or conversation.in_order or await self.wins(missing):
            return self._share(missing)
        undone = [call for _, inverse in reversed(await self.harmful()) for call in inverse]
        if undone and await self.wins([*undone, *missing]):
            return undone if self._steps_left > 1 else [*undone, *missing]
        if await self.wins(conversation.turn_gold):  # in another order they did something else
            return conversation.turn_gold
        if undone and await self.wins([*undone, *conversation.turn_gold]):
            return [*undone, *conversation.turn_gold]
        again = await self.begun_again(conversation.turn_calls)
        if again:
            return again if self._steps_left > 1 else [*again, *conversation.turn_gold]
        return self._share(missing)

    async def begun_again(self, made: Calls) -> Calls:
        """Calls that undo all that these calls of the turn have changed, so that the gold calls win; none if none do.

        Files and folders become what they were when the turn began, whatever led to them.
        """
        scenario, done = self.conversation.scenario, self.conversation.earlier_calls
        before, now = [await back_ends.files(scenario, calls, self.timeout_s) for calls in (done, [*done, *made])]
        files = changes(now, before) if before and now else []
        for inverses in await self._choices(made):
            again = [*(call for inverse in inverses for call in inverse), *files]
            if again and await self.wins([*made, *again, *self.conversation.turn_gold], alone=True):
                return again
        return []

    async def _choices(self, made: Calls) -> list[list[Calls]]:
        """What may be undone together, the last call first.

        A call may have an effect only after others, or none after others: first all that could have one are
        undone, then those that have one by themselves, then either without one of them.
        """
        known, spoiling = list[Calls](), list[Calls]()
        for place, call in reversed(list(enumerate(made))):
            if call.name not in CHANGES and (inverse := await self._inverse(call, made[:place])):
                known.append(inverse)
                if await self._spoils(call):
                    spoiling.append(inverse)
        fewer = [[*some[:n], *some[n + 1 :]] for some in (known, spoiling) for n in range(len(some))]
        return [known, spoiling, *fewer]

    async def harmful(self) -> list[tuple[ToolCall, Calls]]:
        """The calls of this turn that spoil the task, each with calls that undo it, or none if there are none."""
        if not await self.wins(self.conversation.turn_gold, alone=True):
            return []  # an earlier turn has changed what follows
        found = []
        made = self.conversation.turn_calls
        for call in self.conversation.unasked():
            if await self._spoils(call):
                before = made[: next(place for place, one in enumerate(made) if one is call)]
                found.append((call, await self._inverse(call, before)))
        return found

    @property
    def _steps_left(self) -> int:
        return MAX_STEPS - self.conversation.steps

    def _share(self, missing: Calls) -> Calls:
        """One call, or a few where more are missing than replies are left."""
        return missing[: ceil(len(missing) / max(1, self._steps_left))]

    async def wins(self, calls: Calls, *, alone: bool = False) -> bool:
        """Whether the task is won with these calls, after those that were made in this turn or instead of them.

        What is done in a turn may show only later: all later turns are played with their gold calls.
        """
        conversation = self.conversation
        now = len(conversation.turns)
        made = [] if alone else conversation.turns[-1]
        turns = [*conversation.turns[: now - 1], [*made, calls], *([later] for later in conversation.gold[now:])]
        return await back_ends.check_turns(conversation.scenario, turns, conversation.gold, self.timeout_s) == "valid"

    async def _spoils(self, call: ToolCall) -> bool:
        key = json.dumps([len(self.conversation.turns), call.name, call.arguments], sort_keys=True)
        if key not in self._harm:
            self._harm[key] = not await self.wins([call, *self.conversation.turn_gold], alone=True)
        return self._harm[key]

    async def _inverse(self, call: ToolCall, before: Calls) -> Calls:
        """Calls that undo a call; none where none is known. `before` are the earlier calls of the turn."""
        options = [
            *inverses(call, self.conversation.scenario["config"]),
            *(
                [one] for one in reversed(self.conversation.earlier_calls) if one.name == call.name
            ),  # what sets a value sets it back
            await self._cancelled(call, []),
        ]
        for inverse in options:
            if inverse and await self.wins([call, *inverse, *self.conversation.turn_gold], alone=True):
                return inverse if call.name != "book_flight" else await self._cancelled(call, before)
        return []

    async def _cancelled(self, call: ToolCall, before: Calls) -> Calls:
        """A flight is cancelled by the number that its booking was given."""
        if call.name != "book_flight":
            return []
        done = [*self.conversation.earlier_calls, *before]
        (told,) = await back_ends.results(self.conversation.scenario, done, [call], self.timeout_s)
        booking = re.search(r'"booking_id": "(\w+)"', told or "")
        arguments = {"access_token": call.arguments.get("access_token"), "booking_id": booking and booking[1]}
        return [ToolCall(name="cancel_booking", arguments=arguments)] if booking else []


def inverses(call: ToolCall, config: Mapping[str, Any]) -> Iterator[Calls]:
    """Calls that may undo a call; `config` has the back ends' first state."""
    if call.name in INVERSES:
        for name, arguments in INVERSES[call.name](call.arguments, config):
            yield [ToolCall(name=name, arguments=arguments)]
    yield from _relisted(call, config)


def _opposite(name: str, argument: str, one: str, other: str) -> Callable[[Arguments, Any], list[tuple[str, Any]]]:
    """The same call with the other of two values."""
    return lambda given, _: [(name, {argument: value}) for value in (one, other) if value != given.get(argument)]


def _climate(_: Arguments, config: Any) -> list[tuple[str, Any]]:
    first = config.get("VehicleControlAPI", {})
    wanted = {"temperature": "acTemperature", "fanSpeed": "fanSpeed", "mode": "acMode"}
    return [("adjustClimateControl", {name: first[key] for name, key in wanted.items() if key in first})]


def _doors(given: Arguments, config: Any) -> list[tuple[str, Any]]:
    """The other way round: all doors, or those that it was the other way round for in the beginning."""
    unlock, first = not given.get("unlock"), config.get("VehicleControlAPI", {}).get("doorStatus", {})
    others = [door for door, status in first.items() if (status == "unlocked") == unlock]
    return [("lockDoors", {"unlock": unlock, "door": door}) for door in (given.get("door"), others)]


def _ticket(given: Arguments, config: Any) -> list[tuple[str, Any]]:
    """The fields of a ticket as they were."""
    tickets = config.get("TicketAPI", {}).get("ticket_queue", [])
    fields = ("title", "description", "status", "priority")
    return [
        (
            "edit_ticket",
            {"ticket_id": ticket["id"], "updates": {name: ticket[name] for name in fields if name in ticket}},
        )
        for ticket in tickets
        if "id" in ticket and ticket["id"] == given.get("ticket_id")
    ]


def _relisted(call: ToolCall, config: Mapping[str, Any]) -> Iterator[Calls]:
    """A watchlist as it was. What is added goes to its end, and only who is logged in may remove a stock."""
    if call.name == "add_to_watchlist":
        login = {"username": "user", "password": "password"}
        removed = {"symbol": call.arguments.get("stock")}
        steps = [("trading_login", login), ("remove_stock_from_watchlist", removed), ("trading_logout", {})]
        yield [ToolCall(name=name, arguments=arguments) for name, arguments in steps]
    stocks, symbol = config.get("TradingBot", {}).get("watch_list", []), call.arguments.get("symbol")
    if call.name == "remove_stock_from_watchlist" and symbol in stocks:
        later = stocks[stocks.index(symbol) + 1 :]
        yield [
            *(ToolCall(name="remove_stock_from_watchlist", arguments={"symbol": stock}) for stock in later),
            *(ToolCall(name="add_to_watchlist", arguments={"stock": stock}) for stock in (symbol, *later)),
        ]


def _as_first_user(config: Any) -> list[tuple[str, Any]]:
    """Any password is the right one."""
    user = config.get("TicketAPI", {}).get("current_user")
    return [("ticket_login", {"username": user, "password": "password"})] if user else []


def _folders(config: Any) -> list[str]:
    """The names of all folders."""
    if not isinstance(config, dict):
        return []
    own = [name for name, value in config.items() if isinstance(value, dict) and value.get("type") == "directory"]
    return own + [name for value in config.values() for name in _folders(value)]


def _back(given: Arguments, config: Any) -> list[tuple[str, Any]]:
    if given.get("folder") == "..":
        return [("cd", {"folder": name}) for name in dict.fromkeys(_folders(config))]
    return [("cd", {"folder": ".."})]


INVERSES: dict[str, Callable[[Arguments, Any], list[tuple[str, Any]]]] = {
    "cd": _back,
    "mkdir": lambda given, _: [("rmdir", {"dir_name": given.get("dir_name")})],
    "rmdir": lambda given, _: [("mkdir", {"dir_name": given.get("dir_name")})],
    "touch": lambda given, _: [("rm", {"file_name": given.get("file_name")})],
    "echo": lambda given, _: [("rm", {"file_name": given.get("file_name")})],
    "cp": lambda given, _: [("rm", {"file_name": given.get("destination")})],
    "mv": lambda given, _: [("mv", {"source": given.get("destination"), "destination": given.get("source")})],
    "send_message": lambda given, _: [("delete_message", {"receiver_id": given.get("receiver_id")})],
    "add_to_watchlist": lambda given, _: [("remove_stock_from_watchlist", {"symbol": given.get("stock")})],
    "remove_stock_from_watchlist": lambda given, _: [("add_to_watchlist", {"stock": given.get("symbol")})],
    "fund_account": lambda given, _: [("withdraw_funds", {"amount": given.get("amount")})],
    "withdraw_funds": lambda given, _: [("fund_account", {"amount": given.get("amount")})],
    "trading_login": lambda *_: [("trading_logout", {})],
    "trading_logout": lambda *_: [("trading_login", {"username": "user", "password": "password"})],
    "message_login": lambda _, config: [
        ("message_login", {"user_id": config.get("MessageAPI", {}).get("current_user")})
    ],
    "close_ticket": _ticket,
    "edit_ticket": _ticket,
    "ticket_login": lambda _, config: [("logout", {}), *_as_first_user(config)],
    "logout": lambda _, config: _as_first_user(config),
    "follow_user": lambda given, _: [("unfollow_user", {"username_to_unfollow": given.get("username_to_follow")})],
    "unfollow_user": lambda given, _: [("follow_user", {"username_to_follow": given.get("username_to_unfollow")})],
    "lockDoors": _doors,
    "startEngine": _opposite("startEngine", "ignitionMode", "START", "STOP"),
    "activateParkingBrake": _opposite("activateParkingBrake", "mode", "engage", "release"),
    "pressBrakePedal": lambda *_: [("releaseBrakePedal", {})],
    "releaseBrakePedal": lambda *_: [("pressBrakePedal", {"pedalPosition": 1.0})],
    "setHeadlights": _opposite("setHeadlights", "mode", "on", "off"),
    "adjustClimateControl": _climate,
    "set_navigation": lambda _, config: [
        ("set_navigation", {"destination": config.get("VehicleControlAPI", {}).get("destination")})
    ],
    "set_budget_limit": lambda given, config: [
        ("set_budget_limit", {**given, "budget_limit": config.get("TravelAPI", {}).get("budget_limit")})
    ],
}
