"""Versions are looked up once, also by packages that were imported before the tests."""

from bough.models import tiny
from tests.warm import Warm

ASKED_TWICE = """
from bough.models import tiny
before = tiny.version.cache_info().hits
tiny.version("pytest"), tiny.version("pytest")
print(tiny.version.cache_info().hits - before)
"""


def test_a_process_that_runs_tests_remembers_versions():
    assert tiny.version("pytest") is tiny.version("pytest")


def test_a_warm_program_remembers_versions():
    with Warm(None, code=ASKED_TWICE) as program:
        assert int(program.communicate()) >= 1
