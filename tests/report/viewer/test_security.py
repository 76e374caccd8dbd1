import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from bough.errors import InputError
from bough.report.viewer.server import COOKIE, Door, door
from tests.report.viewer.conftest import Server, serving

TOKEN = "a-token-that-is-long-enough"


def ask(port: int, path: str, host: str | None = None, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host if host is not None else f"127.0.0.1:{port}")
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    return connection.getresponse()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.2"])
def test_loopback_needs_neither_flag_nor_token(host: str):
    found = door(host, remote=False, token=None)
    assert found.token is None and found.knows("127.0.0.1:80") and not found.any_address


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org", "10.0.0.1", ""])
def test_any_other_address_needs_the_users_word_and_has_a_token(host: str):
    with pytest.raises(InputError, match="--allow-remote"):
        door(host, remote=False, token=TOKEN)
    found = door(host, remote=True, token=None)
    assert found.token is not None and len(found.token) >= 24
    assert door(host, remote=True, token=None).token != found.token


def test_a_short_token_is_refused():
    with pytest.raises(InputError, match="16 characters"):
        door("0.0.0.0", remote=True, token="hello")


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:7788", True), ("localhost", True), ("LOCALHOST:1", True), ("[::1]:7788", True), ("[::1]", True),
        ("evil.example", False), ("evil.example:7788", False), ("127.0.0.1.evil.example", False), ("", False),
        ("localhost.evil.example:80", False), ("127.0.0.1@evil.example", False), ("192.168.1.5:7788", False),
        ("[::2]", False),
    ],
)  # fmt: skip
def test_the_host_must_be_ours(host: str, known: bool):
    assert door("127.0.0.1", remote=False, token=None).knows(host) is known


def test_over_a_network_addresses_are_known_but_strangers_names_are_not():
    found = door("0.0.0.0", remote=True, token=TOKEN)
    assert found.knows("192.168.1.5:7788") and found.knows("localhost:7788")
    assert not found.knows("evil.example:7788")
    assert door("box.lan", remote=True, token=TOKEN).knows("box.lan:7788")
    assert not door("box.lan", remote=True, token=TOKEN).knows("192.168.1.5")


@pytest.mark.parametrize("path", ["/", "/api/overview", "/assets/main.js", "/api/image?at=x", "/missing"])
def test_a_name_that_was_made_to_point_here_is_refused(server: Server, path: str):
    for host in (
        "evil.example",
        f"evil.example:{server.port}",
        "169.254.169.254",
        "",
        f"127.0.0.1.nip.io:{server.port}",
    ):
        answer = ask(server.port, path, host)
        assert answer.status == 421
        assert b"trajector" not in answer.read()
    assert ask(server.port, path).status in (200, 404)


def test_every_answer_carries_the_policy(server: Server):
    for path, host in (
        ("/", None),
        ("/api/overview", None),
        ("/assets/main.js", None),
        ("/nothing", None),
        ("/", "evil.example"),
    ):
        headers = ask(server.port, path, host).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy and "form-action 'none'" in policy and "base-uri 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers


def test_nothing_can_be_changed(server: Server):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert ask(server.port, "/api/overview", method=method).status == 405
        assert ask(server.port, "/nothing", method=method).status == 405
    assert ask(server.port, "/", method="HEAD").status == 200


def test_other_sites_cannot_ask(server: Server):
    for path in ("/api/overview", "/assets/main.js"):
        assert ask(server.port, path, Sec_Fetch_Site="cross-site").status == 403
        assert ask(server.port, path, Sec_Fetch_Site="same-origin").status == 200
    # A link from elsewhere may open the page itself.
    assert ask(server.port, "/", Sec_Fetch_Site="cross-site").status == 200


@pytest.fixture(scope="module")
def remote(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    guarded = Door(frozenset({"127.0.0.1"}), any_address=True, token=TOKEN)
    with serving(folder, guarded) as running:
        yield running


def test_over_a_network_nothing_is_said_without_the_token(remote: Server):
    for path in (
        "/",
        "/api/overview",
        "/assets/main.js",
        "/?token=wrong",
        "/?token=",
        f"/?token={TOKEN}x",
        "/?token=%ff",
    ):
        assert ask(remote.port, path).status == 401
    assert ask(remote.port, "/api/overview", Cookie=f"{COOKIE}=wrong").status == 401
    assert ask(remote.port, "/api/overview", Cookie="\x7f;=;;").status == 401


def test_the_token_becomes_a_cookie_that_no_script_can_read(remote: Server):
    answer = ask(remote.port, f"/?token={quote(TOKEN)}&x=1")
    assert (answer.status, answer.headers["location"]) == (303, "/?x=1")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    assert ask(remote.port, "/api/overview", Cookie=f"{COOKIE}={TOKEN}").status == 200


def test_a_program_gives_the_token_in_a_header(remote: Server):
    assert ask(remote.port, "/api/overview").status == 401
    for given in (f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer", "Bearer \xff"):
        assert ask(remote.port, "/api/overview", Authorization=given).status == 401
    assert ask(remote.port, "/api/overview", Authorization=f"Bearer {TOKEN}").status == 200


def test_a_redirect_never_leads_elsewhere(remote: Server):
    for path in (f"//evil.example/?token={TOKEN}", f"/%2f%2fevil.example?token={TOKEN}"):
        location = ask(remote.port, path).headers["location"]
        assert location == "/"


def test_a_name_that_only_looks_like_loopback_is_none():
    with pytest.raises(InputError):
        door("127.0.0.1.evil.example", remote=False, token=None)
