import os
import sys
from pathlib import Path

from bough.sandbox.view import view


def test_the_python_installation_is_shown_and_the_rest_is_not():
    shown = view()
    assert all(Path(path).exists() for path in shown.views)
    seen = [Path(place) for place in shown.views.values()]
    assert any(Path(os.__file__).resolve().is_relative_to(place) for place in seen)
    assert any(Path(shown.python).is_relative_to(place) for place in seen)
    for hidden in (Path(__file__), Path.home() / ".ssh", Path("/etc/passwd"), Path("/proc"), Path("/tmp")):
        assert not any(hidden.is_relative_to(place) for place in seen), hidden
    assert "/" not in shown.views.values() and str(Path.home()) not in shown.views


def test_nothing_is_shown_twice_and_links_are_links():
    shown = view()
    places = list(shown.views.values())
    assert not [(a, b) for a in places for b in places if a != b and a.startswith(b + "/")]
    assert not set(shown.links) & set(places)


def test_packages_are_those_of_this_python():
    assert all(path in sys.path for path in view().packages)
