import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bough.commands.evaluate import evaluate_command
from bough.data.reader import read
from bough.errors import InputError
from bough.evaluation.comparison import compare
from bough.evaluation.contest import EvalConfig
from bough.evaluation.gate import Decision, gate
from bough.evaluation.results import Results
from bough.evaluation.success import report
from bough.experiments.recipe import Gate, Recipe, judge, read_recipe
from bough.experiments.record import StageRecord
from bough.experiments.run import Run, RunConfig, summary
from bough.files import locked
from bough.training.trackers import RecipeTracker
from bough.types import Group
from tests.standing_in import stand_in

COUNTING = "tests.environments.worlds:Counting"


def recipe(*stages: Any, **more: Any) -> Recipe:
    return Recipe(name="test", model="tiny", defaults={"environment": COUNTING}, stages=list(stages), **more)


def played(folder: Path, *stages: Any, **more: Any) -> list[str]:
    lines: list[str] = []
    Run(recipe(*stages, **more), folder).play(lines.append)
    return lines


COLLECT = {"collect": {"model": "expert", "tasks": 3, "name": "expert"}}
SFT = {"sft": {"max_steps": 1, "max_length": 256}}


def test_stages_feed_each_other(tmp_path: Path):
    assert played(tmp_path / "run", COLLECT, {"demos": {}}, SFT) == ["01-expert", "02-demos", "03-sft"]
    records = [StageRecord.read(tmp_path / "run" / name) for name in ("01-expert", "02-demos", "03-sft")]
    assert all(record and record.finished for record in records)
    assert records[1].inputs["file"] == records[0].outputs["trajectories"]  # type: ignore[union-attr]
    assert records[2].inputs["train_file"] == records[1].outputs["demonstrations"]  # type: ignore[union-attr]
    assert (tmp_path / "run/03-sft/final/adapter_model.safetensors").exists()


@pytest.mark.parametrize("advantage", ["state", "graph"])
def test_a_recipe_credits_steps_by_state(tmp_path: Path, advantage: str):
    learn = {"environment": "tests.online.letters:Corridor", "advantage": advantage, "max_steps": 1, "batch_size": 1}
    assert played(tmp_path / "run", {"grpo": {**learn, "group_size": 4, "max_new_tokens": 4}}) == ["01-grpo"]
    [group] = read(tmp_path / "run/01-grpo/rollouts/00000.jsonl")
    assert isinstance(group, Group)
    assert [[turn.state for turn in attempt.turns] for attempt in group.attempts] == [["0", "1", "2"]] * 4
    assert (tmp_path / "run/01-grpo/final/adapter_model.safetensors").exists()


def test_what_has_not_changed_is_not_run_again_and_what_has_is(tmp_path: Path):
    folder = tmp_path / "run"
    played(folder, COLLECT, {"demos": {}})
    made = (folder / "01-expert/trajectories.jsonl").stat().st_mtime_ns
    assert played(folder, COLLECT, {"demos": {}}) == ["01-expert: already done", "02-demos: already done"]
    lines = played(folder, COLLECT, {"demos": {"longest": 2}})
    assert lines == [
        "01-expert: already done",
        "02-demos: its settings or inputs have changed; starting over",
        "02-demos",
    ]
    assert (folder / "01-expert/trajectories.jsonl").stat().st_mtime_ns == made


def test_a_stage_that_was_cut_short_goes_on(tmp_path: Path):
    folder = tmp_path / "run"
    played(folder, COLLECT)
    record = StageRecord.read(folder / "01-expert")
    assert record is not None
    record.finished = False
    record.write(folder / "01-expert")
    lines = (folder / "01-expert/trajectories.jsonl").read_text().splitlines(keepends=True)
    (folder / "01-expert/trajectories.jsonl").write_text(lines[0])
    assert played(folder, COLLECT) == ["01-expert"]
    assert (folder / "01-expert/trajectories.jsonl").read_text() == "".join(lines)
    report = json.loads((folder / "01-expert/report.json").read_text())
    assert report["episodes"] == 3 and report["episodes_this_run"] == 2, "the episode on file was not played again"


def test_all_problems_are_named_before_anything_runs(tmp_path: Path):
    with pytest.raises(InputError) as error:
        Run(recipe({"colect": {}}, {"sft": {"max_stepz": 1}}, {"demos": {"from": "nowhere"}}), tmp_path / "run")
    problems = "\n".join(error.value.problems)
    assert "colect is not a stage; did you mean collect?" in problems
    assert "max_stepz is not a setting; did you mean" in problems
    assert "there is no earlier stage 'nowhere'" in problems
    assert not (tmp_path / "run").exists()


def test_all_weights_after_an_adapter_are_refused_before_anything_runs(tmp_path: Path):
    whole, adapter = {"lora": {"enabled": False}}, {"max_steps": 1}
    with pytest.raises(InputError) as error:
        Run(recipe(COLLECT, {"demos": {}}, {"sft": whole}, {"sft": adapter}, {"sft": whole}), tmp_path / "run")
    (problem,) = error.value.problems
    assert problem.startswith("stages[4].sft: use_lora is false, but the model is the adapter of 04-sft")
    Run(recipe(COLLECT, {"demos": {}}, {"sft": whole}, {"sft": whole}, {"sft": adapter}), tmp_path / "run")


def test_nothing_outside_the_run_folder_is_written_or_removed(tmp_path: Path):
    other, folder = tmp_path / "other", tmp_path / "run"
    (other / "checkpoints").mkdir(parents=True)
    (other / "precious").write_text("mine")
    for settings in ({"name": "../../other"}, {"output": str(other), "overwrite": True}):
        with pytest.raises(InputError, match=r"a name consists of|output is set by the run"):
            played(folder, {"collect": {"model": "expert", "tasks": 1, **settings}})
    with pytest.raises(InputError, match="output_dir is set by the run, which gives each stage a folder; remove it"):
        played(folder, COLLECT, {"demos": {}}, {"sft": {"output_dir": str(other), "overwrite": True}})
    folder.mkdir()
    played(folder, COLLECT)
    (folder / "01-expert/link").symlink_to(other)
    played(folder, {"collect": {**COLLECT["collect"], "tasks": 4}})  # started over: the link goes, its target stays
    (folder / "01-expert").rename(tmp_path / "moved")
    (folder / "01-expert").symlink_to(other)
    with pytest.raises(InputError, match="01-expert is a symbolic link"):
        played(folder, COLLECT)
    assert sorted(path.name for path in other.iterdir()) == ["checkpoints", "precious"]


def test_two_runs_at_once_need_two_folders(tmp_path: Path):
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        with pytest.raises(InputError, match="is in use by another `bough run`; give another --output-dir"):
            Run(recipe(COLLECT), tmp_path / "one").play(told.append)
        if len(told) == 1:
            Run(recipe(COLLECT), tmp_path / "two").play(told.append)

    Run(recipe(COLLECT), tmp_path / "one").play(tell)
    assert told == ["01-expert", "01-expert"]
    (tmp_path / "three").mkdir()
    (tmp_path / "three/.lock").touch()  # killed before it had written anything,
    (tmp_path / "three/.recipe.yaml.123.yaml").touch()  # or while it wrote its first file
    assert played(tmp_path / "three", COLLECT) == ["01-expert"]


def test_a_stage_may_name_several_to_read_from(tmp_path: Path):
    other = {"collect": {"model": "expert", "tasks": 2, "split": "seen", "name": "seen"}}
    played(tmp_path / "run", COLLECT, other, {"demos": {"from": ["seen", "expert"]}})
    assert len((tmp_path / "run/03-demos/demonstrations.jsonl").read_text().splitlines()) == 5
    record = StageRecord.read(tmp_path / "run/03-demos")
    assert record is not None and set(record.inputs) == {"file", "also"}


def test_a_model_may_be_that_of_an_earlier_stage(tmp_path: Path):
    run = Run(
        recipe(
            {"sft": {"name": "teacher", "train_file": "shown.jsonl", "model": "large"}},
            {"sft": {"name": "student", "train_file": "shown.jsonl", "model": "small"}},
            {"collect": {"name": "play", "model": "teacher"}},
            {"distill": {"model": "student", "teacher": "teacher", "max_steps": 1}},
            {"eval": {"model": ["student", "play", "expert"], "tasks": 1}},
        ),
        tmp_path,
    )
    teacher, student = (str(tmp_path / folder / "final") for folder in ("01-teacher", "02-student"))
    found = [given for _, given in run.settings()]
    assert [given["model"] for given in found[:4]] == ["large", "small", teacher, student]
    assert found[3]["teacher"] == teacher
    assert found[4]["model"] == [student, "play", "expert"]  # `play` trains no model


def test_a_later_round_plays_other_tasks(tmp_path: Path):
    played(tmp_path / "run", {"repeat": {"rounds": 2, "stages": [COLLECT]}})
    first, second = (
        (tmp_path / "run" / name / "config.yaml").read_text() for name in ("01-expert", "02-expert-round-2")
    )
    assert "\nseed: 0\n" in first and "\nseed: 1\n" in second


@pytest.fixture
def plays(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Who plays in a stage's stead, by the stage's name: models that were trained for a moment are all alike."""
    stead: dict[str, str] = {}

    def evaluated(config: EvalConfig) -> int:
        assert config.output is not None
        player = stead.get(config.output.name.partition("-")[2], config.agent.model[0])
        return evaluate_command(EvalConfig(**config.flat_dump() | {"model": [player]}))

    stand_in(monkeypatch, "eval", evaluated)
    return stead


BEFORE = {"eval": {"name": "before", "tasks": 12}}
AFTER = {"eval": {"name": "after", "tasks": 12, "gate": {"alpha": 0.05}}}
PLAYED = {"collect": {"name": "played", "tasks": 1, "max_turns": 1}}


@pytest.mark.parametrize(("before", "onward"), [("random", "04-sft/final"), ("expert", "tiny")])
def test_a_gate_lets_a_better_model_through_and_sends_back_another(
    tmp_path: Path, plays: dict[str, str], before: str, onward: str
):
    plays |= {"before": before, "after": "expert"}
    lines = played(tmp_path / "run", BEFORE, COLLECT, {"demos": {}}, SFT, AFTER, PLAYED)
    assert any(line.startswith("05-after: ") for line in lines), "its reason is told"
    record = StageRecord.read(tmp_path / "run/05-after")
    assert record is not None and record.goes_on_with == onward and record.note
    assert onward in (tmp_path / "run/06-played/config.yaml").read_text()


@pytest.mark.parametrize(
    ("stage", "problem"),
    [
        ({"eval": {"gate": {"against": "bfore"}}}, "evaluation 'bfore'; did you mean before?"),
        ({"eval": {"gate": {"against": "expert"}}}, "no earlier evaluation 'expert'"),
        ({"eval": {"gate": {"alpa": 0.05}}}, "alpa"),
        ({"eval": {"gate": {"alpha": 2}}}, "alpha"),
        ({"eval": {"gate": 0.05}}, "settings are a mapping"),
        ({"collect": {"model": "expert", "gate": {}}}, "only an evaluation of the run's own model"),
        ({"eval": {"model": ["random", "expert"], "gate": {}}}, "only an evaluation of the run's own model"),
        ({"eval": {"model": "expert", "gate": {}}}, "only an evaluation of the run's own model"),
    ],
)
def test_a_gate_that_cannot_work_is_said_before_anything_runs(tmp_path: Path, stage: Any, problem: str):
    before = {"eval": {"name": "before", "tasks": 2}}
    with pytest.raises(InputError) as error:
        Run(recipe(before, COLLECT, stage), tmp_path / "run")
    assert problem in str(error.value) and "stages[2]" in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("by_type", [False, True])
def test_a_gate_by_type_sends_back_what_is_worse_on_one_type(tmp_path: Path, by_type: bool, plays: dict[str, str]):
    """The files of both evaluations are given types, and the second fails on one of them."""
    plays |= {"before": "random", "after": "expert"}

    def judged(old: Path, new: Path, given: Gate) -> Decision:
        for path, lucky in ((old, "y"), (new, "x")):
            results = Results.read(path)
            model = results.models[-1]
            typed = [
                one.model_copy(update={"type": "xy"[i >= 12], "success": "xy"[i >= 12] == lucky})
                for i, one in enumerate(model.outcomes)
            ]
            changed = model.model_copy(update={"outcomes": typed})
            results.model_copy(update={"models": [changed]}).write(path)
        return judge(old, new, given)

    after = {"eval": {"name": "after", "tasks": 18, "gate": {"by_type": by_type, "alpha": 0.2}}}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("bough.experiments.run.judge", judged)
        played(tmp_path / "run", {"eval": {"name": "before", "tasks": 18}}, COLLECT, {"demos": {}}, SFT, after)
    record = StageRecord.read(tmp_path / "run/05-after")
    assert record is not None and record.goes_on_with == ("tiny" if by_type else "04-sft/final")
    assert ("is worse on y" in str(record.note)) == by_type


def test_an_evaluation_of_somebody_else_is_no_measure_for_a_gate(tmp_path: Path, plays: dict[str, str]):
    """An expert's ceiling stands in the table; the trained model is compared with the one before."""
    plays |= {"before": "random", "after": "expert"}
    ceiling = {"eval": {"name": "ceiling", "model": "expert", "tasks": 12}}
    played(tmp_path / "run", BEFORE, ceiling, COLLECT, {"demos": {}}, SFT, AFTER)
    record, aside = (StageRecord.read(tmp_path / "run" / name) for name in ("06-after", "02-ceiling"))
    assert record is not None and record.goes_on_with == "05-sft/final", record
    assert aside is not None and aside.goes_on_with == "tiny" and not aside.note


def test_a_gate_knows_of_an_evaluation_that_was_stopped_by_looking(tmp_path: Path, plays: dict[str, str]):
    plays |= {"before": "random", "after": "expert"}
    early = {"tasks": 12, "stop_width": 0.9}
    after = {"eval": {"name": "after", **early, "gate": {"alpha": 0.05}}}
    played(tmp_path / "run", {"eval": {"name": "before", **early}}, COLLECT, {"demos": {}}, SFT, after)
    before, after_it = (Results.read(tmp_path / "run" / name).models[0] for name in ("01-before", "05-after"))
    record = StageRecord.read(tmp_path / "run/05-after")
    assert record is not None and f"p = {gate(before, after_it, sequential=True).p:.2g}" in record.note
    row = summary(tmp_path / "run", read_recipe(tmp_path / "run"))[1]
    found = report(after_it.outcomes, sequential=True).success
    assert found is not None and found.interval is not None and row.low == pytest.approx(found.interval.low)
    assert (
        row.compared is not None and row.compared.success.p == compare([before, after_it], sequential=True)[0].success.p
    )


def test_the_likelihoods_of_a_file_are_a_stage_too(tmp_path: Path):
    stages = [COLLECT, {"demos": {}}, {"eval": {"name": "likely", "eval_file": str(tmp_path / "held-out.jsonl")}}]
    played(tmp_path / "first", *stages[:2])
    shutil.copy(tmp_path / "first/02-demos/demonstrations.jsonl", tmp_path / "held-out.jsonl")
    played(tmp_path / "run", *stages, seed=3)
    assert "perplexity" in (tmp_path / "run/03-likely/results.json").read_text()


def test_another_name_of_a_setting_is_that_setting(tmp_path: Path):
    run = Run(recipe({"eval": {"model": "random", "episodes": 3}}), tmp_path / "run")
    [(_, settings)] = run.settings()
    assert (settings["model"], settings["tasks"]) == (["random"], 3)


def test_defaults_that_the_run_would_override_are_named(tmp_path: Path):
    ignored = {"environment": COUNTING, "seed": 7, "model": "smollm2", "report_to": ["wandb"], "output_dir": "x"}
    with pytest.raises(InputError) as error:
        Run(Recipe(name="test", model="tiny", defaults=ignored, stages=[COLLECT]), tmp_path / "run")
    assert sorted(error.value.problems) == [
        "defaults.model would be ignored: give `model` at the top of the recipe, or --set model=…",
        "defaults.output_dir would be ignored: the run sets it for each stage",
        "defaults.report_to would be ignored: the run sets it for each stage",
        "defaults.seed would be ignored: give `seed` at the top of the recipe, or --set seed=…",
    ]


def test_in_a_later_round_the_gate_compares_with_the_round_before(tmp_path: Path, plays: dict[str, str]):
    """Round by round on the same tasks: not with itself, which has the same name."""
    plays |= {"first": "expert", "judged": "random", "judged-round-2": "random"}
    judged = {"eval": {"name": "judged", "tasks": 8, "gate": {"alpha": 0.05}}}
    first = {"eval": {"name": "first", "tasks": 8}}
    played(tmp_path / "run", first, {"repeat": {"rounds": 2, "stages": [COLLECT, judged]}})
    notes = [StageRecord.read(tmp_path / "run" / name) for name in ("03-judged", "05-judged-round-2")]
    points = [note.note.split("(")[1].split(" points")[0] for note in notes if note]
    assert points[0] == points[1] and float(points[0]) < -20
    seeds = {Results.read(tmp_path / "run" / name).seed for name in ("01-first", "03-judged", "05-judged-round-2")}
    assert seeds == {0}


def test_mlflow_has_a_parent_with_a_child_for_each_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mlflow = pytest.importorskip("mlflow", reason="the mlflow extra is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    stages = [COLLECT, {"demos": {}}, SFT, {"eval": {"model": "expert", "tasks": 4}}]
    for number in (3, 4):  # stopped and gone on with: the same parent, nothing twice
        Run(recipe(*stages[:number]), tmp_path / "runs/run", report_to=["mlflow"]).play(lambda _: None)
    found = {run.info.run_name: run for run in mlflow.search_runs(experiment_names=["bough"], output_format="list")}
    assert sorted(found) == ["01-expert", "02-demos", "03-sft", "04-eval", "test"]
    parent = found.pop("test")
    assert {run.data.tags["mlflow.parentRunId"] for run in found.values()} == {parent.info.run_id}
    assert {run.info.status for run in [parent, *found.values()]} == {"FINISHED"}
    assert parent.data.params["model"] == "tiny"
    assert found["01-expert"].data.metrics["success_rate"] == 1.0
    assert found["02-demos"].data.metrics["trajectories_kept"] == 3
    assert found["03-sft"].data.metrics["loss"] > 0 and found["03-sft"].data.params["max_steps"] == "1"
    assert found["04-eval"].data.metrics["success"] == 1.0 > found["04-eval"].data.metrics["success_low"]
    kept = {item.path for item in mlflow.MlflowClient().list_artifacts(parent.info.run_id)}
    assert kept == {"recipe.yaml", "lineage.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["runs"], "nothing lies about elsewhere"


def test_what_mlflow_does_not_take_does_not_stop_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    mlflow = pytest.importorskip("mlflow", reason="the mlflow extra is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def broken(*_: object) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(mlflow, "log_artifact", broken)
    Run(recipe(COLLECT, {"demos": {}}), tmp_path / "runs/run", report_to=["mlflow"]).play(lambda _: None)
    assert (tmp_path / "runs/run/02-demos/demonstrations.jsonl").exists()
    assert "failed on 01-expert: the disk is full" in caplog.text
    monkeypatch.setattr(RecipeTracker, "_search", broken)
    Run(recipe(COLLECT, {"demos": {}}, SFT), tmp_path / "runs/other", report_to=["mlflow"]).play(lambda _: None)
    assert (tmp_path / "runs/other/03-sft/final").is_dir()
    assert caplog.text.count("mlflow cannot be opened: the disk is full. The run continues without it") == 1
    assert not (tmp_path / "runs/other/mlflow.db").exists(), "no stage opens a database of its own"


def test_a_training_that_was_cut_before_its_first_checkpoint_starts_over(tmp_path: Path):
    stages = [COLLECT, {"demos": {}}, SFT]
    played(tmp_path / "run", *stages)
    folder = tmp_path / "run/03-sft"
    weights = (folder / "final/adapter_model.safetensors").read_bytes()
    for name in ("final", "checkpoints"):
        shutil.rmtree(folder / name, ignore_errors=True)
    record = StageRecord.read(folder)
    assert record is not None and (folder / "config.yaml").exists()
    record.finished = False
    record.write(folder)
    played(tmp_path / "run", *stages)
    assert (folder / "final/adapter_model.safetensors").read_bytes() == weights


@pytest.mark.parametrize("file", [".lock", "trajectories.jsonl"])
def test_a_stage_in_use_is_not_deleted_when_its_settings_change(tmp_path: Path, file: str):
    """Another process works in the stage's folder: `bough sft --resume` holds .lock, `bough collect` its output."""
    folder = tmp_path / "run"
    played(folder, COLLECT)
    before = (folder / "01-expert/trajectories.jsonl").read_text()
    with locked(folder / "01-expert" / file, wait=False):
        with pytest.raises(InputError, match="01-expert is in use: another process is writing there"):
            played(folder, {"collect": {**COLLECT["collect"], "tasks": 4}})
        assert (folder / "01-expert/trajectories.jsonl").read_text() == before
        record = StageRecord.read(folder / "01-expert")
        assert record is not None and record.finished
    played(folder, {"collect": {**COLLECT["collect"], "tasks": 4}})
    assert len((folder / "01-expert/trajectories.jsonl").read_text().splitlines()) == 4


def test_a_folder_of_other_things_gets_no_lock_file(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(InputError, match="contains other files"):
        played(tmp_path, COLLECT)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("installed", [True, False])
def test_a_run_is_reported_to_mlflow_where_it_is_installed_unless_the_settings_say_otherwise(
    installed: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("bough.experiments.run.find_spec", lambda _: object() if installed else None)
    assert Run.configured(RunConfig(recipe="demo-household")).report_to == (["mlflow"] if installed else [])
    assert Run.configured(RunConfig(recipe="demo-household", report_to=["none"])).report_to == []
    chosen = Run.configured(RunConfig(recipe="demo-household", report_to=["wandb"], output_dir=Path("x")))
    assert chosen.report_to == ["wandb"] and chosen.folder == Path("x")


def test_corrections_of_every_round_are_added_to_the_data_so_far(tmp_path: Path):
    rounds = {"repeat": {"rounds": 2, "stages": [
        {"collect": {"model": "random", "tasks": 2, "name": "own"}}, {"corrections": {}},
    ]}}  # fmt: skip
    played(tmp_path / "run", COLLECT, {"demos": {}}, rounds)
    first, second = (
        [json.loads(line)["info"]["rule"] for line in (tmp_path / "run" / name).read_text().splitlines()]
        for name in ("04-corrections/corrections.jsonl", "06-corrections-round-2/corrections.jsonl")
    )
    assert first.count("demonstration") == second.count("demonstration") == 3
    assert 0 < first.count("correction") < second.count("correction") <= 4
    record = StageRecord.read(tmp_path / "run/06-corrections-round-2")
    assert record is not None and record.inputs["by"] == "expert"
    earlier = [StageRecord.read(tmp_path / "run" / name) for name in ("02-demos", "04-corrections")]
    assert record.inputs["mix"] == ",".join(one.outputs["demonstrations"] for one in earlier if one)


def test_a_stage_may_leave_out_what_would_be_mixed_in(tmp_path: Path):
    stages = [COLLECT, {"demos": {}}, {"collect": {"model": "random", "tasks": 2}}, {"corrections": {"mix": []}}]
    [*_, (_, config)] = Run(recipe(*stages), tmp_path / "run").settings()
    assert config["mix"] == []
    [*_, (_, config)] = Run(recipe(*stages[:3], {"corrections": {}}), tmp_path / "run").settings()
    assert config["mix"] == [str(tmp_path / "run/02-demos/demonstrations.jsonl")]
