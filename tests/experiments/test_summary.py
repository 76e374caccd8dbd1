from pathlib import Path

import pytest

from bough.config.yaml_file import YamlFile
from bough.evaluation.intervals import wilson
from bough.experiments.recipe import Recipe
from bough.experiments.run import SummaryRow, summary
from tests.report import folders

STAGES = [
    {"eval": {"name": "base"}},
    {"sft": {}},
    {"eval": {"name": "after-sft"}},
    {"dpo": {}},
    {"eval": {"name": "after-dpo"}},
    {"grpo": {}},
    {"eval": {"name": "after-grpo"}},
]


def rows(folder: Path) -> list[SummaryRow]:
    return summary(folder, Recipe(**YamlFile.read(folder / "recipe.yaml").values))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """SFT helps, DPO harms and is sent back by its gate, GRPO helps a little."""
    folder = folders.recipe(tmp_path / "run", *STAGES)
    folders.evaluation(folder / "01-base", {"smollm2": "0" * 40}, goes_on_with="smollm2")
    folders.evaluation(folder / "03-after-sft", {"run/02-sft/final": "1" * 20 + "0" * 20}, goes_on_with="02-sft/final")
    folders.evaluation(folder / "05-after-dpo", {"run/04-dpo/final": "0" * 40}, goes_on_with="02-sft/final")
    folders.evaluation(
        folder / "07-after-grpo", {"run/06-grpo/final": "1" * 22 + "0" * 18}, goes_on_with="02-sft/final"
    )
    return folder


def test_each_evaluation_is_compared_with_the_model_that_was_held_before(run: Path):
    found = rows(run)
    assert [(row.stage, row.success, row.episodes) for row in found] == [
        ("01-base", 0.0, 40), ("03-after-sft", 0.5, 40), ("05-after-dpo", 0.0, 40), ("07-after-grpo", 0.55, 40),
    ]  # fmt: skip
    assert [row.before for row in found] == ["", "01-base", "03-after-sft", "03-after-sft"]
    differences = [row.compared.success.mean for row in found if row.compared]
    assert differences == pytest.approx([0.5, -0.5, 0.05])
    assert found[1].low < 0.5 < found[1].high


def test_a_run_outside_the_working_directory_is_compared_like_any_other(tmp_path: Path):
    """There the name of a model ends in a digest."""
    run = folders.recipe(tmp_path / "run", *STAGES)
    onward = {"01-base": "smollm2", "03-after-sft": "02-sft/final", "05-after-dpo": "04-dpo/final"}
    for stage, model in onward.items():
        name = model if model == "smollm2" else f"{model}@3c0f26d3"
        folders.evaluation(run / stage, {name: "1" * 20 + "0" * 20}, goes_on_with=model)
    assert [row.before for row in rows(run)] == ["", "01-base", "03-after-sft"]


def test_lost_episodes_are_counted_and_in_the_interval(tmp_path: Path):
    run = folders.recipe(tmp_path / "run", {"eval": {"name": "base"}}, {"sft": {}}, {"eval": {"name": "after"}})
    folders.evaluation(run / "01-base", {"smollm2": "0" * 12}, goes_on_with="smollm2")
    folders.evaluation(run / "03-after", {"run/02-sft/final": "1" * 6 + "x" * 6}, goes_on_with="02-sft/final")
    _, row = rows(run)
    assert (row.success, row.episodes, row.lost) == (1.0, 6, 6) and row.low == wilson(6, 12)[0]
    assert row.compared is not None and row.compared.lost == 6


def test_the_p_values_are_corrected_for_their_number(run: Path):
    raw = [row.compared.success.p for row in rows(run) if row.compared]
    corrected = [row.compared.adjusted_p for row in rows(run) if row.compared]
    assert raw == pytest.approx([2**-19, 2**-19, 0.5])
    assert corrected == pytest.approx([3 * 2**-19, 3 * 2**-19, 0.5])
    assert [row.compared.significant for row in rows(run) if row.compared] == [True, True, False]


def test_after_a_gate_against_an_older_evaluation_that_one_is_held(tmp_path: Path):
    """GRPO is judged against SFT and sent back to it, though DPO went on in between."""
    run = folders.recipe(tmp_path / "run", *STAGES, {"sft": {"name": "more"}}, {"eval": {"name": "last"}})
    onward = {"01-base": "smollm2", "03-after-sft": "02-sft/final", "05-after-dpo": "04-dpo/final"}
    onward |= {"07-after-grpo": "02-sft/final", "09-last": "08-more/final"}
    models = ["smollm2", "run/02-sft/final", "run/04-dpo/final", "run/06-grpo/final", "run/08-more/final"]
    for (stage, goes_on_with), model in zip(onward.items(), models, strict=True):
        folders.evaluation(run / stage, {model: "1" * 20 + "0" * 20}, goes_on_with=goes_on_with)
    assert [row.before for row in rows(run)] == ["", "01-base", "03-after-sft", "05-after-dpo", "03-after-sft"]


def test_an_evaluation_is_compared_with_the_newest_one_of_the_same_tasks(tmp_path: Path):
    """Each model is evaluated on two sets of tasks."""
    both = [{"eval": {"name": "seen"}}, {"eval": {"name": "unseen"}}]
    run = folders.recipe(tmp_path / "run", {"sft": {}}, *both, {"dpo": {}}, *both)
    for stage, model in (("02", "01-sft"), ("05", "04-dpo")):
        solved = {f"run/{model}/final": "1" * 20 + "0" * 20}
        folders.evaluation(run / f"{stage}-seen", solved, goes_on_with=f"{model}/final")
        other = folders.evaluation(run / f"{int(stage) + 1:02}-unseen", solved, goes_on_with=f"{model}/final")
        file = other / "results.json"
        file.write_text(file.read_text().replace('"task": "t', '"task": "other-t'))
    found = rows(run)
    assert [row.before for row in found] == ["", "02-seen", "02-seen", "03-unseen"]
    assert [row.compared is not None for row in found] == [False, False, True, True]
