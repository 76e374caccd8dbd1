import json
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from bough.experiments.evolve_settings import EvolveConfig
from bough.report.card import CardConfig, make_card
from tests.experiments.family import FAMILY, REPORT
from tests.report import folders
from tests.report.test_card import HOSTILE


def evolved(folder: Path, lines: list[dict[str, Any]], report: dict[str, Any]) -> Path:
    """A finished evolution; its weights are no weights."""
    folders.stage(folder, "dpo")
    config = EvolveConfig(model="smollm2", train_file=Path("data.jsonl"), output_dir=folder)
    (folder / "config.yaml").write_text(config.to_yaml())
    (folder / "lineage.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "report.json").write_text(json.dumps(report))
    return folder


def section(folder: Path) -> str:
    """The text under the heading, empty if there is none."""
    return make_card(CardConfig(run=folder)).text.partition("## Pedigree\n")[2].partition("\n## ")[0].strip()


def test_the_winner_has_its_ancestors_with_mutation_and_fitness(tmp_path: Path):
    text = section(evolved(tmp_path / "run", FAMILY, REPORT))
    assert text.startswith("run trained 2 members for 3 generations. The winner `g2-1` descends from these members;")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows] == ["| `g0-1`", "| `g1-1`", "| `g2-1`"]
    assert rows[0][2:5] == ["–", "–", "0.5 (0.25 to 0.75)"]
    assert rows[1][1:5] == ["1", "`g0-1`", "learning\\_rate 0.001 → 0.0001", "0.75 (0.375 to 0.875)"]
    assert rows[2][2:4] == ["`g1-1`", "none"]
    assert rows[2][5] == "`learning_rate=0.0001`, `loss_type=sigmoid`, `lora_r=4` |"
    assert "was 0.875 (0.5 to 1) when it was selected, and is 0.625 (0.25 to 0.75) on data that no member" in text
    assert text.endswith("a shrinkage of 0.25.")


def test_what_others_wrote_in_a_lineage_is_quoted(tmp_path: Path):
    hostile = json.loads(json.dumps(FAMILY).replace("g2-1", "HOSTILE").replace("loss_type", "HOSTILE"))
    lines = json.loads(json.dumps(hostile).replace("HOSTILE", json.dumps(HOSTILE)[1:-1]))
    text = section(evolved(tmp_path / "run", lines, REPORT | {"winner": {"name": HOSTILE}, "metric": HOSTILE}))
    html = MarkdownIt("commonmark").enable("table").render(text)
    assert "<script" not in html and "<img" not in html and html.count("&lt;script&gt;") >= 3
    assert html.count("<tr>") == 4


@pytest.mark.parametrize("report", [{}, {"winner": {"name": "absent"}}, {"winner": 3}])
def test_a_run_without_a_winner_has_no_pedigree(tmp_path: Path, report: dict[str, Any]):
    assert section(evolved(tmp_path / "run", FAMILY, report)) == ""


def test_other_trained_weights_have_no_pedigree(tmp_path: Path):
    assert section(folders.stage(tmp_path / "dpo", "dpo")) == ""
    run = evolved(tmp_path / "run", FAMILY, REPORT)
    (run / "lineage.jsonl").unlink()
    assert section(run) == ""
