"""Nothing outside a world's folder knows its texts."""

from collections.abc import Iterator
from pathlib import Path

import bough
from bough.worlds.functions import benchmark, conversation
from bough.worlds.household import engine, environment, game, generate
from bough.worlds.interpreter import environment as interpreter
from bough.worlds.web import page

SOURCE = Path(bough.__file__).parent
# An example in help, and one of several phrases after which the viewer expects a task's goal.
ALLOWED = {("commands/environments.py", "click-button"), ("report/viewer/contents.py", "your task is to")}


def texts_of_the_worlds() -> Iterator[str]:
    """Texts, names of things and names of tasks, from the worlds' own constants."""
    yield from (engine.NOTHING.rstrip("."), "You arrive at", "your task is to", f'"{environment.CLAIM}')
    yield from (environment.HINT.strip(), engine.BANNER.strip(), *game.KINDS)
    table = generate.rooms()
    things = {*table.fits, *table.traits, *(name for room in table.rooms for name in room.receptacles)}
    yield from (name for name in things if len(name) > 8)  # short ones are ordinary words: box, bed, desk
    yield from (*page.RELOADED, *page.NOT_FOR_TEXT, *page.ENOUGH, "click-button", "login-user", "miniwob")
    yield from (interpreter.TOOL, interpreter.RESTARTED)
    yield from (name for name in benchmark.SETS if "_" in name)  # the others are ordinary words: parallel, multiple
    yield from (*benchmark.BACK_ENDS, conversation.MORE_FUNCTIONS, "bfcl")


def known_outside(source: Path) -> set[tuple[str, str]]:
    # "terminal" is a page, and a word.
    texts = {text.lower() for text in texts_of_the_worlds()} - {"terminal"}
    files = [path for ending in ("py", "js", "html", "css") for path in source.rglob(f"*.{ending}")]
    outside = [path for path in files if path.relative_to(source).parts[0] != "worlds"]
    assert len(outside) > 100
    found = set()
    for path in outside:
        content = path.read_text(encoding="utf-8").lower()
        found |= {(path.relative_to(source).as_posix(), text) for text in texts if text in content}
    return found


def test_nothing_outside_a_worlds_folder_knows_its_texts():
    assert known_outside(SOURCE) - ALLOWED == set()


def test_the_texts_are_those_of_the_worlds():
    texts = {text.lower() for text in texts_of_the_worlds()}
    assert {"nothing happens", "countertop", "pick_and_place_simple", "book-flight", "code_interpreter"} <= texts
