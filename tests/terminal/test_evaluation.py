from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from bough.evaluation.comparison import compare
from bough.evaluation.results import ModelResult
from bough.evaluation.success import report
from bough.terminal import console
from bough.terminal.console import MembersProgress, fitness_text, mutation_text, printable, sentence, show
from tests.evaluation.samples import binary, result

COSTS = ["reward", "turns", "tokens", "invalid"]


def shown(capsys: Any, *models: ModelResult, sequential: bool = False, **more: Any) -> str:
    reports = {model.name: report(model.outcomes, lost=model.lost, sequential=sequential).to_json() for model in models}
    comparisons = [one.to_json() for one in compare(models, sequential=sequential, **more)] if len(models) > 1 else []
    show(reports, comparisons, 0.95)
    return str(capsys.readouterr().out)


def said(first: str, second: str) -> str:
    [found] = compare([result("a", binary(first)), result("b", binary(second))])
    return sentence(found.to_json())


def test_the_table_has_a_row_for_each_model_and_says_which_interval(capsys: Any):
    out = shown(capsys, result("sft", binary("1110?0"), reward=0.5, turns=3, completion_tokens=1234, stop="loop"))
    [heading, row, method, *rest] = out.splitlines()
    assert heading.split() == [
        "model",
        "success",
        "(95%",
        "interval)",
        *["episodes", "reward", "turns", "tokens", "invalid"],
    ]
    assert row.split() == ["sft", "60.0%", "(23.1–88.2)", "6,", "1", "unknown", "0.5", "3", "1,234", "0.0%"]
    assert method == "intervals: Wilson"
    assert "sft  failures: 2 loop" in rest


def test_lost_episodes_are_shown_beside_an_interval_that_allows_for_them(capsys: Any):
    _, row, method, *_ = shown(capsys, result("sft", binary("1" * 9 + "x" * 7))).splitlines()
    assert row.split()[:6] == ["sft", "100.0%", "(33.2–100.0)", "9,", "7", "lost"]
    assert "lost episodes as failures at the lower end" in method


def test_a_comparison_says_how_many_episodes_were_lost():
    text = said("0" * 10, "1" * 8 + "xx")
    assert "on 8 tasks (8 better, 0 worse, 2 lost: worst case in the interval and p);" in text


def test_attempts_and_types_have_tables_of_their_own_that_are_not_cut_off(capsys: Any):
    rows = result("a" * 60, "1100 1111 0000 1010")
    typed = [row.model_copy(update={"type": "pick" if row.task < "t2" else "heat"}) for row in rows.outcomes]
    out = shown(capsys, rows.model_copy(update={"outcomes": typed}))
    assert "pass@2" in out and "pass^4" in out and "intervals: Wilson, attempts clustered by task" in out
    assert "by type of task" in out and "heat" in out and "…" not in out


def test_one_type_alone_needs_no_table(capsys: Any):
    assert "by type" not in shown(capsys, result("a", "1 0", type="pick"))


def test_a_real_difference_is_called_significant():
    text = said("1" * 10 + "0" * 10 + "1" * 2, "1" * 20 + "0" * 2)
    assert text.startswith("b against a: +36.4 points of success (+")
    assert "on 22 tasks (10 better, 2 worse); McNemar exact p = 0.039; significant." in text
    assert "enough" not in text


def test_what_is_not_significant_is_said_with_what_would_settle_it():
    text = said("1100010100", "1110011100")
    assert "McNemar exact p = 0.5; not significant. If the true difference is the one seen, about " in text
    assert "tasks would be enough; 10 tasks detect a true difference of " in text


def test_no_difference_and_too_few_tasks_have_their_own_words():
    assert "No difference was seen; 20 tasks detect" in said("10" * 10, "10" * 10)
    assert "about 6 tasks would be enough; 5 tasks are too few to detect any difference." in said("0" * 5, "1" * 5)


def test_a_number_to_settle_it_is_one_fixed_beforehand():
    [found] = compare([result("a", binary("00001")), result("b", binary("11001"))], sequential=True)
    assert "tasks chosen in advance would be enough" in sentence(found.to_json())


def test_left_out_episodes_corrections_and_rewards_are_said():
    models = [result(name, binary(word), reward=value) for name, word, value in
              (("a", "100?", 0.0), ("b", "1110", 1.0), ("c", "1100", 0.5))]  # fmt: skip
    text = sentence(compare(models)[0].to_json())
    assert "(2 better, 0 worse, 1 left out)" in text
    assert "McNemar exact p = 0.5, with Holm's correction for 2 comparisons p = 1; not significant." in text
    assert "Reward +1, p = 0.12." in text


def test_what_a_name_holds_is_shown_and_not_obeyed(capsys: Any):
    out = shown(capsys, result("evil\x1b[2J", binary("10"), stop="a[b]c"), result("[red]x", binary("01")))
    assert "\x1b" not in out and "evil␛[2J" in out and "[red]x" in out and "a[b]c" in out


def test_nothing_known_is_a_dash(capsys: Any):
    assert shown(capsys, result("a", binary("??"))).splitlines()[1].split()[1] == "–"


@pytest.mark.parametrize("sequential", [False, True])
def test_every_kind_of_report_can_be_shown(sequential: bool, capsys: Any):
    out = shown(capsys, result("a", "11 00 1?"), result("b", "11 11 11"), sequential=sequential)
    assert ("any stopping time" in out) == sequential


def described(name: str, **more: Any) -> dict[str, Any]:
    """A member before it is measured."""
    values = {"name": name, "born": 0, "parent": None, "mutation": None, "settings": {"beta": 0.125}, "rank": 4}
    return {**values, "step": 2, **more}


def drawn(progress: MembersProgress) -> list[list[str]]:
    """The words of every line of the table."""
    drawn_on = Console(file=StringIO(), width=200)
    drawn_on.print(progress.rendered())
    return [line.split() for line in drawn_on.file.getvalue().splitlines()]  # type: ignore[attr-defined]


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
        there = Console(file=file, force_terminal=terminal, width=120)
        monkeypatch.setattr(console, "err", lambda there=there: there)
        with MembersProgress() as progress:
            progress.begin(0, [described("g0-0")], 2)
        assert ("g0-0" in file.getvalue()) is terminal


def test_without_a_terminal_there_is_a_line_every_few_seconds(monkeypatch: pytest.MonkeyPatch):
    file, now = StringIO(), [100.0]
    monkeypatch.setattr(console, "err", lambda: Console(file=file, width=200))
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ☃ text\nwith\tlayout", "plain ☃ text\nwith\tlayout"),
        ("\x1b[2J", "␛[2J"),
        ("a\rb\x07", "a␍b␇"),
        ("\x9b31m\u202egnp.exe", "\ufffd31m\ufffdgnp.exe"),
    ],
)
def test_control_characters_become_visible_and_harmless(text: str, shown: str):
    assert printable(text) == shown


@pytest.mark.parametrize(("widgets", "live"), [(object(), True), (None, False)])
def test_a_notebook_has_progress_bars_where_it_can_draw_them(
    widgets: object, live: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(console, "find_spec", lambda name: widgets if name == "ipywidgets" else None)
    assert console.is_live(Console(force_jupyter=True)) is live
    assert console.is_live(Console(force_terminal=True))
    assert not console.is_live(Console(file=StringIO(), force_jupyter=False))
