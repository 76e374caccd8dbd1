"""What the warm server loads before it forks programs that train and play: these cost only what they compute."""

import importlib
import os
import sys
from pathlib import Path

import anyio
import pytest
import torch

from bough.bit_exact import batches_differ
from bough.chat.template import load_template
from bough.policy.adapters import Lora
from bough.policy.policy import Policy
from tests import disk
from tests.mlflow_database import create_tables_once
from tests.tiny_copies import copy_what_was_read
from tests.warm import ADDRESS

MODULES = (
    "bough.methods.grpo", "bough.commands.run", "bough.commands.collect", "bough.commands.evaluate",
    "bough.commands.curate", "bough.methods.grpo",
    "bough.methods.examples", "bough.curation.curate", "bough.engines.local.engine", "bough.policy.load",
    "bough.terminal.console", "bough.commands.objects", "bough.worlds.household.environment",
    "concurrent.futures.thread", "rich._emoji_codes",
    "torch._inductor.compile_fx",  # what is compiled imports it, a second of CPU time
)  # fmt: skip

# The modules that were loaded before those of tests, with what these import.
WITHOUT_TESTS: set[str] = set()


def load_everything() -> None:
    torch.set_num_threads(1)
    disk.never_wait()
    for module in MODULES:
        importlib.import_module(module)
    copy_what_was_read()
    load_template("tiny")
    Policy.load("tiny", lora=Lora(r=1))
    batches_differ()
    create_tables_once(Path(os.environ[ADDRESS]).with_name("mlflow.db"))
    WITHOUT_TESTS.update(sys.modules)


class OnlyImport:
    """A plugin for pytest: modules are imported and nothing in them is collected."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self) -> list[pytest.Item]:
        return []


def load_tests(paths: list[str]) -> None:
    """Imports the modules of these tests. What is in them is collected by each of pytest's processes."""
    # Its plugin for pytest is not used. That it is imported already would be a warning of each process.
    anyio.__doc__ = "PYTEST_DONT_REWRITE"
    options = ["--collect-only", "--quiet", "-p", "no:cacheprovider", "-p", "no:xdist"]
    pytest.main([*options, *paths], plugins=[OnlyImport()])
    # Each of pytest's processes would read the constants that Hypothesis draws from the sources of all loaded modules.
    from hypothesis.internal.conjecture.providers import _get_local_constants

    _get_local_constants()
