"""A dozen rows of the table in docs/models.md against what the code does now."""

import re

import pytest
from benchmarks.model_table import BEGIN, END, PAGE, Row, describe, model_types, page

TABLE = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
ROWS = {
    line.split("`")[1]: [cell.strip() for cell in line.split("|")[2:-1]] for line in TABLE.splitlines() if "`" in line
}
FAMILIES = [
    "llama",
    "qwen3",
    "gemma3_text",
    "gpt2",
    "mistral",
    "qwen3_moe",
    "deepseek_v3",
    "lfm2",
    "qwen3_5_text",
    "mamba2",
    "doge",
    "llama4_text",
    "bloom",
    "xlnet",
    "recurrent_gemma",
]


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_row_of_the_table_is_what_the_code_does(model_type):
    written, found = ROWS[model_type], describe(model_type)
    paths = [found.trained, found.engine, found.lora, found.merge, found.gguf]
    # How far a wrong path is off depends on the last digits.
    assert [_without_numbers(one) for one in paths] == [_without_numbers(cell) for cell in written[:-1]]
    assert found.error is None if written[-1] == "" else found.error < 1e-4


def test_no_row_is_silently_wrong_and_most_work():
    assert len(ROWS) > 150
    exact = [
        cells for cells in ROWS.values() if cells[-1] and float(cells[-1]) < 1e-4 and cells[1] in ("fast", "general")
    ]
    assert len(exact) >= 100
    wrong = [name for name, cells in ROWS.items() if cells[-1] and float(cells[-1]) >= 1e-4]
    assert wrong == []
    assert not [name for name, cells in ROWS.items() if "the process ended" in cells[0]]


def test_the_table_knows_every_model_type():
    assert {"llama", "qwen2_5_vl"} <= set(model_types())
    rows = [Row("a", "tree", "fast", "yes", "yes", "no", 2e-6), Row("b", "refused: not causal")]
    text = page(rows)
    assert "of 2 model types 1 train, 1 of them as trees, and 1 sample" in text
    assert "| `a` | tree | fast | yes | yes | no | 2e-06 |\n| `b` | refused: not causal |  |  |  |  |  |\n" in text


def _without_numbers(text: str) -> str:
    return re.sub(r"[\d.]+(?= nats)", "#", text)
