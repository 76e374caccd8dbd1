"""What a run on a GPU chooses by itself: whether to compile the layers and to record its passes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bough.cli import main
from bough.config.yaml_file import YamlFile
from bough.methods.grpo import GRPOConfig
from bough.methods.sft import Demonstration, SFTConfig
from bough.policy.adapters import Lora
from bough.policy.load import load_outline
from bough.policy.policy import Policy, RowReader
from bough.policy.processes import Processes
from bough.training import run as run_module
from bough.training.plan import PlannedSource, Work, accelerated, choose
from bough.training.run import Run
from bough.types import Call
from tests.policy.families import make

GIB = 2**30
ROOT = Path(__file__).parents[2]
on_a_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="trains on a CPU, and a GPU would be chosen here")
LONG = Work(num_steps=100_000, num_tokens=1e13)
# Two calls of one episode: 5 tokens are read (of the last answer all but its last), the first 3 of them in both calls.
EPISODE = [Call(prompt_ids=[1, 2], completion_ids=[3, 4]), Call(prompt_ids=[1, 2, 3, 4], completion_ids=[5, 6])]


def chosen(work: Work = LONG, model: Any = None, free: int = 100 * GIB, **settings: Any) -> tuple[Any, Any, str]:
    config = SFTConfig(train_file=Path("a"), model="tiny", **settings)
    found, said = choose(config, model or load_outline("tiny"), free, work)
    return found.compile, found.cuda_graphs, "; ".join(said)


def test_a_long_run_of_a_small_model_does_both_and_says_so():
    compiled, recorded, said = chosen()
    assert compiled and recorded
    assert said.startswith("compile: on (90 s once, to save about ") and "--no-compile turns it off)" in said
    assert said.endswith("cuda_graphs: on (--no-cuda-graphs turns it off)")


def test_layers_are_compiled_if_that_saves_twice_the_time_that_it_takes():
    model = load_outline("tiny")
    size = model.config.num_hidden_layers * model.config.hidden_size
    enough = 180 / (2.3e-10 * size)
    assert chosen(Work(1000, 1.01 * enough))[0]
    compiled, recorded, said = chosen(Work(1000, 0.99 * enough))
    assert not compiled and recorded
    assert "compile: off (it takes 90 s and would save about 178 s)" in said


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"work": Work(99, 1e13)}, "fewer than 100 steps"),
        ({"gradient_checkpointing": True}, "--gradient-checkpointing"),
        ({"attention": "sdpa"}, "FlexAttention"),
        ({"share": False}, "FlexAttention"),
        ({"token_budget": 65_537}, "longer rows"),
        ({"free": 2 * GIB // 100}, "longer rows"),
    ],
)
def test_what_rules_out_recordings_alone(more: dict[str, Any], why: str):
    compiled, recorded, said = chosen(**more)
    assert compiled and not recorded and f"{why})" in said


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"shard": True}, "--shard"),
        ({"qlora": True}, "--qlora"),
        ({"lora_dropout": 0.1}, "dropout"),
        ({"family": "lfm2"}, "layers that carry state"),
        ({"family": "gpt_oss"}, "a mixture of experts"),
    ],
)
def test_what_rules_out_both(more: dict[str, Any], why: str):
    family = more.pop("family", None)
    compiled, recorded, said = chosen(model=make(family) if family else None, **more)
    assert not compiled and not recorded and said.count(why) == 2


@pytest.mark.parametrize("asked", [True, False])
def test_what_is_asked_for_is_done_whatever_the_run(asked: bool):
    assert chosen(Work(1, 1), compile=asked)[0] is asked
    assert chosen(Work(1, 1), cuda_graphs=asked)[1] is asked
    assert chosen(compile=asked, cuda_graphs=asked)[2] == ""


def demonstrations(*lengths: int) -> list[Demonstration]:
    calls = [[Call(prompt_ids=[i] * length, completion_ids=[7])] for i, length in enumerate(lengths)]
    return [Demonstration(calls=each, weights=(1.0,), cluster=str(i)) for i, each in enumerate(calls)]


@pytest.mark.parametrize(("batch_size", "steps", "tokens"), [(1, 12, 3 * 100), (2, 6, 3 * 100), (4, 3, 3 * 100)])
def test_the_work_is_that_of_the_first_steps_times_their_number(batch_size: int, steps: int, tokens: int):
    config = SFTConfig(train_file=Path("a"), batch_size=batch_size, num_epochs=3)
    assert Work.of(PlannedSource(demonstrations(10, 20, 30, 40), config)) == Work(steps, tokens)


class On(Processes):
    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = torch.device(device)


def test_elsewhere_than_on_a_gpu_and_online_neither_is_chosen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bough.training.plan.unused_bytes", lambda *_: 80 * GIB)
    monkeypatch.setattr(Work, "of", lambda _: LONG)
    config = SFTConfig(train_file=Path("a"), model="tiny")
    source = PlannedSource([Demonstration(calls=EPISODE, weights=(1.0, 1.0))], config)
    on_cpu, on_gpu = accelerated(config, On("cpu"), source), accelerated(config, On("cuda"), source)
    assert (on_cpu.compile, on_cpu.cuda_graphs, on_gpu.compile, on_gpu.cuda_graphs) == (False, False, True, True)
    online = accelerated(GRPOConfig(environment="household", max_steps=1, model="tiny"), On("cuda"), None)
    assert (online.compile, online.cuda_graphs) == (False, False)


def trained(run: Path, steps: int, *more: str) -> dict[str, Any]:
    command = ["sft", "--model", "tiny", "--train-file", str(ROOT / "examples" / "household-held-out.jsonl"),
               "--output-dir", str(run), "--save-steps", "1", "--max-steps", str(steps), *more]  # fmt: skip
    assert main(command) == 0
    machine: dict[str, Any] = YamlFile.read(run / "config.yaml").values["machine"]
    return machine


def test_a_resumed_run_repeats_the_choice_and_a_flag_changes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The choice is noted as on a GPU; what is computed here is not changed by it."""
    monkeypatch.setattr("bough.training.run.accelerated", lambda config, *_: _filled(config, True))
    before = run_module._chosen_before
    monkeypatch.setattr(run_module, "_chosen_before", lambda *given: before(*given[:3], On("cuda")))
    monkeypatch.setattr(Run, "load_policy", lambda self, **_: _policy(self))
    monkeypatch.setattr(RowReader, "record", lambda _: None)
    monkeypatch.setattr(RowReader, "not_recordable", lambda _: [])
    machine = trained(tmp_path, 1)
    assert machine["compile"] is True and machine["cuda_graphs"] is True
    monkeypatch.setattr("bough.training.run.accelerated", lambda config, *_: _filled(config, False))
    machine = trained(tmp_path, 2, "--resume")
    assert machine["compile"] is True and machine["cuda_graphs"] is True
    assert "cuda_graphs" not in caplog.text
    machine = trained(tmp_path, 3, "--resume", "--no-cuda-graphs")
    assert machine["compile"] is True and machine["cuda_graphs"] is False
    assert "cuda_graphs True → False" in caplog.text


def _filled(config: Any, value: bool) -> Any:
    open_ = {name: value for name in ("compile", "cuda_graphs") if getattr(config.machine, name) is None}
    return config.machine.model_copy(update=open_)


def _policy(_run: Run[Any]) -> Policy:
    """Not compiled, whatever the settings say."""
    return Policy.load("tiny", lora=Lora(r=16, alpha=32))


@on_a_cpu
def test_a_model_that_cannot_be_recorded_after_all_is_trained_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("bough.training.run.accelerated", lambda config, *_: _filled(config, True))
    monkeypatch.setattr(Run, "load_policy", lambda self, **_: _policy(self))
    assert trained(tmp_path, 1)["cuda_graphs"] is False
    assert "cuda_graphs: off (this model cannot be recorded: it does not use FlexAttention)" in caplog.text
