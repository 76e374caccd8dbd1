"""Two processes train what one trains, each with all weights or with half of every weight.

`make test` runs the cheapest of these runs, `make test-cluster` all.
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from safetensors.torch import load_file

from bough.cli import main
from bough.training.checkpoint import checkpoints
from tests import warm
from tests.training.pair import Pair, alone, cpu_environment, one_thread, told  # noqa: F401  a fixture of all tests
from tests.warm import Warm


def episode(length: int) -> list[dict[str, str]]:
    """Guesses from above until the number is hit."""
    messages = [{"role": "user", "content": f"Guess a number from 1 to {length}."}]
    for guess in range(length, 1, -1):
        messages += [{"role": "assistant", "content": f"It is {guess}."}, {"role": "user", "content": "Lower."}]
    return [*messages, {"role": "assistant", "content": "It is 1."}]


def pair(length: int) -> dict[str, Any]:
    *prompt, last = episode(length)
    return {"prompt": prompt, "chosen": [last], "rejected": [{"role": "assistant", "content": f"No idea {length}."}]}


class Commands(NamedTuple):
    """Command lines without a run's folder: SFT of all weights, and DPO with an adapter."""

    full: list[str]
    lora: list[str]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """Batches of three: what two processes have of them is never the same."""
    episodes, pairs = (tmp_path_factory.mktemp("data") / name for name in ("episodes.jsonl", "pairs.jsonl"))
    episodes.write_text("".join(json.dumps({"messages": episode(length)}) + "\n" for length in (2, 5, 3, 4, 6)))
    pairs.write_text("".join(json.dumps(pair(length)) + "\n" for length in (2, 5, 3, 9, 4)))
    every = ["--model", "tiny", "--save-steps", "1", "--token-budget", "128"]
    full = ["sft", "--train-file", str(episodes), "--batch-size", "3", "--no-use-lora", "--learning-rate", "1e-3"]
    lora = ["dpo", "--train-file", str(pairs), "--batch-size", "3", "--learning-rate", "1e-2"]
    return Commands([*full, *every], [*lora, *every])


def assert_same(one: Path, two: Path) -> None:
    for name in ("loss", "eval_loss", "grad_norm", "token_accuracy"):
        assert told(one, name) == pytest.approx(told(two, name), rel=1e-4)
    trained = [json.loads((run / "report.json").read_text())["tokens_trained"] for run in (one, two)]
    assert trained[0] == trained[1]
    (file,) = (one / "final").glob("*.safetensors")
    weights = [load_file(run / "final" / file.name) for run in (one, two)]
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        # Adam takes a gradient of hardly anything for a direction: a hundredth of a step is noise.
        assert (weight - weights[1][name]).abs().max() < 1e-4, name


@pytest.mark.cluster
def test_sft_of_sharded_weights_is_that_of_one_process(tmp_path: Path, two: Pair, commands: Commands):
    held_out = shutil.copy(commands.full[commands.full.index("--train-file") + 1], tmp_path / "held-out.jsonl")
    arguments = [*commands.full, "--max-steps", "2", "--eval-file", str(held_out), "--eval-steps", "1"]
    alone(arguments, tmp_path / "one")
    said = two.run([*arguments, "--shard", "--output-dir", str(tmp_path / "two")])
    assert_same(tmp_path / "one", tmp_path / "two")
    assert len(told(tmp_path / "two", "eval_loss")) == 2
    assert said.count("weights in") == 1  # one of the two speaks


@pytest.mark.cluster
@pytest.mark.parametrize(
    "more",
    [
        # Pairs larger than a row, which are computed twice, and activations that are.
        ["--gradient-checkpointing"],
        ["--no-use-lora", "--learning-rate", "1e-3"],
    ],
    ids=["an adapter", "all weights"],
)
def test_dpo_of_sharded_weights_is_that_of_one_process(tmp_path: Path, two: Pair, commands: Commands, more: list[str]):
    arguments = [*commands.lora, *more, "--max-steps", "2"]
    alone(arguments, tmp_path / "one")
    two.run([*arguments, "--shard", "--output-dir", str(tmp_path / "two")])
    assert_same(tmp_path / "one", tmp_path / "two")


def test_torchrun_with_whole_weights_trains_what_one_process_does(tmp_path: Path, commands: Commands):
    arguments = [*commands.lora, "--max-steps", "1", "--token-budget", "1024"]
    alone(arguments, tmp_path / "one")
    bough = [sys.executable, warm.__file__, "-m", "bough", *arguments, "--output-dir", str(tmp_path / "two")]
    two = ["--standalone", "--nproc-per-node", "2", "--no-python", *bough]
    with (tmp_path / "errors").open("wb") as errors:
        program = Warm("torch.distributed.run", *two, environment=cpu_environment(), errors=errors)
        program.communicate()
    assert program.wait() == 0, (tmp_path / "errors").read_text()[-3000:]
    assert_same(tmp_path / "one", tmp_path / "two")
    # What pairs of two processes have in common is computed by both: there were two.
    assert told(tmp_path / "two", "tokens_computed")[-1] > told(tmp_path / "one", "tokens_computed")[-1]


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_a_killed_sharded_run_goes_on_alone_and_the_other_way_round(
    tmp_path: Path, two: Pair, commands: Commands, kind: str, caplog: pytest.LogCaptureFixture
):
    arguments = [*getattr(commands, kind), "--max-steps", "3", "--save-total-limit", "3"]
    alone(arguments, tmp_path / "whole")

    killed = tmp_path / "killed"
    children = two.start([*arguments, "--shard", "--output-dir", str(killed)], wait_after=1)
    while not checkpoints(killed / "checkpoints"):
        for child in children:
            os.kill(child, 0)  # still there
        time.sleep(0.005)
    for child in children:
        os.kill(child, signal.SIGKILL)
    assert two.finish() == -signal.SIGKILL
    assert not (killed / "final").exists()
    alone([*arguments, "--resume"], killed)
    assert "saved by 2 processes and 1 resume from it" in caplog.text
    assert_same(tmp_path / "whole", killed)

    shutil.copytree(tmp_path / "whole", tmp_path / "sharded", ignore=shutil.ignore_patterns("final", "step-*3"))
    said = two.run([*arguments, "--resume", "--shard", "--output-dir", str(tmp_path / "sharded")])
    assert "Resuming from step 2." in said
    assert_same(tmp_path / "whole", tmp_path / "sharded")


@pytest.mark.cluster
@pytest.mark.parametrize("shard", [[], ["--shard"]], ids=["whole weights", "sharded"])
def test_both_processes_stop_at_a_gradient_that_is_not_finite(
    tmp_path: Path, two: Pair, commands: Commands, shard: list[str]
):
    run = tmp_path / "run"
    # The first loss is log 2 whatever beta is; its gradient is more than float32 holds.
    two.start([*commands.lora, "--max-steps", "3", "--beta", "1e38", *shard, "--output-dir", str(run)])
    assert two.finish() == 1
    assert "the loss of step 1 is finite, but its gradient norm is" in two.log.read_text()
    assert not (run / "final").exists() and checkpoints(run / "checkpoints") == []
    assert len((run / "bad-batch-1.jsonl").read_text().splitlines()) == 3  # the batch of both


@pytest.mark.cluster
@pytest.mark.parametrize("rank", [0, 1])
def test_a_loss_of_one_process_that_is_not_finite_keeps_both_from_the_update(
    tmp_path: Path, two: Pair, commands: Commands, rank: int
):
    run = tmp_path / "run"
    two.start([*commands.lora, "--max-steps", "3", "--output-dir", str(run)], wait=True, spoiled=(rank, 2))
    assert two.finish() == 1
    said = two.log.read_text()
    assert "the loss of step 2 is inf" in said
    assert said.count("The weights are what they were.") == 2 and "changed." not in said
    assert [found.step for found in checkpoints(run / "checkpoints")] == [1]


@pytest.mark.cluster
@pytest.mark.parametrize("short", [None, (0, False), (1, True)], ids=["enough memory", "before z", "after z"])
def test_kto_in_two_processes_is_that_of_one_also_where_one_runs_out_of_memory(
    tmp_path: Path, two: Pair, commands: Commands, short: tuple[int, bool] | None
):
    """All processes' units share z, which they add up once a step, also if one of them computes it again."""
    # Answers that are only ever good raise z above 0.
    arguments = [*commands.lora, "--loss-type", "kto", "--undesirable-weight", "0", "--max-steps", "3"]
    alone(arguments, tmp_path / "one")
    two.start([*arguments, "--output-dir", str(tmp_path / "two")], short=short)
    assert two.finish() == 0, two.log.read_text()[-3000:]
    assert_same(tmp_path / "one", tmp_path / "two")
    assert told(tmp_path / "one", "kl")[-1] > 0.1
    assert told(tmp_path / "two", "kl") == pytest.approx(told(tmp_path / "one", "kl"), rel=1e-3)
    said = "Out of GPU memory: trying step 1 again with"
    assert two.log.read_text().count(said) == (short is not None)


@pytest.mark.cluster
def test_two_processes_resume_with_the_random_numbers_that_each_of_them_had(
    tmp_path: Path, two: Pair, commands: Commands
):
    arguments = [*commands.lora, "--lora-dropout", "0.5", "--max-steps", "2", "--output-dir"]
    two.run([*arguments, str(tmp_path / "whole")])
    shutil.copytree(tmp_path / "whole", tmp_path / "cut", ignore=shutil.ignore_patterns("final", "step-*2"))
    assert "saved by" not in two.run([*arguments, str(tmp_path / "cut"), "--resume"])
    whole, cut = (tmp_path / name / "final" / "adapter_model.safetensors" for name in ("whole", "cut"))
    assert whole.read_bytes() == cut.read_bytes()
    assert told(tmp_path / "whole", "loss") == told(tmp_path / "cut", "loss")


def test_what_does_not_go_with_sharding_is_said_at_once(
    tmp_path: Path, commands: Commands, capsys: pytest.CaptureFixture[str]
):
    more = ["--shard", "--qlora", "--compile", "--optimizer", "adamw_8bit", "--output-dir", str(tmp_path)]
    assert main([*commands.full, *more]) == 2
    said = capsys.readouterr().err
    assert "--shard does not go with --qlora" in said
    assert "--shard does not go with --compile" in said
    assert "--shard does not go with --optimizer adamw_8bit" in said
    assert "--shard needs several processes: accelerate launch" in said
