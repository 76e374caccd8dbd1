import sys

import pytest

from bough.errors import InputError
from bough.worlds.web.environment import EXPERTS
from bough.worlds.web.page import ENOUGH, NOT_FOR_TEXT, RELOADED, all_pages, html_folder, text_pages


@pytest.fixture(autouse=True)
def _miniwob():
    pytest.importorskip("miniwob.constants", reason="the miniwob package is not installed")


def test_every_page_that_is_named_exists():
    named = {*NOT_FOR_TEXT, *ENOUGH, *RELOADED, *EXPERTS}
    assert named <= set(all_pages())


def test_text_pages_are_all_the_others():
    assert len(all_pages()) == 130
    assert set(text_pages()) | set(NOT_FOR_TEXT) == set(all_pages())
    assert not set(text_pages()) & set(NOT_FOR_TEXT)


def test_every_other_page_has_an_expert():
    assert set(text_pages()) == set(EXPERTS)


def test_nobody_scripted_a_page_that_text_cannot_solve():
    assert not set(EXPERTS) & set(NOT_FOR_TEXT)


def test_finding_the_pages_does_not_load_the_package(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "miniwob"]:
        monkeypatch.delitem(sys.modules, name)
    html_folder.cache_clear()
    assert (html_folder() / "click-button.html").is_file()
    assert "miniwob" not in sys.modules


def test_without_the_package_the_user_is_told(monkeypatch):
    html_folder.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'bough\[web\]'"):
        html_folder()
    html_folder.cache_clear()
