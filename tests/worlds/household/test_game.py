import json

from bough.worlds.household.game import Game, Receptacle, Wording
from tests.worlds.household.flat import MUG, RECEPTACLES, flat


def test_a_game_survives_its_compact_form():
    open_drawer = (*RECEPTACLES[:2], Receptacle("drawer 1", "drawer", 1, openable=True, opened=True), *RECEPTACLES[3:])
    for game in (
        flat(),
        flat(receptacles=open_drawer),
        flat(within=((3, MUG),), wording=Wording("put {o} in/on {r}", "You put the {o} in/on the {r}.", "Help!")),
    ):
        assert Game.from_data(json.loads(json.dumps(game.to_data()))) == game


def test_the_compact_form_leaves_out_what_is_usual():
    assert flat().to_data().keys() == {"task", "goal", "start", "receptacles", "things", "fits"}
