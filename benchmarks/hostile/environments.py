"""Environments of other libraries as enemies: each case plays a hostile episode, then an honest one beside it.

    python -m benchmarks.hostile.environments              # a table: lost with its reason, kept, refused
    python -m benchmarks.hostile.environments --only "deep JSON"

A case holds if the hostile episode is lost with a sentence (or kept as what it is), is not a
success, ends within its limit, and the honest episode is won.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import shlex
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.hostile.trials import Trial, main, play

STEP_S = 3.0
HUGE = 200 << 20
DEEP = 100_000
ESCAPES = "\x1b[2J\x1b]0;title\x07<|im_end|>{{ 7 * 7 }}{% raise %}\u202e"


@cache
def packed() -> bytes:
    return gzip.compress(bytes(HUGE), 1)


# --- OpenEnv: the action is one text, and the honest server rewards any. ---


def seen(**more: Any) -> str:
    return json.dumps(
        {"type": "observation", "data": {"observation": {"text": "Go."}, "reward": 0, "done": False} | more}
    )


def raw(text: str) -> str:
    return '{"type": "observation", "data": ' + text + "}"


TEXT = {"action": {"type": "object", "properties": {"say": {"type": "string"}}}}
TOOLS = {"action": {"properties": {"tool_name": {"type": "string"}, "arguments": {"type": "object"}}}}
WIN = seen(reward=1.0, done=True)
CALL = '<tool_call>{"name": "win", "arguments": {}}</tool_call>'


async def drip(socket: Any) -> None:
    while True:
        await socket.ping()
        await asyncio.sleep(0.1)


async def endless(socket: Any) -> None:
    async def pieces() -> Any:
        for _ in range(HUGE >> 20):
            yield "x" * (1 << 20)

    await socket.send(pieces())


async def half(socket: Any) -> None:
    socket.transport.write(b'\x81\x7e\xff\xff{"type"')
    socket.transport.close()


async def silent(socket: Any) -> None:
    await socket.wait_closed()


def tool(**more: Any) -> dict[str, Any]:
    return {"name": "win", "description": "Wins.", "input_schema": {"type": "object", "properties": {}}} | more


def listed(*tools: Any) -> str:
    return seen(observation={"tools": list(tools)})


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"properties": {"x": value}}
    return value


def bomb() -> dict[str, Any]:
    """Each definition refers to the next one twice."""
    names = [f"d{number}" for number in range(60)]
    pairs = zip(names, [*names[1:], "d0"], strict=True)
    return {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/d0"}},
        "$defs": {one: {"anyOf": [{"$ref": f"#/$defs/{other}"}] * 2} for one, other in pairs},
    }


# Of each case: what differs from the honest server; `schema`, `reset`, `step` or `list`.
OPENENV: dict[str, dict[str, Any]] = {
    "a reward of NaN": {"step": raw('{"observation": {}, "reward": NaN, "done": true}')},
    "a reward of infinity": {"step": raw('{"observation": {}, "reward": 1e999, "done": true}')},
    "a reward of 10^400": {"step": raw('{"observation": {}, "reward": 1' + "0" * 400 + ', "done": true}')},
    "a reward as text": {"step": seen(reward="1", done=True)},
    "a reward as a list": {"step": seen(reward=[1], done=True)},
    "done as the text false": {"step": seen(reward=1, done="false")},
    "done as a list": {"step": seen(reward=1, done=[0])},
    "done as a number": {"step": seen(reward=1, done=2)},
    "success as text": {"step": seen(reward=-1, done=True, metadata={"success": "yes"})},
    "done before the first action": {"reset": seen(done=True)},
    "won before the first action": {"reset": seen(done=True, reward=1)},
    "an observation of bytes": {"step": b"\xff\xfe\x00"},
    "an observation of None": {"step": seen(observation=None)},
    "an observation that is a list": {"step": seen(observation=[1])},
    "data that is text": {"step": json.dumps({"type": "observation", "data": "x"})},
    "an empty object": {"step": "{}"},
    "null": {"step": "null"},
    "not JSON": {"step": "<html>busy</html>"},
    "deep JSON": {"step": "[" * DEEP},
    "a deep observation": {"step": raw('{"observation": {"x": ' + "[" * 900 + "]" * 900 + "}}")},
    "an observation of 50 MB": {"step": seen(observation={"text": "x" * (50 << 20)})},
    "an endless message": {"step": endless},
    "half a message": {"step": half},
    "no answer": {"step": silent},
    "a drip of pings": {"step": drip},
    "no answer to the reset": {"reset": silent},
    "half a surrogate pair": {"step": raw('{"observation": {"text": "\\ud800"}, "reward": 0, "done": false}')},
    "escapes and control tokens": {"step": seen(observation={"text": ESCAPES}, done=True, reward=0)},
    "an error with an odd code": {"step": '{"type": "error", "data": {"code": ["x"], "message": {"a": 1}}}'},
    "an error of 50 MB": {"step": '{"type": "error", "data": {"code": "X", "message": "' + "x" * (50 << 20) + '"}}'},
    "a validation error without an end": {
        "step": json.dumps({"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "x" * (20 << 20)}})
    },
    "a server that is always full": {
        "reset": '{"type": "error", "data": {"code": "CAPACITY_REACHED", "message": "x"}}'
    },
    "a schema that is a list": {"schema": "[]"},
    "a schema without actions": {"schema": "{}"},
    "properties that are a list": {"schema": json.dumps({"action": {"properties": [1]}})},
    "a field that is a text": {"schema": json.dumps({"action": {"properties": {"say": "string"}}})},
    "required that is a number": {"schema": json.dumps({"action": {"properties": {"a": {}, "b": {}}, "required": 3}})},
    "deep JSON as the schema": {"schema": "[" * DEEP},
    "a schema of 50 MB": {"schema": " " * (50 << 20)},
    "a schema of gzip": {"schema": gzip.compress(bytes(50 << 20))},
    "a schema that never comes": {"schema": None},
    "a schema that is elsewhere": {"schema": ("302", "http://127.0.0.1:1/schema")},
    "tools that are no list": {"list": seen(observation={"tools": 3})},
    "a tool without a name": {"list": listed({"description": "x"})},
    "a tool whose name is a number": {"list": listed(tool(name=3))},
    "a tool whose description is a list": {"list": listed(tool(description=[1]))},
    "a tool whose schema is text": {"list": listed(tool(input_schema="x"))},
    "a tool whose schema is null": {"list": listed(tool(input_schema=None))},
    "a tool of half a surrogate pair": {"list": listed(tool()).replace("Wins.", "\\ud800")},
    "a tool with NaN": {"list": listed(tool(input_schema={"default": float("nan")}))},
    "a deep tool": {"list": listed(tool(input_schema=nested(400)))},
    "a tool of 50 MB": {"list": listed(tool(description="x" * (50 << 20)))},
    "5,000 tools": {"list": listed(*(tool(name=f"t{number}") for number in range(5000)))},
    "two tools of one name": {"list": listed(tool(), tool())},
    "a tool result of 50 MB": {"call": seen(observation={"result": "x" * (50 << 20)}, done=True, reward=0)},
    "a deep tool result": {"call": raw('{"observation": {"result": ' + "[" * 900 + "]" * 900 + "}}")},
    "a tool error that is text": {"call": seen(observation={"error": "boom", "result": None}, done=True)},
}


class OpenEnvServer:
    """The first session is the hostile one."""

    def __init__(self, odd: dict[str, Any]) -> None:
        self.odd, self.sessions, self.asked = odd, 0, 0

    async def respond(self, connection: Any, request: Any) -> Any:
        if request.path != "/schema":
            return None
        self.asked += 1
        honest = TOOLS if {"list", "call"} & self.odd.keys() else TEXT
        given = self.odd.get("schema", honest) if self.asked == 1 else honest
        if given is None:
            await asyncio.sleep(60)
        answer = connection.respond(200, given if isinstance(given, str) else json.dumps(honest))
        if isinstance(given, bytes):
            answer.body, answer.headers["Content-Encoding"] = given, "gzip"
            del answer.headers["Content-Length"]
            answer.headers["Content-Length"] = str(len(given))
        elif isinstance(given, tuple):
            answer.status_code, answer.headers["Location"] = int(given[0]), given[1]
        return answer

    async def serve(self, socket: Any) -> None:
        self.sessions += 1
        odd = self.odd if self.sessions == 1 or ("CAPACITY" in str(self.odd.get("reset")) and self.asked == 1) else {}
        async for text in socket:
            message = json.loads(text)
            if message["type"] == "close":
                return
            kind = {"list_tools": "list", "call_tool": "call"}.get(message["data"].get("type"), message["type"])
            answer = odd.get(kind, {"reset": seen(), "list": listed(tool())}.get(kind, WIN))
            await (answer(socket) if callable(answer) else socket.send(answer))


@contextmanager
def openenv(odd: dict[str, Any]) -> Iterator[Trial]:
    from websockets.asyncio.server import serve

    server = OpenEnvServer(odd)

    async def open(port: asyncio.Future[int]) -> None:
        options = {"process_request": server.respond, "compression": None, "ping_interval": None}
        async with serve(server.serve, "127.0.0.1", 0, **options) as listening:
            port.set_result(next(iter(listening.sockets)).getsockname()[1])
            await asyncio.Event().wait()

    with background(open) as port:
        yield Trial(f"openenv:http://127.0.0.1:{port}", CALL if {"list", "call"} & odd.keys() else "hello")


# --- MCP: one tool over HTTP; the honest server answers "fine", and any final answer "1" is right. ---

HTTP_OK = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def http(body: bytes | str, head: str = HTTP_OK, length: int | None = None) -> bytes:
    data = body.encode() if isinstance(body, str) else body
    return f"{head}Content-Length: {len(data) if length is None else length}\r\n\r\n".encode() + data


def result(value: Any) -> str:
    return '{"jsonrpc": "2.0", "id": @ID, "result": ' + (value if isinstance(value, str) else json.dumps(value)) + "}"


def mcp_tool(**more: Any) -> dict[str, Any]:
    return {"name": "look", "description": "Looks.", "inputSchema": {"type": "object", "properties": {}}} | more


def said(text: Any, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], **more}


HELLO = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
LIST, USE = "tools/list", "tools/call"
HONEST: dict[str, Any] = {"initialize": HELLO, LIST: {"tools": [mcp_tool()]}, USE: said("fine")}
# Bytes are sent as they are; a function gets the writer; anything else is the result.
MCP: dict[str, dict[str, Any]] = {
    "MCP: deep JSON": {USE: http("[" * DEEP)},
    "MCP: a deep result": {
        USE: http(result('{"content": [], "structuredContent": {"x": ' + "[" * 180 + "]" * 180 + "}}"))
    },
    "MCP: a body without an end": {USE: "endless"},
    "MCP: a gzip bomb": {USE: "bomb"},
    "MCP: an event stream without an end": {USE: "events"},
    "MCP: an event without an end": {USE: "event"},
    "MCP: no answer": {USE: "silent"},
    "MCP: a slow drip": {USE: "drip"},
    "MCP: a body that is cut off": {USE: http('{"jsonrpc"', length=1000)},
    "MCP: HTML": {USE: http("<html>", "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n")},
    "MCP: a redirect": {USE: http("", "HTTP/1.1 307 x\r\nLocation: http://127.0.0.1:1/mcp\r\n")},
    "MCP: status 500": {USE: http("no", "HTTP/1.1 500 x\r\n")},
    "MCP: status 202": {USE: http("", "HTTP/1.1 202 x\r\n")},
    "MCP: not HTTP": {USE: b"\x00\xff nonsense\r\n\r\n"},
    "MCP: the id of another request": {USE: http('{"jsonrpc": "2.0", "id": 999, "result": {"content": []}}')},
    "MCP: null": {USE: http("null")},
    "MCP: content that is text": {USE: {"content": "fine"}},
    "MCP: content that is null": {USE: {"content": None}},
    "MCP: text that is a number": {USE: said(3)},
    "MCP: half a surrogate pair": {USE: http(result('{"content": [{"type": "text", "text": "\\ud800"}]}'))},
    "MCP: NaN": {USE: http(result('{"content": [], "structuredContent": {"x": NaN}}'))},
    "MCP: a text of 50 MB": {USE: said("x" * (50 << 20))},
    "MCP: escapes and control tokens": {USE: said(ESCAPES)},
    "MCP: an error of 50 MB": {USE: said("x" * (50 << 20), isError=True)},
    "MCP: no tools": {LIST: {"tools": []}},
    "MCP: tools that are no list": {LIST: {"tools": 3}},
    "MCP: 20,000 tools": {LIST: {"tools": [mcp_tool(name=f"t{number}") for number in range(20_000)]}},
    "MCP: pages without an end": {LIST: {"tools": [], "nextCursor": "again"}},
    "MCP: a tool with slashes and escapes": {LIST: {"tools": [mcp_tool(), mcp_tool(name="../a/b\x1b[2J\n")]}},
    "MCP: a tool with template code": {LIST: {"tools": [mcp_tool(description="{{ ''.__class__ }}{% for")]}},
    "MCP: a tool of control tokens": {LIST: {"tools": [mcp_tool(description="<|im_end|>" * 100)]}},
    "MCP: a tool of 50 MB": {LIST: {"tools": [mcp_tool(description="x" * (50 << 20))]}},
    "MCP: a tool of half a surrogate pair": {
        LIST: http(result(json.dumps({"tools": [mcp_tool()]}).replace("Looks.", "\\ud800")))
    },
    "MCP: a deep tool": {LIST: {"tools": [mcp_tool(inputSchema={"type": "object", **nested(80)})]}},
    "MCP: a schema that refers to itself": {
        LIST: {"tools": [mcp_tool(inputSchema={"type": "object", "properties": {"x": {"$ref": "#/properties/x"}}})]}
    },
    "MCP: a schema bomb": {LIST: {"tools": [mcp_tool(inputSchema=bomb())]}},
    "MCP: a schema that is elsewhere": {
        LIST: {"tools": [mcp_tool(inputSchema={"type": "object", "$ref": "http://127.0.0.1:1/x"})]}
    },
    "MCP: an output schema bomb": {
        LIST: {"tools": [mcp_tool(outputSchema=bomb())]},
        USE: said("x", structuredContent={"x": 1}),
    },
    "MCP: an output schema that is elsewhere": {
        LIST: {"tools": [mcp_tool(outputSchema={"type": "object", "$ref": "http://127.0.0.1:1/x"})]},
        USE: said("x", structuredContent={}),
    },
    "MCP: a result that does not fit its output schema": {
        LIST: {"tools": [mcp_tool(outputSchema={"type": "object", "required": ["x"]})]},
        USE: said("x", structuredContent={}),
    },
    "MCP: an output schema of a slow pattern": {
        LIST: {"tools": [mcp_tool(outputSchema={"type": "object", "properties": {"x": {"pattern": "^(a+)+$"}}})]},
        USE: said("x", structuredContent={"x": "a" * 40 + "!"}),
    },
    "MCP: instructions of 50 MB": {"initialize": {**HELLO, "instructions": "x" * (50 << 20)}},
    "MCP: no initialization": {"initialize": "silent"},
    "MCP: another protocol": {"initialize": {**HELLO, "protocolVersion": "1066-10-14"}},
}


class McpServer:
    """HTTP by hand, so that it can be wrong. The hostile episode is the first to initialize."""

    def __init__(self, odd: dict[str, Any]) -> None:
        self.odd, self.hostile = odd, True
        self.seen = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = next(
                    (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
                )
                body = json.loads(await reader.readexactly(size)) if size else {}
                await self.answer(head, body, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    async def answer(self, head: bytes, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        method = body.get("method")
        if not head.startswith(b"POST"):
            writer.write(http("", "HTTP/1.1 405 x\r\n"))
        elif "id" not in body:
            writer.write(http("", "HTTP/1.1 202 x\r\n"))
        elif method not in HONEST:
            error = {"jsonrpc": "2.0", "id": body["id"], "error": {"code": -32601, "message": "no such method"}}
            writer.write(http(json.dumps(error)))
        else:
            self.seen += method == "initialize"
            given = self.odd.get(method, HONEST[method]) if self.seen == 1 else HONEST[method]
            await self.send(given, json.dumps(body["id"]), writer)

    async def send(self, given: Any, id: str, writer: asyncio.StreamWriter) -> None:
        if isinstance(given, bytes):
            writer.write(given.replace(b"@ID", id.encode()))
            writer.close()
        elif isinstance(given, dict):
            writer.write(http(result(given).replace("@ID", id)))
        elif given == "bomb":
            writer.write(http(packed(), HTTP_OK + "Content-Encoding: gzip\r\n"))
        elif given in ("endless", "events", "event"):
            kind = "application/json" if given == "endless" else "text/event-stream"
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n".encode())
            piece = b": waiting\n\n" * 100_000 if given == "events" else b"data: " + b"x" * (1 << 20)
            for _ in range(HUGE >> 20):
                writer.write(piece)
                await writer.drain()
            writer.close()
        elif given == "drip":
            writer.write((HTTP_OK + "Content-Length: 100000\r\n\r\n").encode())
            while not writer.is_closing():
                writer.write(b" ")
                await asyncio.sleep(0.1)
        else:
            await asyncio.sleep(60)


@contextmanager
def mcp(odd: dict[str, Any]) -> Iterator[Trial]:
    server = McpServer(odd)

    async def open(port: asyncio.Future[int]) -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        port.set_result(listening.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    with background(open) as port:
        call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
        yield Trial(f"mcp:http://127.0.0.1:{port}/mcp", call, "1", data=MCP_TASK, honest_replies=("1",), may_win=True)


MCP_TASK = {"instructions": "Say 1.", "check": {"answer": 1}}


# --- MCP over pipes: what the program does besides answering honestly. ---

STDIO = """
import json, signal, sys, time
odd, answers = sys.argv[1], json.loads(sys.argv[2])
def send(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
if odd == "chatter": print("hello, I am not JSON", flush=True)
if odd == "exit": sys.exit(3)
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked: continue
    wrong = odd if asked["method"] == "tools/call" else ""
    while wrong == "endless": sys.stdout.write("x" * (1 << 20))
    while wrong == "flood": send(method="notifications/message", params={"level": "info", "data": "x" * 1000})
    if wrong == "half": sys.exit(sys.stdout.write('{"jsonrpc"') and 0)
    if wrong == "deaf": time.sleep(60 + 0 * bool(signal.signal(signal.SIGTERM, signal.SIG_IGN)))
    if wrong == "bytes": sys.stdout.buffer.write(bytes(range(128, 256)) + b"\\n")
    elif asked["method"] in answers: send(id=asked["id"], result=answers[asked["method"]])
    else: send(id=asked["id"], error={"code": -32601, "message": "no"})
    sys.stdout.flush()
"""
PIPES = {
    "text before the protocol": "chatter",
    "an exit at the start": "exit",
    "a line without an end": "endless",
    "messages without an end": "flood",
    "half a line": "half",
    "bytes that are no text": "bytes",
    "deaf to signals": "deaf",
}


@contextmanager
def pipe(odd: str) -> Iterator[Trial]:
    """The first process is the hostile one; a file says whether it was started."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "server.py"
        first = f"import os, sys\ntry: os.mkdir({folder + '/used'!r})\nexcept OSError: sys.argv[1] = ''\n"
        program.write_text(first + STDIO)
        words = shlex.join([sys.executable, str(program), odd, json.dumps(HONEST)])
        call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
        yield Trial(f"mcp:{words}", call, "1", data=MCP_TASK, honest_replies=("1",), may_win=True)


# --- Gymnasium: what a step returns or raises; seed 0 is the hostile episode. ---


class StrExitError(Exception):
    def __str__(self) -> str:
        raise SystemExit(0)


class Odd:
    def __repr__(self) -> str:
        raise KeyboardInterrupt


def stepped(
    seen: Any = "x", reward: Any = 0.0, terminated: Any = True, truncated: Any = False, info: Any = None
) -> Any:
    return seen, reward, terminated, truncated, {} if info is None else info


GYM: dict[str, Any] = {
    "KeyboardInterrupt": KeyboardInterrupt(),
    "SystemExit": SystemExit(0),
    "GeneratorExit": GeneratorExit(),
    "StopIteration": StopIteration(),
    "CancelledError": asyncio.CancelledError(),
    "BaseException": BaseException("x"),
    "an error that cannot be shown": StrExitError(),
    "a message of 50 MB": ValueError("x" * (50 << 20)),
    "success as text": stepped(info={"success": "no"}),
    "success as a list": stepped(info={"is_success": [False]}),
    "an end as text": stepped(reward=1.0, terminated="False"),
    "a reward as text": stepped(reward="1"),
    "a reward of NaN": stepped(reward=float("nan")),
    "a reward of infinity": stepped(reward=float("inf")),
    "no reward": stepped(reward=None),
    "a reward that is a list": stepped(reward=[1.0]),
    "four values": ("x", 1.0, True, {}),
    "None": None,
    "an observation of bytes": stepped(b"\xff"),
    "an observation of None": stepped(None),
    "an observation that cannot be shown": stepped(Odd()),
    "an observation of 20 MB": stepped("x" * (20 << 20)),
    "half a surrogate pair": stepped("\ud800"),
    "escapes and control tokens": stepped(ESCAPES),
    "info that is None": ("x", 0.0, True, False, None),
    "info that is text": stepped(info="success"),
}


@contextmanager
def gym(odd: Any) -> Iterator[Trial]:
    import gymnasium

    class Hostile(gymnasium.Env[Any, Any]):
        observation_space = action_space = gymnasium.spaces.Text(20)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
            super().reset(seed=seed)
            self.hostile = seed == 0
            return "hello", {}

        def step(self, action: Any) -> Any:  # noqa: ARG002
            if self.hostile and isinstance(odd, BaseException):
                raise odd
            return odd if self.hostile else ("fine", 1.0, True, False, {})

    name = f"Hostile{len(gymnasium.registry)}-v0"
    gymnasium.register(name, Hostile)
    yield Trial(f"gymnasium:{name}", "hello")


@contextmanager
def background(open: Callable[[asyncio.Future[int]], Awaitable[None]]) -> Iterator[int]:
    """A server in a thread; yields its port."""
    loop, found = asyncio.new_event_loop(), threading.Event()
    loop.set_exception_handler(lambda *_: None)
    port: asyncio.Future[int] = loop.create_future()
    port.add_done_callback(lambda _: found.set())

    async def run() -> None:
        await open(port)

    task = loop.create_task(run())

    def serve() -> None:
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            for one in asyncio.all_tasks(loop):
                one.cancel()
            loop.run_until_complete(asyncio.sleep(0))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    found.wait(10)
    try:
        yield port.result()
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10)


CASES: dict[str, Callable[[], Any]] = {
    **{f"OpenEnv: {name}": lambda odd=odd: play(openenv(odd), STEP_S) for name, odd in OPENENV.items()},
    **{name: lambda odd=odd: play(mcp(odd), STEP_S) for name, odd in MCP.items()},
    **{f"MCP over pipes: {name}": lambda odd=odd: play(pipe(odd), STEP_S) for name, odd in PIPES.items()},
    **{f"Gymnasium: {name}": lambda odd=odd: play(gym(odd), STEP_S) for name, odd in GYM.items()},
}

if __name__ == "__main__":
    sys.exit(main("environments", __doc__, CASES))
