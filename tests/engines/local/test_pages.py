"""Pages that episodes share, without a model: the store's book-keeping against plain lists."""

from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.engines.local.pages import PAGE, PagesStore
from bough.engines.local.schedule import Resident

READER = SimpleNamespace(num_layers=1, num_heads=1, head_size=1, dtype=torch.float32, device=torch.device("cpu"))


def a_store(num_pages: int = 12) -> PagesStore:
    return PagesStore(READER, num_pages=num_pages, length=6 * PAGE)


def write(store: PagesStore, resident: Resident, tokens: list[int]) -> None:
    """As the model does: a token's keys and values go where the table says."""
    store.own(resident, len(resident.ids))
    store.upload()
    for token in tokens:
        page = store.table[resident.place.row, len(resident.ids) // PAGE]
        assert page > 0
        store.kv[:, :, page, :, len(resident.ids) % PAGE] = token
        resident.ids.append(token)


def read(store: PagesStore, resident: Resident) -> list[int]:
    store.upload()
    pages = store.table[resident.place.row].tolist()
    return [int(store.kv[0, 1, pages[i // PAGE], 0, i % PAGE, 0]) for i in range(len(resident.ids))]


def resident_of(store: PagesStore, tokens: int) -> Resident:
    resident = Resident()
    store.allocate(resident, tokens)
    return resident


def test_full_pages_are_shared_and_the_rest_is_copied():
    store = a_store()
    one, two = resident_of(store, 3 * PAGE), resident_of(store, 3 * PAGE)
    write(store, one, list(range(2 * PAGE + 5)))
    store.copy(one, two, 0, 2 * PAGE + 3)
    two.ids = one.ids[: 2 * PAGE + 3]
    assert two.place.pages[:2] == one.place.pages[:2]
    assert two.place.pages[2] != one.place.pages[2]
    write(store, two, [-1, -2])
    assert read(store, one) == one.ids
    assert read(store, two) == two.ids


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("wsxf"), st.integers(0, 3), st.integers(0, 3), st.integers(0, 200))))
def test_nobody_ever_sees_what_another_wrote(steps):
    """Writing, sharing, cutting back and freeing in any order: each reads what it wrote, and no page is lost."""
    store, residents, counter = a_store(num_pages=24), {}, 0
    for what, name, other, number in steps:
        resident = residents.get(name) or residents.setdefault(name, resident_of(store, 6 * PAGE))
        if what == "w":
            new = list(range(counter, counter + min(number, 6 * PAGE - len(resident.ids))))
            counter += len(new)
            write(store, resident, new)
        elif what == "s" and other in residents and other != name:
            source = residents[other]
            resident.ids = []
            end = min(number, len(source.ids))
            store.copy(source, resident, 0, end)
            resident.ids = source.ids[:end]
        elif what == "x":
            del resident.ids[number:]
        elif what == "f":
            store.free(residents.pop(name))
        for each in residents.values():
            assert read(store, each) == each.ids
    for each in residents.values():
        store.free(each)
    assert sorted(store._free) == list(range(1, 25))
