"""What a page names exists: commands, flags, files, links, packages, extras."""

import re
import tomllib
from functools import cache

import pytest

import bough
from bough.commands import table
from bough.config.base import Config, by_name, flag
from tests.blocks import ROOT
from tests.docs.pages import DOCS, PAGES

OTHER_PROGRAMS = {
    *("--num_processes", "--nproc-per-node", "--ipc", "--shm-size"),
    # Ray
    *("--head", "--num-gpus", "--num-cpus", "--port", "--min-worker-port", "--max-worker-port", "--node-manager-port"),
    *("--object-manager-port", "--runtime-env-agent-port", "--dashboard-agent-grpc-port", "--metrics-export-port"),
    *("--dashboard-agent-listen-port", "--dashboard-port", "--dashboard-host", "--ray-client-server-port"),
    *("--object-store-memory", "--exclusive"),
    *("--enable-lora", "--lora-modules", "--max-lora-rank", "--logprobs-mode", "--gpu-memory-utilization"),
}


@pytest.mark.parametrize("name", PAGES)
def test_commands_flags_files_and_links_exist(name: str):
    page = PAGES[name]
    for verb in re.findall(r"`bough (\w+)", page):
        assert any(known.split()[0] == verb for known in table.TABLE), verb
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page):
        assert (DOCS / name).parent.joinpath(target).exists(), target
    for path in re.findall(r"`((?:src|examples|benchmarks|docs|tests)/[\w./-]+)`", page):
        assert (ROOT / path).exists(), path
    spoken = " ".join(re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)))
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", spoken)) <= known_flags() | OTHER_PROGRAMS


def test_pages_for_users_have_at_most_35000_words():
    """Studies and histories are in docs/notes/."""
    words = {name: len(page.split()) for name, page in PAGES.items() if not name.startswith("notes/")}
    assert sum(words.values()) <= 35_000, sorted(words.items(), key=lambda item: -item[1])[:10]


def test_every_command_has_a_row_on_the_first_page():
    listed = set()
    for verb, more in re.findall(r"`bough (\w+)([\w ·]*)`", PAGES["index.md"]):
        words = re.findall(r"\w+", more)
        # `bough data stats · show` are two commands of one word before them; `bough sft · dpo` are commands themselves.
        listed |= {f"{verb} {word}" if f"{verb} {word}" in table.TABLE else word for word in words} | {verb}
    assert set(table.TABLE) <= listed


def test_the_architecture_names_every_package_and_no_other():
    source = ROOT / "src" / "bough"
    there = {f"{path.name}/" for path in source.iterdir() if path.is_dir() and path.name != "__pycache__"}
    there |= {path.stem for path in source.glob("*.py") if not path.stem.startswith("__")}
    (table,) = re.findall(r"^\| package \|.*?\n\n", PAGES["architecture.md"], flags=re.DOTALL | re.MULTILINE)
    named = re.findall(r"`([^`]+)`", " ".join(line.split("|")[1] for line in table.strip().splitlines()))
    assert sorted(named) == sorted(there)


def test_every_public_name_is_in_the_reference():
    assert set(bough.__all__) == set(re.findall(r"^::: bough\.(\w+)$", PAGES["reference.md"], flags=re.MULTILINE))


def test_extras_that_pages_name_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    everything = " ".join([*PAGES.values(), (ROOT / "README.md").read_text()])
    named = {extra for group in re.findall(r"bough\[([\w,]+)\]", everything) for extra in group.split(",")}
    assert named and named <= set(extras)
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", PAGES["install.md"], flags=re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(extras)


@cache
def known_flags() -> set[str]:
    return {word for verb in map(table.command, table.TABLE) for word in _flags(verb.config)}


def _flags(config: type[Config]) -> set[str]:
    names = set(by_name(config))
    common = {"--config", "--debug", "--follow-links", "--help", "--help-all"}
    return {flag(name) for name in names} | {flag(f"no_{name}") for name in names} | common
