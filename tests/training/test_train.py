"""The stages through the command line, on real files of each seed format, with a real (tiny) model."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from bough.cli import main
from bough.config.run_folder import MetricsFile, RunDir
from bough.models.resolve import resolve
from bough.models.tiny import CONTEXT

SAMPLES = Path(__file__).parents[1] / "samples"
EXAMPLES = Path(__file__).parents[2] / "examples"
# Short rows, for tests of what surrounds the training steps.
EPISODES, PAIRS = SAMPLES / "trl_messages.jsonl", SAMPLES / "roundwise_dpo.jsonl"
FAST = ["--model", "tiny", "--learning-rate", "2e-2", "--batch-size", "8", "--token-budget", "4096", "--lora-r", "8"]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def train(verb: str, file: Path, run: Path, *more: str) -> list[dict[str, Any]]:
    assert main([verb, "--train-file", str(file), "--output-dir", str(run), *FAST, *more]) == 0
    return MetricsFile.read(run / "metrics.jsonl")


@pytest.fixture(scope="module")
def one_step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step, to be copied."""
    run = tmp_path_factory.mktemp("one-step") / "run"
    train("sft", EPISODES, run, "--max-steps", "1")
    return run


@pytest.mark.parametrize(
    "sample", ["knowlyr_sft_steps", "knowlyr_sft_flat", "trl_messages", "openai_tools", "sharegpt", "agentinstruct"]
)
def test_sft_learns_from_every_format(sample: str, tmp_path: Path):
    lines = train("sft", SAMPLES / f"{sample}.jsonl", tmp_path / "run", "--max-steps", "8")
    assert lines[-1]["loss"] < 0.7 * lines[0]["loss"]


@pytest.mark.parametrize("sample", ["knowlyr_dpo", "roundwise_dpo", "trl_preference", "trl_preference_strings"])
def test_dpo_learns_from_every_format(sample: str, tmp_path: Path):
    lines = train("dpo", SAMPLES / f"{sample}.jsonl", tmp_path / "run", "--max-steps", "6")
    assert lines[0]["loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert lines[-1]["accuracy"] > 0.95
    assert lines[-1]["margin"] > lines[0]["margin"]


def test_grpo_makes_the_rewarded_answer_likelier(tmp_path: Path):
    more = ["--max-steps", "20", "--clip-high", "10", "--clip-low", "1"]
    train("grpo", SAMPLES / "knowlyr_grpo.jsonl", tmp_path / "run", *more)
    before, after = (best_and_worst(model) for model in ("tiny", str(tmp_path / "run" / "final")))
    assert after[0] > before[0]
    assert after[0] - after[1] > before[0] - before[1]


def best_and_worst(model: str) -> tuple[float, float]:
    """Log-probabilities of the best and the worst attempt of the first group."""
    from bough.chat.template import CallBuilder, load_template
    from bough.data.reader import read
    from bough.policy.policy import Policy
    from bough.types import Group

    group = next(iter(read(SAMPLES / "knowlyr_grpo.jsonl")))
    assert isinstance(group, Group)
    attempts = sorted(group.attempts, key=lambda attempt: attempt.rewards["reward"] or 0)
    policy = Policy.load(model).eval()
    builder = CallBuilder(load_template("tiny"))
    sums = []
    for attempt in (attempts[-1], attempts[0]):
        calls = [built.call for built in builder.build(attempt.start, attempt.turns, []) if built.call]
        sums.append(sum(float(logprobs.sum()) for logprobs in policy.logprobs(calls)))
    return sums[0], sums[1]


def test_a_run_leaves_settings_metrics_ledger_and_weights(tmp_path: Path):
    run = tmp_path / "run"
    lines = train("sft", EPISODES, run, "--num-epochs", "1")
    assert [line["step"] for line in lines] == [1]
    settings = yaml.safe_load((run / "config.yaml").read_text())
    assert settings["lora"]["r"] == 8 and settings["optimizer"]["learning_rate"] == 0.02
    rows, calls = json.loads((run / "ledger.json").read_text())
    assert rows == {"item": "rows", "in": 3, "kept": 3, "dropped": {}}
    assert calls["in"] == calls["kept"] == 6
    assert (run / "final" / "adapter_model.safetensors").exists()


def test_stages_chain_by_naming_the_folder(tmp_path: Path):
    train("sft", EPISODES, tmp_path / "sft", "--max-steps", "3")
    common = ["--train-file", str(PAIRS), "--max-steps", "2", "--output-dir"]
    assert main(["dpo", *common, str(tmp_path / "dpo"), "--model", str(tmp_path / "sft" / "final")]) == 0
    first = MetricsFile.read(tmp_path / "dpo" / "metrics.jsonl")[0]
    # The reference is the SFT adapter, so nothing has moved yet.
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert yaml.safe_load((tmp_path / "dpo" / "config.yaml").read_text())["lora"]["r"] == 8


def test_another_shape_is_an_error_unless_it_may_be_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    train("sft", EPISODES, tmp_path / "sft", "--max-steps", "2")
    dpo = ["dpo", "--train-file", str(PAIRS), "--max-steps", "1", "--lora-r", "12"]
    dpo += ["--model", str(tmp_path / "sft" / "final"), "--output-dir", str(tmp_path / "dpo")]
    assert main(dpo) == 2
    assert "lora_r is 12 here and 8 there" in capsys.readouterr().err
    assert main([*dpo, "--merge-lora"]) == 0
    first = MetricsFile.read(tmp_path / "dpo" / "metrics.jsonl")[0]
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert json.loads((tmp_path / "dpo" / "final" / "adapter_config.json").read_text())["r"] == 12


def used(run: Path) -> tuple[int, int, float, list[str]]:
    config = json.loads((run / "final" / "adapter_config.json").read_text())
    return config["r"], config["lora_alpha"], config["lora_dropout"], config["target_modules"]


def told(run: Path) -> tuple[int, int, float, list[str]]:
    lora = yaml.safe_load((run / "config.yaml").read_text())["lora"]
    return lora["r"], lora["alpha"], lora["dropout"], lora["target_modules"]


def test_all_weights_can_be_trained_with_a_precomputed_reference(tmp_path: Path):
    run = tmp_path / "run"
    lines = train(
        "dpo", SAMPLES / "roundwise_dpo.jsonl", run, "--max-steps", "8", "--no-use-lora", "--learning-rate", "1e-3"
    )
    assert lines[0]["loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert (run / "final" / "model.safetensors").exists()
    assert list((run / "cache").glob("reference-*.safetensors"))


def test_all_weights_keep_their_reference_when_other_settings_ask_for_it_again(tmp_path: Path):
    run = tmp_path / "run"
    full = ["--max-steps", "4", "--save-steps", "2", "--no-use-lora", "--learning-rate", "1e-3"]
    whole = train("dpo", PAIRS, run, *full)
    cut(run, 2)
    held_out = ["--eval-file", str(SAMPLES / "knowlyr_dpo.jsonl")]
    resumed = [line for line in train("dpo", PAIRS, run, *full, *held_out, "--resume") if "loss" in line]
    assert whole[-1]["margin"] > 0.01
    assert [line["margin"] for line in resumed] == pytest.approx([line["margin"] for line in whole], abs=1e-4)


def cut(run: Path, step: int) -> None:
    """Leaves the run as if it had been killed after this step's checkpoint."""
    for path in (run / "checkpoints").iterdir():
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path)


def shortest_episode(folder: Path) -> Path:
    """A file of the example's shortest episode: many turns that share a long start."""
    lines = (EXAMPLES / "household.jsonl").read_text().splitlines(keepends=True)
    (folder / "short.jsonl").write_text(min(lines, key=len))
    return folder / "short.jsonl"


def test_sharing_changes_the_speed_and_not_the_result(tmp_path: Path):
    file = shortest_episode(tmp_path)
    for name, more in (("tree", []), ("plain", ["--no-share"])):
        train("sft", file, tmp_path / name, "--max-steps", "2", *more)
    one, two = (MetricsFile.read(tmp_path / name / "metrics.jsonl") for name in ("tree", "plain"))
    assert [line["loss"] for line in one] == pytest.approx([line["loss"] for line in two], rel=1e-4)
    assert one[0]["shared"] > 5 and two[0]["shared"] == 1


def test_a_run_folder_in_use_is_never_trained_over_unasked(
    tmp_path: Path, one_step: Path, capsys: pytest.CaptureFixture[str]
):
    run = Path(shutil.copytree(one_step, tmp_path / "run"))
    command = [
        "sft",
        "--train-file",
        str(EPISODES),
        "--output-dir",
        str(run),
        *FAST,
        "--max-steps",
        "1",
    ]
    assert main(command) == 2
    assert "already contains a run; --resume continues it" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0


def test_held_out_loss_stops_a_run_early_and_keeps_the_best(tmp_path: Path):
    run = tmp_path / "run"
    # Training on one kind of text makes another less likely: eval loss rises.
    more = ["--eval-file", str(SAMPLES / "sharegpt.jsonl"), "--eval-steps", "2", "--early-stopping-patience", "2"]
    more += ["--batch-size", "1"]
    lines = train("sft", EPISODES, run, "--max-steps", "60", "--save-best-model", *more)
    losses = [line["eval_loss"] for line in lines if "eval_loss" in line]
    assert lines[-1]["step"] < 60
    assert min(losses) == losses[-3]
    assert (run / "best" / "adapter_model.safetensors").exists()


def test_bad_rows_stop_before_training_or_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "a.jsonl"
    file.write_text(shortest_episode(tmp_path).read_text() + '{"conversations": []}\n')
    command = ["sft", "--train-file", str(file), "--output-dir", str(tmp_path / "run"), *FAST, "--max-steps", "1"]
    assert main(command) == 2
    assert "a.jsonl:2: " in capsys.readouterr().err
    assert main([*command, "--on-error", "skip"]) == 0
    rows, _ = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert rows["in"] == 2 and rows["kept"] == 1 and sum(rows["dropped"].values()) == 1


def test_the_good_side_of_a_dropped_pair_is_not_counted_as_trained(tmp_path: Path):
    def pair(chosen: str, rejected: str) -> dict[str, Any]:
        sides = {"prompt": ("user", "hi"), "chosen": ("assistant", chosen), "rejected": ("assistant", rejected)}
        return {key: [{"role": role, "content": text}] for key, (role, text) in sides.items()}

    file, long = tmp_path / "pairs.jsonl", "b " * 400
    file.write_text("".join(json.dumps(row) + "\n" for row in (pair("a", long), pair(long, "a"), pair("a", "b"))))
    train("dpo", file, tmp_path / "run", "--max-steps", "1", "--max-length", "100")
    rows, calls = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert rows == {"item": "rows", "in": 3, "kept": 1, "dropped": {"side_incomplete": 2}}
    assert calls == {"item": "calls", "in": 6, "kept": 2, "dropped": {"too_long": 2, "side_incomplete": 2}}


def test_steps_of_no_weight_are_not_counted_as_trained(tmp_path: Path):
    steps = [{"action": "look", "observation": "a door", "reward": r} for r in (1.0, 0.0)]
    (tmp_path / "a.jsonl").write_text(json.dumps({"instruction": "Go.", "input": "", "steps": steps}) + "\n")
    train("sft", tmp_path / "a.jsonl", tmp_path / "run", "--max-steps", "1", "--step-weighted-loss")
    _, calls = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert calls == {"item": "calls", "in": 2, "kept": 1, "dropped": {"no_weight": 1}}


def test_knowlyrs_yaml_runs_as_it_is_written(tmp_path: Path):
    text = f"""
model_name_or_path: tiny
train_file: {SAMPLES / "knowlyr_sft_steps.jsonl"}
output_dir: {tmp_path / "run"}
num_epochs: 3
batch_size: 4
learning_rate: 2e-5
max_length: 4096
bf16: false
use_lora: true
agent_format: true
mask_observations: true
step_weighted_loss: true
curriculum: true
"""
    (tmp_path / "train_config.yaml").write_text(text)
    assert main(["sft", "--config", str(tmp_path / "train_config.yaml")]) == 0
    assert MetricsFile.read(tmp_path / "run" / "metrics.jsonl")[0]["weight"] > 0


def test_masking_cannot_be_switched_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a.yaml").write_text("train_file: a\nmask_observations: false\n")
    assert main(["sft", "--config", str(tmp_path / "a.yaml")]) == 2
    assert "mask_observations is False; choose one of True" in capsys.readouterr().err


def test_going_on_with_other_settings_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    run = tmp_path / "run"
    train("sft", EPISODES, run, "--max-steps", "2", "--save-steps", "1")
    command = ["sft", "--train-file", str(EPISODES), "--output-dir", str(run), *FAST]
    assert main([*command, "--max-steps", "3", "--resume"]) == 0
    assert "max_steps 2 → 3" in caplog.text
    assert MetricsFile.read(run / "metrics.jsonl")[-1]["step"] == 3


def test_a_run_goes_on_with_the_adapter_it_has_and_may_change_its_dropout(
    tmp_path: Path, one_step: Path, capsys: pytest.CaptureFixture[str]
):
    run = Path(shutil.copytree(one_step, tmp_path / "run"))
    command = ["sft", "--train-file", str(EPISODES), "--output-dir", str(run), *FAST, "--resume"]
    assert main([*command, "--max-steps", "2", "--lora-alpha", "64"]) == 2
    assert "weights of another shape" in (said := capsys.readouterr().err) and "lora_alpha 32 → 64" in said
    assert told(run)[1] == 32
    assert main([*command, "--max-steps", "2", "--lora-dropout", "0.5"]) == 0
    assert used(run)[2] == told(run)[2] == 0.5


def test_a_finished_run_that_played_keeps_its_ledger(tmp_path: Path):
    run = ["--output-dir", str(tmp_path), *FAST, "--max-steps", "1", "--group-size", "4", "--max-new-tokens", "8"]
    command = ["grpo", "--environment", "tests.online.letters:Letters", *run, "--batch-size", "2"]
    assert main(command) == 0
    ledger = (tmp_path / "ledger.json").read_text()
    assert json.loads(ledger)[0]["kept"] == 2
    assert main([*command, "--resume"]) == 0
    assert (tmp_path / "ledger.json").read_text() == ledger


def resume(verb: str, run: Path, *more: str) -> int:
    return main([verb, "--output-dir", str(run), *FAST, "--resume", *more])


def test_a_start_adapter_that_has_changed_is_refused_and_one_that_was_moved_is_not(
    tmp_path: Path, one_step: Path, capsys: pytest.CaptureFixture[str]
):
    start, pairs = tmp_path / "sft" / "final", str(PAIRS)
    shutil.copytree(one_step, tmp_path / "sft")
    dpo = ["--train-file", pairs, "--model", str(start), "--max-steps", "2", "--save-steps", "1"]
    assert main(["dpo", "--output-dir", str(tmp_path / "dpo"), *FAST, *dpo]) == 0
    settings = (tmp_path / "dpo" / "config.yaml").read_text()
    shutil.copytree(start, tmp_path / "moved")
    train("sft", EPISODES, tmp_path / "sft", "--max-steps", "1", "--seed", "7", "--overwrite")
    dpo[dpo.index("--max-steps") + 1] = "3"
    assert resume("dpo", tmp_path / "dpo", *dpo) == 2
    said = capsys.readouterr().err
    assert f"the start adapter {start} is not the one the run began with, or has changed since" in said
    assert f"--model {tmp_path / 'dpo' / 'checkpoints' / 'step-00000002' / 'weights'}" in said
    assert (tmp_path / "dpo" / "config.yaml").read_text() == settings
    dpo[dpo.index("--model") + 1] = str(tmp_path / "moved")
    assert resume("dpo", tmp_path / "dpo", *dpo) == 0
    assert MetricsFile.read(tmp_path / "dpo" / "metrics.jsonl")[-1]["step"] == 3


def test_a_model_that_has_changed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = tmp_path / "model"
    shutil.copytree(resolve("tiny"), model)
    more = ["--train-file", str(EPISODES), "--model", str(model)]
    assert main(["sft", "--output-dir", str(tmp_path / "run"), *FAST, *more, "--max-steps", "1"]) == 0
    weights = {name: value * 1.01 for name, value in load_file(model / "model.safetensors").items()}
    save_file(weights, tmp_path / "new.safetensors", metadata={"format": "pt"})
    (tmp_path / "new.safetensors").rename(model / "model.safetensors")
    assert resume("sft", tmp_path / "run", *more, "--max-steps", "2") == 2
    assert f"the model {model} is not the one the run began with, or has changed since" in capsys.readouterr().err


def test_other_examples_than_the_run_began_with_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def row(reply: str, reward: float) -> str:
        steps = [{"action": reply, "observation": "a door", "reward": reward}]
        return json.dumps({"instruction": "Go.", "input": "", "steps": steps}) + "\n"

    file, rows = tmp_path / "a.jsonl", [row("look", 1.0), row("go", 0.5)]
    file.write_text("".join(rows))
    train("sft", file, tmp_path / "run", "--max-steps", "1")
    another_reply, another_reward = [row("see", 1.0), rows[1]], [row("look", 0.9), rows[1]]
    for changed in ([*rows, row("open", 1.0)], rows[:1], another_reply, another_reward, rows[::-1]):
        file.write_text("".join(changed))
        assert resume("sft", tmp_path / "run", "--train-file", str(file), "--max-steps", "2") == 2, changed
        said = capsys.readouterr().err
        assert f"the examples of {file} are not those the run began with" in said and "another --output-dir" in said
    # The same records in another file are the same data.
    (tmp_path / "b.jsonl").write_text("".join(rows))
    assert resume("sft", tmp_path / "run", "--train-file", str(tmp_path / "b.jsonl"), "--max-steps", "2") == 0


def test_other_held_out_data_starts_a_new_best(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    run = tmp_path / "run"
    more = ["--eval-steps", "1", "--eval-file"]
    train("sft", EPISODES, run, "--max-steps", "1", *more, str(SAMPLES / "alpaca.jsonl"))
    train("sft", EPISODES, run, "--max-steps", "2", *more, str(SAMPLES / "sharegpt.jsonl"), "--resume")
    assert "The held-out examples have changed" in caplog.text
    report = json.loads((run / "report.json").read_text())
    assert report["best_loss"] == MetricsFile.read(run / "metrics.jsonl")[-1]["eval_loss"]


def test_a_run_without_its_origin_is_refused(tmp_path: Path, one_step: Path, capsys: pytest.CaptureFixture[str]):
    run = Path(shutil.copytree(one_step, tmp_path / "run"))
    for damage in ("{", "[]", '{"model": "x", "other": 1}', None):
        (run / "origin.json").write_text(damage) if damage else (run / "origin.json").unlink()
        assert resume("sft", run, "--train-file", str(EPISODES), "--max-steps", "2") == 2
        assert "origin.json is missing or damaged" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_named_and_the_one_before_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "run"
    train("sft", EPISODES, run, "--max-steps", "2", "--save-steps", "1")
    whole = (run / "final" / "adapter_model.safetensors").read_bytes()
    newest = run / "checkpoints" / "step-00000002"
    config = newest / "weights" / "adapter_config.json"
    config.write_text(config.read_text().replace('"r": 8', '"r": 9999'))
    more = ["--train-file", str(EPISODES), "--max-steps", "2", "--save-steps", "1"]
    assert resume("sft", run, *more) == 2
    said = capsys.readouterr().err
    assert f"{newest} is damaged: weights/adapter_config.json is not" in said and "from step 1" in said
    shutil.rmtree(newest)
    assert resume("sft", run, *more) == 0
    assert (run / "final" / "adapter_model.safetensors").read_bytes() == whole


def test_calls_beyond_the_models_context_are_dropped_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    def row(words: int) -> str:
        said = [("user", "Say it."), ("assistant", "word " * words)]
        return json.dumps({"messages": [{"role": role, "content": text} for role, text in said]}) + "\n"

    file = tmp_path / "a.jsonl"
    file.write_text(row(3) + row(CONTEXT) + row(5))
    lines = train("sft", file, tmp_path / "run", "--max-steps", "1")
    assert lines[-1]["step"] == 1
    rows, calls = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert calls == {"item": "calls", "in": 3, "kept": 2, "dropped": {"too_long": 1}}
    assert rows["dropped"] == {"nothing_to_train": 1}
    assert f"dropped 1 call longer than the model's context of {CONTEXT} tokens (too_long)" in caplog.text


def test_a_folder_in_which_another_process_trains_is_refused(
    tmp_path: Path, one_step: Path, capsys: pytest.CaptureFixture[str]
):
    run = Path(shutil.copytree(one_step, tmp_path / "run"))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with RunDir(run).locked():
        for how in (["--overwrite"], ["--resume", "--max-steps", "2"], []):
            command = ["sft", "--train-file", str(EPISODES), "--output-dir", str(run), *FAST]
            assert main([*command, *how]) == 2
            assert f"{run} is in use: another process is training there" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
