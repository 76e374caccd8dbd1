"""Members that play: the same tasks, each with its own adapter."""

import math
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bough
from bough import Environment, Observation, Task
from bough.config.groups import SamplingConfig
from bough.errors import InputError
from bough.evaluation.intervals import mean_interval, rate_interval, wilson
from bough.experiments import playing
from bough.experiments.evolve_settings import EvolveConfig
from bough.experiments.generation import Generation, Score, on_common_tasks
from bough.experiments.playing import PlayedFitness, Players, Playground
from bough.rollouts.collect import Attempt
from bough.types import Message, Trajectory
from tests.commands.letters import WriteLetter, length
from tests.experiments.small import SETTINGS, pairs, say

PLAY: dict[str, Any] = {"environment": WriteLetter, "eval_tasks": 6, "max_new_tokens": 3, "temperature": 1.0}


def evolved(folder: Path, **changes: Any) -> bough.EvolvedModel:
    settings = {key: value for key, value in SETTINGS.items() if key not in ("model", "test_size")}
    given = {**settings, "steps": 1, "generations": 2, "population_size": 3, "output_dir": folder, **PLAY, **changes}
    return bough.evolve("tiny", pairs(4), **given)


def episodes(folder: Path) -> dict[str, Any]:
    records = [one for one in bough.read(folder / "trajectories.jsonl") if isinstance(one, bough.Trajectory)]
    return {record.id: record for record in records}


def test_all_members_play_the_same_tasks_with_their_own_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = evolved(tmp_path)
    first = tmp_path / "rollouts" / "generation-00000"
    played = {path.name: episodes(path) for path in first.iterdir()}
    assert played.keys() == {"g0-0", "g0-1", "g0-2"}
    assert len({tuple(sorted(of)) for of in played.values()}) == 1 and all(len(of) == 6 for of in played.values())
    assert all(name in one.turns[0].call.policy for name, of in played.items() for one in of.values())
    for line in (line for line in found.lineage if line["generation"] == 0):
        successes = [one.success for one in played[line["name"]].values()]
        assert line["fitness"] == sum(successes) / 6 and line["tasks"] == 6
        assert tuple(line["interval"]) == wilson(sum(successes), 6)
    # Each generation has its own tasks, and the winner is measured on those of another split.
    second = next((tmp_path / "rollouts" / "generation-00001").iterdir())
    assert not episodes(second).keys() & played["g0-0"].keys()
    [last] = (tmp_path / "rollouts" / "generation-00001-winner").iterdir()
    assert last.name == found.report["winner"]["name"] and all(id.startswith("unseen-") for id in episodes(last))
    assert found.report["untouched"]["fitness"] == sum(one.success for one in episodes(last).values()) / 6
    # A resumed run finds all episodes on file.
    monkeypatch.setattr(playing, "collect", None)
    assert evolved(tmp_path, resume=True).report["selected"] == found.report["selected"]


@pytest.mark.bit_exact
def test_all_members_play_with_the_same_seeds(tmp_path: Path):
    still = {**SETTINGS["set"], "learning_rate": 1e-12}
    evolved(tmp_path, generations=1, population_size=2, set=still, mutate={"beta": "0.05..0.5"})
    first = tmp_path / "rollouts" / "generation-00000"
    said = [{id: one.turns[0].reply.content for id, one in episodes(first / name).items()} for name in ("g0-0", "g0-1")]
    # New adapters change nothing, so the same seeds sample the same words.
    assert said[0] == said[1] and len(set(said[0].values())) > 3


class Settled:
    """Plays attempts without an agent; all fail."""

    async def play(self, attempt: Attempt, *, episode: str | None = None) -> tuple[Trajectory, list[Any]]:
        start = [Message(role="user", content="Write.")]
        return Trajectory(id=attempt.id, task=attempt.task, start=start, turns=say("e"), success=False), []


class Scripted(Playground):
    """Members without a model."""

    def playing(self) -> nullcontext[None]:
        return nullcontext()

    def runners(self, _: Generation, sampling: Mapping[str, SamplingConfig]) -> dict[str, Settled]:
        return dict.fromkeys(sampling, Settled())


def test_a_member_samples_with_the_weights_that_are_trained(tmp_path: Path):
    fast = {**SETTINGS["set"], "learning_rate": 0.05}
    evolved(tmp_path, generations=1, population_size=2, initial="same", set=fast, mutate={"learning_rate": "1e-4..0.1"})
    record = next(iter(episodes(tmp_path / "rollouts" / "generation-00000" / "g0-1").values()))
    call = record.turns[0].call
    model = bough.load(tmp_path / "checkpoints" / "generation-00000-trained" / "g0-1")
    [logprobs] = model.policy.logprobs([call])
    assert logprobs.tolist() == pytest.approx(call.logprobs, abs=1e-4)
    base = bough.load("tiny")
    assert base.policy.logprobs([call])[0].tolist() != pytest.approx(call.logprobs, abs=1e-4)


def test_the_engine_has_the_adapters_of_living_members_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    close, kept, room = Players.close, set[str](), list[int]()

    def noted(self: Players) -> None:
        assert self._engine is not None
        kept.update(self._engine._adapters)
        room.append(self._engine.scheduler.max_running)
        close(self)

    monkeypatch.setattr(Players, "close", noted)
    found = evolved(tmp_path, population_size=2, eval_tasks=2, concurrency=5)
    assert room == [5]  # what is kept for episodes is not there for training
    assert kept == {line["name"] for line in found.lineage if line["generation"] == 1}


def test_fitness_may_be_any_reward(tmp_path: Path):
    found = evolved(tmp_path, generations=1, population_size=2, metric="reward", rewards={length: 0.5})
    played = episodes(tmp_path / "rollouts" / "generation-00000" / found.lineage[0]["name"])
    assert found.lineage[0]["fitness"] == pytest.approx(sum(0.5 * length(one) for one in played.values()) / 6)


class OneSplit(WriteLetter):
    """The same tasks in every split."""

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        return (Task(id=f"letter-{number}", data={"letter": "etaoin"[number]}) for number in range(6))


class NoUnseen(WriteLetter):
    """No split of tasks for the last measurement."""

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        if split != "train":
            raise InputError("there is only the split train")
        return super().tasks(options, split=split, seed=seed)


class NoOutcome(WriteLetter):
    """Neither a success nor a failure."""

    async def step(self, reply: str) -> Observation:
        return Observation.end()


@pytest.mark.parametrize(
    ("environment", "said"),
    [(OneSplit, "the split unseen has no task to measure the winner on"), (NoUnseen, "there is only the split train")],
)
def test_a_winner_that_could_not_be_measured_is_refused_before_training(
    environment: type[Environment], said: str, tmp_path: Path
):
    with pytest.raises(InputError, match=said):
        evolved(tmp_path, environment=environment)
    assert not (tmp_path / "checkpoints").exists()


def test_the_winner_is_not_measured_on_tasks_that_a_generation_was_selected_on(tmp_path: Path):
    found = evolved(tmp_path, environment=OneSplit, eval_tasks=4, generations=1, population_size=2)
    [last] = (tmp_path / "rollouts" / "generation-00000-winner").iterdir()
    assert {one.task.id for one in episodes(last).values()} == {"letter-4", "letter-5"}
    assert found.report["untouched"]["tasks"] == 2


def test_episodes_without_an_outcome_are_an_error_not_a_fitness(tmp_path: Path):
    with pytest.raises(InputError, match="has a success to compare"):
        evolved(tmp_path, environment=NoOutcome, generations=1, population_size=2)


def test_members_are_compared_on_the_tasks_that_none_of_them_lost():
    scores = {
        "lucky": Score({"easy": 1.0, "middle": 0.0}, lost=1),
        "better": Score({"easy": 1.0, "middle": 0.0, "hard": 0.0}),
        "broken": Score({"easy": 1.0}, lost=2),
    }
    found = on_common_tasks(scores)
    assert found["lucky"].fitness == found["better"].fitness == 0.5
    assert found["broken"].fitness == -math.inf and found["lucky"].lost == 1
    low, high = (Score({"easy": 1.0, "middle": 0.0, "lost": value}).interval() for value in (0.0, 1.0))
    assert found["lucky"].to_json()["interval"] == [low.low, high.high]


def test_a_run_folder_is_found_again_under_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    small = {"generations": 1, "population_size": 2}
    found = evolved(Path("run"), **small)
    monkeypatch.setattr(playing, "collect", None)  # nothing is played again
    assert evolved(tmp_path / "run", resume=True, **small).report["selected"] == found.report["selected"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"test_split": "train"}, "measured on tasks that it was selected on"),
        ({"task_file": "tasks.jsonl"}, "measured on tasks that it was selected on"),
        ({"eval_file": "a.jsonl"}, "eval_file and test_file are not read"),
        ({"metric": "accuracy"}, "success and reward are measured in an environment"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, Any], said: str):
    with pytest.raises(InputError, match=said):
        EvolveConfig(train_file="pairs.jsonl", environment="household", **changes)


class Families(WriteLetter):
    """Three tasks of one family, then others."""

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        families = {number: {"family": 1} if number < 3 else {} for number in range(12)}
        return (Task(id=f"{split}-{number}", data={"letter": "e", **more}) for number, more in families.items())


def test_tasks_of_one_family_count_as_one(tmp_path: Path):
    config = EvolveConfig(train_file="pairs.jsonl", environment="Families", eval_tasks=6)
    (tmp_path / "generation-00000" / "a").mkdir(parents=True)
    with closing(Scripted(config, Families)) as players:
        found = PlayedFitness(config, players, tmp_path / "rollouts")
        score = found.of(Generation(tmp_path / "generation-00000", 0, trained=True))["a"]
    values = {id: float(int(id[6]) < 3) for id in score.values}  # only the family succeeds
    uneven = replace(score, values=values)
    assert len(values) == 6 and uneven.fitness == 1 / 4
    assert uneven.interval() == rate_interval([1.0, 0.0, 0.0, 0.0], 6)
    assert replace(uneven, rate=False).interval() == mean_interval([1.0, 0.0, 0.0, 0.0])
