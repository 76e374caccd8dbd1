"""Members that learn from what they play themselves."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import bough
from bough.environments.rubric import score
from bough.errors import InputError
from bough.experiments.evolve_settings import EvolveConfig
from bough.experiments.members import Trainees
from bough.experiments.playing import GroupLessons
from bough.methods.grpo import OnlineGRPO
from bough.training.population import PopulationTrainer
from bough.types import Group
from tests.commands.letters import WriteLetter, length
from tests.experiments.small import SETTINGS
from tests.experiments.test_played_fitness import OneSplit, episodes
from tests.online.letters import Hopeless

ADAPTER = "adapter_model.safetensors"
LENGTH = "tests.commands.letters:length"
SETTINGS_OF_GRPO: dict[str, Any] = {
    "method": "grpo", "environment": WriteLetter, "eval_tasks": 4, "max_new_tokens": 6, "population_size": 2,
    "generations": 1, "steps": 2, "seed": 3, "initial": "same",
    "set": {**SETTINGS["set"], "learning_rate": 0.01, "group_size": 4},
    "mutate": {"temperature": "0.5..1.5", "group_size": "2..6", "clip_high": "0.1..0.5"},
}  # fmt: skip


def evolved(folder: Path, **changes: Any) -> bough.EvolvedModel:
    return bough.evolve("tiny", **{**SETTINGS_OF_GRPO, "output_dir": folder, **changes})


def test_members_learn_from_groups_that_they_play_and_a_kill_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: list[dict[str, Any]] = []
    own = GroupLessons.batches

    def noted(self: GroupLessons, pupils: Any, update: int) -> Any:
        found = own(self, pupils, update)
        seen.append({"update": update, **found})
        return found

    monkeypatch.setattr(GroupLessons, "batches", noted)
    whole = evolved(tmp_path / "whole")
    assert [one["update"] for one in seen] == [0, 1]
    assert whole.report["updates"] == sum(len(one) - 1 for one in seen) == 4 - whole.report["empty_updates"]
    examples = [example for one in seen for name, of in one.items() if name != "update" for example in of]
    assert examples and all(len(example.calls) == 4 for example in examples)  # groups of four attempts of one turn
    assert all(min(example.advantages) < 0 < max(example.advantages) for example in examples)
    names = {call.policy.rpartition("+")[2] for example in examples for call in example.calls}
    assert names <= {"g0-0", "g0-1"}
    folder = tmp_path / "whole" / "checkpoints"
    for name in names:
        before, after = (load_file(folder / f"generation-00000{end}" / name / ADAPTER) for end in ("", "-trained"))
        assert any(not before[key].equal(after[key]) for key in before)
    with monkeypatch.context() as patch:
        patch.setattr(Trainees, "save", _killed_at_second_call())
        with pytest.raises(KeyboardInterrupt):
            evolved(tmp_path / "killed")
    again = evolved(tmp_path / "killed", resume=True)
    assert (again.path / ADAPTER).read_bytes() == (whole.path / ADAPTER).read_bytes()


def test_a_member_that_has_diverged_does_not_end_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    more = {"population_size": 3, "initial": "sampled", "mutate": {"learning_rate": [0.01, 1e30]}}
    evolved(tmp_path, **more)
    members = [json.loads(line) for line in (tmp_path / "lineage.jsonl").read_text().splitlines()]
    measured = {(one["settings"]["learning_rate"], one["fitness"] is not None) for one in members}
    assert measured == {(0.01, True), (1e30, False)}
    assert "lost all of its episodes: " in caplog.text and "diverged" in caplog.text


def test_members_sample_and_score_their_groups_with_their_own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    groups: list[tuple[str, Group]] = []
    own, computed = OnlineGRPO.example, list[int]()
    update = PopulationTrainer.update

    def noted(self: OnlineGRPO, group: Group, calls: Any) -> Any:
        policies = {turn.call.policy for one in group.attempts for turn in one.turns if turn.call is not None}
        [name] = [str(policy).rpartition("+")[2] for policy in policies]
        groups.append((name, group))
        return own(self, group, calls)

    def counted(self: PopulationTrainer, batches: Any) -> Any:
        found = update(self, batches)
        computed.extend(done.gradient.tokens_computed for done in found.values())
        return found

    monkeypatch.setattr(OnlineGRPO, "example", noted)
    monkeypatch.setattr(PopulationTrainer, "update", counted)
    weights = {"rewards": {"outcome": 1.0, LENGTH: 0.5}, "steps": 1, "population_size": 3}
    mutate = {"temperature": "0.5..1.5", "group_size": "2..6"}
    found = evolved(tmp_path, **weights, mutate=mutate, initial="sampled")
    members = {line["name"]: line["settings"] for line in found.lineage}
    assert {name for name, _ in groups} == members.keys() == {"g0-0", "g0-1", "g0-2"}
    for setting in mutate:
        assert len({own[setting] for own in members.values()}) > 1
    for name, group in groups:
        mine = members[name]
        assert len(group.attempts) == mine["group_size"]
        for one in group.attempts:
            [turn] = one.turns
            assert turn.call is not None and turn.call.temperature == mine["temperature"]
            share = turn.reply.content.count(str(one.task.data["letter"])) / max(1.0, length(one))
            assert score(one) == pytest.approx(share + 0.5 * length(one))
    # What is computed to learn, and sampled to learn and to be measured, is all that the budget counts.
    sampled = [one for _, group in groups for one in group.attempts]
    for name in members:
        measured = bough.read(tmp_path / "rollouts" / "generation-00000" / name / "trajectories.jsonl")
        sampled += [one for one in measured if isinstance(one, bough.Trajectory)]
    tokens = [len(turn.call.completion_ids) for one in sampled for turn in one.turns if turn.call is not None]
    assert found.report["tokens_computed"] == sum(computed) + sum(tokens) and computed and tokens


def test_updates_that_teach_nothing_are_counted_apart(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    settings = {"set": {**SETTINGS_OF_GRPO["set"], "batch_size": 4}, "mutate": {}, "eval_tasks": 1, "max_updates": 4}
    found = evolved(tmp_path, environment=Hopeless, generations=9, **settings)
    # Two updates of two members are all that may be made, whatever they teach.
    assert found.report["generations"] == 1 and found.lineage[0]["step"] == 2
    assert (found.report["updates"], found.report["empty_updates"]) == (0, 4)
    [said] = [one.message for one in caplog.records if "zero variance" in one.message]
    assert said.startswith("16 of 16 groups have zero variance: in 16 of them all attempts failed (try easier tasks")


def _killed_at_second_call() -> Any:
    save, calls = Trainees.save, iter((True, False))

    def counted(self: Trainees, draft: Path) -> None:
        if not next(calls):
            raise KeyboardInterrupt
        save(self, draft)

    return counted


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"environment": ""}, "it needs an environment, and no train_file"),
        ({"train_file": "a.jsonl"}, "it needs an environment, and no train_file"),
        ({"set": {"max_turns": 3}}, "max_turns cannot be set for members"),
        ({"set": {"engine": "vllm"}}, "engine cannot be set for members"),
        ({"mutate": {"max_new_tokens": "2..8"}}, "max_new_tokens must be the same for all members"),
        ({"mutate": {"rewards.steps": "0..1"}}, "rewards.steps is not a setting of grpo"),
        ({"mutate": {"clip_high": "-1..0.5"}}, "clip_high=-1.0 is not possible"),
        ({"mutate": {"group_size": "2.2..2.8"}}, "group_size is a whole number; it cannot be 2.2 or 2.8"),
    ],
)
def test_settings_of_grpo_that_make_no_sense_are_refused(changes: dict[str, Any], said: str):
    with pytest.raises(InputError, match=said):
        EvolveConfig(**{"method": "grpo", "environment": "household", **changes})


def test_the_winner_is_not_measured_on_tasks_that_a_larger_batch_may_have_had(tmp_path: Path):
    given = {**SETTINGS_OF_GRPO["set"], "batch_size": 1}
    evolved(
        tmp_path, environment=OneSplit, eval_tasks=1, steps=1, initial="sampled", set=given,
        mutate={"batch_size": [1, 3], "learning_rate": [0.01, 0.02]},
    )  # fmt: skip
    [last] = (tmp_path / "rollouts" / "generation-00000-winner").iterdir()
    # Of the six, 0, 2 and 3 are for training and may all be in the first batch; 1 is selected on.
    assert {one.task.id for one in episodes(last).values()} == {"letter-4"}
