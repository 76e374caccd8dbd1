"""`bough.serve`: serve a model over an OpenAI-compatible address and record every call."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import Field

from bough.commands.models import LoadedModel, ModelLike, model_name
from bough.commands.objects import AgentLike, StrPath, agent_name
from bough.commands.table import Command
from bough.config.base import Config
from bough.config.groups import AGENT_PREFIX, MODEL, AgentConfig, LimitsConfig, ReportConfig, SamplingConfig
from bough.config.keywords import make_config, settings_of
from bough.config.yaml_file import YamlFile
from bough.engines.base import Engine
from bough.engines.chat import TemplateEngine
from bough.engines.load import load_engine, need_server
from bough.engines.server.session import SessionConfig
from bough.engines.server.store import Recorder, Store
from bough.environments.isolated import shut_down
from bough.environments.registry import find
from bough.errors import InputError
from bough.event_loop import BackgroundLoop
from bough.files import derived_seed, json_digest, without_absolute, write_atomically
from bough.rollouts.episode import ModelAgent, play
from bough.terminal import console
from bough.types import Task, Trajectory


class ServedModelConfig(AgentConfig):
    """The model."""

    model: str = Field("smollm2", description=f"{MODEL}, or the folder of an adapter")


class ServeConfig(ReportConfig):
    """Serves a model over an OpenAI-compatible address, and records every call with its exact tokens.

    A session is the path /s/NAME/v1 or the header X-Session-ID. POST /s/NAME/end with
    {"success": true, "reward": 0.7, "task": "…"} closes it into a trajectory.
    """

    command = "serve"

    agent: ServedModelConfig = ServedModelConfig()
    sampling: SamplingConfig = SamplingConfig()
    record: Path = Field(description="the folder for what is recorded; a stopped server resumes in it")
    host: str = Field("127.0.0.1", description="the address to listen on; any but loopback needs a key")
    port: int = Field(8000, ge=0, le=65535, description="the port to listen on; 0: any free port")
    access_key_variable: str = Field(
        "BOUGH_SERVE_KEY",
        description="the environment variable that contains the key that clients must send, if there is one",
    )
    session_timeout_s: float = Field(
        1800, gt=0, description="close a session that was not used for this many seconds, with an unknown outcome"
    )
    seed: int = Field(0, ge=0, description="random seed of requests that give none")


class RecordedConfig(Config):
    """Plays one task with an agent function and records it."""

    agent: ServedModelConfig = ServedModelConfig()
    sampling: SamplingConfig = SamplingConfig()
    limits: LimitsConfig = LimitsConfig()
    seed: int = Field(0, ge=0, description="random seed of sampling")


SETTINGS = "config.yaml"
# What must not change in a folder: its records would be of several models, and only one could be shown.
FIXED = ("model", "adapter", "engine", "chat_template")


class RecordingServer:
    """A server in a thread of its own, until `close`, the end of a `with` block or of the program.

    `base_url` is what an OpenAI client takes; `session(name)` is that of a session.
    """

    def __init__(self, config: ServeConfig, engine: Engine | None = None) -> None:
        need_server()
        from bough.engines.server.app import access, listen

        self.config = config
        self._access = access(config.host, config.access_key_variable)
        self._listening = listen(config.host, config.port)
        self._engine, self._owns_engine = engine, engine is None
        self._store: Store | None = None
        self._endpoint: Any = None  # an `Endpoint`, once it answers
        self._loop = BackgroundLoop("bough-serve")
        try:
            self._loop.run(self._start())
        except BaseException:
            self._listening.close()
            self.close()
            raise

    @property
    def base_url(self) -> str:
        return str(self._endpoint.base_url())

    def session(self, name: str) -> str:
        """The base URL of a session."""
        return str(self._endpoint.base_url(name))

    async def _start(self) -> None:
        """Loads the model and begins to answer."""
        from bough.engines.server.app import Endpoint, make_app

        sampling = self.config.sampling
        store = self._store = Store(self.config.record.absolute())
        settings = _settings(self.config, store.folder)
        engine = self._engine = self._engine or await load_engine(self.config.agent, sampling)
        write_atomically(store.folder / SETTINGS, settings)

        def config_of(name: str) -> SessionConfig:
            seed = derived_seed(self.config.seed, name)
            return SessionConfig(lambda number: engine.open(f"{name}/{number}", seed=seed), sampling, seed)

        timeout_s = self.config.session_timeout_s
        recorder = Recorder(agent=engine.name, config_of=config_of, store=store, timeout_s=timeout_s)
        texts = None
        if isinstance(engine, TemplateEngine):
            tokenizer = engine.template.tokenizer
            texts = lambda ids: [tokenizer.decode([token]) for token in ids]  # noqa: E731
        app = make_app(recorder, self._access, model=engine.name, token_texts=texts)
        endpoint = Endpoint(app, self._listening, host=self.config.host)
        await endpoint.start()
        self._endpoint = endpoint

    def close(self) -> None:
        """Stops answering. Open sessions stay open in the folder."""
        if not self._loop.loop.is_closed():
            self._loop.run(self._close())
            self._loop.close()

    async def _close(self) -> None:
        if self._endpoint is not None:
            await self._endpoint.close()  # and the store
        elif self._store is not None:
            await self._store.close()
        if self._engine is not None and self._owns_engine:
            await self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.config.record} at {self.base_url}>"


@settings_of(ServeConfig)
def serve(model: ModelLike, record: StrPath, *, port: int = 0, **settings: Any) -> RecordingServer:
    """Serve a model over an OpenAI-compatible address and record every call in the folder `record`.

    `model` is a name, a folder, a trained or a loaded model. The server runs in a thread of
    its own, until `close` or the end of a `with` block.
    """
    config = make_config(ServeConfig, "serve", settings, model=model_name(model), record=Path(record), port=port)
    engine = model.agent(config.sampling).engine if isinstance(model, LoadedModel) else None
    return RecordingServer(config, engine)


def _settings(config: ServeConfig, folder: Path) -> str:
    """The settings as they are kept in the folder. InputError if it was begun with others."""
    file = folder / SETTINGS
    values: dict[str, Any] = without_absolute(config.recorded(), folder)
    if file.exists():
        old = YamlFile.read(file).values.get("agent", {})
        changed = [name for name in FIXED if old.get(name) != values["agent"].get(name)]
        if changed:
            raise InputError(
                f"{config.record} contains sessions recorded with different settings; give another --record:",
                [f"{name} was {old.get(name)!r}, now {values['agent'].get(name)!r}" for name in changed],
            )
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


# `bough serve`: serve a model over an OpenAI-compatible address and record every call.


def serve_command(config: ServeConfig) -> int:
    with RecordingServer(config) as server:
        if config.as_json:
            console.print_json({"base_url": server.base_url, "record": str(config.record)})
        else:
            out, sessions = console.out(), server.base_url.removesuffix("/v1")
            out.print(f"Serving {config.agent.model} at", markup=False)
            out.print(server.base_url, style="bold", markup=False)
            out.print(f"a session: {sessions}/s/NAME/v1, closed by POST {sessions}/s/NAME/end", markup=False)
            out.print(f"recording in {config.record}; Ctrl-C stops", markup=False)
        with suppress(KeyboardInterrupt):  # the command line answers SIGTERM as it does Ctrl-C
            threading.Event().wait()
    return 0


# `bough.recorded`: run an agent function once and get what it did as a trajectory.


@settings_of(RecordedConfig)
@asynccontextmanager
async def recorded(
    agent: AgentLike, model: ModelLike = "smollm2", task: Task | Mapping[str, Any] | str = "task", **settings: Any
) -> AsyncIterator[Trajectory]:
    """Run an agent function on one task against a model, and give the trajectory of what it did.

        async def agent(task, base_url):               # or a plain function
            client = openai.AsyncOpenAI(base_url=base_url, api_key="none")
            answer = await client.chat.completions.create(model="any", messages=[…])
            return "42" in answer.choices[0].message.content

        async with bough.recorded(agent, "smollm2", task={"question": "6 × 7?"}) as trajectory:
            print(trajectory.success, trajectory.turns[0].call.logprobs)

    The function takes what it needs by name: `task`, `base_url`, `model` and `seed`. It returns
    a reward, True or False, a mapping with `reward`, `success` and other numbers, or None.
    `task` is a task, its data or its id.
    Raises EnvironmentFailedError if the function raises. `model` is as in `bough.collect`.
    """
    config = make_config(RecordedConfig, "recorded", settings, model=model_name(model))
    environment_class = find(f"{AGENT_PREFIX}{agent_name(agent)}")
    if isinstance(task, Task):
        played = task
    elif isinstance(task, str):
        played = Task(id=task, environment=environment_class.name)
    else:
        played = Task(id=json_digest(dict(task), size=8), environment=environment_class.name, data=dict(task))
    if isinstance(model, LoadedModel):
        player = model.agent(config.sampling)
    else:
        player = ModelAgent(await load_engine(config.agent, config.sampling))
    try:
        trajectory, _ = await play(
            environment_class, played, player, id=f"{played.id}#0",
            seed=derived_seed(config.seed, played.id), limits=config.limits,
        )  # fmt: skip
        yield trajectory
    finally:
        await player.close()
        await shut_down(environment_class)


COMMANDS = {
    "serve": Command(
        ServeConfig,
        serve_command,
        "  bough serve --model runs/sft/final --record runs/recorded\n"
        "  bough serve --engine openai --base-url http://127.0.0.1:9000/v1 --record runs/recorded --port 8001",
    ),
}
