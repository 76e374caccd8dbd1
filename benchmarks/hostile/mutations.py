"""Damage: bytes, JSON values, YAML texts, names and packings that no honest program writes."""

from __future__ import annotations

import gzip
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import zstandard

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 10**30, 10**400, 1e308, 0.1, "", "x", "\0", "é", "‮", "\ud800", "../../x", "/dev/zero",
    "a.py:X", "NaN", [], [[]], [1], ["x"], {}, {"x": 1}, {"role": "user"}, [{}], "x" * 5000, [0] * 2000, "<tool_call>",
    "1e999", "~", "null", "hf://x", "{% for", "-1", "inf",
]  # fmt: skip
WORDS = [
    "", "x", "-1", "0", "1", "inf", "nan", "-inf", "1e999", str(10**30), "1" * 5000, "a=b", "=", "a=", "{", "[[[", "*a",
    "&a [*a]", "!!python/object:x", "../..", "/", "/dev/null", "/dev/zero", "~nobody/x", "hf://", "hf://a", "hf://a/b/c/d",
    "é", "\t", "\n", "a" * 5000, "tiny", "smollm3", "org/name", "expert", "random", "household", "web", "a.py:X",
    "no.such:X", "os:system", "None", "true",
]  # fmt: skip
TEMPLATES = ["", "{% for", "{{ 1 / 0 }}", "{{ x.y.z }}", "{{ messages }}", "{{ raise_exception('x') }}", "x\xff"]
YAML = [
    "", "a", "- a", "a: b", "a: [", "a: &a [*a]", "a: !!bool x", "\t", "a: 1\na: 2", "? [a]\n: b", "a: " + "[" * 3000,
    "<<: 3", "a: 2024-01-01", "a: .inf", "a: 0x1f", "1: 2", "a: \"\\ud800\"", "%YAML 9.9\n---\na: b", "--- a\n--- b",
    "\ufeffa: b",
]  # fmt: skip


def flip(data: bytes, rng: Random) -> bytes:
    """A few bytes changed, left out or doubled."""
    content = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(content) + 1)
        way = rng.random()
        if way < 0.5 and at < len(content):
            content[at] = rng.randrange(256)
        elif way < 0.7:
            del content[at : at + rng.randint(1, 40)]
        elif way < 0.9:
            content[at:at] = rng.choice([b"\0", b"\n", b"\xff", b'"', b"[", b"{", b"}", b"\\ud800", b"\xef\xbb\xbf"])
        else:
            content = content[:at]
    return bytes(content)


def change(value: Any, rng: Random) -> Any:
    """A JSON value with one of its parts replaced, left out or put elsewhere."""
    if rng.random() < 0.15 or not isinstance(value, dict | list) or not value:
        return rng.choice(VALUES)
    if isinstance(value, list):
        at = rng.randrange(len(value))
        if rng.random() < 0.2:
            return [*value[:at], *value[at + 1 :]]
        return [*value[:at], change(value[at], rng), *value[at + 1 :]]
    key = rng.choice(list(value))
    if rng.random() < 0.2:
        return {name: one for name, one in value.items() if name != key}
    if rng.random() < 0.1:
        return {**value, str(rng.choice(VALUES))[:50]: rng.choice(VALUES)}
    return {**value, key: change(value[key], rng)}


def changed_lines(data: bytes, rng: Random) -> bytes:
    """JSON Lines, some rows of which were changed."""
    rows = [json.loads(line) for line in data.splitlines()[:12]]
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(rows))
        rows[at] = change(rows[at], rng)
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def changed_json(data: bytes, rng: Random) -> bytes:
    value = json.loads(data)
    for _ in range(rng.randint(1, 3)):
        value = change(value, rng)
    return json.dumps(value).encode()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".jsonl": bytes,
    ".json": lambda data: b"[" + b",".join(data.splitlines()) + b"]",
    ".jsonl.gz": gzip.compress,
    ".jsonl.xz": lzma.compress,
    ".jsonl.zst": zstandard.compress,
    ".parquet": bytes,
}


def damaged_file(folder: Path, data: bytes, rng: Random) -> Path:
    """A data file: changed rows, packed in one of the ways, then perhaps damaged; or no file at all."""
    if rng.random() < 0.06:
        return odd_path(folder, rng)
    ending = rng.choice(list(PACKED))
    content = PACKED[ending](changed_lines(data, rng) if rng.random() < 0.7 else data)
    if rng.random() < 0.4:
        content = flip(content, rng)
    path = folder / f"data{ending}"
    if ending == ".parquet" and rng.random() < 0.8:
        _write_parquet(path, data)
        content = flip(path.read_bytes(), rng)
    path.write_bytes(content)
    return path


def _write_parquet(path: Path, data: bytes) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [json.loads(line) for line in data.splitlines()[:3]]
    texts = [{key: json.dumps(value) for key, value in row.items()} for row in rows]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(texts), path)


def odd_path(folder: Path, rng: Random) -> Path:
    """Something that is not a file to read."""
    path = folder / "odd.jsonl"
    kind = rng.choice(["none", "fifo", "folder", "loop", "device", "broken", "bytes", "long", "hub", "socket"])
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind in ("loop", "broken"):
        path.symlink_to("odd.jsonl" if kind == "loop" else "nothing")
    elif kind == "bytes":
        path = Path(os.fsdecode(bytes(folder) + b"/\xff.jsonl"))
        path.write_text("{}\n")
    return {
        "device": Path(rng.choice(["/dev/zero", "/dev/null", "/dev/urandom"])),
        "long": folder / ("x" * 300),
        "hub": Path(rng.choice(["hf://", "hf://a", "hf://a/b/c/d/e", "hf:/x"])),
    }.get(kind, path)
