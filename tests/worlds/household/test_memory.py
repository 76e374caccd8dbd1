from bough.worlds.household.expert import Memory, Omniscience
from tests.worlds.household.flat import APPLE_2, COUNTERTOP, DRAWER, MUG, SHELF, SINK, flat, played


def remembered(*commands: str) -> Memory:
    engine = played(flat())
    memory = Memory(engine.world)
    for command in commands:
        _, action = engine.step(command)
        memory.refused(command) if action is None else memory.note(action)
    return memory


def test_nothing_is_known_at_first():
    memory = remembered()
    assert (memory.seen, memory.last, memory.knows({MUG})) == (set(), None, False)


def test_an_open_receptacle_is_known_once_one_stands_before_it():
    memory = remembered("go to shelf 1")
    assert (memory.seen, memory.last, memory.where(MUG)) == ({SHELF}, SHELF, [SHELF])


def test_a_closed_one_is_known_only_when_it_was_opened():
    assert remembered("go to drawer 1", "examine drawer 1").seen == set()
    memory = remembered("go to drawer 1", "open drawer 1", "close drawer 1")
    assert memory.seen == {DRAWER} and memory.knows({APPLE_2})


def test_a_neighbour_at_the_same_spot_is_not_seen_by_going_there():
    assert len(remembered("go to countertop 1").seen) == 1
    assert len(remembered("go to countertop 1", "examine sinkbasin 1").seen) == 2


def test_what_stands_at_one_spot_is_known_once_it_was_reached_or_refused():
    assert remembered().at_hand == set()
    assert remembered("go to countertop 1").at_hand == {COUNTERTOP}
    assert remembered("go to countertop 1", "go to sinkbasin 1").at_hand == {COUNTERTOP, SINK}
    assert remembered("go to countertop 1", "look").at_hand == {COUNTERTOP, SINK}
    assert remembered("go to countertop 1", "go to sinkbasin 1", "go to shelf 1").at_hand == {SHELF}
    assert remembered("go to countertop 1", "go to drawer 9", "open fridge 1").at_hand == {COUNTERTOP}


def test_whether_it_is_closed_is_known_once_it_was_shown():
    assert remembered("go to drawer 1").shown == {DRAWER}
    assert remembered("go to countertop 1", "go to sinkbasin 1").shown == {COUNTERTOP}


def test_what_is_held_is_known():
    memory = remembered("go to shelf 1", "take mug 1 from shelf 1")
    assert memory.knows({MUG}) and memory.where(MUG) == []


def test_omniscience_has_seen_it_all():
    memory = Omniscience(played(flat()).world)
    assert memory.where(APPLE_2) == [DRAWER] and len(memory.seen) == 7
