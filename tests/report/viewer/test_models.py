import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bough.models.resolve import resolve
from bough.report.viewer.index import Index
from bough.report.viewer.models import Model, Models
from tests.report.viewer.samples import trajectory, write

Make = Callable[[Path], Index]


def test_every_token_has_its_text_and_together_they_are_the_whole():
    from tokenizers import Tokenizer

    folder = Path(resolve("tiny"))
    text = "go to shelf 1 – größer 你好 🙂"
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    texts = Model("tiny", folder, None).texts(list(ids))
    assert texts is not None and len(texts) == len(ids)
    assert "".join(texts) == text and "�" not in "".join(texts)


def test_tokens_of_another_model_are_not_given_wrong_texts():
    assert Model("tiny", resolve("tiny"), None).texts([10**6]) is None


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text("{}")
    model = Model("broken", tmp_path, None)
    assert model.texts([1]) is None
    assert model.missing is not None and "broken cannot be read" in model.missing


def named(folder: Path, name: str) -> None:
    write(folder / "a/a.jsonl", trajectory("a#0", ["look"], info={}))
    (folder / "a/config.yaml").write_text(json.dumps({"model": name}))


def test_a_name_in_a_file_means_a_folder_inside_and_nothing_else(
    tmp_path: Path, make_index: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path / "empty"))
    for place in ("outside", "run/sft/final"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "tokenizer.json").write_text("{}")
    record = trajectory("a#0", ["look"], info={})
    for name, found in (
        ("runs/run/sft/final", tmp_path / "run/sft/final"),
        ("sft/final", tmp_path / "run/sft/final"),
        ("/gone/run/sft/final", tmp_path / "run/sft/final"),
        (str(tmp_path / "outside"), None),
        ("../outside", None),
        ("org/model", None),
        ("smollm2", None),
    ):
        named(tmp_path / "run", name)
        model = Models(make_index(tmp_path / "run"), None).of("a/a.jsonl", record)
        assert model.folder == found
        assert (model.missing is None) is (found is not None)
    assert not (tmp_path / "empty").exists()


def test_scripted_agents_have_no_model(tmp_path: Path, make_index: Make):
    named(tmp_path / "run", "expert")
    model = Models(make_index(tmp_path / "run"), None).of(
        "a/a.jsonl", trajectory("a#0", ["look"], info={"agent": "random"})
    )
    assert model.missing == "no model is named; start the viewer with --model NAME"


def test_the_users_word_comes_first(tmp_path: Path, make_index: Make):
    named(tmp_path / "run", "expert")
    model = Models(make_index(tmp_path / "run"), "tiny").of("a/a.jsonl", trajectory("a#0", ["look"]))
    assert (model.name, model.folder) == ("tiny", resolve("tiny"))
