"""The experiments' commands are valid sweeps, stop and resume, and their tables show what the runs found."""

import json
import sys
from pathlib import Path

import pytest
from benchmarks import experiments
from benchmarks.experiment_table import tables
from benchmarks.experiments import EXPERIMENTS, STOPPED, Running, Sweep, prepare, report, run
from benchmarks.gsm8k_programs import program, tasks
from tokenizers import Tokenizer

import bough
from bough.cli import main
from bough.evaluation.results import ModelResult, Outcome, Results
from bough.models.resolve import resolve
from bough.worlds.interpreter.environment import Interpreter
from tests.evaluation.samples import result
from tests.report import folders

STAGES = [
    {"eval": {"name": "seen", "model": "expert"}},
    {"sft": {}},
    {"eval": {"name": "seen"}},
    {"grpo": {}},
    {"eval": {"name": "seen"}},
    {"eval": {"name": "unseen"}},
]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_sweeps_of_an_experiment_are_valid(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for sweep in EXPERIMENTS[name]:
        command = sweep.command(tmp_path / name, Path("data"), [])
        assert "$data" not in " ".join(command)
        assert main([*command[3:], "--dry-run"]) == 0
    assert not list(tmp_path.iterdir())


def played(folder: Path, sft: str, grpo: str, expert: str = "1" * 20) -> None:
    """A run in which SFT and then GRPO solved these of twenty tasks."""
    folders.recipe(folder, *STAGES)
    folders.evaluation(folder / "01-seen", {"expert": expert})
    folders.evaluation(folder / "03-seen", {"run/02-sft/final": sft})
    folders.evaluation(folder / "05-seen", {"04-grpo/final@1db45402": grpo})
    unseen = folders.evaluation(folder / "06-unseen", {"run/04-grpo/final": "1x"}) / "results.json"
    unseen.write_text(unseen.read_text().replace('"task": "t', '"task": "other-t'))


@pytest.fixture
def two_seeds(tmp_path: Path) -> Path:
    played(tmp_path / "model-a-seed-0", "1" * 10 + "0" * 10, "1" * 16 + "0" * 4)
    played(tmp_path / "model-a-seed-1", "1" * 8 + "0" * 12, "1" * 18 + "0" * 2)
    return tmp_path


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def test_a_row_has_the_success_of_all_seeds_and_the_gain_on_their_tasks(two_seeds: Path):
    head, _, expert, sft, grpo, unseen, *_ = rows(tables(two_seeds))
    found = [dict(zip(head, row, strict=True)) for row in (expert, sft, grpo, unseen)]
    assert [(one["evaluation"], one["model"], one["by seed, %"]) for one in found] == [
        ("seen", "expert", "100.0 100.0"), ("seen", "sft", "50.0 40.0"), ("seen", "grpo", "80.0 90.0"),
        ("unseen", "grpo", "100.0 100.0"),
    ]  # fmt: skip
    assert found[1]["success"].startswith("45.0% (")
    assert [one["gain"] for one in (found[0], found[1], found[3])] == ["", "", ""]
    # 6 + 10 of 40 episodes.
    assert found[2]["gain"].startswith("+40.0 (") and found[2]["gain"].endswith("; +30.0 +50.0")
    assert float(found[2]["p"]) < 0.05
    assert found[3]["episodes"] == "2, 2 lost"


def test_a_gain_is_on_the_same_tasks_whatever_the_evaluations_are_called(tmp_path: Path):
    run_folder = tmp_path / "a-seed-0"
    folders.recipe(run_folder, {"eval": {"name": "base"}}, {"sft": {}}, {"eval": {"name": "after-sft"}})
    folders.evaluation(run_folder / "01-base", {"data/models/coder.gguf@1db45402": "0" * 20})
    folders.evaluation(run_folder / "03-after-sft", {"run/02-sft/final": "1" * 10 + "0" * 10})
    head, _, base, sft = rows(tables(tmp_path))
    assert base[:2] == ["base", "coder.gguf"]
    assert sft[:2] == ["after-sft", "sft"] and sft[head.index("gain")].startswith("+50.0 (")


def test_tasks_that_both_seeds_play_count_once(tmp_path: Path):
    """Two seeds that solve the same eighteen of twenty tasks say no more about the tasks than one."""
    for seed in (0, 1):
        played(tmp_path / f"model-a-seed-{seed}", "0" * 20, "1" * 18 + "0" * 2)
    success = rows(tables(tmp_path))[4][2]
    low = float(success.partition("(")[2].partition("–")[0])
    assert low < 70.0  # Wilson's for 18 of 20 is 69.9; for 36 of 40 it would be 76.9


def test_the_turns_of_wins_stand_beside_the_experts_for_the_same_tasks(tmp_path: Path):
    played(tmp_path / "a-seed-0", "11" + "0" * 18, "1" * 20)
    folder = tmp_path / "a-seed-0" / "01-seen"
    found = Results.read(folder)
    (expert,) = found.models
    outcomes = [one.model_copy(update={"turns": 2 if one.task == "t0" else 9}) for one in expert.outcomes]
    found.model_copy(update={"models": [expert.model_copy(update={"outcomes": outcomes})]}).write(
        folder / "results.json"
    )
    head, _, _, sft, *_ = rows(tables(tmp_path))
    assert sft[head.index("turns per win")] == "3.0 (expert 5.5)"  # tasks t0 and t1: (2 + 9) / 2


def test_the_experts_replies_are_counted_in_the_models_tokens(tmp_path: Path):
    folder = tmp_path / "a-seed-0"
    folders.recipe(folder, {"eval": {"name": "seen", "model": "expert"}}, model="tiny")
    played = bough.collect("expert", "household", tasks=2, output=folder / "01-seen" / "models" / "expert")
    outcomes = [Outcome.of(episode) for episode in played]
    found = ModelResult(name="expert", outcomes=outcomes)
    Results(environment="household", seed=0, models=[found]).write(folder / "01-seen" / "results.json")
    tokenizer = Tokenizer.from_file(str(Path(resolve("tiny")) / "tokenizer.json"))
    tokens = [len(tokenizer.encode(turn.reply.content).ids) + 1 for episode in played for turn in episode.turns]
    head, _, expert = rows(tables(tmp_path))
    assert all(outcome.success for outcome in outcomes)
    assert expert[head.index("tokens per win")] == f"{sum(tokens) / 2:.1f}"


def test_types_and_mistakes_have_tables_with_a_column_per_model(tmp_path: Path):
    folder = tmp_path / "a-seed-0"
    folders.recipe(folder, {"eval": {"name": "base"}}, {"sft": {}}, {"eval": {"name": "base"}})
    for stage, name, solved in (("01-base", "tiny", "0 0"), ("03-base", "run/02-sft/final", "1 0")):
        found = result(name, solved, mistakes={"loop": int(solved == "0 0"), "other": 0})
        found.outcomes[0].__dict__["type"], found.outcomes[1].__dict__["type"] = "heat", "cool"
        Results(environment="household", seed=0, models=[found]).write(folder / stage / "results.json")
    text = tables(tmp_path)
    heat = next(row for row in rows(text) if row[0] == "heat")
    loop = next(row for row in rows(text) if row[0] == "loop")
    assert [cell.partition(" ")[0] for cell in heat] == ["heat", "0.0%", "100.0%"]
    assert [cell.partition(" ")[0] for cell in loop] == ["loop", "100.0%", "0.0%"]


def test_unfinished_evaluations_are_not_in_the_table(two_seeds: Path):
    for run_folder in two_seeds.iterdir():
        (run_folder / "05-seen" / "stage.json").unlink()
    assert [row[1] for row in rows(tables(two_seeds))[2:]] == ["expert", "sft", "grpo"]


def test_the_experts_stages_can_be_played_before_and_are_then_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """They need no model: here there is none of that name."""
    few = ("demonstrations.tasks=2", "seen.tasks=1", "unseen.tasks=1")
    sweep = Sweep("alfworld", ("model=$data/none.gguf",), few, seeds=2)
    assert prepare(sweep, tmp_path / "sweep", tmp_path, []) == 0
    found = sorted(path.relative_to(tmp_path / "sweep" / "runs") for path in tmp_path.glob("sweep/runs/*/[0-9]*"))
    assert [path.name for path in found] == ["01-seen", "02-unseen", "03-demonstrations", "04-demos"] * 2
    capsys.readouterr()
    assert prepare(sweep, tmp_path / "sweep", tmp_path, []) == 0
    assert capsys.readouterr().err.count("already done") == 8


def test_seeds_and_processes_can_be_fewer_but_not_more():
    sweep = Sweep("demo", seeds=3, jobs=2)
    assert sweep.limited(None, None) == sweep
    assert sweep.limited(1, 1) == Sweep("demo", seeds=1, jobs=1)
    assert sweep.limited(5, 5) == sweep


def test_limits_reach_the_commands_and_what_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    commands, prepared = list[list[str]](), list[Sweep]()
    monkeypatch.setattr(experiments, "run", lambda running, _: commands.extend(running[0].commands))
    monkeypatch.setattr(experiments, "prepare", lambda sweep, *_: prepared.append(sweep) or 0)
    given = ["experiments", "mistakes", "--seeds", "1", "--folder", f"{tmp_path}", "--results", f"{tmp_path}"]
    monkeypatch.setattr(sys, "argv", given)
    assert experiments.main() == STOPPED
    monkeypatch.setattr(sys, "argv", [*given, "--prepare"])
    assert experiments.main() == 0
    ((command,), (sweep,)) = commands, prepared
    assert command[command.index("--seeds") + 1] == "1" and sweep.seeds == 1


def says(word: str, file: Path) -> list[str]:
    return [sys.executable, "-c", f"open({str(file)!r}, 'a').write({word!r})"]


def test_the_sweeps_of_an_experiment_run_one_after_the_other(tmp_path: Path):
    both = [
        Running(name, [says("1", tmp_path / name), says("2", tmp_path / name)], tmp_path / f"{name}-runs")
        for name in "ab"
    ]
    run(both, limit_s=60)
    assert [(tmp_path / name).read_text() for name in "ab"] == ["12", "12"]
    assert not any(one.unfinished or one.failed for one in both)


def test_each_sweep_in_a_folder_keeps_its_table_and_its_figure(tmp_path: Path):
    folder = tmp_path / "runs"
    folder.mkdir()
    writes = [
        [sys.executable, "-c", f"from pathlib import Path; Path({str(folder / file)!r}).write_text({word!r})"]
        for file, word in (("results.md", "first"), ("figure.svg", "second"))
    ]
    one = Running("a", list(writes), folder)
    run([one], limit_s=60)
    assert (tmp_path / "a-1.md").read_text() == "first" and not (tmp_path / "a-1.svg").exists()
    assert (tmp_path / "a-2.svg").read_text() == "second" and not (tmp_path / "a-2.md").exists()
    assert report(one, writes).count("first") == 1


def test_a_sweep_that_fails_is_named_and_the_next_one_runs(tmp_path: Path):
    commands = [[sys.executable, "-c", "raise SystemExit(5)"], says("2", tmp_path / "a")]
    one = Running("a", list(commands), tmp_path / "runs")
    run([one], limit_s=60)
    assert "exit code 5" in one.failed[0] and (tmp_path / "a").read_text() == "2"
    assert "Failed: sweep 1 ended with exit code 5" in report(one, commands)


def test_at_the_limit_every_process_is_ended(tmp_path: Path):
    one = Running("a", [[sys.executable, "-c", "import time; time.sleep(600)"], ["never"]], tmp_path / "runs")
    run([one], limit_s=0)
    assert one.unfinished and one.process is not None and one.process.returncode is not None


@pytest.mark.parametrize("given", [["--limit-s", "0"], ["--tables-only"]])
def test_an_unfinished_experiment_has_a_table_of_what_has_finished(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    runs = tmp_path / "runs" / "made" / "runs"
    played(runs / "model-a-seed-0", "1" * 10 + "0" * 10, "1" * 18 + "0" * 2)
    waits = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setitem(EXPERIMENTS, "made", (Sweep("demo"),))
    monkeypatch.setattr(Sweep, "command", lambda *_: waits)
    folders_given = ["--folder", f"{tmp_path / 'runs'}", "--results", f"{tmp_path / 'results'}"]
    monkeypatch.setattr(sys, "argv", ["experiments", "made", *folders_given, *given])
    assert experiments.main() == STOPPED
    assert (tmp_path / "runs" / "made.log").exists() == ("--limit-s" in given)
    text = (tmp_path / "results" / "made.md").read_text()
    assert "Not finished" in text and "| seen | grpo | 90.0%" in text


SOLUTION = """Natalia sold 48/2 = <<48/2=24>>24 clips in May.
Altogether that is $<<48+24=72>>72.
#### 72"""


def test_a_worked_solution_becomes_a_program_that_computes_its_results():
    assert program(SOLUTION, 72.0) == (
        "# Natalia sold 48/2 clips in May.\nstep_1 = 48/2\n# Altogether that is 48+step_1.\nstep_2 = 48+step_1\n"
        "print(round(step_2))"
    )
    assert program(SOLUTION, 73.0) is None
    assert program("He has <<10%*5=0.5>>0.5.\n#### 0.5", 0.5) is None
    assert program("It is obvious.\n#### 5", 5.0) is None


def test_programs_are_written_for_training_problems_only(tmp_path: Path):
    file = tmp_path / "gsm8k.jsonl"
    problems = [{"question": f"Problem {number}?", "answer": SOLUTION} for number in range(40)]
    file.write_text("\n".join(map(json.dumps, problems)))
    written = {str(task["id"]) for task in tasks(file)}
    by_split = {
        split: {task.id for task in Interpreter.tasks(Interpreter.Options(file=file), split=split)}
        for split in ("train", "seen", "unseen")
    }
    assert written == by_split["train"] and by_split["unseen"] and not written & by_split["unseen"]
