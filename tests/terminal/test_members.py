from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from bough.terminal import tables
from bough.terminal.tables import MembersProgress, fitness_text, mutation_text


def described(name: str, **more: Any) -> dict[str, Any]:
    """A member before it is measured."""
    values = {"name": name, "born": 0, "parent": None, "mutation": None, "settings": {"beta": 0.125}, "rank": 4}
    return {**values, "step": 2, **more}


def drawn(progress: MembersProgress) -> list[list[str]]:
    """The words of every line of the table."""
    console = Console(file=StringIO(), width=200)
    console.print(progress.rendered())
    return [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_the_table_follows_a_generation_from_training_to_selection():
    progress = MembersProgress(3)
    assert drawn(progress) == [["loading", "the", "model"]]
    progress.begin(0, [described("g0-0"), described("g0-1")], 2)
    assert " ".join(drawn(progress)[0]) == "generation 0 (1 of 3): training, 0 of 2 updates"
    progress.updated(1, {"g0-1": 0.5})
    assert " ".join(drawn(progress)[0]) == "generation 0 (1 of 3): training, 1 of 2 updates"
    assert drawn(progress)[3] == ["g0-1", "0.5", "0", "2", "beta=0.125,", "lora_r=4"]
    progress.measuring(0, [described("g0-0"), described("g0-1")])
    assert drawn(progress)[3][:2] == ["g0-1", "0.5"]
    score = {"generation": 0, "loss": 0.25, "fitness": 0.75, "interval": [0.5, 1.0]}
    progress.measured([described("g0-1", **score, lives=True), described("g0-0", **score, lives=False)])
    assert " ".join(drawn(progress)[0]) == "generation 0 (1 of 3): selecting"
    assert [row[0] for row in drawn(progress)[2:]] == ["g0-1", "g0-0"]
    child = described("g1-1", born=1, parent="g0-1", mutation={"kind": "no_mutation"})
    progress.begin(1, [described("g0-1"), child], 2)
    known, new = drawn(progress)[2:]
    assert known[:7] == ["g0-1", "0.75", "(0.5", "to", "1)", "0.25", "1"]  # its last fitness, one generation old
    assert " ".join(drawn(progress)[0]) == "generation 1 (2 of 3): training, 0 of 2 updates"
    assert new[:6] == ["g1-1", "0", "2", "g0-1", "none", "beta=0.125,"]
    progress.measured([described("g0-1", **score | {"generation": 1})])
    assert " ".join(drawn(progress)[0]) == "generation 1 (2 of 3): measuring the winner on untouched data"


def test_on_a_terminal_it_is_drawn_and_elsewhere_it_is_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    for terminal in (True, False):
        file = StringIO()
        console = Console(file=file, force_terminal=terminal, width=120)
        monkeypatch.setattr(tables, "err", lambda console=console: console)
        with MembersProgress() as progress:
            progress.begin(0, [described("g0-0")], 2)
        assert ("g0-0" in file.getvalue()) is terminal


def test_without_a_terminal_there_is_a_line_every_few_seconds(monkeypatch: pytest.MonkeyPatch):
    file, now = StringIO(), [100.0]
    monkeypatch.setattr(tables, "err", lambda: Console(file=file, width=200))
    monkeypatch.setattr(tables.time, "monotonic", lambda: now[0])
    with MembersProgress(3) as progress:
        progress.begin(0, [described("g0-0"), described("g0-1")], 9)
        for done, seconds in ((1, 1.0), (2, 8.0), (3, 2.0), (4, 1.0)):
            now[0] += seconds
            progress.updated(done, {"g0-0": 0.5, "g0-1": 0.25 * done})
        now[0] += 10.0
        progress.played(7, 64)
        progress.measuring(0, [described("g0-0"), described("g0-1")])
        now[0] += 10.0
        progress.played(8, 16)
    assert file.getvalue().splitlines() == [
        "generation 0 (1 of 3): training, 0 of 9 updates",
        "generation 0 (1 of 3): training, 3 of 9 updates  loss 0.5 to 0.75",
        "generation 0 (1 of 3): training, 4 of 9 updates; 7 of 64 episodes played  loss 0.5 to 1",
        "generation 0 (1 of 3): measuring fitness; 8 of 16 episodes played  loss 0.5 to 1",
    ]


def test_a_name_cannot_control_the_terminal_or_the_markup():
    progress = MembersProgress()
    progress.begin(0, [described("[red]\x1b[2J")], 1)
    assert drawn(progress)[2][0] == "[red]\u241b[2J"


@pytest.mark.parametrize(
    ("mutation", "said"),
    [
        (None, ""),
        ({"kind": "no_mutation"}, "none"),
        ({"kind": "hyper_parameter", "setting": "beta", "before": 0.12345, "after": 1e-5}, "beta 0.123 → 1e-05"),
    ],
)
def test_a_mutation_in_words(mutation: dict[str, Any] | None, said: str):
    assert mutation_text(mutation) == said


def test_numbers_are_short_and_what_is_unknown_is_said():
    assert fitness_text({}) == "" and fitness_text({"fitness": None, "interval": None}) == "unknown"
    assert fitness_text({"fitness": 2 / 3, "interval": [0.5, 0.8125]}) == "0.667 (0.5 to 0.812)"
