"""A dozen rows of the table in docs/notes/model-table.md against what the code does now."""

import re

import pytest
import transformers
from benchmarks.model_table import BEGIN, END, PAGE, describe
from packaging.version import Version

TABLE = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
LINES = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE.splitlines() if line.startswith("| `")]
ROWS = {cells[0].strip("`"): cells[1:] for cells in LINES}
FAMILIES = [
    "llama", "gemma3_text", "gpt2", "qwen3_moe", "deepseek_v3", "lfm2", "qwen3_5_text", "mamba2", "doge", "bloom",
    "xlnet", "recurrent_gemma",
]  # fmt: skip


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_row_of_the_table_is_what_the_code_does(model_type):
    if model_type == "doge" and Version(transformers.__version__) < Version("5.19"):
        pytest.skip("transformers before 5.19 computes doge without a causal mask")
    written, found = ROWS[model_type], describe(model_type)
    paths = [found.trained, found.engine, found.lora, found.merge, found.gguf]
    # How far a wrong path is off depends on the last digits.
    assert [_without_numbers(one) for one in paths] == [_without_numbers(cell) for cell in written[:-1]]
    assert found.error is None if written[-1] == "" else found.error < 1e-4


def test_no_row_is_silently_wrong_and_most_work():
    assert len(ROWS) > 150
    errors = {name: float(cells[-1]) for name, cells in ROWS.items() if cells[-1]}
    assert [name for name, error in errors.items() if not error < 1e-4] == []
    assert len(errors) >= 100
    assert [name for name in errors if ROWS[name][1] not in ("fast", "general")] == []
    assert [name for name in errors if not ROWS[name][2].startswith(("yes", "partly"))] == []
    assert not [name for name, cells in ROWS.items() if "the process ended" in cells[0]]


def _without_numbers(text: str) -> str:
    return re.sub(r"[\d.]+(?= nats)", "#", text)
