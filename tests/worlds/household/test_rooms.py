from bough.worlds.household.generate import likely, rooms


def test_every_kind_of_room_has_its_furniture():
    known = {room.name: room for room in rooms().rooms}
    assert known.keys() == {"kitchen", "livingroom", "bedroom", "bathroom"}
    assert known["kitchen"].receptacles["fridge"] == [0, 27]  # each of the 27 official kitchens has one
    assert "toilet" not in known["kitchen"].receptacles


def test_the_shares_of_a_thing_add_up_to_one():
    places = {receptacle for room in rooms().rooms for receptacle in room.receptacles}
    assert abs(sum(likely("mug", receptacle) for receptacle in places) - 1) < 1e-9
    assert likely("mug", "toilet") == likely("unicorn", "shelf") == 0
    assert likely("bread", "countertop") > likely("bread", "fridge") > 0


def test_all_that_lies_about_has_traits():
    assert {thing for room in rooms().rooms for thing in room.things} == rooms().traits.keys()
