"""Large files: worker processes and the cache change nothing but the time."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from bough.chat.template import CallBuilder, load_template
from bough.data.reader import read
from bough.errors import BoughError, InputError
from bough.methods import examples
from bough.methods.dpo import DPO, DPOConfig
from bough.methods.examples import cache_name
from bough.methods.grpo import GRPO, OF_EXAMPLES, GRPOConfig
from bough.methods.sft import SFT, SFTConfig
from bough.training.method import Examples
from bough.types import Group, Pair, Trajectory
from tests.warm import Warm

ROOT = Path(__file__).parents[2]
TEMPLATE = load_template("tiny")
BUILDER = CallBuilder(TEMPLATE, max_length=512)
EPISODES = (ROOT / "examples" / "household.jsonl").read_text().splitlines()


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Every file counts as large, there are three workers, and the cache is this folder."""
    monkeypatch.setattr(examples, "LARGE", 0)
    monkeypatch.setattr(examples, "num_workers", lambda: 3)
    monkeypatch.setattr(examples, "AHEAD", 1)
    monkeypatch.setattr("bough.data.reader.ROWS_AT_ONCE", 2)
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path / "cache"))
    return tmp_path


def episodes(folder: Path, *more: str) -> Path:
    """A file of 15 episodes with some `more` lines in the middle."""
    file = folder / "episodes.jsonl"
    file.write_text("\n".join([*EPISODES * 2, *more, *EPISODES]) + "\n")
    return file


def sft(file: Any, builder: CallBuilder = BUILDER, **settings: Any) -> Examples[Any]:
    return SFT(SFTConfig(train_file="unused", **settings)).examples(file, builder)


def seen(found: Examples[Any]) -> Any:
    return [list(found.examples), found.rows.to_json(), found.calls.to_json(), found.digest, found.temperatures]


def test_workers_and_cache_change_nothing(large: Path, monkeypatch: pytest.MonkeyPatch):
    file = episodes(large, "no json", '{"bough": "trajectory/1"}')
    builder = CallBuilder(TEMPLATE, context=640)  # long calls are dropped
    prepared, cached = (sft(file, builder, on_error="skip") for _ in range(2))
    monkeypatch.setattr(examples, "LARGE", 1 << 30)
    here = sft(file, builder, on_error="skip")
    assert seen(prepared) == seen(cached) == seen(here)
    assert here.rows.kept == 15 and here.rows.dropped.total() == 2 and here.calls.dropped["too_long"] > 0
    assert [example.place for example in here.examples][9:11] == [f"{file}:10", f"{file}:13"]


def test_bad_rows_are_listed_before_training_in_their_order(large: Path, monkeypatch: pytest.MonkeyPatch):
    pair = (ROOT / "examples" / "household-pairs.jsonl").read_text().splitlines()[0]
    file = episodes(large, "no json", pair, "no json either")
    with pytest.raises(InputError) as parallel:
        sft(file, format="auto")
    monkeypatch.setattr(examples, "LARGE", 1 << 30)
    with pytest.raises(InputError) as here:
        sft(file, format="auto")
    assert parallel.value.problems == here.value.problems and "has 3 bad rows" in str(here.value)
    assert not list((large / "cache").glob("examples/*/")), "a file with bad rows leaves nothing"


def test_a_kept_file_is_not_prepared_again(large: Path, monkeypatch: pytest.MonkeyPatch):
    file = episodes(large)
    before = seen(sft(file))

    def refuse(*_: Any) -> Iterator[Any]:
        raise AssertionError("prepared again")

    monkeypatch.setattr(examples, "prepared", refuse)
    assert seen(sft(file)) == before
    with pytest.raises(AssertionError, match="prepared again"):
        sft(file, step_weighted_loss=True)
    with pytest.raises(AssertionError, match="prepared again"):
        sft(file, CallBuilder(TEMPLATE, max_length=500))
    file.write_text(file.read_text() + EPISODES[0] + "\n")
    with pytest.raises(AssertionError, match="prepared again"):
        sft(file)


def test_damaged_examples_are_prepared_again(large: Path, caplog: pytest.LogCaptureFixture):
    file = episodes(large)
    before = seen(sft(file))
    (tokens,) = (large / "cache").glob("examples/*/tokens.bin")
    tokens.write_bytes(b"\0" * tokens.stat().st_size)
    assert seen(sft(file)) == before and "are damaged (tokens.bin is not what was written)" in caplog.text


def test_a_cache_that_cannot_be_written_is_done_without(
    large: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    (large / "cache").write_text("a file where the folder should be")
    found = sft(episodes(large))
    assert found.rows.kept == 15 and "cannot be kept for later runs" in caplog.text
    monkeypatch.setattr(examples, "LARGE", 1 << 30)
    assert seen(sft(large / "episodes.jsonl")) == seen(found)


def test_the_longest_unused_are_removed(large: Path, monkeypatch: pytest.MonkeyPatch):
    file = episodes(large)
    sft(file, CallBuilder(TEMPLATE, max_length=500))
    (old,) = (large / "cache").glob("examples/*/summary.json")
    os.utime(old, (1, 1))
    monkeypatch.setattr(examples, "LIMIT", 0)
    kept = sft(file)
    (left,) = (large / "cache").glob("examples/*/summary.json")
    assert left != old and len(kept.examples) == 15


def test_the_name_covers_template_data_settings_limits_and_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = episodes(tmp_path)
    other = load_template("tiny")
    other.tokenizer.chat_template += " "
    (tmp_path / "plugin_maker.py").write_text("from bough.methods.grpo import GRPO\nclass Own(GRPO): ...")
    monkeypatch.syspath_prepend(tmp_path)
    config = GRPOConfig(train_file="unused")
    make, mine = GRPO(config).example, import_module("plugin_maker").Own(config).example
    names = [
        cache_name(file, {"a": 1}, BUILDER, make),
        cache_name(file, {"a": 2}, BUILDER, make),
        cache_name(file, {"a": 1}, CallBuilder(other, max_length=512), make),
        cache_name(file, {"a": 1}, CallBuilder(TEMPLATE, max_length=512, stride=0.5), make),
        cache_name(file, {"a": 1}, CallBuilder(TEMPLATE, max_length=512, context=600), make),
        cache_name(file, {"a": 1}, BUILDER, mine),
    ]
    assert cache_name(file, {"a": 1}, CallBuilder(load_template("tiny"), max_length=512), make) == names[0]
    (tmp_path / "plugin_maker.py").write_text("another version")
    names.append(cache_name(file, {"a": 1}, BUILDER, mine))
    file.write_text(file.read_text() + "\n")
    assert len({*names, cache_name(file, {"a": 1}, BUILDER, make)}) == len(names) + 1
    assert cache_name(file, {"a": 1}, BUILDER, lambda *_: ...) is None


class Spy:
    """A config that notes which settings are read."""

    def __init__(self, config: Any) -> None:
        self.config, self.read = config, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self.config, name)


def test_a_method_names_every_setting_that_its_examples_depend_on():
    """A setting that is read but not named would not change the name of what is kept."""
    trajectory = next(one for one in read(ROOT / "examples" / "household.jsonl") if isinstance(one, Trajectory))
    pair = next(one for one in read(ROOT / "examples" / "household-pairs.jsonl") if isinstance(one, Pair))
    group = next(one for one in read(ROOT / "tests" / "samples" / "knowlyr_grpo.jsonl") if isinstance(one, Group))
    by_state = {"advantage": "graph", "attempt_weight": 0.5}
    for methods, record, named in (
        ([SFT(SFTConfig(train_file="x"))], trajectory, {"step_weighted_loss"}),
        ([DPO(DPOConfig(train_file="x"))], pair, set()),
        ([GRPO(GRPOConfig(train_file="x", **more)) for more in ({}, by_state)], group, set(OF_EXAMPLES)),
    ):
        found = set()
        for method in methods:
            method.config = spy = Spy(method.config)  # type: ignore[assignment]
            assert len(method.examples([record], CallBuilder(TEMPLATE)).examples) == 1
            found |= spy.read
        assert found - {"data"} == named


def test_a_killed_worker_is_an_error_that_says_so(large: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SFT, "_example", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(BoughError, match="a process that prepares examples was killed"):
        sft(episodes(large))


PROGRAM = """
import sys, time
from pathlib import Path
from bough.methods import examples
from tests.methods.test_preparation import BUILDER, SFT, SFTConfig
examples.LARGE = 0
examples.num_workers = lambda: 2
def slow(self, sample, source):
    Path(sys.argv[2], str(examples.os.getpid())).touch()
    time.sleep(60)
SFT._example = slow
SFT(SFTConfig(train_file="x")).examples(sys.argv[1], BUILDER)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there are no workers")
def test_workers_end_with_a_killed_parent(tmp_path: Path):
    (tmp_path / "workers").mkdir()
    file = episodes(tmp_path)
    file.write_text("\n".join([json.dumps(json.loads(line)) for line in EPISODES * 20]) + "\n")
    environment = os.environ | {"BOUGH_CACHE": str(tmp_path / "cache")}
    parent = Warm(None, str(file), str(tmp_path / "workers"), code=PROGRAM, environment=environment)
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "workers").iterdir())) < 2:
        assert parent.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    workers = [int(one.name) for one in (tmp_path / "workers").iterdir()]
    while any(_alive(worker) for worker in workers):
        assert time.monotonic() < deadline, "the workers outlive their parent"
        time.sleep(0.05)
    parent.communicate()


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
