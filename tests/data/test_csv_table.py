"""CSV files as rows of any format."""

from pathlib import Path

import pytest

from bough.data import lines as lines_module
from bough.data.reader import Reader, read
from bough.errors import InputError
from bough.types import Pair, Trajectory


def written(tmp_path: Path, text: str, name: str = "a.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_the_columns_say_the_format(tmp_path: Path):
    path = written(tmp_path, 'instruction,output\nSay hi,"Hi, you"\n"Two\nlines",ok\n')
    reader = Reader(path)
    records = list(reader)
    assert reader.format is not None and reader.format.name == "alpaca"
    assert [record.turns[0].reply.content for record in records if isinstance(record, Trajectory)] == ["Hi, you", "ok"]
    assert reader.place.line == 3


@pytest.mark.parametrize("name", ["a.csv", "b.tsv"])
@pytest.mark.parametrize(("delimiter", "column"), [(",", "label"), (";", "success"), ("\t", "label")])
def test_thumbs_are_flags_whatever_the_delimiter(tmp_path: Path, delimiter: str, column: str, name: str):
    rows = [("prompt", "completion", column), ("Hi", "Hello", "TRUE"), ("Hi", "Go away", "0")]
    path = written(tmp_path, "\n".join(map(delimiter.join, rows)), name)
    assert [record.success for record in read(path) if isinstance(record, Trajectory)] == [True, False]


def test_cells_with_messages_are_json_and_brackets_alone_are_text(tmp_path: Path):
    messages = '"[{""role"": ""user"", ""content"": ""Hi""}]"'
    path = written(tmp_path, f"prompt,chosen,rejected,margin\n{messages},[sic] Hello,No,0.5\n")
    [pair] = read(path)
    assert isinstance(pair, Pair)
    assert (pair.start[0].content, pair.chosen[0].reply.content, pair.margin) == ("Hi", "[sic] Hello", 0.5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prompt,completion\na\n", "a.csv:2: the row has 1 cells and the header 2"),
        ("prompt,prompt\na,b\n", "must name each column once"),
        ("prompt,completion,label\na,b,maybe\n", "\"label\" is 'maybe'; it must be true or false"),
        ("prompt,completion,reward\na,b,much\n", "\"reward\" is 'much'; it must be JSON"),
        ('prompt,completion\na,"b\n', "not CSV after line 1"),
        ("question,answer\na,b\n", "the columns of the row are 'question', 'answer'; no format has these"),
    ],
)
def test_a_bad_table_is_told_what_is_wrong(tmp_path: Path, text: str, said: str):
    with pytest.raises(InputError) as error:
        list(read(written(tmp_path, text)))
    assert said in str(error.value)
    (tmp_path / "b.csv").write_bytes(b"prompt,completion\na,\xff\n")
    with pytest.raises(InputError, match="not UTF-8: byte 0xff"):
        list(read(tmp_path / "b.csv"))


@pytest.mark.parametrize("row", ["a" * 2000, '"' + "a\n" * 300 + '",' + '"' + "b\n" * 300 + '"'], ids=["line", "lines"])
@pytest.mark.parametrize("first", ["", "prompt,completion\n"])
def test_a_row_without_an_end_is_not_read(tmp_path: Path, first: str, row: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines_module.lines, "__defaults__", (1000,))
    with pytest.raises(InputError, match="a row is longer than 0 MiB"):
        list(read(written(tmp_path, f"{first}{row}\n")))


def test_the_limit_is_of_each_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines_module.lines, "__defaults__", (1000,))
    assert len(list(read(written(tmp_path, "prompt,completion\n" + f"Hi,{'a' * 900}\n" * 20)))) == 20
