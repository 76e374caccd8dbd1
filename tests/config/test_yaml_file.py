import os
from pathlib import Path

import pytest
import yaml

from bough.config.yaml_file import MAX_BYTES, YamlFile, read_value, write_value
from bough.errors import InputError

ALIAS_BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGE_BOMB = "a: &a {x: 1, y: 2}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join(['*' + before] * 10)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def read(tmp_path: Path, text: str) -> YamlFile:
    (tmp_path / "a.yaml").write_text(text)
    return YamlFile.read(tmp_path / "a.yaml")


def test_keys_come_with_their_lines_and_twice_is_a_problem(tmp_path: Path):
    found = read(tmp_path, "a: 1\n# note\nb: &x [1, 2]\na: 3\nc: *x\n")
    assert (found.values, found.lines) == ({"a": 3, "b": [1, 2], "c": [1, 2]}, {"a": 1, "b": 3, "c": 5})
    assert found.problems == [f"{tmp_path}/a.yaml:4: a is set twice; the first is on line 1"]
    assert read(tmp_path, "").values == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ALIAS_BOMB, "a.yaml:5: not YAML: more than 20000 values"),
        (MERGE_BOMB, "a.yaml:5: not YAML: more than 20000 values"),
        ("a: &a [*a]", "a.yaml:1: not YAML: an alias inside the value it stands for"),
        ("a: &a {b: {<<: *a}}", "a.yaml:1: not YAML: an alias inside the value it stands for"),
        ("a: " + "[" * 100_000, "a.yaml:1: not YAML: more than 50 levels"),
        ("a:\n" + "".join(f"{'  ' * n}- \n{'  ' * n}  b:\n" for n in range(1, 300)), "not YAML: more than 50 levels"),
        ("- a\n" * 30_000, "a.yaml:20000: not YAML: more than 20000 values"),
        ("# " + "x" * MAX_BYTES, "a.yaml: cannot be read: it is larger than 256 KiB"),
        ("a: !!bool maybe", "a.yaml: not YAML: a value cannot be read"),
        ("a: !!timestamp now", "a.yaml: not YAML: a value cannot be read"),
        ("a: !!int x", "a.yaml: not YAML: a value cannot be read"),
        ("a: !!python/object/apply:os.system [id]", "could not determine a constructor"),
        ("a: !!binary ZXZpbC5weTpY", "a.yaml:1: not YAML: could not determine a constructor"),
        ("[a]", "the file must be a mapping of settings"),
        ("a: *b", "found undefined alias"),
        ("{[1]: 2}", "found unhashable key"),
    ],
)
def test_what_settings_never_are_is_refused_with_its_line(tmp_path: Path, text: str, said: str):
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    assert said in str(error.value)


def test_a_long_number_is_text(tmp_path: Path):
    for digits in ("1" * 5000, "0x" + "f" * 5000, ":".join(["59"] * 5000)):
        assert read(tmp_path, f"a: {digits}").values == {"a": digits}


def test_only_regular_files_are_read(tmp_path: Path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "latin").write_bytes(b"a: \xe9")
    for name, said in (
        ("fifo", "it is not a regular file"), ("", "it is a folder"), ("/dev/zero", "it is not a regular file"),
        ("loop", "cannot be read"), ("latin", "cannot be read: 'utf-8' codec"), ("none", "there is no such file"),
        ("a\0b", "cannot be read"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=said):
            YamlFile.read(tmp_path / name)


def test_a_value_of_the_command_line_has_the_same_limits():
    assert read_value("{a: 1, b: [x]}") == {"a": 1, "b": ["x"]} and read_value("") is None
    for text in ("[" * 5000, "&a [*a]", "!!bool x"):
        with pytest.raises(yaml.YAMLError):
            read_value(text)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (True, "true"), (None, "null"), (Path("a/b"), "a/b"), ("yes", "'yes'"), ([1, "a b"], "[1, a b]"),
        ({"a": None}, "{a: null}"), (1e-5, "1.0e-05"), ("", "''"), ("x" * 300, "x" * 300), ([], "[]"),
    ],
)  # fmt: skip
def test_a_value_is_written_as_it_is_read(value: object, written: str):
    assert write_value(value) == written
    assert read_value(written) == (str(value) if isinstance(value, Path) else value)
