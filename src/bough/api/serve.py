"""`bough.serve`: serve a model over an OpenAI-compatible address and record every call."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from bough.api.inputs import StrPath
from bough.api.models import LoadedModel, ModelLike, model_name
from bough.api.settings import make_config, settings_of
from bough.config.sampling import SamplingConfig
from bough.config.serving import ServeConfig
from bough.config.yaml_file import YamlFile
from bough.digest import derived_seed
from bough.disk import write_atomically
from bough.engines.base import Engine
from bough.engines.chat import TemplateEngine
from bough.engines.load import load_engine
from bough.errors import InputError
from bough.event_loop import BackgroundLoop
from bough.paths import without_absolute
from bough.serving.endpoint import Endpoint, listen, need_server
from bough.serving.recorder import Recorder
from bough.serving.session import SessionConfig
from bough.serving.store import Store

SETTINGS = "config.yaml"
# What must not change in a folder: its records would be of several models, and only one could be shown.
FIXED = ("model", "adapter", "engine", "chat_template")


class Served:
    """A model, its endpoint and its store, on the event loop that calls `start`."""

    def __init__(self, config: ServeConfig, engine: Engine | None = None) -> None:
        need_server()
        from bough.serving.access import access

        self.config = config
        self._access = access(config.host, config.access_key_variable)
        self._listening = listen(config.host, config.port)
        self._engine = engine
        self._owns_engine = engine is None
        self._endpoint: Endpoint | None = None

    @property
    def base_url(self) -> str:
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http://{host}:{self._listening.getsockname()[1]}/v1"

    async def start(self) -> None:
        """Loads the model and begins to answer."""
        from bough.serving.app import make_app

        try:
            store = _open_store(self.config)
            engine = self._engine = self._engine or await load_engine(self.config.agent, self.config.sampling)
            recorder = Recorder(
                agent=engine.name,
                config_of=lambda name: _session_config(engine, self.config.sampling, self.config.seed, name),
                store=store,
                timeout_s=self.config.session_timeout_s,
            )
            texts = _token_texts(engine)
            app = make_app(recorder, self._access, model=engine.name, token_texts=texts)
            self._endpoint = Endpoint(app, self._listening, host=self.config.host)
            await self._endpoint.start()
        except BaseException:
            self._listening.close()
            raise

    async def close(self) -> None:
        """Stops. Open sessions stay open in the folder."""
        if self._endpoint is not None:
            await self._endpoint.close()
        if self._engine is not None and self._owns_engine:
            await self._engine.close()


class RecordingServer:
    """A server in a thread of its own, until `close`, the end of a `with` block or of the program.

    `base_url` is what an OpenAI client takes; `session(name)` is that of a session.
    """

    def __init__(self, served: Served) -> None:
        self._served, self._loop = served, BackgroundLoop("bough-serve")
        try:
            self._loop.run(served.start())
        except BaseException:
            self._loop.close()
            raise

    @property
    def base_url(self) -> str:
        return self._served.base_url

    def session(self, name: str) -> str:
        """The base URL of a session."""
        return f"{self.base_url.removesuffix('/v1')}/s/{name}/v1"

    def close(self) -> None:
        """Stops answering."""
        if not self._loop.loop.is_closed():
            self._loop.run(self._served.close())
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self._served.config.record} at {self.base_url}>"


@settings_of(ServeConfig)
def serve(model: ModelLike, record: StrPath, *, port: int = 0, **settings: Any) -> RecordingServer:
    """Serve a model over an OpenAI-compatible address and record every call in the folder `record`.

    `model` is a name, a folder, a trained or a loaded model. The server runs in a thread of
    its own, until `close` or the end of a `with` block.
    """
    name = model_name(model)
    config = make_config(ServeConfig, "serve", settings, model=name, record=Path(record), port=port)
    engine = None
    if isinstance(model, LoadedModel):
        engine = model.agent(config.sampling).engine
    return RecordingServer(Served(config, engine))


def _session_config(engine: Engine, sampling: SamplingConfig, seed: int, name: str) -> SessionConfig:
    own_seed = derived_seed(seed, name)
    return SessionConfig(lambda number: engine.open(f"{name}/{number}", seed=own_seed), sampling, own_seed)


def _open_store(config: ServeConfig) -> Store:
    """The folder, with the settings that it was begun with."""
    folder = config.record.absolute()
    file = folder / SETTINGS
    values: dict[str, Any] = without_absolute(config.model_dump(mode="json"), folder)
    if file.exists():
        old = YamlFile.read(file).values.get("agent", {})
        changed = [name for name in FIXED if old.get(name) != values["agent"].get(name)]
        if changed:
            raise InputError(
                f"{config.record} contains sessions recorded with different settings; give another --record:",
                [f"{name} was {old.get(name)!r}, now {values['agent'].get(name)!r}" for name in changed],
            )
    store = Store(folder)
    write_atomically(file, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
    return store


def _token_texts(engine: Engine) -> Any:
    if not isinstance(engine, TemplateEngine):
        return None
    tokenizer = engine.template.tokenizer
    return lambda ids: [tokenizer.decode([token]) for token in ids]
