import os
import sys
from pathlib import Path

import pytest

from bough.sandbox.view import SYSTEM, libraries, view


def test_the_python_installation_is_shown_and_the_rest_is_not():
    shown = view()
    assert all(Path(path).exists() for path in shown.views)
    seen = [Path(place) for place in shown.views.values()]
    assert any(Path(os.__file__).resolve().is_relative_to(place) for place in seen)
    assert any(Path(shown.python).is_relative_to(place) for place in seen)
    for hidden in (Path(__file__), Path.home() / ".ssh", Path("/etc/passwd"), Path("/proc"), Path("/tmp")):
        assert not any(hidden.is_relative_to(place) for place in seen), hidden
    assert "/" not in shown.views.values() and str(Path.home()) not in shown.views
    places = list(shown.views.values())
    assert not [(a, b) for a in places for b in places if a != b and a.startswith(b + "/")]
    assert not set(shown.links) & set(places)
    assert all(path in sys.path for path in shown.packages)


MERGED = {"lib": "usr/lib", "lib64": "usr/lib64", "usr/lib/x86_64/ld.so": "", "usr/lib64/ld.so": "../lib/x86_64/ld.so"}
LAYOUTS = {
    "Debian": MERGED,
    "Fedora": {"lib": "usr/lib", "lib64": "usr/lib64", "usr/lib/x": "", "usr/lib64/ld.so": ""},
    "Arch": {"lib": "usr/lib", "lib64": "usr/lib", "usr/lib64": "lib", "usr/lib/ld.so": ""},
    "a chain": {"lib64": "/usr/lib64", "usr/lib64": "../opt/first", "opt/first": "second", "opt/second/ld.so": ""},
    "unmerged": {"lib/x": "", "lib64/ld.so": "", "usr/lib/y": ""},
    "nowhere": {"lib64": "usr/lib64", "lib/ld.so": ""},
    "a loop": {"lib64": "usr/lib64", "usr/lib64": "/lib64", "lib/ld.so": ""},
}


def make(root: Path, layout: dict[str, str]) -> None:
    for name, target in layout.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target) if target else path.touch()


def resolved(path: str, links: dict[str, str]) -> str:
    """Where links lead that are all there is."""
    for _ in range(10):
        if path not in links:
            return path
        path = os.path.normpath(Path(path).parent / links[path])
    return "a loop"


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_library_folder_leads_to_something_that_is_shown(tmp_path: Path, name: str):
    make(tmp_path, LAYOUTS[name])
    shown, links = libraries(str(tmp_path))
    assert all((tmp_path / path[1:]).exists() and not (tmp_path / path[1:]).is_symlink() for path in shown)
    assert all(str(Path(str(tmp_path) + link).readlink()) == target for link, target in links.items())
    ends = {resolved(path, links) for path in SYSTEM if os.path.lexists(str(tmp_path) + path)}
    whole = {end for end in ends if end != "a loop" and (tmp_path / end[1:]).exists()}
    assert whole <= set(shown)
    assert any(list((tmp_path / path[1:]).rglob("ld.so")) for path in shown)


def test_a_link_to_everything_shows_nothing(tmp_path: Path):
    make(tmp_path, {"lib": "usr/lib", "usr/lib/x": "", "lib64": "..", "usr/lib64": "/"})
    assert libraries(str(tmp_path))[0] == ["/usr/lib"]
