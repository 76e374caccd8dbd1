import json
import re
import shlex
import socket
from pathlib import Path
from urllib.parse import quote

import pytest

from bough.commands.view import ViewConfig
from bough.config import flags
from bough.engines.server.app import listen
from bough.errors import InputError
from bough.report.viewer.server import assets, bundle, script
from tests.report.viewer.conftest import Server, serving
from tests.report.viewer.hostile import fill_hostile
from tests.report.viewer.samples import trajectory, write
from tests.report.viewer.take_screenshots import PICTURES
from tests.report.viewer.test_security import ask


def test_the_page_and_all_its_parts_are_served(server: Server):
    for name, content in assets().items():
        answer = ask(server.port, f"/assets/{name}")
        assert answer.status == 200 and answer.read() == content
    page = ask(server.port, "/")
    assert page.headers["content-type"].startswith("text/html") and b"/assets/app.js" in page.read()
    assert ask(server.port, "/assets/app.js").read().decode() == script()
    assert ask(server.port, "/assets/main.js").headers["content-type"].startswith("text/javascript")


def test_answers_are_json(server: Server):
    answer = ask(server.port, "/api/records?kind=pair&limit=1")
    assert answer.headers["content-type"] == "application/json"
    found = json.loads(answer.read())
    assert found["total"] > 0 and len(found["rows"]) == 1


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd", "/assets/../server.py", "/assets/..%2fserver.py", "/assets/%2e%2e/server.py",
        "/assets//etc/passwd",
        "/api/../api/nothing", "/api/record?at=../../../etc/passwd:1", "/api/record?at=/etc/passwd:1",
        "/api/record?at=%00:1",
        "/api/record", "/api/record?at=02-rollouts/trajectories.jsonl:0",
        "/api/record?at=02-rollouts/trajectories.jsonl:99999",
        "/api/image?at=07-sampled/trajectories.jsonl:1&number=1", "/api/image?at=../x:1&number=0", "/api/image",
        "/api/training?folder=../../etc", "/api/training?folder=/etc", "/api/evaluation?folder=..", "/api/evaluation",
        "/api/tree?at=03-pairs/pairs.jsonl:1", "/api/tokens?at=07-sampled/trajectories.jsonl:1&turn=-1", "/api/nothing",
        "/api/tokens?at=07-sampled/trajectories.jsonl:1&turn=99999999999999999999",
        "/config.yaml", "/05-dpo/config.yaml",
    ],
)  # fmt: skip
def test_nothing_but_what_was_found_is_served(server: Server, path: str):
    answer = ask(server.port, path)
    assert answer.status == 404
    assert b"root:" not in answer.read()


def test_a_screenshot_is_served_as_a_picture(server: Server):
    answer = ask(server.port, "/api/image?at=07-sampled/trajectories.jsonl:1&number=0")
    assert (answer.status, answer.headers["content-type"]) == (200, "image/png")
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_hostile_records_are_answered_as_plain_json(tmp_path: Path):
    fill_hostile(tmp_path / "hostile")
    with serving(tmp_path / "hostile") as server:
        rows = json.loads(ask(server.port, "/api/records").read())["rows"]
        paths = [f"/api/record?at={quote(row['at'])}" for row in rows] + ["/api/overview", "/api/training?folder=train"]
        for path in paths:
            answer = ask(server.port, path)
            assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
            json.loads(answer.read())


def test_a_huge_record_and_many_odd_ones_are_answered(tmp_path: Path):
    big = trajectory("a#0", ["x" * 3_000_000] + ["look"] * 2000)
    write(tmp_path / "run/a.jsonl", big, trajectory("b#0", ["\ud800 \x00 ‮"[1:]]))
    with (tmp_path / "run/a.jsonl").open("ab") as stream:
        stream.write(
            b'{"bough": "trajectory/1", "id": "\\ud800", "task": {"id": "\\udfff"}, '
            b'"start": [{"role": "user"}], "turns": []}\n'
        )
        stream.write(b'{"bough": "trajectory/1", "id": 5}\n' * 10 + b"\x00\xff\n")
    with serving(tmp_path / "run") as server:
        found = json.loads(ask(server.port, "/api/records").read())
        assert found["total"] >= 2
        shown = json.loads(ask(server.port, "/api/record?at=a.jsonl:1").read())
        assert len(shown["turns"]) == 2001
        problems = json.loads(ask(server.port, "/api/overview").read())["problems"]
        assert sum(problems[0]["reasons"].values()) >= 11
        for row in found["rows"]:
            assert ask(server.port, f"/api/record?at={row['at']}").status == 200


def test_a_taken_port_is_said():
    taken = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(InputError, match="choose another with --port"):
        listen("127.0.0.1", taken.getsockname()[1])
    taken.close()


def test_modules_stand_behind_what_they_need_and_share_only_what_they_export():
    modules = {
        "main.js": 'import { twice } from "./math.js";\nconst hidden = 3;\nshow(twice(hidden));\n',
        "math.js": "const hidden = 2;\nexport function twice(x) { return hidden * x; }\nexport const one = 1;\n",
    }
    text = bundle(modules, "main.js")
    assert text.index("module_math = ") < text.index("module_main = ")
    assert "const { twice } = module_math;" in text and "return { twice, one };" in text
    assert "import" not in text and "export" not in text


def test_circles_and_forms_that_cannot_be_bundled_are_found():
    circle = {"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'}
    with pytest.raises(AssertionError, match=r"a.js → b.js → a.js"):
        bundle(circle, "a.js")
    for text in ('import * as b from "./b.js";\n', "export default 3;\n", "export { a };\n"):
        with pytest.raises(AssertionError, match="cannot be bundled"):
            bundle({"a.js": text}, "a.js")


def test_every_script_of_the_page_is_in_the_bundle():
    scripts = {name: text.decode() for name, text in assets().items() if name.endswith(".js")}
    text = bundle(scripts, "main.js")
    for name in scripts:
        assert f"const module_{name.removesuffix('.js')} = " in text


def test_no_asset_names_another_machine():
    for name, content in assets().items():
        text = content.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text and "//cdn" not in text, name
        assert "innerHTML" not in text and "document.write" not in text and "eval(" not in text, name


DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "viewer.md").read_text()


def test_every_command_is_understood():
    lines = [line for text in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL) for line in text.splitlines()]
    assert len(lines) == 3
    for line in lines:
        words = shlex.split(line)
        assert words[:2] == ["bough", "view"]
        flags.parse(ViewConfig, flags.build(ViewConfig, "bough view", ""), words[2:])


def test_every_flag_that_is_named_is_one():
    named = set(re.findall(r"`?(--[a-z][a-z-]*)", PAGE))
    assert named and named <= {"--" + name.replace("_", "-") for name in ViewConfig.model_fields}


def test_every_page_has_its_pictures_at_both_widths_and_they_are_small():
    named = re.findall(r"!\[[\w ]+\]\((screenshots/[\w-]+\.png)\)", PAGE)
    assert named == [f"screenshots/{name}{width}.png" for name in PICTURES for width in ("", "-phone")]
    assert {DOCS / name for name in named} == set((DOCS / "screenshots").iterdir())
    for name in named:
        assert 1000 < (DOCS / name).stat().st_size < 100_000
