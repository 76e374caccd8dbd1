from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import bough
from bough.config.groups import CollectConfig
from bough.config.training import OnlineEnvironmentConfig
from bough.environments import given, registry
from bough.environments.base import Environment, EnvironmentFailedError, NoTasksError, tasks_of
from bough.environments.registry import OwnAgent, find, find_listed, own_agent
from bough.errors import InputError
from bough.methods.grpo import GRPOConfig
from bough.types import Task
from tests.environments.worlds import Counting

WORLDS = Path(__file__).parent / "worlds.py"


def test_a_class_of_a_module_or_of_a_file(tmp_path: Path):
    assert find("tests.environments.worlds:Counting") is Counting
    found = find(f"{WORLDS}:Counting")
    assert found.name == "counting" and found is find(f"{WORLDS}:Counting")
    (tmp_path / "shop.py").write_text("class Shop:\n    def start(self): ...\n    def step(self, reply): ...\n")
    assert find(f"{tmp_path}/shop.py:Shop").name == f"{tmp_path.name}/shop.py:Shop"
    found = find("tests.environments.worlds:NotAnEnvironment")
    assert issubclass(found, Environment) and found.max_turns == 50
    assert found.name == "tests.environments.worlds:NotAnEnvironment"


def test_a_file_may_name_only_what_is_installed(monkeypatch: pytest.MonkeyPatch):
    points = {"count": EntryPoint("count", "tests.environments.worlds:Counting", registry.GROUP)}
    monkeypatch.setattr(registry, "plugged_in", lambda: points)
    assert find_listed("count") is Counting
    for name in (f"{WORLDS}:Counting", "tests.environments.worlds:Counting"):
        with pytest.raises(InputError, match="there is no environment"):
            find_listed(name)


def test_an_entry_point(monkeypatch: pytest.MonkeyPatch):
    points = {
        "count": EntryPoint("count", "tests.environments.worlds:Counting", registry.GROUP),
        "gone": EntryPoint("gone", "no.such.module:Counting", registry.GROUP),
    }
    monkeypatch.setattr(registry, "plugged_in", lambda: points)
    assert find("count") is Counting
    with pytest.raises(InputError, match=r"'gone' cannot be loaded: no.such.module:Counting raised ModuleNotFound"):
        find("gone")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("househould", "did you mean household? (your own: module:Class"),
        ("nothing-like-it", "interpreter, web (your own: module:Class or path/to/file.py:Class)"),
        ("bank.py", "'bank.py' is a file; name its class too: bank.py:Class"),
        ("no/such/file.py:X", "no/such/file.py: there is no such file"),
        ("no.such.module:X", "cannot be loaded: no.such.module raised ModuleNotFoundError"),
        ("tests.environments.worlds:Count", "has no 'Count'; did you mean Counting?"),
        ("tests.environments.worlds:itertools", "is of type module; it must be a class"),
        ("bough.types:Task", "has no method start and no step"),
        ("agent:tests.environments.test_registry:test_a_fle", "--agent tests.environments.test_registry:test_a_fle: "),
    ],
)
def test_what_cannot_be_found_is_said_with_what_was_tried(name: str, complaint: str):
    with pytest.raises(InputError) as error:
        find(name)
    assert complaint in str(error.value)


def test_a_file_that_breaks_is_named_and_may_be_tried_again(tmp_path: Path):
    file = tmp_path / "world.py"
    file.write_text("1 / 0")
    with pytest.raises(InputError, match=r"world.py raised ZeroDivisionError: division by zero \(.*world.py:1\)"):
        find(f"{file}:World")
    file.write_text(WORLDS.read_text())
    assert find(f"{file}:Counting").name == "counting"


def test_another_package_cannot_take_over_a_name_of_ours(monkeypatch: pytest.MonkeyPatch):
    ours = EntryPoint("household", "bough.worlds.household.environment:Household", registry.GROUP)
    other = EntryPoint("household", "tests.environments.worlds:Counting", registry.GROUP)
    for points in ([ours, other], [other, ours]):
        monkeypatch.setattr(registry, "entry_points", lambda group, points=points: points)
        assert registry.plugged_in()["household"] is ours


def test_every_registered_environment_is_listed_with_its_options():
    found = {one.name: one for one in bough.list_environments()}
    assert {"household", "interpreter", "web"} <= set(found)
    household = found["household"]
    assert household.problem is None and household.max_turns == 50
    assert "admissible" in {option.name for option in household.options}
    assert household.summary and "\n" not in household.summary


def test_one_that_cannot_be_loaded_is_listed_with_the_reason(monkeypatch: pytest.MonkeyPatch):
    def broken(name: str) -> None:
        raise InputError(f"{name} needs a package")

    monkeypatch.setattr(registry, "find", broken)
    assert {one.problem for one in bough.list_environments()} >= {"household needs a package"}


AGENT = """
def tasks(split):
    yield {"question": split}
    yield {"question": "again"}

def play(task, base_url):
    return True
"""


def test_a_function_of_a_file_is_found_with_its_tasks(tmp_path: Path):
    (tmp_path / "mine.py").write_text(AGENT)
    found = find(f"agent:{tmp_path / 'mine.py'}:play")
    assert issubclass(found, OwnAgent) and found.parameters == ("task", "base_url")
    assert found.name == f"agent:{tmp_path.name}/mine.py:play", "no absolute path goes into records"
    tasks = list(tasks_of(found, options={}, split="unseen"))
    assert [task.data["question"] for task in tasks] == ["unseen", "again"]
    assert {task.environment for task in tasks} == {found.name} and len({task.id for task in tasks}) == 2


def test_tasks_may_be_the_functions_own():
    def play(task: Task, base_url: str) -> None: ...

    def own(seed: int) -> list[Task]:
        return [Task(id=f"task {seed}")]

    play.tasks = own  # type: ignore[attr-defined]
    assert [task.id for task in tasks_of(own_agent(play, "play"), options={}, seed=7)] == ["task 7"]


def test_tasks_that_are_missing_or_of_another_type_are_refused():
    def play(task: Task, base_url: str) -> None: ...

    play.tasks = None  # type: ignore[attr-defined]
    with pytest.raises(NoTasksError, match=r"define a function tasks\(split, seed\) beside it, or give --task-file"):
        list(tasks_of(own_agent(play, "play"), options={}))

    def play(task: Task, base_url: str) -> None: ...

    play.tasks = lambda: [1]  # type: ignore[attr-defined]
    with pytest.raises(EnvironmentFailedError, match=r"of type int; it must yield mappings or bough\.Task objects"):
        list(tasks_of(own_agent(play, "play"), options={}))


def test_a_function_that_was_handed_in_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch):
    def mine(base_url: str) -> None: ...

    monkeypatch.setitem(given.AGENTS, "mine", mine)
    assert find("agent:mine").name == "agent:mine"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (7, "is of type int; it must be a function"),
        (OwnAgent, "it must be a function"),
        (lambda task, browser, base_url: None, "needs 'browser', which it is not given"),
        (lambda task: None, "does not take base_url"),
    ],
)
def test_what_cannot_be_called_is_refused(function: Any, words: str):
    with pytest.raises(InputError, match=words):
        own_agent(function, "mine")


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (lambda base_url: None, ("base_url",)),
        (lambda task, base_url, tries=3: None, ("task", "base_url")),
        (lambda **given: None, ("task", "base_url", "model", "seed")),
    ],
)
def test_a_function_gets_what_it_asks_for(function: Callable[..., Any], parameters: tuple[str, ...]):
    assert own_agent(function, "mine").parameters == parameters


def test_the_flag_names_an_environment(tmp_path: Path):
    parsed = CollectConfig.load(None, {"own_agent": "mine.py:play", "output": "x"})
    assert parsed.environment.name == "agent:mine.py:play" and parsed.environment.own_agent is None
    assert parsed.agent.model == "smollm2", "the part called agent is another matter"
    config = GRPOConfig(agent="mine.py:play", max_steps=1, output_dir=tmp_path)
    assert config.environment.name == "agent:mine.py:play"
    assert OnlineEnvironmentConfig(**config.environment.model_dump()) == config.environment


def test_an_agent_in_place_of_an_environment_not_besides_it():
    with pytest.raises(InputError, match="give either environment or agent"):
        CollectConfig(own_agent="mine.py:play", environment="web", output="x")


@pytest.mark.parametrize("line", ["agent: mine.py:play", "own_agent: mine.py:play", "environment: agent:mine.py:play"])
def test_a_file_may_not_name_an_agent(tmp_path: Path, line: str):
    (tmp_path / "collect.yaml").write_text(f"{line}\noutput: x\n")
    with pytest.raises(InputError, match="names code"):
        CollectConfig.load(tmp_path / "collect.yaml")


def test_the_part_called_agent_may_still_be_in_a_file(tmp_path: Path):
    (tmp_path / "collect.yaml").write_text("agent: {model: tiny}\nenvironment: web\noutput: x\n")
    config = CollectConfig.load(tmp_path / "collect.yaml")
    assert (config.agent.model, config.environment.name) == ("tiny", "web")
    flags = {"own_agent": "mine.py:play"}
    (tmp_path / "collect.yaml").write_text("agent: {model: tiny}\noutput: x\n")
    config = CollectConfig.load(tmp_path / "collect.yaml", flags)
    assert (config.agent.model, config.environment.name) == ("tiny", "agent:mine.py:play")
