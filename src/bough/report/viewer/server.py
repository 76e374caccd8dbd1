"""The web server: one page, its scripts, and the API that they use."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import ipaddress
import json
import mimetypes
import re
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bough.engines.server.app import LOOPBACK_NAMES, json_answer
from bough.errors import InputError
from bough.files import write_atomically
from bough.report.viewer.index import Index, records, whole
from bough.report.viewer.models import Models, tokens
from bough.report.viewer.records import MissingError, image, show, tree
from bough.report.viewer.runs import evaluation, evolution, overview, training


def make_app(answers: FolderAnswers, door: Door) -> Guard:
    """The application. It indexes in the background for as long as it runs."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        answers.index.start()
        yield
        answers.close()

    # Plain functions run in threads of their own, so a slow answer does not delay others.
    def api(request: Request) -> Response:
        answer = answers.known.get(request.path_params["name"])
        if answer is None:
            return json_answer({"error": "there is no such answer"}, 404)
        try:
            return json_answer(answer(request.query_params))
        except MissingError as error:
            return json_answer({"error": str(error)}, 404)
        except Exception as error:  # a folder that breaks one page must not break the others
            return json_answer({"error": f"this cannot be shown: {type(error).__name__}: {error}"[:500]}, 500)

    def picture(request: Request) -> Response:
        try:
            content, kind = answers.image(request.query_params)
        except (MissingError, OSError) as error:
            return PlainTextResponse(str(error), 404)
        return Response(content, media_type=kind)

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
        Route("/api/image", picture),
        Route("/api/{name}", api),
    ]
    return Guard(Starlette(routes=routes, lifespan=lifespan), door)


@cache
def assets() -> dict[str, bytes]:
    """The files of the page, by name."""
    folder = files("bough.report.viewer") / "assets"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@cache
def script() -> str:
    """All modules of the page as one: one request instead of one for each."""
    return bundle({name: text.decode() for name, text in assets().items() if name.endswith(".js")}, "main.js")


# The API of the pages: a name and some parameters in, plain values out. Used by the server and by the export.

Asked = Mapping[str, str]


class FolderAnswers:
    """All answers about one folder."""

    def __init__(self, index: Index, model: str | None = None) -> None:
        self.index, self.models = index, Models(index, model)
        self.known: dict[str, Callable[[Asked], dict[str, Any]]] = {
            "overview": lambda _: overview(index),
            "records": lambda asked: records(index, asked),
            "record": lambda asked: show(index, asked.get("at", ""), _attempt(asked)),
            "tree": lambda asked: tree(index, asked.get("at", "")),
            "tokens": lambda asked: tokens(
                index, self.models, asked.get("at", ""), whole(asked, "turn", -1), _attempt(asked)
            ),
            "training": lambda asked: training(index, asked.get("folder", ""), whole(asked, "after", 0)),
            "evaluation": lambda asked: evaluation(index, asked.get("folder", "")),
            "evolution": lambda asked: evolution(index, asked.get("folder", "")),
        }

    def close(self) -> None:
        """Ends the indexing and the process that renders, and removes the index."""
        self.index.close()
        self.models.renderer.close()

    def image(self, asked: Asked) -> tuple[bytes, str]:
        """A screenshot and its media type."""
        return image(self.index, asked.get("at", ""), whole(asked, "number", -1), _attempt(asked))


def _attempt(asked: Asked) -> int | None:
    found = whole(asked, "attempt", -1)
    return found if found >= 0 else None


# The page's modules as one script, for a self-contained file.
# The modules are written for this: every import is a list of plain names from a file in the same folder, and every
# export precedes a declaration. Each module becomes a function of its own, so that names do not clash. `bundle` fails
# on a module that breaks these rules.

IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./([\w-]+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|let) )", re.MULTILINE)
DECLARED = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|class) +(\w+)", re.MULTILINE)
LEFT_OVER = re.compile(r"^(?:import|export)\b", re.MULTILINE)


def bundle(modules: Mapping[str, str], first: str) -> str:
    """`first` and everything it imports, each module after those it needs and in a scope of its own."""
    done: dict[str, str] = {}

    def add(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"modules import each other: {' → '.join([*path, name])}"
        if name in done:
            return
        imports = ""
        for names, needed in IMPORT.findall(modules[name]):
            add(needed, (*path, name))
            imports += f"const {{ {names} }} = {_variable(needed)};\n"
        exported = [m.group(1) for m in DECLARED.finditer(modules[name]) if m.group(0).startswith("export ")]
        body = EXPORT.sub("", IMPORT.sub("", modules[name]))
        assert not LEFT_OVER.search(body), f"{name}: an import or export that cannot be bundled"
        scope = f"{imports}{body}\nreturn {{ {', '.join(exported)} }};"
        done[name] = f"const {_variable(name)} = (() => {{\n{scope}\n}})();\n"

    add(first, ())
    return "".join(done.values())


def _variable(name: str) -> str:
    return "module_" + re.sub(r"\W", "_", name.removesuffix(".js"))


# Who may see the page, and what the page may do.
# What is shown was written by models, and a browser can be led to a page of ours by anyone else's: the answers carry
# a strict content-security policy, requests must name the host that we listen on (a name that was made to point here
# is refused), and whoever comes over a network needs the token.

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
COOKIE = "bough_view"


@dataclass(frozen=True)
class Door:
    """The names under which we may be asked, and the token that is wanted, if any."""

    hosts: frozenset[str]
    any_address: bool = False
    token: str | None = None

    def knows(self, host: str) -> bool:
        """Whether the Host header names us. Addresses cannot be made to point elsewhere, names can."""
        name = re.sub(r":\d*$", "", host.strip().lower()) if host.count(":") == 1 or "]:" in host else host.lower()
        return name in self.hosts or (self.any_address and _address(name) is not None)

    def accepts(self, given: str | None) -> bool:
        return self.token is None or (given is not None and hmac.compare_digest(given.encode(), self.token.encode()))


def door(host: str, *, remote: bool, token: str | None) -> Door:
    """The door for an address to listen on. One that others can reach needs --allow-remote, and has a token."""
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return Door(frozenset({*LOOPBACK_NAMES, f"[{host}]" if ":" in host else host}), token=token)
    if not remote:
        raise InputError(
            f"--host {host}: others could reach the page there; say --allow-remote if that is meant "
            "(a token is then asked for), or leave --host out"
        )
    if token is not None and len(token) < 16:
        raise InputError("--token is shorter than 16 characters; leave it out and one is made")
    names = [host, *LOOPBACK_NAMES, *([socket.gethostname()] if address is not None else [])]
    hosts = frozenset(name.lower() for name in names)
    return Door(hosts, any_address=address is not None, token=token or secrets.token_urlsafe(24))


class Guard:
    """Checks every request before it reaches the pages."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self.app, self.door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        await (self._refusal(scope) or self.app)(scope, receive, dressed)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        if len(headers.getlist("host")) != 1 or not self.door.knows(headers["host"]):
            return PlainTextResponse("This page does not answer to that host name.", 421)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("There is nothing here to change.", 405, {"allow": "GET, HEAD"})
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and scope["path"] != "/":
            return PlainTextResponse("Other pages have no business here.", 403)
        # A browser sends no `authorization` for another site's page.
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = [cookie_parser(headers.get("cookie", "")).get(COOKIE), bearer if scheme.lower() == "bearer" else None]
        if self.door.token is None or any(map(self.door.accepts, given)):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        if not self.door.accepts(dict(query).get("token")):
            return PlainTextResponse("The address needs the token that `bough view` printed: …/?token=TOKEN", 401)
        # Out of the address bar, and into a cookie that no script can read.
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        answer = RedirectResponse("/" + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(COOKIE, self.door.token, httponly=True, samesite="strict", path="/")
        return answer


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


# One file to share: the page, its scripts and all answers that it may ask for.
# The file contacts no server: its own policy forbids it. Records beyond `max_records` of each kind are left out and
# counted.

KINDS = ("trajectory", "pair", "group")
# Token ids of long prompts would be most of the file; only this many turns include them.
MAX_TOKENS = 400
MAX_IMAGES = 200
# What JavaScript's encodeURIComponent leaves as it is, besides letters, digits and "-_.~".
UNQUOTED = "!*'()"


@dataclass
class Written:
    """The size of the file, and how many records are in it."""

    megabytes: float = 0.0
    records: int = 0
    left_out: int = 0


def export(answers: FolderAnswers, path: Path, max_records: int) -> Written:
    """Writes the file."""
    answers.index.catch_up()
    page_data, written = _Data(answers), Written()
    page_data.ask("overview")
    for kind in KINDS:
        total, rows = _rows(answers, kind, max_records)
        written.records += len(rows)
        written.left_out += total - len(rows)
        page_data.rows += rows
        for row in rows:
            page_data.add_record(kind, row["at"])
    contents = answers.index.contents
    for name, folders in (
        ("training", contents.training), ("evaluation", contents.evaluations), ("evolution", contents.evolutions),
    ):  # fmt: skip
        for folder in folders:
            page_data.ask(name, folder=folder)
    if not page_data.rows and len(page_data.answers) == 1:
        raise InputError(f"{answers.index.root.path}: it contains nothing to export")
    text = page({name: getattr(page_data, name) for name in ("answers", "rows", "texts", "images")})
    try:
        write_atomically(path, text)
    except OSError as error:
        raise InputError(f"--export {path}: cannot be written: {error.strerror}") from None
    written.megabytes = len(text.encode()) / 1e6
    return written


class _Data:
    """The data inside the exported page."""

    def __init__(self, source: FolderAnswers) -> None:
        self.source = source
        self.answers: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []
        self.texts: dict[str, str] = {}  # what is searched
        self.images: dict[str, str] = {}
        self._num_tokens = 0

    def ask(self, name: str, **words: Any) -> dict[str, Any]:
        """The answer, which is kept; empty where there is none."""
        asked = {word: str(value) for word, value in words.items() if value is not None}
        try:
            self.answers[key(name, words)] = answer = self.source.known[name](asked)
        except MissingError:
            return {}
        return answer

    def add_record(self, kind: str, at: str) -> None:
        if kind == "group":
            for number in range(len(self.ask("tree", at=at).get("attempts", ()))):
                self._add_trajectory(at, number)
            return
        found = self.ask("record", at=at) if kind == "pair" else self._add_trajectory(at, None)
        places = ("start", "shared", "chosen", "rejected", "turns")
        said = [found[place] for place in places if place in found]
        self.texts[at] = json.dumps(said, ensure_ascii=False)[:40_000]
        if found.get("siblings"):
            self.ask("tree", at=at)

    def _add_trajectory(self, at: str, attempt: int | None) -> dict[str, Any]:
        found = self.ask("record", at=at, attempt=attempt)
        for number, turn in enumerate(found.get("turns", ())):
            if turn["call"] is not None and self._num_tokens < MAX_TOKENS:
                self._num_tokens += 1
                self.ask("tokens", at=at, attempt=attempt, turn=number)
        for one in found.get("images", ())[: MAX_IMAGES - len(self.images)]:
            words = {"at": at, "attempt": attempt, "number": one["number"]}
            try:
                content, kind = self.source.image({k: str(value) for k, value in words.items() if value is not None})
            except (MissingError, OSError):
                continue
            self.images[key("image", words)] = f"data:{kind};base64,{base64.b64encode(content).decode()}"
        return found


def page(data: dict[str, Any]) -> str:
    """The whole page around `data`."""
    style, code = assets()["style.css"].decode(), script()
    policy = (
        f"default-src 'none'; script-src '{_digest(code)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    # In a script element only "<" can end it; JSON may write it otherwise.
    carried = to_json(data, inf_nan_mode="null").decode("utf-8", "replace").replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<title>Bough</title>\n'
        f"<style>{style}</style>\n</head>\n<body>\n"
        f'<script type="application/json" id="bough-data">{carried}</script>\n'
        f'<script type="module">{code}</script>\n</body>\n</html>\n'
    )


def key(name: str, words: dict[str, Any]) -> str:
    """The key of an answer; `api.js` computes the same one."""
    kept = sorted((key, str(value)) for key, value in words.items() if value is not None)
    query = "&".join(f"{key}={quote(value, safe=UNQUOTED)}" for key, value in kept)
    return f"{name}?{query}" if query else name


def _rows(answers: FolderAnswers, kind: str, count: int) -> tuple[int, list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    while True:
        asked = {"kind": kind, "limit": str(min(500, count - len(rows))), "offset": str(len(rows))}
        found = answers.known["records"](asked)
        rows += found["rows"]
        if not found["rows"] or len(rows) >= min(count, found["total"]):
            return found["total"], rows


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
