"""The web server: one page, its scripts, the API that they use, and `/metrics` for Prometheus."""

from __future__ import annotations

import contextlib
import mimetypes
from collections.abc import AsyncIterator
from functools import cache
from importlib.resources import files
from typing import Any

import uvicorn
from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from bough.viewer.answers import FolderAnswers
from bough.viewer.bundle import bundle
from bough.viewer.prometheus import CONTENT_TYPE, metrics
from bough.viewer.records import MissingError
from bough.viewer.security import Door, Guard


def make_app(answers: FolderAnswers, door: Door) -> Guard:
    """The application. It indexes in the background for as long as it runs."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        answers.index.start()
        yield
        answers.index.stop()
        answers.models.renderer.close()

    # Plain functions run in threads of their own, so a slow answer does not delay others.
    def api(request: Request) -> Response:
        answer = answers.known.get(request.path_params["name"])
        if answer is None:
            return _json({"error": "there is no such answer"}, 404)
        try:
            with answers.index.visited():
                return _json(answer(request.query_params))
        except MissingError as error:
            return _json({"error": str(error)}, 404)
        except Exception as error:  # a folder that breaks one page must not break the others
            return _json({"error": f"this cannot be shown: {type(error).__name__}: {error}"[:500]}, 500)

    def picture(request: Request) -> Response:
        try:
            content, kind = answers.image(request.query_params)
        except (MissingError, OSError) as error:
            return PlainTextResponse(str(error), 404)
        return Response(content, media_type=kind)

    def scraped(_: Request) -> Response:
        try:
            with answers.index.visited():
                return Response(metrics(answers.index), headers={"content-type": CONTENT_TYPE})
        except Exception as error:
            return PlainTextResponse(f"the metrics cannot be read: {type(error).__name__}: {error}"[:500], 500)

    def asset(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name == "app.js":
            return Response(script(), media_type="text/javascript")
        if name not in assets():
            return PlainTextResponse("There is no such page.", 404)
        kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0]
        return Response(assets()[name], media_type=kind)

    routes = [
        Route("/", asset),
        Route("/assets/{name}", asset),
        Route("/metrics", scraped),
        Route("/api/image", picture),
        Route("/api/{name}", api),
    ]
    return Guard(Starlette(routes=routes, lifespan=lifespan), door)


@cache
def assets() -> dict[str, bytes]:
    """The files of the page, by name."""
    folder = files("bough.viewer") / "assets"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@cache
def script() -> str:
    """All modules of the page as one: one request instead of one for each."""
    return bundle({name: text.decode() for name, text in assets().items() if name.endswith(".js")}, "main.js")


def make_server(app: Guard) -> uvicorn.Server:
    """The server of the application, not yet started."""
    config = uvicorn.Config(
        app, log_level="critical", access_log=False, lifespan="on", server_header=False,
        timeout_graceful_shutdown=1, timeout_keep_alive=30,
    )  # fmt: skip
    return uvicorn.Server(config)


def _json(value: Any, status: int = 200) -> Response:
    return Response(to_json(value, inf_nan_mode="null"), status, media_type="application/json")
