import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from bough.engines.base import EngineError
from bough.errors import InputError
from bough.evaluation import contest as module
from bough.evaluation.contest import EvalConfig, contest, folder_name
from bough.evaluation.intervals import wilson
from bough.evaluation.results import Results
from bough.models.resolve import resolve
from bough.rollouts.collect import AllLostError, NoExpertError
from bough.rollouts.episode import ExpertAgent, RandomAgent
from bough.terminal.console import ContestProgress
from tests.environments.worlds import Breaking

COUNTING = "tests.environments.worlds:Counting"
BREAKING = "tests.environments.worlds:Breaking"


def config(folder: Path, **more: Any) -> EvalConfig:
    values = {"environment": COUNTING, "model": ["expert", "random"], "tasks": 12, "output": folder}
    return EvalConfig(**{**values, **more})


def run(folder: Path, **more: Any) -> Results:
    return asyncio.run(contest(config(folder, **more)))


def test_every_model_plays_the_same_tasks(tmp_path: Path):
    found = run(tmp_path, attempts=2)
    expert, rng = found.models
    assert [(row.task, row.digest, row.attempt) for row in expert.outcomes] == [
        (row.task, row.digest, row.attempt) for row in rng.outcomes
    ]
    assert [row.task for row in expert.outcomes][:3] == ["unseen-0-0", "unseen-0-0", "unseen-0-1"]
    assert len(expert.outcomes) == 24 and all(row.success for row in expert.outcomes)
    assert 0 < sum(row.success is True for row in rng.outcomes) < 24


def test_results_are_on_file_with_reports_and_comparisons(tmp_path: Path):
    found = run(tmp_path)
    assert Results.read(tmp_path) == found and found.environment == "counting"
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["reports"]["expert"]["success"]["mean"] == 1.0
    assert content["comparisons"][0]["first"] == "expert" and content["comparisons"][0]["success"]["mean"] < 0
    assert content["models"][0]["settings"]["temperature"] == 0.0


def test_the_same_seed_gives_the_same_file_however_many_play_at_once(tmp_path: Path):
    for name, concurrency in (("a", 1), ("b", 7)):
        run(tmp_path / name, concurrency=concurrency)
    assert (tmp_path / "a/results.json").read_bytes() == (tmp_path / "b/results.json").read_bytes()
    assert run(tmp_path / "c", seed=1) != run(tmp_path / "a")


class Interrupted(RandomAgent):
    """Is killed in the middle."""

    left = 5

    def enter(self, *args: Any, **more: Any) -> Any:
        type(self).left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().enter(*args, **more)


def test_a_contest_that_was_killed_goes_on_and_ends_in_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def make(*_: Any) -> Interrupted:
        return Interrupted()

    with monkeypatch.context() as patch:
        patch.setattr(module, "make_agent", make)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "killed", model="random", concurrency=1)
    begun = (tmp_path / "killed/models/random/trajectories.jsonl").read_text()
    assert begun.count("\n") == 5 and not (tmp_path / "killed/results.json").exists()
    run(tmp_path / "killed", model="random")
    run(tmp_path / "whole", model="random")
    assert (tmp_path / "killed/models/random/trajectories.jsonl").read_text().startswith(begun)
    assert (tmp_path / "killed/results.json").read_bytes() == (tmp_path / "whole/results.json").read_bytes()


def test_more_tasks_are_added_and_fewer_are_not_counted(tmp_path: Path):
    first = run(tmp_path)
    more = run(tmp_path, tasks=20)
    assert more.models[1].outcomes[:12] == first.models[1].outcomes and len(more.models[1].outcomes) == 20
    assert run(tmp_path).models == first.models


def test_results_of_other_models_are_not_dropped_silently(tmp_path: Path):
    before = run(tmp_path)
    file = (tmp_path / "results.json").read_bytes()
    said = r"results\.json has results of expert, which would be dropped; give all models \(--model expert random;"
    with pytest.raises(InputError, match=said):
        run(tmp_path, model=["random"])
    assert (tmp_path / "results.json").read_bytes() == file
    again = run(tmp_path, model=["random", "expert"])
    assert {one.name for one in again.models} == {one.name for one in before.models}
    assert [one.name for one in run(tmp_path, model=["random"], overwrite=True).models] == ["random"]
    assert [one.name for one in run(tmp_path, model=["random", "expert"]).models] == ["random", "expert"]


def test_a_model_is_known_by_the_label_under_which_it_was_filed(tmp_path: Path):
    def labelled(**labels: str) -> Results:
        return asyncio.run(contest(config(tmp_path, model=["expert"]), names=labels))

    labelled().model_copy(update={"models": [labelled().models[0].model_copy(update={"name": "mine"})]}).write(
        tmp_path / "results.json"
    )
    with pytest.raises(InputError, match="results of mine"):
        labelled()
    assert labelled(expert="mine").models[0].name == "mine"


def test_a_world_that_breaks_makes_no_failure(tmp_path: Path):
    Breaking.broken = {"unseen-0-3": 99}
    found = run(tmp_path, environment="tests.environments.worlds:Breaking", model="expert", retries=0)
    [lost] = found.models[0].lost
    assert len(found.models[0].outcomes) == 11 and (lost.task, lost.attempt) == ("unseen-0-3", 0)
    assert lost.why == "the browser died" and lost.digest is not None
    report: Any = found.reports["expert"]
    assert report["success"]["mean"] == 1.0 and report["lost_by_task"] == {"unseen-0-3": 1}
    assert report["success"]["interval"]["low"] == wilson(11, 12)[0], "but it may have been one"
    Breaking.broken = {}
    again = run(tmp_path, environment="tests.environments.worlds:Breaking", model="expert")
    assert again.models[0].outcomes[3].digest == lost.digest
    assert len(again.models[0].outcomes) == 12 and again.models[0].lost == []


def test_rows_name_the_family_of_their_task_and_lost_ones_too(tmp_path: Path):
    rows = [{"id": f"t{number}", "data": {"goal": 2, "family": "two"}} for number in range(3)]
    (tmp_path / "tasks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    Breaking.broken = {"t1": 99}
    settings = {"environment": BREAKING, "model": "expert", "retries": 0, "task_file": tmp_path / "tasks.jsonl"}
    [found] = run(tmp_path / "out", **settings).models
    Breaking.broken = {}
    assert [row.family for row in (*found.outcomes, *found.lost)] == ["two", "two", "two"]
    first, second = found.outcomes
    assert (first.start, first.digest) == (second.start, second.digest), "the same game under another name"


def test_what_was_lost_at_one_look_and_played_at_the_next_is_not_lost(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr(Breaking, "broken", {"unseen-0-3": 1})
    found = run(tmp_path, environment=BREAKING, model="expert", tasks=60, stop_width=0.2, retries=0)
    assert found.models[0].lost == [] and "unseen-0-3" in {row.task for row in found.models[0].outcomes}


def test_lost_episodes_keep_a_model_from_stopping_early(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr(Breaking, "broken", {f"unseen-0-{number}": 99 for number in range(8)})
    found = run(tmp_path, environment=BREAKING, model="expert", tasks=60, stop_width=0.2, retries=0)
    assert len(found.models[0].outcomes) == 52 and len(found.models[0].lost) == 8, "without them 32 tasks are enough"


def test_a_model_stops_when_its_interval_is_narrow(tmp_path: Path):
    found = run(tmp_path, tasks=80, stop_width=0.2)
    expert, rng = found.models
    assert len(expert.outcomes) == 32, "no failure: looked at after 16, 20, 25 and 32 tasks"
    assert len(expert.outcomes) < len(rng.outcomes) <= 80
    assert "any stopping time" in found.reports["expert"]["success"]["interval"]["method"]  # type: ignore
    assert found.comparisons[0]["tasks"] == 32  # type: ignore
    assert run(tmp_path, tasks=80, stop_width=0.2) == found, "and stops there again"


def test_a_model_that_was_trained_anew_is_not_confused_with_its_earlier_self(tmp_path: Path, monkeypatch: Any):
    async def make(*_: Any) -> RandomAgent:
        return RandomAgent()

    monkeypatch.setattr(module, "make_agent", make)
    model = tmp_path / "final"
    model.mkdir()
    (model / "adapter_model.safetensors").write_bytes(b"one")
    run(tmp_path / "eval", model=str(model))
    run(tmp_path / "eval", model=str(model))
    os.utime(model / "adapter_model.safetensors", ns=(1, 1))
    with pytest.raises(InputError, match="has changed since its episodes"):
        run(tmp_path / "eval", model=str(model))
    run(tmp_path / "eval", model=str(model), overwrite=True)


def test_names_become_folders_that_stay_apart():
    assert folder_name("runs/a") != folder_name("runs_a") == "runs_a" and folder_name("runs/a").startswith("runs_a-")
    assert "/" not in folder_name("../../etc") and not folder_name("../../etc").startswith(".")


def test_a_watcher_hears_of_every_model(tmp_path: Path):
    class Watcher(ContestProgress):
        heard: list[Any] = []

        def begin(self, model: str, missing: int, on_file: int) -> None:
            self.heard.append((model, missing, on_file))

        def tell(self, numbers: dict[str, Any]) -> None:
            self.heard.append(numbers["episodes"])

    run(tmp_path, model="expert", tasks=2)
    asyncio.run(contest(config(tmp_path, tasks=3, concurrency=1), Watcher()))
    assert Watcher.heard == [("expert", 1, 2), 1, ("random", 3, 0), 1, 2, 3]


class Broken(RandomAgent):
    """An engine that is gone."""

    def enter(self, *args: Any, **more: Any) -> Any:
        raise EngineError("no server")


def test_a_model_whose_episodes_are_all_lost_does_not_take_the_others_results_along(
    tmp_path: Path, monkeypatch: Any, capsys: Any
):
    async def make(settings: Any, _: Any) -> Any:
        return ExpertAgent() if settings.model == "expert" else Broken()

    monkeypatch.setattr(module, "make_agent", make)
    found = run(tmp_path, tasks=3, retries=0)
    assert Results.read(tmp_path) == found and [len(model.outcomes) for model in found.models] == [3, 0]
    assert found.comparisons == [] and len(found.models[1].lost) == 3
    assert "not compared: expert and random: random finished no episode" in capsys.readouterr().err


def test_where_everything_is_lost_the_contest_has_failed(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr(Breaking, "broken", {"unseen-0-0": 99, "unseen-0-1": 99})
    with pytest.raises(AllLostError, match=r"all 4 episodes failed; expert, unseen-0-0#0: the browser died"):
        run(tmp_path, environment=BREAKING, tasks=2, retries=0)
    assert [len(model.lost) for model in Results.read(tmp_path).models] == [2, 2], "why is on file"


def test_an_expert_without_advice_for_any_task_has_no_success_rate(tmp_path: Path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"id": "x", "goal": 3}\n{"id": "y", "goal": 2}\n')
    unsure = {"environment": "tests.environments.worlds:Unsure", "task_file": file}
    with pytest.raises(NoExpertError, match="1 episode ends with no_expert"):
        run(tmp_path / "one", tasks=1, **unsure)
    found = run(tmp_path / "two", tasks=2, **unsure)
    assert found.reports["expert"]["failures"] == {"no_expert": 1}


def test_results_hold_no_absolute_path(tmp_path: Path):
    folder = tmp_path / "runs" / "tiny"
    shutil.copytree(resolve("tiny"), folder)
    template = tmp_path / "template.jinja"
    shutil.copy(folder / "chat_template.jinja", template)
    config = EvalConfig(
        model=[str(folder)], environment="tests.environments.worlds:Counting", tasks=1, max_new_tokens=2, max_turns=1,
        chat_template=template, output=tmp_path / "eval",
    )  # fmt: skip
    [model] = asyncio.run(contest(config)).models
    assert model.name.startswith("runs/tiny@") and model.settings["chat_template"] == "../template.jinja"
    written = [file for file in (tmp_path / "eval").rglob("*") if file.suffix in (".yaml", ".json", ".jsonl")]
    assert len(written) > 3
    assert [file.name for file in written if str(tmp_path) in file.read_text()] == []
    # The same evaluation is complete, not another one.
    assert asyncio.run(contest(config)).models == [model]


@pytest.mark.parametrize("name", ["models", "models/expert"])
def test_a_link_in_place_of_the_episodes_of_a_model_is_refused(tmp_path: Path, name: str):
    (tmp_path / "other").mkdir()
    (tmp_path / "out" / name).parent.mkdir(parents=True)
    (tmp_path / "out" / name).symlink_to(tmp_path / "other")
    with pytest.raises(InputError, match=rf"{name} is a symbolic link"):
        run(tmp_path / "out", model=["expert"])
    assert list((tmp_path / "other").iterdir()) == []
