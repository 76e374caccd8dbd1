"""What travels to workers. Another process reads it, to which the user's modules are unknown."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from bough.config.groups import AgentConfig, LimitsConfig, SamplingConfig
from bough.environments.base import configured
from bough.environments.registry import find
from bough.errors import InputError
from bough.rollouts.ray_workers import ConfiguredAgent, WorkerSpec, pack

# Not importorskip: Ray must be imported by Bough, which tells it first to print nothing.
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")

WORLD = """
from pydantic import Field
import told_by_world
from bough.config.base import Config
from bough.environments.base import Environment, Observation

class World(Environment):
    class Settings(Config):
        greeting: str = Field("Hi", description="how it greets")
    class Options(Settings):
        pass
    settings = Settings()
    def start(self):
        return Observation.say(f"{self.settings.greeting} {told_by_world.NAME}")
    def step(self, reply):
        return Observation.end()
    def expert(self):
        return "bye"
"""
READ = """
import asyncio, sys
from pathlib import Path
from bough.rollouts.ray_workers import Worker
from bough.rollouts.collect import Attempt
from bough.types import Task
async def main():
    worker = Worker(Path(sys.argv[1]).read_bytes())
    assert await worker.start() is None
    record, _ = (await worker.play(Attempt("a", Task(id="t"), 0))).result()
    print(record.start[0].content)
asyncio.run(main())
"""


def spec(environment_class: type) -> WorkerSpec:
    return WorkerSpec(environment_class, ConfiguredAgent(AgentConfig(model="expert"), SamplingConfig()), LimitsConfig())


def test_a_class_of_a_file_and_its_helpers_travel_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "told_by_world.py").write_text("NAME = 'you'")
    (tmp_path / "world.py").write_text(WORLD)
    monkeypatch.syspath_prepend(tmp_path)
    found = configured(find(f"{tmp_path / 'world.py'}:World"), {"greeting": "Hello"})
    packed = tmp_path / "packed"
    packed.write_bytes(pack(spec(found)))
    for name in ("told_by_world.py", "world.py"):
        (tmp_path / name).unlink()
    done = subprocess.run([sys.executable, "-c", READ, str(packed)], capture_output=True, text=True, cwd="/")
    assert done.stdout == "Hello you\n", done.stderr


def test_installed_classes_are_only_named():
    assert len(pack(spec(find("household")))) < 1500


def test_what_cannot_be_pickled_is_an_input_error(tmp_path: Path):
    (tmp_path / "locked.py").write_text(
        WORLD.replace("import told_by_world", "import threading\nLOCK = threading.Lock()").replace(
            "told_by_world.NAME", "LOCK"
        )
    )
    with pytest.raises(InputError, match=r"World cannot be sent .*cannot pickle '_thread.lock'.*create it in __init__"):
        pack(spec(find(f"{tmp_path / 'locked.py'}:World")))
