import json
import logging
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from bough.errors import InputError
from bough.worlds.interpreter import problems
from tests.shared_data import shared_data


def written(tmp_path: Path, *rows: Any) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return file


def test_mathematics_is_read_under_the_names_that_files_have(tmp_path: Path):
    pytest.importorskip("math_verify")
    rows = [
        {"question": "2 + 2?", "answer": "It is 4.\n#### 4"},
        {"problem": "3 + 3?", "answer": 6},
        {"problem": "4 + 4?", "solution": "So $\\boxed{8}$."},
    ]
    found = list(problems.read(written(tmp_path, *rows)))
    assert [(row["kind"], row["problem"], row["answer"]) for row in found] == [
        ("math", "2 + 2?", "4"), ("math", "3 + 3?", "6"), ("math", "4 + 4?", "8"),
    ]  # fmt: skip


def test_programs_are_read_under_the_names_that_files_have(tmp_path: Path):
    check = "def check(candidate):\n    assert candidate(1) == 1\n"
    rows = [
        {"prompt": "Write f.", "tests": ["assert f(1) == 1", "assert f(2) == 2"]},
        {"query": "Write g.", "prompt": "import math\n", "test": check, "entry_point": "Solution().g"},
        {"text": "Write h.", "test_list": ["assert h()"], "test_setup_code": "x = 1"},
        {"prompt": "Write i.", "test_list": ["assert math.isclose(i(), 1)"], "test_imports": ["import math", "x = 1"]},
    ]
    found = list(problems.read(written(tmp_path, *rows)))
    assert found[0] == {
        "kind": "code", "problem": "Write f.", "tests": ["assert f(1) == 1", "assert f(2) == 2"],
        "entry": None, "prelude": "",
    }  # fmt: skip
    assert found[1] == {
        "kind": "code", "problem": "Write g.", "tests": ["assert candidate(1) == 1"],
        "entry": "Solution().g", "prelude": "import math\n",
    }  # fmt: skip
    assert found[2]["prelude"] == "x = 1"
    assert found[3]["prelude"] == "import math\nx = 1"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": 1, "tests": "assert f(1)"}, "needs problem as text. It has id, tests; a mathematics problem has"),
        ({"problem": "x"}, "a math problem needs answer"),
        ({"problem": "x", "answer": ["1"]}, "needs answer as text or a number"),
        ({"query": "x", "entry_point": "f"}, "a code problem needs tests"),
        ({"prompt": "x", "test": "def check(candidate):\n    assert candidate(1)"}, "needs entry_point"),
        ({"prompt": "x", "tests": "assert ("}, "that are Python"),
        ({"prompt": "x", "tests": f"assert f({'-' * 200_000}1)"}, "that are Python"),
        ({"prompt": "x", "tests": f"assert f(1{'+1' * 100_000})"}, "that are Python"),
        ({"prompt": "x", "tests": "assert f(1)", "prelude": 5}, "prelude and entry_point as text"),
        ({"prompt": "x", "tests": "assert f(1)", "entry_point": 5}, "prelude and entry_point as text"),
        ({"prompt": "x", "tests": "x = 1"}, "needs tests that assert something"),
        ({"prompt": "x", "tests": [1]}, "needs tests as a list of Python statements"),
        ({"prompt": "Write f.", "tests": "assert isclose(f(1), 1) and Counter(f(2))"}, "define Counter, isclose, or"),
        ({"prompt": "Add.", "tests": "assert_equal(add(1), 1)"}, "import or define add, assert_equal"),
        ({"prompt": "Write f.", "test": "pd.testing.assert_frame_equal(f(1), 1)"}, "import or define pd"),
        (
            {"prompt": "Return a Counter.", "tests": "assert candidate('a') == Counter('a')", "entry_point": "f"},
            "import or define Counter",
        ),
        ("{not json", "not JSON"),
    ],
)
def test_a_bad_row_is_told_with_its_place(tmp_path: Path, row: Any, said: str):
    file = written(tmp_path, {"prompt": "Write f.", "tests": ["assert f"]}, row)
    with pytest.raises(InputError) as error:
        list(problems.read(file))
    assert str(error.value).startswith(f"{file}:2: ") and said in str(error.value)


def test_rows_whose_answer_is_empty_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    pytest.importorskip("math_verify")
    file = written(
        tmp_path, {"problem": "a", "answer": None}, {"problem": "b", "answer": "2"}, {"problem": "c", "answer": ""}
    )
    with caplog.at_level(logging.WARNING):
        assert [row["problem"] for row in problems.read(file)] == ["b"]
    assert "2 rows have no answer and are left out, line 1 first" in caplog.text


def test_a_missing_file_and_a_missing_package_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(InputError, match="no such file"):
        list(problems.read(tmp_path / "none.jsonl"))
    monkeypatch.setattr(problems, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install"):
        list(problems.read(written(tmp_path, {"problem": "x", "answer": "1"})))


POLY = """import math


def poly(xs: list, x: float):
    '''Evaluates a polynomial.'''
    return sum([coeff * math.pow(x, i) for i, coeff in enumerate(xs)])


def find_zero(xs: list):
    '''Finds x such that poly(x) = 0.'''
"""


@pytest.mark.parametrize("prompt", [POLY, f"Complete this function:\n```python\n{POLY}```\n"])
def test_what_a_prompt_defines_besides_its_function_is_the_tasks(tmp_path: Path, prompt: str):
    check = "def check(candidate):\n    assert abs(poly([1, 2], candidate([1, 2]))) < 1e-4\n"
    [found] = problems.read(written(tmp_path, {"prompt": prompt, "test": check, "entry_point": "find_zero"}))
    assert found["prelude"].startswith("import math\ndef poly(") and "find_zero" not in found["prelude"]
    with pytest.raises(InputError, match="import or define poly"):
        list(problems.read(written(tmp_path, {"prompt": "Find it.", "test": check, "entry_point": "find_zero"})))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("math/gsm8k-train.jsonl.xz", "math"),
        ("math/math-train.jsonl.xz", "math"),
        ("code/leetcode-train.jsonl.xz", "code"),
    ],
)
def test_published_files_are_read_as_they_are(name: str, kind: str):
    pytest.importorskip("math_verify")
    found = list(islice(problems.read(shared_data(name)), 200))
    assert len(found) == 200 and {problem["kind"] for problem in found} == {kind}
    assert all(problem.get("answer") or problem["tests"] for problem in found)


def test_answers_are_right():
    for problem in islice(problems.arithmetic(seed=1), 50):
        spoken: list[object] = []
        exec(problem["code"], {"print": spoken.append})
        assert problem["answer"] == str(spoken[0])


def test_a_seed_gives_its_problems_and_another_gives_others():
    one, same, other = (list(islice(problems.arithmetic(seed), 20)) for seed in (3, 3, 4))
    assert one == same and one != other and len({problem["problem"] for problem in one}) == 20
