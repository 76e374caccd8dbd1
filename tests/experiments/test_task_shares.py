"""Which tasks members learn from, are selected on and are measured on: never the same."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bough import Environment, Message, Task, Trajectory, Turn
from bough.data.writer import Writer
from bough.environments.base import is_for_training
from bough.environments.registry import own_agent, seeded_tasks
from bough.errors import InputError
from bough.experiments.evolve_settings import EvolveConfig, trained_by
from bough.experiments.generation import Generation, read_records
from bough.experiments.members import method_of
from bough.experiments.playing import GroupLessons, PlayedFitness
from bough.policy.load import load_call_builder
from bough.worlds.functions import benchmark
from tests.commands.letters import WriteLetter
from tests.experiments.test_played_fitness import Scripted

UPDATES, GENERATIONS = 4, 4
GRPO: dict[str, Any] = {
    "method": "grpo", "seed": 3, "set": {"batch_size": 8, "group_size": 2}, "generations": GENERATIONS, "steps": 1,
    "eval_tasks": 16,
}  # fmt: skip


class Entry(NamedTuple):
    id: str
    set: str
    family: str


class Numbered(WriteLetter):
    """A finite list of tasks in the order that the seed fixes; the splits have different ones."""

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        return (Task(id=f"{split}-{(number + seed) % 400}", data={"letter": "e"}) for number in range(400))


class Seeded(WriteLetter):
    """What the adapters of gymnasium, textarena and OpenEnv make."""

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        return seeded_tasks(split, seed, {})


def tasks(split: str, seed: int) -> Iterator[dict[str, str]]:
    return ({"opening": f"{split} {seed + number}"} for number in range(500))


def play(task: Task, base_url: str) -> None:
    """An agent function; its tasks are those of the function above."""


def answers(folder: Path) -> dict[str, Any]:
    path = folder / "problems.jsonl"
    rows = [{"problem": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(600)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return {"environment": "interpreter", "options": {"file": str(path)}}


def task_files(folder: Path) -> dict[str, Any]:
    for name, begin in (("tasks", 0), ("test", 150)):  # 50 tasks are in both
        rows = [
            {"id": f"t-{number}", "data": {"letter": "e", "number": number}} for number in range(begin, begin + 200)
        ]
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    files = {"task_file": folder / "tasks.jsonl", "test_task_file": folder / "test.jsonl"}
    return {"environment": WriteLetter, **files}


WORLDS: dict[str, Any] = {
    "household": lambda _: {"environment": "household"},
    "web": lambda _: {"environment": "web", "options": {"pages": ["click-test", "enter-text"]}},
    "interpreter": lambda _: {"environment": "interpreter"},
    "interpreter with a file": answers,
    "functions": lambda _: {"environment": "functions"},
    "own environment": lambda _: {"environment": Numbered},
    "adapters": lambda _: {"environment": Seeded},
    "agent": lambda _: {"environment": own_agent(play, "play")},
    "task file": task_files,
}


def opened(stack: ExitStack, folder: Path, given: dict[str, Any]) -> tuple[PlayedFitness, GroupLessons]:
    environment = given["environment"]
    own = environment if isinstance(environment, type) and issubclass(environment, Environment) else None
    config = EvolveConfig(**{**GRPO, **given, "environment": own.__name__ if own else environment})
    players: Any = stack.enter_context(closing(Scripted(config, own)))
    return PlayedFitness(config, players, folder / "rollouts"), GroupLessons(config, players, None)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The world of functions with made-up entries: its own need not be on this machine."""
    found = {f"entry-{number}": Entry(f"entry-{number}", "simple", f"family-{number}") for number in range(600)}
    monkeypatch.setattr(benchmark, "sets_named", lambda _: ["simple"])
    monkeypatch.setattr(benchmark, "entries", lambda _: found)


@pytest.mark.parametrize("world", WORLDS)
def test_no_task_is_trained_on_and_selected_on_or_measured_on(world: str, tmp_path: Path):
    with ExitStack() as stack:
        fitness, lessons = opened(stack, tmp_path, WORLDS[world](tmp_path))
        learnt = {task.id for update in range(UPDATES) for task in lessons._tasks(update, 8)}
        selected = [{task.id for task in fitness._selection_tasks(number)} for number in range(GENERATIONS)]
        test = {task.id for task in fitness._test_tasks(GENERATIONS, UPDATES)}
        # A run that resumes, or a worker of a cluster, begins at any update and generation.
        again, lessons_again = opened(stack, tmp_path, WORLDS[world](tmp_path))
        assert {task.id for task in again._selection_tasks(GENERATIONS - 1)} == selected[-1]
        assert {task.id for task in lessons_again._tasks(UPDATES - 1, 8)} <= learnt
    everyone = [learnt, *selected, test]
    assert [len(one) for one in everyone] == [32, *[16] * GENERATIONS, 16]
    assert len(set.union(*everyone)) == sum(map(len, everyone)), "some tasks are in two of them"


def test_too_few_tasks_to_learn_from_and_to_select_on_are_refused_with_their_number(tmp_path: Path):
    (tmp_path / "tasks.jsonl").write_text('{"id": "only", "data": {"letter": "e"}}\n')
    given = {"environment": WriteLetter, "task_file": tmp_path / "tasks.jsonl", "test_task_file": "other.jsonl"}
    with ExitStack() as stack, pytest.raises(InputError, match=r"tasks.jsonl has 1 task, of which none is left for"):
        opened(stack, tmp_path, given)


def test_a_generation_that_is_selected_on_earlier_tasks_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with ExitStack() as stack:
        fitness, _ = opened(stack, tmp_path, {"environment": WriteLetter, "eval_tasks": 6})
        first, *_, last = (fitness._selection_tasks(number) for number in range(4))
        [ids, again] = [{task.id for task in tasks} for tasks in (first, last)]
        assert len(ids) == len(again) == 6 and ids & again  # about 20 of the 40 tasks are for selection
        for number in range(4):
            folder = tmp_path / f"generation-{number:05}"
            (folder / "a").mkdir(parents=True)
            fitness.of(Generation(folder, number, trained=True))
    size = len(fitness.players.selection.known)
    late = [number for number in range(4) if (number + 1) * 6 > size]
    said = "Generation {} is selected on tasks that an earlier one was selected on: there are only {}."
    assert late and caplog.messages == [said.format(number, size) for number in late]


def test_tasks_of_one_family_are_on_one_side():
    families = [[Task(id=f"{name}{n}", data={"family": name}) for n in range(4)] for name in "abcdefghijklmnop"]
    sides = [{is_for_training(task) for task in family} for family in families]
    assert all(len(side) == 1 for side in sides) and {True, False} == set().union(*sides)


@pytest.mark.parametrize("content", ["content", "family"])
def test_tasks_of_a_file_with_the_same_content_or_family_are_on_one_side(content: str, tmp_path: Path):
    for file, copy in (("tasks", "a"), ("tasks", "b"), ("test", "c")):
        rows = [{"id": f"{copy}{number}", "data": {content: f"{number}", "letter": "e"}} for number in range(40)]
        with (tmp_path / f"{file}.jsonl").open("a") as opened_file:
            opened_file.writelines(f"{json.dumps(row)}\n" for row in rows)
    files = {"task_file": tmp_path / "tasks.jsonl", "test_task_file": tmp_path / "test.jsonl"}
    with ExitStack() as stack:
        fitness, lessons = opened(stack, tmp_path, {"environment": WriteLetter, **files, "generations": 1})
        learnt = {task.data[content] for task in lessons._tasks(0, 8)}
        selected = {task.data[content] for task in fitness._selection_tasks(0)}
        test = {task.data[content] for task in fitness._test_tasks(1, 1)}
    assert learnt and selected and test
    assert not learnt & selected and not test & (learnt | selected)


@pytest.mark.parametrize("data", ["a file", "records"])
def test_members_are_not_selected_or_measured_on_the_tasks_of_their_training_file(data: str, tmp_path: Path):
    tasks = list(Numbered.tasks(None, seed=3))[:10] + list(Numbered.tasks(None, split="unseen", seed=3))[:5]
    said = [Turn(reply=Message(role="assistant", content="e"))]
    start = [Message(role="user", content="Write e.")]
    records = [Trajectory(id=task.id, task=task, start=start, turns=said) for task in tasks]
    with Writer(tmp_path / "train.jsonl") as writer:
        for record in records:
            writer.write(record)
    config = EvolveConfig(method="sft", environment="Numbered", seed=3, train_file=tmp_path / "train.jsonl")
    builder = load_call_builder("tiny", None, max_length=None, stride=0.5)
    given = iter(records) if data == "records" else None
    found = read_records(config, method_of(trained_by(config, {})), builder, given)
    with closing(Scripted(config, Numbered, found.tasks)) as players:
        fitness = PlayedFitness(config, players, tmp_path / "rollouts")
        used = [*fitness._selection_tasks(0), *fitness._test_tasks(1, 1)]
    assert len(used) == 2 * config.fitness.tasks and not {task.id for task in used} & {task.id for task in tasks}
