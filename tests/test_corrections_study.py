"""The study of corrections: what each arm learns from, and its table."""

import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks.corrections_study import Study, arm, table

from bough.evaluation.results import ModelResult, Outcome, Results
from bough.files import write_json


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """One whose commands do nothing; `said` has them."""
    fresh = tmp_path / "fresh.jsonl"
    fresh.write_text("".join(f"{number}\n" for number in range(40)))
    made = Study(
        tmp_path, "tiny", tmp_path / "demos.jsonl", fresh, None, 0.13, False, 0.01, time.monotonic() + 60
    )  # fmt: skip
    made.said = []  # type: ignore[attr-defined]
    monkeypatch.setattr(made, "bough", lambda _arm, _done, *words, **_: made.said.append([*map(str, words)]))  # type: ignore[attr-defined]
    return made


def said(study: Study, verb: str) -> list[list[str]]:
    return [words for words in study.said if words[0] == verb]  # type: ignore[attr-defined]


def given(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_as_before_the_second_round_mixes_in_the_first_alone_and_every_label_counts(study: Study):
    arm(study, "every-label", Path("sft"))
    first, second = said(study, "corrections")
    assert given(first, "--mix") == str(study.demonstrations) and given(second, "--mix").endswith("every-label-1.jsonl")
    assert "--mix-share" in second[second.index("--mix") + 2], "one file"
    assert {given(one, "--environment") for one in (first, second)} == {"benchmarks.corrections_study:EveryLabel"}
    assert given(first, "--max-same-labels") == "1000"


def test_mended_the_second_round_mixes_in_all_so_far(study: Study):
    arm(study, "mended", Path("sft"))
    _, second = said(study, "corrections")
    at = second.index("--mix") + 1
    assert second[at] == str(study.demonstrations) and second[at + 1].endswith("mended-1.jsonl")
    assert "--environment" not in second and "--max-same-labels" not in second


def test_the_control_learns_from_as_many_fresh_episodes_in_each_round(study: Study):
    """Ten episodes of own play and 0.3 of earlier data are 14."""
    arm(study, "control", Path("sft"))
    first, second = (Path(given(one, "--train-file")).read_text().split() for one in said(study, "sft"))
    assert first == [str(number) for number in range(14)] and second == [str(number) for number in range(14, 28)]
    assert said(study, "collect") == [] == said(study, "corrections")


@pytest.mark.parametrize(("name", "trainings", "rate"), [("mended-slow", 2, "3e-5"), ("mended", 2, "1e-4")])
def test_each_round_starts_from_the_one_before(study: Study, name: str, trainings: int, rate: str):
    arm(study, name, Path("sft"))
    found = said(study, "sft")
    assert len(found) == trainings and {given(one, "--learning-rate") for one in found} == {rate}
    assert given(found[0], "--model") == "sft" and given(found[1], "--model").endswith(f"{name}-1/final")
    assert len(said(study, "eval")) == 3 * trainings


def outcome(number: int, success: bool, **more: Any) -> Outcome:
    return Outcome(task=f"t{number}", digest=f"{number}", success=success, turns=5, stop="done", **more)


def test_the_table_counts_and_compares_with_the_sft(tmp_path: Path):
    for name, lost in (("sft", 1), ("mended-1", 0)):
        found = [outcome(n, n >= lost, mistakes={"loop": int(n < lost)}, errors={"malformed": n}) for n in range(4)]
        results = Results(environment="household", seed=0, models=[ModelResult(name="a model", outcomes=found)])
        (tmp_path / "evaluations" / f"{name}-unseen").mkdir(parents=True)
        results.write(tmp_path / "evaluations" / f"{name}-unseen" / "results.json")
    ledger = {"item": "turns", "in": 9, "kept": 6, "dropped": {"accepted": 3}}
    labels = {"labels": {"same action": 5, "other action": 1, "accepted": 3}, "ledgers": [{}, ledger, {"kept": 2}]}
    write_json(tmp_path / "mended-1.ledger.json", labels)
    lines = table(tmp_path).splitlines()
    assert lines[2].startswith("| unseen | sft | 3 of 4 | 75.0% (30.1–95.4) |  |  | 1 | 6 of 20 | 5.0 |")
    assert lines[3].startswith("| unseen | mended-1 | 4 of 4 | 100.0% (51.0–100.0) | 1, 0 | 1 | 0 | 6 of 20 | 5.0 |")
    assert lines[-1] == "| mended-1 | 5 | 3 | 1 | 6 | 3 accepted | 2 |"
