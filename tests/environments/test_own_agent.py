from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bough.config.groups import CollectConfig
from bough.config.online import OnlineEnvironmentConfig
from bough.environments import given
from bough.environments.base import EnvironmentFailedError, NoTasksError
from bough.environments.registry import OwnAgent, find, own_agent
from bough.environments.tasks import tasks_of
from bough.errors import InputError
from bough.methods.grpo import GRPOConfig
from bough.types import Task

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


def test_tasks_may_be_the_functions_own(tmp_path: Path):
    def play(task: Task, base_url: str) -> None: ...

    def own(seed: int) -> list[Task]:
        return [Task(id=f"task {seed}")]

    play.tasks = own  # type: ignore[attr-defined]
    assert [task.id for task in tasks_of(own_agent(play, "play"), options={}, seed=7)] == ["task 7"]


def test_tasks_may_come_from_an_async_generator():
    def play(task: Task, base_url: str) -> None: ...

    async def own() -> Any:
        yield {"n": 1}
        yield Task(id="two")

    play.tasks = own  # type: ignore[attr-defined]
    assert [task.data for task in tasks_of(own_agent(play, "play"), options={})] == [{"n": 1}, {}]


def test_a_function_without_tasks_says_where_to_put_them():
    def play(task: Task, base_url: str) -> None: ...

    play.tasks = None  # type: ignore[attr-defined]
    with pytest.raises(NoTasksError, match=r"define a function tasks\(split, seed\) beside it, or give --task-file"):
        list(tasks_of(own_agent(play, "play"), options={}))


def test_tasks_of_another_type_are_refused_with_what_is_allowed():
    def play(task: Task, base_url: str) -> None: ...

    play.tasks = lambda: [1]  # type: ignore[attr-defined]
    with pytest.raises(EnvironmentFailedError, match=r"of type int; it must yield mappings or bough\.Task objects"):
        list(tasks_of(own_agent(play, "play"), options={}))


def test_a_function_that_was_handed_in_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch):
    def mine(client: Any) -> None: ...

    monkeypatch.setitem(given.AGENTS, "mine", mine)
    assert find("agent:mine").name == "agent:mine"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (7, "is of type int; it must be a function"),
        (OwnAgent, "it must be a function"),
        (lambda task, browser, base_url: None, "needs 'browser', which it is not given"),
        (lambda task: None, "takes neither base_url nor client"),
    ],
)
def test_what_cannot_be_called_is_refused(function: Any, words: str):
    with pytest.raises(InputError, match=words):
        own_agent(function, "mine")


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (lambda base_url: None, ("base_url",)),
        (lambda task, client, tries=3: None, ("task", "client")),
        (lambda **given: None, ("task", "base_url", "model", "seed")),
    ],
)
def test_a_function_gets_what_it_asks_for(function: Callable[..., Any], parameters: tuple[str, ...]):
    assert own_agent(function, "mine").parameters == parameters


@pytest.mark.parametrize("name", ["mine", "nowhere:play", "no/such/file.py:play"])
def test_a_name_that_leads_nowhere_is_an_input_error(name: str):
    with pytest.raises(InputError):
        find(f"agent:{name}")


def test_an_agent_takes_no_steps():
    environment = own_agent(lambda base_url: None, "mine")(Task(id="a"))
    with pytest.raises(EnvironmentFailedError, match="it plays by itself"):
        environment.start()


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
