import json
import shutil
from pathlib import Path

import pytest

from bough.chat.template import load_template
from bough.errors import InputError
from bough.models.resolve import end_token_ids, resolve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "chat_template.jinja"):
        if (source := Path(resolve("tiny")) / name).exists():
            shutil.copy(source, tmp_path)
    return tmp_path


@pytest.mark.parametrize(("named", "expected"), [(2, [2]), ([2, 9, 7], [2, 9, 7])])
def test_the_generation_config_names_one_or_more(folder: Path, named: object, expected: list[int]):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    assert end_token_ids(str(folder)) == expected
    assert load_template(str(folder)).stop_ids == expected


def test_without_one_the_model_config_does_and_a_tokenizer_alone_names_none(folder: Path):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [4, 5]}))
    assert end_token_ids(str(folder)) == [4, 5]
    (folder / "config.json").unlink()
    assert end_token_ids(str(folder)) == [] and load_template(str(folder)).stop_ids == [2]


@pytest.mark.parametrize(
    "named", [list(range(100_000)), ["</s>"], "</s>", {"a": 1}, [True], [1.5]], ids=lambda x: str(x)[:9]
)
def test_what_are_not_a_few_token_ids_is_refused(folder: Path, named: object):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    with pytest.raises(InputError, match=r"eos_token_id must be a token id or a list of at most 1,000"):
        end_token_ids(str(folder))


def test_a_generation_config_that_cannot_be_read_is_left_out(folder: Path):
    (folder / "generation_config.json").write_text("[" * 100_000)
    assert end_token_ids(str(folder)) == [2]
