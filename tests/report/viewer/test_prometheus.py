"""Prometheus rejects a whole answer for one bad line, so every line is read with a strict grammar here."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bough.files import write_json
from bough.report.viewer.index import Index
from bough.report.viewer.prometheus import CONTENT_TYPE, Exposition, metric_name, metrics
from bough.report.viewer.training import MAX_TAIL, newest
from tests.report.viewer.conftest import Server
from tests.report.viewer.hostile import fill_hostile
from tests.report.viewer.test_security import ask

Make = Callable[[Path], Index]
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
LABEL = r'([a-zA-Z_]\w*)="((?:[^"\\\n\x00]|\\[\\"n])*)"'
SAMPLE = re.compile(
    rf"([a-zA-Z_:][\w:]*)\{{((?:{LABEL}(?:,(?!\}})|(?=\}})))*)\}} (-?[0-9.]+(?:e[+-]?[0-9]+)?)", re.ASCII
)
UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def read(text: str) -> Series:
    """The series of a text in Prometheus' format; fails where it is not exactly that."""
    found: Series = {}
    family, closed = "", set[str]()
    for line in text.removesuffix("\n").split("\n"):
        if header := re.fullmatch(r"# (HELP|TYPE) (\w+) (.+)", line):
            kind, name, said = header.groups()
            if kind == "HELP":
                assert name not in closed, f"{name} is in two places"
                closed.add(name)
                family = name
            else:
                assert name == family and said in ("gauge", "counter"), line
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample is not None and sample[1] == family, line
        labels = frozenset(
            (key, re.sub(r"\\.", lambda part: UNESCAPED[part[0]], value))
            for key, value in re.findall(LABEL, sample[2], re.ASCII)
        )
        assert (family, labels) not in found, f"twice: {line}"
        found[family, labels] = float(sample[5])
    return found


def value(found: Series, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def test_a_run_of_a_recipe(folder: Path, make_index: Make):
    found = read(metrics(make_index(folder.parent)))
    dpo = {"run": "played", "stage": "05-dpo"}
    assert value(found, "bough_training_step", **dpo) == 9
    assert value(found, "bough_training_loss", **dpo) == 0.5101
    assert value(found, "bough_training_margin", **dpo, part="loop") == pytest.approx(0.18)
    assert value(found, "bough_stage_state", **dpo, verb="dpo", state="done") == 1
    assert value(found, "bough_stage_state", **dpo, verb="dpo", state="running") == 0
    assert value(found, "bough_stage_duration_seconds", **dpo) == 12.5
    written = (folder / "05-dpo/metrics.jsonl").stat().st_mtime
    assert value(found, "bough_training_updated_timestamp_seconds", **dpo) == pytest.approx(written)
    played = {"run": "played", "stage": "02-rollouts", "kind": "trajectory"}
    assert value(found, "bough_stage_records", **played, outcome="failure") == 9
    assert value(found, "bough_stage_records", **played, outcome="success") == 0
    expert = {"run": "played", "stage": "06-eval", "model": "expert"}
    assert value(found, "bough_eval_success_ratio", **expert) == 1
    assert 0.5 < value(found, "bough_eval_success_low_ratio", **expert) < 1
    assert value(found, "bough_eval_episodes", **expert) == 6


def test_folders_of_single_commands_are_runs_without_stages(tmp_path: Path, make_index: Make):
    for name, loss in (("a/dpo", 0.5), ("b/dpo", 0.25)):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": loss}) + "\n")
    found = read(metrics(make_index(tmp_path / "runs")))
    assert value(found, "bough_training_loss", run="a/dpo") == 0.5
    assert value(found, "bough_training_loss", run="b/dpo") == 0.25
    alone = read(metrics(make_index(tmp_path / "runs/a/dpo")))
    assert value(alone, "bough_training_loss", run="dpo") == 0.5


def test_lost_episodes_and_workers_are_counted(tmp_path: Path, make_index: Make):
    write_json(tmp_path / "run/01-collect/stage.json", {"verb": "collect", "finished": True, "seconds": 2})
    report = {"lost": {"a#0": "the server is gone", "a#1": "the server is gone"}, "worker_losses": 4}
    write_json(tmp_path / "run/01-collect/report.json", report)
    found = read(metrics(make_index(tmp_path / "run")))
    assert value(found, "bough_stage_lost_episodes", run="run", stage="01-collect") == 2
    assert value(found, "bough_stage_lost_workers", run="run", stage="01-collect") == 4


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("loss", ("bough_training_loss", "")),
        ("margin/loop", ("bough_training_margin", "loop")),
        ("reward/a/b", ("bough_training_reward", "a/b")),
        ("tokens_per_s", ("bough_training_tokens_per_second", "")),
        ("tokens_computed", ("bough_training_tokens_computed_total", "")),
        ("größe%", ("bough_training_gr__e_", "")),
    ],
)
def test_names_follow_prometheus(name: str, shown: tuple[str, str]):
    assert metric_name(name) == shown


def test_label_values_are_escaped_and_come_back_whole():
    found = Exposition()
    text = 'a\\b"c\nd{e}="f",#'
    found.add("bough_x", 1.5, run=text)
    assert read(found.text()) == {("bough_x", frozenset({("run", text)})): 1.5}


def test_two_names_that_become_one_are_one_series(tmp_path: Path, make_index: Make):
    (tmp_path / "run").mkdir()
    line = {"step": 1, "a-b": 1.0, "a_b": 2.0, "": 3.0, "/": 4.0, "bad\x00/x\x00": 5.0, "text": "no", "off": None}
    (tmp_path / "run/metrics.jsonl").write_text(json.dumps(line) + "\n")
    found = read(metrics(make_index(tmp_path / "run")))
    assert value(found, "bough_training_a_b", run="run") == 1.0
    assert value(found, "bough_training_bad_", run="run", part="x\ufffd") == 5.0
    assert not any(name in ("bough_training_text", "bough_training_off") for name, _ in found)


def test_values_logged_now_and_then_stay_and_a_torn_line_does_not_count(tmp_path: Path, make_index: Make):
    (tmp_path / "run").mkdir()
    file = tmp_path / "run/metrics.jsonl"
    file.write_text('{"step": 1, "loss": 3.0, "eval_loss": 2.0}\n{"step": 2, "loss": 2.5}\n{"step": 3, "lo')
    values, _ = newest(make_index(tmp_path / "run"), ".")
    assert values == {"step": 2, "loss": 2.5, "eval_loss": 2.0}


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path, make_index: Make):
    (tmp_path / "run").mkdir()
    long = [
        json.dumps({"step": step, "loss": 1.0, "old" if step == 1 else "new": "x" * 1000}) for step in range(1, 400)
    ]
    first = json.dumps({"step": 0, "early": 1.0})
    (tmp_path / "run/metrics.jsonl").write_text("\n".join([first, *long]) + "\n")
    assert (tmp_path / "run/metrics.jsonl").stat().st_size > MAX_TAIL
    values, _ = newest(make_index(tmp_path / "run"), ".")
    assert values == {"step": 399, "loss": 1.0}


def test_a_hostile_folder_gives_lines_that_can_be_read(tmp_path: Path, make_index: Make):
    fill_hostile(tmp_path / "hostile")
    found = read(metrics(make_index(tmp_path / "hostile")))
    assert any("<script>" in label for _, labels in found for _, label in labels)


def test_the_server_answers_prometheus(server: Server):
    answer = ask(server.port, "/metrics")
    assert (answer.status, answer.headers["content-type"]) == (200, CONTENT_TYPE)
    assert value(read(answer.read().decode()), "bough_training_step", run="played", stage="05-dpo") == 9
    assert ask(server.port, "/metrics", "evil.example").status == 421
