import sys

import pytest

from bough.sandbox.inside.child import Notebook, Output


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # put back afterwards
    return Notebook({"/a/lib/python3": "python", "/a/lib/python3/site-packages": "site-packages"})


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", "2"),
        ("x = 3\nx * 2", "6"),
        ("x = 3", None),
        ("None", None),
        ("", None),
        ("# nothing", None),
        ("'a'", "'a'"),
        ("5;", None),
        ("5  # five; really", "5"),
        ("'é' ;", None),
        ("for i in range(2):\n    i", None),
        ("if True:\n    x = 1\n    x", None),
        ("def f():\n    return 1", None),
        ("def f():\n    return 1\n\nf()  # last\n\n", "1"),
        ("(\n  1 +\n  2\n)", "3"),
        ("import asyncio\nawait asyncio.sleep(0, 7)", "7"),
        ("from __future__ import annotations\n1", "1"),
    ],
)
def test_only_a_last_expression_is_echoed(book: Notebook, code: str, value: str | None):
    assert book.run(code) == (value, None)


def test_names_live_on_also_those_defined_before_an_exception(book: Notebook):
    book.run("x = 20")
    assert book.run("x + 1") == ("21", None)
    assert book.run("_ * 2") == ("42", None)
    assert book.run("y = 1\n1 / 0")[1] is not None
    assert book.run("y") == ("1", None)


def test_a_traceback_begins_in_the_cell_and_shows_its_lines(book: Notebook):
    book.run("def f(x):\n    return 1 / x")
    error = str(book.run("a = 1\nf(0)")[1])
    without_marks = "\n".join(line for line in error.splitlines() if line.strip(" ~^"))
    assert without_marks == (
        "Traceback (most recent call last):\n"
        '  File "<cell 2>", line 2, in <module>\n    f(0)\n'
        '  File "<cell 1>", line 2, in f\n    return 1 / x\n'
        "ZeroDivisionError: division by zero"
    )


def test_a_syntax_error_shows_its_place_and_runs_nothing(book: Notebook):
    error = book.run("x = 1\ny = (")[1]
    assert error is not None and error.startswith('  File "<cell 1>", line 2\n    y = (\n')
    assert error.endswith("SyntaxError: '(' was never closed") and "child.py" not in error
    book.run("ran = True\n)")
    assert "NameError" in str(book.run("ran")[1])


def test_paths_of_the_host_are_hidden_the_longest_first(book: Notebook):
    error = book.run("raise ValueError('/a/lib/python3/site-packages/numpy and /a/lib/python3/json')")[1]
    assert error is not None and error.endswith("ValueError: site-packages/numpy and python/json")


def test_leaving_quietly_is_no_error_and_leaving_with_a_word_is(book: Notebook):
    assert book.run("import sys\nsys.exit()") == (None, None)
    assert book.run("sys.exit(0)") == (None, None)
    assert book.run("sys.exit(2)") == (None, "SystemExit: 2")
    assert book.run("sys.exit('no')") == (None, "SystemExit: no")


def test_an_exception_that_cannot_be_shown_has_its_name_shown(book: Notebook):
    error = book.run("class Bad(Exception):\n    def __str__(self): raise ValueError\nraise Bad")[1]
    assert error is not None and "Bad" in error
    repr_error = book.run("class Worse:\n    def __repr__(self): raise KeyError('r')\nWorse()")[1]
    assert repr_error is not None and repr_error.endswith("KeyError: 'r'")


def test_classes_of_a_cell_can_be_pickled(book: Notebook):
    code = "import pickle\nclass P:\n    pass\ntype(pickle.loads(pickle.dumps(P()))).__name__, __name__"
    assert book.run(code) == ("('P', '__main__')", None)


def test_the_head_and_the_tail_of_what_does_not_fit_are_kept():
    output = Output(8)
    for piece in (b"abc", b"", b"defg", b"h"):
        output.add(piece)
    assert (output.text, output.left_out) == ("abcdefgh", 0)
    output = Output(8)
    for piece in (b"abcdef", b"ghijk", b"lm"):
        output.add(piece)
    assert output.text == "abcd\n… 5 bytes left out …\njklm"
    output = Output(8)
    output.add(b"a\xff")
    assert output.text == "a\ufffd"
